"""The Avro schema of rows for which no schema is given, derived from their Arrow type. Driver."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from krishiv_spark.errors import SchemaError

__all__ = ["DERIVED_TYPES", "derive_schema", "to_avro_name"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

DERIVED_TYPES: tuple[tuple[str, pa.DataType, Any], ...] = (
    ("BOOLEAN", pa.bool_(), "boolean"),
    ("TINYINT", pa.int8(), "int"),
    ("SMALLINT", pa.int16(), "int"),
    ("INT", pa.int32(), "int"),
    ("BIGINT", pa.int64(), "long"),
    ("FLOAT", pa.float32(), "float"),
    ("DOUBLE", pa.float64(), "double"),
    ("STRING", pa.string(), "string"),
    ("BINARY", pa.binary(), "bytes"),
    ("DATE", pa.date32(), {"type": "int", "logicalType": "date"}),
    ("TIMESTAMP", pa.timestamp("us", "UTC"), {"type": "long", "logicalType": "timestamp-micros"}),
    (
        "TIMESTAMP_NTZ",
        pa.timestamp("us"),
        {"type": "long", "logicalType": "local-timestamp-micros"},
    ),
    ("VOID", pa.null(), "null"),
)
"""Spark's name, the Arrow type and the Avro type of each type without parameters."""

_SIMPLE = {kind: avro for _, kind, avro in DERIVED_TYPES}


def derive_schema(kind: pa.DataType, name: str, path: str = "") -> str:
    """Return a schema that holds all values of a type, as JSON.

    Nullable columns become a union of null and their type, with the default null.

    Args:
        kind: The type of the whole value.
        name: The name of the record. A record within it is in a namespace of the field's path.
        path: The column of the value, for messages; empty if its fields are columns.

    Raises:
        SchemaError: If Avro cannot hold a type, or a column's name. It names the column.
    """
    derived = _derive(kind, name, "", [path] if path else [])
    return json.dumps(derived, separators=(",", ":"))


def to_avro_name(text: str) -> str:
    """Return a text as a name of Avro: letters, digits and underscores."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return name if _NAME.fullmatch(name) else f"_{name}"


def _derive(kind: pa.DataType, name: str, space: str, path: list[str]) -> Any:
    if pa.types.is_struct(kind):
        return _derive_record(kind, name, space, path)
    if pa.types.is_decimal128(kind):
        digits = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if pa.types.is_map(kind):
        if kind.key_type != pa.string():
            raise SchemaError(
                f"column {'.'.join(path)!r} is a MAP with keys of the type {kind.key_type}, and "
                "those of an Avro map are strings: cast it to MAP<STRING, ...>"
            )
        return {"type": "map", "values": _derive_field(kind.item_field, name, space, path)}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _derive_field(kind.value_field, name, space, path)}
    if kind not in _SIMPLE:
        raise SchemaError(
            f"column {'.'.join(path) or 'value'!r} is {kind}, for which Avro has no type: cast it, "
            "for instance to STRING"
        )
    return _SIMPLE[kind]


def _derive_field(field: pa.Field, name: str, space: str, path: list[str]) -> Any:
    derived = _derive(field.type, name, space, path)
    return ["null", derived] if field.nullable and derived != "null" else derived


def _derive_record(kind: pa.StructType, name: str, space: str, path: list[str]) -> dict[str, Any]:
    inner = f"{space}.{name}" if space else name
    fields = []
    for each in kind:
        if not _NAME.fullmatch(each.name):
            raise SchemaError(
                f"column {'.'.join([*path, each.name])!r} has no name of Avro, which consists of "
                f"letters, digits and underscores: rename it, as {to_avro_name(each.name)!r}"
            )
        derived = _derive_field(each, each.name, inner, [*path, each.name])
        default = {"default": None} if isinstance(derived, list) or derived == "null" else {}
        fields.append({"name": each.name, "type": derived, **default})
    own = {"namespace": space} if space else {}
    return {"type": "record", "name": name, **own, "fields": fields}
