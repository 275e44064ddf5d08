"""The contract of a sink, which its author implements. This file is the specification.

Spark's part (processes, pickled copies, camelCase) is in ``krishiv_spark.lifecycle``. A sink plays
three roles, each in a separate process. The signature of a verb contains all that its role may
know:

    planner (driver)    Writer.check, begin, Writer.plan, last_committed   before any task starts
    task (executor)     Writer.stage                                       in each attempt at a task
    committer (driver)  last_committed, then publish                       or discard and abandon

A verb without its class is one of `Publisher` and `TwoPhaseCommitter`, the driver's side, or of an
ability of it (`SupportsGenerations`). Only values travel: the return value of `plan` is passed to
every `stage` of the epoch, and the return values of these to `publish`.

The simplest sinks are one class, `TwoPhaseWriter` or `AtLeastOnceWriter`. Others have a separate
committer: see `Writer.committer`, and ``krishiv_spark.sinks.logged`` for the epoch log.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, cast, final, runtime_checkable

import pyarrow as pa
from typing_extensions import Self, TypeVar

from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.options import Options
from krishiv_spark.spark.query_target import QueryTarget

__all__ = [
    "AtLeastOnceWriter",
    "CommittedEpoch",
    "Epoch",
    "Guarantee",
    "OutputMode",
    "Ownership",
    "Publisher",
    "Salvaged",
    "SupportsGenerations",
    "SupportsRecall",
    "Task",
    "TwoPhaseCommitter",
    "TwoPhaseWriter",
    "Writer",
]


StagedT = TypeVar("StagedT")
PlanT = TypeVar("PlanT", default=None)


class Guarantee(Enum):
    """The guarantee that readers of the external system have after any crash."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"
    NONE = "none"


class OutputMode(Enum):
    """The effect of an epoch on the rows of earlier epochs."""

    APPEND = "append"
    """Its rows are added to them."""
    REPLACE = "replace"
    """Its rows replace them: Spark's output mode "complete", a batch's "overwrite"."""


@dataclass(frozen=True)
class Task:
    """One attempt at one task of an epoch, on an executor.

    Attributes:
        query: Id of the streaming query, or of the batch job.
        epoch: Number of the epoch (Spark's batch id); 0 for a batch job.
        partition: Number of the task within the epoch.
        attempt: Spark's id of this attempt, unique within the application.
        attempt_number: Number of earlier attempts at this task in its stage.
        generation: `Ownership.generation` of this epoch, else None.
        nonce: A random text, new for every attempt, so that two attempts never stage under one
            name.
    """

    query: str
    epoch: int
    partition: int
    attempt: int
    generation: int | None = None
    attempt_number: int = 0
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex[:12])


@dataclass(frozen=True)
class Epoch:
    """The epoch that is published, on the driver.

    Attributes:
        query: Id of the streaming query, or of the batch job.
        number: Spark's batch id; grows by one with each batch, repeated after a restart.
        generation: `Ownership.generation` of this attempt, else None.
        offsets: Spark's plan of the epoch; None for a batch job, and if the sink does not know the
            checkpoint.
    """

    query: str
    number: int
    generation: int | None = None
    offsets: PlannedOffsets | None = None

    @property
    def digest(self) -> str | None:
        """The identity of the epoch beside its number; stored with it in the external system."""
        return None if self.offsets is None else self.offsets.digest


@dataclass(frozen=True)
class CommittedEpoch:
    """The newest epoch of a query by the record of the external system itself.

    Attributes:
        epoch: Number of the newest epoch.
        digest: `Epoch.digest` of it, as it was published. If it is None, it is not known, and an
            epoch of this number counts as committed without a comparison of its rows.
        shown: The offsets at which it ended, as a text for messages, if they are known.
    """

    epoch: int
    digest: str | None = None
    shown: str | None = None


@dataclass(frozen=True)
class Salvaged(Generic[StagedT]):
    """The visible part of an epoch that was published in part, and is staged again.

    Attributes:
        epoch: Number of the epoch that was committed in part.
        staged: Those return values of `stage` for the epoch that are visible. They must not become
            visible a second time.
    """

    epoch: int
    staged: Sequence[StagedT]


@dataclass(frozen=True)
class Ownership(Generic[StagedT]):
    """The ownership of a query, which a planner has until another one takes it over.

    Attributes:
        generation: A number that is higher than that of any owner before.
        generations: Number of owners of the query, with this one; 0 if they are not counted.
        salvaged: For sinks over an epoch log, the visible part of an epoch whose intent was voided.
        newest: For sinks over an epoch log, the content of the newest intent as parsed JSON; None
            before the first, and after one that was voided.
        is_first: True if the epoch log has no epoch yet.
    """

    generation: int
    generations: int = 0
    salvaged: Salvaged[StagedT] | None = None
    newest: Sequence[Any] | None = None
    is_first: bool = False


class Publisher(ABC, Generic[StagedT]):
    """The committer's role: makes visible what tasks have staged. Driver.

    Each process of the driver that needs one creates it; it is never sent to another process.
    """

    @abstractmethod
    def publish(self, epoch: Epoch, staged: Sequence[StagedT]) -> None:
        """Make the epoch visible. Committer.

        Not called for an epoch of a stream that neither adds rows nor replaces those before.
        """

    def discard(self, staged: Sequence[StagedT]) -> None:
        """Remove staged data that will never be published.

        Best effort; may be called repeatedly.
        """

    def abandon(self, epoch: Epoch) -> None:
        """Delete everything that was staged for an epoch, after task failures. Committer.

        Best effort. Attempts that crashed did not report their staged data. In a sink with
        generations, keep the data that another generation of the epoch staged.
        """


class TwoPhaseCommitter(Publisher[StagedT]):
    """The committer's role in a sink that is exactly once.

    `publish` makes all of an epoch visible together with its number and digest, in one step of the
    external system. If the epoch already exists, it must fail, and overwrite nothing. It raises
    `CommitRejected` if nothing became visible, `Fenced` if another driver owns the query, and
    `CommitUnknown` if the outcome is not known. Any other error counts as unknown, and staged data
    is kept after it.
    """

    @abstractmethod
    def last_committed(self, query: str) -> CommittedEpoch | None:
        """Return the newest epoch that the external system itself records for the query. Driver.

        It first finishes an epoch that was published in part, so that the answer is final. It is
        not called for a batch job, whose id is new, unless its user numbers it
        (`NumberedJobOptions`).

        Returns:
            The number and digest that `publish` received, or None if there is no epoch.
        """

    def peek_committed(self, query: str) -> CommittedEpoch | None:
        """Return the newest epoch, as `last_committed`, and change nothing. Planner.

        Called before a query starts. The default, None, means that this is not known.
        """
        del query
        return None

    def has_epochs(self, query: str) -> bool:
        """Return True if the target has an epoch of a query, also of one with another log. Planner.

        Called with the name by which the sink would know a numbered batch with other options, and
        changes nothing. False is correct if that is not known.
        """
        return self.peek_committed(query) is not None

    @abstractmethod
    def discard(self, staged: Sequence[StagedT]) -> None:
        """Remove staged data that will never be published.

        Best effort; may be called repeatedly.
        """


class Writer(ABC, Generic[StagedT, PlanT]):
    """The base class of all sinks: tasks receive a `PlanT` and return a `StagedT`.

    Args:
        options: The parsed options, an instance of `options_type`.
        schema: Arrow schema of every batch that `stage` receives; timestamps are UTC.
        mode: The effect of an epoch on earlier rows.
        streaming: True for a query with a sequence of epochs; a batch job has only epoch 0.

    The constructor runs in every process and does no I/O. A writer does not change afterwards:
    other processes would not see the change, since each creates its own writer from the same
    arguments.
    """

    options_type: ClassVar[type[Options]] = Options
    guarantee: ClassVar[Guarantee] = Guarantee.NONE
    only_streams: ClassVar[bool] = False
    """True if `check` refuses batch jobs, except those that users number."""
    divides_queries: ClassVar[bool] = False
    """True if the targets know the query by the ids of its parts, as the routes of a fan-out do.
    They would not recognize the epochs of a sink without this attribute, nor would it theirs."""
    is_cleared_at_will: ClassVar[bool] = False
    """True if users may empty the target, or lose it at a restart, while the query continues. For
    numbered batches an empty target is then a warning, not an error."""

    _init_args: tuple[tuple[Any, ...], dict[str, Any]]
    _is_sealed = False

    def __init__(
        self, options: Options, schema: pa.Schema, mode: OutputMode, *, streaming: bool = True
    ) -> None:
        self.options = options
        self.schema = schema
        self.mode = mode
        self.streaming = streaming

    def check(self) -> None:
        """Refuse a configuration that cannot work, before any row is written.

        Planner, once per epoch.

        Raises:
            OptionError: If an option does not fit the external system in its present state.
            SchemaError: If the rows do not fit it.
        """

    def check_start(self) -> None:
        """Refuse a configuration that cannot work, before a query is started. Planner; no effects.

        Override it if `plan` refuses configurations too, since `plan` is not called then. The first
        epoch may still refuse a configuration that this method accepted.

        Raises:
            OptionError, SchemaError: As `check`, and as `plan` as far as that is known.
        """
        self.check()

    def describe_target(self) -> QueryTarget | None:
        """Return the external system that rows go to, for the checkpoint's record. Planner.

        Called before a query starts, and in its first epoch in a process, after `plan`. Another
        target under the same checkpoint is then refused, or a warning is logged. The method must
        have no effects. The default, None, records nothing.
        """
        return None

    def plan(self, ownership: Ownership[StagedT] | None) -> PlanT:
        """Return the value that all tasks of an epoch need. Planner, after `check`.

        Args:
            ownership: Return value of `SupportsGenerations.begin`; None without that ability.

        Returns:
            A picklable value for `stage`. None by default, for sinks without a `PlanT`.

        Raises:
            OptionError, SchemaError: As `check`, for sinks without generations.
        """
        del ownership
        return cast("PlanT", None)

    @abstractmethod
    def stage(self, batches: Iterator[pa.RecordBatch], task: Task, plan: PlanT) -> StagedT | None:
        """Store the rows of one task so that `publish` can make them visible. Executor.

        Args:
            batches: The rows, in Spark's order; one batch is loaded at a time, so memory stays
                bounded.
            task: The attempt at the task.
            plan: Return value of `plan` for this epoch.

        Returns:
            A picklable value, or None when there is nothing to publish.
        """

    @abstractmethod
    def committer(self) -> Publisher[StagedT]:
        """Create the committer. Driver, in the planner too. No I/O."""

    # --- reconstructed in each process

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Store the arguments, from which other processes reconstruct the writer."""
        made = super().__new__(cls)
        made._init_args = args, kwargs
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the arguments: later changes of the writer do not reach other processes."""
        return _reconstruct, (type(self), *self._init_args)

    @final
    def freeze(self) -> Self:
        """Return self, and make it an error to set an attribute. Called by the lifecycle."""
        self._is_sealed = True
        return self

    def __setattr__(self, name: str, value: object) -> None:
        if self._is_sealed and name != "_is_sealed":
            kind = type(self).__name__
            raise AttributeError(
                f"{kind} sets {name!r} on itself, which no other process would see: planner, "
                f"tasks and committer each create their own {kind}. Return data for the tasks "
                "from plan(), and data for the committer from stage(); use "
                "functools.cached_property for values that only save work in one process"
            )
        super().__setattr__(name, value)


def _reconstruct(
    kind: type[Writer[Any, Any]], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Writer[Any, Any]:
    return kind(*args, **kwargs).freeze()


class TwoPhaseWriter(Writer[StagedT, PlanT], TwoPhaseCommitter[StagedT]):
    """A sink that is exactly once: rows are staged by tasks, published by the driver.

    `stage` stores rows durably, invisibly, and under names that are unique to the attempt: retried
    and speculative attempts of one task run at the same time, and Spark reports only one of them.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    def committer(self) -> TwoPhaseCommitter[StagedT]:
        """Return self: this class has the committer's methods too."""
        return self


class AtLeastOnceWriter(Writer[StagedT, PlanT], Publisher[StagedT]):
    """A sink without two phases: an epoch that is replayed after a crash is delivered again.

    `stage` returns the rows, or the shown part of them, to the driver, and `publish` delivers them.
    Rows are never lost.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE

    def committer(self) -> Publisher[StagedT]:
        """Return self: this class has the committer's methods too."""
        return self


@runtime_checkable
class SupportsGenerations(Protocol):
    """Ability of a committer that must fence drivers that are believed dead."""

    def begin(self, epoch: Epoch) -> Ownership[Any]:
        """Take the query over. Planner, once per epoch, before any of its tasks starts.

        Afterwards no earlier generation can publish, so the data that earlier generations left may
        be removed; not before.

        Args:
            epoch: The epoch that begins, without a generation.

        Returns:
            The argument of `Writer.plan`. Its `generation` is higher than any before; it reaches
            `stage` in its `Task` and `publish` in its `Epoch`.

        Raises:
            CheckpointMismatch: If the external system holds another epoch of this number, or a
                later one.
        """
        ...

    def find_own_generation(self, query: str, number: int) -> Epoch | None:
        """Return the newest generation, if this application started it for an epoch. Committer.

        Tasks that crashed did not report their generation.

        Returns:
            The epoch with its generation; None if the newest generation is of another epoch, or may
            be of another application.
        """
        ...

    def check_owner(self, epoch: Epoch) -> None:
        """Stop a fenced driver at an epoch that is already committed. Committer.

        Raises:
            Fenced: If a later generation has begun.
        """
        ...


@runtime_checkable
class SupportsRecall(Protocol):
    """Ability of a committer that accepts a hint from its planner in another process.

    Treat the hint as a cache: correctness must not depend on it, because the external system may
    have changed since.
    """

    def export_state(self, query: str) -> str:
        """Return the state of a query. Planner, as its last step; sent to each task."""
        ...

    def import_state(self, query: str, seen: str) -> None:
        """Load the state that `export_state` returned in the planner.

        Committer, as its first step.
        """
        ...
