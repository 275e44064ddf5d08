"""Values that Arrow does not cast as Spark does: UUIDs, times of a zone, decimals near zero."""

from __future__ import annotations

import datetime as dt
import functools
import json
import re
import zoneinfo
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import AfterValidator

from krishiv_spark.arrow.compute import children, pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.messages.suggestions import did_you_mean

__all__ = [
    "UTC",
    "Zone",
    "has_tiny_decimal",
    "is_tiny",
    "is_uuid",
    "localize",
    "uuid_bytes",
    "uuid_texts",
]

# --- UUIDs, which are text in Spark (``TypeToSparkType`` of Iceberg), and bytes in files

_SIZE = 16
_CANONICAL = r"\A[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\z"
_NIL = "00000000-0000-0000-0000-000000000000"
_MOST_SHOWN = 100

_HEX = np.frombuffer(bytes(range(256)).hex().encode(), np.uint8).reshape(256, 2)
# All but the four hyphens.
_DIGITS = [index for index in range(36) if index not in {8, 13, 18, 23}]


def uuid_texts(array: pa.FixedSizeBinaryArray) -> pa.StringArray:
    """Return UUIDs of 16 bytes as `00000000-0000-0000-0000-000000000000`."""
    raw = np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, 16)
    digits = _HEX[raw[array.offset : array.offset + len(array)]].reshape(-1, 32)
    text = np.full((len(array), 36), ord("-"), np.uint8)
    text[:, _DIGITS] = digits
    offsets = pa.array(np.arange(len(array) + 1, dtype=np.int32) * 36)
    whole = pa.StringArray.from_buffers(len(array), offsets.buffers()[1], pa.py_buffer(text))
    return pc.if_else(array.is_valid(), whole, pa.scalar(None, pa.string()))


def is_uuid(kind: pa.DataType) -> bool:
    """Return True for Arrow's type of UUIDs."""
    return str(kind) == "extension<arrow.uuid>"


def uuid_bytes(array: pa.Array) -> pa.FixedSizeBinaryArray:
    """Return UUIDs of 16 bytes: of texts in the canonical form, in any case, or of such bytes.

    Raises:
        ValueError: If a value is no UUID; the error shows the first one.
    """
    if pa.types.is_fixed_size_binary(array.type) and array.type.byte_width == _SIZE:
        return array
    if not pa.types.is_string(array.type):
        _reject_uuids(array, pc.not_equal(pc.binary_length(array), _SIZE), "it must have 16 bytes")
        return array.cast(pa.binary(_SIZE))
    strange = pc.invert(pc.match_substring_regex(array, _CANONICAL))
    _reject_uuids(array, strange, f"write it as {_NIL}")
    texts = pc.fill_null(array, _NIL)
    ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    text = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]].reshape(-1, 36)
    digits = _NUMBERS[text[:, _DIGITS]]
    raw = np.ascontiguousarray(digits[:, 0::2] << 4 | digits[:, 1::2])
    kind = pa.binary(_SIZE)
    whole = pa.FixedSizeBinaryArray.from_buffers(kind, len(texts), [None, pa.py_buffer(raw)])
    return pc.if_else(array.is_valid(), whole, pa.scalar(None, kind))


_NUMBERS = np.zeros(256, np.uint8)
"""The numbers of hexadecimal digits, by their ASCII codes."""
for _digit in "0123456789abcdefABCDEF":
    _NUMBERS[ord(_digit)] = int(_digit, 16)


def _reject_uuids(array: pa.Array, strange: pa.BooleanArray, advice: str) -> None:
    wrong = array.filter(strange)
    if len(wrong):
        shown = repr(wrong[0].as_py())[:_MOST_SHOWN]
        raise ValueError(f"{shown} is not a UUID: {advice}")


# --- times without a zone

UTC = "UTC"

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  a wall time
_ARROWS_END = 2_114_380_800
"""2037-01-01 in seconds since 1970. Arrow has no rules for summer time after that year."""
_CYCLE = 146_097 * 86_400
"""Seconds of 400 years, after which the calendar repeats, weekdays included."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _check_zone(name: str) -> str:
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
    """Reject a zone that Arrow does not know: Python may have another database.

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


Zone = Annotated[str, AfterValidator(_check_zone)]
"""Name of a zone in the time zone database, such as `Europe/Berlin`."""


def localize(times: pa.Array, zone: str) -> pa.Array:
    """Return the instants of wall times of a zone, as Spark does (``LocalDateTime.atZone``).

    A time that occurs twice, when clocks are put back, is the first of the two; a time that clocks
    skip is later by as much as they are put forward.

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
        near = localize(pc.if_else(is_late, pa.scalar(None, times.type), times), zone)
        return pc.replace_with_mask(near, pc.fill_null(is_late, fill_value=False), late)
    # In a gap, Arrow returns the last instant before it, whose offset applies.
    near = pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="earliest")
    offsets = pc.subtract(pc.local_timestamp(near).cast(pa.int64()), near.cast(pa.int64()))
    instants = pc.subtract_checked(times.cast(pa.int64()), offsets)
    return instants.cast(pa.timestamp(times.type.unit, UTC))


def _late_instants(times: pa.Array, zone: str) -> pa.Array:
    """Return the instants of wall times after the last year for which Arrow has rules.

    Python's zoneinfo has the rules for all later years. It is called once for each different wall
    time. There are few: most such values are one that stands for the end of time.
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


# --- decimals near zero

# For an exponent far below zero, Arrow reads a power of ten after the end of its table. It uses the
# bytes there as the power, or the process ends.

# Arrow's table ends with 10^76, and the 38 digits of a decimal may all be a fraction.
_EXPONENT = r"-0*(?:39|[4-9][0-9]|[1-9][0-9][0-9])[0-9]*"
_NUMBER = re.compile(rf"[eE]{_EXPONENT}")
_VALUE = rf'{_EXPONENT}\s*[",}}\]]'
_SEARCHES = [re.compile(f"{sign}{_VALUE}".encode()) for sign in "eE"]  # ten times faster than [eE]


def is_tiny(text: str) -> bool:
    """Return True if a text is a number with an exponent below -38."""
    return _NUMBER.search(text) is not None


def has_tiny_decimal(lines: pa.Buffer, texts: pa.Array, kind: pa.DataType) -> bool:
    """Return True if a decimal has an exponent below -38. Other numbers may have one.

    Args:
        lines: The text of all objects.
        texts: The objects.
        kind: The type that is read from each of them. A list of pairs is read from an object.
    """
    if all(each.search(lines) is None for each in _SEARCHES):  # without a copy
        return False
    suspects = texts.filter(pc.match_substring_regex(texts, f"[eE]{_VALUE}"))
    return any(_reads_tiny(value, kind) for value in suspects.to_pylist())


def _reads_tiny(value: bytes, kind: pa.DataType) -> bool:
    try:
        found = json.loads(value, parse_float=str, strict=False)
    except (ValueError, RecursionError):
        return True  # it may be one
    return _is_tiny_in(found, kind)


def _is_tiny_in(found: Any, kind: Any) -> bool:
    if pa.types.is_decimal(kind):
        return isinstance(found, str) and is_tiny(found)
    if isinstance(found, dict) and pa.types.is_struct(kind):
        return any(_is_tiny_in(found.get(each.name), each.type) for each in children(kind))
    if isinstance(found, dict) and pa.types.is_list(kind):
        item = kind.value_type.field("value").type
        return any(_is_tiny_in(each, item) for each in found.values())
    if isinstance(found, list) and pa.types.is_list(kind):
        return any(_is_tiny_in(each, kind.value_type) for each in found)
    return False
