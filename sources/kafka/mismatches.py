"""Why a JSON value is none of the wanted fields, in words that hold nothing of it. Executor."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

__all__ = ["mismatch"]

_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "true or false"}
_NUMBERS = {int: "a whole number", float: "a number with a fraction or an exponent"}

Reads: TypeAlias = "Callable[[pa.Array, pa.StructType], bool]"
"""Whether objects can be read as they are wanted."""


def mismatch(value: bytes, fields: pa.StructType, reads: Reads) -> str:
    """What is wrong with a value, to follow "it": the field, what it has, what is wanted.

    Args:
        value: One that cannot be read.
        fields: Those that are wanted.
        reads: Tries one value.
    """
    try:
        found = json.loads(value.decode())
    except UnicodeDecodeError as error:
        return f"is no UTF-8 from byte {error.start} on"
    except json.JSONDecodeError as error:
        return f"is no JSON: {error.msg}, at character {error.pos}"
    if not isinstance(found, dict):
        return f"is {_kind(found)}, and an object is wanted"
    for field in fields:
        if (said := _of_field(found.get(field.name), field, field.name, reads)) is not None:
            return said
    return "is read otherwise by Arrow, as where a field is there twice"


def _of_field(value: Any, field: pa.Field, path: str, reads: Reads) -> str | None:
    """What is wrong with a field or a part of it; None if it can be read."""
    alone = pa.array([json.dumps({field.name: value}).encode()], pa.binary())
    if reads(alone, pa.struct([field])):
        return None
    parts: list[tuple[Any, pa.Field, str]] = []
    if pa.types.is_struct(field.type) and isinstance(value, dict):
        parts = [(value.get(one.name), one, f"{path}.{one.name}") for one in field.type]
    elif pa.types.is_list(field.type) and isinstance(value, list):
        item = field.type.value_field
        parts = [(one, item, f"{path}[{number}]") for number, one in enumerate(value)]
    for part in parts:
        if (said := _of_field(*part, reads)) is not None:
            return said
    return f"has {_kind(value)} in field {path!r}, which cannot be read as {_wanted(field.type)}"


def _kind(value: Any) -> str:
    return "null" if value is None else {**_KINDS, **_NUMBERS}[type(value)]


def _wanted(kind: pa.DataType) -> str:
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(kind).simpleString().upper()
