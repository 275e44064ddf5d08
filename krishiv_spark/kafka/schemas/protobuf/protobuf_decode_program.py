"""A reader's message as a program of the decoder: columns, and the fields of each message.

Columns of one *domain* have the same number of values, which have the same indices: the records,
or the elements of one list. A field of a message within a message belongs to the domain of the
outer one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.protobuf.protobuf_types import (
    KINDS,
    ProtoField,
    ProtoMessage,
    describe_field,
    describe_kind,
)

__all__ = [
    "ROWS",
    "Check",
    "ProtoColumn",
    "ProtoOp",
    "ProtoProgram",
    "check_writer",
    "compile_reader",
]

ROWS = 0
"""The domain of the records."""

FIELD_NUMBERS, MESSAGE_NUMBERS, DOMAIN_NUMBERS = 12, 10, 2
"""Numbers of a field, of a message and of a domain in the tables of the kernel."""

IS_LIST = 2
"""The last number of a reset of a list, before a message of a oneof."""

_MOST_DENSE = 255
"""Numbers of fields up to this one are looked up in a table, others by a binary search."""


class ProtoOp:
    """Kinds of values, by which the kernel reads them."""

    INT32, INT64, UINT32, SINT32, SINT64, BOOL = range(6)
    BITS32, SBITS32, BITS64 = 6, 7, 8
    STRING, BYTES, MESSAGE, ENUM, CLOSED_ENUM = 9, 10, 11, 12, 13


class Check:
    """Checks of a message after its last field."""

    NONE, TIMESTAMP, DURATION = range(3)


_OPS = {
    "double": (ProtoOp.BITS64, 1),
    "float": (ProtoOp.BITS32, 5),
    "int64": (ProtoOp.INT64, 0),
    "uint64": (ProtoOp.INT64, 0),
    "int32": (ProtoOp.INT32, 0),
    "fixed64": (ProtoOp.BITS64, 1),
    "fixed32": (ProtoOp.BITS32, 5),
    "bool": (ProtoOp.BOOL, 0),
    "string": (ProtoOp.STRING, 2),
    "bytes": (ProtoOp.BYTES, 2),
    "uint32": (ProtoOp.UINT32, 0),
    "enum": (ProtoOp.ENUM, 0),
    "sfixed32": (ProtoOp.SBITS32, 5),
    "sfixed64": (ProtoOp.BITS64, 1),
    "sint32": (ProtoOp.SINT32, 0),
    "sint64": (ProtoOp.SINT64, 0),
    "message": (ProtoOp.MESSAGE, 2),
    "group": (ProtoOp.MESSAGE, 3),
}
"""Operation and wire type of each kind."""


@dataclass
class ProtoColumn:
    """Values of one kind within the reader's message.

    Attributes:
        index: Its number.
        kind: "number", "unsigned", "bytes", "enum", "list", "map", "struct" or "time".
        type: The Arrow type of the values.
        domain: The number of the domain of its values.
        is_nullable: True if values may be null.
        children: Members of a struct, the element of a list, key and value of a map, seconds and
            nanoseconds of a time.
        symbols: Of an enum, the names by their numbers.
    """

    index: int
    kind: str
    type: pa.DataType
    domain: int
    is_nullable: bool
    children: list[ProtoColumn] = field(default_factory=list)
    symbols: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProtoProgram:
    """Tables by which the kernel decodes records.

    Attributes:
        root: The column of the whole record.
        columns: All columns by number.
        lists: For each domain the column of its lists; None for the records.
        fields: `FIELD_NUMBERS` numbers for each field: operation, wire type, column, domain of
            elements, column of lists, message, start and number of the other fields of a oneof in
            the tables, start and number of an enum's numbers, start and number of the resets before
            a oneof's message.
        messages: `MESSAGE_NUMBERS` numbers for each message: start and number of the dense fields,
            start and number of the sparse ones, start and number of required fields, check, the
            columns of seconds and nanoseconds, and 1 for the pair of a map.
        domains: `DOMAIN_NUMBERS` numbers for each domain: start and number of its resets.
        tables: Numbers to which the others refer. A reset is a column and two numbers, and 1 if
            the value is not null.
        constants: Bytes of defaults.
        depth: Maximum number of messages within each other.
        paths: The path of each field.
    """

    root: ProtoColumn
    columns: Sequence[ProtoColumn]
    lists: Sequence[ProtoColumn | None]
    fields: NDArray[np.int64]
    messages: NDArray[np.int64]
    domains: NDArray[np.int64]
    tables: NDArray[np.int64]
    constants: bytes
    depth: int
    paths: Sequence[str]


def compile_reader(message: ProtoMessage) -> ProtoProgram:
    """Compile the program that decodes records of a message."""
    compiler = _ProtoCompiler()
    kind = pa.struct([each.arrow_field for each in message.fields])
    root = compiler.add_column("struct", kind, ROWS, is_nullable=True)
    compiler.add_message(message, root)
    domains = [compiler.add_resets(members) for members in compiler.domains]
    return ProtoProgram(
        root,
        compiler.columns,
        compiler.lists,
        _to_array(compiler.fields),
        _to_array(compiler.messages),
        _to_array(domains),
        np.array(compiler.tables or [0], np.int64),
        bytes(compiler.constants),
        compiler.depth,
        compiler.paths or [""],
    )


def _to_array(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    return np.array(rows or [[0]], np.int64).reshape(-1)


@dataclass(frozen=True)
class _Reset:
    """The value of a column before a record or an element sets it.

    Attributes:
        column: The number of the column.
        first: The value; of bytes, where they start in the constants, as -1 - start.
        second: Number of bytes.
        flag: 1 if the value is not null; `IS_LIST` for a list before a message of a oneof.
    """

    column: int
    first: int = 0
    second: int = 0
    flag: int = 0


class _ProtoCompiler:
    def __init__(self) -> None:
        self.columns: list[ProtoColumn] = []
        self.lists: list[ProtoColumn | None] = [None]
        self.domains: list[list[_Reset]] = [[]]
        self.fields: list[list[int]] = []
        self.messages: list[list[int]] = []
        self.tables: list[int] = []
        self.constants = bytearray()
        self.paths: list[str] = []
        self.depth = 0
        self._path: list[str] = []

    def add_column(
        self, kind: str, of: pa.DataType, domain: int, *, is_nullable: bool
    ) -> ProtoColumn:
        """Add a column whose values are null, or 0 if they cannot be null."""
        column = ProtoColumn(len(self.columns), kind, of, domain, is_nullable)
        self.columns.append(column)
        self.domains[domain].append(_Reset(column.index))
        return column

    def add_table(self, numbers: Sequence[int]) -> tuple[int, int]:
        """Add numbers; return their start and number."""
        self.tables += numbers
        return len(self.tables) - len(numbers), len(numbers)

    def add_resets(self, resets: Sequence[_Reset]) -> tuple[int, int]:
        """Add resets; return their start and number."""
        numbers = [(each.column, each.first, each.second, each.flag) for each in resets]
        return self.add_table([part for each in numbers for part in each])[0], len(resets)

    # --- messages

    def add_message(self, message: ProtoMessage, into: ProtoColumn) -> int:
        """Add a message whose fields are columns within another; return its number."""
        number = len(self.messages)
        self.messages.append([])
        self._levels += 1
        self.depth = max(self.depth, self._levels)
        begin = len(self.fields)
        self.fields += [[] for _ in message.fields]
        self.paths += ["" for _ in message.fields]
        columns = [self._add_child(message, each, into) for each in message.fields]
        for at, (each, column) in enumerate(zip(message.fields, columns, strict=True)):
            self._path.append(each.name)
            self.paths[begin + at] = ".".join(self._path)
            others = [
                other.index
                for of, other in zip(message.fields, columns, strict=True)
                if each.oneof and of.oneof == each.oneof and of.name != each.name
            ]
            self.fields[begin + at] = self._to_field(each, column, others, message)
            self._path.pop()
        self._levels -= 1
        self.messages[number] = self._to_message(message, begin, columns)
        return number

    _levels = 0

    def _to_message(
        self, message: ProtoMessage, begin: int, columns: Sequence[ProtoColumn]
    ) -> list[int]:
        numbers = {each.number: begin + at for at, each in enumerate(message.fields)}
        most = max((n for n in numbers if n <= _MOST_DENSE), default=-1)
        dense = self.add_table([numbers.get(n, -1) for n in range(most + 1)])
        sparse = [part for n in sorted(numbers) if n > _MOST_DENSE for part in (n, numbers[n])]
        required = [begin + at for at, each in enumerate(message.fields) if each.is_required]
        check, times = Check.NONE, [0, 0]
        if message.is_time:
            check = Check.TIMESTAMP if message.name.endswith("Timestamp") else Check.DURATION
            times = [each.index for each in columns]
        start, count = self.add_table(sparse)
        return [
            *dense, start, count // 2, *self.add_table(required), check, *times,
            int(message.is_entry),
        ]  # fmt: skip

    def _add_child(self, message: ProtoMessage, of: ProtoField, into: ProtoColumn) -> ProtoColumn:
        """Add the column of a field, and those of a list's elements."""
        if message.is_wrapper:  # the value of a wrapper is the column of the wrapper itself
            return into
        if not of.is_repeated:
            is_nullable = not message.is_time and (of.has_presence or message.is_entry)
            column = self._add_value(of, into.domain, is_nullable=is_nullable)
        else:
            kind = "map" if of.is_map else "list"
            column = self.add_column(kind, of.arrow, into.domain, is_nullable=False)
            self.lists.append(column)
            self.domains.append([])
            column.children = [self._add_value(of, len(self.domains) - 1, is_nullable=True)]
        into.children.append(column)
        return column

    def _add_value(self, of: ProtoField, domain: int, *, is_nullable: bool) -> ProtoColumn:
        kind, symbols = _column_kind(of), of.symbols
        # The pairs of a map have fields that are not null, unlike the fields of their message.
        item = pa.struct([of.arrow.key_field, of.arrow.item_field]) if of.is_map else of.item
        column = self.add_column(kind, item, domain, is_nullable=is_nullable)
        if of.message is not None and of.message.is_wrapper:
            symbols = of.message.fields[0].symbols
        column.symbols = symbols
        return column

    # --- fields

    def _to_field(
        self, of: ProtoField, column: ProtoColumn, others: Sequence[int], message: ProtoMessage
    ) -> list[int]:
        op, wire = _OPS[of.kind]
        if op == ProtoOp.ENUM and of.is_closed:
            op = ProtoOp.CLOSED_ENUM
        value = column.children[0] if of.is_repeated else column
        child = self.add_message(of.message, value) if of.message is not None else -1
        self._set_default(of, value, message)
        list_column = column.index if of.is_repeated else -1
        domain = value.domain if of.is_repeated else -1
        symbols = sorted(of.symbols) if of.is_closed else []
        inner = list(self._find_aligned(value)) if others and child >= 0 else []
        if inner == [] and others and child >= 0:  # a wrapper's value is its own column
            inner = [_Reset(value.index)]
        return [
            op, wire, value.index, domain, list_column, child, *self.add_table(others),
            *self.add_table(symbols), *self.add_resets(inner),
        ]  # fmt: skip

    def _find_aligned(self, column: ProtoColumn) -> Iterator[_Reset]:
        """Yield the resets of the columns within a message that belong to its own domain."""
        for child in column.children if column.kind in {"struct", "time"} else []:
            reset = next(r for r in self.domains[child.domain] if r.column == child.index)
            yield replace(reset, flag=IS_LIST) if child.kind in {"list", "map"} else reset
            yield from self._find_aligned(child)

    def _set_default(self, of: ProtoField, column: ProtoColumn, message: ProtoMessage) -> None:
        """Set the value of a field that a record lacks: a declared one, or that of a pair."""
        is_member = message.is_entry and not of.is_repeated
        first, second = 0, 0
        if of.default is not None and not of.is_repeated:
            first, second = self._encode_default(of)
        elif not is_member:
            return
        resets = self.domains[column.domain]
        at = next(n for n, each in enumerate(resets) if each.column == column.index)
        resets[at] = _Reset(column.index, first, second, 1)

    def _encode_default(self, of: ProtoField) -> tuple[int, int]:
        if of.kind in {"string", "bytes"}:
            octets = of.default.encode() if of.kind == "string" else of.default
            start = len(self.constants)
            self.constants += octets
            return -start - 1, len(octets)
        if of.kind in {"float", "double"}:
            return _read_bits(of.kind, of.default), 0
        return _signed(int(of.default)), 0


def _read_bits(kind: str, value: float) -> int:
    formats = ("<f", "<I") if kind == "float" else ("<d", "<q")
    return int(struct.unpack(formats[1], struct.pack(formats[0], value))[0])


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _column_kind(of: ProtoField) -> str:
    if of.message is not None and not of.message.is_wrapper:
        return "time" if of.message.is_time else "struct"
    kind = of.kind if of.message is None else of.message.fields[0].kind
    if kind in {"string", "bytes"}:
        return "bytes"
    if kind in {"uint64", "fixed64"}:
        return "unsigned"
    return "enum" if kind == "enum" else "number"


# --- the writer's schema

_SAME_WIRE: tuple[frozenset[str], ...] = (
    frozenset({"int32", "int64", "uint32", "uint64", "bool", "enum"}),
    frozenset({"sint32", "sint64"}),
    frozenset({"fixed32", "sfixed32"}),
    frozenset({"fixed64", "sfixed64"}),
    frozenset({"string", "bytes"}),
    frozenset({"bytes", "message"}),
)
"""Kinds that may replace each other.
https://protobuf.dev/programming-guides/proto3/#updating"""


def check_writer(writer: Any, reader: ProtoMessage) -> None:
    """Check that records of a writer's message can be read with the reader's.

    Args:
        writer: The descriptor of the writer's message.
        reader: The reader's message.

    Raises:
        SchemaError: If a field has types of which Protobuf allows no change from one to the other.
            It names the field and both types.
    """
    _check_fields(writer, reader, ())


def _check_fields(writer: Any, reader: ProtoMessage, path: tuple[str, ...]) -> None:
    written = {each.number: each for each in writer.fields}
    for each in reader.fields:
        found = written.get(each.number)
        if found is None:
            continue
        inner = (*path, each.name)
        if not _may_read(found, each):
            name = "" if each.message is None else each.message.name
            wanted = describe_kind(each.kind, name, is_repeated=each.is_repeated)
            raise SchemaError(
                f"field {'.'.join(inner)} (number {each.number}) is {describe_field(found)} in "
                f"the writer's schema, which cannot be read as {wanted}"
            )
        if each.message is not None and found.message_type is not None:
            _check_fields(found.message_type, each.message, inner)


def _may_read(found: Any, wanted: ProtoField) -> bool:
    kind = KINDS[found.type]
    pair = {kind, wanted.kind}
    if len(pair) > 1 and not any(pair <= each for each in _SAME_WIRE):
        return False
    # The last one of several values is read; several numbers are packed into one value.
    is_last_read = wanted.is_repeated or kind in {"string", "bytes", "message"}
    return is_last_read or not found.is_repeated
