"""What must come out, from the flights themselves, and what did."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc


def table_of(folder: Path) -> pa.Table:
    """The table as a reader sees it that knows nothing of us."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.read_parquet(f"{folder}/**/*.parquet", hive_partitioning=True)
        return found.to_arrow_table()


def problems(flights: pa.Table, rows: pa.Table, by_hour: pa.Table) -> list[str]:
    """What is wrong with the table and with the delays by hour; nothing, if all is well."""
    return [
        *_differences("the table", flights, rows),
        *_differences("the delays by hour", _by_hour(flights), by_hour),
    ]


def problems_in_topic(flights: pa.Table, records: pa.Table) -> list[str]:
    """What is wrong with the records of the topic; nothing, if all is well."""
    return _differences("the topic", flights, records)


def _by_hour(flights: pa.Table) -> pa.Table:
    hours = pa.table(
        {
            "hour": pc.floor_temporal(flights["scheduled"], unit="hour"),
            "delay": pc.fill_null(flights["delay"], 0),
        }
    )
    sums = hours.group_by("hour").aggregate([("hour", "count"), ("delay", "sum")])
    return sums.rename_columns(["hour", "flights", "delay"])


def _differences(name: str, expected: pa.Table, found: pa.Table) -> list[str]:
    """Compare tables row by row, in the order of their first column."""
    expected, found = (_ordered(each, expected.schema) for each in (expected, found))
    if found.equals(expected):
        return []
    distinct = pc.count_distinct(found[0]).as_py()
    return [f"{name}: expected {len(expected):,} rows; found {len(found):,}, {distinct:,} distinct"]


def _ordered(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return table.select(schema.names).cast(schema).sort_by(schema.names[0])
