"""The growth of a stream with the partitions and topics of its rows, from end to end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.check import consumed
from benchmarks.measure import Figure, each_once, expect, figure, in_turn, slope
from benchmarks.peer import KAFKA
from benchmarks.topics import (
    MOST_AT_ONCE,
    NUMBER,
    OURS,
    PARTITIONS,
    THEIRS,
    Topics,
    columns,
    open_topics,
)

__all__ = ["partitions", "topics"]

_ROWS, _BATCHES = 200_000, 2
_ROUNDS = 3


@dataclass(frozen=True)
class _World:
    """Topics in which the same rows lie, evenly.

    Attributes:
        topics: Their names.
        each: Partitions of each of them.
        rows: Of all of them together.
    """

    topics: Sequence[str]
    each: int
    rows: int

    @property
    def partitions(self) -> int:
        """Return the number of partitions."""
        return self.each * len(self.topics)

    def where(self, number: str) -> tuple[str, str]:
        """Expressions for the topic and the partition of a row, by its number."""
        listed = ", ".join(f"'{name}'" for name in self.topics)
        at = f"cast({number} DIV {self.each} % {len(self.topics)} AS int)"
        return (
            f"element_at(array({listed}), {at} + 1) AS topic",
            f"cast({number} % {self.each} AS int) AS partition",
        )

    def fill(self, run: Run, cluster: Mapping[str, str]) -> None:
        """Put the rows there, by Java's producer."""
        rows = run.spark().range(0, self.rows, 1, 2)
        rows = rows.selectExpr(*columns("id", 100), *self.where("id"))
        rows.write.format(THEIRS).options(**cluster).mode("append").save()


@benchmark("kafka.partitions", peers=(KAFKA,), long=True)
def partitions(run: Run) -> Iterator[Figure]:
    """Batches over 10 to 10 000 partitions: read, and copied into as many; rows stay the same.

    Each batch has rows of every partition. On a broker of its own, with an open file for each
    partition: 4 000 at most where a process may not open so many. Spark's own source has a task for
    each partition, and takes minutes for a batch of 1 000: beyond 500 it is left out.
    """
    most = 10_000 if getrlimit(RLIMIT_NOFILE)[1] >= 2**16 else 4_000
    sizes = (10, 1_000) if run.quick else (10, 1_000, most)
    shapes = {size: (-(-size // MOST_AT_ONCE), min(size, MOST_AT_ONCE)) for size in sizes}
    yield from _grown(run, shapes, "partitions", 1_000)


@benchmark("kafka.topics", peers=(KAFKA,), long=True)
def topics(run: Run) -> Iterator[Figure]:
    """Batches over 1, 8 and 64 topics of 4 partitions: read, and copied into as many topics."""
    sizes = (1, 8) if run.quick else (1, 8, 64)
    yield from _grown(run, {size: (size, PARTITIONS) for size in sizes}, "topics", 10)


def _grown(
    run: Run, shapes: Mapping[int, tuple[int, int]], unit: str, more: int
) -> Iterator[Figure]:
    """Yield the times of batches for each size, and their growth."""
    grown: dict[str, dict[int, list[float]]] = {}
    with scratch(run.folder) as folder, open_topics(folder) as broker:
        for size, (count, each) in shapes.items():
            run.told(f"making {size:,} {unit}")
            with _world(broker, count, each) as world, _world(broker, count, each) as target:
                world.fill(run, broker.cluster)
                for name, times in _batches(run, broker, folder, world, target).items():
                    grown.setdefault(name, {})[size] = times
                    yield figure(f"{name}, {size:,} {unit}", "ms", times)
    for name, times_of in grown.items():
        if len(times_of) > 1:
            growth = [more * slope(times_of)]
            yield figure(f"{name}, for {more:,} {unit} more", "ms", growth)


@contextmanager
def _world(broker: Topics, count: int, each: int) -> Iterator[_World]:
    with broker.several(count, each) as names:
        yield _World(names, each, _ROWS)


def _batches(
    run: Run, broker: Topics, folder: Path, world: _World, target: _World
) -> dict[str, list[float]]:
    """By what it did, the milliseconds of each batch that had rows."""
    times: dict[str, list[float]] = {}

    def once(name: str, query: Any) -> float:
        found = _drained(folder, name, query, world.rows)
        times.setdefault(name, []).extend(found)
        return sum(found)

    kinds = (OURS,) if world.partitions > 500 else (THEIRS, OURS)
    variants = {
        f"{kind}, read": partial(once, f"{kind}, read", _reading(run, broker, kind, world))
        for kind in kinds
    }
    in_turn(1, variants, lambda what: run.told(f"warming up: {what}"))
    times.clear()
    in_turn(2 if run.quick else _ROUNDS, variants, run.told)
    name = f"{OURS}, copied"
    run.told(name)
    rows = _stream(run, broker, OURS, world).selectExpr("key", "value", *target.where(NUMBER))
    once(name, rows.writeStream.format(OURS).options(**broker.cluster))
    found = [consumed(broker, topic) for topic in target.topics]
    expect(f"{name}: rows and sum", tuple(map(sum, zip(*found, strict=True))), each_once(_ROWS))
    return times


def _stream(run: Run, broker: Topics, kind: str, world: _World) -> Any:
    limit = {"maxOffsetsPerTrigger": str(world.rows // _BATCHES)}
    return broker.stream(run.spark(), kind, ",".join(world.topics), **limit)


def _reading(run: Run, broker: Topics, kind: str, world: _World) -> Any:
    return _stream(run, broker, kind, world).writeStream.format("noop")


def _drained(folder: Path, name: str, writer: Any, rows: int) -> list[float]:
    with scratch(folder) as checkpoint:
        writer = writer.option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    batches = [p for p in query.recentProgress if p.numInputRows]
    expect(f"{name}: rows in Spark's progress", sum(p.numInputRows for p in batches), rows)
    return [float(p.durationMs["triggerExecution"]) for p in batches]
