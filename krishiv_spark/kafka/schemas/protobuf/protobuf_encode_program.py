"""A Protobuf message and Arrow columns as a program of the encoder: which field holds which.

Types that do not fit are an error here, before a row is read. It names the column and both types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.encode_nodes import EncodeCompiler, EncodeProgram, Node
from krishiv_spark.kafka.schemas.protobuf.protobuf_files import encode_varint
from krishiv_spark.kafka.schemas.protobuf.protobuf_types import (
    ProtoField,
    ProtoMessage,
    describe_kind,
)

__all__ = ["ProtoEncodeOp", "compile_proto_encoder"]


class ProtoEncodeOp:
    """The instructions of the encoder, four numbers each: an opcode and three operands."""

    END = 0
    VARINT = 1  # column
    ZIGZAG = 2  # column
    FIXED32 = 3  # column
    FIXED64 = 4  # column
    BYTES = 5  # column
    CONSTANT = 6  # start, size
    SKIP_NULL = 7  # column, target of null
    SKIP_DEFAULT = 8  # column, target of a default, 1 for bytes
    REQUIRED = 9  # column
    BEGIN = 10
    FINISH = 11
    SKIP_EMPTY = 12  # column, target of an empty list
    LIST = 13  # column
    NEXT = 14  # start of an element


_Op = ProtoEncodeOp
_NUMBER_BYTES = 10
_LENGTH_BYTES = 5
_MOST_BYTES = {
    _Op.VARINT: _NUMBER_BYTES,
    _Op.ZIGZAG: _NUMBER_BYTES,
    _Op.FIXED32: 4,
    _Op.FIXED64: 8,
    _Op.BYTES: _LENGTH_BYTES,
    _Op.BEGIN: _LENGTH_BYTES,
}
"""Most bytes that an instruction writes, without those of texts."""

_WHOLE = (pa.int8(), pa.int16(), pa.int32())
_LONG = (*_WHOLE, pa.int64())
_UNSIGNED_32, _UNSIGNED_64 = (0, 2**32 - 1), (0, 2**64 - 1)
_VARINT_FORM, _EIGHT_FORM, _LENGTH_FORM, _GROUP_FORM, _GROUP_END, _FOUR_FORM = range(6)
_OPS = {
    "double": (_Op.FIXED64, _EIGHT_FORM, (pa.float32(), pa.float64())),
    "float": (_Op.FIXED32, _FOUR_FORM, (pa.float32(),)),
    "int64": (_Op.VARINT, _VARINT_FORM, _LONG),
    "uint64": (_Op.VARINT, _VARINT_FORM, _LONG),
    "int32": (_Op.VARINT, _VARINT_FORM, _WHOLE),
    "fixed64": (_Op.FIXED64, _EIGHT_FORM, _LONG),
    "fixed32": (_Op.FIXED32, _FOUR_FORM, _LONG),
    "bool": (_Op.VARINT, _VARINT_FORM, (pa.bool_(),)),
    "string": (_Op.BYTES, _LENGTH_FORM, (pa.string(),)),
    "bytes": (_Op.BYTES, _LENGTH_FORM, (pa.binary(),)),
    "uint32": (_Op.VARINT, _VARINT_FORM, _LONG),
    "enum": (_Op.VARINT, _VARINT_FORM, (pa.string(),)),
    "sfixed32": (_Op.FIXED32, _FOUR_FORM, _WHOLE),
    "sfixed64": (_Op.FIXED64, _EIGHT_FORM, _LONG),
    "sint32": (_Op.ZIGZAG, _VARINT_FORM, _WHOLE),
    "sint64": (_Op.ZIGZAG, _VARINT_FORM, _LONG),
}
"""By scalar: the instruction, the form on the wire, and the Arrow types that it can hold.
https://protobuf.dev/programming-guides/encoding/"""

_LIMITS = {
    "uint32": _UNSIGNED_32,
    "fixed32": _UNSIGNED_32,
    "uint64": _UNSIGNED_64,
    "fixed64": _UNSIGNED_64,
}
_MOST_DEPTH = 3
"""Slots of the stack for a list of messages: two of the list, one of the message."""


def compile_proto_encoder(
    message: ProtoMessage, kind: pa.DataType, header: bytes = b"", path: str = ""
) -> EncodeProgram:
    """Compile the program for rows of a type.

    Args:
        message: The message that they are written as.
        kind: The type of the whole value. Its nulls are rows without a value.
        header: Bytes before each record.
        path: The column of the value; empty if its fields are columns.

    Raises:
        SchemaError: If the message cannot hold the type. It names the column.
    """
    compiler = _ProtoEncodeCompiler(path)
    if header:
        compiler.write(header)
    root = compiler.start(message, kind)
    compiler.add(_Op.END)
    return compiler.to_program(root)


class _ProtoEncodeCompiler(EncodeCompiler):
    constant_op = _Op.CONSTANT

    def __init__(self, path: str) -> None:
        super().__init__(path, _MOST_DEPTH)
        self._level = 0

    def measure(self, op: int, second: int) -> int:
        """Return the most bytes that an instruction writes, without those of texts."""
        return second if op == _Op.CONSTANT else _MOST_BYTES.get(op, 0)

    def start(self, message: ProtoMessage, kind: pa.DataType) -> Node:
        """Encode the whole value, whose nulls are no records."""
        node = self._new("struct")
        if message.is_wrapper or message.is_time or not pa.types.is_struct(kind):
            raise SchemaError(
                f"{self._where()} is {kind}, and the Protobuf message {message.name} needs a STRUCT"
            )
        self._emit_fields(message, kind, node)
        return node

    def _tag(self, of: ProtoField, form: int) -> None:
        self.write(encode_varint(of.number << 3 | form))

    def _skip(self, op: int, node: Node, body: Callable[[], None], third: int = 0) -> None:
        """Add an instruction that jumps behind others."""
        at = self.add(op, node.index, 0, third)
        body()
        self.code[at] = (op, node.index, len(self.code), third)

    def _enclose(self, body: Callable[[], None]) -> None:
        """Write bytes with their length before them."""
        self.add(_Op.BEGIN)
        self._level += 1
        self.depth = max(self.depth, self._level)
        body()
        self._level -= 1
        self.add(_Op.FINISH)

    # --- fields

    def _emit_fields(self, of: ProtoMessage, kind: pa.DataType, node: Node) -> None:
        columns = {each.name: each.type for each in kind}
        names = [each.name for each in of.fields]
        self._check_names(kind, names, f"Protobuf message {of.name}")
        oneofs: dict[str, list[int]] = {}
        for each in sorted(of.fields, key=lambda one: one.number):
            self._path.append(each.name)
            if each.name in columns:
                if each.oneof:
                    oneofs.setdefault(each.oneof, []).append(len(node.children))
                node.names.append(each.name)
                node.children.append(self._emit_field(each, columns[each.name]))
            elif each.is_required:
                raise SchemaError(
                    f"there is no column {self.path!r}, and the Protobuf message "
                    f"{of.name} requires the field {each.name}: add the column"
                )
            self._path.pop()
        node.choices = tuple(tuple(places) for places in oneofs.values() if len(places) > 1)

    def _emit_field(self, of: ProtoField, kind: pa.DataType) -> Node:
        node = self._new()
        if pa.types.is_null(kind) and (of.has_presence or of.is_repeated) and not of.is_required:
            return node
        if of.is_map:
            self._emit_map(of, kind, node)
        elif of.is_repeated:
            self._emit_list(of, kind, node)
        elif of.has_presence and not of.is_required:
            self._skip(_Op.SKIP_NULL, node, lambda: self._emit_value(of, kind, node))
        else:
            self.add(_Op.REQUIRED, node.index)
            if of.is_required:
                self._emit_value(of, kind, node)
            else:
                self._emit_unless_default(of, kind, node)
        return node

    def _emit_unless_default(self, of: ProtoField, kind: pa.DataType, node: Node) -> None:
        """Write a field without presence: its default is that it is not there."""
        is_bytes = of.kind in {"string", "bytes"}
        self._skip(
            *(_Op.SKIP_DEFAULT, node, lambda: self._emit_value(of, kind, node)), third=int(is_bytes)
        )

    def _emit_value(self, of: ProtoField, kind: pa.DataType, node: Node) -> None:
        """Write a value with its tag."""
        if of.message is None:
            self._tag(of, _OPS[of.kind][1])
            self._emit_scalar(of, kind, node)
        elif of.kind == "group":
            self._tag(of, _GROUP_FORM)
            self._emit_struct(of, of.message, kind, node)
            self._tag(of, _GROUP_END)
        else:
            message = of.message
            self._tag(of, _LENGTH_FORM)
            self._enclose(lambda: self._emit_message(of, message, kind, node))

    def _emit_message(
        self, of: ProtoField, message: ProtoMessage, kind: pa.DataType, node: Node
    ) -> None:
        if message.is_wrapper:
            self._emit_unless_default(message.fields[0], kind, node)
        elif message.is_time:
            if kind != message.arrow:
                raise self._mismatch(of, kind)
            node.kind = "time"
            for each in sorted(message.fields, key=lambda one: one.number):
                part = self._new("number")
                node.children.append(part)
                self._emit_unless_default(each, each.item, part)
        else:
            self._emit_struct(of, message, kind, node)

    def _emit_struct(
        self, of: ProtoField, message: ProtoMessage, kind: pa.DataType, node: Node
    ) -> None:
        if not pa.types.is_struct(kind):
            raise self._mismatch(of, kind)
        node.kind = "struct"
        self._emit_fields(message, kind, node)

    def _emit_scalar(self, of: ProtoField, kind: pa.DataType, node: Node) -> None:
        op, _, kinds = _OPS[of.kind]
        is_unsigned_64 = of.kind in {"uint64", "fixed64"}
        is_whole = is_unsigned_64 and pa.types.is_decimal128(kind) and kind.scale == 0
        if kind not in kinds and not is_whole:
            raise self._mismatch(of, kind)
        node.kind = {"enum": "enum", "string": "bytes", "bytes": "bytes"}.get(of.kind, "number")
        node.to = pa.float64() if of.kind == "double" else None
        node.limits = _LIMITS.get(of.kind)
        node.numbers = tuple(sorted(of.symbols))
        node.symbols = tuple(of.symbols[number] for number in node.numbers)
        node.takes_digits = of.kind == "enum" and not of.is_closed
        self.add(op, node.index)

    # --- lists and maps

    def _emit_list(self, of: ProtoField, kind: pa.DataType, node: Node) -> None:
        if not pa.types.is_list(kind):
            raise self._mismatch(of, kind)
        node.kind = "list"
        self.add(_Op.REQUIRED, node.index)
        loop = self._pack if of.is_packed else self._repeat
        self._skip(_Op.SKIP_EMPTY, node, lambda: loop(of, kind.value_type, node))

    def _pack(self, of: ProtoField, kind: pa.DataType, node: Node) -> None:
        self._tag(of, _LENGTH_FORM)
        self._enclose(
            lambda: self._loop(node, lambda: self._emit_element(of, kind, node, tag=False))
        )

    def _repeat(self, of: ProtoField, kind: pa.DataType, node: Node) -> None:
        self._loop(node, lambda: self._emit_element(of, kind, node, tag=True))

    def _emit_element(self, of: ProtoField, kind: pa.DataType, outer: Node, *, tag: bool) -> None:
        self._path.append("element")
        node = self._new()
        outer.children.append(node)
        self.add(_Op.REQUIRED, node.index)
        if tag:
            self._emit_value(of, kind, node)
        else:
            self._emit_scalar(of, kind, node)
        self._path.pop()

    def _emit_map(self, of: ProtoField, kind: pa.DataType, node: Node) -> None:
        if not pa.types.is_map(kind):
            raise self._mismatch(of, kind)
        node.kind = "list"
        parts = () if of.message is None else of.message.fields
        self.add(_Op.REQUIRED, node.index)
        self._skip(
            *(_Op.SKIP_EMPTY, node),
            lambda: self._loop(node, lambda: self._emit_entry(of, parts, kind, node)),
        )

    def _emit_entry(
        self, of: ProtoField, parts: Sequence[ProtoField], kind: pa.MapType, outer: Node
    ) -> None:
        """Write a pair of a map: a message with the fields 1 and 2, which are always there."""

        def emit() -> None:
            for each, item in zip(parts, (kind.key_type, kind.item_type), strict=True):
                self._path.append(each.name)
                node = self._new()
                outer.children.append(node)
                self.add(_Op.REQUIRED, node.index)
                self._emit_value(each, item, node)
                self._path.pop()

        self._tag(of, _LENGTH_FORM)
        self._enclose(emit)

    def _loop(self, node: Node, body: Callable[[], None]) -> None:
        """Run instructions for each element of a list that is not empty."""
        self.add(_Op.LIST, node.index)
        self.bytes_each.setdefault(node.index, 0)
        self._lists.append(node.index)
        self._level += 2
        self.depth = max(self.depth, self._level)
        start = len(self.code)
        body()
        self._level -= 2
        self._lists.pop()
        self.add(_Op.NEXT, start)

    # --- messages

    def _mismatch(self, of: ProtoField, kind: pa.DataType) -> SchemaError:
        name = "" if of.message is None else of.message.name
        return SchemaError(
            f"{self._where()} is {kind}, which the Protobuf type "
            f"{describe_kind(of.kind, name, is_repeated=of.is_repeated)} of the schema cannot "
            f"hold: it holds {of.arrow}"
        )
