"""Avro schemas as trees of types, and the Arrow types of their values.

The mapping is that of Spark's own `from_avro` (spark-avro 4.x), since users compare with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from krishiv_spark.errors import SchemaError

__all__ = ["MISSING", "AvroField", "AvroType", "find_single_type", "parse_avro_schema"]

MISSING: Any = object()
"""The default of a field that has none: None is a value in Avro."""

_PRIMITIVE = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
"""Logical types that change the Arrow type. Others, such as `uuid` or `time-millis`, are read as
their base type: Spark has no such type, and `from_avro` does the same."""

_TIMES = {
    ("int", "time-millis"),
    ("long", "time-micros"),
    ("long", "timestamp-millis"),
    ("long", "timestamp-micros"),
    ("long", "timestamp-nanos"),
}
"""Logical types of numbers whose unit a writer may change: no rule of compatibility compares it."""

_MOST_DIGITS = 38  # of Spark's DECIMAL, and of Arrow's decimal128


@dataclass(frozen=True)
class AvroField:
    """A field of a record.

    Attributes:
        name: Name of the column.
        type: Type of its values.
        aliases: Names under which writers may know it.
        default: Its value in records of writers that do not have it; `MISSING` without one.
        raw: Its type as fastavro writes it, with which defaults are encoded.
    """

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = MISSING
    raw: Any = None


@dataclass(frozen=True)
class AvroType:
    """A type of an Avro schema.

    Attributes:
        kind: The name of a primitive type, or "fixed", "enum", "array", "map", "union", "record".
        name: The full name of a named type.
        aliases: Its other full names.
        logical: The logical type, if this package treats it specially; otherwise None.
        time: The logical type of a number that is a time, without "local-"; empty for others.
        size: Bytes of a fixed.
        precision: Digits of a decimal.
        scale: Digits of a decimal after the point.
        symbols: Of an enum.
        default_symbol: Of an enum: the value of symbols that the reader does not have.
        items: The types of an array's elements or a map's values (one), or a union's branches.
        fields: Of a record.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    logical: str | None = None
    time: str = ""
    size: int = 0
    precision: int = 0
    scale: int = 0
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    items: tuple[AvroType, ...] = ()
    fields: tuple[AvroField, ...] = field(default=(), repr=False)

    @property
    def arrow(self) -> pa.DataType:  # noqa: PLR0911  one per kind of type
        """The Arrow type of the values."""
        if self.kind == "union":
            return _union_type(self)
        if self.logical == "decimal":
            return pa.decimal128(self.precision, self.scale)
        if self.kind in _PRIMITIVE:
            return _LOGICAL.get((self.kind, self.logical or ""), _PRIMITIVE[self.kind])
        if self.kind == "array":
            return pa.list_(pa.field("element", self.items[0].arrow, self.items[0].is_nullable))
        if self.kind == "map":
            value = pa.field("value", self.items[0].arrow, self.items[0].is_nullable)
            return pa.map_(pa.string(), value)
        if self.kind == "record":
            return pa.struct(
                [pa.field(f.name, f.type.arrow, f.type.is_nullable) for f in self.fields]
            )
        return pa.string() if self.kind == "enum" else pa.binary()

    @property
    def is_nullable(self) -> bool:
        """True if a value may be null."""
        return self.kind == "null" or any(item.kind == "null" for item in self.branches)

    @property
    def branches(self) -> tuple[AvroType, ...]:
        """The branches of a union; none of other types."""
        return self.items if self.kind == "union" else ()

    @property
    def values(self) -> tuple[AvroType, ...]:
        """The branches of a union that are not null."""
        return tuple(item for item in self.branches if item.kind != "null")


def find_single_type(of: AvroType) -> AvroType | None:
    """Return the single type of a union with null or without, with numbers joined; None of others.

    Spark reads `[int, long]` as BIGINT and `[float, double]` as DOUBLE.
    """
    kinds = {value.kind for value in of.values}
    if len(of.values) == 1:
        return of.values[0]
    for wide, joined in (("long", {"int", "long"}), ("double", {"float", "double"})):
        if kinds == joined and not any(value.logical for value in of.values):
            return AvroType(wide)
    return None


def _union_type(union: AvroType) -> pa.DataType:
    """Return a union as Spark has it: one type, or a struct with a member per type."""
    one = find_single_type(union)
    if one is not None:
        return one.arrow
    return pa.struct([pa.field(f"member{n}", v.arrow) for n, v in enumerate(union.values)])


def parse_avro_schema(text: str, references: Mapping[str, str] | None = None) -> AvroType:
    """Parse a schema.

    Args:
        text: The schema, as JSON.
        references: The texts of the schemas that it refers to, by name; each after those that it
            needs itself.

    Raises:
        SchemaError: If the text is no valid schema, or if it has a type that no column can hold: a
            type that contains itself, or a decimal of more than 38 digits. It names the type.
    """
    import fastavro.schema

    known: dict[str, Any] = {}
    try:
        for each in (references or {}).values():
            fastavro.schema.parse_schema(json.loads(each), named_schemas=known)
        raw = fastavro.schema.parse_schema(json.loads(text), named_schemas=known)
    except Exception as error:  # fastavro and json raise many classes
        raise SchemaError(f"not a valid Avro schema ({error}): {text[:200]}") from error
    return _build(raw, known, ())


def _build(  # noqa: PLR0911  one per form of a type
    raw: Any, known: Mapping[str, Any], outer: tuple[str, ...]
) -> AvroType:
    if isinstance(raw, list):
        return AvroType("union", items=tuple(_build(item, known, outer) for item in raw))
    if isinstance(raw, str):
        return AvroType(raw) if raw in _PRIMITIVE else _build_named(known[raw], known, outer)
    kind = raw["type"]
    if kind in {"record", "error", "enum", "fixed"}:
        return _build_named(raw, known, outer)
    if kind == "array":
        return AvroType("array", items=(_build(raw["items"], known, outer),))
    if kind == "map":
        return AvroType("map", items=(_build(raw["values"], known, outer),))
    if kind in _PRIMITIVE:
        return AvroType(kind, **_logical(raw, kind))
    return _build(kind, known, outer)


def _build_named(raw: Any, known: Mapping[str, Any], outer: tuple[str, ...]) -> AvroType:
    name, kind = raw["name"], raw["type"]
    if name in outer:
        raise SchemaError(
            f"the Avro type {name} contains itself ({' > '.join((*outer, name))}): Spark has no "
            "such type. Read the value as bytes, or give a reader's schema without that field"
        )
    aliases = tuple(_full_names(raw.get("aliases", ()), name))
    if kind == "fixed":
        return AvroType(kind, name, aliases, size=raw["size"], **_logical(raw, kind))
    if kind == "enum":
        symbols = tuple(raw["symbols"])
        return AvroType(kind, name, aliases, symbols=symbols, default_symbol=raw.get("default"))
    fields = tuple(_build_field(each, known, (*outer, name)) for each in raw["fields"])
    return AvroType("record", name, aliases, fields=fields)


def _build_field(raw: Any, known: Mapping[str, Any], outer: tuple[str, ...]) -> AvroField:
    return AvroField(
        raw["name"],
        _build(raw["type"], known, outer),
        tuple(raw.get("aliases", ())),
        raw.get("default", MISSING),
        raw["type"],
    )


def _full_names(aliases: Sequence[str], name: str) -> list[str]:
    space = name.rpartition(".")[0]
    return [each if "." in each or not space else f"{space}.{each}" for each in aliases]


def _logical(raw: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the logical type that is honoured; an invalid one is ignored, as Avro specifies."""
    logical = raw.get("logicalType")
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        precision, scale = raw.get("precision"), raw.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision > 0:
            if precision > _MOST_DIGITS:
                raise SchemaError(
                    f"an Avro decimal has {precision} digits, and Spark's have {_MOST_DIGITS} at "
                    "most: read the value as bytes"
                )
            return {"logical": logical, "precision": precision, "scale": scale}
        return {}
    time = str(logical).removeprefix("local-")
    found: dict[str, Any] = {"time": time} if (kind, time) in _TIMES else {}
    return {"logical": logical, **found} if (kind, logical) in _LOGICAL else found
