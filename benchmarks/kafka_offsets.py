"""How long the source looks where many partitions end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.measure import Figure, Goal, Wrong, expect, figure, in_turn, seconds
from benchmarks.peer import KAFKA
from benchmarks.topics import OURS, THEIRS, Topics, open_topics

__all__ = ["offsets"]

_COUNTS = (10, 1_000, 10_000)
_MOST = 5_000  # in a topic that is made by one request
_LOOKS = 10
_GOAL = Goal(100.0)


@benchmark("kafka.offsets", peers=(KAFKA,))
def offsets(run: Run) -> Iterator[Figure]:
    """``latestOffset`` where there is nothing new, of 10, 1000 and 10 000 partitions.

    On a broker of its own, which these many partitions would slow down for all the others.
    """
    with scratch(run.folder) as folder, open_topics(folder) as topics:
        for count in _COUNTS[: 2 if run.quick else 3]:
            run.told(f"making {count:,} partitions")
            names = _made(topics, count)
            yield from _looks(run, topics, names, count)


def _made(topics: Topics, count: int) -> str:
    """Topics with so many partitions together, as the option ``subscribe`` has them."""
    full, rest = divmod(count, _MOST)
    sizes = [_MOST] * full + [rest] * bool(rest)
    return ",".join(topics.make(size) for size in sizes)


def _looks(run: Run, topics: Topics, names: str, count: int) -> Iterator[Figure]:
    _ours(topics, names, count)  # the broker is still making its files
    first, later = _ours(topics, names, count)
    goal = _GOAL if count == _COUNTS[-1] else None
    yield figure(f"first look, {count:,} partitions", "ms", first)
    yield figure(f"later look, {count:,} partitions", "ms", later, goal)
    variants = {
        name: partial(_in_spark, run.spark(), topics, name, names) for name in (THEIRS, OURS)
    }
    told = run.told
    taken = in_turn(2 if run.quick else 3, variants, lambda what: told(f"{count:,}: {what}"))
    for name, times in taken.items():
        yield figure(f"{name}, in Spark, {count:,} partitions", "ms", times)


def _ours(topics: Topics, names: str, count: int) -> tuple[list[float], list[float]]:
    """A new reader's looks, in milliseconds: the first one, and those behind it."""
    from krishiv_spark.sources.base import UNLIMITED
    from krishiv_spark.sources.kafka import KafkaReader, KafkaSourceOptions

    given = {**topics.cluster, "subscribe": names, "startingOffsets": "earliest"}
    reader = KafkaReader(KafkaSourceOptions.parse(given, OURS), None, streaming=True)
    begin = time.perf_counter()
    end = reader.latest(reader.initial(), UNLIMITED)
    first = [(time.perf_counter() - begin) * 1000]
    expect("partitions", sum(map(len, end.topics.values())), count)
    return first, [seconds(lambda: reader.latest(end, UNLIMITED)) * 1000 for _ in range(_LOOKS)]


def _in_spark(spark: Any, topics: Topics, name: str, names: str) -> float:
    """Median of what Spark reports for triggers that find nothing, in milliseconds."""
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "1")
    query = topics.stream(spark, name, names).writeStream.format("noop").start()
    try:
        return figure(name, "ms", _reported(query)).median
    finally:
        query.stop()
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")


def _reported(query: Any) -> list[float]:
    for _ in range(1200):
        found = [p.durationMs.get("latestOffset") for p in query.recentProgress]
        if len(found) > _LOOKS:
            return [float(taken) for taken in found[1:]]
        time.sleep(0.1)
    raise Wrong(f"{query.name}: no triggers in two minutes: {query.exception()}")
