"""The epoch log: each epoch once, whoever writes, whatever dies, however long it runs."""

import contextlib
import itertools
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from journals import (
    Counting,
    Created,
    Fault,
    Faulty,
    FaultyAt,
    Interrupted,
    ModelJournal,
    Slow,
    Unversioned,
    entry,
    interleave,
    make_listing,
    snapshot,
)
from log_racer import race

from krishiv_spark.errors import CommitRejected, CommitUnknown, Fenced, LogError, SinkError
from krishiv_spark.offsets import (
    Claim,
    EpochLog,
    PlannedOffsets,
    State,
    open_log,
    remove_dead_logs,
)
from krishiv_spark.offsets.entries import Entry, new_entry, to_bytes
from krishiv_spark.offsets.journal import Journal, open_journal

GOLDEN = Path(__file__).parents[1] / "golden" / "epoch_log"
NEVER = 10**9
PROBED = 2
"""Number of names that are created to probe a storage, before the first entry."""


def publish(log: EpochLog, epoch: int, staged: object = None) -> State:
    """Run the steps of a driver for an epoch that is not committed yet."""
    state = log.intend(log.begin().owner, epoch, staged)
    log.compact(state)
    return state


def next_epoch(held: int | None) -> int:
    return 0 if held is None else held + 1


def claim(epoch: int, begins: int | None = None, ends: int | None = None, **more: str) -> Claim:
    """Of the epoch that begins where the one before ends, unless it is said otherwise."""
    first, last = ({"0": str(at)} for at in (begins or 10 * epoch, ends or 10 * epoch + 10))
    return Claim(query="query-1", offsets=PlannedOffsets.of(epoch, first, last), **more)


# --- what the log says, on every storage


def test_an_empty_log_holds_nothing(journal):
    state = EpochLog(journal).state()
    assert (state.number, state.owner, state.intent, state.committed_epoch) == (0, 0, None, None)


def test_generations_grow_and_hold_nothing_by_themselves(journal):
    log = EpochLog(journal)
    generations = [log.begin().owner, log.begin().owner, EpochLog(journal).begin().owner]
    assert generations == sorted(set(generations))
    assert log.state().owner == generations[-1]
    assert log.state().committed_epoch is None


def test_what_speaks_against_an_owner_is_raised_before_its_entry(journal):
    log = EpochLog(journal)

    def refuse(state: State) -> None:
        raise LogError(f"entry {state.number} says no")

    for number in range(2):
        with pytest.raises(LogError, match=f"entry {number} says no"):
            log.begin(check=refuse)
        assert log.state().number == number
        assert log.begin().owner == number + 1


def test_an_intent_holds_its_epoch_and_names_what_was_staged(journal):
    log = EpochLog(journal)
    staged = [{"name": "é", "size": 1, "none": None, "list": [[], {}]}]
    generation = log.begin().owner
    state = log.intend(generation, 0, staged)
    for seen in (state, log.state(), EpochLog(journal).state()):
        assert seen.committed_epoch == 0
        assert seen.intent.staged == staged
        assert seen.intent_generation == generation


def test_a_generation_publishes_one_epoch_and_no_more(journal):
    log = EpochLog(journal)
    generation = log.begin().owner
    log.intend(generation, 0, [])
    with pytest.raises(Fenced):
        log.intend(generation, 1, [])
    assert log.state().committed_epoch == 0


def test_an_earlier_generation_is_fenced_and_told_by_whom(journal):
    stale, fresh = EpochLog(journal), EpochLog(journal)
    generation = stale.begin().owner
    successor = fresh.begin().owner
    with pytest.raises(
        Fenced, match=rf"generation {generation} .*generation {successor} \(.*:\d+\)"
    ):
        stale.intend(generation, 0, [])
    assert fresh.intend(successor, 0, ["mine"]).committed_epoch == 0
    with pytest.raises(Fenced):
        stale.intend(generation, 0, [])


def test_an_epoch_that_is_held_is_not_published_again(journal):
    log = EpochLog(journal)
    publish(log, 0, ["first"])
    publish(log, 1, ["second"])
    for epoch in (0, 1):
        generation = log.begin().owner
        with pytest.raises(CommitRejected, match=f"epoch {epoch} .*has 1"):
            log.intend(generation, epoch, ["again"])
    assert log.state().intent.staged == ["second"]


def test_epochs_may_be_left_out(journal):
    log = EpochLog(journal)
    publish(log, 3)
    publish(log, 7)
    assert (log.state().committed_epoch, log.state().previous_epoch) == (7, 3)


def test_a_void_gives_the_epoch_back(journal):
    log = EpochLog(journal)
    publish(log, 0)
    publish(log, 1, ["lost"])
    voided = log.void(log.state())
    assert (voided.committed_epoch, voided.intent) == (0, None)
    assert EpochLog(journal).state() == voided
    assert publish(log, 1, ["found"]).committed_epoch == 1
    assert log.state().previous_epoch == 0


def test_the_first_epoch_can_be_voided_too(journal):
    log = EpochLog(journal)
    publish(log, 0)
    assert log.void(log.state()).committed_epoch is None
    assert publish(log, 0).committed_epoch == 0


def test_a_void_after_the_log_moved_on_is_fenced(journal):
    log = EpochLog(journal)
    state = publish(log, 0)
    EpochLog(journal).begin()
    with pytest.raises(Fenced):
        log.void(state)
    assert log.state().committed_epoch == 0


def test_without_an_intent_there_is_nothing_to_void(journal):
    log = EpochLog(journal)
    log.begin()
    with pytest.raises(ValueError, match="no intent"):
        log.void(log.state())
    assert len(journal.list().entries) == 1


def test_an_owner_does_not_hide_the_intent_before_it(journal):
    log = EpochLog(journal)
    generation = log.begin().owner
    log.intend(generation, 0, ["staged"])
    successor = EpochLog(journal)
    successor.begin()
    successor.begin()
    state = successor.state()
    assert (state.intent.staged, state.intent_generation, state.committed_epoch) == (
        ["staged"],
        generation,
        0,
    )


def test_entries_written_by_others_are_seen(journal):
    log, other = EpochLog(journal), EpochLog(journal)
    for epoch in range(10):
        publish(other if epoch % 2 else log, epoch, [epoch])
        assert log.state().committed_epoch == other.state().committed_epoch == epoch
        assert log.state().intent.staged == [epoch]


@pytest.mark.parametrize("fold_every", [1, 2, 3, 4, 7])
def test_folding_changes_nothing_that_is_said(journal, fold_every):
    plain = EpochLog(ModelJournal(), NEVER)
    folded = EpochLog(journal, fold_every)
    for epoch in range(9):
        publish(plain, epoch, [epoch])
        publish(folded, epoch, [epoch])
        for log in (folded, EpochLog(journal, fold_every)):
            said, expected = log.state(), plain.state()
            without = {"nonce": True, "at": True, "intent": {"nonce", "at"}}
            assert said.model_dump(exclude=without) == expected.model_dump(exclude=without)
    assert len(journal.list().entries) <= 2 * (fold_every + 1)
    assert len(journal.list().snapshots) <= 2


def test_a_log_can_be_destroyed_and_begun_anew(journal):
    log = EpochLog(journal, fold_every=2)
    for epoch in range(5):
        publish(log, epoch)
    log.destroy()
    assert log.state() == State()
    assert publish(log, 0).committed_epoch == 0


# --- a driver that slept


@pytest.mark.parametrize("fold_every", [2, 3, 4, NEVER])
@pytest.mark.parametrize("epochs", range(6))
@pytest.mark.parametrize("call", ["list", "read", "create"])
@pytest.mark.parametrize("at", range(4))
def test_a_driver_that_slept_while_others_published_is_fenced(fold_every, epochs, call, at):
    journal = ModelJournal()
    other = EpochLog(journal, fold_every)
    for epoch in range(3):
        publish(other, epoch, ["before"])
    sleeper = EpochLog(journal, fold_every)
    generation = sleeper.begin().owner

    def meanwhile() -> None:
        for _ in range(epochs):
            publish(other, next_epoch(other.state().committed_epoch), ["other"])

    sleeper._journal = Interrupted(journal, call, meanwhile, at)
    with contextlib.suppress(Fenced):
        sleeper.intend(generation, 3, ["sleeper"])
    check(journal, EpochLog(journal, fold_every))
    intents = [created.entry for created in journal.counting if created.entry.kind == "intent"]
    assert [intent.epoch for intent in intents] == list(range(len(intents)))


@pytest.mark.parametrize("fold_every", [2, 3, 4])
@pytest.mark.parametrize("epochs", range(6))
def test_a_listing_that_lasts_through_a_fold_shows_no_older_log(fold_every, epochs):
    journal = ModelJournal()
    other = EpochLog(journal, fold_every)
    for epoch in range(epochs):
        publish(other, epoch)
    before = other.state()
    slow = Slow(journal, lambda: publish(other, epochs))
    assert EpochLog(slow).state().number >= before.number


def test_a_driver_whose_number_was_used_and_removed_is_fenced():
    journal = ModelJournal()
    other = EpochLog(journal, fold_every=2)

    def meanwhile() -> None:
        for epoch in range(4):
            publish(other, epoch, ["other"])

    generation = EpochLog(journal).begin().owner
    sleeper = EpochLog(Interrupted(journal, "create", meanwhile))
    with pytest.raises(Fenced):
        sleeper.intend(generation, 0, ["sleeper"])
    stale = [created for created in journal.history if not created.counts]
    assert [created.entry.staged for created in stale] == [["sleeper"]]
    for log in (other, sleeper, EpochLog(journal)):
        assert log.state().intent.staged == ["other"]
    publish(other, 4)
    publish(other, 5)
    assert stale[0].number not in journal.list().entries


def test_a_driver_whose_number_follows_one_that_was_used_twice_is_fenced():
    journal = ModelJournal()
    other = EpochLog(journal, fold_every=2)
    generation = EpochLog(journal).begin().owner
    owner = journal.names[entry(generation)]

    def meanwhile() -> None:
        for epoch in range(4):
            publish(other, epoch, ["other"])
        assert journal.create(entry(generation), owner)  # by a third driver, which slept too

    sleeper = EpochLog(Interrupted(journal, "create", meanwhile))
    with pytest.raises(Fenced):
        sleeper.intend(generation, 0, ["sleeper"])
    assert other.state().intent.staged == ["other"]


def test_a_driver_that_slept_while_it_took_over_takes_over_anew():
    journal = ModelJournal()
    other = EpochLog(journal, fold_every=2)

    def meanwhile() -> None:
        for epoch in range(4):
            publish(other, epoch)

    sleeper = EpochLog(Interrupted(journal, "create", meanwhile))
    generation = sleeper.begin().owner
    assert generation == 9
    assert sleeper.intend(generation, 4, []).committed_epoch == 4


def test_an_intent_in_a_log_that_was_destroyed_meanwhile_is_no_success():
    journal = ModelJournal()
    generation = EpochLog(journal).begin().owner
    sleeper = EpochLog(Interrupted(journal, "create", journal.destroy))
    with pytest.raises(CommitUnknown, match="removed or replaced"):
        sleeper.intend(generation, 0, [])


@pytest.mark.parametrize("entries", range(3))
def test_what_no_begin_returned_is_no_generation(entries):
    log = EpochLog(ModelJournal())
    if entries:
        generation = log.begin().owner
    if entries == 2:
        log.intend(generation, 0, [])
    for other in {-1, 0, 1, 2, 3} - ({1} if entries == 1 else set()):
        with pytest.raises(Fenced):
            log.intend(other, 1, [])


def check(journal: ModelJournal, log: EpochLog) -> None:
    """Compare all that happened with what the log says, by a model of one sentence per kind."""
    counting = journal.counting
    assert [created.number for created in counting] == list(range(1, len(counting) + 1))
    held: list[int] = []
    owner: Created | None = None
    intent: Entry | None = None
    for before, created in zip([None, *counting], counting, strict=False):
        if created.entry.kind == "owner":
            owner = created
        elif created.entry.kind == "intent":
            assert before is owner, f"{created} is not right after an owner entry"
            assert created.driver == owner.driver
            assert not held or created.entry.epoch > held[-1]
            held.append(created.entry.epoch)
            intent = created.entry
        else:
            held.pop()
            intent = None
    state = log.state()
    assert state.number == len(counting)
    assert state.committed_epoch == (held[-1] if held else None)
    assert state.intent == intent
    assert state.owner == (owner.number if owner else 0)


# --- every interleaving


def two_epochs(fold_every: int, told: list[str], begins: int = 2) -> Callable[[Journal], None]:
    """Run the steps of a driver twice, from the takeover to the fold, and record the answers."""

    def work(journal: Journal) -> None:
        log = EpochLog(journal, fold_every)
        for _ in range(begins):
            before = len(journal.inner.counting)
            generation = log.begin().owner
            assert generation > before
            name = f"{id(told)}.{generation}"
            before = len(journal.inner.counting)
            state = log.state()
            assert state.number >= before, "the log said less than it held when it was asked"
            try:
                state = log.intend(generation, next_epoch(state.committed_epoch), name)
            except (Fenced, CommitRejected):
                continue
            told.append(name)
            log.compact(state)

    return work


def by_two_processes(fold_every: int, told: list[str], begins: int) -> Callable[[Journal], None]:
    """Run the steps of a driver whose planner does not read the log between its owner entries."""

    def work(journal: Journal) -> None:
        planner, committer = EpochLog(journal, fold_every), EpochLog(journal, fold_every)
        for _ in range(begins):
            before = len(journal.inner.counting)
            state = planner.begin()
            assert state.owner > before
            planner.compact(state)
            committer.import_state(planner.export_state())
            name = f"{id(told)}.{state.owner}"
            try:
                committer.intend(state.owner, next_epoch(state.committed_epoch), name)
            except (Fenced, CommitRejected):
                continue
            told.append(name)

    return work


def run_interleaved(
    schedule: Sequence[int],
    fold_every: int,
    begins: Sequence[int] = (2, 2),
    driver: Callable[..., Callable[[Journal], None]] = two_epochs,
) -> int:
    journal = ModelJournal()
    publish(EpochLog(journal, fold_every), 0, "start")
    told: list[list[str]] = [[] for _ in begins]
    works = [driver(fold_every, mine, n) for mine, n in zip(told, begins, strict=True)]
    interleave(journal, works, schedule)
    check(journal, EpochLog(journal, fold_every))
    accepted = {created.entry.staged for created in journal.counting}
    assert accepted.issuperset(itertools.chain(*told)), "an epoch was reported that is not true"
    return len(journal.history)


@pytest.mark.parametrize(
    "stride", [pytest.param(8, id="some"), pytest.param(2, marks=pytest.mark.long, id="all")]
)
@pytest.mark.parametrize("driver", [two_epochs, by_two_processes])
def test_each_epoch_is_once_wherever_one_driver_stops_for_another(driver, stride):
    # Driver 0 stops after any call of its epoch, and goes on after any call of driver 1, which
    # meanwhile may have taken over, published and folded more than once.
    for stop, resume in itertools.product(range(28), range(0, 84, stride)):
        run_interleaved([0] * stop + [1] * resume + [0] * 99, 2, (2, 3), driver)


@pytest.mark.long
@settings(max_examples=150)
@given(st.lists(st.integers(0, 2), max_size=120), st.sampled_from([2, 3, 4, NEVER]))
def test_each_epoch_is_once_however_three_drivers_take_turns(schedule, fold_every):
    run_interleaved(schedule, fold_every, (2, 2, 2))


@pytest.mark.long
@settings(max_examples=150)
@given(st.lists(st.integers(0, 2), max_size=120), st.sampled_from([2, 3, 4, NEVER]))
def test_each_epoch_is_once_however_planners_and_committers_take_turns(schedule, fold_every):
    run_interleaved(schedule, fold_every, (3, 3, 3), by_two_processes)


class Drivers(RuleBasedStateMachine):
    """Drivers that begin, publish, void, fold and die on one log, beside a model of it."""

    def __init__(self, make: Callable[[], Journal], fold_every: int) -> None:
        super().__init__()
        self.fold_every = fold_every
        self.journal = make()

    @initialize()
    def start(self) -> None:
        self.logs = [EpochLog(self.journal, self.fold_every) for _ in range(3)]
        self.generations = [0, 0, 0]
        self.entries: list[str] = []
        self.held: list[tuple[int, str]] = []
        self.serial = 0

    drivers = st.integers(0, 2)

    @rule(driver=drivers)
    def begin(self, driver: int) -> None:
        generation = self.logs[driver].begin().owner
        assert generation == len(self.entries) + 1
        self.generations[driver] = generation
        self.entries.append("owner")

    @rule(driver=drivers, skip=st.integers(0, 2))
    def intend(self, driver: int, skip: int) -> None:
        self.serial += 1
        staged, generation = f"s{self.serial}", self.generations[driver]
        epoch = (self.held[-1][0] + 1 if self.held else 0) + skip
        owns = generation == len(self.entries) and self.entries[-1:] == ["owner"]
        try:
            state = self.logs[driver].intend(generation, epoch, staged)
        except Fenced:
            assert not owns
            return
        assert owns
        self.entries.append("intent")
        self.held.append((epoch, staged))
        assert state == EpochLog(self.journal).state()

    @precondition(lambda self: self.held)
    @rule(driver=drivers, back=st.integers(0, 3))
    def intend_what_is_held(self, driver: int, back: int) -> None:
        epoch = max(0, self.held[-1][0] - back)
        with pytest.raises((Fenced, CommitRejected)):
            self.logs[driver].intend(self.generations[driver], epoch, "again")

    @rule(driver=drivers)
    def void(self, driver: int) -> None:
        state = self.logs[driver].state()
        if state.intent is not None:
            self.logs[driver].void(state)
            self.entries.append("void")
            self.held.pop()

    @rule(driver=drivers)
    def fold(self, driver: int) -> None:
        self.logs[driver].compact(self.logs[driver].state())

    @rule(driver=drivers)
    def hand_over(self, driver: int) -> None:
        """The planner's process to the committer's, which is new, or has seen earlier epochs."""
        if self.entries[-1:] == ["owner"] and self.generations[driver] == len(self.entries):
            seen = self.logs[driver].export_state()
            for log in (EpochLog(self.journal, self.fold_every), self.logs[driver - 1]):
                log.import_state(seen)
                assert log.state().number == len(self.entries)
                self.logs[driver] = log

    @rule(driver=drivers)
    def die(self, driver: int) -> None:
        self.logs[driver] = EpochLog(self.journal, self.fold_every)

    @invariant()
    def every_driver_is_told_the_same_truth(self) -> None:
        for log in [*self.logs, EpochLog(self.journal)]:
            state = log.state()
            assert state.number == len(self.entries)
            assert state.committed_epoch == (self.held[-1][0] if self.held else None)
            if state.intent is not None:
                assert (state.intent.epoch, state.intent.staged) == self.held[-1]


@pytest.mark.parametrize("fold_every", [2, 3, 4])
def test_drivers_agree_with_a_model_in_memory(fold_every):
    run(lambda: Drivers(ModelJournal, fold_every), 60)


@pytest.mark.long
def test_drivers_agree_with_a_model_in_an_object_store():
    buckets = itertools.count()
    run(lambda: Drivers(lambda: open_journal(f"memory://drivers-{next(buckets)}/log"), 3), 25)


def test_drivers_agree_with_a_model_on_a_disk(tmp_path):
    folders = itertools.count()
    run(lambda: Drivers(lambda: open_journal(tmp_path / str(next(folders))), 3), 10)


def run(make: Callable[[], Drivers], examples: int) -> None:
    run_state_machine_as_test(
        make, settings=settings(max_examples=examples, stateful_step_count=25)
    )


class TornListings(ModelJournal):
    """A listing beside a fold may lack a removed entry and the snapshot that covers it."""

    torn = 0

    def list(self):
        if self.torn:
            self.torn -= 1
            newest = max(self.names)
            return make_listing({newest: self.names[newest]})
        return super().list()


@pytest.mark.parametrize("torn", [1, 3])
def test_a_listing_beside_a_fold_is_repeated(torn):
    journal = TornListings()
    log = EpochLog(journal)
    generation = log.begin().owner
    journal.torn = torn
    assert log.intend(generation, 0, "x").committed_epoch == 0
    assert journal.torn == 0


@pytest.mark.long
def test_processes_racing_on_a_disk_publish_each_epoch_once(tmp_path):
    published = [*itertools.chain(*race("epochs", tmp_path, processes=3, count=40))]
    state = EpochLog(open_journal(tmp_path / "log")).state()
    assert len(published) == len(set(published))
    assert published
    assert max(published) <= state.committed_epoch
    assert len(os.listdir(tmp_path / "log")) <= 8 * 3


# --- storage that fails


ANY_FAULTS = st.lists(st.sampled_from(Fault), max_size=60)


@given(ANY_FAULTS, st.sampled_from([2, 3, NEVER]))
def test_each_epoch_is_once_whatever_calls_fail(faults, fold_every):
    """A driver that dies of every error and starts again, as Spark's user would do."""
    journal = ModelJournal()
    faulty = Faulty(journal, faults)
    told: list[int] = []
    while len(told) < 4:
        log = EpochLog(faulty, fold_every)
        try:
            while len(told) < 4:
                generation = log.begin().owner
                held = log.state().committed_epoch
                if held == len(told):  # it had happened, though nobody was told
                    told.append(held)
                    continue
                state = log.intend(generation, len(told), "x")
                told.append(len(told))
                log.compact(state)
        except (ConnectionResetError, SinkError):
            continue
    check(journal, EpochLog(journal))
    kinds = [created.entry for created in journal.counting if created.entry.kind == "intent"]
    assert [intent.epoch for intent in kinds] == [0, 1, 2, 3]


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_CALL])
def test_an_intent_whose_answer_is_lost_is_unknown_and_settled_by_looking(fault):
    journal = ModelJournal()
    log = EpochLog(FaultyAt(journal, "create", fault, at=PROBED + 1))
    generation = log.begin().owner
    with pytest.raises(CommitUnknown, match=r"epoch 0: .* failed while its intent"):
        log.intend(generation, 0, [])
    happened = fault is Fault.LOST_ANSWER
    assert EpochLog(journal).state().committed_epoch == (0 if happened else None)
    assert log.state().committed_epoch == (0 if happened else None)


def test_a_failure_of_the_look_after_an_intent_is_unknown_too():
    for at in range(10):
        journal = ModelJournal()
        log = EpochLog(journal, NEVER)
        generation = log.begin().owner
        log._journal = FaultyAt(journal, "list", Fault.LOST_CALL, at)
        try:
            log.intend(generation, 0, [])
        except CommitUnknown:
            assert journal.counting[-1].entry.kind == "intent"
        except ConnectionResetError:
            assert journal.counting[-1].entry.kind == "owner"
        else:
            return
    pytest.fail("the log never got through")


@pytest.mark.parametrize("at", [0, 1])
def test_a_name_that_is_taken_by_ones_own_lost_try_is_ones_own(at):
    journal = ModelJournal()
    log = EpochLog(FaultyAt(journal, "create", Fault.TAKEN, PROBED + at))
    assert log.intend(log.begin().owner, 0, ["x"]).committed_epoch == 0
    assert [created.entry.kind for created in journal.counting] == ["owner", "intent"]


def test_an_owner_entry_whose_answer_is_lost_is_in_nobodys_way():
    journal = ModelJournal()
    log = EpochLog(FaultyAt(journal, "create", Fault.LOST_ANSWER, PROBED))
    with pytest.raises(ConnectionResetError):
        log.begin()
    assert log.intend(log.begin().owner, 0, []).committed_epoch == 0


@pytest.mark.parametrize("removed", range(12))
def test_a_crash_within_a_fold_harms_nothing(removed):
    journal = ModelJournal()
    log = EpochLog(journal, fold_every=4)
    for epoch in range(5):
        state = log.intend(log.begin().owner, epoch, [epoch])
    log._journal = FaultyAt(journal, "remove", Fault.LOST_CALL, removed)
    try:
        log.compact(state)
    except ConnectionResetError:
        assert journal.list().entries
    for later in (log, EpochLog(journal, fold_every=4)):
        assert later.state() == state
    log._journal = journal
    for epoch in range(5, 9):
        publish(log, epoch)
    assert len(journal.names) <= 8
    check(journal, EpochLog(journal))


# --- folders that were damaged


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "log"
    log = EpochLog(open_journal(folder), fold_every=4)
    for epoch in range(5):
        publish(log, epoch, [epoch])
    log.begin()
    kept = [snapshot(4), *map(entry, range(5, 9)), snapshot(8), *map(entry, range(9, 12))]
    assert set(os.listdir(folder)) == set(kept)
    return folder


DAMAGE = {
    "empty": b"",
    "cut": b'{"kind":"owner","non',
    "binary": b"\xff\x00\xfe",
    "a newer version": b'{"kind":"owner","nonce":"n","v":2,"writer":"w"}',
    "an unknown field": b'{"kind":"owner","more":1,"nonce":"n","v":1,"writer":"w"}',
    "an unknown kind": b'{"kind":"king","nonce":"n","v":1,"writer":"w"}',
    "no object": b"[]",
}


@pytest.mark.parametrize("name", [entry(9), entry(11), snapshot(8)])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_an_error_that_names_the_file(folder, name, damage):
    (folder / name).write_bytes(damage)
    for work in (EpochLog.state, EpochLog.begin):
        with pytest.raises(LogError, match=f"{name} .*{folder}.*restore it from a backup"):
            work(EpochLog(open_journal(folder)))
    assert (folder / name).read_bytes() == damage


@pytest.mark.parametrize("names", [[entry(9)], [entry(10)], [snapshot(8), entry(6)]])
def test_a_missing_entry_is_an_error_and_no_new_beginning(folder, names):
    for name in names:
        (folder / name).unlink()
    with pytest.raises(LogError, match=f"{folder} has a gap"):
        EpochLog(open_journal(folder)).state()


def test_the_snapshot_before_makes_up_for_one_that_is_missing(folder):
    before = EpochLog(open_journal(folder)).state()
    (folder / snapshot(8)).unlink()
    assert EpochLog(open_journal(folder)).state() == before


def test_leftovers_at_or_below_the_snapshot_are_passed_over(folder):
    before = EpochLog(open_journal(folder)).state()
    (folder / entry(4)).write_bytes(b"anything")
    (folder / entry(2)).write_bytes(b"anything")
    (folder / snapshot(2)).write_bytes(b"anything")
    (folder / f".{entry(12)}.0f0f").write_bytes(b"half")
    log = EpochLog(open_journal(folder), fold_every=4)
    assert log.state() == before
    assert publish(log, 5).committed_epoch == 5
    publish(log, 6)
    assert not {entry(2), entry(4), snapshot(2)} & set(os.listdir(folder))


@given(st.data())
@settings(max_examples=60)
def test_any_damage_is_a_log_error_or_no_damage(data):
    journal = ModelJournal()
    log = EpochLog(journal, fold_every=4)
    for epoch in range(3):
        publish(log, epoch, {"files": ["a", "b"]})
    name = data.draw(st.sampled_from(sorted(journal.names)))
    content = bytearray(journal.names[name])
    at = data.draw(st.integers(0, len(content) - 1))
    content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=3))
    journal.names[name] = bytes(content)
    try:
        EpochLog(journal).state()
    except LogError as error:
        assert name in str(error)  # noqa: PT017  an error is one of two right outcomes


# --- caches


def test_a_log_that_was_deleted_and_begun_anew_is_read_anew(tmp_path):
    folder = tmp_path / "log"
    cached = EpochLog(open_journal(folder))
    for epoch in range(4):
        publish(cached, epoch, ["old"])
    for count in range(1, 6):
        shutil.rmtree(folder)
        assert cached.state() == State()
        other = EpochLog(open_journal(folder))
        for epoch in range(count):
            publish(other, epoch, ["new"])
        assert cached.state() == EpochLog(open_journal(folder)).state()
        assert cached.state().intent.staged == ["new"]


def test_a_replaced_log_is_read_anew_without_a_look_between(tmp_path):
    folder = tmp_path / "log"
    cached = EpochLog(open_journal(folder))
    for epochs in (1, 1, 2, 4, 4, 5, 3, 1):
        shutil.rmtree(folder, ignore_errors=True)
        other = EpochLog(open_journal(folder))
        for epoch in range(epochs):
            publish(other, epoch, [epochs])
        assert cached.state() == EpochLog(open_journal(folder)).state()


def test_a_process_opens_a_log_once(tmp_path):
    location = str(tmp_path / "log")
    assert open_log(location) is open_log(location)
    publish(open_log(location), 0)
    assert EpochLog(open_journal(Path(location))).state().committed_epoch == 0


# --- size and cost


@pytest.mark.long  # 10 000 epochs
def test_a_log_stays_small_and_costs_the_same_for_ever():
    journal = ModelJournal()
    counting = Counting(journal)
    log = EpochLog(counting)
    costs: dict[int, int] = {}
    for epoch in range(10_000):
        if epoch in (100, 9_999):
            cold = counting.during(EpochLog(counting).state).total()
            begin = counting.during(log.begin).total()
            assert begin <= 8
            assert cold <= 2 + 64
            costs[epoch] = begin
        publish_cost = counting.during(lambda epoch=epoch: publish(log, epoch)).total()
        assert publish_cost <= 12 + 8  # those that a fold removes at once
        assert len(journal.names) <= 2 * 64 + 6
        journal.history.clear()
    assert costs[100] == costs[9_999]
    assert log.state().committed_epoch == 9_999


def test_an_epoch_makes_no_more_calls_than_these():
    journal = Counting(ModelJournal())
    log = EpochLog(journal)
    publish(log, 0)
    calls = journal.during(lambda: publish(log, 1))
    assert calls["create"] == 2
    assert calls["list"] <= 5
    assert calls["read"] <= 8
    assert not calls["replace"] + calls["remove"]


VERSIONED = pytest.mark.parametrize("versioned", [True, False])
"""True if a listing shows the version of an entry; otherwise the entry itself is read."""


class Query:
    """The two processes of one driver that use the log."""

    def __init__(self, journal: Journal) -> None:
        self.planner, self.committer = EpochLog(journal), EpochLog(journal)

    def begin(self, check: Callable[[State], object] | None = None) -> State:
        state = self.planner.begin(check=check)
        self.committer.import_state(self.planner.export_state())
        return state

    def epoch(self, epoch: int) -> State:
        return self.committer.intend(self.begin().owner, epoch, [epoch])


@VERSIONED
def test_an_epoch_of_two_processes_lists_the_log_only_after_its_entries(versioned):
    journal = Counting(ModelJournal() if versioned else Unversioned())
    query = Query(journal)
    for epoch in range(20):
        query.epoch(epoch)
    again = 0 if versioned else 1
    begun = journal.during(query.begin)
    assert begun == Counter(read=1 + again, create=1, list=1)
    generation = query.planner.state().owner
    intended = journal.during(lambda: query.committer.intend(generation, 20, ["a"]))
    assert intended == Counter(create=1, list=1, read=again)
    assert query.begin().intent.staged == EpochLog(journal).state().intent.staged == ["a"]


def test_a_planner_that_expects_its_own_intent_takes_over_what_is_there():
    journal = ModelJournal()
    query, other = Query(journal), EpochLog(journal)
    query.epoch(0)
    publish(other, 1)
    publish(other, 2)
    seen: list[int] = []
    state = query.begin(lambda state: seen.append(state.committed_epoch))
    assert seen == [0, 2]
    assert (state.number, state.committed_epoch) == (7, 2)


def test_a_planner_is_refused_only_by_the_whole_log_and_has_changed_nothing():
    journal = ModelJournal()
    query, other = Query(journal), EpochLog(journal)
    query.epoch(0)
    publish(other, 1)

    def refuse(epoch: int) -> Callable[[State], None]:
        def check(state: State) -> None:
            if state.committed_epoch == epoch:
                raise LogError(f"epoch {epoch}")

        return check

    with pytest.raises(LogError, match="epoch 1"):
        query.begin(refuse(1))
    assert query.planner.state().number == 4
    query = Query(journal)
    query.epoch(2)
    publish(other, 3)
    assert query.begin(refuse(2)).committed_epoch == 3


@VERSIONED
@pytest.mark.parametrize("entries", [3, 4])
def test_a_planner_notices_that_the_log_before_its_entry_is_another_one(versioned, entries):
    journal = ModelJournal() if versioned else Unversioned()
    query, other = Query(journal), EpochLog(ModelJournal())
    query.epoch(0)
    query.epoch(1)
    for epoch in range(2):
        publish(other, epoch)
    journal.names = {entry(n): other._journal.names[entry(n)] for n in range(1, entries + 1)}
    if entries == 3:  # the entry that is expected is missing, so the log is read
        assert query.begin().number == 4
        return
    with pytest.raises(LogError, match="removed or replaced"):
        query.begin()
    assert query.begin().number == 6


@VERSIONED
@pytest.mark.parametrize("what", ["replaced", "removed"])
def test_an_intent_in_a_log_that_became_another_one_has_an_unknown_outcome(versioned, what):
    journal = ModelJournal() if versioned else Unversioned()
    query, other = Query(journal), EpochLog(ModelJournal())
    generation = query.begin().owner
    other.begin()
    journal.names = other._journal.names if what == "replaced" else {}
    with pytest.raises(CommitUnknown, match="removed or replaced"):
        query.committer.intend(generation, 0, ["a"])


def test_a_committer_that_remembers_a_longer_log_believes_its_planner():
    journal = ModelJournal()
    query = Query(journal)
    for epoch in range(5):
        query.epoch(epoch)
    journal.names.clear()
    assert query.epoch(0).number == 2


def test_what_a_planner_has_seen_holds_no_more_when_another_takes_over():
    journal = ModelJournal()
    planner, other, committer = (EpochLog(journal) for _ in range(3))
    publish(planner, 0)
    generation = planner.begin().owner
    other.begin()
    committer.import_state(planner.export_state())
    with pytest.raises(Fenced):
        committer.intend(generation, 1, ["a"])
    committer = EpochLog(journal)
    committer.import_state(planner.export_state())
    assert committer.state().owner == other.state().owner


def test_what_a_planner_has_seen_of_a_log_that_is_gone_is_not_believed():
    journal = ModelJournal()
    planner, committer = EpochLog(journal), EpochLog(journal)
    publish(planner, 0)
    planner.begin()
    journal.names.clear()
    generation = EpochLog(journal).begin().owner
    committer.import_state(planner.export_state())
    assert committer.state().owner == generation == 1


def test_what_a_planner_has_seen_is_short_however_much_a_finished_intent_names():
    planner = EpochLog(ModelJournal())
    state = publish(planner, 0, [f"file {number}" for number in range(10_000)])
    planner.mark_finished(state)
    planner.begin(claim(1))
    assert len(planner.export_state()) < 2_000


def test_what_a_planner_has_seen_is_not_taken_for_finished_unless_it_is():
    journal = ModelJournal()
    planner, committer = EpochLog(journal), EpochLog(journal)
    state = publish(planner, 0, ["a"])
    committer.import_state(planner.export_state())
    assert committer.cached_state(state.owner) == state
    assert not committer.is_finished(state)


def test_a_fold_removes_a_few_entries_at_a_time_and_all_before_the_next():
    journal = Counting(ModelJournal())
    log = EpochLog(journal)
    removed = [
        journal.during(lambda epoch=epoch: publish(log, epoch))["remove"] for epoch in range(200)
    ]
    assert max(removed) == 8
    assert sum(removed) > 200
    assert len(journal.list().entries) <= 2 * 64 + 2


def test_a_folder_stays_small(tmp_path):
    log = EpochLog(open_journal(tmp_path), fold_every=8)
    for epoch in range(60):
        publish(log, epoch)
        assert len(os.listdir(tmp_path)) <= 2 * 8 + 2 + 2


# --- whose log it is, and of which epochs


def test_an_intent_is_of_the_epoch_that_its_owner_claimed(journal):
    log = EpochLog(journal)
    state = log.intend(log.begin(claim(3)).owner, 3, [])
    assert (state.committed_epoch, state.committed_offsets) == (3, claim(3).offsets)
    generation = log.begin(claim(4)).owner
    assert log.state().committed_offsets == claim(3).offsets
    with pytest.raises(SinkError, match="started for epoch 4, and cannot publish epoch 5"):
        log.intend(generation, 5, [])


def test_a_void_gives_back_what_was_planned_before(journal):
    log = EpochLog(journal)
    for epoch in (0, 1):
        log.intend(log.begin(claim(epoch)).owner, epoch, [])
    assert log.void(log.state()).committed_offsets == claim(0).offsets


@pytest.mark.parametrize("ask", [EpochLog.state, EpochLog.begin], ids=["state", "begin"])
def test_the_log_of_another_query_is_refused(journal, ask):
    EpochLog(journal, query="query-1").begin(claim(0))
    with pytest.raises(LogError, match=r"belongs to query query-1, not to query-2.*'epochLog'"):
        ask(EpochLog(journal, query="query-2"))
    assert EpochLog(journal).state().number == 1


def test_a_log_without_claims_is_taken_over_by_the_query_that_finds_it(journal):
    EpochLog(journal).begin()
    log = EpochLog(journal, query="query-1")
    assert log.begin(claim(0)).claim == claim(0)


def test_an_adopted_log_holds_what_the_operator_says(journal):
    log = EpochLog(journal)
    for epoch in (0, 1):
        log.intend(log.begin(claim(epoch)).owner, epoch, [])
    log.adopt(log.begin(), claim(7))
    state = EpochLog(journal).state()
    assert (state.committed_epoch, state.committed_offsets, state.intent) == (
        7,
        claim(7).offsets,
        None,
    )
    assert log.intend(log.begin(claim(8)).owner, 8, []).previous_epoch == 7
    log.adopt(log.begin(), Claim(query="query-1"))
    assert log.state().committed_epoch is None


def test_an_adoption_by_somebody_who_was_overtaken_is_none(journal):
    log = EpochLog(journal)
    taken = log.begin(claim(7))
    log.begin()
    with pytest.raises(Fenced):
        log.adopt(taken, claim(7))


# --- a storage that lies


@pytest.mark.parametrize("wait", [0, 1], ids=["at once", "later"])
def test_a_storage_that_overwrites_is_refused_before_the_first_entry(wait):
    class Overwriting(ModelJournal):
        def create(self, name: str, data: bytes) -> bool:
            self.names[name] = data
            return True

    class LateToo(Overwriting):
        def create(self, name: str, data: bytes) -> bool:
            is_new = name not in self.names
            super().create(name, data)
            return is_new

    journal = (Overwriting, LateToo)[wait]()
    with pytest.raises(LogError, match=r"does not create exclusively.*'epochLog'.*If-None-Match"):
        EpochLog(journal).begin()
    assert journal.names == {}


@pytest.mark.long
def test_an_object_store_that_passes_over_put_if_absent_is_refused(lying_s3):
    with pytest.raises(LogError, match=r"s3://.* does not create exclusively"):
        EpochLog(open_journal(lying_s3)).begin()
    assert open_journal(lying_s3).list().entries == ()


def test_a_storage_is_tried_once_in_a_process(journal):
    counting = Counting(journal)
    log = EpochLog(counting)
    first, second = (counting.during(log.begin) for _ in range(2))
    assert (first["create"], second["create"]) == (3, 1)


# --- jobs that died


@pytest.mark.parametrize("place", ["disk", "s3"])
def test_logs_of_jobs_that_died_long_ago_are_removed(tmp_path, s3, place):
    base = str(tmp_path / "logs") if place == "disk" else f"{s3}/logs"
    for name in ("batch-old", "batch-new", "query-old"):
        open_log(f"{base}/{name}").begin()
    remove_dead_logs(base, "batch-", 3600)
    open_log.cache_clear()
    assert open_log(f"{base}/batch-old").state().number == 1
    time.sleep(0.002)
    remove_dead_logs(base, "batch-", 0.0)
    open_log.cache_clear()
    left = {name: open_log(f"{base}/{name}").state().number for name in ("batch-old", "query-old")}
    assert left == {"batch-old": 0, "query-old": 1}


def test_there_are_no_dead_logs_where_there_is_nothing(tmp_path):
    remove_dead_logs(str(tmp_path / "nothing"), "batch-", 0.0)


# --- released forms


def test_a_log_that_version_1_wrote_still_loads(tmp_path):
    shutil.copytree(GOLDEN / "v1", tmp_path / "log")
    state = EpochLog(open_journal(tmp_path / "log")).state()
    said = json.loads((GOLDEN / "v1-state.json").read_text())
    assert json.loads(to_bytes(state)) == said
    assert publish(open_log(str(tmp_path / "log")), 4).committed_epoch == 4


def write_every_form(folder: Path) -> EpochLog:
    """A log with an entry and a snapshot of each form."""
    log = EpochLog(open_journal(folder), fold_every=4, query="query-1")
    for epoch in range(3):
        state = log.begin(claim(epoch))
        log.compact(state)
        log.intend(state.owner, epoch, [{"files": [], "folder": "x"}])
    log.void(log.state(), [])
    log.adopt(log.begin(Claim(query="query-1")), claim(5))
    return log


def test_a_log_with_claims_still_loads(tmp_path):
    shutil.copytree(GOLDEN / "claims", tmp_path / "log")
    state = EpochLog(open_journal(tmp_path / "log"), query="query-1").state()
    said = json.loads((GOLDEN / "claims-state.json").read_text())
    assert json.loads(to_bytes(state)) == said
    log = EpochLog(open_journal(tmp_path / "log"), query="query-1")
    assert log.intend(log.begin(claim(6)).owner, 6, []).committed_offsets == claim(6).offsets


def test_a_log_of_a_named_query_still_loads(tmp_path):
    shutil.copytree(GOLDEN / "named", tmp_path / "log")
    log = EpochLog(open_journal(tmp_path / "log"), query="orders")
    assert log.state().committed_offsets == PlannedOffsets.of_unknown(1, "spark's")
    state = log.begin(Claim(query="orders"))
    after = log.intend(state.owner, 2, [], PlannedOffsets.of_unknown(2, "spark's"))
    assert after.committed_offsets == PlannedOffsets.of_unknown(2, "spark's")


def write_named(folder: Path) -> None:
    """A log of a query whose checkpoint is not read."""
    log = EpochLog(open_journal(folder), query="orders")
    for epoch in range(2):
        state = log.begin(Claim(query="orders"))
        offsets = PlannedOffsets.of_unknown(epoch, "spark's")
        log.mark_finished(log.intend(state.owner, epoch, [], offsets))


@pytest.mark.parametrize(("write", "form"), [(write_every_form, "claims"), (write_named, "named")])
def test_entries_are_written_in_the_golden_form(tmp_path, write, form):
    write(tmp_path)
    texts = [path.read_text() for path in (GOLDEN / form).iterdir()]
    forms = {frozenset(json.loads(text)) for text in texts}
    for name in os.listdir(tmp_path):
        text = (tmp_path / name).read_text()
        assert frozenset(json.loads(text)) in forms
        assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


def test_a_state_keeps_the_keys_of_earlier_releases_and_reads_them():
    planned = claim(1).offsets
    state = State(
        number=9,
        committed_epoch=1,
        committed_offsets=planned,
        previous_epoch=0,
        previous_offsets=planned,
        generations=4,
        finished_intent=7,
        salvaged_epoch=1,
        salvaged=[],
    )
    text = json.loads(to_bytes(state))
    assert {"held": 1, "held_before": 0, "begun": 4, "settled": 7}.items() <= text.items()
    assert {"kept_epoch": 1, "kept": [], "number": 9}.items() <= text.items()
    assert text["held_offsets"] == text["held_before_offsets"] == planned.model_dump(mode="json")
    assert State.model_validate_json(to_bytes(state)) == state
    assert b'"settled":7' in to_bytes(new_entry("owner", finished_intent=7))
