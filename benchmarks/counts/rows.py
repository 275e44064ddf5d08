"""The cost of many rows on their way into each sink, and in the codec of Kafka's records."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import numpy as np
import pyarrow as pa

from benchmarks.check import consumed, memory_totals, table_totals, totals
from benchmarks.counts.case import Given, case
from benchmarks.counts.count import Count, Seen, per
from benchmarks.counts.effort import arrow, effort, peak
from benchmarks.counts.watch import calls, transfers
from benchmarks.measure import expect
from benchmarks.writers import Life, SeparateKafkaLogs, SeparateLogs, keyed, numbered

__all__ = ["codec", "iceberg", "kafka", "memory", "parquet"]

_BATCH, _BATCHES = 10_000, 20
"""As Spark hands them over, by default, and how many to a task."""

_ROWS = _BATCH * _BATCHES


@case("rows.memory")
def memory(given: Given) -> Iterator[Count]:
    """200 000 rows into the memory sink."""
    from krishiv_spark.sinks.memory import MemoryWriter

    del given
    yield from _written(
        Life(MemoryWriter, {"queryName": "rows"}, batch=numbered(_BATCH), times=_BATCHES),
        partial(memory_totals, "rows", "id"),
    )


@case("rows.parquet")
def parquet(given: Given) -> Iterator[Count]:
    """200 000 rows into the Parquet sink."""
    options = {"path": str(given.folder)}
    life = Life(SeparateLogs, options, batch=numbered(_BATCH), times=_BATCHES)
    yield from _written(life, partial(totals, given.folder, "id"))


@case("rows.iceberg")
def iceberg(given: Given) -> Iterator[Count]:
    """200 000 rows into the Iceberg sink."""
    from krishiv_spark.sinks.iceberg.writer import IcebergWriter

    options = {"path": "db.rows", "warehouse": str(given.folder)}
    life = Life(IcebergWriter, options, batch=numbered(_BATCH), times=_BATCHES)
    yield from _written(life, partial(table_totals, given.folder, "id"))


@case("rows.kafka", "kafka")
def kafka(given: Given) -> Iterator[Count]:
    """50 000 rows into the Kafka sink, exactly once.

    How often it waits for the broker is nobody's to say, so neither calls nor reads are counted.
    """
    with given.topics.topic() as topic:
        options = {**given.topics.cluster, "topic": topic, "checkpointLocation": str(given.folder)}
        life = Life(SeparateKafkaLogs, options, batch=keyed(_BATCH), times=_BATCHES // 4)
        yield from _written(life, partial(consumed, given.topics, topic), alone=False)


def _written(
    life: Life, found: Callable[[], tuple[int, int]], *, alone: bool = True
) -> Iterator[Count]:
    life.commits(2)
    seen: Seen = Seen()
    with ExitStack() as stack:
        for counter in (arrow, transfers, calls) if alone else (arrow,):
            stack.enter_context(counter(seen))
        life.commit()
    with peak(seen, "bytes held" if alone else "bytes held beside a broker"):
        life.commit()
    yield from _by_row(seen, life.times)
    yield effort(f"processor time of {life.times * _BATCH:,} rows", life.commit)
    expect("rows and sum of ids", found(), life.rows)


def _by_row(seen: Seen, batches: int = _BATCHES, what: str = "") -> Iterator[Count]:
    """Bytes by row; calls and allocations by 10 000 rows."""
    for unit in ("bytes", "bytes held", "bytes held beside a broker", "calls", "system calls"):
        some = Seen({key: number for key, number in seen.items() if key[1] == unit})
        is_of_rows = unit.startswith("bytes")
        times, by = (batches * _BATCH, "a row") if is_of_rows else (batches, "10,000 rows")
        yield from per(some, times, f"{what}{by}")


@case("rows.codec")
def codec(given: Given) -> Iterator[Count]:
    """Kafka's records from 200 000 rows, and back, without a broker."""
    del given
    encoded, columns = _encoded(), keyed(_BATCH)
    decoded = _decoded(encoded)
    expect("rows", decoded, _ROWS)
    for name, work in {
        "encoding": lambda: _encoded(columns),
        "decoding": lambda: _decoded(encoded),
    }.items():
        seen: Seen = Seen()
        with arrow(seen), calls(seen):
            work()
        with peak(seen):
            work()
        yield from _by_row(seen, what=f"{name}, ")
        yield effort(f"processor time of {name} {_ROWS:,} rows", work)


def _encoded(columns: pa.RecordBatch | None = None) -> bytes:
    """Return a partition of so many rows, as a broker stores it."""
    from krishiv_spark.kafka.records import Accumulator, RecordColumns

    rows = columns if columns is not None else keyed(_BATCH)
    taken = RecordColumns(rows.column("value"), rows.column("key"), None, 7)
    accumulator, partitions = Accumulator(), np.zeros(_BATCH, np.int32)
    batches = []
    for _ in range(_BATCHES):
        batches += list(accumulator.add(taken, partitions))
    parts, offset = [], 0
    for batch in [*batches, *accumulator.flush()]:
        # A broker puts the offset of the first record in its place; the checksum is without it.
        parts += [struct.pack(">q", offset), memoryview(batch.to_bytes())[8:]]
        offset += batch.count
    return b"".join(parts)


def _decoded(data: bytes) -> int:
    """Return the number of decoded rows."""
    from krishiv_spark.kafka.records import RecordRange, decode

    found = decode(data, RecordRange("counts", 0, 0, _ROWS))
    return sum(batch.num_rows for batch in found.batches)
