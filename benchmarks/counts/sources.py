"""The cost of a trigger of each source, without Spark: its position, its plan, and its rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.counts.case import Given, case
from benchmarks.counts.count import Count, Seen, least, per
from benchmarks.counts.effort import arrow, effort
from benchmarks.counts.watch import calls, calls_beside_broker, outside, requests
from benchmarks.measure import each_once, expect
from benchmarks.writers import Life
from krishiv_spark.lifecycle.read import RowSchema
from krishiv_spark.sources.base import UNLIMITED, StreamReader

__all__ = ["iceberg", "kafka", "memory", "parquet"]

_PIECES, _ROWS = 10, 10_000
"""Number of pushes before the first trigger, and of rows in each."""

_TRIGGERS = 5

_Counter = Callable[[Seen], AbstractContextManager[None]]
_Reader = StreamReader[Any, Any]


@dataclass(frozen=True)
class Subject:
    """A source, and somebody who brings rows to it.

    Attributes:
        made: Makes a reader, as each query has one.
        bring: Brings the rows of a number, which have the ids from `_ROWS` times that on.
        column: Where their ids are.
        counters: What is counted of its triggers, besides calls.
        alone: Whether nobody else decides how often something has to be done again.
    """

    made: Callable[[], _Reader]
    bring: Callable[[int], object]
    column: str = "id"
    counters: Sequence[_Counter] = (outside,)
    alone: bool = True


def _rows(number: int) -> pa.Table:
    ids = pa.array(range(number * _ROWS, (number + 1) * _ROWS), pa.int64())
    return pa.table(
        {"id": ids, "name": pc.binary_join_element_wise("name", ids.cast("string"), " ")}
    )


@case("source.parquet")
def parquet(given: Given) -> Iterator[Count]:
    """Triggers of the Parquet source over a folder that gets file after file."""
    from krishiv_spark.sources.parquet.reader import ParquetReader, ParquetSourceOptions

    folder = given.folder / "in"
    folder.mkdir()
    options = ParquetSourceOptions.parse({"path": str(folder)}, "krishiv-parquet")
    schema = _rows(0).schema

    def bring(number: int) -> None:
        pq.write_table(_rows(number), folder / f".{number}")
        (folder / f".{number}").rename(folder / f"{number:03}.parquet")

    yield from _counted(Subject(lambda: ParquetReader(options, schema, streaming=True), bring))


@case("source.memory")
def memory(given: Given) -> Iterator[Count]:
    """Triggers of the memory source, into which rows are pushed."""
    from krishiv_spark.sources.memory.handle import memory_source
    from krishiv_spark.sources.memory.reader import MemoryReader, MemorySourceOptions

    del given
    options = MemorySourceOptions.parse({"path": "counts"}, "krishiv-memory")
    pushed = memory_source("counts", _rows(0).schema)

    def made() -> _Reader:
        return MemoryReader(options, _rows(0).schema, streaming=True)

    yield from _counted(Subject(made, lambda number: pushed.add(_rows(number))))


@case("source.iceberg")
def iceberg(given: Given) -> Iterator[Count]:
    """Triggers of the Iceberg source over a table that gets append after append."""
    from krishiv_spark.sinks.iceberg.writer import IcebergWriter
    from krishiv_spark.sources.iceberg.reader import IcebergReader, IcebergSourceOptions

    named = {"path": "db.rows", "warehouse": str(given.folder)}
    options = IcebergSourceOptions.parse(named, "krishiv-iceberg")
    life = Life(IcebergWriter, named)

    def bring(number: int) -> None:
        (life.batch,) = _rows(number).combine_chunks().to_batches()
        life.commit()

    def made() -> _Reader:
        schema = IcebergReader(options, None, streaming=True).infer_schema()
        return IcebergReader(options, schema, streaming=True)

    yield from _counted(Subject(made, bring))


@case("source.kafka", "kafka")
def kafka(given: Given) -> Iterator[Count]:
    """Triggers of the Kafka source over a topic of four partitions.

    It looks for new topics and at high watermarks for a share of its time, so not in each trigger;
    here it does, or the machine would decide about that.
    """
    from kafka import KafkaProducer

    from krishiv_spark.sources.kafka import planner, subscription
    from krishiv_spark.sources.kafka.reader import KafkaReader, KafkaSourceOptions

    with ExitStack() as stack:
        topic = stack.enter_context(given.topics.topic())
        named = {**given.topics.cluster, "subscribe": topic, "startingOffsets": "earliest"}
        options = KafkaSourceOptions.parse(named, "krishiv-kafka")
        producer = KafkaProducer(bootstrap_servers=given.topics.bootstrap, linger_ms=100)
        stack.callback(producer.close)
        for module in (planner, subscription):
            stack.enter_context(mock.patch.object(module, "_SHARE_OF_TIME", 0))

        def bring(number: int) -> None:
            for row in range(number * _ROWS, (number + 1) * _ROWS):
                producer.send(topic, f"{row:010}".encode(), partition=row % 4)
            producer.flush(60)

        def made() -> _Reader:
            return KafkaReader(options, None, streaming=True)

        yield from _counted(Subject(made, bring, "value", (_at_brokers,), alone=False))


@contextmanager
def _at_brokers(seen: Seen) -> Iterator[None]:
    """Count the requests except Fetch, whose number of rows depends on the broker's timing."""
    every: Seen = Seen()
    with requests(every):
        yield
    seen.update({key: number for key, number in every.items() if key[0] != "Fetch"})


# --- what all sources have in common


def _counted(subject: Subject) -> Iterator[Count]:
    """Count the first trigger, triggers with and without new data, and the rows."""
    for number in range(_PIECES):
        subject.bring(number)
    _drained(subject, subject.made())  # imports, and finds out what a process does once
    first: list[Seen] = []
    for _ in range(1 if subject.alone else _TRIGGERS):
        reader = subject.made()
        with _all(subject, first):
            end, parts = _trigger(reader, reader.initial())
    yield from _of_each(subject, first, "first trigger")
    yield from _of_rows(subject, reader, parts)
    yield from _later(subject, reader, end)


def _later(subject: Subject, reader: _Reader, end: Any) -> Iterator[Count]:
    busy: list[Seen] = []
    for number in range(_TRIGGERS):
        subject.bring(_PIECES + number)
        with _all(subject, busy):
            end, parts = _trigger(reader, end)
        expect("parts of a trigger that has rows", bool(parts), wanted=True)
    yield from _of_each(subject, busy, "trigger with rows")
    idle: list[Seen] = []
    for _ in range(_TRIGGERS):
        with _all(subject, idle):
            expect("the end of a trigger without rows", reader.latest(end, UNLIMITED), end)
    yield from _of_each(subject, idle, "trigger without rows")
    rows, total = _drained(subject, subject.made())
    expect("rows and sum of ids", (rows, total), each_once((_PIECES + _TRIGGERS) * _ROWS))


def _of_each(subject: Subject, triggers: Sequence[Seen], what: str) -> Iterator[Count]:
    """Of triggers of one kind: what they take in the middle, or at least where a broker answers."""
    if subject.alone:
        yield from per(sum(triggers, Seen()), len(triggers), what)
    else:
        yield from per(least(triggers), 1, what)


@contextmanager
def _all(subject: Subject, times: list[Seen]) -> Iterator[None]:
    """Count calls first, since the other counters' own calls are among them, always the same."""
    seen: Seen = Seen()
    times.append(seen)
    with ExitStack() as stack:
        for counter in (*subject.counters, calls if subject.alone else calls_beside_broker):
            stack.enter_context(counter(seen))
        yield


def _trigger(reader: _Reader, start: Any) -> tuple[Any, Sequence[Any]]:
    """Return the calls of Spark's driver and the values for tasks; offsets go by Spark's log."""
    end = reader.offset_type.from_json(reader.latest(start, UNLIMITED).to_json())
    return end, [pickle.dumps((reader, part)) for part in reader.plan(start, end)]


def _of_rows(subject: Subject, reader: _Reader, parts: Sequence[bytes]) -> Iterator[Count]:
    """Count the reading of the first trigger's plan, by row."""
    count = _PIECES * _ROWS
    seen: Seen = Seen()
    with arrow(seen):
        rows, total = _read(subject, reader, parts)
    expect("rows and sum of ids", (rows, total), each_once(count))
    times = [seen]
    with _all(subject, times):
        _read(subject, reader, parts)
    yield from per(_by_row(sum(times, Seen()), count), 1, "reading")
    work = lambda: _read(subject, reader, parts)  # noqa: E731
    yield effort(f"processor time of reading {count:,} rows", work)


def _by_row(seen: Seen, rows: int) -> Seen:
    """Bytes by row; what is not of rows stays of all of them."""
    return Seen(
        {
            (f"{name} a row" if unit == "bytes" else name, unit): number / rows  # type: ignore[dict-item]
            if unit == "bytes"
            else number
            for (name, unit), number in seen.items()
        }
    )


def _read(subject: Subject, reader: _Reader, parts: Sequence[bytes]) -> tuple[int, int]:
    """Return the number of rows and the sum of their ids, as Spark's tasks read them."""
    columns = reader.schema if reader.schema is not None else reader.infer_schema()
    shape = RowSchema(columns, columns, reader.options)
    rows = total = 0
    for part in parts:
        task, partition = pickle.loads(part)
        for batch in task.read(partition):
            ids = shape.convert(batch, None).column(subject.column)
            rows, total = rows + len(ids), total + _sum(ids)
    return rows, total


def _sum(ids: pa.Array) -> int:
    numbers = ids if pa.types.is_integer(ids.type) else ids.cast(pa.string()).cast(pa.int64())
    return int(pc.sum(numbers).as_py())


def _drained(subject: Subject, reader: _Reader) -> tuple[int, int]:
    _, parts = _trigger(reader, reader.initial())
    return _read(subject, reader, parts)
