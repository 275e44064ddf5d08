"""The codecs of Kafka: how records of a batch are compressed as a whole.

Two of them have a frame of their own. Snappy comes in the blocks of Java's xerial library, or raw;
LZ4 in frames whose blocks do not depend on each other, since Java's client reads no others.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

__all__ = ["InflateError", "Inflation", "deflate"]

_XERIAL = b"\x82SNAPPY\x00"
# Its version, and the oldest one that can read it.
_XERIAL_HEADER = _XERIAL + struct.pack(">ii", 1, 1)
# The default of xerial's SnappyOutputStream.
_XERIAL_BLOCK = 32 * 1024

# Frame of version 1 with independent blocks of at most 64 KiB, as Java's client writes it.
_LZ4_HEADER = bytes.fromhex("04224d18604082")
_LZ4_BLOCK = 64 * 1024
# In the size of a block: it is not compressed.
_LZ4_STORED = 0x80000000

_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
# Magic, flags, window, dictionary and size take no more.
_ZSTD_HEADER = 18

# A copy of 64 bytes takes snappy 3: nothing grows more than that.
_SNAPPY_MOST = 22

_FIRST_READ = 8 * 1024

_ALLOCATION = re.compile(r"(?i)allocation|(?<!too much )memory")
"""Messages of zlib, LZ4 and Zstandard for a lack of memory; not for a window that is too large."""


# In a byte of a number: more follow.
_MORE = 0x80


class InflateError(Exception):
    """Compressed bytes are damaged, or become more than is allowed."""


class Inflation:
    """The records of one batch while they are decompressed, piece after piece.

    Args:
        codec: Its name in Kafka; not "none".
        data: The compressed bytes, without the batch's header.
        most: Bytes that they may become.

    Raises:
        InflateError: If the bytes announce that they become more.
    """

    def __init__(self, codec: str, data: memoryview, most: int) -> None:
        self._codec = codec
        self._most = self._left = most
        self._guess = max(_FIRST_READ, 4 * len(data))
        # An announced size proves nothing: it is only a reason to stop early.
        if _announced_size(codec, data) > most:
            raise _too_large(most)
        self._blocks = _snappy_blocks(data) if codec == "snappy" else iter(())
        self._block = next(self._blocks, None)
        self._stream: Any = None if codec == "snappy" else _open_stream(codec, data)

    def read_into(self, arena: bytearray, least: int) -> bool:
        """Append at least so many bytes to an arena, or all that are left.

        A block of snappy is appended as a whole; the other codecs append exactly `least` bytes.

        Returns:
            Whether there may be more.

        Raises:
            InflateError: If they are damaged, or become more than is allowed.
            MemoryError: If this process may have no more memory, which says nothing of the bytes.
        """
        before = len(arena)
        try:
            if self._stream is None:
                self._append_blocks(arena, least)
            else:
                self._append_stream(arena, least)
        except MemoryError:  # Arrow's own is an ArrowException too
            raise
        except (pa.ArrowException, OSError) as error:
            if _ALLOCATION.search(str(error)):
                raise MemoryError(str(error)) from error
            raise InflateError(f"cannot be decompressed with {self._codec}: {error}") from error
        found = len(arena) - before
        self._left -= found
        if self._left < 0:
            raise _too_large(self._most)
        return self._block is not None if self._stream is None else found >= least

    def _append_stream(self, arena: bytearray, least: int) -> None:
        # One byte more than is allowed shows that there are too many.
        begin = filled = len(arena)
        end = begin + min(least, self._left + 1)
        while filled < end:
            if filled == len(arena):
                step = max(self._guess, filled - begin)
                arena.extend(bytes(min(step, end - filled)))
            read = self._stream.readinto(memoryview(arena)[filled:])
            if not read:
                break
            filled += read
        del arena[filled:]

    def _append_blocks(self, arena: bytearray, least: int) -> None:
        filled = 0
        while self._block is not None and filled < least:
            filled += _snappy_size(self._block)
            if filled > self._left:
                raise _too_large(self._most)
            arena += _inflate_snappy(self._block)
            self._block = next(self._blocks, None)


def _open_stream(codec: str, data: memoryview) -> Any:
    return pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), codec)


def _announced_size(codec: str, data: memoryview) -> int:
    """Return the size that the first frame announces; 0 if it announces none."""
    if codec == "zstd" and data[:4] == _ZSTD_MAGIC and len(data) > _ZSTD_HEADER:
        flags = data[4]
        is_single, size_bytes = bool(flags & 0x20), 1 << (flags >> 6)
        if size_bytes == 1 and not is_single:
            return 0
        at = 5 + (not is_single) + (0, 1, 2, 4)[flags & 3]
        return int.from_bytes(data[at : at + size_bytes], "little")
    if codec == "lz4" and data[:4] == _LZ4_HEADER[:4] and data[4:5] and data[4] & 0x08:
        return int.from_bytes(data[6:14], "little")
    return 0


def _snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    return _xerial_blocks(data) if data[: len(_XERIAL)] == _XERIAL else iter((data,))


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    at = len(_XERIAL_HEADER)
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += 4
        if size < 0 or size > len(data) - at:
            raise InflateError(f"a block of {size} bytes does not lie in the snappy stream")
        yield data[at : at + size]
        at += size


def _inflate_snappy(data: memoryview) -> bytes:
    size = _snappy_size(data)
    if size > _SNAPPY_MOST * len(data):
        raise InflateError(f"{len(data)} bytes of snappy cannot become {size}")
    out: bytes = pa.decompress(data, decompressed_size=size, codec="snappy", asbytes=True)
    return out


def _snappy_size(data: memoryview) -> int:
    """The size that a block has by its own account, in its first bytes."""
    size = 0
    for i, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * i)
        if byte < _MORE:
            return size
    raise InflateError("a block of snappy does not start with its size")


def _too_large(most: int) -> InflateError:
    return InflateError(f"becomes more than the {most} bytes that 'maxInflatedBytes' allows")


def deflate(codec: str, level: int | None, data: memoryview) -> bytes:
    """Compress the records of a batch.

    Args:
        codec: Its name in Kafka; not "none".
        level: The codec's own measure of effort; None for its default.
        data: The records as they follow the batch's header.
    """
    return _DEFLATORS[codec](level, data)


def _whole(name: str) -> Callable[[int | None, memoryview], bytes]:
    def compress(level: int | None, data: memoryview) -> bytes:
        return _block(pa.Codec(name, compression_level=level), data)

    return compress


def _block(codec: Any, data: memoryview) -> bytes:
    compressed: bytes = codec.compress(data, asbytes=True)
    return compressed


def _blocks(data: memoryview, size: int) -> Iterator[memoryview]:
    return (data[at : at + size] for at in range(0, len(data), size))


def _xerial(_: int | None, data: memoryview) -> bytes:
    out = [_XERIAL_HEADER]
    for block in _blocks(data, _XERIAL_BLOCK):
        packed = _block(pa.Codec("snappy"), block)
        out += [struct.pack(">i", len(packed)), packed]
    return b"".join(out)


def _lz4(level: int | None, data: memoryview) -> bytes:
    codec = pa.Codec("lz4_raw", compression_level=level)
    out: list[bytes | memoryview] = [_LZ4_HEADER]
    for block in _blocks(data, _LZ4_BLOCK):
        packed = _block(codec, block)
        if len(packed) < len(block):
            out += [struct.pack("<I", len(packed)), packed]
        else:
            out += [struct.pack("<I", len(block) | _LZ4_STORED), block]
    # A block of no bytes ends the frame.
    return b"".join([*out, bytes(4)])


_DEFLATORS: dict[str, Callable[[int | None, memoryview], bytes]] = {
    "gzip": _whole("gzip"),
    "snappy": _xerial,
    "lz4": _lz4,
    "zstd": _whole("zstd"),
}
