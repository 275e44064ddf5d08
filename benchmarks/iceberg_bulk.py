"""The speed at which a batch job writes many rows into an Iceberg table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.bench import Run, benchmark
from benchmarks.bulk import Job, compared, rows_of
from benchmarks.iceberg_tables import OURS, TABLES, Warehouse, names, warehouse
from benchmarks.measure import Figure, Goal
from benchmarks.peer import ICEBERG

__all__ = ["bulk", "partitioned"]

_GOAL = Goal(1.0, at_most=False)
_PARTITIONS = 100


@benchmark("iceberg.bulk", "pyiceberg", peers=(ICEBERG,), alone=True)
def bulk(run: Run) -> Iterator[Figure]:
    """Compare a batch of 10 million rows of about 110 bytes with Iceberg's own connector."""
    with warehouse(run, "krishiv_bulk") as place:
        yield from _compared(run, place, None)


@benchmark("iceberg.bulk.partitioned", "pyiceberg", peers=(ICEBERG,), alone=True, long=True)
def partitioned(run: Run) -> Iterator[Figure]:
    """Compare the same batch into 100 partitions."""
    with warehouse(run, "krishiv_bulk_partitioned") as place:
        yield from _compared(run, place, "part")


def _compared(run: Run, place: Warehouse, partition: str | None) -> Iterator[Figure]:
    from krishiv_spark.arrow.schemas import arrow_schema

    columns = arrow_schema(rows_of(run.spark(), 1, _PARTITIONS).schema)
    for name in names(run):
        place.make(TABLES[name], columns, partition)
    jobs = {name: _job(place, name) for name in names(run)}
    yield from compared(run, jobs, lambda count: rows_of(run.spark(), count, _PARTITIONS), _GOAL)


def _job(place: Warehouse, name: str) -> Job:
    table = TABLES[name]

    def write(rows: Any) -> None:
        writer = rows.write.format(name).mode("append")
        if name == OURS:
            writer.options(**place.options).save(f"db.{table}")
        else:
            writer.save(f"{place.name}.db.{table}")

    return Job(write, lambda: place.totals(table, "id"), lambda: place.clear(table))
