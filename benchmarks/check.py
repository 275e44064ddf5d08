"""Reading what was written, with as little as possible of the code that is measured."""

from __future__ import annotations

from pathlib import Path

__all__ = ["memory_totals", "totals"]


def totals(table: Path, column: str) -> tuple[int, int]:
    """Number of rows and sum of a column over every Parquet file below a folder, by DuckDB.

    Files in folders that Spark and we ourselves hide (``_temporary``, ``_krishiv``) would be read
    as well: if one is left there that looks like data, the numbers are wrong, and should be.
    """
    import duckdb

    files = f"read_parquet('{table}/**/*.parquet', hive_partitioning = true)"
    query = f'SELECT count(*), coalesce(sum("{column}"), 0) FROM {files}'
    ((rows, total),) = duckdb.execute(query).fetchall()
    return int(rows), int(total)


def memory_totals(result: str, column: str) -> tuple[int, int]:
    """The same of a memory result, which only the package itself can read."""
    from krishiv_spark import memory_table

    table = memory_table(result)
    return table.num_rows, sum(table[column].to_pylist())
