"""Encoded Avro records as Arrow columns. Executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.kafka.schemas.avro.avro_decode_kernel import ABSENT, ERRORS, decode_records
from krishiv_spark.kafka.schemas.avro.avro_decode_program import Column, compile_program
from krishiv_spark.kafka.schemas.avro.avro_types import AvroType
from krishiv_spark.kafka.schemas.buffers import (
    DecodedRecords,
    build_numbers,
    pack_flags,
    sum_lengths,
)

__all__ = ["AvroDecoder", "DecodedRecords"]

_DECIMAL_PARTS = 2


class AvroDecoder:
    """Decodes records of one writer's schema into values of the reader's schema.

    Args:
        writer: The schema with which the records were written.
        reader: The schema of the values.

    Raises:
        SchemaError: If the writer's records cannot be read with the reader's schema.
    """

    def __init__(self, writer: AvroType, reader: AvroType) -> None:
        program = compile_program(writer, reader)
        self._root, self._columns, self._paths = program.root, program.columns, program.paths
        self._constants = np.frombuffer(program.constants or b"\0", np.uint8)
        self._code, self._tables = program.code, program.tables
        self._stack = np.zeros(2 * max(program.depth, 1), np.int64)
        self._roots = np.array([each.index for each in self._root.to_fill()], np.int64)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the values."""
        return self._root.type

    def decode(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> DecodedRecords:
        """Decode some records.

        Args:
            data: The bytes of all records.
            starts: Where each record starts in them, inclusive; -1 for one without a value.
            ends: Where each record ends, exclusive.
        """
        status = np.zeros(len(starts), np.int64)
        none = _Arrays.of(self._columns, np.zeros(2 * len(self._columns), np.int64))
        counts = self._run(data, starts, ends, status, none, write=False)
        arrays = _Arrays.of(self._columns, counts)
        self._run(data, starts, ends, status, arrays, write=True)
        bad = np.flatnonzero((status != 0) & (status != ABSENT))
        return DecodedRecords(
            arrays.build(self._root), {int(n): self._explain(int(status[n])) for n in bad}
        )

    def _run(  # noqa: PLR0913  the arrays of one pass
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        status: NDArray[np.int64],
        arrays: _Arrays,
        *,
        write: bool,
    ) -> NDArray[np.int64]:
        counts = np.zeros(2 * len(self._columns), np.int64)
        double, single = np.zeros(1, np.float64), np.zeros(1, np.float32)
        decode_records(
            data, starts, ends, self._constants, self._code, self._tables, write, status, counts,
            np.zeros_like(counts), arrays.numbers, arrays.number_at, arrays.octets, arrays.octet_at,
            arrays.valid, arrays.valid_at, self._stack, self._roots, double, double.view(np.int64),
            single, single.view(np.uint32),
        )  # fmt: skip
        return counts

    def _explain(self, status: int) -> str:
        path, error = self._paths[status // 256], ERRORS[status % 256]
        return f"field {path}: {error}" if path else error


@dataclass(frozen=True)
class _Arrays:
    """The values of all columns, one after the other.

    Attributes:
        counts: Two numbers for each column: its values and, of bytes, their size.
        numbers: Values and lengths; a decimal takes two.
        number_at: Where each column starts in them.
        octets: Bytes of values.
        octet_at: Where each column starts in them.
        valid: 1 for each value that is not null.
        valid_at: Where each column starts in it; -1 for a column without nulls.
    """

    counts: NDArray[np.int64]
    numbers: NDArray[np.int64]
    number_at: NDArray[np.int64]
    octets: NDArray[np.uint8]
    octet_at: NDArray[np.int64]
    valid: NDArray[np.uint8]
    valid_at: NDArray[np.int64]

    @classmethod
    def of(cls, columns: Sequence[Column], counts: NDArray[np.int64]) -> _Arrays:
        """Make room for this many values."""
        values, sizes = counts[0::2], counts[1::2]
        width = [_DECIMAL_PARTS if each.kind == "decimal" else 1 for each in columns]
        number_at = _starts(values * np.array(width, np.int64))
        octet_at = _starts(sizes)
        tracked = np.array([each.is_nullable for each in columns], np.int64)
        valid_at = _starts(values * tracked)
        return cls(
            counts,
            np.zeros(max(int(number_at[-1]), 1), np.int64),
            number_at[:-1].copy(),
            np.empty(max(int(octet_at[-1]), 1), np.uint8),
            octet_at[:-1].copy(),
            np.zeros(max(int(valid_at[-1]), 1), np.uint8),
            np.where(tracked == 1, valid_at[:-1], -1),
        )

    def build(self, column: Column) -> pa.Array:
        """Return the values of a column."""
        n = int(self.counts[2 * column.index])
        valid = self._valid(column, n)
        if column.kind == "null":
            return pa.nulls(n)
        if column.kind == "struct":
            children = [self.build(child) for child in column.children]
            return pa.Array.from_buffers(column.type, n, [valid], children=children)
        if column.kind == "list":
            return self._build_list(column, n, valid)
        if column.kind == "bytes":
            return self._build_bytes(column, n, valid)
        return self._build_numbers(column, n, valid)

    def _build_numbers(self, column: Column, n: int, valid: pa.Buffer | None) -> pa.Array:
        start = self.number_at[column.index]
        if column.kind == "decimal":
            values = self.numbers[start : start + _DECIMAL_PARTS * n]
            return pa.Array.from_buffers(column.type, n, [valid, pa.py_buffer(values)])
        values = self.numbers[start : start + n]
        if column.symbols:
            indices = pa.Array.from_buffers(pa.int64(), n, [valid, pa.py_buffer(values)])
            return pa.array(column.symbols, pa.string()).take(indices)
        return build_numbers(column.type, values, valid)

    def _valid(self, column: Column, n: int) -> pa.Buffer | None:
        start = self.valid_at[column.index]
        if start < 0:
            return None
        return pack_flags(self.valid[start : start + n])

    def _offsets(self, column: Column, n: int) -> pa.Buffer:
        start = self.number_at[column.index]
        return sum_lengths(self.numbers[start : start + n])

    def _build_bytes(self, column: Column, n: int, valid: pa.Buffer | None) -> pa.Array:
        start, size = self.octet_at[column.index], self.counts[2 * column.index + 1]
        data = pa.py_buffer(self.octets[start : start + size])
        return pa.Array.from_buffers(column.type, n, [valid, self._offsets(column, n), data])

    def _build_list(self, column: Column, n: int, valid: pa.Buffer | None) -> pa.Array:
        items = [self.build(child) for child in column.children]
        if pa.types.is_map(column.type):
            entries = pa.struct([column.type.key_field, column.type.item_field])
            items = [pa.StructArray.from_arrays(items, fields=list(entries))]
        buffers = [valid, self._offsets(column, n)]
        return pa.Array.from_buffers(column.type, n, buffers, children=items)


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where parts of these sizes start, one after the other, and the end of the last."""
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
