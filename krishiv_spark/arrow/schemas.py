"""Schemas of Spark and of Arrow, and conversions between them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from krishiv_spark.arrow.compute import children
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.messages.suggestions import did_you_mean

__all__ = [
    "STAND_INS",
    "arrow_schema",
    "has_shredded_variant",
    "plain_schema",
    "select_columns",
    "spark_schema",
    "stands_for",
]

# PySpark 4.2 renamed `timestamp_utc=True` (4.0, 4.1: the default) to `timezone="UTC"`.
_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark exchanges rows of a schema; timestamps are UTC.

    Raises:
        SchemaError: If a column has a type that Arrow cannot carry.
    """
    # One field at a time, since PySpark's error does not name the field.
    return pa.schema([_arrow_field(field) for field in schema.fields])


def _arrow_field(field: StructField) -> pa.Field:
    try:
        converted = to_arrow_schema(StructType([field]), **_UTC).field(0)
    except PySparkException as error:
        raise SchemaError(
            f"column {field.name!r} has type {field.dataType.simpleString()}, which Arrow cannot "
            "carry to a Python connector: cast it, for instance to a string or a number"
        ) from error
    return converted.remove_metadata()


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of Arrow rows; a timestamp without a zone becomes TIMESTAMP_NTZ.

    Raises:
        SchemaError: If a column has a type that Spark has no counterpart for.
    """
    return StructType([_spark_field(field) for field in plain_schema(schema)])


def _spark_field(field: pa.Field) -> StructField:
    try:
        return from_arrow_schema(pa.schema([field]), prefer_timestamp_ntz=True).fields[0]
    except PySparkException as error:
        raise SchemaError(
            f"column {field.name!r} has the Arrow type {field.type}, which Spark has no type "
            "for: exclude it with the option 'columns', or set a schema without it"
        ) from error


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the types in which Spark represents the same values.

    Dictionaries become their values, unsigned integers the next wider signed type, nanoseconds
    microseconds, large or view types the ordinary ones, and UUIDs text.
    """
    return pa.schema([_plain_field(field) for field in schema])


def _plain_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _plain_type(field.type), nullable=field.nullable)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    nested = _plain_nested(kind)
    return nested if nested is not None else _PLAIN.get(str(kind), kind)


_PLAIN: dict[str, pa.DataType] = {
    "uint8": pa.int16(),
    "uint16": pa.int32(),
    "uint32": pa.int64(),
    "uint64": pa.decimal128(20, 0),
    "halffloat": pa.float32(),
    "large_string": pa.string(),
    "string_view": pa.string(),
    "large_binary": pa.binary(),
    "binary_view": pa.binary(),
    "extension<arrow.uuid>": pa.string(),
    "date64[ms]": pa.date32(),
    "time32[s]": pa.time64("ns"),
    "time32[ms]": pa.time64("ns"),
    "time64[us]": pa.time64("ns"),
}


def _plain_nested(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    if _is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return None


def _is_list(kind: pa.DataType) -> bool:
    tests: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
    )
    return any(test(kind) for test in tests)


def select_columns(schema: pa.Schema, columns: Sequence[str], format_name: str) -> pa.Schema:
    """Return a schema with the columns of the option `columns`, or with all of them.

    Raises:
        OptionError: If a column does not exist; the error names the nearest one.
        SchemaError: If one of them exists twice.
    """
    for name in columns:
        if name not in schema.names:
            hint = did_you_mean(name, schema.names, f"there are {', '.join(schema.names)}")
            raise OptionError(f"{format_name}: option 'columns' has {name!r}; {hint}")
    wanted, counts = columns or schema.names, Counter(schema.names)
    twice = next((name for name in wanted if counts[name] > 1), None)
    if twice is not None:
        raise SchemaError(
            f"column {twice!r} occurs twice: exclude it with the option 'columns', or set a "
            "schema without it"
        )
    return pa.schema([schema.field(name) for name in wanted])


STAND_INS = {
    "variant": "use to_json(...) or variant_get(...)",
    "geometry": "use st_asbinary(...)",
    "geography": "use st_asbinary(...)",
}
"""Types that PySpark passes as structs, since Arrow lacks them, and what to write instead."""


def stands_for(kind: pa.DataType) -> str | None:
    """Return the type of `STAND_INS` that a struct represents; None for any other type.

    PySpark flags one of its fields (``pyspark.sql.pandas.types.to_arrow_type``).
    """
    if not pa.types.is_struct(kind):
        return None
    marks = [field.metadata or {} for field in children(kind)]
    found = (name for name in STAND_INS for mark in marks if mark.get(name.encode()) == b"true")
    return next(found, None)


def has_shredded_variant(kind: Any) -> bool:
    """Return True if a type is, or contains, a variant whose values are in typed columns as well.

    Spark writes variants in this way, in other columns for each file (parquet-format, "Variant
    Shredding").
    """
    if pa.types.is_struct(kind):
        fields = children(kind)
        if {"metadata", "typed_value"} <= {field.name for field in fields} <= _SHREDDED:
            return True
        return any(has_shredded_variant(field.type) for field in fields)
    if pa.types.is_map(kind):
        return has_shredded_variant(kind.item_type)
    return _is_list(kind) and has_shredded_variant(kind.value_type)


_SHREDDED = {"metadata", "value", "typed_value"}
