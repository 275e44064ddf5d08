"""The events of a history, as far as an observer outside of the code can see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Event", "History", "Plan"]


@dataclass(frozen=True)
class Plan:
    """Spark's plan of an epoch: rows are numbers, and each belongs to one epoch.

    Attributes:
        epoch: Its number.
        begins: First row.
        ends: The number after the last row.
    """

    epoch: int
    begins: int
    ends: int

    @property
    def rows(self) -> range:
        return range(self.begins, self.ends)


@dataclass(frozen=True)
class Event:
    """Something that Spark, a reader or an operator knows.

    Attributes:
        step: When.
        kind: What: "planned", "begun" (its planner has returned), "publishing", "returned"
            (so has its committer), "committed", "promised", "visible", "gone".
        plan: Of an event of Spark's.
        rows: Of an event that is about rows.
        by: Number of the driver, of an event of Spark's.
    """

    step: int
    kind: str
    plan: Plan | None = None
    rows: tuple[int, ...] = ()
    by: int = 0


class History:
    """Events, in their order.

    Attributes:
        events: All of them.
        listeners: Told of each.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.listeners: list[Callable[[Event], None]] = []

    def add(self, event: Event) -> None:
        """One more."""
        self.events.append(event)
        for listener in self.listeners:
            listener(event)

    def runs(self, plan: Plan | None = None) -> int:
        """Return how often Spark has run a plan so far; without one, any plan."""
        planned = (event.plan for event in self.events if event.kind == "planned")
        return sum(1 for each in planned if plan in {None, each})
