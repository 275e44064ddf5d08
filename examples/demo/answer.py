"""What must come out, by plain pyarrow, and what did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds


@dataclass(frozen=True)
class Figures:
    """Numbers that a lost or repeated row would change."""

    rows: int
    distinct: int
    delay: int
    distance: int
    hours: int
    delay_by_hour: int

    def differences(self, other: Figures) -> list[str]:
        """Names of the figures that differ, with both values."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in vars(self))
        return [f"{name}: expected {a:,}, found {b:,}" for name, a, b in pairs if a != b]


def table_of(folder: Path) -> pa.Table:
    """The table as any reader of Parquet sees it."""
    return ds.dataset(folder, format="parquet", partitioning="hive").to_table()


def expected(flights: pa.Table) -> Figures:
    """From the events themselves."""
    hours = pc.floor_temporal(flights["scheduled"], unit="hour")
    return Figures(
        **_of_rows(flights),
        hours=pc.count_distinct(hours).as_py(),
        delay_by_hour=_sum(flights["delay"]),
    )


def found(table: pa.Table, by_hour: pa.Table) -> Figures:
    """From what the two sinks hold."""
    return Figures(**_of_rows(table), hours=by_hour.num_rows, delay_by_hour=_sum(by_hour["delay"]))


def _of_rows(rows: pa.Table) -> dict[str, int]:
    return {
        "rows": rows.num_rows,
        "distinct": pc.count_distinct(rows["flight_id"]).as_py(),
        "delay": _sum(rows["delay"]),
        "distance": _sum(rows["distance"]),
    }


def _sum(column: pa.ChunkedArray) -> int:
    return pc.sum(column).as_py() or 0
