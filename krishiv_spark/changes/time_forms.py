"""Times in the forms of Debezium and Connect: numbers with a unit, and texts. Executor."""

from __future__ import annotations

import pyarrow as pa

from krishiv_spark.arrow.compute import Convert, pc
from krishiv_spark.arrow.json_types import JsonRules, build_form
from krishiv_spark.changes.options import TimestampUnit

__all__ = ["build_time_text", "from_days", "to_times", "to_timestamps"]

_PER_UNIT = {"ms": 1000, "us": 1, "ns": 1}
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999 in microseconds since 1970, which dates of Python and Iceberg's bounds have.
PostgreSQL's infinite times are beyond them."""
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896


def build_time_text(kind: pa.DataType) -> tuple[pa.DataType, Convert]:
    """Return the type in which ISO texts of a type are read, and their conversion."""
    if pa.types.is_time(kind):
        return pa.string(), lambda texts: _parse_times(texts, kind)
    form = build_form(kind, JsonRules())
    # The mode ``isostring`` writes all of them with a zone, which is UTC.
    if pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
        return form.read, lambda texts: form.convert(pc.replace_substring_regex(texts, r"Z$", ""))
    return form.read, form.convert


def from_days(days: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert numbers of days since 1970."""
    _check_between(days, _FIRST_DAY, _LAST_DAY)
    return days.cast(pa.date32()).cast(kind)


def _to_microseconds(numbers: pa.Array, unit: TimestampUnit) -> pa.Array:
    if unit == "ns":
        # Arrow divides towards zero; times before 1970 are rounded down, as later ones.
        rest = pc.bit_wise_and(pc.shift_right(numbers, 63), pa.scalar(999, pa.int64()))
        return pc.divide(pc.subtract(numbers, rest), pa.scalar(1000, pa.int64()))
    factor = pa.scalar(_PER_UNIT[unit], pa.int64())
    return pc.multiply_checked(numbers, factor)


def to_timestamps(numbers: pa.Array, unit: TimestampUnit, kind: pa.DataType) -> pa.Array:
    """Convert numbers since 1970 to timestamps; finer units are rounded down."""
    found = _to_microseconds(numbers, unit)
    _check_between(found, _FIRST_US, _LAST_US)
    return found.cast(pa.timestamp("us")).cast(kind)


def to_times(numbers: pa.Array, unit: TimestampUnit, kind: pa.DataType) -> pa.Array:
    """Convert numbers since midnight to times of a day."""
    found = _to_microseconds(numbers, unit)
    _check_between(found, 0, 86_400_000_000 - 1)
    return found.cast(pa.time64("us")).cast(kind)


def _parse_times(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    local = pc.replace_substring_regex(texts, r"Z$", "")
    stamps = pc.binary_join_element_wise("1970-01-01T", local, "").cast(pa.timestamp("us"))
    return stamps.cast(pa.int64()).cast(pa.time64("us")).cast(kind)


def _check_between(numbers: pa.Array, first: int, last: int) -> None:
    found = pc.min_max(numbers).as_py()
    if found["min"] is not None and (found["min"] < first or found["max"] > last):
        raise pa.ArrowInvalid("a time outside of the years 1 to 9999, or of a day")
