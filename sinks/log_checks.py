"""Comparison of an epoch log with the checkpoint and the targets, before a driver takes it over.

The log must have the same history as the checkpoint, up to the epoch that is about to start. An
operator may also have restored a target from an older copy while no driver ran. Two rules detect
that:

* If a target records an epoch that the log does not have, the log is an older copy.
* If a target lacks an epoch that is finished by the log, the target is an older copy.

A driver compares them when it starts, and again after a pause; in between, the log shows that the
same process has run every epoch. At its start it reads the log backwards until every target was
compared; after a pause the process still has the necessary intents in memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from krishiv_spark.errors import CheckpointMismatch, Fenced, LogError
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets import Claim, EpochLog, PlannedOffsets, State
from krishiv_spark.offsets.entries import Entry
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.epoch_checks import is_already_committed, to_committed_epoch
from krishiv_spark.sinks.participant import Participant, TargetRecord

__all__ = [
    "ADOPT",
    "check_first",
    "check_history",
    "check_not_overtaken",
    "check_target",
    "check_targets",
    "note_epoch",
    "operators_claim",
]


ADOPT = (
    "If the query was stopped cleanly, and everything that it has planned is in its target or "
    "is not needed there, 'krishiv-spark log adopt' creates a new log for the current "
    "checkpoint. If the target has later epochs by their numbers, the command lists the steps "
    "to take first"
)


def operators_claim(query: str, state: State) -> Claim:
    """Return the claim of an owner entry that begins no epoch, so that the log's state remains."""
    return Claim(query=query) if state.claim is None else state.claim.of_nobody()


def check_first(
    log: EpochLog, epoch: Epoch, state: State, verify_empty_log: Callable[[str], object]
) -> None:
    """Refuse a query with earlier epochs whose log is empty. Planner.

    Args:
        log: The log of the query.
        epoch: The epoch that is about to begin.
        state: The state of the log before it.
        verify_empty_log: As `Participant.verify_empty_log`; called if the log contains no epoch.

    Raises:
        LogError: If epochs are missing in the log.
        Fenced: If another driver has begun the query meanwhile.
    """
    # Without offsets, the owner entries of drivers look like those of an operator.
    if state.number > 0 and not (epoch.offsets is not None and _is_blank(state)):
        return
    error = _find_missing_epochs(log, epoch, verify_empty_log)
    if error is not None:
        check_not_overtaken(log, state)
        raise error


def _find_missing_epochs(
    log: EpochLog, epoch: Epoch, verify_empty_log: Callable[[str], object]
) -> LogError | None:
    """Return the error, so that it is no cause of another one: the log may be whole."""
    try:
        if epoch.offsets is not None:  # jobs that users number may begin at any
            _check_number(log, epoch)
        verify_empty_log(epoch.query)
    except LogError as error:
        return error
    return None


def check_not_overtaken(log: EpochLog, state: State) -> None:
    """Raise `Fenced` if another driver explains a difference between log and target. Planner.

    Args:
        log: The log of the query.
        state: Its state before the target was read, which may be newer.

    Raises:
        Fenced: If the log has a later entry now.
    """
    if log.state().number != state.number:
        raise Fenced(
            f"another driver has started the query meanwhile, as its epoch log {log} shows: two "
            "drivers run on one checkpoint; stop one of them"
        )


def _is_blank(state: State) -> bool:
    """Return True if a log contains no epoch, since only operators have acquired it."""
    is_nobodys = state.claim is not None and state.claim.offsets is None
    return is_nobodys and state.number == state.generations


def _check_number(log: EpochLog, epoch: Epoch) -> None:
    if epoch.number > 0:
        raise LogError(
            f"query {epoch.query} is at epoch {epoch.number}, but its epoch log {log} is empty: "
            "the log was removed, the option with its location has changed, the query wrote to "
            "another target before, or the checkpoint's file 'metadata' was lost, so that the "
            f"query has a new id. Put it back, or use {NEW_CHECKPOINT}. {ADOPT}"
        )


def check_target(log: EpochLog, claim: Claim, state: State) -> None:
    """Refuse a driver that would write to another target than the one in the log. Planner.

    Args:
        log: The log of the query, for the message.
        claim: The claim of this driver's owner entry.
        state: The state of the log before it.

    Raises:
        LogError: If the target is another one.
    """
    before = None if state.claim is None else state.claim.target
    if before is not None and claim.target != before:
        raise LogError(
            f"the epochs in the epoch log {log} were written to {before}, and would now be "
            f"written to {claim.target}. Nothing was written: give the old target, or a "
            f"separate 'txnAppId' for each target, or use {NEW_CHECKPOINT}. {ADOPT}"
        )


def check_history(log: EpochLog, epoch: Epoch, planned: PlannedOffsets, state: State) -> None:
    """Refuse a driver whose checkpoint contradicts the log. Planner.

    It is called before the driver's owner entry: a refused driver has changed nothing and fenced no
    other.

    Args:
        log: The log of the query, for the message.
        epoch: The epoch that is about to begin.
        planned: Spark's plan of it.
        state: The state of the log before it.

    Raises:
        CheckpointMismatch: If the checkpoint is older than the log, or the log than the checkpoint.
    """
    # Called for its errors: the tasks and the committer check themselves whether there is work.
    is_already_committed(epoch, to_committed_epoch(state))
    if state.offsets is not None:
        _check_follows(log, planned, state.offsets)


def _check_follows(log: EpochLog, planned: PlannedOffsets, before: PlannedOffsets) -> None:
    """Every epoch begins with an entry in the log, even without rows."""
    # The same number again is correct: an epoch that began and was not published may be planned
    # again, and the digest of a committed epoch was compared before.
    if planned.epoch < before.epoch:
        raise CheckpointMismatch(
            f"the query is at epoch {planned.epoch}, but its epoch log {log} has recorded the "
            f"start of epoch {before.epoch}. Either another driver runs on the checkpoint and "
            "is ahead; then stop it. Or the checkpoint was rolled back or restored from an "
            "older copy. Nothing was written: put the newest checkpoint back, or use a new "
            f"one. {ADOPT}"
        )
    if planned.epoch > before.epoch + 1:
        raise CheckpointMismatch(
            f"the query is at epoch {planned.epoch}, but its epoch log {log} has recorded none "
            f"after {before.epoch}: it was restored from an older copy, or epochs were written "
            "to another sink meanwhile. Nothing was written: put the newest log back, or use "
            f"{NEW_CHECKPOINT}. {ADOPT}"
        )
    if planned.epoch == before.epoch + 1 and planned.begins != before.ends:
        raise CheckpointMismatch(
            f"epoch {planned.epoch} does not start where epoch {before.epoch} ended when the "
            f"epoch log {log} recorded it ({before.shown or 'long offsets'}): the offsets of "
            f"epoch {before.epoch} were changed in the checkpoint. Nothing was written: put the "
            f"checkpoint back, or use a new one. {ADOPT}"
        )


_PAUSE_S = 1.0
"""An operator needs longer to stop a query, restore a target and start the query again."""

_Intent = tuple[int, Entry]
"""An intent with its generation."""


class _Begun(NamedTuple):
    """The last epoch of a log that this process began or compared.

    Attributes:
        generation: The last owner entry of an epoch in the log.
        began_s: The time of its beginning; minus infinity if this process has only compared it.
        newest: The newest finished intent, and the earlier ones that left data in targets without
            data of a later one. None if that is not known for all targets.
    """

    generation: int
    began_s: float
    newest: tuple[_Intent, ...] | None = None


_epochs: LruCache[str, _Begun] = LruCache(64)
"""The last epoch, by log."""

Load = Callable[[Sequence[object]], Sequence[Any]]
"""Function that converts the data of an intent to staged values."""


def note_epoch(log: EpochLog, generation: int) -> None:
    """Record in memory that this process began an epoch and that all targets agree. Planner."""
    before = _epochs.get(str(log))
    newest = None if before is None else before.newest
    _epochs.put(str(log), _Begun(generation, time.monotonic(), newest))


def check_targets(
    log: EpochLog, participant: Participant[Any], query: str, state: State, load: Load
) -> None:
    """Refuse a log whose targets are ahead of it or behind it, before any change. Planner.

    Targets are not compared if this process ran the previous epoch a moment ago.

    Args:
        log: The log of the query.
        participant: A participant with one or several targets.
        query: Id of the query.
        state: The log before the owner entry of this driver.
        load: Converter for the data of intents.

    Raises:
        CheckpointMismatch: If the log or a target is an older copy.
        Fenced: If another driver has begun an epoch meanwhile, which explains the difference.
    """
    if state.number == 0:
        return  # `Participant.verify_empty_log`
    begun = _begun(log, participant, state)
    if time.monotonic() - begun.began_s > _PAUSE_S:
        try:
            records = participant.records(query)
            for record in records:
                _check_not_ahead(log, query, state, record)
            seen = _Seen(_intents(log, state, begun))
            _check_not_behind(log, participant, query, _load_intents(seen, query, load))
        except CheckpointMismatch:
            check_not_overtaken(log, state)
            raise
        if begun.newest is None:
            begun = begun._replace(newest=seen.newest(participant, len(records)))
    _epochs.put(str(log), begun)


def _begun(log: EpochLog, participant: Participant[Any], state: State) -> _Begun:
    """Return the last epoch in memory, with the intent that was logged since."""
    before = _epochs.get(str(log))
    if before is None or before.generation != state.owner:
        return _Begun(state.owner, -math.inf)
    if before.newest is None or state.intent is None:  # a failed intent is not known here
        return before._replace(newest=None)
    newest = next(_newest(log, state), None)
    if newest is None:  # it is finished first, and then compared
        return before
    if before.newest and before.newest[0][0] == newest[0]:
        return before
    return before._replace(newest=_select_needed(participant, (newest, *before.newest))[0])


def _intents(log: EpochLog, state: State, begun: _Begun) -> Iterator[_Intent]:
    """Yield the intents for the comparison, the newest first; all of them are finished."""
    if begun.newest is not None:
        yield from begun.newest
    else:
        for generation, intent in log.intents(state):
            is_open = generation == state.intent_generation and not log.is_finished(state)
            if intent.epoch is not None and not is_open:
                yield generation, intent


def _newest(log: EpochLog, state: State) -> Iterator[_Intent]:
    """Yield the newest intent if it is finished."""
    if state.intent is not None and state.intent.epoch is not None and log.is_finished(state):
        yield state.intent_generation, state.intent


class _Seen(Iterator[_Intent]):
    """Iterator over intents that keeps those that it has returned."""

    def __init__(self, intents: Iterator[_Intent]) -> None:
        self._intents = intents
        self._seen: list[_Intent] = []
        self._is_all = False

    def __next__(self) -> _Intent:
        """Return the next older intent."""
        try:
            self._seen.append(next(self._intents))
        except StopIteration:
            self._is_all = True
            raise
        return self._seen[-1]

    def newest(self, participant: Participant[Any], count: int) -> tuple[_Intent, ...] | None:
        """Return the intents for a later comparison; None if older ones may be needed too.

        Args:
            participant: The participant with the targets.
            count: The number of targets.
        """
        needed, names = _select_needed(participant, self._seen)
        return needed if self._is_all or len(names) == count else None


def _select_needed(
    participant: Participant[Any], intents: Iterable[_Intent]
) -> tuple[tuple[_Intent, ...], set[str]]:
    """Return the newest intent and those with data in further targets, and these targets."""
    needed: list[_Intent] = []
    names: set[str] = set()
    for intent in intents:
        found = {*participant.targets_of(intent[1].staged)}
        if not needed or not found <= names:
            needed.append(intent)
            names |= found
    return tuple(needed), names


def _check_not_ahead(log: EpochLog, query: str, state: State, record: TargetRecord) -> None:
    """Compare number and digest, or the number alone if the record has no digest."""
    committed, mark = to_committed_epoch(state), record.mark
    newest = -1 if committed is None else committed.epoch
    # A finished generation has an intent in the log, as the entry after its own.
    if record.generation is not None and record.generation >= state.number:
        raise _ahead(log, query, newest, f"{record.target} has a later epoch")
    if mark is None or mark.epoch < newest:
        return
    if mark.epoch > newest:
        raise _ahead(log, query, newest, f"{record.target} has epoch {mark.epoch}")
    known = None if committed is None else committed.digest
    if None not in {known, mark.digest} and mark.digest != known:
        raise _ahead(
            log, query, newest - 1, f"{record.target} has other rows as epoch {mark.epoch}"
        )


def _ahead(log: EpochLog, query: str, common: int, seen: str) -> CheckpointMismatch:
    """Return the error for a log that is an older copy.

    Args:
        log: The log of the query.
        query: Id of the query that the log belongs to.
        common: The newest epoch that log and target can have in common; -1 for none.
        seen: The newest epoch of the target.
    """
    newest = "no epoch" if common < 0 else f"no epoch after {common}"
    return CheckpointMismatch(
        f"{seen} of query {query}, and the epoch log {log} has {newest} of these rows: the log "
        "was restored from an older copy, with or without the checkpoint, or another driver "
        "runs on another copy of them; if so, stop that driver. Nothing was written. Ways on: "
        "put the newest checkpoint and log back; or "
        f"{_write_again(common + 1, 'takes them out of')}; or, with a new target, use "
        f"{NEW_CHECKPOINT}"
    )


def _check_not_behind(
    log: EpochLog,
    participant: Participant[Any],
    query: str,
    finished: Iterable[tuple[Epoch, Sequence[Any]]],
) -> None:
    missing: list[int] = []
    lacking: Sequence[str] = ()
    for epoch, staged in finished:
        found = participant.targets_without(epoch, staged)
        if found is not None and not found:
            break
        if found:
            missing.append(epoch.number)
            lacking = lacking or found
    if missing:
        raise _behind(log, query, missing, lacking)


def _load_intents(
    intents: Iterable[_Intent], query: str, load: Load
) -> Iterator[tuple[Epoch, Sequence[Any]]]:
    for generation, intent in intents:
        if intent.epoch is not None:
            yield Epoch(query, intent.epoch, generation), load(intent.staged)


def _behind(
    log: EpochLog, query: str, missing: Sequence[int], lacking: Sequence[str]
) -> CheckpointMismatch:
    first, last = missing[-1], missing[0]
    epochs = f"epoch {last}" if first == last else f"epochs {first} to {last}"
    return CheckpointMismatch(
        f"{'; '.join(lacking)} lacks {epochs} of query {query}, which are finished according to "
        f"the epoch log {log}: the target was restored from an older copy, or emptied. Nothing "
        "was written. Ways on: put the newest copy of the target back; or "
        f"{_write_again(first, 'rewinds')}; or, if their rows are to stay missing there, "
        "'krishiv-spark log adopt' continues without them"
    )


def _write_again(first: int, how: str) -> str:
    if first == 0:
        return (
            "start with a new checkpoint and a new target, into which all rows are written "
            "again; rows that the sources no longer have are lost"
        )
    return (
        f"'krishiv-spark replay CHECKPOINT --from {first}' {how} all targets and writes the "
        "epochs again (a Kafka topic cannot be rewound)"
    )
