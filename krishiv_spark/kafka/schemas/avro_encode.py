"""Arrow columns as encoded Avro records. Executor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.avro_encode_kernel import encode_records
from krishiv_spark.kafka.schemas.avro_encode_program import EncodeOp, Node, compile_encoder
from krishiv_spark.kafka.schemas.avro_types import AvroType

__all__ = ["AvroEncoder"]

_MOST_BYTES = 2**31 - 1
_UNSIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


class AvroEncoder:
    """Encodes rows of one type with one schema.

    Args:
        schema: The schema.
        kind: The type of the whole value. Its nulls are rows without a value.
        header: Bytes before each record.
        path: The column of the value, for messages; empty if its fields are columns.

    Raises:
        SchemaError: If the schema cannot hold the type. It names the column.
    """

    def __init__(
        self, schema: AvroType, kind: pa.DataType, header: bytes = b"", path: str = ""
    ) -> None:
        self._program = compile_encoder(schema, kind, header, path)
        self._constants = np.frombuffer(self._program.constants or b"\0", np.uint8)

    def encode(self, column: pa.Array) -> pa.BinaryArray:
        """Encode a column; null stays null.

        Raises:
            SchemaError: If a value is null where the schema does not allow it, is no symbol of its
                enum, or has another size than its fixed. It names the column.
        """
        program = self._program
        columns = _KernelColumns(len(program.nodes))
        columns.add(program.root, column)
        sizes = {-1: len(column), **columns.elements}
        most = sum(sizes[of] * each for of, each in program.bytes_each.items())
        out = np.empty(max(most + columns.octet_count, 1), np.uint8)
        ends = np.zeros(len(column), np.int64)
        present = np.ones(len(column), np.uint8)
        if column.null_count:
            present = _flags(column)
        stack = np.zeros(2 * max(program.depth, 1), np.int64)
        bad = encode_records(
            present, self._constants, program.code, *columns.join(), stack, out, ends
        )
        if bad >= 0:
            raise self._explain(bad)
        return _build(out, ends, column)

    def _explain(self, at: int) -> SchemaError:
        path = self._program.paths[at]
        if self._program.code[4 * at] == EncodeOp.FIXED:
            size = self._program.code[4 * at + 2]
            return SchemaError(
                f"column {path!r}: a row has a value of another size than the {size} bytes of its "
                "Avro type"
            )
        return SchemaError(
            f"column {path!r}: a row has null, and the Avro schema does not allow that: filter "
            'such rows, or write ["null", ...] as the type of the field'
        )


def _build(out: NDArray[np.uint8], ends: NDArray[np.int64], column: pa.Array) -> pa.BinaryArray:
    size = int(ends[-1]) if len(ends) else 0
    if size > _MOST_BYTES:
        raise SchemaError(
            f"{len(ends)} rows are {size} bytes of Avro, and one Arrow batch may have 2 GiB: set "
            "'spark.sql.execution.arrow.maxRecordsPerBatch' to a smaller number"
        )
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    valid = None
    if column.null_count:
        valid = pa.py_buffer(np.packbits(_flags(column), bitorder="little"))
    data = pa.py_buffer(out[:size])
    return pa.Array.from_buffers(pa.binary(), len(ends), [valid, pa.py_buffer(offsets), data])


def _flags(column: pa.Array) -> NDArray[np.uint8]:
    """Return 1 for each value that is not null."""
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.uint8)


@dataclass
class _KernelColumns:
    """The values of all columns, one after the other, as the kernel reads them.

    Attributes:
        count: Number of columns.
        elements: Number of elements of each list, by the number of its column.
        octet_count: Number of bytes of all texts.
    """

    count: int
    elements: dict[int, int] = field(default_factory=dict)
    octet_count: int = 0

    def __post_init__(self) -> None:
        self._numbers: list[NDArray[np.int64]] = []
        self._octets: list[NDArray[np.uint8]] = []
        self._valid: list[NDArray[np.uint8]] = []
        self._number_at = np.zeros(self.count, np.int64)
        self._valid_at = np.full(self.count, -1, np.int64)
        self._ends = [0, 0]

    def join(self) -> tuple[NDArray[Any], ...]:
        """Return numbers and their starts, bytes, flags and their starts."""
        return (
            _join(self._numbers, np.int64),
            self._number_at,
            _join(self._octets, np.uint8),
            _join(self._valid, np.uint8),
            self._valid_at,
        )

    def add(self, node: Node, column: Any) -> None:
        """Add a column with all that is within it."""
        if column.null_count and node.kind != "null":
            self._valid_at[node.index] = self._ends[1]
            self._valid.append(_flags(column))
            self._ends[1] += len(column)
        if node.kind == "struct":
            fields = [each.name for each in column.type]
            children = column.flatten()  # nulls of the struct are nulls of its fields
            for name, child in zip(node.names, node.children, strict=True):
                self.add(child, children[fields.index(name)])
        elif node.kind == "list":
            self._add_list(node, column)
        elif node.kind == "bytes":
            self._add_bytes(node, column)
        elif node.kind != "null":
            self._put(node, _to_numbers(node, column))

    def _put(self, node: Node, numbers: NDArray[np.int64]) -> None:
        self._number_at[node.index] = self._ends[0]
        self._numbers.append(numbers)
        self._ends[0] += len(numbers)

    def _add_list(self, node: Node, column: Any) -> None:
        offsets = np.asarray(column.offsets, np.int64)
        begin, end = int(offsets[0]), int(offsets[-1])
        self._put(node, offsets - begin)
        self.elements[node.index] = end - begin
        is_map = pa.types.is_map(column.type)
        parts = [column.keys, column.items] if is_map else [column.values]
        for child, values in zip(node.children, parts, strict=True):
            self.add(child, values.slice(begin, end - begin))

    def _add_bytes(self, node: Node, column: Any) -> None:
        _, ends, data = column.buffers()
        if not len(column) or ends is None:
            return self._put(node, np.zeros(1, np.int64))
        offsets = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
        begin, end = int(offsets[0]), int(offsets[-1])
        self._put(node, offsets.astype(np.int64) + (self.octet_count - begin))
        self._octets.append(np.frombuffer(data or b"", np.uint8)[begin:end])
        self.octet_count += end - begin
        return None


def _join(parts: list[NDArray[Any]], kind: Any) -> NDArray[Any]:
    # Always a copy: numba compiles the kernel once more for arrays that may not be written.
    return np.concatenate(parts) if sum(map(len, parts)) else np.zeros(1, kind)


def _to_numbers(node: Node, column: Any) -> NDArray[np.int64]:
    """Return the values of a column as whole numbers: those of floats are their bits."""
    kind = column.type
    if node.kind == "decimal":
        return _view(column, np.int64, 2)
    if node.kind == "enum":
        return _to_symbols(node, column)
    if pa.types.is_boolean(kind):
        bits = column.fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003
        return np.asarray(bits, np.int64)
    if pa.types.is_floating(kind):
        values = _view(column, np.float32 if pa.types.is_float32(kind) else np.float64)
        if node.to == pa.float64():
            return np.ascontiguousarray(values, np.float64).view(np.int64)
        return np.ascontiguousarray(values).view(np.uint32).astype(np.int64)
    numbers = _view(column, _UNSIGNED[kind.bit_width // 8]).astype(np.int64, copy=False)
    return np.floor_divide(numbers, node.divisor) if node.divisor > 1 else numbers


def _view(column: Any, kind: Any, each: int = 1) -> NDArray[Any]:
    """Return the buffer of a column's values; those of nulls are undefined."""
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros(0, kind)
    start = column.offset * each
    return np.frombuffer(data, kind)[start : start + len(column) * each]


def _to_symbols(node: Node, column: Any) -> NDArray[np.int64]:
    found = pc.index_in(column, value_set=pa.array(node.symbols, pa.string()))
    if found.null_count > column.null_count:
        bad = column.filter(pc.and_(found.is_null(), column.is_valid()))[0].as_py()
        shown = ", ".join(node.symbols[:10])
        raise SchemaError(
            f"column {node.path!r}: a row has {bad[:100]!r}, which is no symbol of its Avro enum: "
            f"there are {shown}"
        )
    return np.asarray(found.fill_null(0).to_numpy(), np.int64)
