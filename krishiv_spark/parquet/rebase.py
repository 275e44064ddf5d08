"""From the calendar that Spark 2 counted in to ours (``RebaseDateTime`` of Spark 3 and later).

Days before 1582-10-15 were counted in the Julian calendar: such a day becomes the day that has the
same date in ours. An instant becomes the one that has the same wall time in the zone of the session
that wrote it. Until 1900 Java's older classes have other offsets for a zone than its newer ones, so
that instants after 1582 move as well; by how much is in a table in one of Spark's jars.
"""

from __future__ import annotations

import bisect
import functools
import glob
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyspark

__all__ = ["GREGORIAN_DAY", "SETTLED_SECOND", "Numbers", "Zone", "days", "known_zone", "micros"]

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
