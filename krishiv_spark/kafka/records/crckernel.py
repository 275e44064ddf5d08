"""CRC-32C eight bytes at a time, where no package brings the processor's own instruction."""

from __future__ import annotations

from typing import Any

from krishiv_spark.kafka.records.jit import inner, kernel


@kernel
def update(data: Any, before: int, table: Any) -> int:
    """The checksum of bytes.

    Args:
        data: Unsigned bytes, a one-dimensional array.
        before: Checksum of what comes before these.
        table: What each byte does, with 0 to 7 bytes after it.
    """
    crc = before ^ 0xFFFFFFFF
    words = len(data) // 8 * 8
    for at in range(0, words, 8):
        crc = _eight(data, at, crc, table)
    for at in range(words, len(data)):
        crc = table[0, (crc ^ data[at]) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@inner
def _eight(data: Any, at: int, crc: int, table: Any) -> Any:
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
