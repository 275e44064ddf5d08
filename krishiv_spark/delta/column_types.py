"""Columns of a table: the JSON of Delta's schema, and Arrow.

The library converts schemas too, but not the metadata of fields, and to types that Spark does not
have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from krishiv_spark.arrow.compute import children
from krishiv_spark.arrow.schemas import STAND_INS, stands_for
from krishiv_spark.delta.options import FORMAT
from krishiv_spark.errors import SchemaError

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = [
    "digest_layout",
    "parse_columns",
    "read_columns",
    "read_fields",
    "to_delta_columns",
    "to_schema_json",
]

_NAMES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_TEXTS = {kind: name for name, kind in _NAMES.items()}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


def read_fields(table: DeltaTable) -> list[dict[str, Any]]:
    """Return the fields of a table as the JSON of its schema, with their metadata."""
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return fields


def read_columns(table: DeltaTable) -> pa.Schema:
    """Return the columns of a table, in its order.

    Raises:
        SchemaError: If one has a type that Spark's rows cannot carry.
    """
    return parse_columns(table.schema().to_json())


def parse_columns(text: str) -> pa.Schema:
    """Return the columns of the JSON of a schema.

    Raises:
        SchemaError: As `read_columns`.
    """
    return pa.schema([_to_field(field, field["name"]) for field in json.loads(text)["fields"]])


def digest_layout(table: DeltaTable) -> str:
    """Return a digest of columns and partition columns: files fit a table with an equal one."""
    partition_by = table.metadata().partition_columns
    text = json.dumps([read_fields(table), partition_by], sort_keys=True)
    return sha256(text.encode()).hexdigest()[:16]


def _to_field(field: Mapping[str, Any], path: str) -> pa.Field:
    return pa.field(field["name"], _to_arrow(field["type"], path), field["nullable"])


def _to_arrow(kind: Any, path: str) -> pa.DataType:
    if isinstance(kind, str):
        if (found := _NAMES.get(kind)) is not None:
            return found
        if match := _DECIMAL.fullmatch(kind):
            return pa.decimal128(int(match[1]), int(match[2]))
        raise SchemaError(
            f"{FORMAT}: column {path!r} has type {kind!r}, which this package cannot read or write"
        )
    if kind["type"] == "struct":
        fields = kind["fields"]
        return pa.struct([_to_field(field, f"{path}.{field['name']}") for field in fields])
    if kind["type"] == "array":
        element = _to_arrow(kind["elementType"], f"{path}.element")
        return pa.list_(pa.field("element", element, kind["containsNull"]))
    key = _to_arrow(kind["keyType"], f"{path}.key")
    value = pa.field("value", _to_arrow(kind["valueType"], f"{path}.value"))
    return pa.map_(key, value.with_nullable(kind["valueContainsNull"]))


# --- from the columns of rows


def to_delta_columns(rows: pa.Schema) -> pa.Schema:
    """Return the columns of a new table for rows: all are optional, as of Spark's own tables.

    Raises:
        SchemaError: If a column has a type that Delta does not have.
    """
    return pa.schema([_to_optional(field, field.name) for field in rows])


def _to_optional(field: pa.Field, path: str) -> pa.Field:
    return pa.field(field.name, _to_optional_type(field.type, path))


def _to_optional_type(kind: pa.DataType, path: str) -> pa.DataType:
    if pa.types.is_struct(kind):
        foreign = stands_for(kind)
        if foreign is not None:
            raise _to_type_error(path, f"a {foreign}", STAND_INS[foreign])
        fields = children(kind)
        if not fields:
            raise _to_type_error(path, "a struct without fields", "leave it out")
        return pa.struct([_to_optional(field, f"{path}.{field.name}") for field in fields])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _to_optional_type(kind.value_type, f"{path}.element")))
    if pa.types.is_map(kind):
        value = pa.field("value", _to_optional_type(kind.item_type, f"{path}.value"))
        return pa.map_(_to_optional_type(kind.key_type, f"{path}.key"), value)
    if kind in _TEXTS or pa.types.is_decimal128(kind):
        return kind
    if pa.types.is_null(kind):
        raise _to_type_error(path, "without a type (void)", "cast it to the intended type")
    what = "an interval" if pa.types.is_duration(kind) else f"of type {kind}"
    raise _to_type_error(path, what, "cast it to a number or a string")


def _to_type_error(path: str, what: str, advice: str) -> SchemaError:
    return SchemaError(f"{FORMAT}: column {path!r} is {what}, which Delta does not have: {advice}")


def to_schema_json(columns: pa.Schema) -> str:
    """Return Delta's schema of columns from `to_delta_columns`."""
    return json.dumps({"type": "struct", "fields": [_to_json(field) for field in columns]})


def _to_json(field: pa.Field) -> dict[str, Any]:
    kind = _to_json_type(field.type)
    return {"name": field.name, "type": kind, "nullable": field.nullable, "metadata": {}}


def _to_json_type(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_to_json(field) for field in children(kind)]}
    if pa.types.is_list(kind):
        element = _to_json_type(kind.value_type)
        has_null = kind.value_field.nullable
        return {"type": "array", "elementType": element, "containsNull": has_null}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _to_json_type(kind.key_type),
            "valueType": _to_json_type(kind.item_type),
            "valueContainsNull": kind.item_field.nullable,
        }
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _TEXTS[kind]
