"""The speed of rows through Kafka, in one large batch of a stream, beside Spark's connector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.bare import BARE_SOURCE, register_bare_source
from benchmarks.bench import Run, benchmark, scratch
from benchmarks.measure import Figure, Goal, each_once, expect
from benchmarks.peer import KAFKA
from benchmarks.streams import Load, compared, rate
from benchmarks.topics import (
    NUMBER,
    OURS,
    PARTITIONS,
    PLAIN,
    SINKS,
    THEIRS,
    columns,
    format_of,
)
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.kafka.reader import KafkaReader, KafkaSourceOptions

__all__ = ["copy", "fill", "read", "write"]

_READ = Goal(2.0, at_most=False)
_WRITE = Goal(1.5, at_most=False)
_COPY = Goal(2.0, at_most=False)


def _loads(run: Run) -> tuple[Load, Load]:
    if run.quick:
        return Load(100, 500_000), Load(1000, 100_000)
    return Load(100, 3_000_000), Load(1000, 400_000)


# --- what is measured


@benchmark("kafka.read", peers=(KAFKA,))
def read(run: Run) -> Iterator[Figure]:
    """Read a topic of 4 partitions into the no-op sink: all columns, and the values alone.

    A source in Python that has its rows in memory shows what PySpark takes for itself.
    """
    for load in _loads(run):
        with run.kafka().topic() as topic:
            fill(run, topic, load)
            yield from _read(run, load, topic)


def _read(run: Run, load: Load, topic: str) -> Iterator[Figure]:
    frames = {name: run.kafka().stream(run.spark(), name, topic) for name in (THEIRS, OURS)}
    frames[f"{THEIRS}, values"] = frames[THEIRS].select("value")
    frames[f"{OURS}, values"] = run.kafka().stream(run.spark(), OURS, topic, columns="value")
    _check_source(run, topic, load)
    variants = {
        name: partial(rate, run, name, frame.writeStream.format("noop"), load.rows)
        for name, frame in frames.items()
    }
    variants[BARE_SOURCE] = _bare(run, load, topic)
    values = (f"{OURS}, values", f"{THEIRS}, values")
    pairs = {(OURS, THEIRS): _READ, values: None, (BARE_SOURCE, THEIRS): None}
    yield from compared(run, load, variants, pairs)


def _bare(run: Run, load: Load, topic: str) -> Callable[[], float]:
    """Batches as our source yields them, from memory."""
    reader = KafkaReader(_options(run, topic), None, streaming=False)
    start = reader.initial()
    share = reader.plan(start, reader.latest(start, UNLIMITED))[0]
    rows = register_bare_source(run.spark(), next(reader.read(share)), load.rows, PARTITIONS)
    writer = run.spark().readStream.format(BARE_SOURCE).load().writeStream.format("noop")
    return partial(rate, run, BARE_SOURCE, writer, rows)


def _options(run: Run, topic: str) -> KafkaSourceOptions:
    return KafkaSourceOptions.parse({"subscribe": topic, **run.kafka().cluster}, OURS)


@benchmark("kafka.write", peers=(KAFKA,))
def write(run: Run) -> Iterator[Figure]:
    """Rows into 4 partitions: exactly once, at least once, and Spark's own sink (at least once).

    Each run has a topic of its own, which Spark's own source then reads. The no-op sink shows what
    making the rows costs alone.
    """
    for load in _loads(run):
        noop = _made(run, load).writeStream.format("noop")
        variants = {
            "noop": partial(rate, run, "noop", noop, load.rows),
            **{name: partial(_written, run, load, name) for name in SINKS},
        }
        pairs = {(OURS, THEIRS): _WRITE, (PLAIN, THEIRS): None, (OURS, PLAIN): None}
        yield from compared(run, load, variants, pairs)


@benchmark("kafka.copy", peers=(KAFKA,))
def copy(run: Run) -> Iterator[Figure]:
    """From topic to topic: ours exactly once, Spark's own connector at least once."""
    load = _loads(run)[0]
    with run.kafka().topic() as topic:
        fill(run, topic, load)
        variants = {name: partial(_copied, run, load, topic, name) for name in SINKS}
        pairs = {(OURS, THEIRS): _COPY, (PLAIN, THEIRS): None}
        yield from compared(run, load, variants, pairs)


# --- one run


def _written(run: Run, load: Load, sink: str) -> float:
    return _into_new_topic(run, load, sink, _made(run, load))


def _copied(run: Run, load: Load, topic: str, sink: str) -> float:
    rows = run.kafka().stream(run.spark(), format_of(sink), topic).select("key", "value")
    return _into_new_topic(run, load, sink, rows)


def _into_new_topic(run: Run, load: Load, sink: str, rows: Any) -> float:
    kafka = run.kafka()
    with kafka.topic() as topic, scratch(run.folder) as checkpoint:
        given = {**kafka.cluster, **SINKS[sink], "topic": topic}
        writer = rows.writeStream.format(format_of(sink)).options(**given)
        writer = writer.option("checkpointLocation", str(checkpoint))
        speed = rate(run, sink, writer, load.rows)
        kafka.verify(run.spark(), topic, load.rows)
    return speed


# --- rows


def fill(run: Run, topic: str, load: Load) -> None:
    """Fill a topic with numbered records."""
    run.told(f"{load}: filling a topic with {load.rows:,} rows")
    run.kafka().fill(run.spark(), topic, load.rows, load.size)


def _made(run: Run, load: Load) -> Any:
    """One batch of new rows, which cost the JVM little to make."""
    reader = run.spark().readStream.format("rate-micro-batch").option("rowsPerBatch", load.rows)
    return reader.option("numPartitions", 2).load().selectExpr(*columns("value", load.size))


def _check_source(run: Run, topic: str, load: Load) -> None:
    """Our source's rows against what is known of them."""
    given = {"subscribe": topic, **run.kafka().cluster}
    rows = run.spark().read.format(OURS).options(**given).load()
    row = rows.selectExpr("count(*)", f"sum({NUMBER})").first()
    expect("rows and sum of our source", tuple(row), each_once(load.rows))
