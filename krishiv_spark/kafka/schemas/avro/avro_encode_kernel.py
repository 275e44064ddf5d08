"""The kernel that runs an encoder's program over rows of Arrow columns.

It writes into a buffer that is large enough for any values of these rows, so it runs once.
"""

# ruff: noqa: PLR0913, PLR0917, C901, PLR0912, PLR0915  as `avro_decode_kernel`: one loop runs the program
# ruff: noqa: PLR2004  the sizes of numbers have no better names

from __future__ import annotations

from typing import Any

from krishiv_spark.kafka.records.jit import copy, inner, kernel
from krishiv_spark.kafka.schemas.avro.avro_encode_program import EncodeOp
from krishiv_spark.kafka.schemas.octets import write_little_endian, write_zigzag

__all__ = ["encode_records"]

_NUMBER, _BOOLEAN, _FLOAT = EncodeOp.NUMBER, EncodeOp.BOOLEAN, EncodeOp.FLOAT
_DOUBLE, _BYTES, _FIXED, _DECIMAL = (
    EncodeOp.DOUBLE,
    EncodeOp.BYTES,
    EncodeOp.FIXED,
    EncodeOp.DECIMAL,
)
_CONSTANT, _NULLABLE, _REQUIRED = EncodeOp.CONSTANT, EncodeOp.NULLABLE, EncodeOp.REQUIRED
_LIST, _NEXT = EncodeOp.LIST, EncodeOp.NEXT
_MEMBER, _JUMP, _NO_MEMBER = EncodeOp.MEMBER, EncodeOp.JUMP, EncodeOp.NO_MEMBER

_DECIMAL_BYTES = 16
_STEP = 4  # numbers of an instruction


@inner
def _decimal_byte(low: int, high: int, number: int) -> int:
    """Return a byte of a number of 128 bits, the least significant one first."""
    if number < 8:
        return (low >> (8 * number)) & 0xFF
    if number < _DECIMAL_BYTES:
        return (high >> (8 * (number - 8))) & 0xFF
    return 0xFF if high < 0 else 0


@inner
def _decimal_size(low: int, high: int) -> int:
    """Return the least number of bytes of a number of 128 bits in two's complement."""
    size = _DECIMAL_BYTES
    sign = 0xFF if high < 0 else 0
    while size > 1 and _decimal_byte(low, high, size - 1) == sign:
        if (_decimal_byte(low, high, size - 2) >= 0x80) != (sign == 0xFF):
            break
        size -= 1
    return size


@kernel
def encode_records(
    present: Any, constants: Any, code: Any, numbers: Any, number_at: Any, octets: Any,
    valid: Any, valid_at: Any, stack: Any, out: Any, ends: Any,
) -> int:  # fmt: skip
    """Encode rows one after the other.

    Args:
        present: 1 for each row that has a value; others get no bytes.
        constants: Bytes to which instructions refer.
        code: The program.
        numbers: Values of all columns, two for a decimal; ends of texts and of lists.
        number_at: Where each column starts in them.
        octets: Bytes of all texts.
        valid: 1 for each value that is not null.
        valid_at: Where each column starts in it; -1 for a column without nulls.
        stack: Two numbers for each level of lists.
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
        depth = 0
        pc = 0
        while True:
            op = code[_STEP * pc]
            column = code[_STEP * pc + 1]
            two = code[_STEP * pc + 2]
            three = code[_STEP * pc + 3]
            if op == _NULLABLE:
                pc += 1
                if valid_at[column] >= 0 and valid[valid_at[column] + index] == 0:
                    out[at] = three >> 8
                    pc = two
                else:
                    out[at] = three & 0xFF
                at += 1
            elif op == _REQUIRED:
                if valid_at[column] >= 0 and valid[valid_at[column] + index] == 0:
                    return pc
                pc += 1
            elif op == _NUMBER:
                at = write_zigzag(out, at, numbers[number_at[column] + index])
                pc += 1
            elif op == _BYTES:
                where = number_at[column] + index
                size = numbers[where + 1] - numbers[where]
                at = write_zigzag(out, at, size)
                copy(out, at, octets, numbers[where], size)
                at += size
                pc += 1
            elif op == _DOUBLE:
                at = write_little_endian(out, at, numbers[number_at[column] + index], 8)
                pc += 1
            elif op == _FLOAT:
                at = write_little_endian(out, at, numbers[number_at[column] + index], 4)
                pc += 1
            elif op == _BOOLEAN:
                out[at] = numbers[number_at[column] + index]
                at += 1
                pc += 1
            elif op == _CONSTANT:
                copy(out, at, constants, column, two)
                at += two
                pc += 1
            elif op == _DECIMAL:
                low = numbers[number_at[column] + 2 * index]
                high = numbers[number_at[column] + 2 * index + 1]
                size = two
                if size < 0:
                    size = _decimal_size(low, high)
                    at = write_zigzag(out, at, size)
                for number in range(size - 1, -1, -1):
                    out[at] = _decimal_byte(low, high, number)
                    at += 1
                pc += 1
            elif op == _LIST:
                where = number_at[column] + index
                begin = numbers[where]
                end = numbers[where + 1]
                if end == begin:
                    out[at] = 0
                    at += 1
                    pc = two
                else:
                    at = write_zigzag(out, at, end - begin)
                    stack[2 * depth] = index
                    stack[2 * depth + 1] = end
                    depth += 1
                    index = begin
                    pc += 1
            elif op == _NEXT:
                index += 1
                if index < stack[2 * depth - 1]:
                    pc = column
                else:
                    depth -= 1
                    index = stack[2 * depth]
                    out[at] = 0
                    at += 1
                    pc += 1
            elif op == _FIXED:
                where = number_at[column] + index
                size = numbers[where + 1] - numbers[where]
                if size != two:
                    return pc
                copy(out, at, octets, numbers[where], size)
                at += size
                pc += 1
            elif op == _MEMBER:
                if valid_at[column] >= 0 and valid[valid_at[column] + index] == 0:
                    pc = two
                else:
                    out[at] = three
                    at += 1
                    pc += 1
            elif op == _JUMP:
                pc = column
            elif op == _NO_MEMBER:
                return pc
            else:
                break
        ends[row] = at
    return -1
