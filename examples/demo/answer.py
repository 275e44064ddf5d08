"""The expected answers, from the flights themselves, and the actual ones."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from examples.demo.pipeline import ICEBERG_TABLE


def table_of(folder: Path) -> pa.Table:
    """Return the table as an independent reader sees it."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.read_parquet(f"{folder}/**/*.parquet", hive_partitioning=True)
        return found.to_arrow_table()


def iceberg_table(warehouse: Path) -> Table:
    """Return the Iceberg table as PyIceberg alone opens it: its catalog is a file."""
    catalog = SqlCatalog("krishiv", uri=f"sqlite:///{warehouse}/catalog.db")
    return catalog.load_table(ICEBERG_TABLE)


def problems(events: pa.Table, rows: pa.Table, by_hour: pa.Table, latest: pa.Table) -> list[str]:
    """Return the faults of the result; empty if it is right.

    Args:
        events: What went in.
        rows: The rows of the Parquet files.
        by_hour: The delays by hour.
        latest: The rows of the Iceberg table.
    """
    return [
        *_differences("the Parquet files", events, rows),
        *_differences("the delays by hour", _by_hour(events), by_hour),
        *_differences("the Iceberg table", _latest(events), latest),
    ]


def problems_in_topic(events: pa.Table, records: pa.Table) -> list[str]:
    """Return the faults of the topic's records; empty if they are right."""
    return _differences("the topic", events, records)


def _latest(events: pa.Table) -> pa.Table:
    """Return the last event of each flight."""
    places = pa.table({"flight": events["flight_id"], "place": pa.array(range(len(events)))})
    last = places.group_by("flight").aggregate([("place", "max")])
    return events.take(last["place_max"])


def _by_hour(events: pa.Table) -> pa.Table:
    flights = events.filter(pc.invert(events["correction"]))
    hours = pa.table(
        {
            "hour": pc.floor_temporal(flights["scheduled"], unit="hour"),
            "delay": pc.fill_null(flights["delay"], 0),
        }
    )
    sums = hours.group_by("hour").aggregate([("hour", "count"), ("delay", "sum")])
    return sums.rename_columns(["hour", "flights", "delay"])


def _differences(name: str, expected: pa.Table, found: pa.Table) -> list[str]:
    """Compare tables row by row, in the order of their first two columns."""
    expected, found = (_ordered(each, expected.schema) for each in (expected, found))
    if found.equals(expected):
        return []
    distinct = pc.count_distinct(found[0]).as_py()
    return [f"{name}: expected {len(expected):,} rows; found {len(found):,}, {distinct:,} distinct"]


def _ordered(table: pa.Table, schema: pa.Schema) -> pa.Table:
    order = [(name, "ascending") for name in schema.names[:2]]
    return table.select(schema.names).cast(schema).sort_by(order)
