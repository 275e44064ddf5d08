"""The time that the source needs to list a folder of many files."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bench import MEMORY, Run, benchmark, scratch
from benchmarks.measure import Figure, Wrong, expect, figure, in_turn, ratios, seconds, slope
from benchmarks.writers import BATCH

__all__ = ["listing", "small_files"]

_FEWEST = 1_000  # files


@benchmark(
    "parquet.listing",
    "krishiv_spark.sources.parquet.reader",
    "krishiv_spark.sources.parquet.folder_stream",
    "krishiv_spark.sources.parquet.offset",
    long=True,
)
def listing(run: Run) -> Iterator[Figure]:
    """Measure the first and a later listing of a folder of 1000 to a million files."""
    first: dict[int, list[float]] = {}
    for count in (_FEWEST, 10_000) if run.quick else (_FEWEST, 100_000, 1_000_000):
        first[count] = yield from _at(run, count)
    yield figure("first look, for 100 000 files more", "s", [100_000 * slope(first)])


def _at(run: Run, count: int) -> Generator[Figure, None, list[float]]:
    """Of a folder of so many files; our first looks."""
    with scratch(MEMORY) as folder:
        run.told(f"making {count:,} files")
        small_files(folder / "table", count)
        later: list[float] = []
        variants = {
            "ours": lambda: _looks(folder / "table", count, later),
            "Spark's": lambda: _spark_looks(run.spark(), folder),
        }
        if count == _FEWEST:
            in_turn(1, variants, lambda what: run.told(f"warming up: {what}"))
            later.clear()
        taken = in_turn(3, variants, run.told)
    yield figure(f"first look at {count:,} files", "s", taken["ours"])
    yield figure(f"Spark's own source, first look at {count:,} files", "s", taken["Spark's"])
    looks = ratios(taken["ours"], taken["Spark's"])
    yield figure(f"first look at {count:,} files, ours / Spark's", "x", looks, smaller=True)
    yield figure(f"later look at {count:,} files, nothing new", "s", later)
    return taken["ours"]


def small_files(table: Path, count: int) -> None:
    """One small file under many names: links cost nothing, and a listing does not see them."""
    table.mkdir()
    first = table / "part-0000000.parquet"
    pq.write_table(pa.Table.from_batches([BATCH]), first)
    for number in range(1, count):
        os.link(first, table / f"part-{number:07}.parquet")


def _looks(table: Path, count: int, later: list[float]) -> float:
    """Return the time of a new reader's first listing; add that of the next one to `later`."""
    from krishiv_spark.sources.base import Limit
    from krishiv_spark.sources.parquet.reader import (
        ParquetOffset,
        ParquetReader,
        ParquetSourceOptions,
    )

    given = {"path": str(table), "maxFilesPerTrigger": str(count)}
    options = ParquetSourceOptions.parse(given, "krishiv-parquet")
    reader = ParquetReader(options, None, streaming=True)
    begin = time.perf_counter()
    end = reader.latest(ParquetOffset(), Limit(files=count))
    taken = time.perf_counter() - begin
    planned = sum(len(part.ranges) for part in reader.plan(ParquetOffset(), end))
    expect("files found", planned, count)
    later += [seconds(lambda: reader.latest(end, Limit(files=count))) for _ in range(3)]
    expect("files found later", reader.latest(end, Limit(files=count)), end)
    return taken


def _spark_looks(spark: Any, folder: Path) -> float:
    """Return Spark's own figure for the first listing of its source; one file is read."""
    reader = spark.readStream.format("parquet").option("maxFilesPerTrigger", 1)
    rows = reader.schema("id LONG, name STRING").load(str(folder / "table"))
    query = rows.writeStream.format("noop").start()
    try:
        return _first_progress(query)["latestOffset"] / 1000
    finally:
        query.stop()


def _first_progress(query: Any) -> Any:
    for _ in range(1200):
        if query.recentProgress:
            return query.recentProgress[0].durationMs
        time.sleep(0.1)
    raise Wrong(f"Spark's source read nothing in two minutes: {query.exception()}")
