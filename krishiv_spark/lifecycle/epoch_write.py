"""Spark's writer methods, in terms of the three roles of a sink: planner, task and committer.

`EpochWrite` defines the order of the steps, which is the same for streams and batch jobs. Its
`EpochIdentity` decides which epoch is written, and whether the sink has it already.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from krishiv_spark.arrow.conform import conform
from krishiv_spark.errors import CheckpointMismatch, SinkError
from krishiv_spark.lifecycle.errors import (
    explain_disk_full,
    explain_memory_error,
    message_before_traceback,
)
from krishiv_spark.lifecycle.identities import (
    CheckpointEpoch,
    EpochIdentity,
    NumberedEpoch,
    OneOffEpoch,
    read_committed_epoch,
)
from krishiv_spark.lifecycle.plans import Plan, PlanningFailed, Staged, epoch_of
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.runtime.workers import tune_worker, with_quick_acks
from krishiv_spark.sinks.base import (
    CommittedEpoch,
    Epoch,
    OutputMode,
    Publisher,
    SupportsGenerations,
    SupportsRecall,
    Task,
    Writer,
)
from krishiv_spark.sinks.numbered import JobNumber
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.spark.logs import set_log_context
from krishiv_spark.storage import use_long_timeouts

__all__ = ["BatchWrite", "EpochWrite", "StreamWrite"]

_log = logging.getLogger(__name__)

# 4.1 and later pass Arrow batches only to this class; 4.0 passes them to any DataSourceArrowWriter.
_StreamArrowWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)


class EpochWrite:
    """The write of one epoch into a sink.

    Args:
        writer: The writer of a format.
        identity: Identity of the epoch. The committer of the sink is no argument, since it is never
            pickled: each role creates it from the writer.
    """

    def __init__(self, writer: Writer[Any, Any], identity: EpochIdentity) -> None:
        self._writer = writer.freeze()
        self._identity = identity
        self._plan: Plan | None = None

    def known_secrets(self) -> set[str]:
        """Return the secrets in the options, which must not appear in an error."""
        found: set[str] = self._writer.options.secrets()
        return found

    def _set_log_context(self, query: str | None, epoch: int | None, **more: object) -> None:
        """Set the query, the epoch and the task that each log line of this process names."""
        set_log_context(self._writer.options.log_level, query=query, epoch=epoch, **more)

    def _read_committed(self, committer: Publisher[Any], query: str) -> CommittedEpoch | None:
        """Return the newest epoch in the sink. Planner and committer."""
        return read_committed_epoch(committer, query) if self._identity.may_repeat else None

    # --- planner

    @message_before_traceback
    def __getstate__(self) -> dict[str, Any]:
        """Plan the epoch.

        Spark pickles a writer in one process only: in the planner, before the tasks.
        """
        if self._plan is None:
            try:
                with explain_disk_full(self._writer.options):
                    self._plan = self._plan_epoch()
            except Exception as raised:  # noqa: BLE001  it is raised as the only one that passes
                error = explain_memory_error(raised)
                clean = scrub(error, self.known_secrets())
                raise PlanningFailed(f"{type(error).__name__}: {clean}") from clean
            _log.info("planned, as generation %s", self._plan.generation)
        return self.__dict__

    def _plan_epoch(self) -> Plan:
        tune_worker()
        writer, identity = self._writer, self._identity
        query, number, offsets = identity.resolve_query(writer)
        # The check comes first, before the log has a new owner: a refused write has changed
        # nothing.
        writer.check()
        if query is None:
            return Plan(None, payload=writer.plan(None))
        self._set_log_context(query, number)
        epoch = Epoch(query, number or 0, offsets=offsets)
        committer, owns = writer.committer(), None
        if (done := identity.check_before_begin(writer, committer, epoch)) is not None:
            return done
        if isinstance(committer, SupportsGenerations):
            owns = committer.begin(epoch)
        payload = writer.plan(owns)
        # This comes last: if there are generations, an earlier one cannot publish any more.
        committed = self._read_committed(committer, query)
        recorded = identity.accept(writer, committer, epoch, committed)
        if owns is None:
            return Plan(query, None, offsets, committed, payload, recorded=recorded)
        state = committer.export_state(query) if isinstance(committer, SupportsRecall) else None
        return Plan(
            query, owns.generation, offsets, committed, payload, owns.generations, state, recorded
        )

    # --- task

    @message_before_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task. Spark: executor, once per attempt of a task.

        A replayed epoch costs no work.
        """
        tune_worker()
        use_long_timeouts()
        context, plan = TaskContext.get(), self._plan
        if context is None or plan is None:
            raise SinkError("write() runs inside a Spark task only")
        epoch = self._identity.epoch_in_task(context, plan)
        task = Task(
            query=epoch.query,
            epoch=epoch.number,
            partition=context.partitionId(),
            attempt=context.taskAttemptId(),
            generation=epoch.generation,
            attempt_number=context.attemptNumber(),
        )
        self._set_log_context(
            task.query, task.epoch, task=task.partition, attempt=task.attempt_number
        )
        message = Staged(task, None, epoch.offsets, exported_state=plan.exported_state)
        batches = (conform(batch, self._writer.schema) for batch in with_quick_acks(iterator))
        if self._identity.is_committed(epoch, plan.committed):
            return self._skip(message, batches)
        return self._stage(message, batches, plan)

    def _skip(self, message: Staged, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Return the message of a task of an epoch that the sink has."""
        _log.info("skipped: the sink has this epoch")
        message = replace(message, skipped=True)
        if not self._identity.compares_rows:
            return message
        from krishiv_spark.arrow.checksums import RowChecksum, row_checksum

        return replace(message, rows=sum(map(row_checksum, batches), RowChecksum()))

    def _stage(self, message: Staged, batches: Iterator[pa.RecordBatch], plan: Plan) -> Staged:
        """Return the message with the return value of `Writer.stage`."""
        counted = None
        if self._identity.compares_rows:
            from krishiv_spark.arrow.checksums import Counted

            batches = counted = Counted(batches)
        with explain_disk_full(self._writer.options):
            payload = self._writer.stage(batches, message.task, plan.payload)
        _log.info("staged" if payload is not None else "staged nothing")
        return replace(message, payload=payload, rows=None if counted is None else counted.rows)

    # --- committer

    def _commit(self, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
        tune_worker()
        use_long_timeouts()
        received = [message for message in messages if isinstance(message, Staged)]
        epoch = self._identity.with_task_results(epoch_of(received, number), received)
        self._set_log_context(epoch.query, epoch.number)
        staged = [message.payload for message in received if message.payload is not None]
        committer = self._writer.committer()
        state = received[0].exported_state
        if isinstance(committer, SupportsRecall) and state is not None:
            committer.import_state(epoch.query, state)
        if self._is_already_committed(committer, epoch, staged):
            _check_owner(committer, epoch)
        elif any(message.skipped for message in received):
            raise CheckpointMismatch(
                f"the sink had epoch {epoch.number} of query {epoch.query} when it was planned, so "
                "its tasks did nothing, and does not have it now: its target was replaced by an "
                "older or a new one in between. Nothing was written: restart the query, "
                "which compares the target with the checkpoint again"
            )
        # Without rows there is nothing to add. But an epoch that replaces earlier ones removes
        # them all the same, and a batch job is completed only when it has published.
        elif staged or self._writer.mode is OutputMode.REPLACE or not self._writer.streaming:
            with explain_disk_full(self._writer.options):
                committer.publish(epoch, staged)
            self._identity.confirm(epoch, None, self._recorded)
            _log.info("published the staged data of %d tasks", len(staged))
        else:
            _check_owner(committer, epoch)

    @property
    def _recorded(self) -> tuple[int, ...]:
        # The committer of a stream has no plan; that of a batch job is the planner's copy.
        return () if self._plan is None else self._plan.recorded

    def _is_already_committed(
        self, committer: Publisher[Any], epoch: Epoch, staged: Sequence[Any]
    ) -> bool:
        """Return True if the epoch is committed already. Its staged rows are then discarded."""
        try:
            committed = self._read_committed(committer, epoch.query)
            if not self._identity.is_committed(epoch, committed):
                return False
        except CheckpointMismatch:
            committer.discard(staged)
            # If another driver has taken over, its error explains more.
            _check_owner(committer, epoch)
            raise
        committer.discard(staged)
        self._identity.confirm(epoch, committed, self._recorded)
        return True

    def _abort(self, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
        # If every message is present, the tasks succeeded and the commit failed. It may have taken
        # effect, so nothing may be changed.
        if messages and all(message is not None for message in messages):
            _log.warning("a commit failed: the next attempt decides about its staged data")
            return
        received = [message for message in messages if isinstance(message, Staged)]
        query = received[0].epoch.query if received else None
        self._set_log_context(query, number)
        try:
            committer = self._writer.committer()
            committer.discard([m.payload for m in received if m.payload is not None])
            epochs = {message.epoch for message in received}
            for epoch in epochs or self._identity.epochs_without_messages(
                committer, number, self._plan
            ):
                committer.abandon(epoch)
        except Exception as error:  # noqa: BLE001  best effort: the failure of the tasks is what the user must see
            shown = scrub(error, self.known_secrets())
            _log.error("staged data of the failed tasks could not be deleted", exc_info=shown)


def _check_owner(committer: Publisher[Any], epoch: Epoch) -> None:
    if isinstance(committer, SupportsGenerations) and epoch.generation is not None:
        committer.check_owner(epoch)


@final
class StreamWrite(EpochWrite, _StreamArrowWriter, DataSourceArrowWriter):  # type: ignore[misc]  # base chosen by version
    """The writer of ``df.writeStream``. The commit process gets a new one for each commit or abort.

    Args:
        writer: The writer of a format.
        query: Id of the streaming query, if the user specified it; otherwise it is read from the
            checkpoint.
        checkpoint: Checkpoint of the query; None if the options contain none, or one that the sink
            may not read.
        hidden: Values of options that no record may contain.
    """

    _identity: CheckpointEpoch

    def __init__(
        self,
        writer: Writer[Any, Any],
        query: str | None = None,
        checkpoint: SparkCheckpoint | None = None,
        hidden: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(writer, CheckpointEpoch(query, checkpoint, hidden))

    def check_start(self, *, new_target: bool = False) -> None:
        """Raise the error that the first epoch would raise. Planner, before the query starts.

        Args:
            new_target: True if a target is accepted that differs from the recorded one.
        """
        self._writer.check_start()
        self._identity.check_start(self._writer, new_target=new_target)

    @message_before_traceback
    def commit(  # type: ignore[override]  # streams name the batch, batches do not
        self, messages: list[WriterCommitMessage | None], batchId: int
    ) -> None:
        """Publish the epoch. Spark: commit process (driver), after all tasks have succeeded."""
        self._commit(messages, batchId)

    @message_before_traceback
    def abort(  # type: ignore[override]  # as `commit`
        self, messages: list[WriterCommitMessage | None], batchId: int
    ) -> None:
        """Discard staged rows.

        Spark: commit process (driver), after a task or the commit has failed.
        """
        self._abort(messages, batchId)


@final
class BatchWrite(EpochWrite, DataSourceArrowWriter):
    """The writer of ``df.write``. The planner's copy commits, so that it has the plan.

    Args:
        writer: The writer of a format.
        job: Name and number of the job, if the user specified them.
    """

    def __init__(self, writer: Writer[Any, Any], job: JobNumber | None = None) -> None:
        identity = OneOffEpoch.new() if job is None else NumberedEpoch.of(job, writer)
        super().__init__(writer, identity)
        self._number = identity.number

    @message_before_traceback
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows. Spark: driver, after all tasks have succeeded."""
        self._commit(messages, self._number)

    @message_before_traceback
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard staged rows. Spark: driver, after a task or the commit has failed."""
        self._abort(messages, self._number)
