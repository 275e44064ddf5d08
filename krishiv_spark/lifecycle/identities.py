"""The identity of an epoch, by which a repeated write is recognized.

Each identity is a value that is pickled with the write: for tasks, and in a batch job for the
committer as well. No identity calls Spark; `EpochWrite` calls them, in the order of their methods.

    identity          query                     number           recognized by
    CheckpointEpoch   in the checkpoint, or     Spark's batch    the offsets that Spark planned
                      option ``queryId``        id
    NumberedEpoch     option ``txnAppId``       ``txnVersion``   its rows
    OneOffEpoch       a new id                  0                nothing: it is never repeated
"""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, final

from pyspark import TaskContext

from krishiv_spark.errors import CheckpointMismatch, Fenced, LogError, OptionError
from krishiv_spark.lifecycle.plans import Plan, Staged
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets.planned import ROWS, PlannedOffsets, part_of_query
from krishiv_spark.sinks.base import (
    CommittedEpoch,
    Epoch,
    OutputMode,
    Publisher,
    SupportsGenerations,
    TwoPhaseCommitter,
    Writer,
)
from krishiv_spark.sinks.epoch_checks import is_already_committed, warn_of_epoch_gap
from krishiv_spark.sinks.numbered import BatchRecord, JobNumber, check_same, check_writer, is_done
from krishiv_spark.sinks.options import check_full_refresh
from krishiv_spark.spark.checkpoint import (
    BATCH_PREFIX,
    EPOCH_PROPERTY,
    QUERY_ID_PROPERTY,
    SparkCheckpoint,
)

__all__ = [
    "CheckpointEpoch",
    "EpochIdentity",
    "NumberedEpoch",
    "OneOffEpoch",
    "PlannedEpoch",
    "read_committed_epoch",
]

_log = logging.getLogger(__name__)


class PlannedEpoch(NamedTuple):
    """The epoch that a planner starts.

    Attributes:
        query: Id of the streaming query or batch job; None for a sink without a checkpoint.
        number: Number of the epoch; None if only its tasks know it.
        offsets: Offsets that Spark planned for it, if there is a checkpoint.
    """

    query: str | None
    number: int | None = None
    offsets: PlannedOffsets | None = None


class EpochIdentity(ABC):
    """The identity of the epoch of one write.

    The defaults are those of an epoch that only the sink records.
    """

    may_repeat: ClassVar[bool] = True
    """True if the sink may have committed the epoch before. Then its newest epoch is read."""

    # --- planner

    @abstractmethod
    def resolve_query(self, writer: Writer[Any, Any]) -> PlannedEpoch:
        """Return the query and the epoch of the write. Planner; changes nothing."""

    def check_before_begin(
        self, writer: Writer[Any, Any], committer: Publisher[Any], epoch: Epoch
    ) -> Plan | None:
        """Refuse an epoch before a log has a new owner, while nothing has changed. Planner.

        Returns:
            A plan if the sink has certainly committed the epoch, so that no new owner is needed.

        Raises:
            CheckpointMismatch: If rows would be written twice or would be missing.
        """
        del writer, committer, epoch
        return None

    def accept(
        self,
        writer: Writer[Any, Any],
        committer: Publisher[Any],
        epoch: Epoch,
        committed: CommittedEpoch | None,
    ) -> tuple[int, ...]:
        """Refuse an epoch that does not fit the newest one in the sink. Planner.

        Called after `SupportsGenerations.begin` and `Writer.plan`: if there are generations, an
        earlier one cannot publish any more, so `committed` is final.

        Returns:
            Numbers for `confirm`: batches that are known to be in the target.

        Raises:
            CheckpointMismatch: If the checkpoint or the target was rolled back.
        """
        del writer, committer, epoch, committed
        return ()

    # --- task

    @abstractmethod
    def epoch_in_task(self, context: TaskContext, plan: Plan) -> Epoch:
        """Return the epoch that a task belongs to. Task.

        Raises:
            Fenced: If the task is of another epoch than the plan.
        """

    @property
    def compares_rows(self) -> bool:
        """True if tasks count their rows, by which a repeated epoch is recognized."""
        return False

    # --- task and committer

    def is_committed(self, epoch: Epoch, committed: CommittedEpoch | None) -> bool:
        """Return True if the sink has the epoch, by its newest one. Task and committer.

        Raises:
            CheckpointMismatch: If the epoch does not fit the newest one.
        """
        return is_already_committed(epoch, committed)

    # --- committer

    def with_task_results(self, epoch: Epoch, received: Sequence[Staged]) -> Epoch:
        """Return the epoch, completed by values from the messages of its tasks. Committer."""
        del received
        return epoch

    def confirm(
        self, epoch: Epoch, committed: CommittedEpoch | None, recorded: tuple[int, ...]
    ) -> None:
        """Compare and record a committed epoch.

        Committer, before Spark logs the epoch as completed.

        Args:
            epoch: The epoch.
            committed: The newest epoch of the sink, if the epoch was committed before; None if it
                was published now.
            recorded: Numbers that `accept` returned in the planner.

        Raises:
            BatchMismatch: If the epoch in the sink has other rows.
        """
        del epoch, committed, recorded

    @abstractmethod
    def epochs_without_messages(
        self, committer: Publisher[Any], number: int, plan: Plan | None
    ) -> set[Epoch]:
        """Return the epoch of failed tasks if none of them has sent a message. Committer.

        Args:
            committer: The committer of the sink.
            number: Number of the epoch.
            plan: The plan, if the committer is the planner's copy.
        """


@final
@dataclass(frozen=True)
class CheckpointEpoch(EpochIdentity):
    """An epoch of a stream, as Spark has planned it in the query's checkpoint.

    Attributes:
        query: Id of the query, if the user specified it; otherwise it is read from the checkpoint.
        checkpoint: Checkpoint of the query; None if the options contain none, or one that the sink
            may not read.
        hidden: Values of options that no record may contain.
    """

    query: str | None = None
    checkpoint: SparkCheckpoint | None = None
    hidden: frozenset[str] = field(default=frozenset(), repr=False)

    def check_start(self, writer: Writer[Any, Any], *, new_target: bool) -> None:
        """Raise the error that the first epoch would raise. Planner, before the query starts.

        Args:
            writer: Writer of the sink.
            new_target: True if a target is accepted that differs from the recorded one.
        """
        from krishiv_spark.lifecycle.resumption import check_resumption

        if (checkpoint := self._own_checkpoint) is not None:
            check_resumption(checkpoint, writer, new_target=new_target, hidden=self.hidden)

    @property
    def _own_checkpoint(self) -> SparkCheckpoint | None:
        """The checkpoint, if it identifies the query. Only then may records be stored in it."""
        return self.checkpoint if self.query is None else None

    def resolve_query(self, writer: Writer[Any, Any]) -> PlannedEpoch:
        del writer
        if self.checkpoint is None:
            return PlannedEpoch(self.query)
        if self.query is not None:
            query, offsets = self.query, self.checkpoint.planned_offsets()
        else:
            query, offsets = self.checkpoint.read_plan()
        return PlannedEpoch(query, offsets.epoch, offsets)

    def check_before_begin(
        self, writer: Writer[Any, Any], committer: Publisher[Any], epoch: Epoch
    ) -> None:
        checkpoint = self._own_checkpoint
        is_first = epoch.offsets is not None and epoch.number == 0
        if checkpoint is not None and is_first and isinstance(committer, TwoPhaseCommitter):
            check_full_refresh(checkpoint, writer.options)
        if checkpoint is not None:
            from krishiv_spark.lifecycle.resumption import check_division

            check_division(checkpoint, epoch.query, writer)

    def accept(
        self,
        writer: Writer[Any, Any],
        committer: Publisher[Any],
        epoch: Epoch,
        committed: CommittedEpoch | None,
    ) -> tuple[int, ...]:
        if epoch.offsets is not None:
            # A checkpoint that was rolled back is refused before any row is written.
            is_already_committed(epoch, committed)  # for its error
        if isinstance(committer, TwoPhaseCommitter):
            warn_of_epoch_gap(epoch, committed)
        if (checkpoint := self._own_checkpoint) is not None:
            from krishiv_spark.lifecycle.resumption import record_target

            # After all that refuses: a query that is refused because it is another one must not be
            # recorded. Before any row moves.
            checkpoint.record_query_id(epoch.query)
            record_target(checkpoint, epoch.query, writer, self.hidden)
        return ()

    def epoch_in_task(self, context: TaskContext, plan: Plan) -> Epoch:
        number = int(context.getLocalProperty(EPOCH_PROPERTY) or 0)
        spark_id = context.getLocalProperty(QUERY_ID_PROPERTY) or ""
        query = plan.query or spark_id
        if plan.offsets is not None and number != plan.offsets.epoch:
            raise Fenced(
                f"this task is of epoch {number}, but the checkpoint of query {query} is at epoch "
                f"{plan.offsets.epoch} already: two drivers run on it, stop one of them"
            )
        offsets = plan.offsets or self._synthetic_offsets(number, spark_id, plan)
        return Epoch(query, number, plan.generation, offsets)

    def _synthetic_offsets(self, number: int, spark_id: str, plan: Plan) -> PlannedOffsets | None:
        """Return offsets that name Spark's query, if the planner could not read Spark's own.

        Raises:
            LogError: If the epoch log lacks earlier epochs.
        """
        if self.query is None or self.checkpoint is not None:
            return None
        # Each earlier epoch had an owner in the log.
        if 0 < plan.generations <= number:
            raise LogError(
                f"query {self.query} is at epoch {number}, but its epoch log has recorded "
                f"{plan.generations} attempts at epochs: it was removed, it is an older copy, "
                "or the query was started without 'queryId', or with another one. Put the log "
                f"back, or give a new 'queryId' and use {NEW_CHECKPOINT}"
            )
        return PlannedOffsets.of_unknown(number, spark_id)

    def epochs_without_messages(
        self, committer: Publisher[Any], number: int, plan: Plan | None
    ) -> set[Epoch]:
        del plan
        query = self.query
        if query is None and self.checkpoint is not None:
            query = self.checkpoint.query_id()
        if query is None or not isinstance(committer, SupportsGenerations):
            return set()
        epoch = committer.find_own_generation(query, number)
        return set() if epoch is None else {epoch}


@dataclass(frozen=True)
class _JobEpoch(EpochIdentity):
    """An epoch of a batch job, whose name and number are known before it starts.

    Attributes:
        query: Name of the job.
        number: Number of its epoch.
    """

    query: str
    number: int

    def resolve_query(self, writer: Writer[Any, Any]) -> PlannedEpoch:
        del writer
        return PlannedEpoch(self.query)

    def epoch_in_task(self, context: TaskContext, plan: Plan) -> Epoch:
        # In ``foreachBatch`` the context names the batch of the surrounding stream.
        del context
        return Epoch(self.query, self.number, plan.generation)

    def epochs_without_messages(
        self, committer: Publisher[Any], number: int, plan: Plan | None
    ) -> set[Epoch]:
        del committer
        return {Epoch(self.query, number, None if plan is None else plan.generation)}


@final
class OneOffEpoch(_JobEpoch):
    """The only epoch of a batch job under a new id, which is never repeated."""

    may_repeat: ClassVar[bool] = False

    @classmethod
    def new(cls) -> OneOffEpoch:
        """Return the identity of a new job."""
        return cls(f"{BATCH_PREFIX}{uuid.uuid4()}", 0)


@final
@dataclass(frozen=True)
class NumberedEpoch(_JobEpoch):
    """A batch job that is skipped if the sink has committed it: an epoch of the job's name.

    Its rows distinguish it from another job with its number. They are counted before its commit,
    and again when it is repeated.

    Attributes:
        job: Name and number, and which numbers may be repeated.
        record: Record of the batches that were committed into the target, if there is one.
        replaces_all: True if each batch overwrites the target.
    """

    job: JobNumber
    record: BatchRecord | None
    replaces_all: bool

    @classmethod
    def of(cls, job: JobNumber, writer: Writer[Any, Any]) -> NumberedEpoch:
        """Return the identity of a job that a writer writes."""
        replaces_all = writer.mode is OutputMode.REPLACE
        return cls(job.name, job.number, job, BatchRecord.of(writer), replaces_all)

    def resolve_query(self, writer: Writer[Any, Any]) -> PlannedEpoch:
        if isinstance(writer.committer(), TwoPhaseCommitter):
            return PlannedEpoch(self.query, self.number)
        raise OptionError(
            "'txnAppId' has no effect here: this sink writes a batch that comes again once more. "
            "Leave it out, or have the sink write exactly once"
        )

    def check_before_begin(
        self, writer: Writer[Any, Any], committer: Publisher[Any], epoch: Epoch
    ) -> Plan | None:
        if isinstance(committer, SupportsGenerations):
            return self._skip(writer, committer, epoch)
        if isinstance(committer, TwoPhaseCommitter):
            self._check_division(writer, committer, committer.peek_committed(epoch.query))
        return None

    def _check_division(
        self, writer: Writer[Any, Any], committer: Publisher[Any], committed: CommittedEpoch | None
    ) -> None:
        """Refuse a sink that became a fan-out, or stopped being one, under one name.

        Its target has the batches under the id of a part of the name, or of the whole, and would be
        asked for the other: a repeated batch would be written twice. A sink with a batch under its
        own id was checked at its first one.

        Raises:
            CheckpointMismatch: If the target has batches under the other id.
        """
        if committed is not None or not isinstance(committer, TwoPhaseCommitter):
            return
        divides = writer.divides_queries
        if not committer.has_epochs(self.query if divides else part_of_query(self.query, ROWS)):
            return
        before, now = ("without", "with") if divides else ("with", "without")
        raise CheckpointMismatch(
            f"batch {self.number} of {self.query}: the target has batches of this name that were "
            f"written {before} 'deadLetters.*' or the routes of a fan-out, and this one would be "
            f"written {now} them: a repeated batch would not be recognized, and its rows would be "
            "written twice. Nothing was written. Ways on: restore the options; or, once the newest "
            "batch is completed and will not be repeated, give the output another name "
            "('txnAppId', or 'query' of each_batch())"
        )

    def _skip(
        self, writer: Writer[Any, Any], committer: Publisher[Any], epoch: Epoch
    ) -> Plan | None:
        """Return a plan without a new owner if the sink has the batch; refuse one that misfits."""
        from krishiv_spark.sinks.logged import LogCommitter, LostIntentError

        query = epoch.query
        try:
            committed = read_committed_epoch(committer, query)
        except LostIntentError:
            newest = (
                committer.find_unfinished(query)[0] if isinstance(committer, LogCommitter) else None
            )
            if newest != self.number:
                raise  # committing a later batch instead would leave a gap
            return None  # `begin` voids the intent, and the batch is written again
        self._check_division(writer, committer, committed)
        recorded = self._check(epoch, committed)
        if not is_done(self.job, committed):
            return None
        if isinstance(committer, LogCommitter):
            # `begin` makes this check too, but would fence a driver at a later batch.
            committer.verify_target(query)
        self._warn_of_repetition()
        return Plan(query, committed=committed, recorded=recorded)

    def accept(
        self,
        writer: Writer[Any, Any],
        committer: Publisher[Any],
        epoch: Epoch,
        committed: CommittedEpoch | None,
    ) -> tuple[int, ...]:
        del writer, committer
        recorded = self._check(epoch, committed)
        if is_done(self.job, committed):
            self._warn_of_repetition()
        return recorded

    def _check(self, epoch: Epoch, committed: CommittedEpoch | None) -> tuple[int, ...]:
        """Refuse a batch that does not fit the newest one; return the batches in the target."""
        check_writer(self.job, committed)
        self.is_committed(epoch, committed)  # for its error
        # If this batch overwrites the target, earlier batches need not be in it.
        if self.record is None or self.replaces_all:
            return ()
        return self.record.check(self.job, committed)

    def _warn_of_repetition(self) -> None:
        _log.warning(
            "batch %d of %s was repeated, as after a crash. This sink has it already and skips "
            "it; sinks that lack it write it",
            self.number,
            self.query,
        )

    @property
    def compares_rows(self) -> bool:
        return self.job.compares and self.job.rows is None

    def is_committed(self, epoch: Epoch, committed: CommittedEpoch | None) -> bool:
        del epoch
        return is_done(self.job, committed)

    def with_task_results(self, epoch: Epoch, received: Sequence[Staged]) -> Epoch:
        from krishiv_spark.arrow.checksums import RowChecksum

        if not self.compares_rows:
            return replace(epoch, offsets=self.job.offsets)
        rows = sum((each.rows for each in received if each.rows is not None), RowChecksum())
        return replace(epoch, offsets=self.job.offsets_of(rows.rows, rows.checksum))

    def confirm(
        self, epoch: Epoch, committed: CommittedEpoch | None, recorded: tuple[int, ...]
    ) -> None:
        if committed is not None and committed.epoch == epoch.number:
            check_same(epoch, committed)
        if self.record is not None:
            newest = epoch.number if committed is None else committed.epoch
            self.record.note(newest, recorded)


def read_committed_epoch(committer: Publisher[Any], query: str) -> CommittedEpoch | None:
    """Return the newest committed epoch of a query; None if the external system records none.

    Raises:
        TypeError: If an author's committer returns something else.
    """
    if not isinstance(committer, TwoPhaseCommitter):
        return None
    committed = committer.last_committed(query)
    if not isinstance(committed, CommittedEpoch | None):
        raise TypeError(
            f"last_committed() of {type(committer).__name__} returned {committed!r}: return "
            "CommittedEpoch(epoch, digest) with what publish() was given, or None"
        )
    return committed
