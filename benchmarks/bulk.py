"""The speed at which a batch job writes many rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bare import BARE_SINK, register_bare_sink
from benchmarks.bench import Run, benchmark, scratch
from benchmarks.check import totals
from benchmarks.measure import Figure, Goal, each_once, expect, figure, in_turn, ratios, seconds

__all__ = ["Job", "bulk", "compared", "partitioned", "rows_of"]

_OURS = "krishiv-parquet"
_SPEED = Goal(0.9, at_most=False)
_MEMORY = Goal(1.0)
_FOLDERS = 24


@dataclass(frozen=True)
class Job:
    """A batch job that writes rows where there are none.

    Attributes:
        write: Given the rows as a data frame.
        totals: What is there afterwards: number of rows and sum of ids; None if nothing is.
        clear: Takes it away.
    """

    write: Callable[[Any], object]
    totals: Callable[[], tuple[int, int]] | None = None
    clear: Callable[[], object] = lambda: None

    def once(self, rows: Any, watched: AbstractContextManager[None]) -> float:
        """Measure and return the duration of one write, in seconds.

        Args:
            rows: To be written, with ids from 0 on; what is there afterwards is compared.
            watched: Entered while it runs.
        """
        with watched:
            taken = seconds(lambda: self.write(rows))
        if self.totals is not None:
            expect("rows and sum of ids", self.totals(), each_once(rows.count()))
        self.clear()
        return taken


@benchmark("parquet.bulk")
def bulk(run: Run) -> Iterator[Figure]:
    """Compare a batch of 10 million rows of about 110 bytes with Spark's own sink.

    The noop sink shows what making the rows costs alone, and a sink in Python that drops them what
    PySpark takes for itself.
    """
    yield from _into_parquet(run, {})


@benchmark("parquet.bulk.partitioned")
def partitioned(run: Run) -> Iterator[Figure]:
    """Compare the same batch into 24 partition folders."""
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
    """Jobs in turn, with Spark's no-op sink and a sink in Python that drops the rows.

    Args:
        run: The call of the command.
        jobs: Ours, and the one that it is compared with if there is one.
        rows: Makes a data frame of so many rows.
        goal: How many times as fast as the other one ours should be.
    """
    count = 2_000_000 if run.quick else 10_000_000
    ours, *others = jobs
    register_bare_sink(run.spark())
    drops = {name: Job(partial(_drop, name)) for name in ("noop", BARE_SINK)}
    every = {**drops, **{name: jobs[name] for name in (*others, ours)}}

    def once(name: str, rows: Any) -> float:
        return every[name].once(rows, run.costs.of(name))

    for name in every:
        run.told(f"warming up {name}")
        once(name, rows(count // 5))
    run.costs.clear()
    taken = in_turn(3, {name: partial(once, name, rows(count)) for name in every}, run.told)
    for name, times in taken.items():
        yield figure(f"{name}, {count:,} rows", "rows/s", [count / time for time in times])
    for other in others:
        speed = ratios(taken[other], taken[ours])
        yield figure(f"speed, {ours} / {other}", "x", speed, goal)
        bare = ratios(taken[other], taken[BARE_SINK])
        yield figure(f"speed, {BARE_SINK} / {other}", "x", bare)
    yield figure(f"speed, {ours} / {BARE_SINK}", "x", ratios(taken[BARE_SINK], taken[ours]))
    yield from run.costs.figures("", count, _MEMORY)


def _drop(name: str, rows: Any) -> None:
    rows.write.format(name).mode("overwrite").save()


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
