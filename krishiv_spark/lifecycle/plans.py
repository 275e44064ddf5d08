"""What travels between the processes of an epoch: planner to tasks, tasks to committer."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import WriterCommitMessage

from krishiv_spark.errors import SinkError
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.sinks.base import CommittedEpoch, Epoch, Task

if TYPE_CHECKING:
    from krishiv_spark.arrow.checksums import RowChecksum

__all__ = ["Plan", "PlanningFailed", "Staged", "epoch_of"]


class PlanningFailed(pickle.PicklingError):
    """An epoch cannot begin; the text is that of the error that caused it.

    A PicklingError, because planning happens while Spark pickles the writer, and only these pass
    its serializer unchanged (``CloudPickleSerializer.dumps``).
    """


@dataclass(frozen=True)
class Plan:
    """What the planner found out before the tasks of an epoch.

    Attributes:
        query: Id of the streaming query or batch job; None for a sink without a checkpoint.
        generation: See `SupportsGenerations.begin`.
        generations: How many there have been, with this one; 0 if nobody counts.
        offsets: What Spark planned for the epoch, where there is a checkpoint.
        mark: The newest epoch that the external system holds.
        payload: What `Writer.plan` returned.
        seen: What `SupportsRecall.seen` returned.
    """

    query: str | None
    generation: int | None = None
    offsets: PlannedOffsets | None = None
    mark: CommittedEpoch | None = None
    payload: Any = None
    generations: int = 0
    seen: str | None = None


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task tells the committer.

    Attributes:
        task: Which attempt it is of.
        payload: What `Writer.stage` returned.
        offsets: What Spark planned for the epoch, where that is known.
        rows: What the task was given, of a batch job with a number.
        seen: `Plan.seen`, for the committer.
        skipped: True if the task did nothing, since the sink had the epoch when it was planned.
    """

    task: Task
    payload: Any
    offsets: PlannedOffsets | None = None
    rows: RowChecksum | None = None
    seen: str | None = None
    skipped: bool = False

    @property
    def epoch(self) -> Epoch:
        """Which epoch it belongs to."""
        task = self.task
        return Epoch(task.query, task.epoch, task.generation, self.offsets)


def epoch_of(received: Sequence[Staged], number: int) -> Epoch:
    """The one epoch that the messages of its tasks are of.

    Raises:
        SinkError: If there are none, or if they are of several epochs or of another one.
    """
    epochs = {message.epoch for message in received}
    if len(epochs) != 1:
        listed = ", ".join(sorted(map(str, epochs)))
        raise SinkError(f"epoch {number} has messages of {len(epochs)} epochs: {listed}")
    epoch = epochs.pop()
    if epoch.number != number:
        raise SinkError(f"epoch {number} has messages of epoch {epoch.number}")
    return epoch
