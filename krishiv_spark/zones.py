"""Times without a zone as instants."""

from __future__ import annotations

import zoneinfo
from typing import Annotated

import pyarrow as pa
from pydantic import AfterValidator

from krishiv_spark.compute import pc
from krishiv_spark.suggestions import did_you_mean

__all__ = ["UTC", "Zone", "localized"]

UTC = "UTC"


def _known(name: str) -> str:
    try:
        zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        known = zoneinfo.available_timezones()
        hint = did_you_mean(name, known, "write it as 'Europe/Berlin', 'UTC' or 'Etc/GMT-3'")
        raise ValueError(f"there is no time zone {name!r}; {hint}") from None
    return name


Zone = Annotated[str, AfterValidator(_known)]
"""Name of a zone in the time zone database, such as `Europe/Berlin`."""


def localized(times: pa.Array, zone: str) -> pa.Array:
    """Wall times of a zone as instants, as Spark makes them (``LocalDateTime.atZone``).

    Of a time that comes twice, when clocks are put back, the first one is meant; one that clocks
    pass over is as much later as they are put forward.
    """
    if zone == UTC:
        return times.cast(pa.timestamp(times.type.unit, UTC))
    # In a gap, Arrow gives the last instant before it: the offset there is what counts.
    near = pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="earliest")
    offsets = pc.subtract(pc.local_timestamp(near).cast(pa.int64()), near.cast(pa.int64()))
    instants = pc.subtract_checked(times.cast(pa.int64()), offsets)
    return instants.cast(pa.timestamp(times.type.unit, UTC))
