"""How fast many rows are written by a batch job."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.check import totals
from benchmarks.measure import Figure, Goal, expect, figure, in_turn, ratios, seconds

__all__ = ["Memory", "bulk", "partitioned"]

_SPEED = Goal(0.8, at_most=False)
_GIBIBYTE = 2**30
_MEMORY = Goal(1.0)
_FOLDERS = 24


@dataclass
class Memory:
    """The most memory that the Python workers below this process have held at one look, in bytes.

    Attributes:
        largest: Resident size of the largest single process.
        together: Of all of them; pages that they share count for each.
    """

    largest: int = 0
    together: int = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look twenty times a second while the block runs."""
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(over,))
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(0.05):
            sizes = [_resident(child) for child in psutil.Process().children(recursive=True)]
            self.largest = max(self.largest, *sizes, 0)
            self.together = max(self.together, sum(sizes))


def _resident(process: psutil.Process) -> int:
    try:
        return 0 if "java" in process.name() else int(process.memory_info().rss)
    except psutil.Error:
        return 0  # it has ended meanwhile


@benchmark("parquet.bulk")
def bulk(run: Run) -> Iterator[Figure]:
    """A batch of 10 million rows of about 110 bytes, against Spark's own sink.

    The noop sink shows what making the rows costs alone.
    """
    yield from _compared(run, 2_000_000 if run.quick else 10_000_000, {})


@benchmark("parquet.bulk.partitioned")
def partitioned(run: Run) -> Iterator[Figure]:
    """The same into 24 partition folders."""
    yield from _compared(run, 2_000_000 if run.quick else 10_000_000, {"partitionBy": "hour"})


def _compared(run: Run, rows: int, options: Mapping[str, str]) -> Iterator[Figure]:
    spark, memory = run.spark(), Memory()
    with scratch(run.folder) as folder:

        def once(name: str, count: int) -> float:
            return _once(_rows(spark, count), name, folder / name, options)

        def ours() -> float:
            with memory.watched():
                return once("krishiv-parquet", rows)

        variants = {
            "noop": lambda: once("noop", rows),
            "parquet": lambda: once("parquet", rows),
            "krishiv-parquet": ours,
        }
        for name in variants:
            run.told(f"warming up {name}")
            once(name, rows // 5)
        taken = in_turn(3, variants, run.told)
    yield from _figures(taken, rows)
    yield figure("largest worker", "GiB", [memory.largest / _GIBIBYTE], _MEMORY)
    yield figure("all workers", "GiB", [memory.together / _GIBIBYTE])


def _figures(taken: Mapping[str, list[float]], rows: int) -> Iterator[Figure]:
    for name, times in taken.items():
        yield figure(f"{name}, {rows:,} rows", "rows/s", [rows / time for time in times])
    speed = ratios(taken["parquet"], taken["krishiv-parquet"])
    yield figure("speed, krishiv-parquet / parquet", "x", speed, _SPEED)


def _rows(spark: Any, count: int) -> Any:
    """Rows that cost the JVM little to make."""
    return spark.range(0, count, 1, 2).selectExpr(
        "id",
        "id * 7919 % 1000003 AS account",
        "id % 997 AS product",
        "id * 31 AS amount",
        "id / 7 AS price",
        "timestamp_micros(1357000000000000 + id * 1000) AS moment",
        "concat('a customer and where they live, number ', id * 7919 % 1000003) AS customer",
        f"cast(id % {_FOLDERS} AS int) AS hour",
    )


def _once(rows: Any, name: str, table: Path, options: Mapping[str, str]) -> float:
    writer = rows.write.format(name).mode("append")
    if name == "noop":
        return seconds(lambda: rows.write.format("noop").mode("overwrite").save())
    if name == "parquet":
        writer = writer.partitionBy(*options.values())
    else:
        writer = writer.options(**options)
    taken = seconds(lambda: writer.save(str(table)))
    _verify(name, table, rows.count())
    shutil.rmtree(table)
    return taken


def _verify(name: str, table: Path, rows: int) -> None:
    expect(f"{name}, rows and sum of ids", totals(table, "id"), (rows, rows * (rows - 1) // 2))
