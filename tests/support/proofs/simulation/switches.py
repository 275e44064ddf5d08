"""The code that replaces a rule that is switched off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from krishiv_spark.errors import LogError
from krishiv_spark.kafka.requests import send_all
from krishiv_spark.kafka.transaction_requests import EndTxn
from krishiv_spark.kafka.transactions import Outcome, build_transaction
from krishiv_spark.offsets import EpochLog, State
from krishiv_spark.offsets.entries import Entry, entry_name, new_entry, snapshot_name, to_bytes
from krishiv_spark.offsets.journal import Listing, StoredEntries
from krishiv_spark.sinks import log_checks
from krishiv_spark.sinks.kafka.participant import KafkaParticipant
from krishiv_spark.sinks.logged import LogCommitter


def do_nothing(*_: Any, **__: Any) -> None:
    pass


def return_true(*_: Any, **__: Any) -> bool:
    return True


def return_false(*_: Any, **__: Any) -> bool:
    return False


# --- the epoch log


def intend_unfenced(
    log: EpochLog, generation: int, epoch: int, staged: object, offsets: Any = None
) -> State:
    """An intent goes wherever there is room."""
    del generation
    while True:
        before = log.state()
        intent = new_entry("intent", epoch=epoch, staged=staged, offsets=offsets)
        state = log._append(before, intent)
        if state is not None:
            return state


def append_overwriting(log: EpochLog, before: State, entry: Entry) -> State | None:
    log._journal.replace(entry_name(before.number + 1), to_bytes(entry))
    log._known = before.after(entry)
    return log._known


def append_by_answer(log: EpochLog, before: State, entry: Entry) -> State | None:
    """A name that is said to be taken is taken by others."""
    number = before.number + 1
    if not log._journal.create(entry_name(number), to_bytes(entry)):
        return None
    if log._stored.list_after(number) is None:
        return None
    log._known = before.after(entry)
    return log._known


def list_after_once(stored: StoredEntries, number: int) -> Listing | None:
    """Believe the first listing."""
    listing = stored._journal.list()
    if listing.newest_snapshot >= number:
        return None
    if not stored._is_continued(number, listing):
        raise LogError("entries were removed or replaced")
    return listing


def fold_removing_first(log: EpochLog, state: State) -> None:
    listing = log._journal.list()
    newest = listing.newest_snapshot
    if state.number - newest >= log._fold_every:
        log._journal.remove(entry_name(entry) for entry in listing.entries if entry <= state.number)
        log._journal.replace(snapshot_name(state.number), to_bytes(state))


def is_finished_in_process(log: EpochLog, state: State) -> bool:
    """Only processes know what is finished, and no entry says so."""
    return state.intent is None or state.intent.nonce == log._finished


def take_over_once(
    committer: LogCommitter[Any], log: EpochLog, claim: Any, check: Any
) -> tuple[State, bool]:
    state = log.begin(claim, check)
    was_finished = committer.roll_forward(log, claim.query, state)
    return state, state.intent_number == state.owner - 1 and was_finished


# --- sinks over it


def begin_without_recovery(
    committer: LogCommitter[Any], log: EpochLog, claim: Any, check: Any = None
) -> State:
    state = log.begin(claim, check)
    committer.participant.sweep(claim.query, state.owner, clean=False)
    log.compact(state)
    return state


def begin_recovering_late(
    committer: LogCommitter[Any], log: EpochLog, claim: Any, check: Any = None
) -> State:
    state = log.begin(claim, check)
    committer.participant.sweep(claim.query, state.owner, clean=False)
    committer.roll_forward(log, claim.query, state)
    log.compact(state)
    return state


def abort_everything(write: Any, messages: Sequence[Any], number: int) -> None:
    """Also when the commit has failed, which may have happened all the same."""
    del number
    staged = [m.payload for m in messages if m is not None and m.payload is not None]
    write._writer.committer().discard(staged)


_check_follows = log_checks._check_follows


def check_follows_later(log: EpochLog, planned: Any, before: Any) -> None:
    """Only whoever is too far ahead is refused."""
    if planned.epoch >= before.epoch:
        _check_follows(log, planned, before)


# --- Kafka


def keep_outcome(participant: KafkaParticipant, item: Any, outcome: Outcome) -> Outcome:
    """Nobody may read the topic."""
    del participant, item
    return outcome


def fresh(
    participant: KafkaParticipant, epoch: Any, staged: Sequence[Any], salvaged: Sequence[Any]
) -> Sequence[Any]:
    del participant, epoch
    return [item for item in staged if item not in salvaged]


def settle_blindly(participant: KafkaParticipant, epoch: Any, staged: Any, refused: Any) -> None:
    """Take a refused commit for a committed one."""


def outcome_of_state(transaction: Any, now: Any) -> Outcome:
    """Return the outcome of a transaction by the coordinator's state, of whichever producer."""
    del transaction
    found = {"Ongoing": Outcome.OPEN, "Empty": Outcome.UNKNOWN, "Gone": Outcome.UNKNOWN}
    return found.get(now.state, Outcome.COMMITTED if "Commit" in now.state else Outcome.ABORTED)


def end_only(client: Any, ongoing: Any, within_s: float) -> dict[str, Exception]:
    """Also under TV1, where that leaves the producer's epoch as it is."""
    exact = {
        name: build_transaction(client, name, now.producer_id, now.producer_epoch)
        for name, now in ongoing.items()
    }
    answers = send_all(
        client, EndTxn(exact, commit=False), exact, on_error="return", within_s=within_s
    )
    return {name: each for name, each in answers.items() if isinstance(each, Exception)}


def pick_first(client: Any, ids: Sequence[str]) -> str:
    del client
    return ids[0]
