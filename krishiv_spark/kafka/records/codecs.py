"""The codecs of Kafka: how records of a batch are compressed as a whole.

Two of them have a frame of their own. Snappy comes in the blocks of Java's xerial library, or raw;
LZ4 in frames whose blocks do not depend on each other, since Java's client reads no others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

__all__ = ["InflateError", "deflate", "inflate"]

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

# A copy of 64 bytes takes snappy 3: nothing grows more than that.
_SNAPPY_MOST = 22

_FIRST_READ = 64 * 1024


# In a byte of a number: more follow.
_MORE = 0x80


class InflateError(Exception):
    """Compressed bytes are damaged, or become more than is allowed."""


def inflate(codec: str, data: memoryview, most: int) -> bytes | bytearray:
    """Decompress the records of a batch.

    Args:
        codec: Its name in Kafka; not "none".
        data: The compressed bytes, without the batch's header.
        most: Bytes that they may become.

    Raises:
        InflateError: If they are damaged, or become more.
    """
    try:
        return _inflate_snappy(data, most) if codec == "snappy" else _stream(codec, data, most)
    except (pa.ArrowException, OSError) as error:
        raise InflateError(f"cannot be decompressed with {codec}: {error}") from error


def _stream(codec: str, data: memoryview, most: int) -> bytearray:
    # One byte more than is allowed, which shows that there are too many.
    out = bytearray(min(max(_FIRST_READ, 4 * len(data)), most + 1))
    filled = 0
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), codec) as stream:
        while read := stream.readinto(memoryview(out)[filled:]):
            filled += read
            if filled > most:
                raise _too_large(most)
            if filled == len(out):
                out.extend(bytes(min(filled, most + 1 - filled)))
    del out[filled:]
    return out


def _inflate_snappy(data: memoryview, most: int) -> bytes:
    blocks = _xerial_blocks(data) if data[: len(_XERIAL)] == _XERIAL else iter((data,))
    out: list[bytes] = []
    filled = 0
    for block in blocks:
        filled += _snappy_size(block)
        if filled > most:
            raise _too_large(most)
        out.append(_snappy_block(block))
    return b"".join(out)


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    at = len(_XERIAL_HEADER)
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += 4
        if size < 0 or size > len(data) - at:
            raise InflateError(f"a block of {size} bytes does not lie in the snappy stream")
        yield data[at : at + size]
        at += size


def _snappy_block(data: memoryview) -> bytes:
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
    raise InflateError("a block of snappy does not begin with its size")


def _too_large(most: int) -> InflateError:
    return InflateError(f"becomes more than the {most} bytes that a batch may have")


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
