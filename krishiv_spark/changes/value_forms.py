"""The forms in which records have the values of a column: kinds of JSON, and bytes of Avro."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import pyarrow as pa

from krishiv_spark.arrow.compute import children
from krishiv_spark.changes.options import TimestampUnit

__all__ = ["ValueForm", "ValueKind", "default_form", "find_form", "merge_forms"]

ValueKind: TypeAlias = Literal["number", "text", "bool", "bytes", "object", "array"]
"""The kind of a value; JSON has no bytes, and null has no kind."""


@dataclass(frozen=True)
class ValueForm:
    """The form of some values.

    Attributes:
        kind: Their kind.
        element: The form of the elements of arrays, and of the values of maps; None if unknown.
        fields: The forms of the fields of objects by name; None for a field without a value.
        scale: The scale of bytes that are the digits of a decimal, if a schema contains it.
        unit: The unit of numbers that are times, if a schema contains it.
        is_assumed: True if there was no value yet, so that later ones may have another form.
    """

    kind: ValueKind
    element: ValueForm | None = None
    fields: Mapping[str, ValueForm | None] = field(default_factory=dict)
    scale: int | None = None
    unit: TimestampUnit | None = None
    is_assumed: bool = False


def _find_kind(value: object) -> ValueKind:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "text"
    return "object" if isinstance(value, dict) else "array"


def find_form(value: object, kind: pa.DataType) -> ValueForm | None:
    """Return the form of a value of Python's `json`; None for null.

    Args:
        value: The value.
        kind: The type of its column, which may have parts.
    """
    if value is None:
        return None
    if isinstance(value, list) and pa.types.is_list(kind):
        found = [form for one in value if (form := find_form(one, kind.value_type)) is not None]
        # Numbers beside NaN, which is a text, are read as texts.
        texts = [form for form in found if form.kind == "text"]
        return ValueForm("array", next(iter(texts or found), None))
    if isinstance(value, dict) and pa.types.is_struct(kind):
        fields = {each.name: find_form(value.get(each.name), each.type) for each in children(kind)}
        return ValueForm("object", fields=fields)
    return ValueForm(_find_kind(value))


def default_form(kind: pa.DataType) -> ValueForm:
    """Return the form of most values of a type, for a column that has only nulls so far."""
    return ValueForm(_default_kind(kind), is_assumed=True)


def _default_kind(kind: pa.DataType) -> ValueKind:
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


def merge_forms(one: ValueForm | None, other: ValueForm | None) -> ValueForm | None:
    """Return the form of the values of both; None is the form of nulls.

    Raises:
        ValueError: If one parser cannot read both.
    """
    if one is None or other is None:
        return one or other
    if one.kind != other.kind:
        raise ValueError("two kinds of values")
    names = {**one.fields, **other.fields}
    fields = {name: merge_forms(one.fields.get(name), other.fields.get(name)) for name in names}
    return ValueForm(one.kind, merge_forms(one.element, other.element), fields)
