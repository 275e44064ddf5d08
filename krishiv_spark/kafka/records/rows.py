"""Rows that are to be written: what a caller hands over, and what kernels read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.errors import SchemaError

__all__ = ["KernelTable", "RecordColumns", "bytes_of", "cast"]

# So far from 1970 that the difference of two always has a place: 73 million years.
_FAR_MS = 2**61 - 1

_NOTHING = np.frombuffer(b"", np.uint8)


@dataclass(frozen=True)
class RecordColumns:
    """Columns of rows that become records.

    Attributes:
        value: Binary or string, with nulls (tombstones).
        key: Binary or string, with nulls; None when no row has one.
        headers: Lists of structs of a string ``key`` and a binary ``value``; None when no row has
            any. A null list is as good as an empty one; a key must not be null, a value may be.
        timestamps: Milliseconds since 1970 UTC, one for each row or one for all.
    """

    value: pa.Array
    key: pa.Array | None
    headers: pa.Array | None
    timestamps: NDArray[np.int64] | int


@dataclass(frozen=True)
class KernelTable:
    """What kernels read.

    Attributes:
        rows: Where key, value and headers of each row lie, and their sizes.
        headers: Where key and value of each header lie, and their sizes.
        stamps: Timestamp of each row.
        data: Bytes of keys, values, keys of headers and values of headers.
    """

    rows: NDArray[np.int32]
    headers: NDArray[np.int32]
    stamps: NDArray[np.int64]
    data: tuple[NDArray[np.uint8], ...]

    @classmethod
    def of(cls, columns: RecordColumns) -> KernelTable:
        """Look into columns; nothing is copied.

        Raises:
            SchemaError: If the key of a header is null, a timestamp is millions of years away, or
                columns have other types or lengths.
        """
        count = len(columns.value)
        rows = np.zeros((6, count), np.int32)
        # Without a column of keys, each of them is null.
        rows[1] = -1
        keys = _NOTHING
        if columns.key is not None:
            _check_length(columns.key, count, "key")
            keys = bytes_of(columns.key, rows[0:2], "key")
        values = bytes_of(columns.value, rows[2:4], "value")
        headers, *rest = _headers(columns.headers, rows[4:6])
        return cls(rows, headers, _stamps(columns.timestamps, count), (keys, values, *rest))


def _check_length(column: Any, count: int, name: str) -> None:
    if len(column) != count:
        raise SchemaError(f"the column {name!r} has {len(column)} rows, but 'value' has {count}")


def bytes_of(column: pa.Array, spans: NDArray[np.int32], name: str) -> NDArray[np.uint8]:
    """The bytes of a binary or string column, and where each of its values lies in them.

    Args:
        column: One chunk, of any type that can be read as Arrow's binary.
        spans: Filled with beginning and size of each value; the size is -1 for null.
        name: Its name in messages.

    Raises:
        SchemaError: If it has another type.
    """
    column = cast(column, pa.binary(), name)
    data = _view(column.buffers()[2], np.uint8)
    _fill(column, spans, len(data), name)
    if column.null_count:
        spans[1][_nulls(column)] = -1
    return data


def _fill(column: Any, spans: NDArray[np.int32], reach: int, name: str) -> None:
    """Beginnings and sizes of values; kernels rely on them, and look no more where they reach."""
    ends = _ends(column)
    spans[0] = ends[:-1]
    np.subtract(ends[1:], ends[:-1], out=spans[1])
    if ends[0] < 0 or ends[-1] > reach or np.min(spans[1], initial=0) < 0:
        raise SchemaError(
            f"the column {name!r} is not a valid Arrow array: its offsets are damaged"
        )


def cast(column: pa.Array, kind: pa.DataType, name: str) -> Any:
    """A column of another type with the same values.

    Raises:
        SchemaError: If a value has no place in it.
    """
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise SchemaError(
            f"the column {name!r} has the type {column.type}, which is not a {kind}: {error}"
        ) from error


def _ends(column: pa.Array) -> NDArray[np.int32]:
    """Where values begin, and where the last one ends."""
    ends = _view(column.buffers()[1], np.int32)
    return (
        ends[column.offset : column.offset + len(column) + 1]
        if len(ends)
        else np.zeros(1, np.int32)
    )


def _nulls(column: pa.Array) -> NDArray[np.bool_]:
    bits = np.unpackbits(_view(column.buffers()[0], np.uint8), bitorder="little")
    missing: NDArray[np.bool_] = bits[column.offset : column.offset + len(column)] == 0
    return missing


def _view(buffer: Any, kind: Any) -> NDArray[Any]:
    if buffer is None or not buffer.size:
        return np.frombuffer(b"", kind)
    view = np.frombuffer(buffer, kind, buffer.size // np.dtype(kind).itemsize)
    view.flags.writeable = False  # one type for every kind of input, so one compiled kernel
    return view


def _headers(column: pa.Array | None, spans: NDArray[np.int32]) -> tuple[NDArray[Any], ...]:
    """Where keys and values of headers lie, and their bytes."""
    if column is None or column.null_count == len(column):
        return np.empty((4, 0), np.int32), _NOTHING, _NOTHING
    _check_length(column, spans.shape[1], "headers")
    kind = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
    lists = cast(column, kind, "headers")
    pairs = lists.values
    _fill(lists, spans, len(pairs), "headers")
    if lists.null_count:
        spans[1][_nulls(lists)] = 0
    inside = np.empty((4, len(pairs)), np.int32)
    keys = bytes_of(pairs.field("key"), inside[0:2], "headers.key")
    values = bytes_of(pairs.field("value"), inside[2:4], "headers.value")
    # A header that is null has no key either.
    if pairs.null_count:
        inside[1][_nulls(pairs)] = -1
    _check_keys(spans, inside[1] < 0)
    return inside, keys, values


def _check_keys(spans: NDArray[np.int32], missing: NDArray[np.bool_]) -> None:
    for header in np.flatnonzero(missing).tolist():
        rows = (spans[0] <= header) & (header < spans[0] + spans[1])
        if rows.any():
            raise SchemaError(
                f"a header of row {int(rows.argmax())} has no key, which Kafka does not allow: "
                "give it one, or leave the header out"
            )


def _stamps(given: NDArray[np.int64] | int, count: int) -> NDArray[np.int64]:
    stamps = np.full(count, given, np.int64)
    if isinstance(given, np.ndarray):
        _check_length(given, count, "timestamp")
    far = (stamps > _FAR_MS) | (stamps < -_FAR_MS)
    if far.any():
        row = int(far.argmax())
        raise SchemaError(f"row {row} has a timestamp of {stamps[row]} ms, which has no place")
    return stamps
