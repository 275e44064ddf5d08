"""Judges a history from what Spark, readers and operators know of it; knows nothing of the code.

* Nothing is visible that no commit was called for.
* No row is visible twice, and what is visible stays.
* No row is visible before those of the epochs before it, or before it is decided that they will be.
* Whoever another driver has taken over from is told so, whatever its epoch is made of.
* When Spark writes down that an epoch is over, its rows are visible, or will be without anybody's
  help; in the end they are.
"""

from __future__ import annotations

from simulation.history import Event, Plan
from simulation.world import World

__all__ = ["Checker"]


class Checker:
    """Looks at each event as it happens.

    Attributes:
        committed: The newest plan that Spark believes committed.
        visible: Rows that readers see.
    """

    def __init__(self, world: World) -> None:
        self.committed: Plan | None = None
        self.visible: set[int] = set()
        self._world = world
        self._called_for: dict[int, Plan] = {}
        self._promised: set[int] = set()
        self._events = 0
        self._planned: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self._fenced: set[int] = set()
        world.history.listeners.append(self.look)

    def look(self, event: Event) -> None:
        """Judge one more event."""
        if event.plan is not None:
            self._look_at_driver(event, event.plan)
        elif event.kind == "promised":
            self._promised.update(event.rows)
        elif event.kind == "visible":
            self._see(event.rows)
        elif event.kind == "gone":
            self._world.violate(f"rows {list(event.rows)} were visible, and are no more")

    def _look_at_driver(self, event: Event, plan: Plan) -> None:
        self._events += 1
        if event.kind == "planned":
            self._planned[event.by] = self._events
            self._fenced.discard(event.by)
        elif event.kind == "begun":
            self._begun[event.by] = self._events
        elif event.kind == "publishing":
            self._called_for.update(dict.fromkeys(plan.rows, plan))
            if self._is_taken_over(event.by):
                self._fenced.add(event.by)
        elif event.kind == "returned" and event.by in self._fenced:
            self._world.violate(f"epoch {plan.epoch}: a driver goes on that was taken over from")
        elif event.kind == "committed":
            self._commit(plan)

    def _is_taken_over(self, by: int) -> bool:
        """Return True if another planner has started after this one ended, and has ended itself."""
        mine = self._begun[by]
        return any(
            mine < planned < self._begun.get(who, 0) for who, planned in self._planned.items()
        )

    def _see(self, rows: tuple[int, ...]) -> None:
        uncalled = [row for row in rows if row not in self._called_for]
        if uncalled:
            self._world.violate(f"rows {uncalled} are visible, and no commit was called for them")
        twice = [row for row in rows if row in self.visible]
        if twice or len(set(rows)) < len(rows):
            self._world.violate(f"rows {twice or list(rows)} are visible twice")
        self.visible.update(rows)
        self._look_back(rows)

    def _look_back(self, rows: tuple[int, ...]) -> None:
        begins = max((self._called_for[row].begins for row in rows), default=0)
        missing = sorted(set(range(begins)) - self.visible - self._promised)
        if missing:
            self._world.violate(f"rows {list(rows)} are visible before rows {missing}")

    def _commit(self, plan: Plan) -> None:
        missing = [row for row in plan.rows if row not in self.visible | self._promised]
        if missing:
            self._world.violate(
                f"epoch {plan.epoch} is over, as Spark believes, and rows {missing} are lost"
            )
        self.committed = plan

    def end(self, *, in_part: bool) -> None:
        """Judge what is left when everything has come to rest.

        Args:
            in_part: Whether a part of an epoch that is not over is visible, as users were told.
        """
        ends = 0 if self.committed is None else self.committed.ends
        missing = sorted(set(range(ends)) - self.visible)
        more = sorted(self.visible - set(range(ends)))
        if missing or (more and not in_part):
            self._world.fail(f"in the end rows {missing} are lost, and {more} are too many")
