"""Kernels that read, write and copy values of bytes, for every form of records."""

# ruff: noqa: PLR2004  the bytes of UTF-8 have no better names

from __future__ import annotations

from typing import Any

from krishiv_spark.kafka.records.jit import copy, inner, kernel, peek

__all__ = ["copy_octets", "is_text", "little_endian", "write_little_endian", "write_zigzag"]

_NEGATIVE = 0x80
_MORE = 0x80


@inner
def little_endian(data: Any, at: int, size: int) -> int:
    """Return a signed little-endian number of 1 to 8 bytes."""
    value: int = peek(data, at + size - 1)
    if value >= _NEGATIVE:
        value -= 0x100
    for i in range(size - 2, -1, -1):
        value = value * 0x100 + peek(data, at + i)
    return value


@inner
def write_little_endian(out: Any, at: int, value: int, size: int) -> int:
    """Write the lowest bytes of a number; return the position after them."""
    for _ in range(size):
        out[at] = value & 0xFF
        value >>= 8
        at += 1
    return at


@inner
def write_zigzag(out: Any, at: int, value: int) -> int:
    """Write a signed number of up to 64 bits, seven of them in a byte; return the position after.

    Twice its size would not fit into 64 signed bits, so the first byte is made separately.
    """
    is_negative = 1 if value < 0 else 0
    left = ~value if value < 0 else value
    byte = ((left & 0x3F) << 1) | is_negative
    left >>= 6
    while left > 0:
        out[at] = byte | _MORE
        at += 1
        byte = left & 0x7F
        left >>= 7
    out[at] = byte
    return at + 1


@inner
def is_text(data: Any, at: int, size: int) -> bool:
    """Return True if bytes are UTF-8, without surrogates and overlong forms."""
    end = at + size
    while at < end:
        byte = peek(data, at)
        at += 1
        if byte < 0x80:
            continue
        if byte < 0xC2 or byte > 0xF4:
            return False
        more = 1 + (byte >= 0xE0) + (byte >= 0xF0)
        if at + more > end:
            return False
        second = peek(data, at)
        low = 0xA0 if byte == 0xE0 else 0x90 if byte == 0xF0 else 0x80
        high = 0x9F if byte == 0xED else 0x8F if byte == 0xF4 else 0xBF
        if second < low or second > high:
            return False
        for i in range(1, more):
            if peek(data, at + i) & 0xC0 != 0x80:
                return False
        at += more
    return True


@kernel
def copy_octets(data: Any, constants: Any, starts: Any, sizes: Any, out: Any) -> None:
    """Copy bytes to one after the other.

    Args:
        data: The bytes of all records.
        constants: Bytes of defaults.
        starts: Where each value starts; -1 - n stands for n in the constants.
        sizes: Number of bytes of each value.
        out: Room for all of them.
    """
    at = 0
    for i in range(len(starts)):
        if starts[i] >= 0:
            copy(out, at, data, starts[i], sizes[i])
        else:
            copy(out, at, constants, -1 - starts[i], sizes[i])
        at += sizes[i]
