"""The speed of a compaction, beside ``rewrite_data_files`` of Iceberg's own connector."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from benchmarks.bench import Run, benchmark
from benchmarks.iceberg_tables import OURS, TABLES, THEIRS, Warehouse, names, warehouse
from benchmarks.measure import Figure, expect, figure, in_turn, ratios, seconds
from benchmarks.peer import ICEBERG

__all__ = ["compaction"]

_FILES = 32


@benchmark(
    "iceberg.compaction", "pyiceberg", peers=(ICEBERG,), alone=True, long=True, sizes=("rows",)
)
def compaction(run: Run) -> Iterator[Figure]:
    """32 files of random numbers into one, by `krishiv-spark iceberg compact` and by Iceberg's own.

    --size rows=N sets the rows of all files together, 24 bytes each.
    """
    rows = run.size("rows", 6_400_000, 320_000)
    sizes: list[float] = []

    def rewrite(name: str, number: int) -> float:
        with warehouse(run, f"krishiv_compact_{TABLES[name]}_{number}") as place:
            size = _fill(place, TABLES[name], rows) / 1e6
            taken = seconds(lambda: _compact(run, place, name))
            expect(f"{name}, rows", place.totals(TABLES[name], "a")[0], rows)
            sizes.append(size)
            return size / taken

    count = iter(range(100))
    variants = {name: (lambda name=name: rewrite(name, next(count))) for name in names(run)}
    in_turn(1, variants, lambda what: run.told(f"warming up: {what}"))
    tables = in_turn(2 if run.quick else 3, variants, run.told)
    for name, speeds in tables.items():
        yield figure(f"{name}, {_FILES} files, {sizes[0]:.0f} MB", "MB/s", speeds)
    if THEIRS in tables:
        yield figure(f"speed, {OURS} / {THEIRS}", "x", ratios(tables[OURS], tables[THEIRS]))


def _fill(place: Warehouse, table: str, rows: int) -> int:
    """Add the files; return their bytes."""
    import numpy as np

    dice, each = np.random.default_rng(3), rows // _FILES
    place.make(table, pa.schema({"a": pa.int64(), "b": pa.int64(), "c": pa.int64()}))
    for _ in range(_FILES):
        drawn = {name: dice.integers(0, 2**62, each) for name in "bc"}
        place.add(table, pa.table({"a": np.ones(each, np.int64), **drawn}))
    files = place.catalog.load_table(f"db.{table}").inspect.files()
    return sum(files["file_size_in_bytes"].to_pylist())


def _compact(run: Run, place: Warehouse, name: str) -> None:
    if name == THEIRS:
        options = "map('rewrite-all', 'true')"
        call = f"rewrite_data_files(table => 'db.{TABLES[name]}', options => {options})"
        run.spark().sql(f"CALL {place.name}.system.{call}").collect()
        return
    from krishiv_spark.sinks.iceberg.maintenance.compaction import (
        CompactionRequest,
        compact_in_steps,
    )
    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
    from krishiv_spark.sinks.iceberg.table_copies import open_own_table

    given = {**place.options, "path": f"db.{TABLES[name]}"}
    options = IcebergSinkOptions.parse(given, OURS)
    groups = CompactionRequest().find_groups(open_own_table(options), options)
    for _ in compact_in_steps(options, groups):
        pass
