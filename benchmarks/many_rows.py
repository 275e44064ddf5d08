"""The memory of tasks for more rows: batches of 1 to 100 million."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.iceberg_tables import OURS as TABLES
from benchmarks.iceberg_tables import Warehouse
from benchmarks.measure import Figure, Goal, expect, figure, seconds, slope

__all__ = ["iceberg", "parquet"]

_FLAT = Goal(0.02)
"""GiB of a Python process, for ten million rows more."""

_MILLION = 1_000_000


def _sizes(run: Run, most: int) -> list[int]:
    sizes = (1, 4) if run.quick else (1, 10, 100)
    return [size * _MILLION for size in sizes if size <= most]


@benchmark("parquet.rows", long=True)
def parquet(run: Run) -> Iterator[Figure]:
    """Memory of the tasks for 1 to 100 million rows in a batch: into a folder, and from it."""
    with scratch(run.folder) as folder:
        place = {"path": str(folder / "table")}
        yield from _grown(run, "krishiv-parquet", place, _sizes(run, 100))


@benchmark("iceberg.rows", "krishiv_spark.sinks.iceberg.writer", long=True)
def iceberg(run: Run) -> Iterator[Figure]:
    """Memory of the tasks for 1 to 100 million rows in a batch: into a table, and from it."""
    with scratch(run.folder) as folder:
        place = {**Warehouse(folder, "krishiv_rows").options, "path": "db.rows"}
        yield from _grown(run, TABLES, place, _sizes(run, 100))


def _grown(run: Run, kind: str, place: Mapping[str, str], sizes: list[int]) -> Iterator[Figure]:
    largest: dict[str, dict[int, list[float]]] = {}
    for rows in sizes:
        steps: dict[str, Callable[[], object]] = {
            "written": partial(_write, run, kind, place, rows),
            "read": partial(_read, run, kind, place),
        }
        for name, work in steps.items():
            run.told(f"{rows:,} rows are {name}")
            run.costs.clear()
            with run.costs.of(name):
                taken = seconds(work)
            (usage,) = run.costs.used[name]
            size = usage.largest / 2**30
            largest.setdefault(name, {})[rows] = [size]
            yield figure(f"{kind}, {rows:,} rows {name}", "rows/s", [rows / taken])
            yield figure(f"{kind}, {rows:,} rows {name}, largest Python process", "GiB", [size])
        _check(kind, place, rows)
    for name, sizes_of in largest.items():
        growth = [10 * _MILLION * slope(sizes_of)]
        yield figure(f"{kind}, {name}, for 10 000 000 rows more", "GiB", growth, _FLAT)


def _write(run: Run, kind: str, place: Mapping[str, str], rows: int) -> None:
    """Rows that take much memory and next to no disk: values that repeat, one after the other."""
    made = (
        run.spark()
        .range(0, rows, 1, 2)
        .selectExpr(
            "id DIV 100000 AS thousandth",
            "'a customer and where they live, what they bought, and when' AS customer",
            "id DIV 1000000 / 8 AS price",
        )
    )
    made.write.format(kind).options(**place).mode("overwrite").save()


def _read(run: Run, kind: str, place: Mapping[str, str]) -> None:
    _rows(run, kind, place).write.format("noop").mode("overwrite").save()


def _rows(run: Run, kind: str, place: Mapping[str, str]) -> Any:
    return run.spark().read.format(kind).options(**place).load()


def _check(kind: str, place: Mapping[str, str], rows: int) -> None:
    """Check the content, by DuckDB or PyIceberg."""
    found = _totals(kind, place)
    each = 100_000
    wanted = rows, sum(each * number for number in range(rows // each))
    expect(f"{kind}: rows and sum", found, wanted)


def _totals(kind: str, place: Mapping[str, str]) -> tuple[int, int]:
    from benchmarks.check import table_totals, totals

    if kind == TABLES:
        return table_totals(Path(place["warehouse"]), "thousandth", catalog=place["catalogName"])
    return totals(Path(place["path"]), "thousandth")
