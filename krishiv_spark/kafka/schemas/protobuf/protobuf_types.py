"""Protobuf messages as trees of fields, and the Arrow types of their values. Driver, executor.

A field without presence (proto3 without `optional`) has its default if a record lacks it, and one
with presence is null, or has the default that the schema declares for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from krishiv_spark.errors import SchemaError

__all__ = ["KINDS", "ProtoField", "ProtoMessage", "describe_field", "describe_kind", "read_message"]

_SCALARS = {
    "double": pa.float64(),
    "float": pa.float32(),
    "int64": pa.int64(),
    "uint64": pa.decimal128(20, 0),
    "int32": pa.int32(),
    "fixed64": pa.decimal128(20, 0),
    "fixed32": pa.int64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "uint32": pa.int64(),
    "enum": pa.string(),
    "sfixed32": pa.int32(),
    "sfixed64": pa.int64(),
    "sint32": pa.int32(),
    "sint64": pa.int64(),
}
"""The Arrow type of each scalar: unsigned numbers need the next wider type of Spark."""

KINDS = (
    "",
    "double",
    "float",
    "int64",
    "uint64",
    "int32",
    "fixed64",
    "fixed32",
    "bool",
    "string",
    "group",
    "message",
    "bytes",
    "uint32",
    "enum",
    "sfixed32",
    "sfixed64",
    "sint32",
    "sint64",
)
"""The kinds, by the numbers of `FieldDescriptorProto.Type`."""

_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_TIMES = {
    "google.protobuf.Timestamp": pa.timestamp("us", "UTC"),
    "google.protobuf.Duration": pa.duration("us"),
}


@dataclass(frozen=True)
class ProtoField:
    """A field of a message.

    Attributes:
        name: Name of the column.
        number: Its number in records.
        kind: A scalar type, "enum", "message" or "group".
        is_repeated: True for lists and maps.
        is_packed: True for numbers that are written one after the other, with one tag.
        has_presence: True if a record may lack it, other than with its default.
        is_required: True if each record must have it (proto2).
        default: The value that the schema declares for records without it; None without one.
        oneof: Name of the group of which a record has one field at most; empty for none.
        message: The type of a message.
        symbols: Of an enum, the names by their numbers.
        is_closed: True for an enum whose other numbers are unknown fields.
    """

    name: str
    number: int
    kind: str
    is_repeated: bool = False
    is_packed: bool = False
    has_presence: bool = False
    is_required: bool = False
    default: Any = None
    oneof: str = ""
    message: ProtoMessage | None = None
    symbols: dict[int, str] = field(default_factory=dict)
    is_closed: bool = False

    @property
    def is_map(self) -> bool:
        """True for a map."""
        return self.message is not None and self.message.is_entry

    @property
    def item(self) -> pa.DataType:
        """The Arrow type of one value."""
        return _SCALARS[self.kind] if self.message is None else self.message.arrow

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of the column."""
        if self.is_map and self.message is not None:
            key, value = self.message.fields
            return pa.map_(key.item, pa.field("value", value.item, nullable=False))
        if self.is_repeated:
            return pa.list_(pa.field("element", self.item, nullable=False))
        return self.item

    @property
    def arrow_field(self) -> pa.Field:
        """The column: nullable, unless each record must have it."""
        return pa.field(self.name, self.arrow, nullable=not self.is_required)


@dataclass(frozen=True)
class ProtoMessage:
    """A message.

    Attributes:
        name: Its full name.
        fields: Its fields, in the order of the text.
        is_entry: True for the pairs of a map.
    """

    name: str
    fields: tuple[ProtoField, ...]
    is_entry: bool = False

    @property
    def is_wrapper(self) -> bool:
        """True for a well-known type that is a scalar or null."""
        return self.name in _WRAPPERS

    @property
    def is_time(self) -> bool:
        """True for the well-known Timestamp and Duration."""
        return self.name in _TIMES

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of the values."""
        if self.is_wrapper:
            return self.fields[0].item
        return _TIMES.get(self.name) or pa.struct([each.arrow_field for each in self.fields])


def read_message(message: Any) -> ProtoMessage:
    """Read the descriptor of a message.

    Raises:
        SchemaError: If it has a type that no column can hold: a message that contains itself. It
            names the type.
    """
    return _read(message, ())


def _read(message: Any, outer: tuple[str, ...]) -> ProtoMessage:
    name = message.full_name
    if name in outer:
        raise SchemaError(
            f"the Protobuf message {name} contains itself ({' > '.join((*outer, name))}): Spark "
            "has no such type. Read the value as bytes, or give a reader's schema in which that "
            "field is of type bytes"
        )
    inner = (*outer, name)
    found = tuple(_read_field(each, inner) for each in message.fields)
    return ProtoMessage(name, found, bool(message.GetOptions().map_entry))


def _read_field(of: Any, outer: tuple[str, ...]) -> ProtoField:
    kind = KINDS[of.type]
    message, enum = of.message_type, of.enum_type
    return ProtoField(
        of.name,
        of.number,
        kind,
        is_repeated=of.is_repeated,
        is_packed=of.is_packed,
        has_presence=of.has_presence,
        is_required=of.is_required,
        default=of.default_value if of.has_default_value else None,
        oneof="" if of.containing_oneof is None else of.containing_oneof.name,
        message=None if message is None else _read(message, outer),
        symbols={} if enum is None else _read_symbols(enum),
        is_closed=enum is not None and enum.is_closed,
    )


def _read_symbols(enum: Any) -> dict[int, str]:
    """Return the names by their numbers; the first one, if a number has several."""
    return {each.number: each.name for each in reversed(list(enum.values))}


def describe_kind(kind: str, message: str, *, is_repeated: bool) -> str:
    """Return the type of a field as messages show it."""
    name = f"{kind} {message}".rstrip()
    return f"repeated {name}" if is_repeated else name


def describe_field(of: Any) -> str:
    """Return the type of a field's descriptor as messages show it."""
    message = "" if of.message_type is None else of.message_type.full_name
    return describe_kind(KINDS[of.type], message, is_repeated=of.is_repeated)
