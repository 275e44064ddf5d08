"""Times without a zone as instants."""

from __future__ import annotations

import datetime as dt
import functools
import zoneinfo
from typing import Annotated

import pyarrow as pa
from pydantic import AfterValidator

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.messages.suggestions import did_you_mean

__all__ = ["UTC", "Zone", "localized"]

UTC = "UTC"

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  a wall time
_ARROWS_END = 2_114_380_800
"""2037-01-01 in seconds since 1970. Arrow has no rules for summer time after that year."""
_CYCLE = 146_097 * 86_400
"""Seconds of 400 years, after which the calendar repeats, weekdays included."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _known(name: str) -> str:
    try:
        zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        known = zoneinfo.available_timezones()
        hint = did_you_mean(name, known, "write it as 'Europe/Berlin', 'UTC' or 'Etc/GMT-3'")
        raise ValueError(f"there is no time zone {name!r}; {hint}") from None
    try:
        _require_in_arrow(name)
    except SchemaError as error:
        raise ValueError(str(error)) from None
    return name


@functools.cache
def _require_in_arrow(zone: str) -> None:
    """Refuse a zone that Arrow does not know: Python may have a database of its own.

    Raises:
        SchemaError: If Arrow does not know it on this machine.
    """
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("s")), zone)
    except pa.ArrowException as error:
        raise SchemaError(
            f"the zone {zone!r} is not in the time zone database of this machine that Arrow uses "
            f"({error}): install the package tzdata of the operating system there"
        ) from error


Zone = Annotated[str, AfterValidator(_known)]
"""Name of a zone in the time zone database, such as `Europe/Berlin`."""


def localized(times: pa.Array, zone: str) -> pa.Array:
    """Wall times of a zone as instants, as Spark makes them (``LocalDateTime.atZone``).

    Of a time that comes twice, when clocks are put back, the first one is meant; one that clocks
    pass over is as much later as they are put forward.

    Raises:
        SchemaError: If this machine has no database of zones that Arrow can use, or not that zone.
    """
    if zone == UTC:
        return times.cast(pa.timestamp(times.type.unit, UTC))
    _require_in_arrow(zone)
    end = pa.scalar(_ARROWS_END, pa.timestamp("s")).cast(times.type)
    is_late = pc.greater_equal(times, end)
    if pc.any(is_late, min_count=0).as_py():
        late = _late_instants(times.filter(is_late), zone)
        near = localized(pc.if_else(is_late, pa.scalar(None, times.type), times), zone)
        return pc.replace_with_mask(near, pc.fill_null(is_late, fill_value=False), late)
    # In a gap, Arrow gives the last instant before it: the offset there is what counts.
    near = pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="earliest")
    offsets = pc.subtract(pc.local_timestamp(near).cast(pa.int64()), near.cast(pa.int64()))
    instants = pc.subtract_checked(times.cast(pa.int64()), offsets)
    return instants.cast(pa.timestamp(times.type.unit, UTC))


def _late_instants(times: pa.Array, zone: str) -> pa.Array:
    """Return the instants of wall times after the last year for which Arrow has rules.

    Python's zoneinfo knows the rules for all later years. It is asked once for each wall time, of
    which there are few: such times are mostly one that stands for the end of time.
    """
    per_second = _PER_SECOND[times.type.unit]
    codes = pc.divide(times.cast(pa.int64()), per_second).dictionary_encode()
    info, offsets = zoneinfo.ZoneInfo(zone), []
    for second in codes.dictionary.to_pylist():
        within = (second - _ARROWS_END) % _CYCLE  # rules repeat, as the calendar does
        wall = _EPOCH + dt.timedelta(seconds=_ARROWS_END + within)
        offset = wall.replace(tzinfo=info).utcoffset() or dt.timedelta()
        offsets.append(int(offset.total_seconds()) * per_second)
    of_each = pa.array(offsets, pa.int64()).take(codes.indices)
    instants = pc.subtract_checked(times.cast(pa.int64()), of_each)
    return instants.cast(pa.timestamp(times.type.unit, UTC))
