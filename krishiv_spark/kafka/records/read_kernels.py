"""The kernels that read batches: headers, records, checksums, and copies to Arrow's buffers.

A reader returns a position out of reach if bytes end too early or make no sense. The position stays
out of reach in all further reads, so that one check at the end is enough.
"""

from __future__ import annotations

from typing import Any

from krishiv_spark.kafka.records.batch_format import (
    AT,
    ATTRIBUTES,
    ATTRIBUTES_AT,
    BAD_CODEC,
    BAD_COUNT,
    BAD_DELTA,
    BAD_LENGTH,
    BAD_OFFSETS,
    BAD_ORDER,
    BAD_STAMP,
    BASE,
    BASE_STAMP,
    BASE_STAMP_AT,
    BATCH,
    BEGIN,
    CODEC_MASK,
    CODECS,
    CONSUMED,
    COUNT,
    COUNT_AT,
    CRC,
    CRC_AT,
    END,
    FOUND,
    GOOD,
    HEADER_BYTES,
    HEADERS,
    KEY,
    LAST,
    LAST_DELTA_AT,
    LEFT_OVER,
    LENGTH_AT,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    MALFORMED,
    MANY_HEADERS,
    MAX_INT64,
    MAX_STAMP,
    MAX_STAMP_AT,
    NEW_FORMAT,
    NEXT,
    OLD_FORMAT,
    PRIOR,
    PRODUCER,
    PRODUCER_AT,
    RECORD,
    RECORD_BYTES,
    ROWS,
    SIZE,
    START,
    VALUE,
)
from krishiv_spark.kafka.records.jit import copy, inner, kernel, peek

__all__ = []

# ruff: noqa: PLR0913, PLR0917  kernels take arrays, not objects


OUT_OF_REACH = 2**62
"""A position after any end."""

# The bit in a byte of a varint that announces another byte, and the sign of a fixed number.
_MORE = _NEGATIVE = 0x80
_LAST_SHIFT = 63

_KNOWN_CODECS = len(CODECS)


@inner
def read_fixed(data: Any, at: int, size: int) -> int:
    """Read a signed big-endian number."""
    value: int = peek(data, at)
    if value >= _NEGATIVE:
        value -= 0x100
    for i in range(at + 1, at + size):
        value = value * 0x100 + peek(data, i)
    return value


@inner
def read_varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """Read a zigzag number of up to 64 bits; return it and the position after it."""
    value = 0
    shift = 0
    while at < end and shift <= _LAST_SHIFT:
        byte = peek(data, at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            # The tenth byte has only the last one of 64 bits.
            if shift == _LAST_SHIFT and byte > 1:
                break
            return ((value >> 1) & MAX_INT64) ^ -(value & 1), at
        shift += 7
    return 0, OUT_OF_REACH


@kernel
def walk_batches(data: Any, end: int, table: Any, state: Any) -> int:
    """Read the headers of batches up to one that starts at an offset or is not complete.

    Args:
        data: The bytes of a response, from the header of a batch on.
        end: First offset that is not wanted.
        table: Batches found, with room for as many as fit into the bytes.
        state: Set to their number, their size in bytes, and the offset after them.
    """
    at = 0
    while at + MAGIC_AT < len(data) and state[FOUND] < len(table):
        code = _check_format(data, at)
        if code != GOOD:
            return code
        size = LOG_OVERHEAD + read_fixed(data, at + LENGTH_AT, 4)
        if size > len(data) - at:
            break
        found = state[FOUND]
        code = _read_header(data, at, size, table, found)
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
def _check_format(data: Any, at: int) -> int:
    """Check the fields that all message formats have."""
    magic = read_fixed(data, at + MAGIC_AT, 1)
    if 0 <= magic < MAGIC:
        return OLD_FORMAT
    if magic != MAGIC:
        return NEW_FORMAT
    if read_fixed(data, at + LENGTH_AT, 4) < HEADER_BYTES - LOG_OVERHEAD:
        return BAD_LENGTH
    return GOOD


@inner
def _read_header(data: Any, at: int, size: int, table: Any, row: int) -> int:
    base = read_fixed(data, at, 8)
    last_delta = read_fixed(data, at + LAST_DELTA_AT, 4)
    count = read_fixed(data, at + COUNT_AT, 4)
    table[row, START] = at
    table[row, BEGIN] = at + HEADER_BYTES
    table[row, END] = at + size
    table[row, SIZE] = size
    table[row, BASE] = base
    table[row, ATTRIBUTES] = read_fixed(data, at + ATTRIBUTES_AT, 2)
    table[row, BASE_STAMP] = read_fixed(data, at + BASE_STAMP_AT, 8)
    table[row, MAX_STAMP] = read_fixed(data, at + MAX_STAMP_AT, 8)
    table[row, PRODUCER] = read_fixed(data, at + PRODUCER_AT, 8)
    table[row, COUNT] = count
    table[row, CRC] = read_fixed(data, at + CRC_AT, 4) & 0xFFFFFFFF
    if base < 0 or last_delta < 0 or base >= MAX_INT64 - last_delta:
        return BAD_OFFSETS
    table[row, LAST] = base + last_delta
    # Compaction removes records from a batch, but does not change its last offset.
    if count < 0 or count > last_delta + 1:
        return BAD_COUNT
    if table[row, ATTRIBUTES] & CODEC_MASK >= _KNOWN_CODECS:
        return BAD_CODEC
    return GOOD


@kernel
def parse_records(
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
    """Read records into columns, until there are no more, or the rows or the room are used up.

    Args:
        source: The decompressed records of all batches.
        batches: Table of the batches.
        state: The record to start with; afterwards, the next record and the number of rows.
        start: First wanted offset.
        end: End of the wanted offsets, exclusive.
        room: Bytes of records, and of memory for their headers, after which to stop.
        header: Memory for a header besides its own bytes; 0 if headers are not wanted.
        most: Maximum memory for the headers of one record.
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
        code, room = _read_records(
            source, batches, state, start, end, room, header, most, offsets, stamps, kinds, spans
        )
        if code == GOOD and state[RECORD] == batches[state[BATCH], COUNT]:
            code = _close_batch(batches, state)
    return code


@inner
def _close_batch(batches: Any, state: Any) -> int:
    if state[AT] != batches[state[BATCH], END]:
        return LEFT_OVER
    state[BATCH] += 1
    state[RECORD] = 0
    return GOOD


@inner
def _read_records(
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
    """Read records of one batch; return a fault, and the room that is left."""
    batch = state[BATCH]
    base, last, limit = batches[batch, BASE], batches[batch, LAST], batches[batch, END]
    first, newest = batches[batch, BASE_STAMP], batches[batch, MAX_STAMP]
    kind = 1 if batches[batch, ATTRIBUTES] & LOG_APPEND_TIME else 0
    index, at, prior, row = state[RECORD], state[AT], state[PRIOR], state[ROWS]
    code = GOOD
    while index < batches[batch, COUNT] and row < len(offsets) and room > 0:
        stamp, delta, after, cost = _read_record(source, at, limit, spans, row, header)
        code = _check_record(first, stamp, delta, prior, last - base, after)
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
def _check_record(first: int, stamp: int, delta: int, prior: int, most: int, after: int) -> int:
    if after == OUT_OF_REACH:
        return MALFORMED
    if delta <= prior or delta > most:
        return BAD_DELTA
    if (stamp > 0 and first > MAX_INT64 - stamp) or (stamp < 0 and first < -MAX_INT64 - stamp):
        return BAD_STAMP
    return GOOD


@inner
def _read_record(
    source: Any, at: int, end: int, spans: Any, row: int, header: int
) -> tuple[int, int, int, int]:
    """Read a record; return deltas of time and offset, the next position, memory for headers."""
    size, at = read_varint(source, at, end)
    if size < RECORD_BYTES - 1 or size > end - at:
        return 0, 0, OUT_OF_REACH, 0
    stop = at + size
    at += 1  # attributes, which have no meaning so far
    stamp, at = read_varint(source, at, stop)
    delta, at = read_varint(source, at, stop)
    at = _read_span(source, at, stop, spans, KEY, row)
    at = _read_span(source, at, stop, spans, VALUE, row)
    at, cost = _read_headers(source, at, stop, spans, row, header)
    return stamp, delta, at if at == stop else OUT_OF_REACH, cost


@inner
def _read_span(source: Any, at: int, end: int, spans: Any, column: int, row: int) -> int:
    """Store the position of bytes or null; return the position after them."""
    size, at = read_varint(source, at, end)
    if size < -1 or size > end - at:
        return OUT_OF_REACH
    spans[column, row] = at
    spans[column + 1, row] = size
    return at + max(size, 0)


@inner
def _read_headers(
    source: Any, at: int, end: int, spans: Any, row: int, header: int
) -> tuple[int, int]:
    """Store the position of headers; return the position after them, and their memory."""
    count, at = read_varint(source, at, end)
    if count < 0 or count > end - at:
        return OUT_OF_REACH, 0
    spans[HEADERS, row] = at
    spans[HEADERS + 1, row] = count
    cost = header * count
    for _ in range(count):
        size, at = read_varint(source, at, end)
        if size < 0 or size > end - at:
            return OUT_OF_REACH, 0
        if header > 0:
            cost += 2 * size  # an invalid byte of UTF-8 becomes three
        size, at = read_varint(source, at + size, end)
        if size < -1 or size > end - at:
            return OUT_OF_REACH, 0
        at += max(size, 0)
    return at, cost


@kernel
def locate_headers(source: Any, spans: Any, rows: int, inside: Any) -> int:
    """Store the positions of the keys and values of headers; return the number of headers.

    Args:
        source: The decompressed records.
        spans: Records whose headers were read before.
        rows: Number of records.
        inside: Set to the positions of key and value of each header; with room for all.
    """
    found = 0
    for row in range(rows):
        at = spans[HEADERS, row]
        for _ in range(spans[HEADERS + 1, row]):
            at = _read_span(source, at, len(source), inside, KEY, found)
            at = _read_span(source, at, len(source), inside, VALUE, found)
            found += 1
    return found


@kernel
def gather(source: Any, begins: Any, offsets: Any, out: Any) -> None:
    """Copy pieces of bytes one after the other.

    Args:
        source: The bytes that contain the pieces.
        begins: Start of each piece in `source`.
        offsets: Start of each piece in `out`, and the end of the last one.
        out: Filled with the pieces up to the last of `offsets`.
    """
    for row in range(len(offsets) - 1):
        copy(out, offsets[row], source, begins[row], offsets[row + 1] - offsets[row])


@kernel
def update_crc(data: Any, before: int, table: Any) -> int:
    """Return the CRC-32C of bytes, eight at a time, if no package has the processor's instruction.

    Args:
        data: Unsigned bytes, a one-dimensional array.
        before: Checksum of the bytes before these.
        table: Effect of each byte, if 0 to 7 bytes follow it.
    """
    crc = before ^ 0xFFFFFFFF
    words = len(data) // 8 * 8
    for at in range(0, words, 8):
        crc = _update_eight(data, at, crc, table)
    for at in range(words, len(data)):
        crc = table[0, (crc ^ data[at]) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@inner
def _update_eight(data: Any, at: int, crc: int, table: Any) -> Any:
    return (
        table[7, (crc ^ data[at]) & 0xFF]
        ^ table[6, ((crc >> 8) ^ data[at + 1]) & 0xFF]
        ^ table[5, ((crc >> 16) ^ data[at + 2]) & 0xFF]
        ^ table[4, ((crc >> 24) ^ data[at + 3]) & 0xFF]
        ^ table[3, data[at + 4]]
        ^ table[2, data[at + 5]]
        ^ table[1, data[at + 6]]
        ^ table[0, data[at + 7]]
    )
