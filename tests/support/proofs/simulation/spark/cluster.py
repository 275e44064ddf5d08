"""The operators of drivers: a cluster manager, and the people who restart a query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from krishiv_spark.sinks.base import Writer
from simulation.scenario import Scenario
from simulation.scheduler import Actor, Process
from simulation.spark.driver import Driver
from simulation.storage import Checkpoint
from simulation.world import World

__all__ = ["Spark"]

_MOST_DRIVERS = 15
_PAUSE_S = 1.0


class Spark:
    """Drivers of one query.

    Attributes:
        drivers: Those that were started, the newest one last.
        is_in_part: Whether one has said that an epoch is committed in part, and that nobody can
            tell the rest of it.
    """

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        checkpoint: Checkpoint,
        writer: Callable[[], Writer[Any]],
        take_advice: Callable[[Exception], bool],
    ) -> None:
        self.drivers: list[Driver] = []
        self.is_in_part = False
        self._world = world
        self._scenario = scenario
        self._checkpoint = checkpoint
        self._writer = writer
        self._take_advice = take_advice

    # --- drivers

    def start(self, application: str | None = None, goal: int | None = None) -> Driver:
        """One more driver; in a JVM of its own, if none is given."""
        name = application or f"app{len(self.drivers) + 1}"
        found = Driver(
            self._world,
            self._scenario,
            self._checkpoint,
            self._writer,
            name,
            self._scenario.goal if goal is None else goal,
        )
        self.drivers.append(found)
        self._world.say(f"{found.actor} begins")
        return found

    def alive(self) -> list[Driver]:
        """Drivers that run, or seem to."""
        return [driver for driver in self.drivers if not driver.is_over]

    def driver_of(self, actor: Actor) -> Driver | None:
        """Return the driver in whose process an actor runs."""
        mine = (d for d in self.drivers if actor.process in {d.process, *d.processes})
        return next(mine, None)

    def crash(self, driver: Driver, survivors: int = 0) -> None:
        """The JVM dies; of its Python workers those go on whose bit is set, for a while."""
        self._world.kill(driver.process)
        for number, process in enumerate(driver.processes):
            if process.alive and not survivors >> number % 8 & 1:
                self._world.kill(process)

    # --- the course of a history

    def go_wrong(self) -> None:
        """Run the query, however often it has to be started again."""
        keeper = self._world.begin("cluster manager", Process("manager", 0), self._keep_alive)
        self._world.run(lambda: keeper.is_over)

    def get_on(self) -> None:
        """See that the query gets on, before those who were held up go on, and after it."""
        if self._scenario.sleepers_first:
            self._let_all_go_on()
        self._finish_one_more(alone=True)
        self._let_all_go_on()
        self._finish_one_more(alone=False)

    def _keep_alive(self) -> None:
        for _ in range(_MOST_DRIVERS):
            driver = self.start()
            self._world.wait(lambda: not self.alive())
            if self._scenario.is_smooth and driver.error is not None:
                self._world.violate(f"a driver fails: {driver.error}")
            if driver.error is None and driver.process.alive:
                return
            self._world.sleep(_PAUSE_S)

    def _let_all_go_on(self) -> None:
        self._world.say("those who were held up go on")
        self._world.run(lambda: False)

    def _finish_one_more(self, *, alone: bool) -> None:
        """A fresh driver finishes one epoch more, without any error."""
        over = self._checkpoint.newest("/chk/commits")
        goal = max(self._scenario.goal, -1 if over is None else over) + 1
        scheduler = self._world.scheduler
        scheduler.frozen = set(scheduler.actors) if alone else set()
        driver = self._run_to(goal)
        if driver.error is not None and self._take_advice(driver.error):
            driver = self._run_to(goal)
        scheduler.frozen = set()
        if driver.error is not None:
            self._judge(str(driver.error))

    def _judge(self, error: str) -> None:
        """No driver can go on where a store lies, or where the rest of an epoch cannot be told."""
        told = "can only be completed if rows fall into the same tasks"
        self.is_in_part = self._scenario.moving and told in error
        if self._scenario.honest and not self.is_in_part:
            self._world.fail(f"a fresh driver does not get on: {error}")

    def _run_to(self, goal: int) -> Driver:
        driver = self.start(goal=goal)
        self._world.run(lambda: driver.is_over)
        return driver
