"""Arrow batches in the binary form of PostgreSQL's COPY, column by column, without row objects.

Each value of a row is its length, four bytes, and its bytes; -1 is null. Arrow's kernels join the
columns, so that a batch needs a few calls for each column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc

__all__ = ["HEADER", "TRAILER", "WIRES", "Wire", "encode_batches"]

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

_MOST_BYTES = 2**26
"""Bytes of Arrow that are encoded at once: the offsets of the result have 32 bits."""

_NULL = b"\xff\xff\xff\xff"
_DAYS_TO_2000 = 10_957
_MICROS_TO_2000 = _DAYS_TO_2000 * 86_400_000_000
_ENDS_ARRAY_HEADER = 20

Encode = Callable[[pa.Array], list[pa.Array]]
"""Returns binary arrays without nulls; together they are the length and the bytes of each value."""


class Wire:
    """A type of PostgreSQL with a binary form that is written.

    Attributes:
        sql: Its name in statements.
        oid: Its number, which arrays contain; that of built-in types never changes.
        arrow: The Arrow type of the values that `encode` takes.
        encode: Encodes an array.
    """

    def __init__(self, sql: str, oid: int, arrow: pa.DataType, encode: Encode) -> None:
        self.sql = sql
        self.oid = oid
        self.arrow = arrow
        self.encode = encode


def encode_batches(
    batches: Iterator[pa.RecordBatch], wires: Sequence[tuple[Wire, bool]]
) -> Iterator[pa.Buffer]:
    """Yield the rows of batches, without header and trailer.

    Args:
        batches: The rows, with the Arrow types of the wires.
        wires: The type of each column, and True for an array of it.
    """
    for batch in batches:
        size = max(1, batch.num_rows * _MOST_BYTES // max(batch.nbytes, _MOST_BYTES))
        for first in range(0, batch.num_rows, size):
            yield _encode(batch.slice(first, size), wires)


def _encode(batch: pa.RecordBatch, wires: Sequence[tuple[Wire, bool]]) -> pa.Buffer:
    parts: list[Any] = [pa.scalar(len(wires).to_bytes(2, "big"), pa.binary())]
    for column, (wire, is_array) in zip(batch.columns, wires, strict=True):
        parts += _encode_array(column, wire) if is_array else wire.encode(column)
    rows = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    _, offsets, data = rows.buffers()
    ends = np.frombuffer(offsets, np.int32)
    first, last = int(ends[rows.offset]), int(ends[rows.offset + len(rows)])
    return data.slice(first, last - first)


# --- values


def _pack(values: np.ndarray[Any, Any], width: int) -> pa.Array:
    """Return the bytes of a packed array as one binary value for each element."""
    made = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )
    return made.cast(pa.binary())


def _with_nulls(encoded: pa.Array, of: pa.Array) -> pa.Array:
    if not of.null_count:
        return encoded
    return pc.if_else(of.is_valid(), encoded, pa.scalar(_NULL, pa.binary()))


def _fixed(kind: str, width: int, shift: int = 0) -> Encode:
    """Return the encoder of numbers of one width."""
    packed = np.dtype([("length", ">i4"), ("value", kind)])

    def encode(array: pa.Array) -> list[pa.Array]:
        values = np.empty(len(array), packed)
        values["length"] = width
        values["value"] = _to_numbers(array) - shift if shift else _to_numbers(array)
        return [_with_nulls(_pack(values, width + 4), array)]

    return encode


def _to_numbers(array: pa.Array) -> Any:
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
    elif pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    filled = array.fill_null(0) if array.null_count else array
    return filled.to_numpy(zero_copy_only=False)


def _encode_bytes(array: pa.Array) -> list[pa.Array]:
    lengths = pc.binary_length(array)
    if array.null_count:
        lengths, array = lengths.fill_null(-1), array.cast(pa.binary()).fill_null(b"")
    prefix = _pack(lengths.to_numpy(zero_copy_only=False).astype(">i4"), 4)
    return [prefix, array.cast(pa.binary())]


_INTERVAL = np.dtype([("length", ">i4"), ("micros", ">i8"), ("days", ">i4"), ("months", ">i4")])


def _encode_interval(array: pa.Array) -> list[pa.Array]:
    values = np.zeros(len(array), _INTERVAL)
    values["length"] = 16
    values["micros"] = _to_numbers(array)
    return [_with_nulls(_pack(values, 20), array)]


# --- arrays

_ARRAY = np.dtype(
    [
        ("length", ">i4"),
        ("dimensions", ">i4"),
        ("has_null", ">i4"),
        ("oid", ">i4"),
        ("count", ">i4"),
        ("lower", ">i4"),
    ]
)


def _encode_array(array: pa.Array, wire: Wire) -> list[pa.Array]:
    """Encode lists as arrays of one dimension; an empty one has none."""
    counts = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    flat = array.flatten()  # without the values of null lists
    parts = wire.encode(flat)
    one = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, b"")
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    elements = pc.binary_join(pa.ListArray.from_arrays(offsets, one), b"")
    headers = np.zeros(len(array), _ARRAY)
    is_empty = counts == 0
    headers["length"] = pc.binary_length(elements).to_numpy(zero_copy_only=False) + (
        _ENDS_ARRAY_HEADER
    )
    headers["dimensions"], headers["has_null"] = 1, int(flat.null_count > 0)
    headers["oid"], headers["count"], headers["lower"] = wire.oid, counts, 1
    headers["length"][is_empty] = 12
    headers["dimensions"][is_empty] = 0
    header = _pack(headers, 24)
    if is_empty.any():
        header = pc.if_else(pa.array(is_empty), pc.binary_slice(header, 0, 16), header)
    return [_with_nulls(header, array), elements]


WIRES = {
    wire.sql: wire
    for wire in (
        Wire("boolean", 16, pa.bool_(), _fixed("u1", 1)),
        Wire("smallint", 21, pa.int16(), _fixed(">i2", 2)),
        Wire("integer", 23, pa.int32(), _fixed(">i4", 4)),
        Wire("bigint", 20, pa.int64(), _fixed(">i8", 8)),
        Wire("real", 700, pa.float32(), _fixed(">f4", 4)),
        Wire("double precision", 701, pa.float64(), _fixed(">f8", 8)),
        Wire("text", 25, pa.string(), _encode_bytes),
        Wire("bytea", 17, pa.binary(), _encode_bytes),
        Wire("date", 1082, pa.date32(), _fixed(">i4", 4, _DAYS_TO_2000)),
        Wire("timestamp", 1114, pa.timestamp("us"), _fixed(">i8", 8, _MICROS_TO_2000)),
        Wire("timestamptz", 1184, pa.timestamp("us", "UTC"), _fixed(">i8", 8, _MICROS_TO_2000)),
        Wire("time", 1083, pa.time64("us"), _fixed(">i8", 8)),
        Wire("interval", 1186, pa.duration("us"), _encode_interval),
    )
}
"""The types that are written in their binary form, by name. All others are cast from them."""
