"""``df.writeStream``: an epoch is what Spark has planned in the query's checkpoint."""

from __future__ import annotations

from typing import Any, final

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from krishiv_spark.errors import LogError
from krishiv_spark.lifecycle.plans import Plan
from krishiv_spark.lifecycle.resuming import check_resumption, record_target
from krishiv_spark.lifecycle.telling import message_before_traceback
from krishiv_spark.lifecycle.writing import Write, mark_of
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.sinks.base import (
    CommittedEpoch,
    Epoch,
    Publisher,
    SupportsGenerations,
    TwoPhaseCommitter,
    Writer,
)
from krishiv_spark.sinks.refreshes import check_full_refresh
from krishiv_spark.spark.checkpoint import QUERY_ID_PROPERTY, SparkCheckpoint

__all__ = ["StreamWrite"]

# 4.1 and later hand Arrow only to this class; 4.0's worker hands it to any DataSourceArrowWriter.
_StreamArrowWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)


@final
class StreamWrite(Write, _StreamArrowWriter, DataSourceArrowWriter):  # type: ignore[misc]  # base chosen by version
    """``df.writeStream``.

    Args:
        writer: An author's writer, sealed.
        query: Id of the streaming query, if it is known; otherwise the checkpoint says it.
        checkpoint: Of the query; None for a sink that was not told, or is not to read it.
        hidden: Values of options that no record may contain.
    """

    def __init__(
        self,
        writer: Writer[Any, Any],
        query: str | None = None,
        checkpoint: SparkCheckpoint | None = None,
        hidden: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(writer)
        self._hidden = hidden
        self._given = query
        self._checkpoint = checkpoint

    def check_start(self, *, new_target: bool = False) -> None:
        """Planner, before the query starts: raise what its first epoch would be refused for.

        Args:
            new_target: Whether another target than the recorded one is accepted.
        """
        self._writer.check_start()
        if self._checkpoint is not None and self._given is None:
            check_resumption(
                self._checkpoint, self._writer, new_target=new_target, hidden=self._hidden
            )

    def _query(self) -> str | None:
        if self._given is not None or self._checkpoint is None:
            return self._given
        return self._checkpoint.query_id()

    def _planned(self) -> tuple[str | None, PlannedOffsets | None]:
        if self._checkpoint is None:
            return self._given, None
        if self._given is not None:
            return self._given, self._checkpoint.planned_offsets()
        return self._checkpoint.planned()

    def _check_checkpoint(self, committer: Publisher[Any], offsets: PlannedOffsets | None) -> None:
        is_first = offsets is not None and offsets.epoch == 0
        known = self._checkpoint if self._given is None else None
        if known is not None and is_first and isinstance(committer, TwoPhaseCommitter):
            check_full_refresh(known, self._writer.options)

    def _record_query(self, query: str) -> None:
        if self._checkpoint is not None and self._given is None:
            self._checkpoint.record_query_id(query)
            record_target(self._checkpoint, query, self._writer, self._hidden)

    def _unseen_offsets(self, context: TaskContext, plan: Plan) -> PlannedOffsets | None:
        if self._given is None or self._checkpoint is not None:
            return None
        epoch = self._epoch(context)
        # Each epoch that came before had an owner in the log.
        if 0 < plan.generations <= epoch:
            raise LogError(
                f"query {self._given} is at epoch {epoch}, but its epoch log has recorded "
                f"{plan.generations} attempts at epochs: it was removed, it is an older copy, "
                "or the query was started without 'queryId', or with another one. Put the log "
                f"back, or give a new 'queryId' and use {NEW_CHECKPOINT}"
            )
        return PlannedOffsets.unseen(epoch, context.getLocalProperty(QUERY_ID_PROPERTY) or "")

    def _mark(self, committer: Publisher[Any], query: str) -> CommittedEpoch | None:
        return mark_of(committer, query)

    def _silent(self, committer: Publisher[Any], number: int) -> set[Epoch]:
        query = self._query()
        if query is None or not isinstance(committer, SupportsGenerations):
            return set()
        epoch = committer.find_own_generation(query, number)
        return set() if epoch is None else {epoch}

    @message_before_traceback
    def commit(  # type: ignore[override]  # streams name the batch, batches do not
        self, messages: list[WriterCommitMessage | None], batchId: int
    ) -> None:
        """Spark: commit process (driver), once all tasks have succeeded."""
        self._commit(messages, batchId)

    @message_before_traceback
    def abort(  # type: ignore[override]  # as `commit`
        self, messages: list[WriterCommitMessage | None], batchId: int
    ) -> None:
        """Spark: commit process (driver), when a task or the commit has failed."""
        self._abort(messages, batchId)
