"""How fast rows of an Iceberg table are read, beside Iceberg's own connector.

That one exists for PySpark 4.1: ``./run bench --spark 4.1 --only iceberg``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.bare import BARE_SOURCE, register_bare_source
from benchmarks.bench import Run, benchmark, scratch
from benchmarks.iceberg_tables import OURS, THEIRS, Warehouse, names, warehouse
from benchmarks.measure import Figure, each_once, expect, figure, in_turn, ratios, seconds
from benchmarks.peer import ICEBERG

__all__ = ["read"]

_TABLE = "moments"
_APPENDS = 8
_ROUNDS = 3
_BATCH = 16_384  # rows, as our source yields them


@benchmark("iceberg.read", "pyiceberg", peers=(ICEBERG,), alone=True)
def read(run: Run) -> Iterator[Figure]:
    """A table of 8 appends into the no-op sink: as a batch, and as a stream from the oldest.

    A source in Python that has its rows in memory shows what PySpark takes for itself.
    """
    rows = 400_000 if run.quick else 4_000_000
    with warehouse(run, "krishiv_read") as place:
        _fill(place, rows)
        readers = _readers(run, place)
        for name, reader in readers.items():
            found = reader().selectExpr("count(*)", "sum(id)").first()
            expect(f"{name}, rows and sum of ids", tuple(found), each_once(rows))
        scans = {name: partial(_scanned, reader, rows) for name, reader in readers.items()}
        yield from _compared(run, "full scan", scans)
        streams = {name: partial(_streamed, run, place, name, rows) for name in readers}
        streams[BARE_SOURCE] = _bare(run, place, rows)
        yield from _compared(run, "stream", streams)


def _compared(run: Run, what: str, variants: Mapping[str, Callable[[], float]]) -> Iterator[Figure]:
    in_turn(1, variants, lambda text: run.told(f"{what}, warming up: {text}"))
    rounds = 2 if run.quick else _ROUNDS
    rates = in_turn(rounds, variants, lambda text: run.told(f"{what}, {text}"))
    for name, found in rates.items():
        yield figure(f"{name}, {what}", "rows/s", found)
    for name in (OURS, BARE_SOURCE):
        if name in rates and THEIRS in rates:
            speed = ratios(rates[name], rates[THEIRS])
            yield figure(f"{name} / {THEIRS}, {what}", "x", speed)


# --- the table


def _fill(place: Warehouse, rows: int) -> None:
    place.make(_TABLE, _rows(0, 0).schema)
    each = rows // _APPENDS
    for number in range(_APPENDS):
        place.add(_TABLE, _rows(number * each, (number + 1) * each))


def _rows(first: int, end: int) -> pa.Table:
    ids = pa.array(range(first, end), pa.int64())
    texts = [
        f"a customer and where they live, number {n * 7919 % 1000003}" for n in range(first, end)
    ]
    return pa.table(
        {
            "id": ids,
            "account": pa.array([n * 7919 % 1000003 for n in range(first, end)], pa.int64()),
            "product": pa.array([n % 997 for n in range(first, end)], pa.int64()),
            "amount": pa.array([n * 31 for n in range(first, end)], pa.int64()),
            "price": pa.array([n / 7 for n in range(first, end)], pa.float64()),
            "moment": pa.array(
                [1357000000000000 + n * 1000 for n in range(first, end)], pa.timestamp("us", "UTC")
            ),
            "customer": pa.array(texts, pa.string()),
        }
    )


# --- readers


def _readers(run: Run, place: Warehouse) -> dict[str, Callable[[], Any]]:
    spark = run.spark()
    readers: dict[str, Callable[[], Any]] = {
        OURS: lambda: spark.read.format(OURS).options(**place.options).load(f"db.{_TABLE}"),
        THEIRS: lambda: spark.read.format(THEIRS).load(f"{place.name}.db.{_TABLE}"),
    }
    return {name: readers[name] for name in names(run)}


def _scanned(reader: Callable[[], Any], rows: int) -> float:
    return rows / seconds(lambda: reader().write.format("noop").mode("overwrite").save())


def _streamed(run: Run, place: Warehouse, name: str, rows: int) -> float:
    source = run.spark().readStream.format(name)
    if name == OURS:
        return _drained(place, name, source.options(**place.options).load(f"db.{_TABLE}"), rows)
    return _drained(place, name, source.load(f"{place.name}.db.{_TABLE}"), rows)


def _bare(run: Run, place: Warehouse, rows: int) -> Callable[[], float]:
    batch = _rows(0, rows // _APPENDS).combine_chunks().to_batches()[0]
    count = register_bare_source(run.spark(), batch[:_BATCH], rows, _APPENDS)
    source = run.spark().readStream.format(BARE_SOURCE)
    return lambda: _drained(place, BARE_SOURCE, source.load(), count)


def _drained(place: Warehouse, name: str, frame: Any, rows: int) -> float:
    """Rows per second of a stream, from its start to its end."""
    with scratch(place.folder) as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        begin = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        taken = time.perf_counter() - begin
    found = sum(progress.numInputRows for progress in query.recentProgress)
    expect(f"{name}, rows of the stream", found, rows)
    return rows / taken
