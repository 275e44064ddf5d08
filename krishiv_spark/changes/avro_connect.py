"""Schemas of Avro as types of Connect: the opposite of Connect's converters to Avro.

These keep the names and parameters of Connect's types as ``connect.name`` and
``connect.parameters``. Where another program has written the schema, Avro's own logical types
tell the scale of a decimal and the unit of a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from krishiv_spark.changes.connect_types import DECIMAL, ConnectType, check_columns
from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.avro.avro_types import AvroType, parse_avro_schema
from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema

__all__ = ["parse_stored_types", "read_connect_type"]

_TYPES = {
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "string": "string",
    "boolean": "boolean",
    "enum": "string",
    "fixed": "bytes",
}
_SMALL = ("int8", "int16")
_LOGICAL = {
    "date": "io.debezium.time.Date",
    "time-millis": "io.debezium.time.Time",
    "time-micros": "io.debezium.time.MicroTime",
    "timestamp-millis": "io.debezium.time.Timestamp",
    "timestamp-micros": "io.debezium.time.MicroTimestamp",
    "timestamp-nanos": "io.debezium.time.NanoTimestamp",
    "local-timestamp-millis": "io.debezium.time.Timestamp",
    "local-timestamp-micros": "io.debezium.time.MicroTimestamp",
    "local-timestamp-nanos": "io.debezium.time.NanoTimestamp",
}
"""Types of Debezium with the values of Avro's logical types."""


def read_connect_type(schema: RegisteredSchema) -> ConnectType:
    """Return the type of Connect that a schema of Avro was made of.

    Raises:
        SchemaError: If it is no schema of Avro.
    """
    import fastavro.schema

    known: dict[str, Any] = {}
    try:
        for _, text in schema.references:
            fastavro.schema.parse_schema(json.loads(text), named_schemas=known)
        raw = fastavro.schema.parse_schema(json.loads(schema.text), named_schemas=known)
        found = _convert(raw, known)
        check_columns(found)
    except Exception as error:  # fastavro and json raise many classes
        raise SchemaError(f"its schema cannot be read ({type(error).__name__})") from error
    return found


def _convert(raw: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(raw, list):
        inner = [each for each in raw if each != "null"]
        return _convert(inner[0], known) if len(inner) == 1 else {"type": "union"}
    if isinstance(raw, str):
        return {"type": _TYPES[raw]} if raw in _TYPES else _convert(known[raw], known)
    kind = raw["type"]
    if not isinstance(kind, str):
        return {**_convert(kind, known), **_read_names(raw)}
    found: dict[str, Any]
    if kind == "array":
        found = {"type": "array", "items": _convert(raw["items"], known)}
    elif kind == "map":
        values = _convert(raw["values"], known)
        found = {"type": "map", "keys": {"type": "string"}, "values": values}
    elif kind in ("record", "error"):
        fields = [
            {**_convert(each["type"], known), "field": each["name"]} for each in raw["fields"]
        ]
        found = {"type": "struct", "fields": fields}
    elif kind in _TYPES:
        small = raw.get("connect.type")
        found = {"type": small if small in _SMALL else _TYPES[kind]}
    else:
        found = _convert(known[kind], known)
    return {**found, **_read_names(raw)}


def _read_names(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name and the parameters of a type; none if it has no name."""
    name, logical = raw.get("connect.name"), raw.get("logicalType")
    parameters = dict(raw.get("connect.parameters") or {})
    if logical == "decimal" and name in (None, DECIMAL):
        own = {"scale": str(raw.get("scale", 0))}
        if "precision" in raw:
            own["connect.decimal.precision"] = str(raw["precision"])
        return {"name": DECIMAL, "parameters": {**own, **parameters}}
    if name is None:
        name = _LOGICAL.get(str(logical))
    return {} if name is None else {"name": name, "parameters": parameters}


def parse_stored_types(schema: RegisteredSchema) -> AvroType:
    """Return a schema whose values are those that records store: no logical type converts them.

    A decimal is its digits, also one of more digits than Spark's decimals have, such as the 64
    that Connect's converters write by default.

    Raises:
        SchemaError: If it is no schema of Avro.
    """
    try:
        text = _drop_logical(schema.text)
        references = {name: _drop_logical(each) for name, each in schema.references}
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"its schema cannot be read ({type(error).__name__})") from None
    return parse_avro_schema(text, references)


def _drop_logical(text: str) -> str:
    def drop(found: dict[str, Any]) -> dict[str, Any]:
        found.pop("logicalType", None)
        return found

    return json.dumps(json.loads(text, object_hook=drop))
