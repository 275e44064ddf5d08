"""The growth of metadata reads and planning with the files of an Iceberg table."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.apart import apart, resident_mib
from benchmarks.bench import MEMORY, Run, benchmark, scratch
from benchmarks.iceberg_tables import OURS, THEIRS, Warehouse, names
from benchmarks.measure import Figure, expect, figure, in_turn, ratios, seconds, slope
from benchmarks.peer import ICEBERG
from benchmarks.writers import numbered

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

__all__ = ["files", "filled"]

_NAME, _TABLE = "krishiv_files", "many"
_ROWS = 100  # in each file
_SNAPSHOTS = 100
_OF_A_BATCH = 100
"""Files of a batch of the stream."""


@benchmark("iceberg.files", "pyiceberg", peers=(ICEBERG,), alone=True, long=True)
def files(run: Run) -> Iterator[Figure]:
    """Measure listing, planning and the planner's memory for 1 000, 10 000 and 100 000 files.

    The files are one file under many names, and as many snapshots as there are hundredths of them
    have added them.
    """
    grown: dict[str, dict[int, list[float]]] = {}
    for count in (1_000, 10_000) if run.quick else (1_000, 10_000, 100_000):
        with scratch(MEMORY) as folder:
            run.told(f"making a table of {count:,} files")
            place = Warehouse(folder, f"{_NAME}_{count}")
            options = filled(run, place, count, _SNAPSHOTS)
            yield from _planned(run, options, count, grown)
            yield from _in_spark(run, place, options, count)
    for name, values in grown.items():
        unit = "MiB" if "memory" in name else "s"
        growth = [10_000 * slope(values)]
        yield figure(f"{name}, for 10 000 files more", unit, growth, smaller=True)


# --- the table


def filled(run: Run, place: Warehouse, count: int, snapshots: int) -> Mapping[str, str]:
    """Create a table of so many files, added by so many snapshots, without a JVM.

    Args:
        run: The call of the command.
        place: Where the table is made.
        count: Files; a multiple of `snapshots`.
        snapshots: How many.

    Returns:
        The options by which our source finds it.
    """
    batch = pa.Table.from_batches([numbered(_ROWS)])
    for name in ("one", _TABLE):
        place.make(name, batch.schema)
    place.add("one", batch)
    first = _first_file(place.catalog.load_table("db.one"))
    table = place.catalog.load_table(f"db.{_TABLE}")
    data = Path(table.location()) / "data"
    data.mkdir(parents=True)
    each = count // snapshots
    for begin in range(0, count, each):
        run.told(f"file {begin:,} of {count:,}")
        _append(table, first, [str(data / f"{begin + n:07}.parquet") for n in range(each)])
    place.catalog.close()
    return {**place.options, "path": f"db.{_TABLE}"}


def _first_file(table: Table) -> DataFile:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(table.io)
    (entry,) = manifest.fetch_manifest_entry(table.io)
    return entry.data_file


def _append(table: Table, first: DataFile, paths: list[str]) -> None:
    """Commit a snapshot that adds one file under many names; links cost nothing."""
    from pyiceberg.manifest import DataFile

    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        for path in paths:
            os.link(first.file_path.removeprefix("file://"), path)
            facts = [*first._data]  # noqa: SLF001  all that is known of it, and another path
            facts[1] = path
            file = DataFile(*facts)
            file.spec_id = 0
            append.append_data_file(file)


# --- our planner alone


@dataclass(frozen=True)
class _Plans:
    """A planner at work in a process of its own.

    Attributes:
        options: Of our source.
        count: Files of the table.
        streaming: Whether it plans a stream, from its oldest snapshot.
    """

    options: Mapping[str, str]
    count: int
    streaming: bool

    def take(self) -> tuple[dict[str, float], int]:
        """By what it did, seconds, and MiB at the end; and how many files were planned."""
        from krishiv_spark.sources.base import UNLIMITED, Limit
        from krishiv_spark.sources.iceberg.reader import IcebergReader

        given = {**self.options, **({} if not self.streaming else {"startingOffsets": "earliest"})}
        options = IcebergReader.options_type.parse(given, OURS)
        reader = IcebergReader(options, None, streaming=self.streaming)
        reader.infer_schema()
        before, found = resident_mib(), {}
        start = reader.initial()
        end, found["first look"] = _timed(lambda: reader.latest(start, UNLIMITED))
        parts, found["plan"] = _timed(lambda: reader.plan(start, end))
        found["memory of its plan"] = resident_mib() - before
        planned = sum(len(part.ranges) for part in parts)
        if self.streaming:
            limit = Limit(files=_OF_A_BATCH)
            found["later look, nothing new"] = seconds(lambda: reader.latest(end, limit))
            middle = reader.latest(start, Limit(files=self.count // 2))
            more, taken = _timed(lambda: reader.latest(middle, limit))
            found[f"look for {_OF_A_BATCH} files more"] = taken
            found[f"plan of {_OF_A_BATCH} files"] = seconds(lambda: reader.plan(middle, more))
        return found, planned


def _timed(work: Any) -> tuple[Any, float]:
    begin = time.perf_counter()
    found = work()
    return found, time.perf_counter() - begin


def _planned(
    run: Run, options: Mapping[str, str], count: int, grown: dict[str, dict[int, list[float]]]
) -> Iterator[Figure]:
    for kind in ("batch", "stream"):
        taken: dict[str, list[float]] = {}
        for number in range(1 if run.quick else 3):
            run.told(f"{count:,} files: {kind}, round {number + 1}")
            found, planned = apart(_Plans(options, count, kind == "stream").take)
            expect(f"{kind}: files planned", planned, count)
            for name, value in found.items():
                taken.setdefault(f"{kind}, {name}", []).append(value)
        for name, values in taken.items():
            grown.setdefault(name, {})[count] = values
            unit = "MiB" if "memory" in name else "s"
            yield figure(f"{name}, {count:,} files", unit, values, smaller=True)


# --- in Spark, beside Iceberg's own connector


def _in_spark(
    run: Run, place: Warehouse, options: Mapping[str, str], count: int
) -> Iterator[Figure]:
    spark = run.spark()
    frames = {OURS: lambda: spark.read.format(OURS).options(**options).load()}
    if THEIRS in names(run):
        place.open_peer(spark)
        frames[THEIRS] = lambda: spark.read.format(THEIRS).load(f"{place.name}.db.{_TABLE}")
    variants = {name: partial(_plan_in_spark, name, frame) for name, frame in frames.items()}
    taken = in_turn(3, variants, lambda what: run.told(f"{count:,} files: {what}"))
    for name, times in taken.items():
        yield figure(f"{name}, plan in Spark, {count:,} files", "s", times)
    if THEIRS in taken:
        times = ratios(taken[OURS], taken[THEIRS])
        yield figure(f"plan in Spark, {OURS} / {THEIRS}, {count:,} files", "x", times, smaller=True)


def _plan_in_spark(name: str, frame: Any) -> float:
    """Seconds from no frame to its tasks."""
    begin = time.perf_counter()
    tasks = frame()._jdf.queryExecution().toRdd().getNumPartitions()  # noqa: SLF001  no other way
    taken = time.perf_counter() - begin
    expect(f"{name}: some tasks", tasks > 0, wanted=True)
    return taken
