"""The time of a record from topic to topic, for a reader of committed records."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.measure import Figure, Wrong, expect, figure, in_turn
from benchmarks.peer import KAFKA
from benchmarks.topics import SINKS, Topics, format_of

__all__ = ["latency"]

_RATE = 1000
_SETTLED = 5  # batches
_PATIENCE_S = 120


@benchmark("kafka.latency", peers=(KAFKA,), long=True)
def latency(run: Run) -> Iterator[Figure]:
    """From a record's own time to a reader of committed records, 1000 rows/s, topic to topic.

    Producer and reader are kafka-python's. Records before the fifth batch of a query do not count.
    """
    seen: dict[str, dict[str, list[float]]] = {name: {} for name in SINKS}
    variants = {name: partial(_once, run, name, seen[name]) for name in SINKS}
    in_turn(1 if run.quick else 3, variants, run.told)
    for name in SINKS:
        for what, values in seen[name].items():
            yield figure(f"{what}, {name}", "ms", values)


def _once(run: Run, name: str, found: dict[str, list[float]]) -> float:
    """One query; the median latency, which goes into `found` with what else there is to tell."""
    kafka = run.kafka()
    with kafka.topic() as topic, kafka.topic() as target, scratch(run.folder) as checkpoint:
        rows = kafka.stream(run.spark(), format_of(name), topic).select("key", "value")
        given = {**kafka.cluster, **SINKS[name], "topic": target}
        given["checkpointLocation"] = str(checkpoint)
        query = rows.writeStream.format(format_of(name)).options(**given).start()
        try:
            late = _watched(kafka, topic, target, query, 8 if run.quick else 15)
            times = [p.durationMs["triggerExecution"] for p in query.recentProgress[_SETTLED:]]
        finally:
            query.stop()
    cuts = statistics.quantiles(late, n=100)
    told = {"p50": cuts[49], "p99": cuts[98], "max": max(late)}
    for what, value in {**told, "trigger": statistics.median(times)}.items():
        found.setdefault(what, []).append(value)
    return cuts[49]


def _watched(kafka: Topics, topic: str, target: str, query: Any, seconds: float) -> list[float]:
    """Return the time of each record that was sent after the query has settled, in milliseconds."""
    watcher = Watcher()
    with _reader(kafka, target, watcher):
        count, first = _produce(kafka, topic, query, seconds)
        until = time.monotonic() + _PATIENCE_S
        while len(watcher.taken) < count and time.monotonic() < until:
            time.sleep(0.1)
    expect("records that came", len(watcher.taken), count)
    return [took / 1e6 for born, took in watcher.taken if born >= first]


def _produce(kafka: Topics, topic: str, query: Any, seconds: float) -> tuple[int, int]:
    """Send a record every millisecond, until some time after the query has settled.

    Returns:
        How many there were, and when it had settled, nanoseconds.
    """
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    begin, count, first = time.monotonic(), 0, 0
    while not first or time.time_ns() < first + seconds * 1e9:
        count = _send(producer, topic, count, int((time.monotonic() - begin) * _RATE))
        if not first and len(query.recentProgress) > _SETTLED:
            first = time.time_ns()
        if time.monotonic() > begin + _PATIENCE_S + seconds:
            raise Wrong(f"the query has not settled: {query.exception()}")
    producer.flush()
    producer.close()
    return count, first


def _send(producer: Any, topic: str, begin: int, end: int) -> int:
    for number in range(begin, end):
        producer.send(topic, str(time.time_ns()).encode(), str(number).encode())
    time.sleep(0.001)
    return end


@dataclass
class Watcher:
    """Sees records come.

    Attributes:
        taken: When each was born, and how long it took, nanoseconds.
        over: Whether to stop.
    """

    taken: list[tuple[int, int]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def watch(self, consumer: Any) -> None:
        """Until it is over."""
        while not self.over.is_set():
            for records in consumer.poll(timeout_ms=50).values():
                now = time.time_ns()
                born = [int(record.value) for record in records]
                self.taken += [(each, now - each) for each in born]


@contextmanager
def _reader(kafka: Topics, target: str, watcher: Watcher) -> Iterator[None]:
    from kafka import KafkaConsumer, TopicPartition

    given = {"isolation_level": "read_committed", "enable_auto_commit": False}
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap, **given)
    consumer.assign([TopicPartition(target, n) for n in consumer.partitions_for_topic(target)])
    consumer.seek_to_beginning()
    thread = threading.Thread(target=watcher.watch, args=(consumer,))
    thread.start()
    try:
        yield
    finally:
        watcher.over.set()
        thread.join()
        consumer.close()
