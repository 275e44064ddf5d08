"""The speed at which rows of an Iceberg table are read, beside Iceberg's own connector.

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
from benchmarks.measure import Figure, Goal, each_once, expect, figure, in_turn, ratios, seconds
from benchmarks.peer import ICEBERG

__all__ = ["read"]

_TABLE = "moments"
_APPENDS = 8
_ROUNDS = 3
_BATCH = 16_384  # rows, as our source yields them
_PAIRS = {
    (OURS, THEIRS): Goal(0.8, at_most=False),
    (BARE_SOURCE, THEIRS): None,
    (OURS, BARE_SOURCE): Goal(0.97, at_most=False),
}
"""Of which the ratio is shown. Where the source that has its rows in memory does not reach the
goal, ours shall be as fast as that one."""


@benchmark("iceberg.read", "pyiceberg", peers=(ICEBERG,), alone=True)
def read(run: Run) -> Iterator[Figure]:
    """Read a table of 8 appends into the no-op sink: as a batch, and as a stream.

    A stream begins once, so what its batch takes is shown beside the whole. A source in Python that
    has its rows in memory shows what PySpark takes for itself.
    """
    rows = 400_000 if run.quick else 4_000_000
    with warehouse(run, "krishiv_read") as place:
        _fill(place, rows)
        readers = _readers(run, place)
        for name, reader in readers.items():
            found = reader().selectExpr("count(*)", "sum(id)").first()
            expect(f"{name}, rows and sum of ids", tuple(found), each_once(rows))
        count = _register_bare(run, rows)
        readers[BARE_SOURCE] = lambda: run.spark().read.format(BARE_SOURCE).load()
        counts = {name: count if name == BARE_SOURCE else rows for name in readers}
        scans = {
            name: partial(_scanned, run, name, reader, counts[name])
            for name, reader in readers.items()
        }
        yield from _compared(run, "full scan", rows, scans)
        alone: dict[str, list[float]] = {name: [] for name in readers}
        streams = {
            name: partial(_streamed, run, place, name, counts[name], alone[name])
            for name in readers
        }
        yield from _compared(run, "stream", rows, streams)
        rounds = {name: rates[1:] for name, rates in alone.items()}  # without the warm-up
        yield from _shown(rounds, "stream, its batch alone")


def _compared(
    run: Run, what: str, rows: int, variants: Mapping[str, Callable[[], float]]
) -> Iterator[Figure]:
    in_turn(1, variants, lambda text: run.told(f"{what}, warming up: {text}"))
    run.costs.clear()
    rounds = 2 if run.quick else _ROUNDS
    rates = in_turn(rounds, variants, lambda text: run.told(f"{what}, {text}"))
    yield from _shown(rates, what)
    yield from run.costs.figures(f", {what}", rows)


def _shown(rates: Mapping[str, list[float]], what: str) -> Iterator[Figure]:
    for name, found in rates.items():
        yield figure(f"{name}, {what}", "rows/s", found)
    for (mine, other), goal in _PAIRS.items():
        if mine in rates and other in rates:
            speed = ratios(rates[mine], rates[other])
            yield figure(f"{mine} / {other}, {what}", "x", speed, goal)


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


def _scanned(run: Run, name: str, reader: Callable[[], Any], rows: int) -> float:
    with run.costs.of(name):
        return rows / seconds(lambda: reader().write.format("noop").mode("overwrite").save())


def _streamed(run: Run, place: Warehouse, name: str, rows: int, alone: list[float]) -> float:
    source = run.spark().readStream.format(name)
    if name == OURS:
        frame = source.options(**place.options).load(f"db.{_TABLE}")
    elif name == BARE_SOURCE:
        frame = source.load()
    else:
        frame = source.load(f"{place.name}.db.{_TABLE}")
    with run.costs.of(name):
        return _drained(place, name, frame, rows, alone)


def _register_bare(run: Run, rows: int) -> int:
    """Register a source that has its rows in memory, and return their number."""
    batch = _rows(0, rows // _APPENDS).combine_chunks().to_batches()[0]
    return register_bare_source(run.spark(), batch[:_BATCH], rows, _APPENDS)


def _drained(place: Warehouse, name: str, frame: Any, rows: int, alone: list[float]) -> float:
    """Rows per second of a stream, from its start to its end; of its batches goes into `alone`."""
    with scratch(place.folder) as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        begin = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        taken = time.perf_counter() - begin
    alone.append(1000 * rows / sum(each.durationMs["addBatch"] for each in query.recentProgress))
    found = sum(progress.numInputRows for progress in query.recentProgress)
    expect(f"{name}, rows of the stream", found, rows)
    return rows / taken
