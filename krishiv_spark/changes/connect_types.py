"""The types of Kafka Connect, as schemas of records name them, and the types of columns.

A type is an object of Connect's JSON form, such as ``{"type": "bytes", "name":
"org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}``. Schemas of Avro are
converted to it, so that one set of rules serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa

from krishiv_spark.changes.options import TimestampUnit
from krishiv_spark.changes.shapes import Form, changes_no_row, describe_strange
from krishiv_spark.changes.value_forms import ValueForm, ValueKind
from krishiv_spark.errors import SchemaError

__all__ = [
    "DECIMAL",
    "ConnectType",
    "add_schema",
    "check_columns",
    "find_contradiction",
    "find_form",
    "find_row_columns",
    "list_columns",
    "to_column_type",
    "to_form",
]

ConnectType: TypeAlias = "Mapping[str, Any]"

DECIMAL = "org.apache.kafka.connect.data.Decimal"
_SCALED_DECIMAL = "io.debezium.data.VariableScaleDecimal"
_UNITS: dict[str, TimestampUnit] = {
    "org.apache.kafka.connect.data.Time": "ms",
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "io.debezium.time.Time": "ms",
    "io.debezium.time.Timestamp": "ms",
    "io.debezium.time.MicroTime": "us",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTime": "ns",
    "io.debezium.time.NanoTimestamp": "ns",
}
_OF_CONNECTOR = "io.debezium.connector."
"""Prefix of the types of records about something else than a row, such as a transaction."""
_PRECISION = "connect.decimal.precision"
_MOST_DIGITS = 38


def find_form(of: ConnectType, keys: Sequence[str]) -> Form | None:
    """Return the form of the records of a type; None if they change no row.

    Args:
        of: The type.
        keys: The key columns of the table.

    Raises:
        SchemaError: If the records are no events.
    """
    fields = {each.get("field"): each for each in of.get("fields") or ()}
    if _is_envelope(fields):
        return "envelope"
    if changes_no_row(fields.keys()) or str(of.get("name")).startswith(_OF_CONNECTOR):
        return None
    if not fields.keys() >= {*keys}:
        raise SchemaError(describe_strange(keys))
    return "row"


def _is_envelope(fields: Mapping[Any, ConnectType]) -> bool:
    return "op" in fields and fields.get("source", {}).get("type") == "struct"


def find_row_columns(of: ConnectType, keys: Sequence[str]) -> pa.Schema:
    """Return the columns that a table needs for the records of a type; none if there are none.

    Args:
        of: The type.
        keys: The key columns of the table.

    Raises:
        SchemaError: If a column has no type in a table.
    """
    try:
        form = find_form(of, keys)
    except SchemaError:
        form = None  # the records themselves are refused
    if form is None:
        return pa.schema([])
    columns = list_columns(of)
    if form == "row":  # `ExtractNewRecordState` adds some
        columns = {name: each for name, each in columns.items() if not name.startswith("__")}
    return pa.schema([pa.field(name, to_column_type(each, name)) for name, each in columns.items()])


def list_columns(schema: ConnectType) -> dict[str, ConnectType]:
    """Return the types of the columns of a row by name: of an envelope those after the change.

    An envelope without rows, such as that of a message, has none.
    """
    fields = {each.get("field"): each for each in schema.get("fields") or ()}
    inner = fields.get("after") or fields.get("before")
    if inner is not None and inner.get("type") == "struct":
        fields = {each.get("field"): each for each in inner.get("fields") or ()}
    elif inner is None and _is_envelope(fields):
        fields = {}
    return {name: each for name, each in fields.items() if isinstance(name, str)}


def check_columns(of: ConnectType) -> None:
    """Refuse columns whose types lack the parts by which their values are read.

    Args:
        of: The type of records.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: If there is one.
    """
    for each in list_columns(of).values():
        _check_type(each)


_PARTS = {"array": ("items",), "map": ("keys", "values")}


def _check_type(of: ConnectType) -> None:
    if of.get("name") == DECIMAL:
        for name in ("scale", _PRECISION):
            int(of.get("parameters", {}).get(name, 0))
    inner = [of[part] for part in _PARTS.get(str(of.get("type")), ())]
    for each in of.get("fields") or ():
        if not isinstance(each["field"], str):
            raise TypeError("a field without a name")
        inner.append(each)
    for each in inner:
        _check_type(each)


# --- forms of values

_KINDS: dict[str, ValueKind] = {
    "boolean": "bool",
    "string": "text",
    "bytes": "bytes",
    "array": "array",
    "map": "object",
    "struct": "object",
}


def to_form(of: ConnectType) -> ValueForm:
    """Return the form of the values of a type in Avro."""
    return add_schema(ValueForm(_KINDS.get(str(of.get("type")), "number")), of, is_whole=True)


def add_schema(form: ValueForm, of: ConnectType, *, is_whole: bool = False) -> ValueForm:
    """Return a form with the scales and the units of a type.

    Args:
        form: The form of the values.
        of: Their type.
        is_whole: Whether the forms of all parts are those of the type. Otherwise they are those of
            JSON, and remain.
    """
    name = of.get("name")
    scale = int(of.get("parameters", {}).get("scale", 0)) if name == DECIMAL else None
    found = replace(form, scale=scale, unit=_UNITS.get(str(name)))
    if form.kind == "array" or of.get("type") == "map":
        inner = of.get("items" if form.kind == "array" else "values")
        return replace(found, element=_add_to_part(form.element, inner, is_whole=is_whole))
    if form.kind == "object":
        fields = {each["field"]: each for each in of.get("fields", ())}
        names = fields if is_whole else form.fields
        parts = {
            part: _add_to_part(form.fields.get(part), fields.get(part), is_whole=is_whole)
            for part in names
        }
        return replace(found, fields=parts)
    return found


def _add_to_part(
    form: ValueForm | None, of: ConnectType | None, *, is_whole: bool
) -> ValueForm | None:
    if of is None:
        return form
    if is_whole:
        return to_form(of)
    return None if form is None else add_schema(form, of)


# --- columns that exist


def find_contradiction(columns: Mapping[str, ConnectType], table: pa.Schema) -> str | None:
    """Return why the types of a record do not fit the columns of the table, or None.

    A number of days, say, is no time, although both are numbers.
    """
    for name, each in columns.items():
        inner = each.get("items") if each.get("type") == "array" else each
        logical = inner.get("name") if isinstance(inner, Mapping) else None
        tests = next((tests for word, tests in _FITTING if str(logical).endswith(word)), None)
        if tests is None or name not in table.names:
            continue
        kind = table.field(name).type
        kind = kind.value_type if pa.types.is_list(kind) else kind
        if not any(test(kind) for test in tests):
            return f"is {logical} in its schema in column {name!r}, which is {kind} in the table"
    return None


_Tests: TypeAlias = "tuple[Callable[[pa.DataType], bool], ...]"
_NUMBER_OR_TEXT: _Tests = (pa.types.is_integer, pa.types.is_string)
_FITTING: tuple[tuple[str, _Tests], ...] = (
    (".Date", (pa.types.is_date, *_NUMBER_OR_TEXT)),
    ("Timestamp", (pa.types.is_timestamp, *_NUMBER_OR_TEXT)),
    ("Time", (pa.types.is_time, *_NUMBER_OR_TEXT)),
    (".Year", _NUMBER_OR_TEXT),
    ("Duration", _NUMBER_OR_TEXT),
    (".Decimal", (pa.types.is_decimal, pa.types.is_string)),
)
"""Types of a column by the last part of the name of a type of Connect or Debezium."""


# --- columns of a new table

_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int8": pa.int32(),
    "int16": pa.int32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_NAMED: dict[str, pa.DataType] = {
    _SCALED_DECIMAL: pa.string(),  # each value has its own scale, and any number of digits
    "org.apache.kafka.connect.data.Date": pa.date32(),
    "org.apache.kafka.connect.data.Timestamp": pa.timestamp("us"),
    "io.debezium.time.Date": pa.date32(),
    "io.debezium.time.IsoDate": pa.date32(),
    "io.debezium.time.Timestamp": pa.timestamp("us"),
    "io.debezium.time.MicroTimestamp": pa.timestamp("us"),
    "io.debezium.time.NanoTimestamp": pa.timestamp("us"),
    "io.debezium.time.IsoTimestamp": pa.timestamp("us"),
    "io.debezium.time.ZonedTimestamp": pa.timestamp("us", "UTC"),
}
"""Types of Iceberg that Spark can read. It has no type for the time of a day, so that such a column
has the number or the text of the record."""


def to_column_type(of: ConnectType, path: str) -> pa.DataType:
    """Return the type of a column that is created for values of a type.

    Args:
        of: The type.
        path: Name of the column, for messages.

    Raises:
        SchemaError: If there is none.
    """
    name, kind = of.get("name"), str(of.get("type"))
    if name == DECIMAL:
        return _to_decimal(of.get("parameters", {}))
    if name in _NAMED:
        return _NAMED[name]
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == "array":
        return pa.list_(pa.field("element", to_column_type(of["items"], f"{path}.element")))
    if kind == "map" and of["keys"].get("type") == "string":
        return pa.map_(pa.string(), to_column_type(of["values"], f"{path}.value"))
    if kind == "struct" and of.get("fields"):
        return pa.struct(list(_iter_fields(of, path)))
    raise SchemaError(f"column {path!r} is {kind} in the schema of its records, which has no type")


def _iter_fields(of: ConnectType, path: str) -> Iterator[pa.Field]:
    for each in of["fields"]:
        yield pa.field(each["field"], to_column_type(each, f"{path}.{each['field']}"))


def _to_decimal(parameters: Mapping[str, Any]) -> pa.DataType:
    """Return the type of a decimal: a text, if no column can have its digits."""
    precision = int(parameters.get(_PRECISION, _MOST_DIGITS))
    scale = int(parameters.get("scale", 0))
    if 0 <= scale <= precision <= _MOST_DIGITS:
        return pa.decimal128(precision, scale)
    return pa.string()
