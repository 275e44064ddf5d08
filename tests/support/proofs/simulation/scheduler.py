"""Actors that take turns on one thread: each goes on until it waits, or until it is held up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import (  # type: ignore[import-untyped]  # it ships no stubs
    GreenletExit,
    getcurrent,
    greenlet,
)

__all__ = ["Actor", "Process", "Scheduler"]


class Process:
    """A process: what its actors remember together, and lose together.

    Attributes:
        name: For the story.
        number: Its process id.
        memory: What production code keeps for the life of a process, by what it is.
        alive: Whether it has not been killed.
        application: Which Spark application it is of, as `krishiv_spark.runtime.workers` tells it.
    """

    def __init__(self, name: str, number: int, application: str | None = None) -> None:
        self.name = name
        self.number = number
        self.memory: dict[Any, Any] = {}
        self.alive = True
        self.application = application

    def __repr__(self) -> str:
        return self.name


class Actor:
    """Somebody who does something, in a process.

    Attributes:
        name: For the story.
        process: Where it runs.
        priority: Who is higher goes first; among equals, whoever began first.
        result: What its work returned.
        error: What its work raised.
        is_done: Whether the work is over; not so if its process was killed.
        context: What Spark's task context says; None outside of tasks.
    """

    def __init__(
        self, name: str, process: Process, work: Callable[[], Any], priority: float, context: Any
    ) -> None:
        self.name = name
        self.process = process
        self.priority = priority
        self.context = context
        self.result: Any = None
        self.error: Exception | None = None
        self.is_done = False
        self.until_ms = 0
        self.condition: Callable[[], bool] | None = None
        self._work = work
        self.greenlet: greenlet | None = None

    def __repr__(self) -> str:
        return self.name

    def run(self) -> None:
        """Do its work."""
        try:
            self.result = self._work()
        except Exception as error:  # noqa: BLE001  whoever waits for the actor judges it
            self.error = error
        self.is_done = True

    @property
    def is_over(self) -> bool:
        """Return True if the actor will take no more steps."""
        return self.is_done or not self.process.alive

    def is_ready(self, now_ms: int) -> bool:
        """Return True if the actor can continue at a time."""
        return self.until_ms <= now_ms and (self.condition is None or self.condition())


class Scheduler:
    """Decides whose turn it is.

    Attributes:
        current: Whose turn it is; None while the scheduler itself decides.
        actors: Those that are not over.
        frozen: Actors that stand still.
    """

    def __init__(self) -> None:
        self.current: Actor | None = None
        self.actors: list[Actor] = []
        self.frozen: set[Actor] = set()
        self._hub = getcurrent()
        self._dead: list[Actor] = []
        self._highest, self._lowest = 0.0, 0.0

    def add(self, actor: Actor) -> Actor:
        """One more; its turn comes later."""
        actor.greenlet = greenlet(actor.run, self._hub)
        self.actors.append(actor)
        return actor

    def prefer(self, actor: Actor) -> None:
        """It goes before all others from now on."""
        self._highest += 1
        actor.priority = self._highest

    def neglect(self, actor: Actor) -> None:
        """It goes on only when no other can."""
        self._lowest -= 1
        actor.priority = self._lowest

    def others(self, now_ms: int) -> list[Actor]:
        """Return the other actors that could continue."""
        return [a for a in self._standing() if a is not self.current and a.is_ready(now_ms)]

    def _standing(self) -> list[Actor]:
        return [a for a in self.actors if a not in self.frozen and not a.is_over]

    def run(self, until: Callable[[], bool], now_ms: Callable[[], int]) -> int | None:
        """Give turns until a condition is met, or nobody can go on.

        Returns:
            The time at which somebody could go on, if it is met by nobody now; None if the
            condition is met, or if nobody ever can.
        """
        while not until():
            self._bury()
            ready = [actor for actor in self._standing() if actor.is_ready(now_ms())]
            if not ready:
                sleeping = (a.until_ms for a in self._standing() if a.until_ms > now_ms())
                return min(sleeping, default=None)
            self.current = max(ready, key=lambda actor: actor.priority)
            assert self.current.greenlet is not None
            self.current.greenlet.switch()
            self.current = None
        return None

    def _bury(self) -> None:
        """Those that were killed are kept, since Python ends whoever nobody holds."""
        if any(actor.is_over for actor in self.actors):
            self._dead += [each for each in self.actors if each.is_over and not each.is_done]
            self.actors = [each for each in self.actors if not each.is_over]

    def give_way(self) -> None:
        """The current actor stops here, and goes on when it has a turn again."""
        self._hub.switch()

    def close(self) -> None:
        """End everybody. What their work does on its way out must do nothing."""
        for actor in [*self._dead, *self.actors]:
            if actor.greenlet:
                actor.greenlet.throw(GreenletExit)
        self._dead.clear()
        self.actors.clear()
