"""The cost of an epoch by its phases, for more tasks and more rows; apart from Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.bench import MEMORY, Run, benchmark, scratch
from benchmarks.check import consumed, memory_totals, table_totals, totals
from benchmarks.measure import Figure, expect, figure, tails
from benchmarks.topics import OURS
from benchmarks.writers import Life, SeparateKafkaLogs, SeparateLogs, keyed, numbered

__all__ = ["Size", "iceberg", "kafka", "memory", "parquet"]

_WARM_UP = 3
_MOST_EPOCHS, _FEWEST_EPOCHS = 100, 5
_MOST_TASKS = 1_600
_MOST_ROWS = 4_000_000

_Totals = tuple[int, int]


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count > 1)}"


@dataclass(frozen=True)
class Size:
    """An epoch.

    Attributes:
        tasks: How many.
        rows: Of all of them together.
    """

    tasks: int
    rows: int

    def __str__(self) -> str:
        return f"{_plural(self.tasks, 'task')}, {_plural(self.rows, 'row')}"

    @property
    def each(self) -> int:
        """Rows of each task."""
        return -(-self.rows // self.tasks)


def _sizes(run: Run) -> Iterator[Size]:
    """Tasks and rows of an epoch; each task has at least one row."""
    for tasks in (1, 8) if run.quick else (1, 2, 8, 64):
        for rows in (1, 1_000) if run.quick else (1, 1_000, 100_000):
            yield Size(tasks, max(rows, tasks))


@benchmark("phases.memory", "krishiv_spark.sinks.memory")
def memory(run: Run) -> Iterator[Figure]:
    """Milliseconds of an epoch of the memory sink, by phase, tasks and rows."""
    from krishiv_spark.sinks.memory import MemoryWriter

    for size in _sizes(run):
        name = f"phases of {size}"
        life = Life(MemoryWriter, {"queryName": name}, size.tasks, numbered(size.each))
        yield from _phases(run, "krishiv-memory", size, life, partial(memory_totals, name, "id"))


@benchmark("phases.parquet")
def parquet(run: Run) -> Iterator[Figure]:
    """Milliseconds of an epoch of the Parquet sink in memory, by phase, tasks and rows."""
    for size in _sizes(run):
        with scratch(MEMORY) as folder:
            table = folder / "table"
            life = Life(SeparateLogs, {"path": str(table)}, size.tasks, numbered(size.each))
            yield from _phases(run, "krishiv-parquet", size, life, partial(totals, table, "id"))


@benchmark("phases.iceberg", "krishiv_spark.sinks.iceberg.writer")
def iceberg(run: Run) -> Iterator[Figure]:
    """Milliseconds of an epoch of the Iceberg sink in memory, by phase, tasks and rows."""
    from krishiv_spark.sinks.iceberg.writer import IcebergWriter

    for size in _sizes(run):
        with scratch(MEMORY) as folder:
            given = {"path": "db.rows", "warehouse": str(folder)}
            batch = numbered(size.each)
            life = Life(IcebergWriter, given, size.tasks, batch, apart="catalog.role")
            found = partial(table_totals, folder, "id")
            yield from _phases(run, "krishiv-iceberg", size, life, found)


@benchmark("phases.kafka", long=True)
def kafka(run: Run) -> Iterator[Figure]:
    """Milliseconds of an epoch of the Kafka sink, exactly once, by phase, tasks and rows."""
    for size in _sizes(run):
        with scratch(MEMORY) as folder, run.kafka().topic() as topic:
            life = _kafka_life(run, folder, topic, size)
            found = partial(consumed, run.kafka(), topic)
            yield from _phases(run, OURS, size, life, found)


def _kafka_life(run: Run, folder: Path, topic: str, size: Size) -> Life:
    given = {**run.kafka().cluster, "topic": topic, "checkpointLocation": str(folder)}
    return Life(SeparateKafkaLogs, given, size.tasks, keyed(size.each))


def _phases(
    run: Run, sink: str, size: Size, life: Life, found: Callable[[], _Totals]
) -> Iterator[Figure]:
    """Epochs of one size, whose rows are checked; then what they cost."""
    run.told(f"{sink}, {size}")
    life.commits(_WARM_UP)
    life.spent.clear()
    life.commits(_epochs(run, size))
    expect(f"{sink}, {size}: rows and sum", found(), life.rows)
    spent = {phase: np.asarray(times) * 1000 for phase, times in life.spent.items()}
    yield from _figures(f"{sink}, {size}", spent)


def _epochs(run: Run, size: Size) -> int:
    most = _MOST_EPOCHS // 5 if run.quick else _MOST_EPOCHS
    few = min(_MOST_ROWS // (size.tasks * size.each), _MOST_TASKS // size.tasks)
    return min(most, max(_FEWEST_EPOCHS, few))


def _figures(name: str, spent: dict[str, np.ndarray]) -> Iterator[Figure]:
    whole = np.sum(list(spent.values()), axis=0)
    yield figure(name, "ms", whole.tolist())
    yield from tails(name, "ms", whole.tolist())
    for phase, times in spent.items():
        yield figure(f"{name}, {phase}", "ms", times.tolist())
