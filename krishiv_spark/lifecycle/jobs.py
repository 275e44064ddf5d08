"""Batch jobs: of one epoch under an id of their own, or with a number that users give them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from krishiv_spark.errors import OptionError
from krishiv_spark.lifecycle.plans import Plan, Staged
from krishiv_spark.lifecycle.telling import message_before_traceback
from krishiv_spark.lifecycle.writing import Write, mark_of
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.sinks.base import (
    CommittedEpoch,
    Epoch,
    OutputMode,
    Publisher,
    TwoPhaseCommitter,
    Writer,
)
from krishiv_spark.sinks.committed_batches import BatchRecord
from krishiv_spark.sinks.numbered import JobNumber, check_same, check_writer, is_done
from krishiv_spark.spark.checkpoint import BATCH_PREFIX

__all__ = ["BatchWrite", "NumberedWrite"]

_log = logging.getLogger(__name__)

_ONLY_EPOCH = 0


class _JobWrite(Write, DataSourceArrowWriter):
    """``df.write``. Spark has the planner's copy commit, with its plan."""

    _name: str
    _job_epoch: int

    def _planned(self) -> tuple[str, None]:
        return self._name, None

    def _epoch(self, context: TaskContext) -> int:
        # In ``foreachBatch`` the context names the batch of the stream around it.
        del context
        return self._job_epoch

    def _silent(self, committer: Publisher[Any], number: int) -> set[Epoch]:
        del committer
        return {Epoch(self._name, number, None if self._plan is None else self._plan.generation)}

    @message_before_traceback
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Spark: driver, once all tasks have succeeded."""
        self._commit(messages, self._job_epoch)

    @message_before_traceback
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Spark: driver, when a task or the commit has failed."""
        self._abort(messages, self._job_epoch)


@final
class BatchWrite(_JobWrite):
    """A job that nobody will know again."""

    def __init__(self, writer: Writer[Any, Any]) -> None:
        super().__init__(writer)
        self._name = f"{BATCH_PREFIX}{uuid.uuid4()}"
        self._job_epoch = _ONLY_EPOCH

    def _mark(self, committer: Publisher[Any], query: str) -> None:
        """None, since its id is new."""
        del committer, query


@final
class NumberedWrite(_JobWrite):
    """A job that is skipped, whole, if the sink holds it: an epoch of what it is named after.

    Its rows are what tells it from another one of its number. They are known when it is committed,
    and counted once more when it comes again.

    Args:
        writer: An author's writer, sealed.
        job: Its name and number, and what may come again.
    """

    def __init__(self, writer: Writer[Any, Any], job: JobNumber) -> None:
        super().__init__(writer)
        self._job = job
        self._name = job.name
        self._job_epoch = job.number
        self._record = BatchRecord.of(writer)
        self._recorded: tuple[int, ...] = ()

    def _begin(self) -> Plan:
        plan = super()._begin()
        if is_done(self._job, plan.mark):
            _log.warning(
                "batch %d of %s has come again, as after a crash, and is in this sink already: it "
                "is skipped here, and written where it is missing",
                self._job.number,
                self._name,
            )
        return plan

    def _number(self, offsets: PlannedOffsets | None) -> int:
        del offsets
        return self._job.number

    def _planned(self) -> tuple[str, None]:
        if isinstance(self._writer.committer(), TwoPhaseCommitter):
            return super()._planned()
        raise OptionError(
            "'txnAppId' has no effect here: this sink writes a batch that comes again once more. "
            "Leave it out, or have the sink write exactly once"
        )

    def _done(self, committer: Publisher[Any], query: str) -> CommittedEpoch | None:
        from krishiv_spark.sinks.logged import LogCommitter, LostIntentError

        try:
            mark = self._mark(committer, query)
        except LostIntentError:
            newest = committer.unfinished(query)[0] if isinstance(committer, LogCommitter) else None
            if newest != self._job.number:
                raise  # a later batch in its place would leave a gap
            return None  # whoever begins voids the intent, and the batch is written again
        # Before a log has a new owner: what is refused here has changed nothing.
        self._check_mark(Epoch(query, self._job.number), mark)
        if not is_done(self._job, mark):
            return None
        if isinstance(committer, LogCommitter):
            committer.verify_target(query)  # as `begin` does, which would fence who is further on
        return mark

    def _mark(self, committer: Publisher[Any], query: str) -> CommittedEpoch | None:
        return mark_of(committer, query)

    def _check_mark(self, epoch: Epoch, mark: CommittedEpoch | None) -> None:
        check_writer(self._job, mark)
        super()._check_mark(epoch, mark)
        # What was committed before need not be in a target that this batch overwrites.
        if self._record is not None and self._writer.mode is not OutputMode.REPLACE:
            self._recorded = self._record.check(self._job, mark)

    def _holds(self, epoch: Epoch, mark: CommittedEpoch | None) -> bool:
        del epoch
        return is_done(self._job, mark)

    def _published(self, epoch: Epoch) -> None:
        if self._record is not None:
            self._record.note(epoch.number, self._recorded)

    # --- rows

    @property
    def _counts(self) -> bool:
        """Whether the rows themselves tell the job from another one of its number."""
        return self._job.compares and self._job.rows is None

    def _skipped(self, staged: Staged, batches: Iterator[pa.RecordBatch]) -> Staged:
        if not self._counts:
            return staged
        from krishiv_spark.arrow.checksums import RowChecksum, row_checksum

        return replace(staged, rows=sum(map(row_checksum, batches), RowChecksum()))

    def _staged(self, staged: Staged, batches: Iterator[pa.RecordBatch], plan: Plan) -> Staged:
        if not self._counts:
            return super()._staged(staged, batches, plan)
        from krishiv_spark.arrow.checksums import Counted

        counted = Counted(batches)
        return replace(super()._staged(staged, counted, plan), rows=counted.rows)

    def _told(self, epoch: Epoch, received: Sequence[Staged]) -> Epoch:
        from krishiv_spark.arrow.checksums import RowChecksum

        if not self._counts:
            return replace(epoch, offsets=self._job.offsets)
        rows = sum((each.rows for each in received if each.rows is not None), RowChecksum())
        return replace(epoch, offsets=self._job.offsets_of(rows.rows, rows.checksum))

    def _is_held(self, committer: Publisher[Any], epoch: Epoch, staged: Sequence[Any]) -> bool:
        if not super()._is_held(committer, epoch, staged):
            return False
        mark = self._mark(committer, epoch.query)
        if mark is not None and mark.epoch == epoch.number:
            check_same(epoch, mark)
        if mark is not None and self._record is not None:
            self._record.note(mark.epoch, self._recorded)
        return True
