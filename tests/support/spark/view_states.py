"""A table that changes, a view of it, and what outside readers see of both in each snapshot.

As a script it is a driver that keeps the view, which a test kills and starts again:

    python view_states.py '{"folder": ..., "conf": {...}}'

It prints STARTED, EPOCH and DONE as `stream_copy` does.
"""

import json
import os
import random
import sys
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
from iceberg_life import TABLE, IcebergLife, table_of

import krishiv_spark

VIEW = "db.totals"
COLUMNS = {
    "n": "count(*)",
    "some": "count(x)",
    "total": "sum(x)",
    "mean": "avg(x)",
    "money": "sum(d)",
    "first": "min(x)",
    "dearest": "max(d)",
}
_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("g", pa.string()),
        ("x", pa.int64()),
        ("d", pa.decimal128(12, 2)),
        ("op", pa.string()),
    ]
)
_ROWS = 25


def change_table(folder: Path, snapshots: int, chance: random.Random) -> None:
    """So many snapshots of inserts, updates and deletes of few rows, which often meet others."""
    life = IcebergLife(folder, mode="upsert", keyColumns="id", opColumn="op")
    for epoch in range(snapshots):
        rows = [_change(chance) for _ in range(_ROWS)]
        if epoch % 5 == 4:  # groups that go
            rows += [(number, None, None, None, "d") for number in range(30)]
        life.epoch(epoch, pa.table([*map(list, zip(*rows, strict=True))], schema=_SCHEMA))


def _change(chance: random.Random) -> tuple[object, ...]:
    """Few values, so that the same extreme is there more than once, or alone."""
    number, op = chance.randrange(40), chance.choice("uuud")
    group = chance.choice(["a", "b", "c", "", None])
    value = chance.choice([None, *range(-3, 4), 2**40])
    money = chance.choice([None, *(Decimal(d) / 4 for d in (-1, 1, 5))])
    return number, group, value, money, op


def keep_view(spark, folder: Path):
    """A query that has a batch for each snapshot."""
    reader = spark.readStream.format("krishiv-iceberg").option("warehouse", str(folder))
    reader = reader.options(**{"readChanges": "true", "streaming-max-files-per-micro-batch": "1"})
    keep = krishiv_spark.aggregate(VIEW, "g", COLUMNS, warehouse=str(folder))
    writer = reader.load(TABLE).writeStream.foreachBatch(keep)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def assert_each_state(folder: Path) -> None:
    """Each snapshot of the view shows what one of the table has, in their order, to the last."""
    kept = _states(table_of(folder, VIEW))
    waiting = iter([_computed(rows) for rows in _states(table_of(folder))])
    now: list[object] = []  # before the first snapshot
    for number, rows in enumerate(kept):
        shown = sorted(map(repr, rows.select(["g", *COLUMNS]).to_pylist()))
        while now != shown:
            now = next(waiting, None)
            assert now is not None, f"no state of the table is that of snapshot {number}: {shown}"
    assert [*waiting] == []


def _states(table) -> list[pa.Table]:
    snapshots = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number)
    return [table.scan(snapshot_id=one.snapshot_id).to_arrow() for one in snapshots]


def _computed(rows: pa.Table) -> list[str]:
    """By DuckDB, which knows nothing of how views are kept."""
    totals = ", ".join(f"{text} AS {name}" for name, text in COLUMNS.items())
    with duckdb.connect() as duck:
        duck.register("rows", rows)
        found = duck.sql(f"SELECT g, {totals} FROM rows GROUP BY g").fetchall()
    return sorted(repr(dict(zip(["g", *COLUMNS], row, strict=True))) for row in found)


def main() -> None:
    from stream_copy import Progress, session

    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(job)
    spark.streams.addListener(Progress())
    query = keep_view(spark, Path(job["folder"]))
    print("STARTED", flush=True)
    query.processAllAvailable()
    query.stop()
    print("DONE", flush=True)


if __name__ == "__main__":
    main()
