"""The time that the source needs for the end offsets of many partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.measure import Figure, Goal, Wrong, expect, figure, in_turn, seconds, slope
from benchmarks.peer import KAFKA
from benchmarks.topics import OURS, THEIRS, Topics, open_topics

__all__ = ["offsets"]

_COUNTS = (10, 1_000, 10_000)
_MOST = 5_000  # in a topic that is made by one request
_LOOKS = 10
_GOAL = Goal(100.0)


@benchmark("kafka.offsets", peers=(KAFKA,), long=True)
def offsets(run: Run) -> Iterator[Figure]:
    """``latestOffset`` where there is nothing new, and a plan, of 10 to 10 000 partitions.

    On a broker of its own, which these many partitions would slow down for all the others.
    """
    growth: dict[str, dict[int, list[float]]] = {}
    with scratch(run.folder) as folder, open_topics(folder) as topics:
        for count in _COUNTS[: 2 if run.quick else 3]:
            run.told(f"making {count:,} partitions")
            names = _made(topics, count)
            yield from _looks(run, topics, names, count, growth)
    for what, times in growth.items():
        yield figure(f"{what}, for 1 000 partitions more", "ms", [1000 * slope(times)])


def _made(topics: Topics, count: int) -> str:
    """Topics with so many partitions together, a record in each, as ``subscribe`` has them."""
    full, rest = divmod(count, _MOST)
    sizes = [_MOST] * full + [rest] * bool(rest)
    names = {topics.make(size): size for size in sizes}
    topics.put_one(names)
    return ",".join(names)


def _looks(
    run: Run, topics: Topics, names: str, count: int, growth: dict[str, dict[int, list[float]]]
) -> Iterator[Figure]:
    """Of our reader alone, and in Spark; the former go into `growth` too."""
    _ours(topics, names, count)  # the broker is still making its files
    goals = {"later look": _GOAL} if count == _COUNTS[-1] else {}
    for what, times in _ours(topics, names, count).items():
        growth.setdefault(what, {})[count] = times
        yield figure(f"{what}, {count:,} partitions", "ms", times, goals.get(what))
    variants = {
        name: partial(_in_spark, run.spark(), topics, name, names) for name in (THEIRS, OURS)
    }
    told = run.told
    taken = in_turn(2 if run.quick else 3, variants, lambda what: told(f"{count:,}: {what}"))
    for name, times in taken.items():
        yield figure(f"{name}, in Spark, {count:,} partitions", "ms", times)


def _ours(topics: Topics, names: str, count: int) -> dict[str, list[float]]:
    """Return the times of a new reader's polls and plans, in milliseconds."""
    from krishiv_spark.sources.base import UNLIMITED
    from krishiv_spark.sources.kafka.reader import KafkaReader, KafkaSourceOptions

    given = {**topics.cluster, "subscribe": names, "startingOffsets": "earliest"}
    reader = KafkaReader(KafkaSourceOptions.parse(given, OURS), None, streaming=True)
    begin = time.perf_counter()
    start = reader.initial()
    end = reader.latest(start, UNLIMITED)
    first = [(time.perf_counter() - begin) * 1000]
    expect("partitions", sum(map(len, end.topics.values())), count)
    planned = [piece for share in reader.plan(start, end) for piece in share]
    expect("partitions that are planned", len(planned), count)
    return {
        "first look": first,
        "later look": _times(lambda: reader.latest(end, UNLIMITED)),
        "plan": _times(lambda: reader.plan(start, end)),
    }


def _times(work: Callable[[], object]) -> list[float]:
    return [seconds(work) * 1000 for _ in range(_LOOKS)]


def _in_spark(spark: Any, topics: Topics, name: str, names: str) -> float:
    """Median of what Spark reports for triggers that find nothing, in milliseconds."""
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "1")
    rows = topics.stream(spark, name, names, startingOffsets="latest")
    query = rows.writeStream.format("noop").start()
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
