"""The growth of the processes beside the driver: planner and commit process, and readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.apart import apart, resident_mib
from benchmarks.bench import MEMORY, Run, benchmark, scratch
from benchmarks.check import consumed, table_totals, totals
from benchmarks.measure import Figure, Goal, expect, figure, slope
from benchmarks.topics import OURS as KAFKA
from benchmarks.writers import Life, SeparateKafkaLogs, SeparateLogs, keyed, numbered

__all__ = ["LOOKS", "Seen", "figures", "how_many", "iceberg", "kafka", "parquet"]

_FLAT = Goal(2.0)
"""MiB for 10 000 epochs more. Pydantic remembers the last 16 384 short strings that it has parsed
from JSON, 1.2 MiB, which fills meanwhile; 200 bytes that leak in each epoch are as much."""

LOOKS = 20
"""The number of looks at a process."""

_SETTLED = 0.2
"""The part of the epochs after which everything has been imported and caches are full."""

Seen = dict[int, float]
"""By epoch, MiB."""


def figures(name: str, seen: Seen, goal: Goal | None = _FLAT) -> Iterator[Figure]:
    """Yield a process's memory after it settled and at the end, and its growth in between."""
    first, *_, last = settled = [epoch for epoch in seen if epoch >= _SETTLED * max(seen)]
    yield figure(f"{name}, memory at epoch {first:,}", "MiB", [seen[first]], smaller=True)
    yield figure(f"{name}, memory at epoch {last:,}", "MiB", [seen[last]], smaller=True)
    growth = 10_000 * slope({epoch: [seen[epoch]] for epoch in settled})
    yield figure(f"{name}, for 10 000 epochs more", "MiB", [growth], goal, smaller=True)


def how_many(run: Run) -> int:
    """Epochs."""
    return 1_000 if run.quick else 10_000


# --- sinks


@dataclass(frozen=True)
class _Sink:
    """A sink that lives in a process of its own.

    Attributes:
        kind: The writer's class.
        options: As the user would give them.
        epochs: How many.
        keyed: Whether its rows are keys and values.
        apart: See `Life`.
    """

    kind: type[Any]
    options: Mapping[str, str]
    epochs: int
    keyed: bool = False
    apart: str | None = None

    def life(self) -> tuple[Seen, tuple[int, int]]:
        """Memory meanwhile, and the rows and their sum that must be there."""
        batch = keyed(1) if self.keyed else numbered(1)
        life = Life(self.kind, self.options, batch=batch, apart=self.apart)
        seen: Seen = {}
        for _ in range(LOOKS):
            life.commits(self.epochs // LOOKS)
            life.spent.clear()
            seen[life.epoch] = resident_mib()
        return seen, life.rows


def _sink(run: Run, name: str, sink: _Sink, found: Callable[[], object]) -> Iterator[Figure]:
    run.told(f"{sink.epochs:,} epochs of {name}")
    seen, rows = apart(sink.life)
    expect(f"{name}: rows and sum", found(), rows)
    yield from figures(name, seen)


@benchmark("resident.parquet", long=True)
def parquet(run: Run) -> Iterator[Figure]:
    """Memory of planner and commit process of the Parquet sink together, over 10 000 epochs."""
    with scratch(MEMORY) as folder:
        table = folder / "table"
        given = {"path": str(table), "checkpointLocation": f"{folder}/checkpoint"}
        sink = _Sink(SeparateLogs, given, how_many(run))
        yield from _sink(run, "krishiv-parquet", sink, partial(totals, table, "id"))


@benchmark("resident.iceberg", "krishiv_spark.sinks.iceberg.writer", long=True)
def iceberg(run: Run) -> Iterator[Figure]:
    """Memory of planner and commit process of the Iceberg sink together, over 10 000 epochs."""
    from krishiv_spark.sinks.iceberg.writer import IcebergWriter

    with scratch(MEMORY) as folder:
        given = {"path": "db.rows", "warehouse": str(folder)}
        given |= {"keepSnapshots": "10", "keepMetadataFiles": "10"}
        sink = _Sink(IcebergWriter, given, how_many(run), apart="catalog.role")
        yield from _sink(run, "krishiv-iceberg", sink, partial(table_totals, folder, "id"))


@benchmark("resident.kafka", long=True)
def kafka(run: Run) -> Iterator[Figure]:
    """Memory of planner and commit process of the Kafka sink together, over 10 000 epochs."""
    with scratch(MEMORY) as folder, run.kafka().topic() as topic:
        given = {**run.kafka().cluster, "topic": topic, "checkpointLocation": str(folder)}
        sink = _Sink(SeparateKafkaLogs, given, how_many(run), keyed=True)
        yield from _sink(run, KAFKA, sink, partial(consumed, run.kafka(), topic))
