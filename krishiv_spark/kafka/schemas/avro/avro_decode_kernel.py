"""The kernel that runs a decoder's program over encoded records.

It runs twice over the same records: first it counts the values of each column and finds the records
that are not valid, then it writes into arrays of exactly that size. So no size that a record claims
makes it allocate memory.
"""

# ruff: noqa: PLR0913, PLR0917, C901, PLR0912, PLR0915  kernels take arrays, not objects, and the
# program is run by one loop: with a function for each instruction it decoded 0.7 million records
# of 168 bytes a second instead of 5.9 million
# ruff: noqa: PLR2004  the sizes of floats have no better names

from __future__ import annotations

from typing import Any

from krishiv_spark.kafka.records.jit import copy, inner, kernel, peek
from krishiv_spark.kafka.records.read_kernels import OUT_OF_REACH, read_fixed, read_varint
from krishiv_spark.kafka.schemas.avro.avro_decode_program import Converter, Op
from krishiv_spark.kafka.schemas.octets import is_text, little_endian

__all__ = ["ERRORS", "decode_records"]

ERRORS = (
    "",
    "it ends too early",
    "a number has too many bits",
    "it uses a branch that its union does not have",
    "it has a symbol that the reader's enum does not have",
    "a length is negative",
    "a text is not UTF-8",
    "bytes are left after its end",
    "a decimal has more digits than its schema allows",
    "it uses a branch of its union that the reader's schema does not have",
    "a boolean is neither 0 nor 1",
    "a list has too many elements without bytes",
    "a time is out of range",
)
"""Description of each fault of a record, by the kernel's code."""

(
    GOOD,
    TRUNCATED,
    BAD_NUMBER,
    BAD_BRANCH,
    BAD_SYMBOL,
    BAD_LENGTH,
    BAD_TEXT,
    LEFT_OVER,
    BAD_DECIMAL,
    NO_BRANCH,
    BAD_BOOLEAN,
    TOO_MANY,
    BAD_TIME,
) = range(13)

ABSENT = -1
"""The status of a record that has no value, and becomes null."""

_END, _NUMBER, _BYTES, _FIXED, _BOOLEAN = Op.END, Op.NUMBER, Op.BYTES, Op.FIXED, Op.BOOLEAN
_FLOAT, _DOUBLE, _ENUM, _DECIMAL, _UNION = Op.FLOAT, Op.DOUBLE, Op.ENUM, Op.DECIMAL, Op.UNION
_JUMP, _NULLS, _VALID, _LIST, _NEXT = Op.JUMP, Op.NULLS, Op.VALID, Op.LIST, Op.NEXT
_CONSTANT, _RETURN = Op.CONSTANT, Op.RETURN
_TO_FLOAT, _TO_DOUBLE = Converter.TO_FLOAT, Converter.TO_DOUBLE
_TIMES_1000, _TIMES_1000000 = Converter.TIMES_1000, Converter.TIMES_1000000
_OVER_1000, _SKIP = Converter.OVER_1000, Converter.SKIP

_MIN = -(2**63)
_MAX_INT, _MIN_INT = 2**31 - 1, -(2**31)
_INT_BITS = 32
_MOST_TIMES_1000 = (2**63 - 1) // 1000
_MOST_TIMES_1000000 = (2**63 - 1) // 1_000_000
_NEGATIVE = 0x80
_MOST_EMPTY = 2**20
"""Elements without bytes that a block may have: its size in bytes limits all others."""
_DECIMAL_BYTES = 16
_STEP = 4  # numbers of an instruction


@inner
def _is_less(one: int, other: int) -> bool:
    """Compare the bits of two numbers as unsigned."""
    return (one ^ _MIN) < (other ^ _MIN)


@inner
def _fits(high: int, low: int, tables: Any, at: int) -> bool:
    """Return True if a number of 128 bits is within the limits of a decimal, exclusive."""
    if high >= 0:
        limit = tables[at]
        return high < limit or (high == limit and _is_less(low, tables[at + 1]))
    limit = tables[at + 2]
    return high > limit or (high == limit and _is_less(tables[at + 3], low))


@inner
def _put(
    write: bool, counts: Any, column: int, numbers: Any, number_at: Any, valid: Any, valid_at: Any,
    value: int,
) -> None:  # fmt: skip
    """Append a value to a column."""
    at = counts[2 * column]
    if write:
        numbers[number_at[column] + at] = value
        if valid_at[column] >= 0:
            valid[valid_at[column] + at] = 1
    counts[2 * column] = at + 1


@kernel
def decode_records(
    data: Any, starts: Any, ends: Any, constants: Any, code: Any, tables: Any, write: bool,
    status: Any, counts: Any, saved: Any, numbers: Any, number_at: Any, octets: Any, octet_at: Any,
    valid: Any, valid_at: Any, stack: Any, roots: Any, double: Any, double_bits: Any, single: Any,
    single_bits: Any,
) -> None:  # fmt: skip
    """Count or write the values of records.

    Args:
        data: The bytes of all records.
        starts: Where each record starts in them; -1 for one without a value.
        ends: Where each record ends, exclusive.
        constants: Encoded defaults.
        code: The program.
        tables: Its tables.
        write: Write values; otherwise count them and set `status`.
        status: For each record 0, `ABSENT`, or an error plus 256 times the instruction.
        counts: Two numbers for each column: its values and, of bytes, their size.
        saved: Room for as many numbers.
        numbers: Values and lengths; a decimal takes two.
        number_at: Where each column starts in them.
        octets: Bytes of values.
        octet_at: Where each column starts in them.
        valid: 1 for each value that is not null.
        valid_at: Where each column starts in it; -1 for a column without nulls.
        stack: Two numbers for each level of lists.
        roots: The columns that get a null for a record without a value.
        double: One double; `double_bits` are its bits.
        double_bits: One signed number of 64 bits.
        single: One float; `single_bits` are its bits.
        single_bits: One unsigned number of 32 bits.
    """
    for row in range(len(starts)):
        if not write:
            status[row] = GOOD if starts[row] >= 0 else ABSENT
        if status[row] != GOOD:
            for i in range(len(roots)):
                counts[2 * roots[i]] += 1
            continue
        if not write:
            for i in range(len(counts)):
                saved[i] = counts[i]
        source = data
        at, end = starts[row], ends[row]
        kept_at, kept_end = at, end
        depth = 0
        error = GOOD
        pc = 0
        while True:
            op = code[_STEP * pc]
            column = code[_STEP * pc + 1]
            two = code[_STEP * pc + 2]
            three = code[_STEP * pc + 3]
            if op == _NUMBER:
                value, at = read_varint(source, at, end)
                if at == OUT_OF_REACH:
                    error = TRUNCATED
                    break
                if three == _INT_BITS and (value > _MAX_INT or value < _MIN_INT):
                    error = BAD_NUMBER
                    break
                if two == _TIMES_1000:
                    if value > _MOST_TIMES_1000 or value < -_MOST_TIMES_1000:
                        error = BAD_TIME
                        break
                    value *= 1000
                elif two == _TIMES_1000000:
                    if value > _MOST_TIMES_1000000 or value < -_MOST_TIMES_1000000:
                        error = BAD_TIME
                        break
                    value *= 1_000_000
                elif two == _OVER_1000:
                    value //= 1000
                elif two == _TO_DOUBLE:
                    double[0] = value
                    value = double_bits[0]
                elif two == _TO_FLOAT:
                    single[0] = value
                    value = single_bits[0]
                if two != _SKIP:
                    _put(write, counts, column, numbers, number_at, valid, valid_at, value)
                pc += 1
            elif op == _BYTES:
                size, at = read_varint(source, at, end)
                if size < 0:
                    error = BAD_LENGTH
                    break
                if size > end - at:
                    error = TRUNCATED
                    break
                if column >= 0:
                    if write:
                        copy(octets, octet_at[column] + counts[2 * column + 1], source, at, size)
                    elif two == 1 and not is_text(source, at, size):
                        error = BAD_TEXT
                        break
                    counts[2 * column + 1] += size
                    _put(write, counts, column, numbers, number_at, valid, valid_at, size)
                at += size
                pc += 1
            elif op == _FIXED:
                if two > end - at:
                    error = TRUNCATED
                    break
                if column >= 0:
                    if write:
                        copy(octets, octet_at[column] + counts[2 * column + 1], source, at, two)
                    counts[2 * column + 1] += two
                    _put(write, counts, column, numbers, number_at, valid, valid_at, two)
                at += two
                pc += 1
            elif op == _UNION:
                value, at = read_varint(source, at, end)
                if at == OUT_OF_REACH:
                    error = TRUNCATED
                    break
                if value < 0 or value >= two:
                    error = BAD_BRANCH
                    break
                pc = tables[column + value]
            elif op == _JUMP:
                pc = column
            elif op == _NULLS:
                for i in range(column, column + two):
                    counts[2 * tables[i]] += 1
                pc += 1
            elif op == _VALID:
                _put(write, counts, column, numbers, number_at, valid, valid_at, 0)
                pc += 1
            elif op == _BOOLEAN:
                if at >= end:
                    error = TRUNCATED
                    break
                value = peek(source, at)
                if value > 1:
                    error = BAD_BOOLEAN
                    break
                _put(write, counts, column, numbers, number_at, valid, valid_at, value)
                at += 1
                pc += 1
            elif op == _FLOAT:
                if end - at < 4:
                    error = TRUNCATED
                    break
                value = little_endian(source, at, 4) & 0xFFFFFFFF
                if two == 1:
                    single_bits[0] = value
                    double[0] = single[0]
                    value = double_bits[0]
                _put(write, counts, column, numbers, number_at, valid, valid_at, value)
                at += 4
                pc += 1
            elif op == _DOUBLE:
                if end - at < 8:
                    error = TRUNCATED
                    break
                value = little_endian(source, at, 8)
                _put(write, counts, column, numbers, number_at, valid, valid_at, value)
                at += 8
                pc += 1
            elif op == _ENUM:
                value, at = read_varint(source, at, end)
                if at == OUT_OF_REACH:
                    error = TRUNCATED
                    break
                if value < 0 or value >= three or tables[two + value] < 0:
                    error = BAD_SYMBOL
                    break
                value = tables[two + value]
                _put(write, counts, column, numbers, number_at, valid, valid_at, value)
                pc += 1
            elif op == _DECIMAL:
                size = three
                if size < 0:
                    size, at = read_varint(source, at, end)
                if size < 0:
                    error = BAD_LENGTH
                    break
                if size > end - at:
                    error = TRUNCATED
                    break
                if size == 0:
                    error = BAD_DECIMAL
                    break
                # Bytes that only repeat the sign; a writer may use more than needed.
                sign = 0xFF if peek(source, at) >= _NEGATIVE else 0
                while size > _DECIMAL_BYTES and peek(source, at) == sign:
                    at += 1
                    size -= 1
                is_positive = peek(source, at) < _NEGATIVE
                if size > _DECIMAL_BYTES or is_positive != (sign == 0):
                    error = BAD_DECIMAL
                    break
                if size > 8:
                    high = read_fixed(source, at, size - 8)
                    low = read_fixed(source, at + size - 8, 8)
                else:
                    low = read_fixed(source, at, size)
                    high = -1 if low < 0 else 0
                if not _fits(high, low, tables, two):
                    error = BAD_DECIMAL
                    break
                place = counts[2 * column]
                if write:
                    numbers[number_at[column] + 2 * place] = low
                    numbers[number_at[column] + 2 * place + 1] = high
                    if valid_at[column] >= 0:
                        valid[valid_at[column] + place] = 1
                counts[2 * column] = place + 1
                at += size
                pc += 1
            elif op == _LIST:
                stack[2 * depth] = 0
                stack[2 * depth + 1] = 0
                depth += 1
                pc += 1
            elif op == _NEXT:
                level = 2 * (depth - 1)
                if stack[level] == 0:
                    value, at = read_varint(source, at, end)
                    if value < 0 and at <= end:
                        value = -value
                        size, at = read_varint(source, at, end)
                        if size < 0:
                            error = BAD_LENGTH
                            break
                    if at == OUT_OF_REACH:
                        error = TRUNCATED
                        break
                    if value < 0:
                        error = BAD_LENGTH
                        break
                    if three == 0 and value > end - at:
                        error = TRUNCATED
                        break
                    if value > _MOST_EMPTY and three == 1:
                        error = TOO_MANY
                        break
                    stack[level] = value
                if stack[level] == 0:
                    depth -= 1
                    if column >= 0:
                        _put(
                            write, counts, column, numbers, number_at, valid, valid_at,
                            stack[level + 1],
                        )  # fmt: skip
                    pc = two
                else:
                    stack[level] -= 1
                    stack[level + 1] += 1
                    if stack[level + 1] > _MOST_EMPTY and three == 1:
                        error = TOO_MANY
                        break
                    pc += 1
            elif op == _CONSTANT:
                kept_at, kept_end = at, end
                source, at, end = constants, column, two
                pc += 1
            elif op == _RETURN:
                source, at, end = data, kept_at, kept_end
                pc += 1
            elif op == _END:
                if at != end:
                    error = LEFT_OVER
                break
            else:
                error = NO_BRANCH
                break
        if error != GOOD:
            for i in range(len(counts)):
                counts[i] = saved[i]
            for i in range(len(roots)):
                counts[2 * roots[i]] += 1
            status[row] = error + 256 * pc
