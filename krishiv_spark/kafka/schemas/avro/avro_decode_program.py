"""A writer's and a reader's schema as a program of the decoder: Avro's rules of schema resolution.

The rules are those of "Schema Resolution" in the Avro specification 1.12. A writer that cannot be
resolved is an error here, before a record is read; an unresolvable branch of a writer's union is an
error of the records that use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.avro.avro_defaults import encode_default
from krishiv_spark.kafka.schemas.avro.avro_types import (
    MISSING,
    AvroField,
    AvroType,
    find_single_type,
)

__all__ = ["Column", "Op", "Program", "compile_program", "describe"]


class Op:
    """The instructions of the decoder, four numbers each: an opcode and three operands."""

    END = 0
    NUMBER = 1  # column, converter, most bits
    BYTES = 2  # column (-1: skip), 1 if it must be text
    FIXED = 3  # column (-1: skip), size
    BOOLEAN = 4  # column
    FLOAT = 5  # column, 1 if the column has doubles
    DOUBLE = 6  # column
    ENUM = 7  # column, table of the reader's symbols, number of the writer's symbols
    DECIMAL = 8  # column, table of the limits, size (-1: a length precedes)
    UNION = 9  # table of targets, number of branches
    JUMP = 10  # target
    NULLS = 11  # table of columns, number of columns
    VALID = 12  # column
    LIST = 13  # start of a list, without operands
    NEXT = 14  # column (-1: skip), target after the list, 1 if an element may take no byte
    CONSTANT = 15  # start and end in the constants
    RETURN = 16  # the end of a constant
    FAIL = 17


class Converter:
    """Conversions of a whole number on its way into a column."""

    NONE, TO_FLOAT, TO_DOUBLE, TIMES_1000, SKIP, TIMES_1000000, OVER_1000 = range(7)


@dataclass
class Column:
    """Values of one kind within the reader's type.

    Attributes:
        index: Its number.
        kind: "number", "decimal", "bytes", "list", "struct" or "null".
        type: The Arrow type of the values.
        is_nullable: True if values may be null.
        children: Elements of a list, key and value of a map, members of a struct.
        symbols: Of an enum, whose numbers are stored.
    """

    index: int
    kind: str
    type: pa.DataType
    is_nullable: bool
    children: list[Column] = field(default_factory=list)
    symbols: tuple[str, ...] = ()

    def to_fill(self) -> Iterator[Column]:
        """Yield the columns that get a value when this one is null: members, but no elements."""
        yield self
        if self.kind == "struct":
            for child in self.children:
                yield from child.to_fill()


@dataclass(frozen=True)
class Program:
    """Instructions that decode a writer's records into a reader's columns.

    Attributes:
        root: The column of the whole value.
        columns: All columns by number.
        code: The instructions.
        tables: Numbers to which instructions refer.
        constants: Encoded defaults.
        depth: Nesting of lists.
        paths: For each instruction the field that it decodes, for errors.
    """

    root: Column
    columns: Sequence[Column]
    code: NDArray[np.int64]
    tables: NDArray[np.int64]
    constants: bytes
    depth: int
    paths: Sequence[str]


def compile_program(writer: AvroType, reader: AvroType) -> Program:
    """Compile the program of a pair of schemas.

    Raises:
        SchemaError: If the writer's records cannot be read with the reader's schema. It names the
            field and both types.
    """
    compiler = _Compiler()
    root = compiler.add_column(reader, is_nullable=True)
    compiler.emit(writer, reader, root)
    compiler.add(Op.END)
    return Program(
        root,
        compiler.columns,
        np.array(compiler.code, np.int64).reshape(-1),
        np.array(compiler.tables or [0], np.int64),
        bytes(compiler.constants),
        compiler.depth,
        compiler.paths,
    )


_NUMBERS = {"int": 32, "long": 64}
_PROMOTED = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_NAMED = {"record", "enum", "fixed"}


def _matches(writer: AvroType, reader: AvroType) -> bool:
    """Return True if two types that are no unions match, promotions included.

    Enums and fixed types must have the same name, ignoring namespaces. Records match by their
    fields, also with other names, as in Avro's own implementation for Java.
    """
    if writer.kind != reader.kind:
        return reader.kind in _PROMOTED.get(writer.kind, ())
    if writer.kind in {"enum", "fixed"} and not _has_same_name(writer, reader):
        return False
    return writer.kind != "fixed" or writer.size == reader.size


def _has_same_name(writer: AvroType, reader: AvroType) -> bool:
    names = {writer.name, *writer.aliases}
    return _short(writer.name) == _short(reader.name) or bool(
        names & {reader.name, *reader.aliases}
    )


def _find_branch(writer: AvroType, union: AvroType) -> int | None:
    """Return the number of the reader's branch: the same type first, then promotions."""
    same = [n for n, each in enumerate(union.values) if each.kind == writer.kind]
    if writer.kind in _NAMED:
        names = {writer.name, *writer.aliases}
        exact = [n for n in same if names & {union.values[n].name, *union.values[n].aliases}]
        short = [n for n in same if _short(union.values[n].name) == _short(writer.name)]
        same = exact or short
    promoted = [n for n, each in enumerate(union.values) if _matches(writer, each)]
    found = [n for n in same if _matches(writer, union.values[n])]
    if writer.kind in _NAMED:
        return next(iter(found), None)
    return next(iter(found or promoted), None)


def _short(name: str) -> str:
    return name.rpartition(".")[2]


class _Compiler:
    def __init__(self) -> None:
        self.columns: list[Column] = []
        self.code: list[tuple[int, int, int, int]] = []
        self.tables: list[int] = []
        self.constants = bytearray()
        self.paths: list[str] = []
        self.depth = 0
        self._path: list[str] = []
        self._open_lists = 0

    # --- columns

    def add_column(self, of: AvroType, *, is_nullable: bool) -> Column:
        """Add the columns of a type of the reader."""
        if of.kind == "union":
            one = find_single_type(of)
            if one is not None:
                return self.add_column(one, is_nullable=True)
            column = self._new("struct", of.arrow, is_nullable=is_nullable or of.is_nullable)
            column.children = [self.add_column(each, is_nullable=True) for each in of.values]
            return column
        column = self._new(_column_kind(of), of.arrow, is_nullable=is_nullable)
        if of.kind == "enum":
            column.symbols = of.symbols
        elif of.kind == "map":
            key = self._new("bytes", pa.string(), is_nullable=False)
            column.children = [key, self._add_item(of)]
        elif of.kind == "array":
            column.children = [self._add_item(of)]
        elif of.kind == "record":
            column.children = [
                self.add_column(each.type, is_nullable=each.type.is_nullable) for each in of.fields
            ]
        return column

    def _add_item(self, of: AvroType) -> Column:
        return self.add_column(of.items[0], is_nullable=of.items[0].is_nullable)

    def _new(self, kind: str, of: pa.DataType, *, is_nullable: bool) -> Column:
        column = Column(len(self.columns), kind, of, is_nullable)
        self.columns.append(column)
        return column

    # --- instructions

    def add(self, op: int, *operands: int) -> int:
        """Add an instruction; return its number."""
        one, two, three = (*operands, 0, 0, 0)[:3]
        self.code.append((op, one, two, three))
        self.paths.append(".".join(self._path))
        return len(self.code) - 1

    def _set(self, at: int, *operands: int) -> None:
        one, two, three = (*operands, 0, 0, 0)[:3]
        self.code[at] = (self.code[at][0], one, two, three)

    def _add_table(self, values: Sequence[int]) -> int:
        self.tables += values
        return len(self.tables) - len(values)

    def _add_nulls(self, columns: Sequence[Column]) -> None:
        filled = [each.index for column in columns for each in column.to_fill()]
        if filled:
            self.add(Op.NULLS, self._add_table(filled), len(filled))

    # --- resolution

    def emit(self, writer: AvroType, reader: AvroType, column: Column) -> None:
        """Decode a value of the writer's type into a column of the reader's."""
        if writer.kind == "union":
            self._emit_branches(writer, reader, column)
        elif reader.kind == "union":
            if not self._emit_member(writer, reader, column):
                raise self._mismatch(writer, reader)
        elif writer.kind == "null" or reader.kind == "null":
            if writer.kind != reader.kind:
                raise self._mismatch(writer, reader)
            self._add_nulls([column])
        elif not _matches(writer, reader):
            raise self._mismatch(writer, reader)
        else:
            self._emit_value(writer, reader, column)

    def _emit_branches(self, writer: AvroType, reader: AvroType, column: Column) -> None:
        table = self._add_table([0] * len(writer.items))
        self.add(Op.UNION, table, len(writer.items))
        ends, resolved = [], 0
        for number, branch in enumerate(writer.items):
            self.tables[table + number] = len(self.code)
            if self._emit_branch(branch, reader, column):
                resolved += 1
            ends.append(self.add(Op.JUMP))
        if not resolved:
            raise self._mismatch(writer, reader)
        for end in ends:
            self._set(end, len(self.code))

    def _emit_branch(self, branch: AvroType, reader: AvroType, column: Column) -> bool:
        """Decode one branch; a value of a branch that the reader does not have is an error."""
        if reader.kind == "union":
            is_known = self._emit_member(branch, reader, column)
        elif branch.kind == "null" or reader.kind == "null":
            is_known = branch.kind == reader.kind
            if is_known:
                self._add_nulls([column])
        else:
            is_known = _matches(branch, reader)
            if is_known:
                self._emit_value(branch, reader, column)
        if not is_known:
            self.add(Op.FAIL)
        return is_known

    def _emit_member(self, writer: AvroType, union: AvroType, column: Column) -> bool:
        """Decode a value into a union of the reader; return False if no branch matches."""
        if writer.kind == "null":
            if not union.is_nullable:
                return False
            self._add_nulls([column])
            return True
        one = find_single_type(union)
        if one is not None:
            if not _matches(writer, one):
                return False
            self._emit_value(writer, one, column)
            return True
        found = _find_branch(writer, union)
        if found is None:
            return False
        self.add(Op.VALID, column.index)
        self._add_nulls([child for n, child in enumerate(column.children) if n != found])
        self._emit_value(writer, union.values[found], column.children[found])
        return True

    def _emit_value(self, writer: AvroType, reader: AvroType, column: Column) -> None:
        kind = writer.kind
        if kind in _NUMBERS:
            self.add(Op.NUMBER, column.index, _converter(writer, reader), _NUMBERS[kind])
        elif reader.logical == "decimal":
            self._emit_decimal(writer, reader, column)
        elif kind in {"string", "bytes"}:
            self.add(Op.BYTES, column.index, int(reader.kind == "string"))
        elif kind == "fixed":
            self.add(Op.FIXED, column.index, writer.size)
        elif kind == "boolean":
            self.add(Op.BOOLEAN, column.index)
        elif kind == "float":
            self.add(Op.FLOAT, column.index, int(reader.kind == "double"))
        elif kind == "double":
            self.add(Op.DOUBLE, column.index)
        elif kind == "enum":
            self._emit_enum(writer, reader, column)
        elif kind == "record":
            self._emit_record(writer, reader, column)
        else:
            self._emit_list(writer, reader, column)

    def _emit_decimal(self, writer: AvroType, reader: AvroType, column: Column) -> None:
        if writer.logical == "decimal" and writer.scale != reader.scale:
            raise self._mismatch(writer, reader)
        limit = 10**reader.precision
        parts = [part for value in (limit, -limit) for part in (value >> 64, _signed(value))]
        size = writer.size if writer.kind == "fixed" else -1
        self.add(Op.DECIMAL, column.index, self._add_table(parts), size)

    def _emit_enum(self, writer: AvroType, reader: AvroType, column: Column) -> None:
        default = reader.default_symbol
        numbers = {symbol: number for number, symbol in enumerate(reader.symbols)}
        other = -1 if default is None else numbers[default]
        table = self._add_table([numbers.get(symbol, other) for symbol in writer.symbols])
        self.add(Op.ENUM, column.index, table, len(writer.symbols))

    def _emit_record(self, writer: AvroType, reader: AvroType, column: Column) -> None:
        self.add(Op.VALID, column.index)
        wanted = {name: n for n, each in enumerate(reader.fields) for name in each.aliases}
        wanted |= {each.name: n for n, each in enumerate(reader.fields)}
        missing = set(range(len(reader.fields)))
        for each in writer.fields:
            self._path.append(each.name)
            number = wanted.get(each.name)
            if number is None or number not in missing:
                self.skip(each.type)
            else:
                missing.discard(number)
                self.emit(each.type, reader.fields[number].type, column.children[number])
            self._path.pop()
        for number in sorted(missing):
            self._path.append(reader.fields[number].name)
            self._emit_default(reader.fields[number], column.children[number])
            self._path.pop()

    def _emit_default(self, of: AvroField, column: Column) -> None:
        if of.default is MISSING:
            raise SchemaError(
                f"the writer's Avro schema has no field {'.'.join(self._path)}, and the reader's "
                "has no default for it"
            )
        start = len(self.constants)
        self.constants += encode_default(of, ".".join(self._path))
        self.add(Op.CONSTANT, start, len(self.constants))
        self.emit(of.type, of.type, column)
        self.add(Op.RETURN)

    def _emit_list(self, writer: AvroType, reader: AvroType, column: Column) -> None:
        def decode_item() -> None:
            if writer.kind == "map":
                self.add(Op.BYTES, column.children[0].index, 1)
            self.emit(writer.items[0], reader.items[0], column.children[-1])

        self._loop(writer, column.index, decode_item)

    def _loop(self, of: AvroType, column: int, add_body: Any) -> None:
        may_be_empty = of.kind == "array" and _smallest(of.items[0]) == 0
        self.add(Op.LIST)
        self._open_lists += 1
        self.depth = max(self.depth, self._open_lists)
        start = self.add(Op.NEXT)
        add_body()
        self.add(Op.JUMP, start)
        self._open_lists -= 1
        self._set(start, column, len(self.code), int(may_be_empty))

    def skip(self, of: AvroType) -> None:
        """Read a value of the writer's that the reader does not have."""
        if of.kind in _NUMBERS:
            self.add(Op.NUMBER, 0, Converter.SKIP, _NUMBERS[of.kind])
        elif of.kind == "enum":
            self.add(Op.NUMBER, 0, Converter.SKIP, 32)
        elif of.kind in {"string", "bytes"}:
            self.add(Op.BYTES, -1)
        elif of.kind in _SIZES or of.kind == "fixed":
            self.add(Op.FIXED, -1, _SIZES.get(of.kind, of.size))
        elif of.kind == "record":
            for each in of.fields:
                self.skip(each.type)
        elif of.kind == "union":
            self._skip_union(of)
        elif of.kind != "null":
            self._loop(of, -1, lambda: self._skip_item(of))

    def _skip_item(self, of: AvroType) -> None:
        if of.kind == "map":
            self.add(Op.BYTES, -1)
        self.skip(of.items[0])

    def _skip_union(self, of: AvroType) -> None:
        table = self._add_table([0] * len(of.items))
        self.add(Op.UNION, table, len(of.items))
        ends = []
        for number, branch in enumerate(of.items):
            self.tables[table + number] = len(self.code)
            self.skip(branch)
            ends.append(self.add(Op.JUMP))
        for end in ends:
            self._set(end, len(self.code))

    def _mismatch(self, writer: AvroType, reader: AvroType) -> SchemaError:
        field_name = ".".join(self._path)
        where = f"of the field {field_name}" if field_name else "of the value"
        return SchemaError(
            f"the writer's Avro type {where} is {describe(writer)}, which cannot be read as "
            f"{describe(reader)}"
        )


_SIZES = {"boolean": 1, "float": 4, "double": 8}


def _column_kind(of: AvroType) -> str:
    if of.logical == "decimal":
        return "decimal"
    kinds = {"string": "bytes", "bytes": "bytes", "fixed": "bytes", "array": "list", "map": "list"}
    kinds |= {"record": "struct", "null": "null"}
    return kinds.get(of.kind, "number")


def _converter(writer: AvroType, reader: AvroType) -> int:
    if reader.kind == "float":
        return Converter.TO_FLOAT
    if reader.kind == "double":
        return Converter.TO_DOUBLE
    if not reader.time:
        return Converter.NONE
    # Timestamps are stored in microseconds, and other times in the unit of the reader's schema.
    stored = "timestamp-micros" if pa.types.is_timestamp(reader.arrow) else reader.time
    is_same = writer.time.partition("-")[0] == reader.time.partition("-")[0]
    given = writer.time if is_same else reader.time
    return _CONVERTERS[_NANOS[given], _NANOS[stored]]


_NANOS = {
    "time-millis": 1_000_000,
    "time-micros": 1000,
    "timestamp-millis": 1_000_000,
    "timestamp-micros": 1000,
    "timestamp-nanos": 1,
}
_CONVERTERS = {
    **{(unit, unit): Converter.NONE for unit in _NANOS.values()},
    (1_000_000, 1000): Converter.TIMES_1000,
    (1000, 1): Converter.TIMES_1000,
    (1_000_000, 1): Converter.TIMES_1000000,
    (1, 1000): Converter.OVER_1000,
}
"""By the nanoseconds of the writer's unit and of the column's."""


def _smallest(of: AvroType) -> int:
    """Return the least number of bytes of a value, 0 or 1."""
    if of.kind == "record":
        return max((_smallest(each.type) for each in of.fields), default=0)
    return int(of.kind != "null" and (of.kind != "fixed" or of.size > 0))


def _signed(value: int) -> int:
    """Return the low 64 bits of a number, as a signed number."""
    low = value & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low


def describe(of: AvroType) -> str:
    """Return a type as messages show it."""
    if of.kind == "union":
        return f"[{', '.join(describe(each) for each in of.items)}]"
    if of.logical == "decimal":
        return f"{of.kind} decimal({of.precision}, {of.scale})"
    if of.kind == "fixed":
        return f"fixed {of.name} of {of.size} bytes"
    return f"{of.kind} {of.logical or of.name}".rstrip()
