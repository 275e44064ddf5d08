"""Spark's writer methods, by the three roles of a sink; what differs: `streams` and `jobs`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from krishiv_spark.arrow.schemas import conform
from krishiv_spark.errors import CheckpointMismatch, Fenced, SinkError
from krishiv_spark.lifecycle.full_disks import explain_disk_full
from krishiv_spark.lifecycle.plans import Plan, PlanningFailed, Staged, epoch_of
from krishiv_spark.lifecycle.telling import message_before_traceback
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.runtime.workers import tune_worker, with_quick_acks
from krishiv_spark.sinks.base import (
    CommittedEpoch,
    Epoch,
    OutputMode,
    Publisher,
    SupportsGenerations,
    SupportsRecall,
    Task,
    TwoPhaseCommitter,
    Writer,
)
from krishiv_spark.sinks.identity import is_already_committed, warn_of_epoch_gap
from krishiv_spark.spark.checkpoint import EPOCH_PROPERTY, QUERY_ID_PROPERTY
from krishiv_spark.spark.logs import set_log_context
from krishiv_spark.storage import be_patient

__all__ = ["Write", "mark_of"]

_log = logging.getLogger(__name__)


class Write:
    """What streams and batches have in common."""

    def __init__(self, writer: Writer[Any, Any]) -> None:
        self._writer = writer.freeze()
        self._plan: Plan | None = None

    def known_secrets(self) -> set[str]:
        """Return the secrets in the options, which no error may show."""
        found: set[str] = self._writer.options.secrets()
        return found

    @message_before_traceback
    def __getstate__(self) -> dict[str, Any]:
        """Plan the epoch. Spark pickles a writer at one place: the planner, before any task."""
        if self._plan is None:
            try:
                with explain_disk_full(self._writer.options):
                    self._plan = self._begin()
            except Exception as error:  # noqa: BLE001  it is raised as the only one that passes
                clean = scrub(error, self.known_secrets())
                raise PlanningFailed(f"{type(error).__name__}: {clean}") from clean
            _log.info("planned, as generation %s", self._plan.generation)
        return self.__dict__

    def _begin(self) -> Plan:
        tune_worker()
        writer, (query, offsets) = self._writer, self._planned()
        # First, before the log has a new owner: what is refused here has changed nothing.
        writer.check()
        if query is None:
            return Plan(None, payload=writer.plan(None))
        number = self._number(offsets)
        self._tell_of(query, number)
        epoch = Epoch(query, number or 0, offsets=offsets)
        committer, owns = writer.committer(), None
        self._check_checkpoint(committer, offsets)
        if isinstance(committer, SupportsGenerations):
            if (mark := self._done(committer, query)) is not None:
                return Plan(query, mark=mark)
            owns = committer.begin(epoch)
        payload = writer.plan(owns)
        # Last: where there are generations, an earlier one can publish no more.
        mark = self._mark(committer, query)
        if number is not None:
            # A checkpoint that was rolled back is refused before any row moves.
            self._check_mark(epoch, mark)
        if isinstance(committer, TwoPhaseCommitter):
            warn_of_epoch_gap(epoch, mark)
        # After all that refuses: a query that was refused since it is another one is not recorded.
        self._record_query(query)
        if owns is None:
            return Plan(query, None, offsets, mark, payload)
        seen = committer.export_state(query) if isinstance(committer, SupportsRecall) else None
        return Plan(query, owns.generation, offsets, mark, payload, owns.generations, seen)

    def _planned(self) -> tuple[str | None, PlannedOffsets | None]:
        """Planner: id of the streaming query or batch job, and what Spark has planned.

        None for a sink without a checkpoint.
        """
        raise NotImplementedError

    def _tell_of(self, query: str | None, epoch: int | None, **more: object) -> None:
        """Anywhere: name in each line of the log what this process is about."""
        set_log_context(self._writer.options.log_level, query=query, epoch=epoch, **more)

    def _check_checkpoint(self, committer: Publisher[Any], offsets: PlannedOffsets | None) -> None:
        """Planner: refuse one from which rows would be written again; nothing has changed yet."""

    def _record_query(self, query: str) -> None:
        """Store in the checkpoint, before any row moves, which query it belongs to. Planner."""

    def _number(self, offsets: PlannedOffsets | None) -> int | None:
        """Planner: of the epoch; None if only its tasks know it."""
        return None if offsets is None else offsets.epoch

    def _done(self, committer: Publisher[Any], query: str) -> CommittedEpoch | None:
        """Planner: the mark of what is held for certain, so that nothing has to be begun."""
        del committer, query
        return None

    def _mark(self, committer: Publisher[Any], query: str) -> CommittedEpoch | None:
        raise NotImplementedError

    def _holds(self, epoch: Epoch, mark: CommittedEpoch | None) -> bool:
        """Anywhere: whether the sink, by its mark, has an epoch already."""
        return is_already_committed(epoch, mark)

    def _check_mark(self, epoch: Epoch, mark: CommittedEpoch | None) -> None:
        """Planner: refuse an epoch that does not fit the newest one in the sink."""
        self._holds(epoch, mark)  # for its error

    @message_before_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Spark: executor, once per attempt of a task. A replayed epoch costs no work."""
        tune_worker()
        be_patient()
        context, plan = TaskContext.get(), self._plan
        if context is None or plan is None:
            raise SinkError("write() runs inside a Spark task only")
        task = self._task(context, plan)
        self._tell_of(task.query, task.epoch, task=task.partition, attempt=task.attempt_number)
        if plan.offsets is not None and task.epoch != plan.offsets.epoch:
            raise Fenced(
                f"this task is of epoch {task.epoch}, but the checkpoint of query {task.query} is "
                f"at epoch {plan.offsets.epoch} already: two drivers run on it, stop one of them"
            )
        offsets = plan.offsets or self._unseen_offsets(context, plan)
        staged = Staged(task, None, offsets, seen=plan.seen)
        batches = (conform(batch, self._writer.schema) for batch in with_quick_acks(iterator))
        if self._holds(staged.epoch, plan.mark):
            return self._skipped(replace(staged, skipped=True), batches)
        return self._staged(staged, batches, plan)

    def _skipped(self, staged: Staged, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Task: the message of an epoch that the sink holds."""
        del batches
        _log.info("skipped: the sink has this epoch")
        return staged

    def _staged(self, staged: Staged, batches: Iterator[pa.RecordBatch], plan: Plan) -> Staged:
        """Task: the message with what `Writer.stage` returns."""
        with explain_disk_full(self._writer.options):
            payload = self._writer.stage(batches, staged.task, plan.payload)
        _log.info("staged" if payload is not None else "staged nothing")
        return replace(staged, payload=payload)

    def _unseen_offsets(self, context: TaskContext, plan: Plan) -> PlannedOffsets | None:
        """Task: what is known of an epoch if the planner could not read what Spark planned."""
        del context, plan
        return None

    def _task(self, context: TaskContext, plan: Plan) -> Task:
        return Task(
            query=plan.query or context.getLocalProperty(QUERY_ID_PROPERTY) or "",
            epoch=self._epoch(context),
            partition=context.partitionId(),
            attempt=context.taskAttemptId(),
            generation=plan.generation,
            attempt_number=context.attemptNumber(),
        )

    def _epoch(self, context: TaskContext) -> int:
        return int(context.getLocalProperty(EPOCH_PROPERTY) or 0)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
        tune_worker()
        be_patient()
        received = [message for message in messages if isinstance(message, Staged)]
        epoch = self._told(epoch_of(received, number), received)
        self._tell_of(epoch.query, epoch.number)
        staged = [message.payload for message in received if message.payload is not None]
        committer = self._writer.committer()
        if isinstance(committer, SupportsRecall) and (seen := received[0].seen) is not None:
            committer.import_state(epoch.query, seen)
        if self._is_held(committer, epoch, staged):
            _check_owner(committer, epoch)
        elif any(message.skipped for message in received):
            raise CheckpointMismatch(
                f"the sink had epoch {epoch.number} of query {epoch.query} when it was planned, so "
                "its tasks did nothing, and does not have it now: its target was replaced by an "
                "older or a new one in between. Nothing was written: restart the query, "
                "which compares the target with the checkpoint again"
            )
        # Without rows there is nothing to add; but what is replaced goes all the same, and a batch
        # job is over only when it has published.
        elif staged or self._writer.mode is OutputMode.REPLACE or not self._writer.streaming:
            with explain_disk_full(self._writer.options):
                committer.publish(epoch, staged)
            self._published(epoch)
            _log.info("published what %d tasks have staged", len(staged))
        else:
            _check_owner(committer, epoch)

    def _published(self, epoch: Epoch) -> None:
        """Committer: take note of an epoch that has just become true."""

    def _told(self, epoch: Epoch, received: Sequence[Staged]) -> Epoch:
        """Committer: the epoch, with what only the messages of its tasks say of it."""
        del received
        return epoch

    def _is_held(self, committer: Publisher[Any], epoch: Epoch, staged: Sequence[Any]) -> bool:
        """Whether there is nothing to publish; then nothing stays staged either."""
        try:
            if not self._holds(epoch, self._mark(committer, epoch.query)):
                return False
        except CheckpointMismatch:
            committer.discard(staged)
            _check_owner(committer, epoch)  # that another driver has gone on says more
            raise
        committer.discard(staged)
        return True

    def _abort(self, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
        # With every message present, the tasks succeeded and the commit failed: it may have
        # happened all the same, so nothing may be touched.
        if messages and all(message is not None for message in messages):
            _log.warning("a commit failed: what it staged is left for the next attempt to settle")
            return
        received = [message for message in messages if isinstance(message, Staged)]
        query = received[0].epoch.query if received else None
        self._tell_of(query, number)
        try:
            committer = self._writer.committer()
            committer.discard([m.payload for m in received if m.payload is not None])
            for epoch in {m.epoch for m in received} or self._silent(committer, number):
                committer.abandon(epoch)
        except Exception as error:  # noqa: BLE001  best effort: the failure of the tasks is what the user must see
            shown = scrub(error, self.known_secrets())
            _log.error("what the failed tasks had staged could not be removed", exc_info=shown)

    def _silent(self, committer: Publisher[Any], number: int) -> set[Epoch]:
        """The epoch none of whose tasks has sent a message, as far as that can be told."""
        raise NotImplementedError


def mark_of(committer: Publisher[Any], query: str) -> CommittedEpoch | None:
    """What the external system says that it holds of a query; None if it cannot tell.

    Raises:
        TypeError: If an author's committer returns something else.
    """
    if not isinstance(committer, TwoPhaseCommitter):
        return None
    mark = committer.last_committed(query)
    if not isinstance(mark, CommittedEpoch | None):
        raise TypeError(
            f"last_committed() of {type(committer).__name__} returned {mark!r}: return "
            "CommittedEpoch(epoch, digest) with what publish() was given, or None"
        )
    return mark


def _check_owner(committer: Publisher[Any], epoch: Epoch) -> None:
    if isinstance(committer, SupportsGenerations) and epoch.generation is not None:
        committer.check_owner(epoch)
