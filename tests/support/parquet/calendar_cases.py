"""Files that count as Spark 2 did: numbers as they are stored, under keys as Spark writes them."""

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from value_cases import nested

_LEGACY = {"org.apache.spark.legacyDateTime": "", "org.apache.spark.legacyINT96": ""}
_KEYS = {
    "2.4.8": {},
    "3.0.3": {},  # INT96 is old until 3.1
    "4.0.0": {},
    "4.0.0 legacy": _LEGACY,
    "4.0.0 legacy dates": {"org.apache.spark.legacyDateTime": ""},
}

ZONES = ("UTC", "America/Los_Angeles", "Europe/Amsterdam", "Asia/Manila", "Africa/Monrovia")
FILES = [*(("UTC", version) for version in _KEYS), *((zone, "2.4.8") for zone in ZONES[1:])]
"""The zone of the session that wrote a file, and its version and mode."""

_CENTURIES = {-719_164 + 36_525 * century for century in range(16)}
_LEAP_DAYS = {-682_946, -609_896, -171_596}  # 29th of February of 100, 300 and 1500, old
_DAYS = sorted(_CENTURIES | _LEAP_DAYS | {day + 1 for day in _LEAP_DAYS} | {-141_428, -141_427, 0})
_BEFORE_CHRIST = [-1_000_000, -719_165]
_SECONDS = sorted(
    {day * 86_400 + part for day in _DAYS for part in (32_400, 43_200, 86_399)}
    | set(range(-12_219_292_800 - 86_400, -2_208_988_800, 250_000_000))
    | {-2_717_640_001, -2_717_640_000, -3_944_621_033, -2_208_988_801, -2_208_988_800, -1, 0}
)


class Column(NamedTuple):
    """Numbers as they are stored.

    Attributes:
        values: The numbers, in a type.
        unit: How many of them are a day or a second.
        wanted: The type that is asked for, as Spark writes it.
    """

    values: pa.Array
    unit: int
    wanted: str


_MICROS = pa.array([second * 1_000_000 + 1 for second in _SECONDS])
_MILLIS = pa.array([second * 1_000 for second in _SECONDS])

COLUMNS = {
    "date": Column(pa.array(_BEFORE_CHRIST + _DAYS, pa.int32()).cast(pa.date32()), 1, "date"),
    "micros": Column(_MICROS.cast(pa.timestamp("us", "UTC")), 1_000_000, "timestamp"),
    "millis": Column(_MILLIS.cast(pa.timestamp("ms", "UTC")), 1_000_000, "timestamp"),
    "without zone": Column(_MICROS.cast(pa.timestamp("us")), 1_000_000, "timestamp_ntz"),
    "int96": Column(_MICROS.cast(pa.timestamp("us")), 1_000_000, "timestamp"),
}


def numbers(times: pa.Array) -> list[int]:
    """Days, or microseconds."""
    if pa.types.is_timestamp(times.type):
        times = times.cast(pa.timestamp("us", times.type.tz))
    return [value.value for value in times]


def write(name: str, version: str, zone: str, path: Path, nesting: str = "column") -> None:
    """A file of one column, `c`, with the keys of a footer."""
    keys = {
        "org.apache.spark.version": version.partition(" ")[0],
        "org.apache.spark.timeZone": zone,
        **_KEYS[version],
    }
    rows = pa.table({"c": nested(COLUMNS[name].values, nesting)}).replace_schema_metadata(keys)
    pq.write_table(rows, path, use_deprecated_int96_timestamps=name == "int96")
