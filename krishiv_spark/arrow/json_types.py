"""The conversions from JSON to Arrow: one form for each type. Executor; checked by the driver.

Arrow's reader of JSON decides which JSON a type accepts, and this module decides how a text or a
number becomes a time, a day, bytes or a map. A value is the one that Spark's ``from_json`` gives,
or an error: docs/kafka-json.md has the table, and tests/spark/test_kafka_json.py compares both.
"""

from __future__ import annotations

import binascii
import decimal
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.cast import localize
from krishiv_spark.arrow.compute import (
    Convert,
    children,
    list_with,
    pc,
    same,
    sort_distinct,
    struct_with,
)
from krishiv_spark.arrow.schemas import stands_for
from krishiv_spark.errors import SchemaError

__all__ = [
    "EVERY_TIME",
    "JsonForm",
    "JsonRules",
    "TimeUnit",
    "build_form",
    "cast_if_other",
    "has_decimal",
    "has_map",
    "parse_units",
]

TimeUnit: TypeAlias = Literal["s", "ms", "us", "ns", "d"]
"""The unit of a number that is a time since 1970; ``d`` is for the days of a DATE."""

EVERY_TIME = ""
"""The key of `JsonRules.units` that stands for all fields with a time."""

_INSTANT, _WALL_TIME = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
_EPOCH = pa.decimal128(29, 9)
"""Numbers of 20 digits and a fraction: each unit of 64 bits, and seconds with nanoseconds."""

_MAX_DIGITS = 38
"""Maximum number of digits of a decimal in JSON. Arrow checks only that, and not that the number
fits the type: so decimals are read with 38 digits and twice the bits, and the cast checks it."""

_MICROSECONDS = {
    "s": ("1000000", pa.decimal128(7, 0)),
    "ms": ("1000", pa.decimal128(4, 0)),
    "us": ("1", pa.decimal128(1, 0)),
    "ns": ("0.001", pa.decimal128(4, 3)),
}
"""Microseconds of each unit, as text and type: PyArrow imports pandas to make a scalar."""

_DAY = r"\d{4}-\d\d-\d\d"
_OFFSET = r"(?:Z|[+-](?:0\d|1[0-7])(?::?[0-5]\d)?|[+-]18(?::?00)?)"  # 18 hours are Java's limit
_ZONED = rf"^{_DAY}[T ]\d\d:\d\d:\d\d(?:\.\d+)?{_OFFSET}$"
_LOCAL = rf"^{_DAY}(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?$"
_MIDNIGHT = rf"^{_DAY}(?:[T ]00:00(?::00(?:\.0+)?)?{_OFFSET}?)?$"
_TOO_FINE = r"(\.\d{6})\d+"
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


@dataclass(frozen=True)
class JsonRules:
    """Rules for values that JSON alone does not determine.

    Attributes:
        zone: Time zone of texts without one, for a TIMESTAMP; None if such a text is bad.
        units: By path of a field, as ``order.at``, the unit of its numbers. `EVERY_TIME` is for
            each TIMESTAMP and TIMESTAMP_NTZ that is not named.
    """

    zone: str | None = None
    units: Mapping[str, TimeUnit] = field(default_factory=dict)


def parse_units(given: object) -> object:
    """Parse the option ``epochUnit``: a word, or JSON such as ``{"at": "ms", "order.day": "d"}``.

    Raises:
        ValueError: If it is neither, with an example.
    """
    if not isinstance(given, str):
        return given
    needed = 'write one of s, ms, us, ns, or JSON such as \'{"at": "ms", "day": "d"}\''
    word = given.strip()
    if word in get_args(TimeUnit):
        if word == "d":
            raise ValueError(f"the unit of days is for a DATE, which must be named; {needed}")
        return {EVERY_TIME: word}
    try:
        found = json.loads(word)
    except ValueError:
        raise ValueError(needed) from None
    if not isinstance(found, dict) or not set(map(str, found.values())) <= {*get_args(TimeUnit)}:
        raise ValueError(needed)
    return found


@dataclass(frozen=True)
class JsonForm:
    """A conversion from JSON to values of one type.

    Attributes:
        read: The type that Arrow reads from JSON.
        convert: A function that converts it. It raises `pyarrow.ArrowException` for a bad value.
    """

    read: pa.DataType
    convert: Convert = same


def has_map(kind: pa.DataType) -> bool:
    """Return True if a type is a MAP or contains one."""
    return _contains(kind, pa.types.is_map)


def has_decimal(kind: pa.DataType) -> bool:
    """Return True if a type is a decimal or contains one."""
    return _contains(kind, pa.types.is_decimal)


def _contains(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    if test(kind):
        return True
    return pa.types.is_nested(kind) and any(_contains(each.type, test) for each in children(kind))


def build_form(kind: pa.DataType, rules: JsonRules, path: str = "") -> JsonForm:
    """Return the form of a type.

    Args:
        kind: The type of the values.
        rules: Time zone and units.
        path: Path of the field, with dots between the names.

    Raises:
        SchemaError: If values of the type cannot be read from JSON.
    """
    unit = rules.units.get(path)
    if pa.types.is_timestamp(kind):
        return _build_time_form(kind, rules.zone, unit or rules.units.get(EVERY_TIME))
    if pa.types.is_date(kind):
        # Arrow reads a DATE from a whole number, but not from a text.
        return JsonForm(kind) if unit else JsonForm(pa.string(), _parse_days)
    if pa.types.is_binary(kind):
        return JsonForm(pa.string(), _decode_base64)
    if pa.types.is_decimal(kind):
        return JsonForm(_widen(kind), lambda numbers: numbers.cast(kind))
    make = next((make for test, make in _NESTED if test(kind)), None)
    if make is not None and stands_for(kind) is None:
        return make(kind, rules, path)
    if not any(test(kind) for test in _UNCHANGED):
        raise SchemaError(
            f"field {path!r} has a type that cannot be read from JSON "
            f"({stands_for(kind) or kind}): "
            "declare it as a STRING or a number, or read raw values and use Spark's from_json"
        )
    return JsonForm(kind)


_UNCHANGED: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_null,
)


def _widen(kind: pa.DataType) -> pa.DataType:
    return pa.decimal256(_MAX_DIGITS, kind.scale)


# --- times and days


def _build_time_form(kind: pa.TimestampType, zone: str | None, unit: TimeUnit | None) -> JsonForm:
    if unit is not None:
        return JsonForm(_widen(_EPOCH), lambda numbers: _times_from_epoch(numbers, unit).cast(kind))
    if kind.tz is None:
        return JsonForm(pa.string(), lambda texts: _parse_wall_times(texts).cast(kind))
    return JsonForm(pa.string(), lambda texts: _parse_instants(texts, zone).cast(kind))


def _times_from_epoch(numbers: pa.Array, unit: TimeUnit) -> pa.Array:
    """Return the times; fractions of a microsecond are truncated, as in Spark."""
    text, kind = _MICROSECONDS[unit]
    factor = pa.scalar(decimal.Decimal(text), kind)
    microseconds = pc.floor(pc.multiply(numbers.cast(_EPOCH), factor))
    return microseconds.cast(pa.int64()).cast(_WALL_TIME)


def _parse_instants(texts: pa.Array, zone: str | None) -> pa.Array:
    is_zoned = pc.match_substring_regex(texts, _ZONED)
    if _are_all_true(is_zoned):
        return _truncate_fraction(texts).cast(_INSTANT)
    if zone is None:
        raise pa.ArrowInvalid("a time without a zone")
    zoned = _truncate_fraction(pc.if_else(is_zoned, texts, None)).cast(_INSTANT)
    local = _parse_wall_times(pc.if_else(is_zoned, None, texts))
    return pc.coalesce(zoned, localize(local, zone).cast(_INSTANT))


def _parse_wall_times(texts: pa.Array) -> pa.Array:
    _check_all_match(texts, _LOCAL)
    return _truncate_fraction(texts).cast(_WALL_TIME)


def _truncate_fraction(texts: pa.Array) -> pa.Array:
    """Truncate fractions of a microsecond, as Spark does; Arrow refuses them."""
    return pc.replace_substring_regex(texts, _TOO_FINE, r"\1")


def _parse_days(texts: pa.Array) -> pa.Array:
    """Return days. A time of day other than midnight is refused, since it would be lost."""
    _check_all_match(texts, _MIDNIGHT)
    return pc.utf8_slice_codeunits(texts, 0, len("2000-01-31")).cast(pa.date32())


def _check_all_match(texts: pa.Array, pattern: str) -> None:
    if not _are_all_true(pc.match_substring_regex(texts, pattern)):
        raise pa.ArrowInvalid("a text in another format")


def _are_all_true(flags: pa.Array) -> bool:
    return bool(pc.all(flags, min_count=0).as_py())


# --- bytes


def _decode_base64(texts: pa.Array) -> pa.Array:
    """Decode all texts at once.

    A text is a whole number of groups of four characters, so that the joined texts are one text if
    the padding counts as data. The bytes that the padding was decoded to are removed.
    """
    _check_all_match(texts, _BASE64)
    known = pc.fill_null(texts, "")
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(known)], known), "")[0].as_py()
    decoded = np.frombuffer(binascii.a2b_base64(joined.replace("=", "A")), np.uint8)
    groups = pc.divide(pc.binary_length(known), 4).to_numpy().astype(np.int64)
    padding = pc.count_substring(known, "=").to_numpy().astype(np.int64)
    ends = np.cumsum(groups * 3)
    dropped = np.concatenate([ends[padding > 0] - 1, ends[padding > 1] - 2])
    offsets = np.concatenate([[0], np.cumsum(groups * 3 - padding)]).astype(np.int32)
    data = np.delete(decoded, dropped)
    valid = pc.is_valid(texts)
    found = pa.Array.from_buffers(
        pa.binary(), len(texts), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    return pc.if_else(valid, found, pa.scalar(None, pa.binary()))


# --- nested values


def _build_struct_form(kind: pa.StructType, rules: JsonRules, path: str) -> JsonForm:
    fields = children(kind)
    forms = [build_form(each.type, rules, _join_path(path, each.name)) for each in fields]
    # All of them are nullable: Arrow's reader accepts no other fields.
    read = pa.struct([(each.name, form.read) for each, form in zip(fields, forms, strict=True)])
    if all(form.convert is same for form in forms) and all(each.nullable for each in fields):
        return JsonForm(read)

    def convert(array: pa.StructArray) -> pa.StructArray:
        found = []
        for number, (form, each) in enumerate(zip(forms, fields, strict=True)):
            values = cast_if_other(form.convert(array.field(number)), each.type)
            if not each.nullable:
                _refuse_nulls(values, array)
            found.append(values)
        return struct_with(array, found, fields)

    return JsonForm(read, convert)


def _build_list_form(kind: pa.ListType, rules: JsonRules, path: str) -> JsonForm:
    form = build_form(kind.value_type, rules, path)
    read = pa.list_(form.read)
    if form.convert is same and kind.value_field.nullable:
        return JsonForm(read)

    def convert(array: pa.ListArray) -> pa.ListArray:
        if not kind.value_field.nullable:
            _refuse_nulls(array.flatten())
        return list_with(array, form.convert, kind)

    return JsonForm(read, convert)


def cast_if_other(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values of another type, such as lists whose elements have another name.

    A cast to the same type would fail if a null object has a null in a field that is NOT NULL.
    """
    return values if values.type.equals(kind) else values.cast(kind)


def _refuse_nulls(values: pa.Array, parents: pa.Array | None = None) -> None:
    """Refuse nulls in values that are NOT NULL, unless the object itself is null."""
    if values.null_count:
        is_null = values.is_null()
        if parents is not None:
            is_null = pc.and_(is_null, parents.is_valid())
        if pc.any(is_null).as_py():
            raise pa.ArrowInvalid("null in a field that is NOT NULL")


def _build_map_form(kind: pa.MapType, rules: JsonRules, path: str) -> JsonForm:
    """Return the form of a map, whose objects became lists of pairs (`rewrite_maps`)."""
    if not pa.types.is_string(kind.key_type):
        raise SchemaError(
            f"field {path!r} is a MAP with keys of type {kind.key_type}, and the names in a "
            "JSON object are strings: declare it as MAP<STRING, ...> and cast the keys"
        )
    form = build_form(kind.item_type, rules, path)
    read = pa.list_(pa.struct([("key", pa.string()), ("value", form.read)]))

    def convert(array: pa.ListArray) -> pa.MapArray:
        pairs = array.flatten()
        keys, items = pairs.field(0), form.convert(pairs.field(1))
        if not kind.item_field.nullable:
            _refuse_nulls(items)
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        _refuse_duplicate_keys(keys, lengths)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        mask = array.is_null() if array.null_count else None
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)

    return JsonForm(read, convert)


def _refuse_duplicate_keys(keys: pa.Array, lengths: NDArray[Any]) -> None:
    codes = keys.dictionary_encode()
    maps = np.repeat(np.arange(len(lengths)), lengths)
    entries = maps * max(len(codes.dictionary), 1) + codes.indices.to_numpy()
    if len(sort_distinct(entries)) < len(entries):
        raise pa.ArrowInvalid("a key occurs twice in a map")


_NESTED: tuple[tuple[Callable[[pa.DataType], bool], Callable[..., JsonForm]], ...] = (
    (pa.types.is_struct, _build_struct_form),
    (pa.types.is_list, _build_list_form),
    (pa.types.is_map, _build_map_form),
)


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
