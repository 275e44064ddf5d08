"""The binary form of PostgreSQL's COPY as Arrow arrays, column by column, without row objects.

The lengths of one column are read for all rows at once, and give the positions of the next column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["DECODERS", "UnreadableValue", "decode_rows"]

_Numbers = np.ndarray[Any, Any]

_DAYS_TO_2000 = 10_957
_MICROS_TO_2000 = _DAYS_TO_2000 * 86_400_000_000
_MICROS_OF_DAY = 86_400_000_000
_MOST_DAYS = 2**63 // _MICROS_OF_DAY - 1
_ARRAY_HEADER = 12
_DIMENSION = 8
_PADDING = bytes(16)
"""Nulls at the end of the rows are read as numbers too, before they are masked."""


class UnreadableValue(ValueError):  # noqa: N818  a reason, which the task completes
    """A value that Arrow cannot represent.

    Attributes:
        row: Its index among the values.
    """

    def __init__(self, reason: str, row: int) -> None:
        super().__init__(reason)
        self.row = row


@dataclass(frozen=True)
class _FieldPositions:
    """The positions of the values of a column, in their order.

    Attributes:
        data: The rows.
        first: Position of the first byte of each value.
        length: Number of its bytes; 0 for null.
        is_null: True for null.
    """

    data: bytearray
    first: _Numbers
    length: _Numbers
    is_null: _Numbers

    def read(self, kind: str, shift: int = 0) -> _Numbers:
        """Return a number of each value, some bytes after its first one; 0 for null."""
        found = _view(self.data, kind)[np.where(self.is_null, 0, self.first + shift)]
        native = found.astype(found.dtype.newbyteorder("="))
        return np.where(self.is_null, native.dtype.type(0), native)

    def refuse(self, flags: _Numbers, reason: str) -> None:
        """Refuse the first value with a flag."""
        if flags.any():
            raise UnreadableValue(reason, int(flags.argmax()))

    @property
    def mask(self) -> _Numbers | None:
        return self.is_null if self.is_null.any() else None


Decode = Callable[[_FieldPositions], pa.Array]


def decode_rows(
    data: bytearray, starts: Sequence[int], columns: Sequence[tuple[str, bool]]
) -> list[pa.Array]:
    """Return the columns of some rows.

    Args:
        data: The rows, without header and trailer.
        starts: The position of each row.
        columns: For each column, the name of its type in `DECODERS`, and True for arrays of it.

    Raises:
        UnreadableValue: If Arrow has no such value; its `args` end with the column's index.
    """
    data = data + _PADDING
    at = np.array(starts, np.int64) + 2  # the number of columns
    lengths = _view(data, ">i4")
    found = []
    for place, (kind, is_array) in enumerate(columns):
        length = lengths[at].astype(np.int64)
        values = _FieldPositions(data, at + 4, np.maximum(length, 0), length < 0)
        try:
            decode = DECODERS[kind]
            found.append(_decode_lists(values, decode) if is_array else decode(values))
        except UnreadableValue as error:
            error.args = (*error.args, place)
            raise
        at = values.first + values.length
    return found


def _view(data: bytearray, kind: str) -> _Numbers:
    """Return the numbers that begin at each byte."""
    width = np.dtype(kind).itemsize
    numbers: _Numbers = np.ndarray((len(data) - width + 1,), kind, data, strides=(1,))
    return numbers


# --- values


def _numbers(kind: str) -> Decode:
    return lambda values: pa.array(values.read(kind), mask=values.mask)


def _decode_booleans(values: _FieldPositions) -> pa.Array:
    return pa.array(values.read("u1") != 0, mask=values.mask)


def _texts(kind: pa.DataType) -> Decode:
    """Return the decoder of values that are their bytes."""

    def decode(values: _FieldPositions) -> pa.Array:
        count = len(values.first)
        if not count:
            return pa.array([], kind)
        # Also the bytes between two values become a value, which `take` leaves out.
        borders = np.empty(2 * count, np.int32)
        borders[0::2] = values.first
        borders[1::2] = values.first + values.length
        buffers = [None, pa.py_buffer(borders), pa.py_buffer(values.data)]
        mixed = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
        found = mixed.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=values.mask))
        if kind == pa.binary():
            return found
        try:
            return found.cast(kind)  # which checks the encoding
        except pa.ArrowInvalid as error:
            raise UnreadableValue(f"a text is not UTF-8 ({error})", -1) from error

    return decode


_INFINITE = (
    "infinity, which Spark cannot represent: replace it in the option 'query', as with "
    "nullif(column, 'infinity')"
)


def _decode_dates(values: _FieldPositions) -> pa.Array:
    days = values.read(">i4")
    limits = np.iinfo(np.int32)
    values.refuse((days == limits.max) | (days == limits.min), _INFINITE)
    values.refuse(days > limits.max - _DAYS_TO_2000, "a date that is too late for Spark")
    return pa.array(np.where(values.is_null, 0, days + _DAYS_TO_2000), mask=values.mask).view(
        pa.date32()
    )


def _times(kind: pa.DataType) -> Decode:
    def decode(values: _FieldPositions) -> pa.Array:
        micros = values.read(">i8")
        limits = np.iinfo(np.int64)
        values.refuse((micros == limits.max) | (micros == limits.min), _INFINITE)
        values.refuse(micros > limits.max - _MICROS_TO_2000, "a time that is too late for Spark")
        moved = np.where(values.is_null, 0, micros + _MICROS_TO_2000)
        return pa.array(moved, mask=values.mask).view(kind)

    return decode


def _decode_times_of_day(values: _FieldPositions) -> pa.Array:
    micros = values.read(">i8")
    values.refuse(micros >= _MICROS_OF_DAY, "24:00:00, which Spark's TIME does not have")
    return pa.array(micros, mask=values.mask).view(pa.time64("us"))


def _decode_intervals(values: _FieldPositions) -> pa.Array:
    days, months = values.read(">i4", 8).astype(np.int64), values.read(">i4", 12)
    values.refuse(
        months != 0,
        "an interval with months, whose length is not constant: cast it to text in the option "
        "'query'",
    )
    values.refuse(abs(days) >= _MOST_DAYS, "an interval that is too long for Spark")
    micros = values.read(">i8") + days * _MICROS_OF_DAY
    return pa.array(micros, mask=values.mask).view(pa.duration("us"))


DECODERS: dict[str, Decode] = {
    "boolean": _decode_booleans,
    "smallint": _numbers(">i2"),
    "integer": _numbers(">i4"),
    "bigint": _numbers(">i8"),
    "real": _numbers(">f4"),
    "double precision": _numbers(">f8"),
    "text": _texts(pa.string()),
    "bytea": _texts(pa.binary()),
    "date": _decode_dates,
    "timestamp": _times(pa.timestamp("us")),
    "timestamptz": _times(pa.timestamp("us", "UTC")),
    "time": _decode_times_of_day,
    "interval": _decode_intervals,
}
"""The types that are read in their binary form, by the names of `WIRES`."""


# --- arrays


def _decode_lists(values: _FieldPositions, decode: Decode) -> pa.Array:
    """Decode arrays of one dimension; one without elements has none."""
    dimensions = values.read(">i4")
    values.refuse(
        dimensions > 1,
        "an array of several dimensions: cast it to text, or to jsonb, in the option 'query'",
    )
    sizes = values.read(">i4", _ARRAY_HEADER)
    counts = np.where(dimensions == 1, sizes, 0).astype(np.int64)
    ends = np.cumsum(counts)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    first = values.first + _ARRAY_HEADER + _DIMENSION
    elements = _find_elements(values.data, first, counts, ends - counts)
    try:
        found = decode(elements)
    except UnreadableValue as error:
        error.row = int(np.searchsorted(ends, error.row, "right"))
        raise
    mask = None if values.mask is None else pa.array(values.is_null)
    return pa.ListArray.from_arrays(pa.array(offsets), found, mask=mask)


def _find_elements(
    data: bytearray, first: _Numbers, counts: _Numbers, offsets: _Numbers
) -> _FieldPositions:
    """Return the elements of all arrays: all first ones are found at once, then all second ones."""
    lengths = _view(data, ">i4")
    total = int(counts.sum())
    starts, sizes = np.empty(total, np.int64), np.empty(total, np.int64)
    rows, at = np.flatnonzero(counts), first.copy()
    number = 0
    while len(rows):
        here = at[rows]
        size = lengths[here].astype(np.int64)
        starts[offsets[rows] + number], sizes[offsets[rows] + number] = here + 4, size
        at[rows] = here + 4 + np.maximum(size, 0)
        number += 1
        rows = rows[counts[rows] > number]
    return _FieldPositions(data, starts, np.maximum(sizes, 0), sizes < 0)
