"""Spark's writer methods, in terms of `Writer` and `TwoPhaseWriter`."""

from __future__ import annotations

import logging
import pickle
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from krishiv_spark.arrow import conform
from krishiv_spark.errors import SinkError
from krishiv_spark.sinks.base import (
    BATCH_PREFIX,
    Epoch,
    OutputMode,
    SupportsGenerations,
    Task,
    TwoPhaseWriter,
    Writer,
)
from krishiv_spark.workers import settle

__all__ = ["BatchWrite", "Plan", "PlanningFailed", "Staged", "StreamWrite"]

_log = logging.getLogger(__name__)

# 4.1 and later hand Arrow only to this class; 4.0's worker hands it to any DataSourceArrowWriter.
_StreamArrowWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)


class PlanningFailed(pickle.PicklingError):
    """An epoch cannot begin; the text is that of the error behind it.

    A PicklingError, because planning happens while Spark pickles the writer, and only these pass
    its serializer unchanged (``CloudPickleSerializer.dumps``).
    """


@dataclass(frozen=True)
class Plan:
    """What the planner found out before the tasks of an epoch.

    Attributes:
        query: Id of the streaming query or batch job; None for a sink without a checkpoint.
        generation: See `SupportsGenerations.begin`.
        held: Newest epoch that the external system holds.
    """

    query: str | None
    generation: int | None = None
    held: int | None = None


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task tells the committer."""

    task: Task
    payload: Any


class _Write:
    """What streams and batches have in common."""

    def __init__(self, writer: Writer[Any], query: str | None) -> None:
        self._writer = writer
        self._plan = Plan(query)
        self._planned = False

    def __getstate__(self) -> dict[str, Any]:
        """Plan the epoch. Spark pickles a writer at one place: the planner, before any task."""
        if not self._planned:
            try:
                self._plan = self._begin()
            except Exception as error:
                raise PlanningFailed(f"{type(error).__name__}: {error}") from error
            self._planned = True
        return self.__dict__

    def _begin(self) -> Plan:
        settle()
        writer, query = self._writer, self._plan.query
        writer.check()
        if query is None:
            return self._plan
        generation = writer.begin(query) if isinstance(writer, SupportsGenerations) else None
        return Plan(query, generation, self._held(query))

    def _held(self, query: str) -> int | None:
        writer = self._writer
        return writer.last_committed(query) if isinstance(writer, TwoPhaseWriter) else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Spark: executor, once per attempt of a task. A replayed epoch costs no work."""
        settle()
        task = self._task(TaskContext.get())
        if self._plan.held is not None and task.epoch <= self._plan.held:
            return Staged(task, None)
        batches = (conform(batch, self._writer.schema) for batch in iterator)
        return Staged(task, self._writer.stage(batches, task))

    def _task(self, context: TaskContext | None) -> Task:
        if context is None:
            raise SinkError("write() runs inside a Spark task only")
        return Task(
            query=self._plan.query or context.getLocalProperty("sql.streaming.queryId") or "",
            epoch=self._epoch(context),
            partition=context.partitionId(),
            attempt=context.taskAttemptId(),
            generation=self._plan.generation,
            attempt_number=context.attemptNumber(),
        )

    def _epoch(self, context: TaskContext) -> int:
        return int(context.getLocalProperty("streaming.sql.batchId") or 0)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
        settle()
        received = [message for message in messages if isinstance(message, Staged)]
        epoch = _epoch_of(received, number)
        staged = [message.payload for message in received if message.payload is not None]
        held = self._held(epoch.query)
        if held is not None and number <= held:
            self._settle_held(epoch, staged)
        elif staged or self._writer.mode is OutputMode.REPLACE or not self._writer.streaming:
            self._writer.publish(epoch, staged)
        else:
            self._check_owner(epoch)

    def _settle_held(self, epoch: Epoch, staged: Sequence[Any]) -> None:
        self._writer.discard(staged)
        self._check_owner(epoch)

    def _check_owner(self, epoch: Epoch) -> None:
        if isinstance(self._writer, SupportsGenerations):
            self._writer.check_owner(epoch)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        # With every message present, the tasks succeeded and the commit failed: it may have
        # happened all the same, so nothing may be touched.
        if all(message is not None for message in messages):
            _log.warning("a commit failed: what it staged is left for the next attempt to settle")
            return
        received = [message for message in messages if isinstance(message, Staged)]
        try:
            self._writer.discard([m.payload for m in received if m.payload is not None])
            for epoch in {Epoch(m.task.query, m.task.epoch, m.task.generation) for m in received}:
                self._writer.abandon(epoch)
        except Exception:  # noqa: BLE001  best effort: the failure of the tasks is what the user must see
            _log.exception("what the failed tasks had staged could not be removed")


def _epoch_of(received: Sequence[Staged], number: int) -> Epoch:
    epochs = {(m.task.query, m.task.epoch, m.task.generation) for m in received}
    if len(epochs) != 1:
        listed = ", ".join(sorted(map(str, epochs)))
        raise SinkError(f"epoch {number} has messages of {len(epochs)} epochs: {listed}")
    query, found, generation = epochs.pop()
    if found != number:
        raise SinkError(f"epoch {number} has messages of epoch {found}")
    return Epoch(query, number, generation)


@final
class StreamWrite(_Write, _StreamArrowWriter, DataSourceArrowWriter):  # type: ignore[misc]  # base chosen by version
    """``df.writeStream``."""

    def commit(  # type: ignore[override]  # streams name the batch, batches do not
        self, messages: list[WriterCommitMessage | None], batchId: int
    ) -> None:
        """Spark: commit process (driver), once all tasks have succeeded."""
        self._commit(messages, batchId)

    def abort(  # type: ignore[override]  # as `commit`
        self, messages: list[WriterCommitMessage | None], batchId: int
    ) -> None:
        """Spark: commit process (driver), when a task or the commit has failed."""
        del batchId
        self._abort(messages)


@final
class BatchWrite(_Write, DataSourceArrowWriter):
    """``df.write``: a job of one epoch under an id of its own."""

    def __init__(self, writer: Writer[Any]) -> None:
        super().__init__(writer, f"{BATCH_PREFIX}{uuid.uuid4()}")

    def _epoch(self, context: TaskContext) -> int:
        """The only one. In ``foreachBatch`` the context names the batch of the stream around it."""
        del context
        return 0

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Spark: driver, once all tasks have succeeded."""
        self._commit(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Spark: driver, when a task or the commit has failed."""
        self._abort(messages)
