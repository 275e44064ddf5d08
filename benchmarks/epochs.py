"""The cost of an epoch under Spark, for more tasks and for more rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.check import consumed, memory_totals, table_totals, totals
from benchmarks.measure import Figure, figure, slope, tails
from benchmarks.phases import Size
from benchmarks.topics import OURS, columns
from benchmarks.trigger import Sink

__all__ = ["iceberg", "kafka", "memory", "parquet", "wide"]

_TASKS, _ROWS = 2, 1_000
_EPOCHS = 12

_Totals = Callable[[], tuple[int, int]]


def _sizes(run: Run) -> Iterator[Size]:
    """Tasks and rows of an epoch: one of the two is as usual."""
    for tasks in (1, 8) if run.quick else (1, 2, 8, 64):
        yield Size(tasks, _ROWS)
    for rows in (1,) if run.quick else (1, 100_000):
        yield Size(_TASKS, rows)


@benchmark("epochs.memory", "krishiv_spark.sinks.memory")
def memory(run: Run) -> Iterator[Figure]:
    """Milliseconds of an epoch of the memory sink under Spark, by tasks and rows."""
    for size in _sizes(run):
        yield from _of_memory(run, size)


def _of_memory(run: Run, size: Size) -> Iterator[Figure]:
    name = f"epochs of {size}"
    yield from _epochs(
        run, "krishiv-memory", size, {"name": name}, partial(memory_totals, name, "value")
    )


@benchmark("epochs.parquet")
def parquet(run: Run) -> Iterator[Figure]:
    """Milliseconds of an epoch of the Parquet sink under Spark, by tasks and rows."""
    for size in _sizes(run):
        yield from _of_parquet(run, size)


def _of_parquet(run: Run, size: Size) -> Iterator[Figure]:
    with scratch(run.folder) as folder:
        found = partial(totals, folder, "value")
        yield from _epochs(run, "krishiv-parquet", size, {"path": str(folder)}, found)


@benchmark("epochs.iceberg", "krishiv_spark.sinks.iceberg.writer")
def iceberg(run: Run) -> Iterator[Figure]:
    """Milliseconds of an epoch of the Iceberg sink under Spark, by tasks and rows."""
    for size in _sizes(run):
        yield from _of_iceberg(run, size)


def _of_iceberg(run: Run, size: Size) -> Iterator[Figure]:
    with scratch(run.folder) as folder:
        given = {"path": "db.rows", "warehouse": str(folder)}
        found = partial(table_totals, folder, "value")
        yield from _epochs(run, "krishiv-iceberg", size, given, found)


@benchmark("epochs.kafka")
def kafka(run: Run) -> Iterator[Figure]:
    """Milliseconds of an epoch of the Kafka sink under Spark, exactly once, by tasks and rows."""
    for size in _sizes(run):
        yield from _of_kafka(run, size)


def _of_kafka(run: Run, size: Size) -> Iterator[Figure]:
    with run.kafka().topic() as topic:
        given = {**run.kafka().cluster, "topic": topic}
        yield from _epochs(run, OURS, size, given, partial(consumed, run.kafka(), topic))


_KINDS = {
    "krishiv-memory": _of_memory,
    "krishiv-parquet": _of_parquet,
    "krishiv-iceberg": _of_iceberg,
    OURS: _of_kafka,
}


@benchmark("epochs.wide", "krishiv_spark.sinks.iceberg.writer", long=True)
def wide(run: Run) -> Iterator[Figure]:
    """Milliseconds of an epoch of each sink under Spark, to 200 tasks."""
    tasks = (1, 50) if run.quick else (1, 50, 200)
    sizes = [Size(count, _ROWS) for count in tasks]
    for kind, epochs in _KINDS.items():
        grown: dict[int, list[float]] = {}
        for size in sizes:
            for line in epochs(run, size):
                if line.name == f"{kind}, {size}":
                    grown[size.tasks] = [line.median]
                yield line
        yield figure(f"{kind}, for 100 tasks more", "ms", [100 * slope(grown)])


def _epochs(
    run: Run, kind: str, size: Size, given: Mapping[str, str], found: _Totals
) -> Iterator[Figure]:
    name = f"{kind}, {size}"
    run.told(name)
    with scratch(run.folder) as folder:
        shape = columns("value", 100) if kind == OURS else ("*",)
        sink = Sink(kind, folder, _EPOCHS, given, shape, size.rows, size.tasks)
        sink.round(run.spark())
        sink.finish(run.spark())
        sink.expect_whole(*found())
    times = sink.of("triggerExecution")
    yield figure(name, "ms", times)
    yield from tails(name, "ms", times)
    yield figure(f"{name}, addBatch", "ms", sink.of("addBatch"))
    yield figure(f"{name}, Spark's own logs", "ms", sink.of("walCommit", "commitOffsets"))
