"""What the three roles of a sink tell one another, and what Spark tells them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from krishiv_spark.offsets.planned import PlannedOffsets

__all__ = ["CommittedEpoch", "Epoch", "Guarantee", "OutputMode", "Ownership", "Salvaged", "Task"]

StagedT = TypeVar("StagedT")


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
