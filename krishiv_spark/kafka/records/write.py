"""Kernels that write records, choose partitions, and sort rows by them."""

# ruff: noqa: PLR0913, PLR0917  kernels take arrays, not objects

from __future__ import annotations

from typing import Any

from krishiv_spark.kafka.records.jit import copy, inner, kernel, peek

# Rows of a table of rows: where a key, a value or the headers begin, and their size (-1: null).
# Those of headers are positions in a table of headers, which has a key and a value for each.
KEY, VALUE, HEADERS = 0, 2, 4

# How far a batch has been written: bytes, records, the first timestamp and the newest one; and the
# bytes that the next record needs.
USED, COUNT, BASE_STAMP, MAX_STAMP, NEED = range(5)

# In a byte of a number: more follow.
_MORE = 0x80

# Of MurmurHash 2, as Java's client has them (``Utils.murmur2``).
_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_WORD = 0xFFFFFFFF


@inner
def _zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


@inner
def _size_of(value: int) -> int:
    """Bytes that a number takes, which may have 62 bits."""
    left = _zigzag(value) >> 7
    size = 1
    while left > 0:
        left >>= 7
        size += 1
    return size


@inner
def _put(out: Any, at: int, value: int) -> int:
    """Write a number; the position after it."""
    left = _zigzag(value)
    while left >= _MORE:
        out[at] = (left & 0x7F) | _MORE
        left >>= 7
        at += 1
    out[at] = left
    return at + 1


@inner
def _put_bytes(out: Any, at: int, source: Any, begin: int, size: int) -> int:
    """Write bytes after their size, which is -1 for null; the position after them."""
    at = _put(out, at, size)
    if size > 0:
        copy(out, at, source, begin, size)
        at += size
    return at


@inner
def _size_of_bytes(size: int) -> int:
    return _size_of(size) + max(size, 0)


@kernel
def append(
    order: Any,
    begin: int,
    end: int,
    rows: Any,
    headers: Any,
    stamps: Any,
    keys: Any,
    values: Any,
    header_keys: Any,
    header_values: Any,
    out: Any,
    state: Any,
) -> int:
    """Write rows as records until there are no more, or the next one has no place.

    Args:
        order: Numbers of rows.
        begin: Where to begin in that order.
        end: Where to end, exclusive.
        rows: Table of rows.
        headers: Table of headers.
        stamps: Timestamp of each row, milliseconds.
        keys: Bytes of keys.
        values: Bytes of values.
        header_keys: Bytes of the keys of headers.
        header_values: Bytes of the values of headers.
        out: The batch, with room after what `state` says is written.
        state: How far it has been written.

    Returns:
        Where in the order to go on.
    """
    for i in range(begin, end):
        row = order[i]
        if state[COUNT] == 0:
            state[BASE_STAMP] = stamps[row]
            state[MAX_STAMP] = stamps[row]
        stamp = stamps[row] - state[BASE_STAMP]
        size = _record_size(rows, row, headers, stamp, state[COUNT])
        state[NEED] = _size_of(size) + size
        if state[NEED] > len(out) - state[USED]:
            return i
        at = _start(out, state, size, stamp)
        at = _put_bytes(out, at, keys, rows[KEY, row], rows[KEY + 1, row])
        at = _put_bytes(out, at, values, rows[VALUE, row], rows[VALUE + 1, row])
        at = _put_headers(out, at, rows, row, headers, header_keys, header_values)
        state[USED] = at
        state[COUNT] += 1
        state[MAX_STAMP] = max(state[MAX_STAMP], stamps[row])
    return end


@inner
def _start(out: Any, state: Any, size: int, stamp: int) -> int:
    at = _put(out, state[USED], size)
    out[at] = 0  # attributes, of which none has a meaning so far
    at = _put(out, at + 1, stamp)
    return _put(out, at, state[COUNT])


@inner
def _put_headers(
    out: Any, at: int, rows: Any, row: int, headers: Any, keys: Any, values: Any
) -> int:
    first, count = rows[HEADERS, row], rows[HEADERS + 1, row]
    at = _put(out, at, count)
    for i in range(first, first + count):
        at = _put_bytes(out, at, keys, headers[KEY, i], headers[KEY + 1, i])
        at = _put_bytes(out, at, values, headers[VALUE, i], headers[VALUE + 1, i])
    return at


@inner
def _record_size(rows: Any, row: int, headers: Any, stamp: int, number: int) -> int:
    """Bytes of a record after its size."""
    first, count = rows[HEADERS, row], rows[HEADERS + 1, row]
    size = 1 + _size_of(stamp) + _size_of(number) + _size_of(count)
    size += _size_of_bytes(rows[KEY + 1, row]) + _size_of_bytes(rows[VALUE + 1, row])
    for i in range(first, first + count):
        size += _size_of_bytes(headers[KEY + 1, i]) + _size_of_bytes(headers[VALUE + 1, i])
    return size


@kernel
def sort(partitions: Any, nexts: Any, order: Any) -> None:
    """Sort row numbers by partition, and as they were within one.

    Args:
        partitions: Partition of each row.
        nexts: Where the rows of each partition go in the order; moved after them.
        order: Numbers of rows.
    """
    for row in range(len(partitions)):
        at = nexts[partitions[row]]
        order[at] = row
        nexts[partitions[row]] = at + 1


@kernel
def place(keys: Any, begins: Any, sizes: Any, count: int, out: Any) -> None:
    """Choose partitions by key, as Java's client does; those of rows without a key stay.

    Args:
        keys: Bytes of keys.
        begins: Where each begins.
        sizes: Size of each, -1 for none.
        count: Number of partitions.
        out: Partition of each row.
    """
    for row in range(len(sizes)):
        if sizes[row] >= 0:
            # ``Utils.toPositive``: the sign is cut off, since the absolute value of -2**31 has one
            # too.
            out[row] = (_murmur2(keys, begins[row], sizes[row]) & 0x7FFFFFFF) % count


@inner
def _murmur2(data: Any, begin: int, size: int) -> int:
    """The hash of Kafka's ``Utils.murmur2``, without its sign."""
    result = _SEED ^ size
    words = begin + size // 4 * 4
    for at in range(begin, words, 4):
        word = (_little(data, at, 4) * _FACTOR) & _WORD
        word = ((word ^ (word >> 24)) * _FACTOR) & _WORD
        result = ((result * _FACTOR) & _WORD) ^ word
    if size % 4:
        result = ((result ^ _little(data, words, size % 4)) * _FACTOR) & _WORD
    result = ((result ^ (result >> 13)) * _FACTOR) & _WORD
    return result ^ (result >> 15)


@inner
def _little(data: Any, at: int, size: int) -> int:
    value = 0
    for i in range(size):
        value |= peek(data, at + i) << (8 * i)
    return value
