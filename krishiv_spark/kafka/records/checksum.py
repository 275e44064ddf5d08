"""CRC-32C, by the fastest installed implementation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

__all__ = ["choose_crc32c", "crc32c"]

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's polynomial with its bits reversed."""


def crc32c(data: Any, before: int = 0) -> int:
    """Return the checksum of bytes.

    Args:
        data: Bytes, or an object with the buffer protocol.
        before: Checksum of the bytes before these.
    """
    return choose_crc32c()(data, before)


@functools.cache
def choose_crc32c() -> Callable[[Any, int], int]:
    """Return the implementation of `crc32c`, for loops that call it many times."""
    return _load_native() or _load_kernel() or _load_client()


def _load_native() -> Callable[[Any, int], int] | None:
    try:
        from crc32c import crc32c as function
    except ImportError:
        return None
    return cast("Callable[[Any, int], int]", function)


def _load_kernel() -> Callable[[Any, int], int] | None:
    from krishiv_spark.kafka.records.jit import COMPILED

    if not COMPILED:
        return None
    from krishiv_spark.kafka.records.read_kernels import update_crc

    table = _build_table()
    return lambda data, before: update_crc(np.frombuffer(data, np.uint8), before, table)


def _load_client() -> Callable[[Any, int], int]:
    from kafka.record._crc32c import crc_update

    return lambda data, before: int(crc_update(before, memoryview(data)))


def _build_table() -> NDArray[np.int64]:
    """Return the effect of each byte on the checksum, if 0 to 7 bytes follow it."""
    first = np.arange(256, dtype=np.int64)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ _POLYNOMIAL, first >> 1)
    table = np.empty((8, 256), np.int64)
    table[0] = first
    for row in range(1, 8):
        table[row] = (table[row - 1] >> 8) ^ first[table[row - 1] & 0xFF]
    return table
