"""Comparison of a query with its checkpoint and epoch log, before and when it starts.

Spark creates a Python sink only for its first rows. The checks here read the checkpoint, the log
and the target, and change nothing, so that they can run before the query starts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from krishiv_spark.errors import CheckpointMismatch
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets import Claim
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.options import Options
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.base import Epoch, TwoPhaseCommitter, Writer
from krishiv_spark.sinks.epoch_checks import is_already_committed
from krishiv_spark.sinks.log_checks import check_first, check_history, check_target
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.spark.query_target import QueryTarget

__all__ = ["check_division", "check_resumption", "check_same_target", "record_target"]

_DIVIDED = "krishiv-fanout"
"""Format in the records of sinks whose targets know the query by the ids of its parts."""

_log = logging.getLogger(__name__)

_described: LruCache[tuple[SparkCheckpoint, str], Options] = LruCache(64)
"""The options of the sink whose target is recorded, by checkpoint and query."""


def check_resumption(
    checkpoint: SparkCheckpoint,
    writer: Writer[Any, Any],
    *,
    new_target: bool,
    hidden: Collection[str] = (),
) -> None:
    """Refuse a query whose first epoch would be refused because of the checkpoint. Planner.

    Args:
        checkpoint: The checkpoint of the query, which need not exist yet.
        writer: The writer of its sink.
        new_target: True if a target is accepted that differs from the recorded one.
        hidden: Values that no message may contain.

    Raises:
        CheckpointMismatch: If the checkpoint has lost the id of its query, if it records another
            target, or if it does not fit the epochs that the sink has committed.
        LogError: If the epoch log is missing, or is that of another target.
        OptionError, StorageError: If the checkpoint cannot be read.
    """
    query = checkpoint.known_query()
    if query is None:
        return
    check_division(checkpoint, query, writer)
    now = _described_by(writer, hidden)
    if not new_target:
        check_same_target(checkpoint, now)
    if not checkpoint.has_offsets():
        return
    try:
        planned = checkpoint.planned_offsets()
    except (OSError, ValueError):
        return  # Spark reads it first, and reports the fault
    _check_epochs(writer.committer(), checkpoint, query, planned, now)


def check_division(checkpoint: SparkCheckpoint, query: str, writer: Writer[Any, Any]) -> None:
    """Refuse a sink that became a fan-out, or stopped being one, under one checkpoint. Planner.

    An epoch that was committed, and that Spark has not logged as completed, would be written twice:
    the target knows it by the id of the query, or of a part of it, and would be asked for the
    other. Within a process, calls after the first epoch cost nothing.

    Args:
        checkpoint: The checkpoint of the query.
        query: The id of the query.
        writer: The writer of its sink.

    Raises:
        CheckpointMismatch: If the checkpoint records a target of the other kind.
    """
    if _described.get((checkpoint, query)) == writer.options:
        return
    before = checkpoint.recorded_target()
    if before is None or (before.format == _DIVIDED) == writer.divides_queries:
        return
    change = "without" if before.format == _DIVIDED else "with"
    raise CheckpointMismatch(
        f"the query of checkpoint {checkpoint.location} has written to {before}, and would now "
        f"write {change} 'deadLetters.*', the routes of a fan-out or tables by topic: its targets "
        "would not recognize the epochs that they have. Nothing was written. Ways on: restore the "
        "options; or stop the query normally, so that its newest epoch is completed, run "
        f"'krishiv-spark checkpoint copy {checkpoint.location} NEW', and start it with the "
        "checkpoint NEW"
    )


def check_same_target(
    checkpoint: SparkCheckpoint, now: QueryTarget | None, output: str | None = None
) -> None:
    """Refuse a target that differs from the one that a checkpoint records. Driver.

    Args:
        checkpoint: The checkpoint of the query.
        now: The target by today's options; None if it is unknown, which is accepted.
        output: Name of one of several outputs of a batch; None for a query with one sink.

    Raises:
        CheckpointMismatch: If another target is recorded.
    """
    before = None if now is None else checkpoint.recorded_target(output)
    if now is None or before is None or before.is_same(now):
        return
    named = "" if output is None else f"output {output!r} of "
    removed = before.identity is not None and now.identity is None
    where = "which is not there, or is new" if removed else "which is another target"
    raise CheckpointMismatch(
        f"{named}the query of checkpoint {checkpoint.location} has written to {before}, and would "
        f"now write to {now}, {where}: it would not get the rows of earlier epochs. Nothing was "
        "written. Ways on: give the old target; or, for another query, another "
        "'checkpointLocation', as after a job file was copied; or, to go on in the new target "
        "without the rows of earlier epochs, start it once with 'krishiv-spark run --new-target "
        "OUTPUT', or from Python with queries.start(writer, check=False) until its next epoch"
    )


def _check_epochs(
    committer: object,
    checkpoint: SparkCheckpoint,
    query: str,
    planned: PlannedOffsets,
    now: QueryTarget | None,
) -> None:
    from krishiv_spark.sinks.logged import LogCommitter

    epoch = Epoch(query, planned.epoch, offsets=planned)
    if not isinstance(committer, LogCommitter):
        if isinstance(committer, TwoPhaseCommitter):
            is_already_committed(epoch, committer.peek_committed(query))  # for its error
        return
    log = committer.log(query)
    state = log.state()
    following = planned.epoch + checkpoint.is_committed(planned.epoch)
    first = Epoch(query, following, offsets=planned)
    check_first(log, first, state, lambda _: None)
    # A participant may give a target its identity when the target is first read.
    if now is not None and now.identity is not None:
        claim = Claim(query=query, target=committer.participant.target())
        check_target(log, claim, state)
    check_history(log, epoch, planned, state)


def _described_by(writer: Writer[Any, Any], hidden: Collection[str]) -> QueryTarget | None:
    found = writer.describe_target()
    return None if found is None else found.hiding(hidden)


def record_target(
    checkpoint: SparkCheckpoint, query: str, writer: Writer[Any, Any], hidden: Collection[str] = ()
) -> None:
    """Record in the checkpoint the target of the query; warn if the target has changed. Planner.

    Within a process, calls after the first epoch cost nothing.

    Args:
        checkpoint: The checkpoint of the query.
        query: Id of the query.
        writer: The writer of its sink, which has planned the epoch.
        hidden: Values that the record must not contain.

    Raises:
        CheckpointMismatch: If the record is damaged.
    """
    key = checkpoint, query
    if _described.get(key) == writer.options:
        return
    now = _described_by(writer, hidden)
    if now is None:
        _described.put(key, writer.options)
        return
    before = checkpoint.record_target(now)
    if before is not None:
        _log.warning(
            "query %s has written to %s, and from now on writes to %s, which does not get the rows "
            "of earlier epochs. If that is not meant, stop it, and use the old target, or %s",
            query,
            before,
            now,
            NEW_CHECKPOINT,
        )
    _described.put(key, writer.options)
