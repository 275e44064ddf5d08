"""Identities of epochs: which epoch a write is, and how it is recognized when it is repeated.

Each identity is a value that travels with the write: to the tasks, and of a batch job to the
committer as well. None of them calls Spark; `EpochWrite` calls them, in the order of their methods.

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

from krishiv_spark.errors import Fenced, LogError, OptionError
from krishiv_spark.lifecycle.plans import Plan, Staged
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets.planned import PlannedOffsets
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
        offsets: Offsets that Spark planned for it, where there is a checkpoint.
    """

    query: str | None
    number: int | None = None
    offsets: PlannedOffsets | None = None


class EpochIdentity(ABC):
    """The identity of the epoch of one write.

    The defaults are those of an epoch that leaves no record besides that of its sink.
    """

    may_repeat: ClassVar[bool] = True
    """Whether the sink may have the epoch already, so that it is asked for its newest one."""

    # --- planner

    @abstractmethod
    def resolve_query(self, writer: Writer[Any, Any]) -> PlannedEpoch:
        """Return the query and the epoch of the write. Planner; changes nothing."""

    def check_before_begin(
        self, writer: Writer[Any, Any], committer: Publisher[Any], epoch: Epoch
    ) -> Plan | None:
        """Refuse an epoch before a log has a new owner; nothing has changed yet. Planner.

        Returns:
            A plan if the sink has the epoch for certain, so that nothing has to begin.

        Raises:
            CheckpointMismatch: If rows would be written again, or would be missing.
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

        Called after `SupportsGenerations.begin` and `Writer.plan`: where there are generations, no
        earlier one can publish any more, so `committed` is final.

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
        """Return the epoch with what only the messages of its tasks contain. Committer."""
        del received
        return epoch

    def confirm(
        self, epoch: Epoch, committed: CommittedEpoch | None, recorded: tuple[int, ...]
    ) -> None:
        """Compare and record an epoch that is in the sink. Committer, before Spark records its end.

        Args:
            epoch: The epoch.
            committed: The newest epoch of the sink, if that had the epoch before; None if it was
                published now.
            recorded: Numbers that `accept` returned in the planner.

        Raises:
            BatchMismatch: If the epoch in the sink has other rows.
        """
        del epoch, committed, recorded

    @abstractmethod
    def epochs_without_messages(
        self, committer: Publisher[Any], number: int, plan: Plan | None
    ) -> set[Epoch]:
        """Return the epoch of failed tasks none of which has sent a message, if known. Committer.

        Args:
            committer: The sink's.
            number: Number of the epoch.
            plan: The plan, where the committer has the planner's copy.
        """


@final
@dataclass(frozen=True)
class CheckpointEpoch(EpochIdentity):
    """An epoch of a stream: what Spark has planned in the query's checkpoint.

    Attributes:
        query: Id of the query, if a user named it; otherwise it is read in the checkpoint.
        checkpoint: Checkpoint of the query; None if the sink was not given it, or may not read it.
        hidden: Values of options that no record may contain.
    """

    query: str | None = None
    checkpoint: SparkCheckpoint | None = None
    hidden: frozenset[str] = field(default=frozenset(), repr=False)

    def check_start(self, writer: Writer[Any, Any], *, new_target: bool) -> None:
        """Raise what the first epoch would be refused for. Planner, before the query starts.

        Args:
            writer: Writer of the sink.
            new_target: Whether another target than the recorded one is accepted.
        """
        from krishiv_spark.lifecycle.resumption import check_resumption

        if (checkpoint := self._own_checkpoint) is not None:
            check_resumption(checkpoint, writer, new_target=new_target, hidden=self.hidden)

    @property
    def _own_checkpoint(self) -> SparkCheckpoint | None:
        """The checkpoint, if it names the query: only then is something recorded in it."""
        return self.checkpoint if self.query is None else None

    def resolve_query(self, writer: Writer[Any, Any]) -> PlannedEpoch:
        del writer
        if self.checkpoint is None:
            return PlannedEpoch(self.query)
        if self.query is not None:
            query, offsets = self.query, self.checkpoint.planned_offsets()
        else:
            query, offsets = self.checkpoint.planned()
        return PlannedEpoch(query, offsets.epoch, offsets)

    def check_before_begin(
        self, writer: Writer[Any, Any], committer: Publisher[Any], epoch: Epoch
    ) -> None:
        checkpoint = self._own_checkpoint
        is_first = epoch.offsets is not None and epoch.number == 0
        if checkpoint is not None and is_first and isinstance(committer, TwoPhaseCommitter):
            check_full_refresh(checkpoint, writer.options)

    def accept(
        self,
        writer: Writer[Any, Any],
        committer: Publisher[Any],
        epoch: Epoch,
        committed: CommittedEpoch | None,
    ) -> tuple[int, ...]:
        if epoch.offsets is not None:
            # A checkpoint that was rolled back is refused before any row moves.
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
        """Return offsets that name Spark's query, where the planner could not read Spark's own.

        Raises:
            LogError: If the epoch log lacks epochs that came before.
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
        return PlannedOffsets.unseen(number, spark_id)

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
        # In ``foreachBatch`` the context names the batch of the stream around it.
        del context
        return Epoch(self.query, self.number, plan.generation)

    def epochs_without_messages(
        self, committer: Publisher[Any], number: int, plan: Plan | None
    ) -> set[Epoch]:
        del committer
        return {Epoch(self.query, number, None if plan is None else plan.generation)}


@final
class OneOffEpoch(_JobEpoch):
    """The only epoch of a batch job under a new id, which is never asked for again."""

    may_repeat: ClassVar[bool] = False

    @classmethod
    def new(cls) -> OneOffEpoch:
        """Return the identity of a new job."""
        return cls(f"{BATCH_PREFIX}{uuid.uuid4()}", 0)


@final
@dataclass(frozen=True)
class NumberedEpoch(_JobEpoch):
    """A batch job that is skipped, whole, if the sink has it: an epoch of the job's name.

    Its rows tell it from another job of its number. They are known when it is committed, and are
    counted once more when it is repeated.

    Attributes:
        job: Name and number, and which numbers may be repeated.
        record: Record of the batches that were committed into the target, if there is one.
        replaces_all: Whether each batch overwrites the target.
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
        del writer
        return self._skip(committer, epoch) if isinstance(committer, SupportsGenerations) else None

    def _skip(self, committer: Publisher[Any], epoch: Epoch) -> Plan | None:
        """Return a plan that begins nothing, if the sink has the batch; refuse one that misfits."""
        from krishiv_spark.sinks.logged import LogCommitter, LostIntentError

        query = epoch.query
        try:
            committed = read_committed_epoch(committer, query)
        except LostIntentError:
            newest = committer.unfinished(query)[0] if isinstance(committer, LogCommitter) else None
            if newest != self.number:
                raise  # a later batch in its place would leave a gap
            return None  # `begin` voids the intent, and the batch is written again
        recorded = self._check(epoch, committed)
        if not is_done(self.job, committed):
            return None
        if isinstance(committer, LogCommitter):
            # As `begin` does, which would fence a driver that is further on.
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
        # A batch that was committed before need not be in a target that this batch overwrites.
        if self.record is None or self.replaces_all:
            return ()
        return self.record.check(self.job, committed)

    def _warn_of_repetition(self) -> None:
        _log.warning(
            "batch %d of %s has come again, as after a crash, and is in this sink already: it "
            "is skipped here, and written where it is missing",
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
    """Return the newest epoch that the external system has of a query; None if it cannot tell.

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
