"""Kernels that read batches: their headers, their records, and bytes into Arrow's buffers.

A position that is out of reach is how a reader says that bytes end too early or make no sense; it
stays out of reach through whatever is read after it, so that one look at the end is enough.
"""

# ruff: noqa: PLR0913, PLR0917  kernels take arrays, not objects

from __future__ import annotations

from typing import Any

from krishiv_spark.kafka.records.jit import copy, inner, kernel, peek
from krishiv_spark.kafka.records.layout import (
    ATTRIBUTES_AT,
    BASE_STAMP_AT,
    CODEC_MASK,
    CODECS,
    COUNT_AT,
    CRC_AT,
    HEADER_BYTES,
    LAST_DELTA_AT,
    LENGTH_AT,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    MAX_INT64,
    MAX_STAMP_AT,
    PRODUCER_AT,
    RECORD_BYTES,
)

# Columns of a table of batches: one row of 64-bit numbers for each.
START, BEGIN, END, BASE, LAST, ATTRIBUTES, BASE_STAMP, MAX_STAMP, PRODUCER, COUNT = range(10)
CRC, SIZE = 10, 11
BATCH_WIDTH = 12

# What a walk over batches has found.
FOUND, CONSUMED, NEXT = range(3)

# How far the records of a table have been read: batch, record in it, position, last offset delta.
BATCH, RECORD, AT, PRIOR, ROWS = range(5)

# Rows of a table of records: where a key, a value or the headers begin, and their size (-1: null).
KEY, VALUE, HEADERS = 0, 2, 4

# What is wrong, as kernels say it.
GOOD = 0
OLD_FORMAT, NEW_FORMAT, BAD_LENGTH, BAD_OFFSETS, BAD_ORDER, BAD_COUNT, BAD_CODEC = range(1, 8)
MALFORMED, BAD_DELTA, BAD_STAMP, LEFT_OVER, MANY_HEADERS = range(8, 13)

# After any end: what reads on from there stays out of reach, so one look at last is enough.
_OUT_OF_REACH = 2**62

# In a byte of a number: more follow. In the first one of a fixed size: it is negative.
_MORE = _NEGATIVE = 0x80
_LAST_SHIFT = 63

_KNOWN_CODECS = len(CODECS)


@inner
def _fixed(data: Any, at: int, size: int) -> int:
    """A signed big-endian number."""
    value: int = peek(data, at)
    if value >= _NEGATIVE:
        value -= 0x100
    for i in range(at + 1, at + size):
        value = value * 0x100 + peek(data, i)
    return value


@inner
def _varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """A zigzag number of up to 64 bits, and the position after it."""
    value = 0
    shift = 0
    while at < end and shift <= _LAST_SHIFT:
        byte = peek(data, at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            # The tenth byte has the one bit that is left of 64.
            if shift == _LAST_SHIFT and byte > 1:
                break
            return ((value >> 1) & MAX_INT64) ^ -(value & 1), at
        shift += 7
    return 0, _OUT_OF_REACH


@kernel
def walk(data: Any, end: int, table: Any, state: Any) -> int:
    """Read the headers of batches up to the one that begins at an offset or is not complete.

    Args:
        data: The bytes of a response, from the header of a batch on.
        end: First offset that is not wanted.
        table: Batches found, with room for as many as fit into the bytes.
        state: Their number, the bytes that they take, and the offset after them.
    """
    at = 0
    while at + MAGIC_AT < len(data) and state[FOUND] < len(table):
        code = _entry(data, at)
        if code != GOOD:
            return code
        size = LOG_OVERHEAD + _fixed(data, at + LENGTH_AT, 4)
        if size > len(data) - at:
            break
        found = state[FOUND]
        code = _header(data, at, size, table, found)
        if code != GOOD:
            return code
        if found > 0 and table[found, BASE] <= table[found - 1, LAST]:
            return BAD_ORDER
        if table[found, BASE] >= end:
            state[NEXT] = end
            break
        at += size
        state[FOUND] = found + 1
        state[CONSUMED] = at
        state[NEXT] = table[found, LAST] + 1
    return GOOD


@inner
def _entry(data: Any, at: int) -> int:
    """What is common to all message formats."""
    magic = _fixed(data, at + MAGIC_AT, 1)
    if 0 <= magic < MAGIC:
        return OLD_FORMAT
    if magic != MAGIC:
        return NEW_FORMAT
    if _fixed(data, at + LENGTH_AT, 4) < HEADER_BYTES - LOG_OVERHEAD:
        return BAD_LENGTH
    return GOOD


@inner
def _header(data: Any, at: int, size: int, table: Any, row: int) -> int:
    base = _fixed(data, at, 8)
    last_delta = _fixed(data, at + LAST_DELTA_AT, 4)
    count = _fixed(data, at + COUNT_AT, 4)
    table[row, START] = at
    table[row, BEGIN] = at + HEADER_BYTES
    table[row, END] = at + size
    table[row, SIZE] = size
    table[row, BASE] = base
    table[row, ATTRIBUTES] = _fixed(data, at + ATTRIBUTES_AT, 2)
    table[row, BASE_STAMP] = _fixed(data, at + BASE_STAMP_AT, 8)
    table[row, MAX_STAMP] = _fixed(data, at + MAX_STAMP_AT, 8)
    table[row, PRODUCER] = _fixed(data, at + PRODUCER_AT, 8)
    table[row, COUNT] = count
    table[row, CRC] = _fixed(data, at + CRC_AT, 4) & 0xFFFFFFFF
    if base < 0 or last_delta < 0 or base >= MAX_INT64 - last_delta:
        return BAD_OFFSETS
    table[row, LAST] = base + last_delta
    # Compaction takes records out of a batch, and leaves its last offset.
    if count < 0 or count > last_delta + 1:
        return BAD_COUNT
    if table[row, ATTRIBUTES] & CODEC_MASK >= _KNOWN_CODECS:
        return BAD_CODEC
    return GOOD


@kernel
def parse(
    source: Any,
    batches: Any,
    state: Any,
    start: int,
    end: int,
    room: int,
    header: int,
    most: int,
    offsets: Any,
    stamps: Any,
    kinds: Any,
    spans: Any,
) -> int:
    """Read records into columns, until there are no more, no rows left, or the room is used up.

    Args:
        source: What the records of all batches are in, decompressed.
        batches: Table of batches whose records lie in them.
        state: Where to begin; afterwards, where to go on and how many rows there are.
        start: First offset that is wanted.
        end: First offset that is not wanted any more.
        room: Bytes of records, and of memory for their headers, after which to stop.
        header: Bytes of memory that a header takes, besides its own bytes; 0 if none is wanted.
        most: Bytes of memory that the headers of one record may take.
        offsets: Offset of each row.
        stamps: Timestamp of each row, milliseconds.
        kinds: Type of each timestamp.
        spans: Key, value and headers of each row.
    """
    state[ROWS] = 0
    code = GOOD
    while code == GOOD and state[BATCH] < len(batches) and state[ROWS] < len(offsets) and room > 0:
        if state[RECORD] == 0:
            state[AT] = batches[state[BATCH], BEGIN]
            state[PRIOR] = -1
        code, room = _records(
            source, batches, state, start, end, room, header, most, offsets, stamps, kinds, spans
        )
        if code == GOOD and state[RECORD] == batches[state[BATCH], COUNT]:
            code = _close(batches, state)
    return code


@inner
def _close(batches: Any, state: Any) -> int:
    if state[AT] != batches[state[BATCH], END]:
        return LEFT_OVER
    state[BATCH] += 1
    state[RECORD] = 0
    return GOOD


@inner
def _records(
    source: Any,
    batches: Any,
    state: Any,
    start: int,
    end: int,
    room: int,
    header: int,
    most: int,
    offsets: Any,
    stamps: Any,
    kinds: Any,
    spans: Any,
) -> tuple[int, int]:
    """Read records of one batch; what is wrong, and the room that is left."""
    batch = state[BATCH]
    base, last, limit = batches[batch, BASE], batches[batch, LAST], batches[batch, END]
    first, newest = batches[batch, BASE_STAMP], batches[batch, MAX_STAMP]
    kind = 1 if batches[batch, ATTRIBUTES] & LOG_APPEND_TIME else 0
    index, at, prior, row = state[RECORD], state[AT], state[PRIOR], state[ROWS]
    code = GOOD
    while index < batches[batch, COUNT] and row < len(offsets) and room > 0:
        stamp, delta, after, cost = _record(source, at, limit, spans, row, header)
        code = _judge(first, stamp, delta, prior, last - base, after)
        if code == GOOD and cost > most:
            code = MANY_HEADERS
        if code != GOOD:
            break
        if start <= base + delta < end:
            offsets[row] = base + delta
            stamps[row] = newest if kind else first + stamp
            kinds[row] = kind
            row += 1
            room -= after - at + cost
        at, prior = after, delta
        index += 1
    state[RECORD], state[AT], state[PRIOR], state[ROWS] = index, at, prior, row
    return code, room


@inner
def _judge(first: int, stamp: int, delta: int, prior: int, most: int, after: int) -> int:
    if after == _OUT_OF_REACH:
        return MALFORMED
    if delta <= prior or delta > most:
        return BAD_DELTA
    if (stamp > 0 and first > MAX_INT64 - stamp) or (stamp < 0 and first < -MAX_INT64 - stamp):
        return BAD_STAMP
    return GOOD


@inner
def _record(
    source: Any, at: int, end: int, spans: Any, row: int, header: int
) -> tuple[int, int, int, int]:
    """Deltas of timestamp and offset, the position after the record, the memory for its headers."""
    size, at = _varint(source, at, end)
    if size < RECORD_BYTES - 1 or size > end - at:
        return 0, 0, _OUT_OF_REACH, 0
    stop = at + size
    at += 1  # attributes, of which none has a meaning so far
    stamp, at = _varint(source, at, stop)
    delta, at = _varint(source, at, stop)
    at = _span(source, at, stop, spans, KEY, row)
    at = _span(source, at, stop, spans, VALUE, row)
    at, cost = _headers(source, at, stop, spans, row, header)
    return stamp, delta, at if at == stop else _OUT_OF_REACH, cost


@inner
def _span(source: Any, at: int, end: int, spans: Any, column: int, row: int) -> int:
    """Note where bytes lie that may be null; the position after them."""
    size, at = _varint(source, at, end)
    if size < -1 or size > end - at:
        return _OUT_OF_REACH
    spans[column, row] = at
    spans[column + 1, row] = size
    return at + max(size, 0)


@inner
def _headers(source: Any, at: int, end: int, spans: Any, row: int, header: int) -> tuple[int, int]:
    """Note where the headers of a record lie; the position after them, and their memory."""
    count, at = _varint(source, at, end)
    if count < 0 or count > end - at:
        return _OUT_OF_REACH, 0
    spans[HEADERS, row] = at
    spans[HEADERS + 1, row] = count
    cost = header * count
    for _ in range(count):
        size, at = _varint(source, at, end)
        if size < 0 or size > end - at:
            return _OUT_OF_REACH, 0
        if header > 0:
            cost += 2 * size  # a byte that is no UTF-8 becomes three
        size, at = _varint(source, at + size, end)
        if size < -1 or size > end - at:
            return _OUT_OF_REACH, 0
        at += max(size, 0)
    return at, cost


@kernel
def unfold(source: Any, spans: Any, rows: int, inside: Any) -> int:
    """Note where the keys and values of headers lie; how many headers there are.

    Args:
        source: What the records are in, decompressed.
        spans: Records whose headers have been read before.
        rows: Number of records.
        inside: Key and value of each header, with room for all.
    """
    found = 0
    for row in range(rows):
        at = spans[HEADERS, row]
        for _ in range(spans[HEADERS + 1, row]):
            at = _span(source, at, len(source), inside, KEY, found)
            at = _span(source, at, len(source), inside, VALUE, found)
            found += 1
    return found


@kernel
def gather(source: Any, begins: Any, offsets: Any, out: Any) -> None:
    """Copy pieces of bytes one after the other.

    Args:
        source: What the pieces are in.
        begins: Where each piece begins.
        offsets: Where each piece goes, and where the last one ends.
        out: Filled with the pieces, from its beginning to the last of `offsets`.
    """
    for row in range(len(offsets) - 1):
        copy(out, offsets[row], source, begins[row], offsets[row + 1] - offsets[row])
