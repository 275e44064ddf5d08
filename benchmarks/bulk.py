"""How fast many rows are written by a batch job."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.check import totals
from benchmarks.measure import Figure, Goal, expect, figure, in_turn, ratios, seconds

__all__ = ["Job", "Memory", "bulk", "compared", "partitioned", "rows_of"]

_OURS = "krishiv-parquet"
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


@dataclass(frozen=True)
class Job:
    """A batch job that writes rows where there are none.

    Attributes:
        write: Given the rows as a data frame.
        totals: What is there afterwards: number of rows and sum of ids.
        clear: Takes it away.
    """

    write: Callable[[Any], object]
    totals: Callable[[], tuple[int, int]]
    clear: Callable[[], object]

    def once(self, rows: Any) -> float:
        """How long it takes, in seconds."""
        taken = seconds(lambda: self.write(rows))
        count = rows.count()
        expect("rows and sum of ids", self.totals(), (count, count * (count - 1) // 2))
        self.clear()
        return taken


@benchmark("parquet.bulk")
def bulk(run: Run) -> Iterator[Figure]:
    """A batch of 10 million rows of about 110 bytes, against Spark's own sink.

    The noop sink shows what making the rows costs alone.
    """
    yield from _into_parquet(run, {})


@benchmark("parquet.bulk.partitioned")
def partitioned(run: Run) -> Iterator[Figure]:
    """The same into 24 partition folders."""
    yield from _into_parquet(run, {"partitionBy": "part"})


def _into_parquet(run: Run, options: Mapping[str, str]) -> Iterator[Figure]:
    with scratch(run.folder) as folder:
        jobs = {name: _parquet(name, folder / name, options) for name in (_OURS, "parquet")}
        yield from compared(run, jobs, lambda count: rows_of(run.spark(), count, _FOLDERS), _SPEED)


def _parquet(name: str, table: Path, options: Mapping[str, str]) -> Job:
    def write(rows: Any) -> None:
        writer = rows.write.format(name).mode("append")
        if name == "parquet":
            writer.partitionBy(*options.values()).save(str(table))
        else:
            writer.options(**options).save(str(table))

    return Job(write, lambda: totals(table, "id"), lambda: shutil.rmtree(table))


def compared(
    run: Run, jobs: Mapping[str, Job], rows: Callable[[int], Any], goal: Goal
) -> Iterator[Figure]:
    """Jobs in turn, with Spark's no-op sink.

    Args:
        run: The call of the command.
        jobs: Ours, and the one that it is compared with if there is one.
        rows: Makes a data frame of so many rows.
        goal: How many times as fast as the other one ours should be.
    """
    count, memory = 2_000_000 if run.quick else 10_000_000, Memory()
    ours, *others = jobs

    def once(name: str, number: int) -> float:
        if name == ours:
            with memory.watched():
                return jobs[name].once(rows(number))
        return _dropped(rows(number)) if name == "noop" else jobs[name].once(rows(number))

    variants = {name: partial(once, name, count) for name in ("noop", *others, ours)}
    for name in variants:
        run.told(f"warming up {name}")
        once(name, count // 5)
    taken = in_turn(3, variants, run.told)
    for name, times in taken.items():
        yield figure(f"{name}, {count:,} rows", "rows/s", [count / time for time in times])
    for other in others:
        speed = ratios(taken[other], taken[ours])
        yield figure(f"speed, {ours} / {other}", "x", speed, goal)
    yield figure("largest worker", "GiB", [memory.largest / _GIBIBYTE], _MEMORY)
    yield figure("all workers", "GiB", [memory.together / _GIBIBYTE])


def _dropped(rows: Any) -> float:
    return seconds(lambda: rows.write.format("noop").mode("overwrite").save())


def rows_of(spark: Any, count: int, parts: int) -> Any:
    """Rows that cost the JVM little to make; ``part`` has so many values."""
    return spark.range(0, count, 1, 2).selectExpr(
        "id",
        "id * 7919 % 1000003 AS account",
        "id % 997 AS product",
        "id * 31 AS amount",
        "id / 7 AS price",
        "timestamp_micros(1357000000000000 + id * 1000) AS moment",
        "concat('a customer and where they live, number ', id * 7919 % 1000003) AS customer",
        f"cast(id % {parts} AS int) AS part",
    )
