"""What an author of a sink implements. This file is the specification.

Spark's part (processes, pickled copies, camelCase) is in ``krishiv_spark.lifecycle``. A writer is
built anew in every process that needs one:

    planner (driver)    check, begin, last_committed     before any task of an epoch starts
    task (executor)     stage                            once per attempt of a task
    committer (driver)  last_committed, then publish     or discard, when tasks have failed

Nothing set on ``self`` in one process is seen in another. What has to travel goes into the value
that `stage` returns.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.options import Options

__all__ = [
    "AtLeastOnceWriter",
    "Epoch",
    "Guarantee",
    "Mark",
    "OutputMode",
    "SupportsGenerations",
    "SupportsJobNumbers",
    "Task",
    "TwoPhaseWriter",
    "Writer",
]

C = TypeVar("C")


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
        generation: What `SupportsGenerations.begin` returned for this epoch, else None.
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
        generation: What `SupportsGenerations.begin` returned for this attempt, else None.
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
class Mark:
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


class Writer(ABC, Generic[C]):
    """Common root of `TwoPhaseWriter` and `AtLeastOnceWriter`.

    Args:
        options: The parsed options, an instance of `options_type`.
        schema: Arrow schema of every batch that `stage` receives; timestamps are UTC.
        mode: Whether epochs add or replace.
        streaming: Whether epochs follow one another; a batch job has the one epoch 0.

    The constructor runs in every process and does no I/O.
    """

    options_type: ClassVar[type[Options]] = Options
    guarantee: ClassVar[Guarantee] = Guarantee.NONE

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

    @abstractmethod
    def stage(self, batches: Iterator[pa.RecordBatch], task: Task) -> C | None:
        """Bring the rows of one task to where `publish` can make them visible. Executor.

        Args:
            batches: The rows, in Spark's order; pulled one at a time, so memory stays bounded.
            task: Which attempt this is.

        Returns:
            A picklable value, or None when there is nothing to publish.
        """

    @abstractmethod
    def publish(self, epoch: Epoch, staged: Sequence[C]) -> None:
        """Make the epoch visible. Committer; not called for an epoch that adds no rows."""

    def discard(self, staged: Sequence[C]) -> None:
        """Remove staged things that will never be published. Best effort, any number of times."""

    def abandon(self, epoch: Epoch) -> None:
        """Remove whatever else this generation has staged, since tasks have failed. Committer.

        Best effort. Attempts that died have told nobody what they staged.
        """


class TwoPhaseWriter(Writer[C]):
    """A sink that is exactly once: rows are staged by tasks, published by the driver.

    `stage` leaves things durable, invisible, and named uniquely for the attempt: retried and
    speculative attempts of one task run side by side, and Spark never reports the losers.

    `publish` makes all of an epoch visible together with its mark, in one step of the external
    system. If the mark is there already it must fail, not overwrite. Its errors are chosen by
    what the caller may believe: `CommitRejected`, `CommitUnknown` or `Fenced`; any other error
    counts as unknown, and nothing staged is touched after it.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    @abstractmethod
    def last_committed(self, query: str) -> Mark | None:
        """The newest epoch that the external system itself says it holds for the query. Driver.

        Finishing a half-published epoch is its first duty: the answer is final. Not asked for a
        batch job, whose id is new; but see `SupportsJobNumbers`.

        Returns:
            Its number and digest, as `publish` was given them, or None when it holds none.
        """

    @abstractmethod
    def discard(self, staged: Sequence[C]) -> None:
        """Remove staged things that will never be published. Best effort, any number of times."""


class AtLeastOnceWriter(Writer[C]):
    """A sink without two phases: an epoch that is replayed after a crash is delivered again.

    `stage` brings the rows, or what will be shown of them, to the driver, and `publish` delivers
    them. Rows are never lost.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE


@runtime_checkable
class SupportsGenerations(Protocol):
    """Ability of a writer that must fence off drivers believed dead."""

    def begin(self, epoch: Epoch) -> int:
        """Take the query over. Planner, once per epoch, before any of its tasks starts.

        From now on no earlier generation can publish, and only now may be touched what earlier
        generations left behind.

        Args:
            epoch: The epoch that begins, without a generation.

        Returns:
            A number that is higher than any before; it reaches `stage` in its `Task` and
            `publish` in its `Epoch`.

        Raises:
            CheckpointMismatch: If the external system holds another epoch of this number, or a
                later one.
        """
        ...

    def begun_here(self, query: str, number: int) -> Epoch | None:
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
class SupportsJobNumbers(Protocol):
    """Ability of a writer whose user may give a batch job a number, by which it is known again."""

    def has_done(self) -> bool:
        """Whether the external system holds this batch job already. Driver."""
        ...
