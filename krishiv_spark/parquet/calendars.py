"""What a file says about the calendar of its dates and times.

Files of Spark 2, and of later ones in mode LEGACY, count in another calendar
(`krishiv_spark.parquet.rebase`). They say so by keys in their footers, which Spark's reader follows
(``DataSourceUtils.getRebaseSpec``). Times without a zone are never moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BeforeValidator

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.parquet import rebase

__all__ = ["INSTANT", "Calendar", "RebaseMode", "TimeRules"]

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
        if self.dates == "CORRECTED" or not _any_below(numbers, rebase.GREGORIAN_DAY):
            return old
        self._check(self.dates, path, "dates before 1582-10-15")
        return _moved(numbers, rebase.days).cast(pa.date32())

    def _instants(self, old: pa.Array, path: str, *, int96: bool) -> pa.Array:
        mode = self.int96 if int96 else self.dates
        limit = rebase.SETTLED_SECOND * _PER_SECOND[old.type.unit]
        if mode == "CORRECTED" or not _any_below(old.cast(pa.int64()), limit):
            return old
        self._check(mode, path, "times before 1900")
        zone = self._known_zone(path)
        numbers = old.cast(INSTANT).cast(pa.int64())
        if _any_below(numbers, zone.first * _PER_SECOND["us"]):
            raise SchemaError(f"column {path!r} has times before year 1 in the calendar of Spark 2")
        return _moved(numbers, lambda found: rebase.micros(found, zone)).cast(INSTANT)

    def _check(self, mode: RebaseMode, path: str, what: str) -> None:
        if mode == "EXCEPTION":
            raise SchemaError(
                f"column {path!r} has {what}, and the file does not tell their calendar: set the "
                "options 'datetimeRebaseMode' and 'int96RebaseMode' to 'LEGACY' if Spark 2 or Hive "
                "wrote them, or to 'CORRECTED', as Spark 4 reads them"
            )

    def _known_zone(self, path: str) -> rebase.Zone:
        what = f"column {path!r} has times before 1900 in the calendar of Spark 2"
        if self.zone is None:
            raise SchemaError(
                f"{what}: give the zone of the session that wrote them with the option 'timeZone'"
            )
        zone = rebase.known_zone(self.zone)
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


def _moved(numbers: pa.Array, move: Callable[[rebase.Numbers], rebase.Numbers]) -> pa.Array:
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
