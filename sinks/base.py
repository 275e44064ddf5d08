"""What an author of a sink implements. This file is the specification.

Spark's part (processes, pickled copies, camelCase) is in ``krishiv_spark.lifecycle``. A sink plays
three roles, each in a process of its own. What a role may know is in the signature of its verbs:

    planner (driver)    Writer.check, begin, Writer.plan, last_committed   before any task starts
    task (executor)     Writer.stage                                       in each attempt at a task
    committer (driver)  last_committed, then publish                       or discard and abandon

A verb without its class is one of `Publisher` and `TwoPhaseCommitter`, the driver's side, or of an
ability of it (`SupportsGenerations`). Values travel, and nothing else does: what `plan` returns is
given to every `stage` of the epoch, and what these return is given to `publish`.

The simplest sinks are one class, `TwoPhaseWriter` or `AtLeastOnceWriter`. Others have a committer
of their own: see `Writer.committer`, and ``krishiv_spark.sinks.logged`` for the epoch log.
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
    """What a reader of the external system may rely on, whatever dies."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"
    NONE = "none"


class OutputMode(Enum):
    """What an epoch does to the rows of earlier epochs."""

    APPEND = "append"
    """It adds to them."""
    REPLACE = "replace"
    """It takes their place: Spark's output mode "complete", a batch's "overwrite"."""


@dataclass(frozen=True)
class Task:
    """One attempt at one task of an epoch, on an executor.

    Attributes:
        query: Id of the streaming query, or of the batch job.
        epoch: Number of the epoch (Spark's batch id); 0 for a batch job.
        partition: Number of the task within the epoch.
        attempt: Spark's id of this attempt, unique within the application.
        attempt_number: How many attempts at this task began before, in its stage.
        generation: `Ownership.generation` of this epoch, else None.
        nonce: Random, new for every attempt: two attempts never stage under one name.
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
    """What is being published, on the driver.

    Attributes:
        query: Id of the streaming query, or of the batch job.
        number: Spark's batch id; grows by one with each batch, repeated after a restart.
        generation: `Ownership.generation` of this attempt, else None.
        offsets: What Spark planned for the epoch; None for a batch job, and where the sink was not
            told the checkpoint.
    """

    query: str
    number: int
    generation: int | None = None
    offsets: PlannedOffsets | None = None

    @property
    def digest(self) -> str | None:
        """What tells this epoch from another one of its number; to be kept with its mark."""
        return None if self.offsets is None else self.offsets.digest


@dataclass(frozen=True)
class CommittedEpoch:
    """What the external system itself says it holds of a query.

    Attributes:
        epoch: Number of the newest epoch.
        digest: `Epoch.digest` of it, as it was published. None if nobody knows it: then an epoch of
            this number counts as held, whatever its rows are.
        shown: The offsets at which it ended, for people, if they are known.
    """

    epoch: int
    digest: str | None = None
    shown: str | None = None


@dataclass(frozen=True)
class Salvaged(Generic[StagedT]):
    """What is visible of an epoch that was published in part, and is staged again.

    Attributes:
        epoch: Number of the epoch that was committed in part.
        staged: Those of the values that `stage` had returned for it that are visible: they must
            not become visible once more.
    """

    epoch: int
    staged: Sequence[StagedT]


@dataclass(frozen=True)
class Ownership(Generic[StagedT]):
    """What a planner has when it has taken a query over, until another one does.

    Attributes:
        generation: A number that is higher than that of any owner before.
        generations: How many there have been of the query, with this one; 0 if nobody counts.
        salvaged: Of sinks over an epoch log, what is visible of an epoch whose intent was voided.
    """

    generation: int
    generations: int = 0
    salvaged: Salvaged[StagedT] | None = None


class Publisher(ABC, Generic[StagedT]):
    """The committer's role: makes visible what tasks have staged. Driver.

    It is made when it is needed, in whichever process of the driver, and never travels.
    """

    @abstractmethod
    def publish(self, epoch: Epoch, staged: Sequence[StagedT]) -> None:
        """Make the epoch visible. Committer.

        Not called for an epoch of a stream that neither adds rows nor replaces those before.
        """

    def discard(self, staged: Sequence[StagedT]) -> None:
        """Remove staged things that will never be published. Best effort, any number of times."""

    def abandon(self, epoch: Epoch) -> None:
        """Remove whatever else this generation has staged, since tasks have failed. Committer.

        Best effort. Attempts that died have told nobody what they staged.
        """


class TwoPhaseCommitter(Publisher[StagedT]):
    """The committer's role in a sink that is exactly once.

    `publish` makes all of an epoch visible together with its mark, in one step of the external
    system. If the mark is there already it must fail, not overwrite. Its errors are chosen by
    what the caller may believe: `CommitRejected`, `CommitUnknown` or `Fenced`; any other error
    counts as unknown, and nothing staged is touched after it.
    """

    @abstractmethod
    def last_committed(self, query: str) -> CommittedEpoch | None:
        """The newest epoch that the external system itself says it holds for the query. Driver.

        Finishing a half-published epoch is its first duty: the answer is final. Not asked for a
        batch job, whose id is new, unless its user numbers it (`NumberedJobOptions`).

        Returns:
            Its number and digest, as `publish` was given them, or None when it holds none.
        """

    def peek_committed(self, query: str) -> CommittedEpoch | None:
        """Return the newest epoch, as `last_committed`, and change nothing. Planner.

        It is asked before a query starts. The default, None, says that this cannot be told.
        """
        del query
        return None

    @abstractmethod
    def discard(self, staged: Sequence[StagedT]) -> None:
        """Remove staged things that will never be published. Best effort, any number of times."""


class Writer(ABC, Generic[StagedT, PlanT]):
    """Root of all sinks: what it stages is a `StagedT`, what its tasks have to know a `PlanT`.

    Args:
        options: The parsed options, an instance of `options_type`.
        schema: Arrow schema of every batch that `stage` receives; timestamps are UTC.
        mode: Whether epochs add or replace.
        streaming: Whether epochs follow one another; a batch job has the one epoch 0.

    The constructor runs in every process and does no I/O. A writer does not change after it: no
    other process would see that, since each makes a writer of its own from the same arguments.
    """

    options_type: ClassVar[type[Options]] = Options
    guarantee: ClassVar[Guarantee] = Guarantee.NONE
    only_streams: ClassVar[bool] = False
    """Whether `check` refuses batch jobs, but for those that users number."""
    is_cleared_at_will: ClassVar[bool] = False
    """True if users empty the target, or lose it at a restart, and the query goes on with it. For
    numbered batches an empty target is then a warning, and no error."""

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
        """Refuse what cannot work, before any row moves. Planner, once per epoch.

        Raises:
            OptionError: If an option does not fit the external system as it is.
            SchemaError: If the rows do not fit it.
        """

    def check_start(self) -> None:
        """Refuse what cannot work, before a query is started. Planner; makes and changes nothing.

        Override it where `plan` refuses things as well, since it is not called then. What it passes
        may be refused by the first epoch all the same.

        Raises:
            OptionError, SchemaError: As `check`, and `plan` where that can be told.
        """
        self.check()

    def describe_target(self) -> QueryTarget | None:
        """Return the external system that rows go to, for the checkpoint's record. Planner.

        Asked before a query starts, and in its first epoch in a process, after `plan`. Another
        target under the same checkpoint is then refused, or warned of. Make and change nothing. The
        default, None, records nothing.
        """
        return None

    def plan(self, ownership: Ownership[StagedT] | None) -> PlanT:
        """Find out what all tasks of an epoch have to know. Planner, after `check`.

        Args:
            ownership: What `SupportsGenerations.begin` returned; None without that ability.

        Returns:
            A picklable value for `stage`. None by default, of sinks that name no `PlanT`.

        Raises:
            OptionError, SchemaError: As `check`, of sinks without generations.
        """
        del ownership
        return cast("PlanT", None)

    @abstractmethod
    def stage(self, batches: Iterator[pa.RecordBatch], task: Task, plan: PlanT) -> StagedT | None:
        """Bring the rows of one task to where `publish` can make them visible. Executor.

        Args:
            batches: The rows, in Spark's order; pulled one at a time, so memory stays bounded.
            task: Which attempt this is.
            plan: What the planner has found out for this epoch.

        Returns:
            A picklable value, or None when there is nothing to publish.
        """

    @abstractmethod
    def committer(self) -> Publisher[StagedT]:
        """Make the committer. Driver: the planner asks it too. No I/O."""

    # --- made anew in each process

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember of what it is made."""
        made = super().__new__(cls)
        made._init_args = args, kwargs
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """It travels as what it was made of: nothing that was done to it since comes along."""
        return _reconstruct, (type(self), *self._init_args)

    @final
    def freeze(self) -> Self:
        """The same, and from now on it is an error to set an attribute. The lifecycle does this."""
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

    `stage` leaves things durable, invisible, and named uniquely for the attempt: retried and
    speculative attempts of one task run side by side, and Spark never reports the losers.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    def committer(self) -> TwoPhaseCommitter[StagedT]:
        """This class has the committer's verbs as well."""
        return self


class AtLeastOnceWriter(Writer[StagedT, PlanT], Publisher[StagedT]):
    """A sink without two phases: an epoch that is replayed after a crash is delivered again.

    `stage` brings the rows, or what will be shown of them, to the driver, and `publish` delivers
    them. Rows are never lost.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE

    def committer(self) -> Publisher[StagedT]:
        """This class has the committer's verbs as well."""
        return self


@runtime_checkable
class SupportsGenerations(Protocol):
    """Ability of a committer that must fence off drivers believed dead."""

    def begin(self, epoch: Epoch) -> Ownership[Any]:
        """Take the query over. Planner, once per epoch, before any of its tasks starts.

        From now on no earlier generation can publish, and only now may be touched what earlier
        generations left behind.

        Args:
            epoch: The epoch that begins, without a generation.

        Returns:
            What `Writer.plan` is given. Its `generation` is higher than any before; it reaches
            `stage` in its `Task` and `publish` in its `Epoch`.

        Raises:
            CheckpointMismatch: If the external system holds another epoch of this number, or a
                later one.
        """
        ...

    def find_own_generation(self, query: str, number: int) -> Epoch | None:
        """The newest generation, if this Spark application has begun it for an epoch. Committer.

        Tasks that failed have told nobody which generation they were of.

        Returns:
            The epoch with its generation; None if the newest generation is of another epoch, or
            not certainly of this application.
        """
        ...

    def check_owner(self, epoch: Epoch) -> None:
        """Committer, for an epoch that is held already: stop a driver that was taken over from.

        Raises:
            Fenced: If a later generation has begun.
        """
        ...


@runtime_checkable
class SupportsRecall(Protocol):
    """Ability of a committer that has its planner's knowledge sent along. It is made anew in each.

    Nothing may depend on it but how much there is to look up: what was seen may have changed.
    """

    def export_state(self, query: str) -> str:
        """What is known of a query that was begun. Planner, last of all; it goes to each task."""
        ...

    def import_state(self, query: str, seen: str) -> None:
        """Take over what `export_state` has returned in the planner. Committer, first of all."""
        ...
