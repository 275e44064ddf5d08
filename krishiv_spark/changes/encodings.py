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
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

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
from krishiv_spark.changes.decimal_forms import (
    SCALED,
    SCALED_BYTES,
    decode_base64,
    format_scaled_objects,
    format_unscaled,
    from_decimal_texts,
    from_scaled_objects,
    from_unscaled,
)
from krishiv_spark.changes.options import TimestampUnit, ValueRules
from krishiv_spark.changes.time_forms import build_time_text, from_days, to_times, to_timestamps
from krishiv_spark.changes.value_forms import ValueForm, ValueKind, default_form
from krishiv_spark.errors import SchemaError

__all__ = ["Encoding", "build_encoding", "to_decoded_type"]


@dataclass(frozen=True)
class Encoding:
    """One form of the values of a column.

    Attributes:
        read: The type that is read from JSON or Avro.
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


def build_encoding(kind: pa.DataType, form: ValueForm, name: str, rules: ValueRules) -> Encoding:
    """Return the encoding of a column whose values have some form.

    Args:
        kind: The type of the column, as of `to_decoded_type`.
        form: The form of its values.
        name: Name of the column.
        rules: Rules for what the form does not determine.

    Raises:
        SchemaError: If values of the type cannot have this form.
    """
    build = next((build for test, build in _BUILDERS if test(kind)), None)
    made = None if build is None else build(kind, form, _ValueColumn(name, rules))
    if made is None:
        raise SchemaError(f"field {name!r} has {_KINDS[form.kind]}, which is no {_describe(kind)}")
    return made


@dataclass(frozen=True)
class _ValueColumn:
    """A column whose encoding is built: see `build_encoding`."""

    name: str
    rules: ValueRules

    def unit_of(self, form: ValueForm) -> TimestampUnit:
        """Return the unit of times."""
        return form.unit or self.rules.unit_of(self.name)

    def is_placeholder(self, texts: pa.Array) -> pa.Array:
        """Return True for each value that is the placeholder, also of an ``hstore`` or of bytes."""
        word = self.rules.placeholder
        if pa.types.is_binary(texts.type):
            return pc.equal(texts, pa.scalar(word.encode(), pa.binary()))
        stores = [json.dumps({word: word}, separators=(",", sign)) for sign in (":", ": ")]
        raw = base64.b64encode(word.encode()).decode()
        return pc.is_in(texts, pa.array([word, raw, *stores]))


_KINDS: dict[ValueKind, str] = {
    "number": "a number",
    "text": "a text",
    "bool": "true or false",
    "bytes": "bytes",
    "object": "an object",
    "array": "an array",
}


def _describe(kind: pa.DataType) -> str:
    from krishiv_spark.arrow.schemas import spark_schema

    try:
        return spark_schema(pa.schema([("x", kind)])).fields[0].dataType.simpleString().upper()
    except Exception:  # noqa: BLE001  a type that only the table has, for a message
        return str(kind)


def _build_plain(kind: pa.DataType, form: ValueForm, column: _ValueColumn) -> Encoding | None:
    del column
    usual = default_form(kind).kind
    if form.kind == "text" and pa.types.is_floating(kind):
        # NaN and Infinity, which JSON has no numbers for.
        return Encoding(pa.string(), lambda texts: texts.cast(kind))
    if form.kind == usual == "number" and pa.types.is_float32(kind):
        return Encoding(pa.float64(), _to_floats)
    return Encoding(kind) if form.kind == usual else None


def _to_floats(numbers: pa.Array) -> pa.Array:
    found = numbers.cast(pa.float32())
    if pc.any(pc.xor(pc.is_inf(found), pc.is_inf(numbers)), min_count=0).as_py():
        raise pa.ArrowInvalid("a number beyond the range of a FLOAT")
    return found


def _build_text(kind: pa.DataType, form: ValueForm, column: _ValueColumn) -> Encoding | None:
    if form.kind == "object":  # a NUMERIC without a scale has more digits than any decimal
        return Encoding(_find_scaled(form), format_scaled_objects)
    if form.kind not in ("text", "bytes"):
        return None
    scale, read = form.scale, pa.binary() if form.kind == "bytes" else kind
    if scale is None and column.name in column.rules.numbers and column.rules.decimals != "string":
        if form.is_assumed:
            return Encoding(kind, _refuse_texts)
        raise SchemaError(
            f"field {column.name!r} has a text for a number of any length, which may be the number "
            "or base64 of its digits: set 'decimalFormat' = 'string' if it is the number"
        )
    if scale is not None:
        return Encoding(read, lambda values: format_unscaled(values, scale), column.is_placeholder)
    return Encoding(kind, is_kept=column.is_placeholder) if form.kind == "text" else None


def _refuse_texts(texts: pa.Array) -> pa.Array:
    """Return nulls; refuse values, so that their form is examined."""
    if texts.null_count < len(texts):
        raise pa.ArrowInvalid("a text for a number of any length")
    return texts


def _find_scaled(form: ValueForm) -> pa.DataType:
    value = form.fields.get("value")
    return SCALED_BYTES if value is not None and value.kind == "bytes" else SCALED


def _build_bytes(kind: pa.DataType, form: ValueForm, column: _ValueColumn) -> Encoding | None:
    raw = column.rules.placeholder.encode()
    if form.kind == "bytes":
        return Encoding(kind, is_kept=column.is_placeholder)
    if form.kind != "text":
        return None
    if column.rules.binaries == "hex":
        kept = pa.array([raw.hex(), raw.decode()])
        return Encoding(pa.string(), _decode_hex, lambda texts: pc.is_in(texts, kept))
    both = pa.array([base64.b64encode(raw).decode(), raw.decode()])
    return Encoding(pa.string(), decode_base64, lambda texts: pc.is_in(texts, both))


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


# --- decimals and times


def _build_decimal(kind: pa.DataType, form: ValueForm, column: _ValueColumn) -> Encoding | None:
    rules, kept, scale = column.rules, column.is_placeholder, form.scale
    if form.kind == "number":
        return Encoding(kind)
    if form.kind == "object":
        return Encoding(_find_scaled(form), lambda objects: from_scaled_objects(objects, kind))
    if form.kind == "text" and scale is None:
        if rules.decimals == "string":
            return Encoding(pa.string(), lambda texts: from_decimal_texts(texts, kind), kept)
        scale = int(kind.scale)
    if form.kind not in ("text", "bytes") or scale is None:
        return None
    read = pa.binary() if form.kind == "bytes" else pa.string()
    return Encoding(read, lambda values: from_unscaled(values, scale, kind), kept)


def _build_time(kind: pa.DataType, form: ValueForm, column: _ValueColumn) -> Encoding | None:
    unit = column.unit_of(form)
    if form.kind == "text":
        return Encoding(*build_time_text(kind))
    if form.kind != "number":
        return None
    if pa.types.is_date(kind):
        return Encoding(pa.int32(), lambda days: from_days(days, kind))
    convert = to_times if pa.types.is_time(kind) else to_timestamps
    return Encoding(pa.int64(), lambda numbers: convert(numbers, unit, kind))


# --- nested values


def _build_list(kind: pa.ListType, form: ValueForm, column: _ValueColumn) -> Encoding | None:
    if form.kind != "array":
        return None
    value = kind.value_type
    inner = build_encoding(value, form.element or default_form(value), column.name, column.rules)
    made = pa.list_(pa.field("element", value))
    return Encoding(
        pa.list_(inner.read),
        lambda lists: list_with(lists, inner.convert, made),
        lambda lists: _find_kept_lists(lists, column.rules.placeholder),
    )


def _build_map(kind: pa.MapType, form: ValueForm, column: _ValueColumn) -> Encoding | None:
    if form.kind != "object":
        return None
    value = form.element or default_form(kind.item_type)
    item = build_encoding(kind.item_type, value, column.name, column.rules)
    kept = [(column.rules.placeholder, column.rules.placeholder)]
    return Encoding(
        pa.map_(pa.string(), item.read),
        lambda maps: map_with(maps, same, item.convert, kind),
        lambda maps: _equal_some(maps, pc.equal(_count_entries(maps), 1), [kept]),
    )


def _build_struct(kind: pa.StructType, form: ValueForm, column: _ValueColumn) -> Encoding | None:
    if form.kind != "object":
        return None
    fields = [each.with_nullable(nullable=True) for each in children(kind)]
    # Units by name are those of the table's columns.
    inner = replace(column.rules, units={"": column.rules.unit_of(column.name)})
    forms = [form.fields.get(one.name) or default_form(one.type) for one in fields]
    parts = [
        build_encoding(one.type, given, one.name, inner)
        for one, given in zip(fields, forms, strict=True)
    ]
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


_Build: TypeAlias = "Callable[[Any, ValueForm, _ValueColumn], Encoding | None]"
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
