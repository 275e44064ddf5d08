"""The forms in which Debezium writes the values of a type, and their conversion. Executor.

Debezium has several forms for one type: a decimal is the base64 of a number, a text, or an object
with its own scale (``decimal.handling.mode``); a time is a number of days, milliseconds,
microseconds or nanoseconds, or a text (``time.precision.mode``). The type of the table's column
determines the value; an option, or the schema that a record carries, says how to read a form that
is not decidable from the value. No form is guessed from the size of a number.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import md5
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.cast import is_uuid
from krishiv_spark.arrow.compute import (
    Convert,
    children,
    list_with,
    map_with,
    pc,
    same,
    struct_with,
)
from krishiv_spark.arrow.json_types import JsonRules, build_form
from krishiv_spark.changes.options import TimestampUnit, ValueRules
from krishiv_spark.errors import SchemaError

__all__ = [
    "Encoding",
    "JsonKind",
    "build_encoding",
    "default_kind",
    "find_kind",
    "to_decoded_type",
]

JsonKind: TypeAlias = Literal["number", "text", "bool", "object", "array"]
"""The kind of a JSON value; null has none."""

_PER_UNIT = {"ms": 1000, "us": 1, "ns": 1}
_MOST_BYTES = 16
_MOST_SCALE = 16_383  # of PostgreSQL
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999 in microseconds since 1970, which dates of Python and Iceberg's bounds have.
PostgreSQL's infinite times are beyond them."""
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_SCALED = pa.struct([("scale", pa.int32()), ("value", pa.string())])
"""Debezium's ``VariableScaleDecimal``."""


@dataclass(frozen=True)
class Encoding:
    """One form of the values of a column.

    Attributes:
        read: The type that is read from JSON.
        convert: A function that converts it. It raises `pyarrow.ArrowException` or `SchemaError`
            for a bad value.
        is_kept: A function that returns True for each value that stands for an unchanged one; None
            if no value can.
    """

    read: pa.DataType
    convert: Convert = same
    is_kept: Convert | None = None


def to_decoded_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values of a column are decoded; the sink converts it to its own."""
    if is_uuid(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if not pa.types.is_nested(kind):
        return kind
    fields = [pa.field(each.name, to_decoded_type(each.type)) for each in children(kind)]
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        return pa.map_(to_decoded_type(kind.key_type), to_decoded_type(kind.item_type))
    return pa.list_(fields[0].with_name("element"))


def find_kind(value: object) -> JsonKind | None:
    """Return the kind of a value of Python's `json`; None for null."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "text"
    return "object" if isinstance(value, dict) else "array"


def default_kind(kind: pa.DataType) -> JsonKind:
    """Return the kind of most values of a type, for a column that has only nulls so far."""
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_list(kind):
        return "array"
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return "object"
    if pa.types.is_timestamp(kind):
        return "text" if kind.tz else "number"
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind)
    return "text" if is_text else "number"


def build_encoding(
    kind: pa.DataType,
    given: JsonKind,
    name: str,
    rules: ValueRules,
    element: JsonKind | None = None,
) -> Encoding:
    """Return the encoding of a column whose values have some kind in JSON.

    Args:
        kind: The type of the column, as of `to_decoded_type`.
        given: The kind of its values.
        name: Name of the column.
        rules: Rules for what JSON does not determine.
        element: The kind of the elements of an array; None for the usual one.

    Raises:
        SchemaError: If values of the type cannot have this kind.
    """
    build = next((build for test, build in _BUILDERS if test(kind)), None)
    made = None if build is None else build(kind, given, _ValueColumn(name, rules, element))
    if made is None:
        raise SchemaError(f"field {name!r} has {_KINDS[given]}, which is no {_describe(kind)}")
    return made


@dataclass(frozen=True)
class _ValueColumn:
    """A column whose encoding is built: see `build_encoding`."""

    name: str
    rules: ValueRules
    element: JsonKind | None = None

    def is_placeholder(self, texts: pa.Array) -> pa.Array:
        """Return True for each text that is the placeholder, also of an ``hstore`` or of bytes."""
        word = self.rules.placeholder
        stores = [json.dumps({word: word}, separators=(",", sign)) for sign in (":", ": ")]
        raw = base64.b64encode(word.encode()).decode()
        return pc.is_in(texts, pa.array([word, raw, *stores]))


_KINDS: dict[JsonKind, str] = {
    "number": "a number",
    "text": "a text",
    "bool": "true or false",
    "object": "an object",
    "array": "an array",
}


def _describe(kind: pa.DataType) -> str:
    from krishiv_spark.arrow.schemas import spark_schema

    try:
        return spark_schema(pa.schema([("x", kind)])).fields[0].dataType.simpleString().upper()
    except Exception:  # noqa: BLE001  a type that only the table has, for a message
        return str(kind)


def _build_plain(kind: pa.DataType, given: JsonKind, column: _ValueColumn) -> Encoding | None:
    del column
    usual = default_kind(kind)
    if given == "text" and pa.types.is_floating(kind):
        # NaN and Infinity, which JSON has no numbers for.
        return Encoding(pa.string(), lambda texts: texts.cast(kind))
    if given == usual == "number" and pa.types.is_float32(kind):
        return Encoding(pa.float64(), _to_floats)
    return Encoding(kind) if given == usual else None


def _to_floats(numbers: pa.Array) -> pa.Array:
    found = numbers.cast(pa.float32())
    if pc.any(pc.xor(pc.is_inf(found), pc.is_inf(numbers)), min_count=0).as_py():
        raise pa.ArrowInvalid("a number beyond the range of a FLOAT")
    return found


def _build_text(kind: pa.DataType, given: JsonKind, column: _ValueColumn) -> Encoding | None:
    if given == "object":  # a NUMERIC without a scale has more digits than any decimal
        return Encoding(_SCALED, _format_scaled_objects)
    scale = column.rules.scales.get(column.name)
    if scale is not None and given == "text":
        return Encoding(kind, lambda texts: _format_unscaled(texts, scale), column.is_placeholder)
    return Encoding(kind, is_kept=column.is_placeholder) if given == "text" else None


def _build_bytes(kind: pa.DataType, given: JsonKind, column: _ValueColumn) -> Encoding | None:
    del kind
    if given != "text":
        return None
    raw = column.rules.placeholder.encode()
    if column.rules.binaries == "hex":
        kept = pa.array([raw.hex(), raw.decode()])
        return Encoding(pa.string(), _decode_hex, lambda texts: pc.is_in(texts, kept))
    both = pa.array([base64.b64encode(raw).decode(), raw.decode()])
    return Encoding(pa.string(), _decode_base64, lambda texts: pc.is_in(texts, both))


def _decode_hex(texts: pa.Array) -> pa.Array:
    """Decode hexadecimal digits, all texts at once."""
    if not pc.all(pc.match_substring_regex(texts, _HEX), min_count=0).as_py():
        raise pa.ArrowInvalid("a text that is not hexadecimal")
    known = pc.fill_null(texts, "")
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(known)], known), "")[0].as_py()
    sizes = pc.binary_length(known).to_numpy().astype(np.int64) // 2
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(bytes.fromhex(joined))]
    found = pa.Array.from_buffers(pa.binary(), len(texts), buffers)
    return pc.if_else(texts.is_valid(), found, pa.scalar(None, pa.binary()))


_HEX = r"^(?:[0-9A-Fa-f]{2})*$"
_decode_base64: Convert = build_form(pa.binary(), JsonRules()).convert


# --- decimals


def _build_decimal(kind: pa.DataType, given: JsonKind, column: _ValueColumn) -> Encoding | None:
    rules, name, kept = column.rules, column.name, column.is_placeholder
    if given == "number":
        return Encoding(kind)
    if given == "object":
        return Encoding(_SCALED, lambda objects: _from_scaled_objects(objects, kind))
    if given != "text":
        return None
    if rules.decimals == "string" and name not in rules.scales:
        return Encoding(pa.string(), lambda texts: _from_decimal_texts(texts, kind), kept)
    scale = rules.scales.get(name, kind.scale)
    return Encoding(pa.string(), lambda texts: _from_unscaled(texts, scale, kind), kept)


def _from_decimal_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    wide = pa.decimal256(76, kind.scale)
    return texts.cast(wide).cast(kind)


def _from_unscaled(texts: pa.Array, scale: int, kind: pa.DataType) -> pa.Array:
    """Convert base64 of big-endian numbers in two's complement (Connect's ``Decimal``)."""
    unscaled = _read_unscaled(_decode_base64(texts))
    return _rescale(unscaled, scale, kind)


def _from_scaled_objects(objects: pa.StructArray, kind: pa.DataType) -> pa.Array:
    """Convert objects with a scale each to decimals."""
    texts, scales = objects.field("value"), objects.field("scale")
    valid = objects.is_valid()
    if pc.any(pc.and_(valid, pc.or_(texts.is_null(), scales.is_null()))).as_py():
        raise pa.ArrowInvalid("an object without scale and value")
    unscaled = _read_unscaled(_decode_base64(pc.if_else(valid, texts, None)))
    found = np.where(valid, pc.fill_null(scales, 0), 0)
    rows: list[NDArray[np.int64]] = []
    parts: list[pa.Array] = []
    for scale in np.unique(found):
        rows.append(np.flatnonzero(found == scale))
        parts.append(_rescale(unscaled.take(pa.array(rows[-1])), int(scale), kind))
    order = np.argsort(np.concatenate(rows)) if rows else np.empty(0, np.int64)
    return pa.concat_arrays(parts or [pa.array([], kind)]).take(pa.array(order))


def _format_scaled_objects(objects: pa.StructArray) -> pa.Array:
    """Format objects with a scale each as texts of all digits, as the database shows them.

    They may have thousands of digits, so that only Python has the numbers.
    """
    pairs = zip(objects.field("scale").to_pylist(), objects.field("value").to_pylist(), strict=True)
    valid = objects.is_valid().to_pylist()
    found = [
        _format_scaled(*pair) if is_there else None
        for pair, is_there in zip(pairs, valid, strict=True)
    ]
    return pa.array(found, pa.string())


def _format_unscaled(texts: pa.Array, scale: int) -> pa.Array:
    return pa.array(
        [None if text is None else _format_scaled(scale, text) for text in texts.to_pylist()],
        pa.string(),
    )


def _format_scaled(scale: int | None, value: str | None) -> str:
    if scale is None or value is None or abs(scale) > _MOST_SCALE:
        raise pa.ArrowInvalid("an object without a scale and a value")
    number = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
    if scale <= 0:
        return str(number * 10**-scale)
    digits = str(abs(number)).rjust(scale + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def _rescale(unscaled: pa.Array, scale: int, kind: pa.DataType) -> pa.Array:
    """Return decimals of a type; digits that it does not have are an error."""
    if not -_MOST_BYTES <= scale <= 38:  # noqa: PLR2004  digits of a decimal of 16 bytes
        raise pa.ArrowInvalid("a scale that no decimal has")
    whole = pa.Array.from_buffers(pa.decimal128(38, scale), len(unscaled), unscaled.buffers())
    return whole.cast(pa.decimal256(76, max(scale, kind.scale))).cast(kind)


def _read_unscaled(numbers: pa.Array) -> pa.Array:
    """Return big-endian numbers of 1 to 16 bytes as decimals with scale 0.

    Raises:
        ArrowInvalid: If a number is empty or longer.
    """
    lengths = pc.fill_null(pc.binary_length(numbers), 0).to_numpy().astype(np.int64)
    valid = numbers.is_valid().to_numpy(zero_copy_only=False)
    if (lengths > _MOST_BYTES).any() or (lengths[valid] == 0).any():
        raise pa.ArrowInvalid("a number without digits, or with too many")
    joined = pc.binary_join(
        pa.ListArray.from_arrays([0, len(numbers)], pc.fill_null(numbers, b"")), b""
    )[0].as_py()
    data = np.frombuffer(joined, np.uint8)
    starts = np.cumsum(lengths) - lengths
    found = np.zeros((len(numbers), _MOST_BYTES), np.uint8)
    filled = np.flatnonzero(lengths)
    found[filled[data[starts[filled]] >= 0x80]] = 0xFF  # noqa: PLR2004  the sign
    rows = np.repeat(np.arange(len(numbers)), lengths)
    within = np.arange(len(data)) - np.repeat(starts, lengths)
    found[rows, lengths[rows] - 1 - within] = data
    mask = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(
        pa.decimal128(38, 0), len(numbers), [mask, pa.py_buffer(found.reshape(-1))]
    )


# --- times


def _build_time(kind: pa.DataType, given: JsonKind, column: _ValueColumn) -> Encoding | None:
    unit = column.rules.unit_of(column.name)
    if given == "text":
        return _build_time_text(kind)
    if given != "number":
        return None
    if pa.types.is_date(kind):
        return Encoding(pa.int32(), lambda days: _check_days(days).cast(pa.date32()).cast(kind))
    convert = _to_times if pa.types.is_time(kind) else _to_timestamps
    return Encoding(pa.int64(), lambda numbers: convert(numbers, unit, kind))


def _build_time_text(kind: pa.DataType) -> Encoding:
    if pa.types.is_time(kind):
        return Encoding(pa.string(), lambda texts: _parse_times(texts, kind))
    form = build_form(kind, JsonRules())
    # The mode ``isostring`` writes all of them with a zone, which is UTC.
    if pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
        return Encoding(
            form.read, lambda texts: form.convert(pc.replace_substring_regex(texts, r"Z$", ""))
        )
    return Encoding(form.read, form.convert)


def _check_days(days: pa.Array) -> pa.Array:
    _check_between(days, _FIRST_DAY, _LAST_DAY)
    return days


def _to_microseconds(numbers: pa.Array, unit: TimestampUnit) -> pa.Array:
    if unit == "ns":
        # Arrow divides towards zero; times before 1970 are rounded down, as later ones.
        rest = pc.bit_wise_and(pc.shift_right(numbers, 63), pa.scalar(999, pa.int64()))
        return pc.divide(pc.subtract(numbers, rest), pa.scalar(1000, pa.int64()))
    factor = pa.scalar(_PER_UNIT[unit], pa.int64())
    return pc.multiply_checked(numbers, factor)


def _to_timestamps(numbers: pa.Array, unit: TimestampUnit, kind: pa.DataType) -> pa.Array:
    found = _to_microseconds(numbers, unit)
    _check_between(found, _FIRST_US, _LAST_US)
    return found.cast(pa.timestamp("us")).cast(kind)


def _to_times(numbers: pa.Array, unit: TimestampUnit, kind: pa.DataType) -> pa.Array:
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


# --- nested values


def _build_list(kind: pa.ListType, given: JsonKind, column: _ValueColumn) -> Encoding | None:
    if given != "array":
        return None
    value = kind.value_type
    inner = build_encoding(value, column.element or default_kind(value), column.name, column.rules)
    made = pa.list_(pa.field("element", value))
    return Encoding(
        pa.list_(inner.read),
        lambda lists: list_with(lists, inner.convert, made),
        lambda lists: _find_kept_lists(lists, column.rules.placeholder),
    )


def _build_map(kind: pa.MapType, given: JsonKind, column: _ValueColumn) -> Encoding | None:
    if given != "object":
        return None
    item = build_encoding(kind.item_type, default_kind(kind.item_type), column.name, column.rules)
    kept = [(column.rules.placeholder, column.rules.placeholder)]
    return Encoding(
        pa.map_(pa.string(), item.read),
        lambda maps: map_with(maps, same, item.convert, kind),
        lambda maps: _equal_some(maps, pc.equal(_count_entries(maps), 1), [kept]),
    )


def _build_struct(kind: pa.StructType, given: JsonKind, column: _ValueColumn) -> Encoding | None:
    if given != "object":
        return None
    fields = [each.with_nullable(nullable=True) for each in children(kind)]
    inner = replace(column.rules, units={"": column.rules.unit_of(column.name)})
    parts = [build_encoding(one.type, default_kind(one.type), one.name, inner) for one in fields]
    read = pa.struct([(one.name, part.read) for one, part in zip(fields, parts, strict=True)])

    def convert(objects: pa.StructArray) -> pa.StructArray:
        found = [part.convert(objects.field(n)) for n, part in enumerate(parts)]
        return struct_with(objects, found, fields)

    return Encoding(read, convert)


def _find_kept_lists(lists: pa.ListArray, placeholder: str) -> pa.Array:
    """Return True for each list that is Debezium's placeholder of an array.

    That is the text, or its bytes as base64, as numbers, or as a UUID
    (``UnchangedToastedPlaceholder``).
    """
    raw = placeholder.encode()
    name_based = uuid.UUID(bytes=md5(raw, usedforsecurity=False).digest(), version=3)
    wanted = [[placeholder], [base64.b64encode(raw).decode()], [str(name_based)], [*raw]]
    lengths = pc.list_value_length(lists)
    return _equal_some(lists, pc.is_in(lengths, pa.array([1, len(raw)], lengths.type)), wanted)


def _count_entries(maps: pa.MapArray) -> pa.Array:
    lengths = np.diff(maps.offsets.to_numpy())
    return pa.array(lengths, mask=maps.is_null().to_numpy(zero_copy_only=False))


def _equal_some(values: pa.Array, may_be: pa.Array, wanted: list[Any]) -> pa.Array:
    """Return True for each nested value that is one of those wanted; `may_be` excludes most."""
    rows = np.flatnonzero(pc.fill_null(may_be, False).to_numpy(zero_copy_only=False))  # noqa: FBT003  Arrow's function
    found = np.zeros(len(values), np.bool_)
    if len(rows):
        found[rows] = [one in wanted for one in values.take(pa.array(rows)).to_pylist()]
    return pa.array(found)


_Build: TypeAlias = "Callable[[Any, JsonKind, _ValueColumn], Encoding | None]"
_BUILDERS: tuple[tuple[Callable[[pa.DataType], bool], _Build], ...] = (
    (pa.types.is_decimal, _build_decimal),
    (pa.types.is_temporal, _build_time),
    (pa.types.is_string, _build_text),
    (pa.types.is_binary, _build_bytes),
    (pa.types.is_list, _build_list),
    (pa.types.is_map, _build_map),
    (pa.types.is_struct, _build_struct),
    (pa.types.is_primitive, _build_plain),
)
