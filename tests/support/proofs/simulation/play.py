"""One history, from its begin to its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from krishiv_spark.offsets import EpochLog
from krishiv_spark.sinks.base import Writer
from simulation.checker import Checker
from simulation.cluster.brokers import Cluster
from simulation.cluster.coordinator import Ended
from simulation.cluster.leaders import rows_of
from simulation.cluster.partitions import Arrived
from simulation.cluster.sink import kafka_writer
from simulation.disturbances import disturb
from simulation.history import Event
from simulation.incidents import Incident, Incidents
from simulation.present import leave, make_present
from simulation.scenario import Scenario
from simulation.seams import use_highest_epoch
from simulation.shelf import Shelf, ShelfWriter
from simulation.spark.cluster import Spark
from simulation.storage import Checkpoint, SimulatedJournal, Store
from simulation.world import World

__all__ = ["Play", "Played", "play"]

_WAY_OUT = "With onLostTransactions = 'repair', a restart of the stream writes the rest"
_AGES_MS = 10 * 3_600_000
"""After which brokers have aborted whatever is open."""


@dataclass(frozen=True)
class Played:
    """The result of a history.

    Attributes:
        violation: The violation; None if there was none.
        steps: Number of steps.
        incidents: The incidents in it.
        tale: A line for each step, if that was requested.
    """

    violation: str | None
    steps: int
    incidents: tuple[Incident, ...]
    tale: tuple[str, ...] = ()


class Play:
    """Everything that a history is made of.

    Args:
        scenario: How things are.
        incidents: What goes wrong.
        tale: Where it is told, if anywhere.
    """

    def __init__(
        self, scenario: Scenario, incidents: Incidents, tale: list[str] | None = None
    ) -> None:
        self.scenario = scenario
        self.world: World = World(
            incidents, lambda _, incident, call: disturb(self, incident, call), tale
        )
        self.checkpoint = Checkpoint(self.world)
        self.store = Store(knows_exclusive=scenario.honest, pages=scenario.pages)
        self.shelf = Shelf(self.world)
        self.checker = Checker(self.world)
        self.cluster = Cluster(
            self.world.clock,
            scenario.brokers,
            scenario.partitions,
            scenario.rules,
            verify=scenario.verify,
            top=scenario.top,
            decided=self._decided,
            shown=self._shown,
        )
        self.spark = Spark(self.world, scenario, self.checkpoint, self.writer, self.take_advice)

    def run(self) -> None:
        """Let it happen, and judge what is left of it."""
        self.spark.go_wrong()
        self.world.calm_down()
        self.cluster.down.clear()
        self.spark.get_on()
        if self.scenario.is_tidy:
            self._check_that_nothing_hangs()
        self.world.clock.pass_ms(_AGES_MS)
        self.world.run(lambda: False)
        if self.world.violation is None:
            self.checker.end(in_part=self.spark.is_in_part)
            self._check_that_nothing_hangs()

    def _check_that_nothing_hangs(self) -> None:
        """Readers of committed records read to the end, once all that was open has timed out."""
        for tp, partition in self.cluster.partitions.items():
            if partition.last_stable_offset != partition.end:
                self.world.fail(f"readers of {tp} stop for ever at {partition.last_stable_offset}")

    def writer(self) -> Writer[Any]:
        """As Spark makes one in each process that needs one."""
        return ShelfWriter() if self.scenario.sink == "shelf" else kafka_writer(self.scenario)

    def take_advice(self, error: Exception) -> bool:
        """The operator does what an error says, if it says that this query needs him."""
        if not self.scenario.is_helped or _WAY_OUT not in str(error):
            return False
        self.scenario = replace(self.scenario, on_lost="repair")
        self.world.say("the operator says onLostTransactions = 'repair'")
        return True

    def _decided(self, ended: Ended) -> None:
        """Brokers write the markers of a transaction, at once or later."""
        if ended.commit:
            self._tell("promised", self.cluster.batches_of(ended))

        def write() -> None:
            for tp in ended.partitions:
                self.cluster.write_marker(ended, tp)
            self.cluster.coordinator.complete(ended)

        if self.scenario.lazy:
            self.world.later(1 + self.world.new_number() % 16, write)
        else:
            write()

    def _shown(self, batches: list[Arrived]) -> None:
        self._tell("visible", batches)

    def _tell(self, kind: str, batches: list[Arrived]) -> None:
        rows = tuple(rows_of(batches))
        self.world.history.add(Event(self.world.steps, kind, rows=rows))

    def open_log(self, query: str | None = None) -> EpochLog:
        """The log as the current process knows it."""
        memory = self.world.current.process.memory
        if "log" not in memory:
            journal = SimulatedJournal(self.world, self.store)
            memory["log"] = EpochLog(journal, self.scenario.fold_every, query=query)
        log: EpochLog = memory["log"]
        return log


def play(scenario: Scenario, incidents: Iterable[Incident], *, tell: bool = False) -> Played:
    """Play a history; `simulation.seams.installed` has to be in force."""
    tale: list[str] | None = [] if tell else None
    given = Incidents(incidents)
    it = Play(scenario, given, tale)
    make_present(it)
    use_highest_epoch(scenario.top)
    try:
        it.run()
    finally:
        it.world.close()
        leave()
    return Played(it.world.violation, it.world.steps, tuple(given.taken), tuple(tale or ()))
