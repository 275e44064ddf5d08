"""A query and its drivers: what it may do now, and what Spark would do next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from krishiv_spark.testing import steps
from krishiv_spark.testing.drivers.lives import Checkpoint, Life
from krishiv_spark.testing.steps import Begin, Commit, Stage, Step

__all__ = ["PlayedQuery"]


class PlayedQuery:
    """One query, or batch jobs one after the other, with one driver awake and at most one asleep.

    Args:
        number: For the story.
        checkpoint: Where it is kept; None for batch jobs.
        awake: The driver that is awake.

    Attributes:
        is_reordered: Whether its columns are in the opposite order by now.
    """

    def __init__(self, number: int, checkpoint: Checkpoint | None, awake: Life) -> None:
        self.number = number
        self.checkpoint = checkpoint
        self.awake = awake
        self.sleeper: Life | None = None
        self.is_reordered = False

    @property
    def lives(self) -> Iterable[Life]:
        """Both drivers, if there are two."""
        return filter(None, (self.awake, self.sleeper))

    @property
    def left(self) -> int:
        """Epochs that were begun and are not committed, as a new driver would find them."""
        known = self.checkpoint
        return 0 if known is None else len(known.units) - known.committed - 1

    def allows(self, step: Step) -> bool:
        """Whether a step is possible now."""
        condition = _POSSIBLE.get(type(step))
        return condition is None or condition(self, step)

    def knows(self, epochs: int) -> bool:
        """Whether its checkpoint knows so many epochs."""
        return self.checkpoint is not None and len(self.checkpoint.units) >= epochs

    def next_step(self, *, rows: int, tasks: int) -> Step:
        """What Spark does next if nothing happens; a new epoch has so many rows and tasks."""
        life = self.awake
        if life.asleep is not None:
            return steps.Resume()
        if life.unit is None:
            return Begin(rows, tasks)
        left = [task for task in range(life.tasks) if task not in life.messages]
        return Stage(left[0]) if left else Commit()


_POSSIBLE: dict[type[Step], Callable[[PlayedQuery, Any], bool]] = {
    Begin: lambda query, _: query.awake.asleep is None and query.awake.unit is None,
    Stage: lambda query, step: query.awake.is_open() and query.awake.needs(step),
    Commit: lambda query, _: query.awake.is_open() and query.awake.is_staged(),
    steps.Abort: lambda query, _: query.awake.is_open() and not query.awake.is_staged(),
    steps.RollBack: lambda query, step: query.knows(step.epochs),
    steps.TakeOver: lambda query, _: query.sleeper is None and query.checkpoint is not None,
    steps.Switch: lambda query, _: query.sleeper is not None,
    steps.Resume: lambda query, _: query.awake.asleep is not None,
    steps.Straggler: lambda query, _: query.awake.workers.has_straggler(),
}
