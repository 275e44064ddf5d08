"""Oracles: look at a table as its readers do, without the code under test."""

import json
import os
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq


def make_input(folder: Path, files: int, rows: int, first_file: int = 0) -> None:
    """Files with ids that are all different, and a column to partition by."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first_file, first_file + files):
        first = number * rows
        table = pa.table(
            {
                "id": pa.array(range(first, first + rows), pa.int64()),
                "amount": pa.array([i * 7 for i in range(first, first + rows)], pa.int64()),
                "day": pa.array([f"2013-01-{1 + i % 3:02d}" for i in range(first, first + rows)]),
            }
        )
        aside = folder / f".{number:05d}"
        pq.write_table(table, aside)
        aside.rename(folder / f"{number:05d}.parquet")


def look(table: Path) -> tuple[int, int, int]:
    """Rows, distinct ids and their sum, as DuckDB sees the folder by its ordinary glob."""
    if not visible_names(table):
        return 0, 0, 0
    (row,) = duckdb.sql(
        f"select count(*), count(distinct id), coalesce(sum(id), 0)::bigint "
        f"from read_parquet('{table}/**/*.parquet', hive_partitioning = true)"
    ).fetchall()
    return tuple(row)


def visible_names(table: Path) -> set[str]:
    """File names that an ordinary glob finds."""
    # By `os.walk`, which omits a folder that its writer removes meanwhile.
    found = (name for _, _, names in os.walk(table) for name in names)
    return {name for name in found if name.endswith(".parquet")}


def logged_epoch(table: Path) -> int:
    """The newest epoch with an intent, read from the log's files by plain JSON."""
    newest = -1
    for path in table.glob("_krishiv/*/log/*.json"):
        try:
            entry = json.loads(path.read_text())
        except FileNotFoundError:  # folded while we look
            return logged_epoch(table)
        newest = max(newest, epoch_in(path.name, entry))
    return newest


def epoch_in(name: str, entry: dict[str, object]) -> int:
    """The epoch that an entry of the log, or a snapshot, says is true; -1 if none is."""
    found = entry.get("held") if ".snapshot" in name else entry.get("epoch")
    return -1 if found is None else found


def epoch_of(name: str) -> int:
    return int(name.split("-")[1])
