"""An Avro schema and Arrow columns as a program of the encoder: which type holds which.

Types that do not fit are an error here, before a row is read. It names the column and both types.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.avro.avro_decode_program import describe
from krishiv_spark.kafka.schemas.avro.avro_defaults import encode_default
from krishiv_spark.kafka.schemas.avro.avro_types import (
    MISSING,
    AvroField,
    AvroType,
    find_single_type,
)
from krishiv_spark.kafka.schemas.encode_nodes import EncodeCompiler, EncodeProgram, Node

__all__ = ["EncodeOp", "compile_encoder"]


class EncodeOp:
    """The instructions of the encoder, four numbers each: an opcode and three operands."""

    END = 0
    NUMBER = 1  # column
    BOOLEAN = 2  # column
    FLOAT = 3  # column
    DOUBLE = 4  # column
    BYTES = 5  # column
    FIXED = 6  # column, size
    DECIMAL = 7  # column, size (-1: a length precedes)
    CONSTANT = 8  # start, size
    NULLABLE = 9  # column, target of null, the byte of the branch null << 8 | that of the value
    REQUIRED = 10  # column
    LIST = 11  # column, target of an empty list
    NEXT = 12  # start of an element
    MEMBER = 13  # column, target if it is null, the byte of its branch
    JUMP = 14  # target
    NO_MEMBER = 15


_NUMBER_BYTES = 10
_DECIMAL_BYTES = _NUMBER_BYTES + 16
_MOST_BYTES = {
    EncodeOp.NUMBER: _NUMBER_BYTES,
    EncodeOp.BOOLEAN: 1,
    EncodeOp.FLOAT: 4,
    EncodeOp.DOUBLE: 8,
    EncodeOp.BYTES: _NUMBER_BYTES,
    EncodeOp.NULLABLE: 1,
    EncodeOp.MEMBER: 1,
    EncodeOp.LIST: _NUMBER_BYTES + 1,
}
"""Most bytes that an instruction writes, without those of texts."""

_MOST_BRANCHES = 64
"""Branches of a union whose number takes one byte."""


def compile_encoder(
    schema: AvroType, kind: pa.DataType, header: bytes = b"", path: str = ""
) -> EncodeProgram:
    """Compile the program for rows of a type.

    Args:
        schema: The schema with which they are written.
        kind: The type of the whole value. Its nulls are rows without a value.
        header: Bytes before each record.
        path: The column of the value; empty if its fields are columns.

    Raises:
        SchemaError: If the schema cannot hold the type. It names the column.
    """
    compiler = _EncodeCompiler(path)
    if header:
        compiler.write(header)
    root = compiler.emit(schema, kind, is_root=True)
    compiler.add(EncodeOp.END)
    return compiler.to_program(root)


_SMALL = (pa.int8(), pa.int16(), pa.int32())
_WHOLE: dict[str, tuple[pa.DataType, ...]] = {"int": _SMALL, "long": (*_SMALL, pa.int64())}
_UTC, _NAIVE = pa.timestamp("us", "UTC"), pa.timestamp("us")
_TIMES = {
    "date": (pa.date32(), 1),
    "timestamp-millis": (_UTC, 1000),
    "timestamp-micros": (_UTC, 1),
    "local-timestamp-millis": (_NAIVE, 1000),
    "local-timestamp-micros": (_NAIVE, 1),
}
"""By logical type: the Arrow type, and how many of its units are one of Avro's."""


class _EncodeCompiler(EncodeCompiler):
    constant_op = EncodeOp.CONSTANT

    def measure(self, op: int, second: int) -> int:
        """Return the most bytes that an instruction writes, without those of texts."""
        if op == EncodeOp.DECIMAL:
            return max(second, _DECIMAL_BYTES)
        return second if op in {EncodeOp.CONSTANT, EncodeOp.FIXED} else _MOST_BYTES.get(op, 0)

    # --- nulls

    def emit(self, of: AvroType, kind: pa.DataType, *, is_root: bool = False) -> Node:
        """Encode a column of a type, with its nulls."""
        node = self._new("null")
        if pa.types.is_null(kind):
            self._emit_nothing(of)
        elif of.kind == "union":
            self._emit_union(of, kind, node, is_root=is_root)
        else:
            if not is_root:  # a root that is null is a row without a value
                self.add(EncodeOp.REQUIRED, node.index)
            self._emit_value(of, kind, node)
        return node

    def _emit_nothing(self, of: AvroType) -> None:
        """Encode a column of the type VOID, which has only nulls."""
        if of.kind == "union" and of.is_nullable:
            self.write(bytes([_branch(of, "null")]))
        elif of.kind != "null":
            raise self._mismatch(of, pa.null())

    def _emit_union(self, of: AvroType, kind: pa.DataType, node: Node, *, is_root: bool) -> None:
        one = find_single_type(of)
        if len(of.items) >= _MOST_BRANCHES:
            raise SchemaError(
                f"{self._where()} has the Avro type {describe(of)}: unions of up to "
                f"{_MOST_BRANCHES - 1} types can be written"
            )
        if one is None:
            self._emit_members(of, kind, node)
            return
        branch = _branch(of, one.kind)
        if of.is_nullable and not is_root:
            both = _branch(of, "null") << 8 | branch
            at = self.add(EncodeOp.NULLABLE, node.index, 0, both)
            self._emit_value(one, kind, node)
            self.code[at] = (EncodeOp.NULLABLE, node.index, len(self.code), both)
        else:
            if not is_root:
                self.add(EncodeOp.REQUIRED, node.index)
            self.write(bytes([branch]))
            self._emit_value(one, kind, node)

    def _emit_members(self, of: AvroType, kind: pa.DataType, node: Node) -> None:
        """Encode a STRUCT with a field for each type of a union, of which a row may have one."""
        names = {f"member{n}": each for n, each in enumerate(of.values)}
        strange = pa.types.is_struct(kind) and any(each.name not in names for each in kind)
        if not pa.types.is_struct(kind) or strange:
            raise self._mismatch(of, kind)
        node.kind = "struct"
        jumps = []
        for each in kind:
            if pa.types.is_null(each.type):
                continue
            self._path.append(each.name)
            child, member = self._new("null"), names[each.name]
            node.names.append(each.name)
            node.children.append(child)
            branch = 2 * of.items.index(member)
            at = self.add(EncodeOp.MEMBER, child.index, 0, branch)
            self._emit_value(member, each.type, child)
            jumps.append(self.add(EncodeOp.JUMP))
            self.code[at] = (EncodeOp.MEMBER, child.index, len(self.code), branch)
            self._path.pop()
        node.choices = (tuple(range(len(node.children))),)
        if of.is_nullable:
            self.write(bytes([_branch(of, "null")]))
        else:
            self.add(EncodeOp.NO_MEMBER)
        for jump in jumps:
            self.code[jump] = (EncodeOp.JUMP, len(self.code), 0, 0)

    # --- values

    def _emit_value(self, of: AvroType, kind: pa.DataType, node: Node) -> None:
        if of.kind == "record":
            self._emit_record(of, kind, node)
        elif of.kind in {"array", "map"}:
            self._emit_list(of, kind, node)
        elif of.logical == "decimal":
            self._emit_decimal(of, kind, node)
        elif of.kind in {"int", "long"}:
            self._emit_whole(of, kind, node)
        else:
            self._emit_scalar(of, kind, node)

    def _emit_whole(self, of: AvroType, kind: pa.DataType, node: Node) -> None:
        if of.logical in _TIMES:
            wanted, node.divisor = _TIMES[of.logical]
            fits = kind == wanted
        else:
            fits = kind in _WHOLE[of.kind]
        if not fits:
            raise self._mismatch(of, kind)
        node.kind = "number"
        self.add(EncodeOp.NUMBER, node.index)

    def _emit_scalar(self, of: AvroType, kind: pa.DataType, node: Node) -> None:
        ops = {
            ("boolean", pa.bool_()): ("number", EncodeOp.BOOLEAN),
            ("float", pa.float32()): ("number", EncodeOp.FLOAT),
            ("double", pa.float32()): ("number", EncodeOp.DOUBLE),
            ("double", pa.float64()): ("number", EncodeOp.DOUBLE),
            ("string", pa.string()): ("bytes", EncodeOp.BYTES),
            ("bytes", pa.binary()): ("bytes", EncodeOp.BYTES),
            ("fixed", pa.binary()): ("bytes", EncodeOp.FIXED),
            ("enum", pa.string()): ("enum", EncodeOp.NUMBER),
        }
        if (of.kind, kind) not in ops:
            raise self._mismatch(of, kind)
        node.kind, op = ops[of.kind, kind]
        node.to = pa.float64() if of.kind == "double" else None
        node.symbols = of.symbols
        self.add(op, node.index, of.size)

    def _emit_decimal(self, of: AvroType, kind: pa.DataType, node: Node) -> None:
        fits = (
            pa.types.is_decimal128(kind)
            and kind.scale == of.scale
            and kind.precision <= of.precision
        )
        if not fits:
            raise self._mismatch(of, kind)
        node.kind = "decimal"
        self.add(EncodeOp.DECIMAL, node.index, of.size if of.kind == "fixed" else -1)

    def _emit_record(self, of: AvroType, kind: pa.DataType, node: Node) -> None:
        if not pa.types.is_struct(kind):
            raise self._mismatch(of, kind)
        node.kind = "struct"
        columns = {each.name: each.type for each in kind}
        self._check_names(kind, [each.name for each in of.fields], f"Avro record {of.name}")
        for each in of.fields:
            self._path.append(each.name)
            if each.name in columns:
                node.names.append(each.name)
                node.children.append(self.emit(each.type, columns[each.name]))
            else:
                self._emit_default(each, of)
            self._path.pop()

    def _emit_default(self, each: AvroField, of: AvroType) -> None:
        if each.default is MISSING:
            raise SchemaError(
                f"there is no column {self.path!r}, and the field {each.name} of the Avro record "
                f"{of.name} has no default: add the column"
            )
        self.write(encode_default(each, self.path))

    def _emit_list(self, of: AvroType, kind: pa.DataType, node: Node) -> None:
        is_map = of.kind == "map"
        if not (pa.types.is_map(kind) if is_map else pa.types.is_list(kind)):
            raise self._mismatch(of, kind)
        if is_map and kind.key_type != pa.string():
            raise SchemaError(
                f"{self._where()} has keys of the type {kind.key_type}: those of an Avro map are "
                "strings"
            )
        node.kind = "list"
        start = self.add(EncodeOp.LIST, node.index)
        self.bytes_each[node.index] = 0
        self._lists.append(node.index)
        self.depth = max(self.depth, len(self._lists) - 1)
        body = len(self.code)
        self._path.append("value" if is_map else "element")
        if is_map:
            key = self._new("bytes")
            node.children.append(key)
            self.add(EncodeOp.BYTES, key.index)
        item = kind.item_type if is_map else kind.value_type
        node.children.append(self.emit(of.items[0], item))
        self._path.pop()
        self._lists.pop()
        self.add(EncodeOp.NEXT, body)
        self.code[start] = (EncodeOp.LIST, node.index, len(self.code), 0)

    # --- messages

    def _mismatch(self, of: AvroType, kind: pa.DataType) -> SchemaError:
        return SchemaError(
            f"{self._where()} is {kind}, which the Avro type {describe(of)} of the schema cannot "
            f"hold: cast it to {' or '.join(_name_types(of))}"
        )


def _branch(union: AvroType, kind: str) -> int:
    """Return the byte that selects a branch of a union."""
    return 2 * next(n for n, each in enumerate(union.items) if each.kind == kind)


_TYPE_NAMES = {
    "null": "VOID",
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "fixed": "BINARY",
    "string": "STRING",
    "enum": "STRING",
    "array": "ARRAY",
    "map": "MAP<STRING, ...>",
    "record": "STRUCT",
}


def _name_types(of: AvroType) -> Iterator[str]:
    """Yield the SQL types of columns that a type can hold."""
    logical = of.logical or ""
    if of.kind == "union" and find_single_type(of) is None:
        members = (
            f"member{n}: {' or '.join(_name_types(each))}" for n, each in enumerate(of.values)
        )
        yield f"STRUCT<{', '.join(members)}> with one field that is not null"
    elif of.kind == "union":
        for each in of.values:
            yield from _name_types(each)
    elif logical == "decimal":
        yield f"DECIMAL({of.precision}, {of.scale})"
    elif logical in _TIMES:
        kind = _TIMES[logical][0]
        yield "DATE" if kind == pa.date32() else "TIMESTAMP" if kind == _UTC else "TIMESTAMP_NTZ"
    else:
        yield _TYPE_NAMES[of.kind]
