"""Reading what was written with DuckDB, which shares no code with what is measured."""

from __future__ import annotations

from pathlib import Path

__all__ = ["totals"]


def totals(table: Path, column: str) -> tuple[int, int]:
    """Number of rows and sum of a column over every Parquet file below a folder.

    Files in folders that Spark and we ourselves hide (``_temporary``, ``_krishiv``) would be read
    as well: if one is left there that looks like data, the numbers are wrong, and should be.
    """
    import duckdb

    files = f"read_parquet('{table}/**/*.parquet', hive_partitioning = true)"
    query = f'SELECT count(*), coalesce(sum("{column}"), 0) FROM {files}'
    ((rows, total),) = duckdb.sql(query).fetchall()
    return int(rows), int(total)
