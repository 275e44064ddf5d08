"""The Protobuf schema of rows for which no schema is given, derived from their Arrow type. Planner.

The number of a field must not change while there are records with it. So the fields of the
subject's newest version keep theirs, new columns get the next numbers, and a field whose column was
dropped stays in the schema: new records do not have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.protobuf.protobuf_types import (
    ProtoField,
    ProtoMessage,
    read_message,
)

__all__ = ["DERIVED_PROTO_TYPES", "derive_proto"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIMES = {
    "google.protobuf.Duration": "google/protobuf/duration.proto",
    "google.protobuf.Timestamp": "google/protobuf/timestamp.proto",
}
"""Messages of Protobuf itself, and the files that have them."""

DERIVED_PROTO_TYPES: tuple[tuple[str, pa.DataType, str], ...] = (
    ("BOOLEAN", pa.bool_(), "bool"),
    ("TINYINT", pa.int8(), "int32"),
    ("SMALLINT", pa.int16(), "int32"),
    ("INT", pa.int32(), "int32"),
    ("BIGINT", pa.int64(), "int64"),
    ("FLOAT", pa.float32(), "float"),
    ("DOUBLE", pa.float64(), "double"),
    ("STRING", pa.string(), "string"),
    ("BINARY", pa.binary(), "bytes"),
    ("TIMESTAMP", pa.timestamp("us", "UTC"), "google.protobuf.Timestamp"),
    ("INTERVAL DAY TO SECOND", pa.duration("us"), "google.protobuf.Duration"),
)
"""Spark's name, the Arrow type and the Protobuf type of each type without parameters."""

_SIMPLE = {kind: proto for _, kind, proto in DERIVED_PROTO_TYPES}
_KEYS = (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string())
_RESERVED = range(19_000, 20_000)
"""Numbers that Protobuf keeps for itself."""

_OTHER_ORIGIN = (
    "the newest schema of the subject was not derived from columns ({}), so the numbers of new "
    "fields cannot be chosen: give your schema by 'valueSchema' or 'keySchema', or set "
    "'registry.version' (keys: 'registry.key.version') to write with one that the subject has"
)


@dataclass(frozen=True)
class _Field:
    """A line of a message.

    Attributes:
        name: The column.
        number: Its number in records.
        label: "", "optional" or "repeated".
        type: The Protobuf type; of a map, that of its values.
        key: The type of a map's keys; empty for other types.
        message: The message of its values, if it is declared here.
    """

    name: str
    number: int
    label: str
    type: str
    key: str = ""
    message: _Message | None = None


@dataclass(frozen=True)
class _Message:
    name: str
    fields: tuple[_Field, ...] = ()


def derive_proto(kind: pa.DataType, name: str, newest: Any = None, path: str = "") -> str:
    """Return the text of a .proto file whose message holds all values of a type.

    Args:
        kind: The type of the whole value.
        name: The name of the message.
        newest: The file descriptor of the subject's newest version; None if there is none.
        path: The column of the value, for messages; empty if its fields are columns.

    Raises:
        SchemaError: If Protobuf cannot hold a type, or a column's name: it names the column; or if
            the newest version has types that this module does not derive.
    """
    if not pa.types.is_struct(kind):
        raise SchemaError(f"column {path!r} is {kind}, and a Protobuf message needs a STRUCT")
    known = _Message(name) if newest is None else _read_file(newest, name)
    message = _derive(kind, known, [path] if path else [])
    files = sorted({_TIMES[each.type] for each in _walk(message) if each.type in _TIMES})
    imports = [f'import "{file}";' for file in files]
    return "\n".join(['syntax = "proto3";', *imports, *_print(message, ""), ""])


def _walk(message: _Message) -> Iterator[_Field]:
    for each in message.fields:
        yield each
        if each.message is not None:
            yield from _walk(each.message)


def _print(message: _Message, indent: str) -> Iterator[str]:
    yield f"{indent}message {message.name} {{"
    for each in message.fields:
        if each.message is not None:
            yield from _print(each.message, indent + "  ")
        kind = f"map<{each.key}, {each.type}>" if each.key else each.type
        label = f"{each.label} " if each.label else ""
        yield f"{indent}  {label}{kind} {each.name} = {each.number};"
    yield f"{indent}}}"


# --- from columns


def _derive(kind: pa.DataType, known: _Message, path: list[str]) -> _Message:
    """Return a message with the fields of another one, and of a STRUCT."""
    found = {each.name: each for each in known.fields}
    names = {each.message.name for each in known.fields if each.message is not None}
    last = max((each.number for each in known.fields), default=0)
    for each in kind:
        where = [*path, each.name]
        if not _NAME.fullmatch(each.name):
            raise SchemaError(
                f"column {'.'.join(where)!r} has no name of Protobuf, which consists of letters, "
                "digits and underscores: rename it"
            )
        old = found.get(each.name)
        if old is None:
            last = last + 1 if last + 1 not in _RESERVED else _RESERVED.stop
            old = _Field(each.name, last, "", "")
        found[each.name] = _derive_field(each, old, names, where)
    return _Message(known.name, tuple(found.values()))


def _derive_field(column: pa.Field, old: _Field, names: set[str], path: list[str]) -> _Field:
    kind, key, label = column.type, "", "optional" if column.nullable else ""
    if pa.types.is_map(kind):
        if kind.key_type not in _KEYS:
            raise SchemaError(
                f"column {'.'.join(path)!r} is a MAP with keys of the type {kind.key_type}, and "
                "those of a Protobuf map are texts, whole numbers or booleans: cast them"
            )
        key, label, kind = _SIMPLE[kind.key_type], "", kind.item_type
    elif pa.types.is_list(kind):
        label, kind = "repeated", kind.value_type
    if pa.types.is_struct(kind):
        label = "" if label == "optional" else label  # a message always has presence
        known = old.message or _Message(_name_message(old.name, names))
        message = _derive(kind, known, path)
        return replace(old, label=label, type=message.name, key=key, message=message)
    if kind not in _SIMPLE:
        raise SchemaError(
            f"column {'.'.join(path)!r} has the type {kind}, for which Protobuf has no type here: "
            "cast it, for instance to STRING; put a list within a list or a map into a STRUCT"
        )
    label = "" if _SIMPLE[kind] in _TIMES and label == "optional" else label
    return replace(old, label=label, type=_SIMPLE[kind], key=key, message=None)


def _name_message(field: str, names: set[str]) -> str:
    """Return the name of a message for a field, as LineItem for line_item."""
    name = "".join(part[:1].upper() + part[1:] for part in field.split("_")) or "Field"
    name = name if _NAME.fullmatch(name) else f"Field{name}"
    while name in names:
        name += "_"
    names.add(name)
    return name


# --- from the newest version


def _read_file(file: Any, name: str) -> _Message:
    messages = list(file.message_types_by_name.values())
    if file.package or [each.name for each in messages] != [name] or file.enum_types_by_name:
        raise SchemaError(_OTHER_ORIGIN.format(f"it is not the message {name} alone"))
    return _read_known(read_message(messages[0]))


def _read_known(of: ProtoMessage) -> _Message:
    return _Message(of.name.rpartition(".")[2], tuple(map(_read_field, of.fields)))


def _read_field(of: ProtoField) -> _Field:
    key, item = "", of
    if of.is_map and of.message is not None:
        keys, item = of.message.fields
        key = keys.kind
    is_message = item.message is not None and not item.message.is_time
    kind = item.kind if item.message is None else item.message.name
    is_derived = kind in {*_SIMPLE.values()} or (item.kind == "message" and is_message)
    has_choice = of.oneof not in {"", f"_{of.name}"}
    is_wrapper = item.message is not None and item.message.is_wrapper
    if not is_derived or has_choice or of.is_required or is_wrapper or of.default is not None:
        raise SchemaError(_OTHER_ORIGIN.format(f"field {of.name}"))
    is_optional = of.has_presence and of.message is None
    label = "repeated" if of.is_repeated and not key else "optional" if is_optional else ""
    message = _read_known(item.message) if is_message and item.message is not None else None
    return _Field(of.name, of.number, label, message.name if message else kind, key, message)
