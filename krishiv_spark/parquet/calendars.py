"""The calendar of a file's dates and times, and their correction to today's calendar.

Files of Spark 2, and of later versions in mode LEGACY, count in another calendar. Keys in their
footers record that, which Spark's reader follows (``DataSourceUtils.getRebaseSpec``). Times without
a zone are never moved.

Days before 1582-10-15 were counted in the Julian calendar: such a day becomes the day that has the
same date today (``RebaseDateTime`` of Spark 3 and later). An instant becomes the one that has the
same wall time in the zone of the session that wrote it. Until 1900 Java's older classes have other
offsets for a zone than its newer ones, so that instants after 1582 move as well; a table in one of
Spark's jars contains the differences.
"""

from __future__ import annotations

import bisect
import functools
import glob
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pydantic import BeforeValidator

from krishiv_spark.arrow.compute import Convert, children, is_list, pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.parquet.inputs import Leaves, ParquetInput

__all__ = [
    "GREGORIAN_DAY",
    "INSTANT",
    "SETTLED_SECOND",
    "Calendar",
    "Numbers",
    "RebaseMode",
    "TimeRules",
    "Zone",
    "corrected_schema",
    "find_zone",
    "make_corrections",
    "rebase_days",
    "rebase_micros",
]

GREGORIAN_DAY = -141_427
"""1582-10-15 in days since 1970: from this day on, days are the same."""

SETTLED_SECOND = -2_208_988_800
"""1900-01-01T00:00Z in seconds since 1970: from then on, instants are the same in every zone."""

Numbers: TypeAlias = npt.NDArray[np.int64]

_FIRST_DAY = -719_164  # 0001-01-01 of the Julian calendar
_FIRST_MARCH = -719_470  # 0000-03-01
_DAY_S, _SECOND_US = 86_400, 1_000_000


def rebase_days(old: Numbers) -> Numbers:
    """Return days since 1970. A 29th of February that no longer exists becomes the 1st of March."""
    return np.where(old < GREGORIAN_DAY, old + _count_shift(old), old)


def _count_shift(julian: Numbers) -> Numbers:
    """Return the days from a Julian date to the same date today.

    The number changes with each leap year that is not one today.
    """
    # Four Julian years have 1461 days. Counted from March, a leap day is the last one of its year.
    year = (4 * (julian - _FIRST_MARCH) + 3) // 1461  # years that start with March
    century = year // 100
    shift: Numbers = 2 - century + century // 4
    return shift


class Zone(NamedTuple):
    """A time zone as in Spark."""

    first: int
    offset: int
    diff: int
    switches: Numbers
    diffs: Numbers


def rebase_micros(old: Numbers, zone: Zone) -> Numbers:
    """Return microseconds since 1970, for instants from `Zone.first` on."""
    seconds = old // _SECOND_US
    day = (seconds + zone.offset) // _DAY_S
    index = np.searchsorted(zone.switches, seconds, side="right") - 1
    since = zone.diffs[np.maximum(index, 0)]
    by = np.where(day < GREGORIAN_DAY, zone.diff + _count_shift(day) * _DAY_S, since)
    moved: Numbers = old + by * _SECOND_US
    return moved


def find_zone(name: str) -> Zone | None:
    """Return a zone that Spark knows; None if it does not, or if its jars are not found."""
    return _load_zones().get(name)


@functools.cache
def _load_zones() -> Mapping[str, Zone]:
    """Load Spark's own table: for many zones, the machine's database has another history."""
    zones = {"UTC": _make_zone([_FIRST_DAY * _DAY_S, GREGORIAN_DAY * _DAY_S], [2 * _DAY_S, 0])}
    home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    for jar in glob.glob(f"{home}/jars/spark-sql-api_*.jar"):
        with zipfile.ZipFile(jar) as content:
            entries = json.loads(content.read("julian-gregorian-rebase-micros.json"))
        zones |= {entry["tz"]: _make_zone(entry["switches"], entry["diffs"]) for entry in entries}
    return zones


def _make_zone(switches: Sequence[int], diffs: Sequence[int]) -> Zone:
    """Return a zone of Spark's table, which starts with the midnight of 0001-01-01."""
    offset = _FIRST_DAY * _DAY_S - switches[0]
    since = bisect.bisect_left(switches, GREGORIAN_DAY * _DAY_S - offset)
    later = (np.array(part[since:], np.int64) for part in (switches, diffs))
    return Zone(switches[0], offset, diffs[0] - 2 * _DAY_S, *later)


RebaseMode = Annotated[Literal["EXCEPTION", "CORRECTED", "LEGACY"], BeforeValidator(str.upper)]
"""Spark's names for the treatment of old dates and times: an error, unchanged, or moved."""

INSTANT = pa.timestamp("us", "UTC")
"""Spark's type of a timestamp with a zone."""


@dataclass(frozen=True)
class TimeRules:
    """The rules for times that lack a zone or a calendar.

    Attributes:
        zone: Zone of times without one, and of the session that wrote an old file; None if it is
            not known.
        dates: Mode for files that do not record which Spark wrote them. None is "CORRECTED", as in
            Spark 4, but "EXCEPTION" if Spark wrote them: only 2.4.5 and older do not record it.
        int96: The same for INT96.
    """

    zone: str | None = None
    dates: RebaseMode | None = None
    int96: RebaseMode | None = None


@dataclass(frozen=True)
class Calendar:
    """The calendar of a file.

    Attributes:
        dates: Mode of dates and timestamps.
        int96: Mode of INT96.
        zone: Zone of the session that wrote it; None if it is not known.
    """

    dates: RebaseMode = "CORRECTED"
    int96: RebaseMode = "CORRECTED"
    zone: str | None = None

    @classmethod
    def of(cls, metadata: pq.FileMetaData, rules: TimeRules) -> Calendar:
        """Return the calendar that a footer records, or the rules if it records none."""
        keys = metadata.metadata or {}
        zone = keys.get(b"org.apache.spark.timeZone", b"").decode() or rules.zone
        dates = _choose_mode(keys, b"3.0.0", b"org.apache.spark.legacyDateTime", rules.dates)
        int96 = _choose_mode(keys, b"3.1.0", b"org.apache.spark.legacyINT96", rules.int96)
        return cls(dates, int96, zone)

    def correct(self, old: pa.Array, path: str, *, int96: bool = False) -> pa.Array:
        """Return dates or times in today's calendar; times without a zone are unchanged.

        Raises:
            SchemaError: If the mode refuses one of them, or the zone that it needs is not known.
        """
        if pa.types.is_date(old.type):
            return self._correct_days(old, path)
        return self._correct_instants(old, path, int96=int96) if old.type.tz else old

    def _correct_days(self, old: pa.Array, path: str) -> pa.Array:
        numbers = old.cast(pa.date32()).cast(pa.int32())
        if self.dates == "CORRECTED" or not _any_below(numbers, GREGORIAN_DAY):
            return old
        self._check(self.dates, path, "dates before 1582-10-15")
        return _move(numbers, rebase_days).cast(pa.date32())

    def _correct_instants(self, old: pa.Array, path: str, *, int96: bool) -> pa.Array:
        mode = self.int96 if int96 else self.dates
        limit = SETTLED_SECOND * _PER_SECOND[old.type.unit]
        if mode == "CORRECTED" or not _any_below(old.cast(pa.int64()), limit):
            return old
        self._check(mode, path, "times before 1900")
        zone = self._require_zone(path)
        numbers = old.cast(INSTANT).cast(pa.int64())
        if _any_below(numbers, zone.first * _PER_SECOND["us"]):
            raise SchemaError(f"column {path!r} has times before year 1 in the calendar of Spark 2")
        return _move(numbers, lambda found: rebase_micros(found, zone)).cast(INSTANT)

    def _check(self, mode: RebaseMode, path: str, what: str) -> None:
        if mode == "EXCEPTION":
            raise SchemaError(
                f"column {path!r} has {what}, and the file does not record their calendar: set "
                "the options 'datetimeRebaseMode' and 'int96RebaseMode' to 'LEGACY' if Spark 2 "
                "or Hive wrote them, or to 'CORRECTED', as Spark 4 reads them"
            )

    def _require_zone(self, path: str) -> Zone:
        what = f"column {path!r} has times before 1900 in the calendar of Spark 2"
        if self.zone is None:
            raise SchemaError(
                f"{what}: give the zone of the session that wrote them with the option 'timeZone'"
            )
        zone = find_zone(self.zone)
        if zone is None:
            raise SchemaError(
                f"{what}, written in the zone {self.zone!r}, which is not known here: its "
                "history is in Spark's jar 'spark-sql-api' below SPARK_HOME; without it, leave the "
                "column out, or have Spark's own reader write the file again"
            )
        return zone


_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def _any_below(numbers: pa.Array, limit: int) -> bool:
    least = pc.min(numbers).as_py()
    return least is not None and bool(least < limit)


def _move(numbers: pa.Array, move: Callable[[Numbers], Numbers]) -> pa.Array:
    found = numbers.cast(pa.int64()).fill_null(0).to_numpy()
    mask = numbers.is_null().to_numpy(zero_copy_only=False)
    return pa.array(move(found), numbers.type, mask=mask)


def _choose_mode(
    keys: Mapping[bytes, bytes], since: bytes, legacy: bytes, otherwise: RebaseMode | None
) -> RebaseMode:
    version = keys.get(b"org.apache.spark.version")
    if version is not None:
        # Spark also compares the versions as texts.
        return "LEGACY" if version < since or legacy in keys else "CORRECTED"
    is_of_spark = b"org.apache.spark.sql.parquet.row.metadata" in keys
    return otherwise or ("EXCEPTION" if is_of_spark else "CORRECTED")


# --- the corrections of a file, column by column: INT96 is an instant, though Arrow reads it as a
# time without a zone; and old dates and times may be counted in another calendar


def corrected_schema(file: ParquetInput) -> pa.Schema:
    """Return the columns of a file after `make_corrections`: INT96 is an instant.

    A column of Arrow's null type, which has only nulls, gets the type in which it is stored, as in
    Spark: nulls are read as any type.
    """
    physical = iter(file.physical_types)
    return pa.schema([_correct_field(field, physical) for field in file.schema])


def _correct_field(field: pa.Field, physical: Iterator[str]) -> pa.Field:
    return field.with_type(_correct_type(field.type, physical))


def _correct_type(kind: Any, physical: Iterator[str]) -> pa.DataType:
    """Return a type with instants for INT96; consumes as many leaves as the type has."""
    if isinstance(kind, pa.BaseExtensionType):
        _correct_type(kind.storage_type, physical)  # only to consume its leaves
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([_correct_field(field, physical) for field in children(kind)])
    if pa.types.is_map(kind):
        key = _correct_field(kind.key_field, physical)
        return pa.map_(key, _correct_field(kind.item_field, physical))
    if is_list(kind):
        element = _correct_field(kind.value_field, physical)
        return kind if element.equals(kind.value_field) else pa.list_(element)
    stored = next(physical)
    is_stored = stored == "INT96" or pa.types.is_null(kind)
    return _PHYSICAL.get(stored, pa.binary()) if is_stored else kind


_PHYSICAL = {
    "BOOLEAN": pa.bool_(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "INT96": INSTANT,
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
}


def make_corrections(file: ParquetInput, calendar: Calendar) -> dict[str, Convert]:
    """Return the functions that correct the times of columns; only for columns that need it.

    Each returns an array with instants for INT96, and with all dates and instants in today's
    calendar. It raises a `SchemaError` for values that the mode refuses.
    """
    leaves = Leaves(functools.partial(_correct_leaf, calendar), iter(file.physical_types))
    found = ((field.name, leaves.make_conversion(field.type, field.name)) for field in file.schema)
    return {name: convert for name, convert in found if convert is not None}


def _correct_leaf(calendar: Calendar, kind: Any, physical: str, path: str) -> Convert | None:
    if physical == "INT96":
        return lambda array: calendar.correct(array.cast(INSTANT), path, int96=True)
    counts = pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None)
    if counts and calendar.dates != "CORRECTED":
        return functools.partial(calendar.correct, path=path)
    return None
