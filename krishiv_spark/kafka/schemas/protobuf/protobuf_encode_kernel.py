"""The kernel that writes rows of Arrow columns as Protobuf records.

The length of a message is known after its fields: a byte is left for it, and a longer length moves
the fields. Nearly all messages within others are shorter than 128 bytes.
"""

# ruff: noqa: PLR0913, PLR0917, C901, PLR0912, PLR0915  as `avro_decode_kernel`: one loop runs the program

from __future__ import annotations

from typing import Any

from krishiv_spark.kafka.records.jit import copy, inner, kernel
from krishiv_spark.kafka.schemas.octets import write_little_endian, write_zigzag
from krishiv_spark.kafka.schemas.protobuf.protobuf_encode_program import ProtoEncodeOp

__all__ = ["encode_messages"]

_VARINT, _ZIGZAG = ProtoEncodeOp.VARINT, ProtoEncodeOp.ZIGZAG
_FIXED32, _FIXED64, _BYTES = ProtoEncodeOp.FIXED32, ProtoEncodeOp.FIXED64, ProtoEncodeOp.BYTES
_CONSTANT, _SKIP_NULL = ProtoEncodeOp.CONSTANT, ProtoEncodeOp.SKIP_NULL
_SKIP_DEFAULT, _REQUIRED = ProtoEncodeOp.SKIP_DEFAULT, ProtoEncodeOp.REQUIRED
_BEGIN, _FINISH = ProtoEncodeOp.BEGIN, ProtoEncodeOp.FINISH
_SKIP_EMPTY, _LIST, _NEXT = ProtoEncodeOp.SKIP_EMPTY, ProtoEncodeOp.LIST, ProtoEncodeOp.NEXT

_MORE = 0x80
_STEP = 4  # numbers of an instruction


@inner
def _write_varint(out: Any, at: int, value: int) -> int:
    """Write 64 bits, of which the sign is the highest; return the position after them."""
    if value < 0:
        for i in range(9):
            out[at] = ((value >> (7 * i)) & 0x7F) | _MORE
            at += 1
        out[at] = 1
        return at + 1
    while value >= _MORE:
        out[at] = (value & 0x7F) | _MORE
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@inner
def _write_length(out: Any, start: int, at: int) -> int:
    """Write the length of what follows a byte that was left for it; return the new end."""
    size = at - start - 1
    more = 0
    left = size >> 7
    while left > 0:
        more += 1
        left >>= 7
    if more > 0:
        for i in range(at - 1, start, -1):
            out[i + more] = out[i]
    _write_varint(out, start, size)
    return at + more


@kernel
def encode_messages(
    present: Any, constants: Any, code: Any, numbers: Any, number_at: Any, octets: Any,
    valid: Any, valid_at: Any, stack: Any, out: Any, ends: Any,
) -> int:  # fmt: skip
    """Encode rows one after the other.

    Args:
        present: 1 for each row that has a value; others get no bytes.
        constants: Bytes to which instructions refer.
        code: The program.
        numbers: Values of all columns; ends of texts and of lists.
        number_at: Where each column starts in them.
        octets: Bytes of all texts.
        valid: 1 for each value that is not null.
        valid_at: Where each column starts in it; -1 for a column without nulls.
        stack: Two numbers for each level of lists, one for each message within another.
        out: Filled with the records.
        ends: Filled with the end of each record, exclusive.

    Returns:
        -1; or the number of the instruction at which a row cannot be encoded.
    """
    at = 0
    for row in range(len(ends)):
        if present[row] == 0:
            ends[row] = at
            continue
        index = row
        top = 0
        pc = 0
        while True:
            op = code[_STEP * pc]
            column = code[_STEP * pc + 1]
            two = code[_STEP * pc + 2]
            pc += 1
            if op == _CONSTANT:
                copy(out, at, constants, column, two)
                at += two
            elif op == _SKIP_NULL:
                if valid_at[column] >= 0 and valid[valid_at[column] + index] == 0:
                    pc = two
            elif op == _REQUIRED:
                if valid_at[column] >= 0 and valid[valid_at[column] + index] == 0:
                    return pc - 1
            elif op == _SKIP_DEFAULT:
                where = number_at[column] + index
                value = numbers[where]
                if code[_STEP * pc - 1] == 1:
                    value = numbers[where + 1] - value
                if value == 0:
                    pc = two
            elif op == _VARINT:
                at = _write_varint(out, at, numbers[number_at[column] + index])
            elif op == _BYTES:
                where = number_at[column] + index
                size = numbers[where + 1] - numbers[where]
                at = _write_varint(out, at, size)
                copy(out, at, octets, numbers[where], size)
                at += size
            elif op == _FIXED64:
                at = write_little_endian(out, at, numbers[number_at[column] + index], 8)
            elif op == _FIXED32:
                at = write_little_endian(out, at, numbers[number_at[column] + index], 4)
            elif op == _ZIGZAG:
                at = write_zigzag(out, at, numbers[number_at[column] + index])
            elif op == _BEGIN:
                stack[top] = at
                top += 1
                at += 1
            elif op == _FINISH:
                top -= 1
                at = _write_length(out, stack[top], at)
            elif op == _SKIP_EMPTY:
                where = number_at[column] + index
                if numbers[where] == numbers[where + 1]:
                    pc = two
            elif op == _LIST:
                where = number_at[column] + index
                stack[top] = index
                stack[top + 1] = numbers[where + 1]
                top += 2
                index = numbers[where]
            elif op == _NEXT:
                index += 1
                if index < stack[top - 1]:
                    pc = column
                else:
                    top -= 2
                    index = stack[top]
            else:
                break
        ends[row] = at
    return -1
