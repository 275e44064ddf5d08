"""The calendar of a file's dates and times, and what it takes to count them in ours.

Files of Spark 2, and of later ones in mode LEGACY, count in another calendar. Keys in their footers
record that, which Spark's reader follows (``DataSourceUtils.getRebaseSpec``). Times without a zone
are never moved.

Days before 1582-10-15 were counted in the Julian calendar: such a day becomes the day that has the
same date in ours (``RebaseDateTime`` of Spark 3 and later). An instant becomes the one that has the
same wall time in the zone of the session that wrote it. Until 1900 Java's older classes have other
offsets for a zone than its newer ones, so that instants after 1582 move as well; by how much is in
a table in one of Spark's jars.
"""

from __future__ import annotations

import bisect
import functools
import glob
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pydantic import BeforeValidator

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import SchemaError

__all__ = [
    "GREGORIAN_DAY",
    "INSTANT",
    "SETTLED_SECOND",
    "Calendar",
    "Numbers",
    "RebaseMode",
    "TimeRules",
    "Zone",
    "days",
    "known_zone",
    "micros",
]

GREGORIAN_DAY = -141_427
"""1582-10-15 in days since 1970: from here on days are the same."""

SETTLED_SECOND = -2_208_988_800
"""1900-01-01T00:00Z in seconds since 1970: from here on instants are the same in every zone."""

Numbers: TypeAlias = npt.NDArray[np.int64]

_FIRST_DAY = -719_164  # 0001-01-01 of the Julian calendar
_FIRST_MARCH = -719_470  # 0000-03-01
_DAY_S, _SECOND_US = 86_400, 1_000_000


def days(old: Numbers) -> Numbers:
    """Days since 1970 as ours. A 29th of February that we do not have becomes the 1st of March."""
    return np.where(old < GREGORIAN_DAY, old + _shift(old), old)


def _shift(julian: Numbers) -> Numbers:
    """Days from a date to the same one of ours; it changes where a leap year is none any more."""
    # Four Julian years have 1461 days. Counted from March, a leap day is the last one of its year.
    year = (4 * (julian - _FIRST_MARCH) + 3) // 1461  # years that begin with March
    century = year // 100
    shift: Numbers = 2 - century + century // 4
    return shift


class Zone(NamedTuple):
    """A zone as Spark knows it.

    Attributes:
        first: Instant of 0001-01-01, in seconds since 1970. About earlier ones each JVM has its own
            opinion.
        offset: Seconds that clocks were ahead of UTC before 1582, as Java's older classes have it.
        diff: Seconds by which they have it differently from its newer ones.
        switches: Instants since 1582 from which on another difference holds, in seconds since 1970.
        diffs: These differences in seconds.
    """

    first: int
    offset: int
    diff: int
    switches: Numbers
    diffs: Numbers


def micros(old: Numbers, zone: Zone) -> Numbers:
    """Microseconds since 1970 as ours, of instants from `Zone.first` on."""
    seconds = old // _SECOND_US
    day = (seconds + zone.offset) // _DAY_S
    place = np.searchsorted(zone.switches, seconds, side="right") - 1
    since = zone.diffs[np.maximum(place, 0)]
    by = np.where(day < GREGORIAN_DAY, zone.diff + _shift(day) * _DAY_S, since)
    moved: Numbers = old + by * _SECOND_US
    return moved


def known_zone(name: str) -> Zone | None:
    """A zone that Spark knows; None if it does not, or if its jars are not found here."""
    return _zones().get(name)


@functools.cache
def _zones() -> Mapping[str, Zone]:
    """From Spark's own table: for many zones, the machine's database has another history."""
    known = {"UTC": _zone([_FIRST_DAY * _DAY_S, GREGORIAN_DAY * _DAY_S], [2 * _DAY_S, 0])}
    home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    for jar in glob.glob(f"{home}/jars/spark-sql-api_*.jar"):
        with zipfile.ZipFile(jar) as content:
            entries = json.loads(content.read("julian-gregorian-rebase-micros.json"))
        known |= {entry["tz"]: _zone(entry["switches"], entry["diffs"]) for entry in entries}
    return known


def _zone(switches: Sequence[int], diffs: Sequence[int]) -> Zone:
    """A zone of Spark's table, which begins with the midnight of 0001-01-01."""
    offset = _FIRST_DAY * _DAY_S - switches[0]
    since = bisect.bisect_left(switches, GREGORIAN_DAY * _DAY_S - offset)
    later = (np.array(part[since:], np.int64) for part in (switches, diffs))
    return Zone(switches[0], offset, diffs[0] - 2 * _DAY_S, *later)


RebaseMode = Annotated[Literal["EXCEPTION", "CORRECTED", "LEGACY"], BeforeValidator(str.upper)]
"""Spark's names for what old dates and times are: an error, right as they are, or to be moved."""

INSTANT = pa.timestamp("us", "UTC")
"""What Spark has for a timestamp with a zone."""


@dataclass(frozen=True)
class TimeRules:
    """How times are read that do not say enough of themselves.

    Attributes:
        zone: Zone of times without one, and of the session that wrote an old file; None if it is
            not known.
        dates: For files that do not say which Spark wrote them. None is "CORRECTED", as in Spark 4,
            but "EXCEPTION" if Spark wrote them: only 2.4.5 and older do not say so.
        int96: The same for INT96.
    """

    zone: str | None = None
    dates: RebaseMode | None = None
    int96: RebaseMode | None = None


@dataclass(frozen=True)
class Calendar:
    """The calendar of a file.

    Attributes:
        dates: What is done with dates and timestamps.
        int96: What is done with INT96.
        zone: Zone of the session that wrote it; None if it is not known.
    """

    dates: RebaseMode = "CORRECTED"
    int96: RebaseMode = "CORRECTED"
    zone: str | None = None

    @classmethod
    def of(cls, metadata: pq.FileMetaData, rules: TimeRules) -> Calendar:
        """The calendar that a footer tells, or else the rules."""
        keys = metadata.metadata or {}
        zone = keys.get(b"org.apache.spark.timeZone", b"").decode() or rules.zone
        dates = _mode(keys, b"3.0.0", b"org.apache.spark.legacyDateTime", rules.dates)
        int96 = _mode(keys, b"3.1.0", b"org.apache.spark.legacyINT96", rules.int96)
        return cls(dates, int96, zone)

    def corrected(self, old: pa.Array, path: str, *, int96: bool = False) -> pa.Array:
        """Dates or times as ours; those without a zone as they are.

        Raises:
            SchemaError: If the mode refuses one of them, or the zone that it needs is not known.
        """
        if pa.types.is_date(old.type):
            return self._days(old, path)
        return self._instants(old, path, int96=int96) if old.type.tz else old

    def _days(self, old: pa.Array, path: str) -> pa.Array:
        numbers = old.cast(pa.date32()).cast(pa.int32())
        if self.dates == "CORRECTED" or not _any_below(numbers, GREGORIAN_DAY):
            return old
        self._check(self.dates, path, "dates before 1582-10-15")
        return _moved(numbers, days).cast(pa.date32())

    def _instants(self, old: pa.Array, path: str, *, int96: bool) -> pa.Array:
        mode = self.int96 if int96 else self.dates
        limit = SETTLED_SECOND * _PER_SECOND[old.type.unit]
        if mode == "CORRECTED" or not _any_below(old.cast(pa.int64()), limit):
            return old
        self._check(mode, path, "times before 1900")
        zone = self._known_zone(path)
        numbers = old.cast(INSTANT).cast(pa.int64())
        if _any_below(numbers, zone.first * _PER_SECOND["us"]):
            raise SchemaError(f"column {path!r} has times before year 1 in the calendar of Spark 2")
        return _moved(numbers, lambda found: micros(found, zone)).cast(INSTANT)

    def _check(self, mode: RebaseMode, path: str, what: str) -> None:
        if mode == "EXCEPTION":
            raise SchemaError(
                f"column {path!r} has {what}, and the file does not record their calendar: set "
                "the options 'datetimeRebaseMode' and 'int96RebaseMode' to 'LEGACY' if Spark 2 "
                "or Hive wrote them, or to 'CORRECTED', as Spark 4 reads them"
            )

    def _known_zone(self, path: str) -> Zone:
        what = f"column {path!r} has times before 1900 in the calendar of Spark 2"
        if self.zone is None:
            raise SchemaError(
                f"{what}: give the zone of the session that wrote them with the option 'timeZone'"
            )
        zone = known_zone(self.zone)
        if zone is None:
            raise SchemaError(
                f"{what}, written in the zone {self.zone!r}, of which nothing is known here: its "
                "history is in Spark's jar 'spark-sql-api' below SPARK_HOME; without it, leave the "
                "column out, or have Spark's own reader write the file again"
            )
        return zone


_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def _any_below(numbers: pa.Array, limit: int) -> bool:
    least = pc.min(numbers).as_py()
    return least is not None and bool(least < limit)


def _moved(numbers: pa.Array, move: Callable[[Numbers], Numbers]) -> pa.Array:
    found = numbers.cast(pa.int64()).fill_null(0).to_numpy()
    mask = numbers.is_null().to_numpy(zero_copy_only=False)
    return pa.array(move(found), numbers.type, mask=mask)


def _mode(
    keys: Mapping[bytes, bytes], since: bytes, legacy: bytes, otherwise: RebaseMode | None
) -> RebaseMode:
    version = keys.get(b"org.apache.spark.version")
    if version is not None:
        # Compared as text, which is what Spark does with it.
        return "LEGACY" if version < since or legacy in keys else "CORRECTED"
    is_of_spark = b"org.apache.spark.sql.parquet.row.metadata" in keys
    return otherwise or ("EXCEPTION" if is_of_spark else "CORRECTED")
