"""Kafka's codecs, which compress the records of a batch as a whole.

Two of them have a special frame. Snappy has the blocks of Java's xerial library, or none; LZ4 has
frames with independent blocks, since Java's client reads no others.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

__all__ = ["InflateError", "Inflation", "deflate"]

_XERIAL = b"\x82SNAPPY\x00"
# The header has its version, and the oldest version that can read it.
_XERIAL_HEADER = _XERIAL + struct.pack(">ii", 1, 1)
# The default of xerial's SnappyOutputStream.
_XERIAL_BLOCK = 32 * 1024

# Frame of version 1 with independent blocks of at most 64 KiB, as Java's client writes it.
_LZ4_HEADER = bytes.fromhex("04224d18604082")
_LZ4_BLOCK = 64 * 1024
# This bit in the size of a block means that it is not compressed.
_LZ4_STORED = 0x80000000

_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
# Maximum size of magic, flags, window, dictionary and size together.
_ZSTD_HEADER = 18

# Snappy encodes a copy of 64 bytes in 3: no other element has a greater ratio.
_SNAPPY_MOST = 22

_FIRST_READ = 8 * 1024

_ALLOCATION = re.compile(r"(?i)allocation|(?<!too much )memory")
"""Messages of zlib, LZ4 and Zstandard for a lack of memory, except for too large a window."""

_MORE = 0x80
"""The bit in a byte of a varint that announces another byte."""


class InflateError(Exception):
    """Compressed bytes are damaged, or exceed the limit after decompression."""


class Inflation:
    """A decompression of the records of one batch, piece by piece.

    Args:
        codec: Name of the codec in Kafka; not "none".
        data: The compressed bytes, without the batch's header.
        most: Maximum number of bytes after decompression.

    Raises:
        InflateError: If the bytes announce a larger size.
    """

    def __init__(self, codec: str, data: memoryview, most: int) -> None:
        self._codec = codec
        self._most = self._left = most
        self._guess = max(_FIRST_READ, 4 * len(data))
        # An announced size can be wrong: it is only a reason to stop early.
        if _read_announced_size(codec, data) > most:
            raise _make_size_error(most)
        self._blocks = _iter_snappy_blocks(data) if codec == "snappy" else iter(())
        self._block = next(self._blocks, None)
        self._stream: Any = None if codec == "snappy" else _open_stream(codec, data)

    def read_into(self, arena: bytearray, least: int) -> bool:
        """Append at least `least` bytes to an arena, or the rest if it is smaller.

        A block of snappy is appended as a whole; the other codecs append exactly `least` bytes.

        Returns:
            True if there may be more.

        Raises:
            InflateError: If the bytes are damaged or exceed the limit.
            MemoryError: If this process gets no more memory, whatever the state of the bytes.
        """
        before = len(arena)
        try:
            if self._stream is None:
                self._append_blocks(arena, least)
            else:
                self._append_stream(arena, least)
        except MemoryError:  # Arrow's MemoryError is an ArrowException too
            raise
        except (pa.ArrowException, OSError) as error:
            if _ALLOCATION.search(str(error)):
                raise MemoryError(str(error)) from error
            raise InflateError(f"cannot be decompressed with {self._codec}: {error}") from error
        found = len(arena) - before
        self._left -= found
        if self._left < 0:
            raise _make_size_error(self._most)
        return self._block is not None if self._stream is None else found >= least

    def _append_stream(self, arena: bytearray, least: int) -> None:
        # One byte more than the limit proves that it is exceeded.
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
            filled += _read_snappy_size(self._block)
            if filled > self._left:
                raise _make_size_error(self._most)
            arena += _inflate_snappy(self._block)
            self._block = next(self._blocks, None)


def _open_stream(codec: str, data: memoryview) -> Any:
    return pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), codec)


def _read_announced_size(codec: str, data: memoryview) -> int:
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


def _iter_snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    return _iter_xerial_blocks(data) if data[: len(_XERIAL)] == _XERIAL else iter((data,))


def _iter_xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    at = len(_XERIAL_HEADER)
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += 4
        if size < 0 or size > len(data) - at:
            raise InflateError(f"a block of {size} bytes exceeds the snappy stream")
        yield data[at : at + size]
        at += size


def _inflate_snappy(data: memoryview) -> bytes:
    size = _read_snappy_size(data)
    if size > _SNAPPY_MOST * len(data):
        raise InflateError(f"{len(data)} bytes of snappy cannot become {size}")
    out: bytes = pa.decompress(data, decompressed_size=size, codec="snappy", asbytes=True)
    return out


def _read_snappy_size(data: memoryview) -> int:
    """Return the size that the first bytes of a block announce."""
    size = 0
    for i, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * i)
        if byte < _MORE:
            return size
    raise InflateError("a block of snappy does not start with its size")


def _make_size_error(most: int) -> InflateError:
    return InflateError(f"becomes more than the {most} bytes that 'maxInflatedBytes' allows")


def deflate(codec: str, level: int | None, data: memoryview) -> bytes:
    """Compress the records of a batch.

    Args:
        codec: Name of the codec in Kafka; not "none".
        level: The codec's compression level; None for its default.
        data: The records, without the batch's header.
    """
    return _DEFLATORS[codec](level, data)


def _make_compressor(name: str) -> Callable[[int | None, memoryview], bytes]:
    def compress(level: int | None, data: memoryview) -> bytes:
        return _compress_block(pa.Codec(name, compression_level=level), data)

    return compress


def _compress_block(codec: Any, data: memoryview) -> bytes:
    compressed: bytes = codec.compress(data, asbytes=True)
    return compressed


def _split_blocks(data: memoryview, size: int) -> Iterator[memoryview]:
    return (data[at : at + size] for at in range(0, len(data), size))


def _compress_xerial(_: int | None, data: memoryview) -> bytes:
    out = [_XERIAL_HEADER]
    for block in _split_blocks(data, _XERIAL_BLOCK):
        packed = _compress_block(pa.Codec("snappy"), block)
        out += [struct.pack(">i", len(packed)), packed]
    return b"".join(out)


def _compress_lz4(level: int | None, data: memoryview) -> bytes:
    codec = pa.Codec("lz4_raw", compression_level=level)
    out: list[bytes | memoryview] = [_LZ4_HEADER]
    for block in _split_blocks(data, _LZ4_BLOCK):
        packed = _compress_block(codec, block)
        if len(packed) < len(block):
            out += [struct.pack("<I", len(packed)), packed]
        else:
            out += [struct.pack("<I", len(block) | _LZ4_STORED), block]
    # A block of no bytes ends the frame.
    return b"".join([*out, bytes(4)])


_DEFLATORS: dict[str, Callable[[int | None, memoryview], bytes]] = {
    "gzip": _make_compressor("gzip"),
    "snappy": _compress_xerial,
    "lz4": _compress_lz4,
    "zstd": _make_compressor("zstd"),
}
