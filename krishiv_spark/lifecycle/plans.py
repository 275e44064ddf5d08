"""Values that are sent between the processes of an epoch: planner to tasks, tasks to committer."""

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
    """An epoch cannot start; the text is that of the error that caused it.

    It is a PicklingError because planning happens while Spark pickles the writer, whose serializer
    passes only these unchanged (``CloudPickleSerializer.dumps``).
    """


@dataclass(frozen=True)
class Plan:
    """The result of the planner, for the tasks of an epoch.

    Attributes:
        query: Id of the streaming query or batch job; None for a sink without a checkpoint.
        generation: `Ownership.generation` of the epoch; None without `SupportsGenerations`.
        offsets: Offsets that Spark planned for the epoch, if there is a checkpoint.
        committed: The newest epoch that the external system has.
        payload: Return value of `Writer.plan`.
        generations: `Ownership.generations` of the query; 0 if they are not counted.
        exported_state: Return value of `SupportsRecall.export_state`.
        recorded: Return value of `EpochIdentity.accept`, for the committer of a batch job.
    """

    query: str | None
    generation: int | None = None
    offsets: PlannedOffsets | None = None
    committed: CommittedEpoch | None = None
    payload: Any = None
    generations: int = 0
    exported_state: str | None = None
    recorded: tuple[int, ...] = ()


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The message of one task to the committer.

    Attributes:
        task: The attempt that sends it.
        payload: Return value of `Writer.stage`.
        offsets: Offsets that Spark planned for the epoch, if they are known.
        rows: Count and checksum of the task's rows, if they identify the epoch.
        exported_state: `Plan.exported_state`, for the committer.
        skipped: True if the task did nothing, since the sink had committed the epoch when it was
            planned.
    """

    task: Task
    payload: Any
    offsets: PlannedOffsets | None = None
    rows: RowChecksum | None = None
    exported_state: str | None = None
    skipped: bool = False

    @property
    def epoch(self) -> Epoch:
        """The epoch of the task."""
        task = self.task
        return Epoch(task.query, task.epoch, task.generation, self.offsets)


def epoch_of(received: Sequence[Staged], number: int) -> Epoch:
    """Return the one epoch that the messages of its tasks belong to.

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
