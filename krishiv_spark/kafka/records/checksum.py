"""CRC-32C, by the fastest means that is installed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

__all__ = ["crc32c", "means"]

# Castagnoli's, with its bits in the opposite order.
_POLYNOMIAL = 0x82F63B78


def crc32c(data: Any, before: int = 0) -> int:
    """The checksum of bytes.

    Args:
        data: Bytes, or whatever lends its bytes.
        before: Checksum of what comes before these.
    """
    return means()(data, before)


@functools.cache
def means() -> Callable[[Any, int], int]:
    """What `crc32c` calls, for those that call it for each of many."""
    return _by_processor() or _by_kernel() or _by_client()


def _by_processor() -> Callable[[Any, int], int] | None:
    try:
        from crc32c import crc32c as function
    except ImportError:
        return None
    return cast("Callable[[Any, int], int]", function)


def _by_kernel() -> Callable[[Any, int], int] | None:
    from krishiv_spark.kafka.records.jit import COMPILED

    if not COMPILED:
        return None
    from krishiv_spark.kafka.records.crckernel import update

    table = _table()
    return lambda data, before: update(np.frombuffer(data, np.uint8), before, table)


def _by_client() -> Callable[[Any, int], int]:
    from kafka.record._crc32c import crc_update

    return lambda data, before: int(crc_update(before, memoryview(data)))


def _table() -> NDArray[np.int64]:
    """What each byte does to the checksum, with 0 to 7 bytes after it."""
    first = np.arange(256, dtype=np.int64)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ _POLYNOMIAL, first >> 1)
    table = np.empty((8, 256), np.int64)
    table[0] = first
    for row in range(1, 8):
        table[row] = (table[row - 1] >> 8) ^ first[table[row - 1] & 0xFF]
    return table
