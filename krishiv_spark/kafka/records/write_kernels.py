"""The kernels that write records, choose partitions, and sort rows by them."""

# ruff: noqa: PLR0913, PLR0917  kernels take arrays, not objects

from __future__ import annotations

from typing import Any

from krishiv_spark.kafka.records.jit import copy, inner, kernel, peek

# Rows of a table of rows: position of a key, a value or the headers; the next row has their size
# (-1: null). Positions of headers are those in a table of headers, with a key and a value for each.
KEY, VALUE, HEADERS = 0, 2, 4

# State of a batch: bytes, records, the first timestamp and the newest one; and the bytes that the
# next record needs.
USED, COUNT, BASE_STAMP, MAX_STAMP, NEED = range(5)

# The bit in a byte of a varint that announces another byte.
_MORE = 0x80

# Constants of MurmurHash 2, as in Java's client (``Utils.murmur2``).
_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_WORD = 0xFFFFFFFF


@inner
def _zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


@inner
def _varint_size(value: int) -> int:
    """Return the size of a number of up to 62 bits, as a varint."""
    left = _zigzag(value) >> 7
    size = 1
    while left > 0:
        left >>= 7
        size += 1
    return size


@inner
def _write_varint(out: Any, at: int, value: int) -> int:
    """Write a number; return the position after it."""
    left = _zigzag(value)
    while left >= _MORE:
        out[at] = (left & 0x7F) | _MORE
        left >>= 7
        at += 1
    out[at] = left
    return at + 1


@inner
def _write_bytes(out: Any, at: int, source: Any, begin: int, size: int) -> int:
    """Write bytes after their size, which is -1 for null; return the position after them."""
    at = _write_varint(out, at, size)
    if size > 0:
        copy(out, at, source, begin, size)
        at += size
    return at


@inner
def _bytes_size(size: int) -> int:
    return _varint_size(size) + max(size, 0)


@kernel
def append_records(
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
    """Write rows as records until there are no more, or the next one does not fit.

    Args:
        order: Numbers of rows.
        begin: First position in that order.
        end: Last position in that order, exclusive.
        rows: Table of rows.
        headers: Table of headers.
        stamps: Timestamp of each row, milliseconds.
        keys: Bytes of keys.
        values: Bytes of values.
        header_keys: Bytes of the keys of headers.
        header_values: Bytes of the values of headers.
        out: The bytes of the batch, which are used up to `USED` of the state.
        state: State of the batch.

    Returns:
        Position of the next row in the order.
    """
    for i in range(begin, end):
        row = order[i]
        if state[COUNT] == 0:
            state[BASE_STAMP] = stamps[row]
            state[MAX_STAMP] = stamps[row]
        stamp = stamps[row] - state[BASE_STAMP]
        size = _record_size(rows, row, headers, stamp, state[COUNT])
        state[NEED] = _varint_size(size) + size
        if state[NEED] > len(out) - state[USED]:
            return i
        at = _start_record(out, state, size, stamp)
        at = _write_bytes(out, at, keys, rows[KEY, row], rows[KEY + 1, row])
        at = _write_bytes(out, at, values, rows[VALUE, row], rows[VALUE + 1, row])
        at = _write_headers(out, at, rows, row, headers, header_keys, header_values)
        state[USED] = at
        state[COUNT] += 1
        state[MAX_STAMP] = max(state[MAX_STAMP], stamps[row])
    return end


@inner
def _start_record(out: Any, state: Any, size: int, stamp: int) -> int:
    at = _write_varint(out, state[USED], size)
    out[at] = 0  # attributes, which have no meaning so far
    at = _write_varint(out, at + 1, stamp)
    return _write_varint(out, at, state[COUNT])


@inner
def _write_headers(
    out: Any, at: int, rows: Any, row: int, headers: Any, keys: Any, values: Any
) -> int:
    first, count = rows[HEADERS, row], rows[HEADERS + 1, row]
    at = _write_varint(out, at, count)
    for i in range(first, first + count):
        at = _write_bytes(out, at, keys, headers[KEY, i], headers[KEY + 1, i])
        at = _write_bytes(out, at, values, headers[VALUE, i], headers[VALUE + 1, i])
    return at


@inner
def _record_size(rows: Any, row: int, headers: Any, stamp: int, number: int) -> int:
    """Return the size of a record without the bytes of the size."""
    first, count = rows[HEADERS, row], rows[HEADERS + 1, row]
    size = 1 + _varint_size(stamp) + _varint_size(number) + _varint_size(count)
    size += _bytes_size(rows[KEY + 1, row]) + _bytes_size(rows[VALUE + 1, row])
    for i in range(first, first + count):
        size += _bytes_size(headers[KEY + 1, i]) + _bytes_size(headers[VALUE + 1, i])
    return size


@kernel
def sort_by_partition(partitions: Any, nexts: Any, order: Any) -> None:
    """Sort row numbers by partition; the sort is stable.

    Args:
        partitions: Partition of each row.
        nexts: Position of the next row of each partition in the order; advanced by each row.
        order: Filled with the numbers of rows.
    """
    for row in range(len(partitions)):
        at = nexts[partitions[row]]
        order[at] = row
        nexts[partitions[row]] = at + 1


@kernel
def choose_partitions(keys: Any, begins: Any, sizes: Any, count: int, out: Any) -> None:
    """Choose partitions by key, as Java's client does; rows without a key keep theirs.

    Args:
        keys: Bytes of keys.
        begins: Start of each key.
        sizes: Size of each key, -1 for none.
        count: Number of partitions.
        out: Partition of each row.
    """
    for row in range(len(sizes)):
        if sizes[row] >= 0:
            # ``Utils.toPositive`` clears the sign bit, since the absolute value of -2**31 is
            # negative too.
            out[row] = (_murmur2(keys, begins[row], sizes[row]) & 0x7FFFFFFF) % count


@inner
def _murmur2(data: Any, begin: int, size: int) -> int:
    """Return the hash of Kafka's ``Utils.murmur2``, without its sign."""
    result = _SEED ^ size
    words = begin + size // 4 * 4
    for at in range(begin, words, 4):
        word = (_read_little_endian(data, at, 4) * _FACTOR) & _WORD
        word = ((word ^ (word >> 24)) * _FACTOR) & _WORD
        result = ((result * _FACTOR) & _WORD) ^ word
    if size % 4:
        result = ((result ^ _read_little_endian(data, words, size % 4)) * _FACTOR) & _WORD
    result = ((result ^ (result >> 13)) * _FACTOR) & _WORD
    return result ^ (result >> 15)


@inner
def _read_little_endian(data: Any, at: int, size: int) -> int:
    value = 0
    for i in range(size):
        value |= peek(data, at + i) << (8 * i)
    return value
