"""The kernel that decodes Protobuf records, by the tables of `protobuf_decode_program`.

Fields come in any order and any number: the last value of a field counts, messages are merged, and
a field of a oneof replaces the others. So a value is stored at the index of its message, and only
elements of lists are appended.
"""

# ruff: noqa: PLR0913, PLR0917, C901, PLR0911, PLR0912, PLR0915  as `avro_decode_kernel`
# ruff: noqa: PLR1714, SIM109  numba compiles two comparisons, and builds a tuple for `in`
# ruff: noqa: PLR2004  the sizes of numbers have no better names

from __future__ import annotations

from typing import Any

from krishiv_spark.kafka.records.jit import inner, kernel, peek
from krishiv_spark.kafka.records.read_kernels import OUT_OF_REACH
from krishiv_spark.kafka.schemas.octets import is_text, little_endian
from krishiv_spark.kafka.schemas.protobuf.protobuf_decode_program import (
    DOMAIN_NUMBERS,
    FIELD_NUMBERS,
    IS_LIST,
    MESSAGE_NUMBERS,
    Check,
    ProtoOp,
)

__all__ = ["ABSENT", "FIRST_RARE", "PROTO_ERRORS", "decode_messages"]

PROTO_ERRORS = (
    "",
    "it ends too early",
    "it has a field with the number 0 or of an unknown form",
    "a group does not end where it should",
    "a text is not UTF-8",
    "packed numbers do not end where they should",
    "groups are nested too deeply",
    "a field that is required is missing",
    "a time is out of range",
    "a oneof has several messages",
    "a map has a number that its enum does not have",
)
"""Description of each fault of a record, by the kernel's code."""

(
    _GOOD,
    _TRUNCATED,
    _BAD_TAG,
    _BAD_GROUP,
    _BAD_TEXT,
    _BAD_PACKED,
    _TOO_DEEP,
    _MISSING,
    _BAD_TIME,
    _REPLACED,
    _DROPPED,
) = range(11)

FIRST_RARE = _MISSING
"""Errors from this one on may be due to a form that no serializer writes, such as a message in
parts: Google's parser reads it, and writes it in the usual form."""

ABSENT = -1
"""The status of a record that has no value, and becomes null."""

_INT32, _UINT32, _SINT32, _SINT64 = ProtoOp.INT32, ProtoOp.UINT32, ProtoOp.SINT32, ProtoOp.SINT64
_BOOL, _BITS32, _SBITS32, _BITS64 = ProtoOp.BOOL, ProtoOp.BITS32, ProtoOp.SBITS32, ProtoOp.BITS64
_IS_LIST = IS_LIST
_STRING, _BYTES, _MESSAGE = ProtoOp.STRING, ProtoOp.BYTES, ProtoOp.MESSAGE
_ENUM, _CLOSED = ProtoOp.ENUM, ProtoOp.CLOSED_ENUM
_TIMESTAMP, _DURATION = Check.TIMESTAMP, Check.DURATION
_FIELD, _OF_MESSAGE, _OF_DOMAIN = FIELD_NUMBERS, MESSAGE_NUMBERS, DOMAIN_NUMBERS

_BITS_OF_32 = 0xFFFFFFFF
_SIGN_OF_32 = 0x80000000
_MAX = 2**63 - 1
_MIN = -(2**63)
_MORE = 0x80
_LAST_SHIFT = 63
_VARINT, _EIGHT, _LENGTH, _GROUP, _GROUP_END, _FOUR = range(6)
_MOST_NESTED = 100
_LONGEST = 2**31 - 1
_FIRST_SECOND, _LAST_SECOND = -62135596800, 253402300799  # the years 1 to 9999
_LONGEST_S = 315_576_000_000
_BILLION = 1_000_000_000


@inner
def _read_bits(data: Any, at: int, end: int) -> tuple[int, int]:
    """Read a number of up to 64 bits, as a signed one; return it and the position after it."""
    value = 0
    shift = 0
    while at < end and shift <= _LAST_SHIFT:
        byte = peek(data, at)
        at += 1
        if shift == _LAST_SHIFT:  # of the tenth byte only the last one of 64 bits counts
            if byte >= _MORE:
                break
            return (value + _MIN if byte & 1 == 1 else value), at
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value, at
        shift += 7
    return 0, OUT_OF_REACH


@inner
def _read_value(data: Any, at: int, end: int, op: int) -> tuple[int, int]:
    """Read a number of some kind; return it and the position after it."""
    if op == _BITS64:
        if end - at < 8:
            return 0, OUT_OF_REACH
        return little_endian(data, at, 8), at + 8
    if op == _BITS32 or op == _SBITS32:
        if end - at < 4:
            return 0, OUT_OF_REACH
        value = little_endian(data, at, 4)
        return (value & _BITS_OF_32 if op == _BITS32 else value), at + 4
    value, at = _read_bits(data, at, end)
    if op == _INT32 or op == _ENUM or op == _CLOSED:
        value = ((value & _BITS_OF_32) ^ _SIGN_OF_32) - _SIGN_OF_32
    elif op == _UINT32:
        value &= _BITS_OF_32
    elif op == _SINT32:
        value &= _BITS_OF_32
        value = (value >> 1) ^ -(value & 1)
    elif op == _SINT64:
        value = ((value >> 1) & _MAX) ^ -(value & 1)
    elif op == _BOOL:
        value = 1 if value != 0 else 0
    return value, at


@inner
def _read_tag(data: Any, at: int, end: int) -> tuple[int, int]:
    """Read the number and form of a field; return 0 if it is not valid."""
    tag, after = _read_bits(data, at, end)
    if tag < 0 or tag > _BITS_OF_32 or after - at > 5:
        return 0, after
    return tag, after


@inner
def _skip(data: Any, at: int, end: int, tag: int, groups: Any) -> tuple[int, int]:
    """Skip a field that the reader does not have; return an error and the position after it.

    Args:
        data: The bytes.
        at: Position after the tag.
        end: End of the message that contains the field.
        tag: Number and form of the field.
        groups: Room for the numbers of groups within each other.
    """
    depth = 0
    while True:
        wire, number = tag & 7, tag >> 3
        if wire == _VARINT:
            _, at = _read_bits(data, at, end)
        elif wire == _EIGHT or wire == _FOUR:
            at += 8 if wire == _EIGHT else 4
        elif wire == _LENGTH:
            size, at = _read_bits(data, at, end)
            if size < 0 or size > end - at:
                return _TRUNCATED, at
            at += size
        elif wire == _GROUP:
            if depth == len(groups):
                return _TOO_DEEP, at
            groups[depth] = number
            depth += 1
        elif wire == _GROUP_END:
            if depth == 0 or groups[depth - 1] != number:
                return _BAD_GROUP, at
            depth -= 1
        else:
            return _BAD_TAG, at
        if at > end:
            return _TRUNCATED, at
        if depth == 0:
            return _GOOD, at
        tag, at = _read_tag(data, at, end)
        if tag >> 3 == 0:
            return (_TRUNCATED if at > end else _BAD_TAG), at


@inner
def _find_field(messages: Any, tables: Any, message: int, number: int) -> int:
    """Return the field of a message by its number in records; -1 for an unknown one."""
    of = _OF_MESSAGE * message
    if number < messages[of + 1]:
        found: int = tables[messages[of] + number]
        return found
    low, high = 0, messages[of + 3]
    start = messages[of + 2]
    while low < high:
        middle = (low + high) // 2
        if tables[start + 2 * middle] < number:
            low = middle + 1
        else:
            high = middle
    if low < messages[of + 3] and tables[start + 2 * low] == number:
        return tables[start + 2 * low + 1]  # type: ignore[no-any-return]
    return -1


@inner
def _is_among(tables: Any, start: int, count: int, value: int) -> bool:
    """Return True if a sorted part of the tables has a number."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if tables[start + middle] < value:
            low = middle + 1
        else:
            high = middle
    return low < count and tables[start + low] == value


@inner
def _reset(
    tables: Any,
    start: int,
    count: int,
    slot: int,
    numbers: Any,
    sizes: Any,
    valid: Any,
    begins: Any,
) -> None:
    """Set columns to the values of fields that a record lacks."""
    for i in range(start, start + 4 * count, 4):
        at = begins[tables[i]] + slot
        numbers[at] = tables[i + 1]
        sizes[at] = tables[i + 2]
        valid[at] = tables[i + 3]


@inner
def _check_message(
    fields: Any, messages: Any, tables: Any, message: int, slot: int, numbers: Any, valid: Any,
    begins: Any,
) -> int:  # fmt: skip
    """Return the error of a message after its last field, plus 256 times a missing field."""
    of = _OF_MESSAGE * message
    start = messages[of + 4]
    for i in range(start, start + messages[of + 5]):
        if valid[begins[fields[_FIELD * tables[i] + 2]] + slot] == 0:
            return _MISSING + 256 * tables[i]  # type: ignore[no-any-return]
    check = messages[of + 6]
    if check != 0:
        seconds = numbers[begins[messages[of + 7]] + slot]
        nanos = numbers[begins[messages[of + 8]] + slot]
        if check == _TIMESTAMP:
            if seconds < _FIRST_SECOND or seconds > _LAST_SECOND or nanos < 0:
                return _BAD_TIME
        else:
            if seconds < -_LONGEST_S or seconds > _LONGEST_S:
                return _BAD_TIME
            if (seconds > 0 and nanos < 0) or (seconds < 0 and nanos > 0):
                return _BAD_TIME
        if nanos >= _BILLION or nanos <= -_BILLION:
            return _BAD_TIME
    return _GOOD


@inner
def _append(
    fields: Any, domains: Any, tables: Any, field: int, slot: int, numbers: Any, sizes: Any,
    valid: Any, begins: Any, counts: Any,
) -> int:  # fmt: skip
    """Add an element to a list; return its index. The domain has room for it."""
    domain = fields[_FIELD * field + 3]
    index: int = counts[domain]
    counts[domain] = index + 1
    numbers[begins[fields[_FIELD * field + 4]] + slot] += 1
    start, count = domains[_OF_DOMAIN * domain], domains[_OF_DOMAIN * domain + 1]
    _reset(tables, start, count, index, numbers, sizes, valid, begins)
    return index


@kernel
def decode_messages(
    data: Any, starts: Any, ends: Any, fields: Any, messages: Any, domains: Any, tables: Any,
    status: Any, counts: Any, saved: Any, room: Any, begins: Any, numbers: Any, sizes: Any,
    valid: Any, stack: Any, groups: Any,
) -> int:  # fmt: skip
    """Decode records; return -1, or the domain that has no room for another element.

    Args:
        data: The bytes of all records.
        starts: Where each record starts in them; -1 for one without a value.
        ends: Where each record ends, exclusive.
        fields: The tables of the program, as the next three.
        messages: See `ProtoProgram`.
        domains: See `ProtoProgram`.
        tables: See `ProtoProgram`.
        status: Set for each record to 0, `ABSENT`, or an error plus 256 times the field that it is
            in, or that was read last.
        counts: Set to the number of values in each domain.
        saved: Room for as many numbers.
        room: The number of values for which each domain has room.
        begins: Where each column starts in the arrays of values.
        numbers: Values, lengths of lists, and starts of bytes; those of defaults are negative.
        sizes: Numbers of bytes.
        valid: 1 for each value that is not null.
        stack: Four numbers for each level of messages.
        groups: Room for the numbers of unknown groups within each other.
    """
    for row in range(len(starts)):
        counts[0] = row + 1
        _reset(tables, domains[0], domains[1], row, numbers, sizes, valid, begins)
        if starts[row] < 0:
            status[row] = ABSENT
            continue
        for i in range(len(counts)):
            saved[i] = counts[i]
        at, end = starts[row], ends[row]
        valid[begins[0] + row] = 1
        message, slot, group, depth = 0, row, 0, 0
        error, field, tag, wire = _GOOD, 0, 0, 0
        while True:
            closes = at == end and group == 0
            if not closes:
                tag, at = _read_tag(data, at, end)
                if tag >> 3 == 0:
                    error = _TRUNCATED if at > end else _BAD_TAG
                    break
                wire = tag & 7
                closes = wire == _GROUP_END and group == tag >> 3
            if closes:
                error = _check_message(
                    fields, messages, tables, message, slot, numbers, valid, begins
                )
                if error != _GOOD or depth == 0:
                    break
                depth -= 1
                message, slot = stack[4 * depth], stack[4 * depth + 1]
                end, group = stack[4 * depth + 2], stack[4 * depth + 3]
                continue
            known = _find_field(messages, tables, message, tag >> 3)
            of = _FIELD * known
            is_packed = False
            if known >= 0 and wire != fields[of + 1]:
                op = fields[of]
                is_number = op < _STRING or op > _MESSAGE
                is_packed = wire == _LENGTH and is_number and fields[of + 4] >= 0
                if not is_packed:
                    known = -1
            if known < 0:
                error, at = _skip(data, at, end, tag, groups)
                if error != _GOOD:
                    break
                continue
            field = known
            op, column = fields[of], fields[of + 2]
            is_element = fields[of + 4] >= 0
            size = 0
            if wire == _LENGTH:
                size, at = _read_bits(data, at, end)
                if size < 0 or size > end - at:
                    error = _TRUNCATED
                    break
            if op == _MESSAGE:
                if is_element:
                    if counts[fields[of + 3]] == room[fields[of + 3]]:
                        return fields[of + 3]  # type: ignore[no-any-return]
                    inside = _append(
                        fields, domains, tables, known, slot, numbers, sizes, valid, begins, counts
                    )
                else:
                    inside = slot
                    for i in range(fields[of + 6], fields[of + 6] + fields[of + 7]):
                        valid[begins[tables[i]] + slot] = 0
                    if fields[of + 11] > 0 and valid[begins[column] + slot] == 0:
                        first = fields[of + 10]
                        for i in range(first, first + 4 * fields[of + 11], 4):
                            if tables[i + 3] == _IS_LIST and numbers[begins[tables[i]] + slot] > 0:
                                error = _REPLACED
                        if error != _GOOD:
                            break
                        _reset(tables, first, fields[of + 11], slot, numbers, sizes, valid, begins)
                valid[begins[column] + inside] = 1
                stack[4 * depth], stack[4 * depth + 1] = message, slot
                stack[4 * depth + 2], stack[4 * depth + 3] = end, group
                depth += 1
                message, slot = fields[of + 5], inside
                if wire == _LENGTH:
                    end, group = at + size, 0
                else:
                    group = tag >> 3
                continue
            last = at + size if is_packed else at
            while True:
                if is_packed and at == last:
                    break
                if op == _STRING or op == _BYTES:
                    value = at
                    at += size
                    if op == _STRING and not is_text(data, value, size):
                        error = _BAD_TEXT
                        break
                else:
                    value, at = _read_value(data, at, last if is_packed else end, op)
                    if at == OUT_OF_REACH:
                        error = _BAD_PACKED if is_packed else _TRUNCATED
                        break
                if op == _CLOSED and not _is_among(tables, fields[of + 8], fields[of + 9], value):
                    # An unknown number is an unknown field.
                    if messages[_OF_MESSAGE * message + 9] == 1:
                        error = _DROPPED
                        break
                    if is_packed:
                        continue
                    break
                where = slot
                if is_element:
                    if counts[fields[of + 3]] == room[fields[of + 3]]:
                        return fields[of + 3]  # type: ignore[no-any-return]
                    where = _append(
                        fields, domains, tables, known, slot, numbers, sizes, valid, begins, counts
                    )
                else:
                    for i in range(fields[of + 6], fields[of + 6] + fields[of + 7]):
                        valid[begins[tables[i]] + slot] = 0
                numbers[begins[column] + where] = value
                sizes[begins[column] + where] = size
                valid[begins[column] + where] = 1
                if not is_packed:
                    break
            if error != _GOOD:
                break
        status[row] = error
        if error != _GOOD:
            status[row] = error if error >= 256 else error + 256 * field
            for i in range(1, len(counts)):
                counts[i] = saved[i]
            _reset(tables, domains[0], domains[1], row, numbers, sizes, valid, begins)
    return -1
