"""Rows as JSON of a schema in a registry: the derived schema, the check, and the encoder."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.json_writing import NULL_IS_WRITTEN, write_json
from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.json_schema.json_schema_types import parse_written_schema
from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema
from krishiv_spark.messages.suggestions import did_you_mean

__all__ = ["DERIVED_JSON_TYPES", "JsonSchemaEncoder", "derive_json_schema", "fit_json_columns"]

_DRAFT = "http://json-schema.org/draft-07/schema#"
_INTEGER, _NUMBER = {"type": "integer"}, {"type": "number"}

DERIVED_JSON_TYPES: tuple[tuple[str, pa.DataType, Any], ...] = (
    ("BOOLEAN", pa.bool_(), {"type": "boolean"}),
    ("TINYINT", pa.int8(), _INTEGER),
    ("SMALLINT", pa.int16(), _INTEGER),
    ("INT", pa.int32(), _INTEGER),
    ("BIGINT", pa.int64(), _INTEGER),
    ("FLOAT", pa.float32(), _NUMBER),
    ("DOUBLE", pa.float64(), _NUMBER),
    ("STRING", pa.string(), {"type": "string"}),
    ("BINARY", pa.binary(), {"type": "string", "contentEncoding": "base64"}),
    ("DATE", pa.date32(), {"type": "string", "format": "date"}),
    ("TIMESTAMP", pa.timestamp("us", "UTC"), {"type": "string", "format": "date-time"}),
)
"""Spark's name, the Arrow type and the JSON Schema of each type without parameters."""

_SIMPLE = {kind: schema for _, kind, schema in DERIVED_JSON_TYPES}
_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_HOLDS = {pa.int64(): _WHOLE, pa.float64(): (*_WHOLE, pa.float32(), pa.float64())}
"""By the type of a schema, the types of columns that are written as it, if there are several."""


def derive_json_schema(kind: pa.DataType, name: str, path: str = "") -> str:
    """Return a schema that holds all values of a type. Planner.

    Objects have no other fields: registries refuse to add a field to a schema that allows any.

    Args:
        kind: The type of the whole value.
        name: Its title.
        path: The column of the value, for messages; empty if its fields are columns.

    Raises:
        SchemaError: If JSON Schema has no type for a column. It names the column.
    """
    found = {"$schema": _DRAFT, "title": name, **_derive(kind, [path] if path else [])}
    return json.dumps(found, separators=(",", ":"))


def _derive(kind: pa.DataType, path: list[str]) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        fields = {each.name: _derive(each.type, [*path, each.name]) for each in kind}
        required = [each.name for each in kind if not each.nullable]
        more = {"required": required} if required else {}
        return {"type": "object", "properties": fields, **more, "additionalProperties": False}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _derive_item(kind.value_field, path)}
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return {"type": "object", "additionalProperties": _derive_item(kind.item_field, path)}
    if pa.types.is_decimal(kind):
        return _NUMBER
    if kind not in _SIMPLE:
        raise SchemaError(
            f"column {'.'.join(path) or 'value'!r} is {kind}, for which JSON Schema has no type: "
            "cast it, for instance to STRING"
        )
    return dict(_SIMPLE[kind])


def _derive_item(item: pa.Field, path: list[str]) -> dict[str, Any]:
    found = _derive(item.type, [*path, "element"])
    return {"oneOf": [{"type": "null"}, found]} if item.nullable else found


# --- columns and a schema


def fit_json_columns(schema: RegisteredSchema, kind: pa.DataType, path: str = "") -> pa.DataType:
    """Return the type of rows with the nulls that a schema allows. Planner, executor.

    Raises:
        SchemaError: If the schema cannot hold the type. It names the column.
    """
    found, nulls = parse_written_schema(schema.text, schema.references)
    return _JsonFit(nulls).fit(found.type, kind, (), [path] if path else [])


class _JsonFit:
    def __init__(self, nulls: Collection[tuple[str, ...]]) -> None:
        self._nulls = nulls

    def fit(
        self, of: pa.DataType, kind: pa.DataType, at: tuple[str, ...], path: list[str]
    ) -> pa.DataType:
        """Return the type of a column with the nulls of a type of the schema.

        Args:
            of: The type of the schema.
            kind: The type of the column.
            at: The path in the schema.
            path: The path of the column.
        """
        if pa.types.is_struct(of) and pa.types.is_struct(kind):
            return self._fit_fields(of, kind, at, path)
        if pa.types.is_list(of) and pa.types.is_list(kind):
            item = self.fit(of.value_type, kind.value_type, (*at, "[]"), [*path, "element"])
            return pa.list_(pa.field("element", item, nullable=of.value_field.nullable))
        if pa.types.is_map(of) and pa.types.is_map(kind) and kind.key_type == pa.string():
            item = self.fit(of.item_type, kind.item_type, (*at, "{}"), [*path, "value"])
            return pa.map_(pa.string(), pa.field("value", item, nullable=of.item_field.nullable))
        is_decimal = pa.types.is_decimal(kind)
        is_number = is_decimal and (of == pa.float64() or (of == pa.int64() and kind.scale == 0))
        if kind not in _HOLDS.get(of, (of,)) and not is_number and not pa.types.is_null(kind):
            raise SchemaError(
                f"column {'.'.join(path) or 'value'!r} is {kind}, and the JSON Schema has {of} "
                "there: cast the column"
            )
        return kind

    def _fit_fields(
        self, of: pa.StructType, kind: pa.StructType, at: tuple[str, ...], path: list[str]
    ) -> pa.DataType:
        names = [each.name for each in of]
        given = [each.name for each in kind]
        self._check_required(of, given, at, path)
        found = []
        for each in kind:
            where = [*path, each.name]
            if each.name not in names:
                raise SchemaError(
                    f"column {'.'.join(where)!r} is no field of the JSON Schema; "
                    f"{did_you_mean(each.name, names, 'there are ' + ', '.join(names))}. Drop "
                    "the column, or add the field to the schema"
                )
            if given.count(each.name) > 1:
                raise SchemaError(f"column {'.'.join(where)!r} is there several times: rename one")
            declared = of.field(each.name)
            inner = self.fit(declared.type, each.type, (*at, each.name), where)
            metadata = NULL_IS_WRITTEN if (*at, each.name) in self._nulls else None
            found.append(pa.field(each.name, inner, declared.nullable, metadata))
        return pa.struct(found)

    def _check_required(
        self, of: pa.StructType, given: Collection[str], at: tuple[str, ...], path: list[str]
    ) -> None:
        for each in of:
            is_required = not each.nullable or (*at, each.name) in self._nulls
            if is_required and each.name not in given:
                raise SchemaError(
                    f"there is no column {'.'.join([*path, each.name])!r}, and the JSON Schema "
                    "requires the field: add the column"
                )


# --- executor


class JsonSchemaEncoder:
    """Encodes rows of one type.

    Args:
        schema: The schema.
        kind: The type of the whole value. Its nulls are rows without a value.
        header: Bytes before each record.
        path: The column of the value, for messages; empty if its fields are columns.
    """

    def __init__(
        self, schema: RegisteredSchema, kind: pa.DataType, header: bytes, path: str
    ) -> None:
        self._kind = fit_json_columns(schema, kind, path)
        self._header, self._path = pa.scalar(header, pa.binary()), path

    def encode(self, column: pa.Array) -> pa.BinaryArray:
        """Encode a column; null stays null.

        Raises:
            SchemaError: If a row does not fit the schema. It names the column.
        """
        texts = write_json(column, self._kind, self._path).cast(pa.binary())
        return pc.binary_join_element_wise(self._header, texts, b"")
