"""Comparison of an epoch log with the targets that its epochs went to.

An operator can restore each of them from an older copy while no driver runs. Two rules find that
before a driver takes the log over:

* A target that records an epoch which the log does not have is ahead: the log is the older copy.
* A target that lacks an epoch which the log knows to be finished is behind: the target is.

A driver compares when it starts, and again after a pause; in between, the log shows that the same
process has run every epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from krishiv_spark.advice import NEW_CHECKPOINT
from krishiv_spark.errors import CheckpointMismatch
from krishiv_spark.lru import LruCache
from krishiv_spark.offsets import EpochLog, State
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.history import check_not_overtaken, held_mark
from krishiv_spark.sinks.participant import Participant, TargetRecord

__all__ = ["check_targets", "is_comparison_due", "note_epoch"]

_PAUSE_S = 1.0
"""An operator who stops a query, restores a target and starts the query again needs longer."""

_epochs: LruCache[str, tuple[int, float]] = LruCache(64)
"""By log, the generation of the last epoch that this process began, and when."""

Load = Callable[[Sequence[object]], Sequence[Any]]
"""Makes staged values of what an entry of the log names."""


def is_comparison_due(log: EpochLog, state: State) -> bool:
    """Return False if this process ran the epoch before, a moment ago. Planner."""
    owner, began_s = _epochs.get(str(log)) or (-1, 0.0)
    return owner != state.owner or time.monotonic() - began_s > _PAUSE_S


def note_epoch(log: EpochLog, generation: int) -> None:
    """Remember that this process began an epoch, with all targets in agreement. Planner."""
    _epochs.put(str(log), (generation, time.monotonic()))


def check_targets(
    log: EpochLog, participant: Participant[Any], query: str, state: State, load: Load
) -> None:
    """Refuse a log whose targets are ahead of it or behind it; nothing has changed. Planner.

    Args:
        log: Of the query.
        participant: With one target or several.
        query: Id of the query.
        state: The log before the owner entry of this driver.
        load: For the values that intents name.

    Raises:
        CheckpointMismatch: If the log or a target is an older copy.
        Fenced: If another driver has begun an epoch meanwhile, which explains the difference.
    """
    if state.number == 0:
        return  # `Participant.verify_empty_log`
    try:
        for record in participant.records(query):
            _check_not_ahead(log, query, state, record)
        _check_not_behind(log, participant, query, _finished(log, query, state, load))
    except CheckpointMismatch as error:
        check_not_overtaken(log, state, error)
        raise


def _check_not_ahead(log: EpochLog, query: str, state: State, record: TargetRecord) -> None:
    """Compare the number and the digest; marks without a digest have the number alone."""
    committed, mark = held_mark(state), record.mark
    newest = -1 if committed is None else committed.epoch
    if record.generation is not None and record.generation > state.number:
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
    """Make the error of a log that is an older copy.

    Args:
        log: Of the query.
        query: Id of the query that the log belongs to.
        common: The newest epoch that log and target can have in common; -1 for none.
        seen: What the target has.
    """
    newest = "no epoch" if common < 0 else f"no epoch after {common}"
    return CheckpointMismatch(
        f"{seen} of query {query}, and the epoch log {log} has {newest} of these rows: the log was "
        "restored from an older copy, with the checkpoint or without it, or another driver runs on "
        "another copy of them, which has to be stopped. Nothing was written. Ways on: put the "
        f"newest checkpoint and log back; or {_write_again(common + 1, 'takes them out of')}; or, "
        f"with a new target, use {NEW_CHECKPOINT}"
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


def _finished(
    log: EpochLog, query: str, state: State, load: Load
) -> Iterator[tuple[Epoch, Sequence[Any]]]:
    """Yield the epochs that were finished, the newest first."""
    for generation, intent in log.intents(state):
        is_open = generation == state.intent_generation and not log.is_finished(state)
        if intent.epoch is not None and not is_open:
            yield Epoch(query, intent.epoch, generation), load(intent.staged)


def _behind(
    log: EpochLog, query: str, missing: Sequence[int], lacking: Sequence[str]
) -> CheckpointMismatch:
    first, last = missing[-1], missing[0]
    epochs = f"epoch {last}" if first == last else f"epochs {first} to {last}"
    return CheckpointMismatch(
        f"{'; '.join(lacking)} lacks {epochs} of query {query}, which the epoch log {log} knows to "
        "be finished: the target was restored from an older copy, or emptied. Nothing was written. "
        f"Ways on: put the newest copy of the target back; or {_write_again(first, 'goes back in')}"
        "; or, if their rows shall stay missing there, 'krishiv-spark log adopt' goes on without "
        "them"
    )


def _write_again(first: int, how: str) -> str:
    if first == 0:
        return (
            "start with a new checkpoint and a new target, into which all rows are written again; "
            "those that the sources no longer have are lost"
        )
    return (
        f"'krishiv-spark replay CHECKPOINT --from {first}' {how} all targets and has the epochs "
        "written again (no Kafka topic can go back)"
    )
