"""Blocks of Avro files, decompressed up to a limit. Driver.

PyIceberg decompresses a block of a manifest whole, so that a writer of manifests can have 10 KB
become gigabytes in the driver of every reader.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable
from typing import Any

from pyiceberg.avro.codecs import KNOWN_CODECS

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import FORMAT

__all__ = ["MAX_BLOCK_BYTES", "block_decompressor"]

_PIECE_BYTES = 2**20

MAX_BLOCK_BYTES = 256 * 2**20
"""Most bytes of a block. Writers keep whole manifests at about 8 MB."""


def block_decompressor(codec: str | None) -> Callable[[bytes, int], bytes]:
    """Return a function that decompresses a block of an Avro file, up to a number of bytes.

    It raises OptionError if the block has more, or more than `MAX_BLOCK_BYTES`, and ValueError or
    an error of the codec if it is damaged.

    Args:
        codec: Its name in the header of the file; None for that of the Avro spec.

    Raises:
        ValueError: If the codec is not known.
    """
    inflate = _INFLATERS.get(codec or "null")
    if inflate is None:
        raise ValueError(f"its codec {codec!r} is not known")

    def decompress(data: bytes, max_bytes: int) -> bytes:
        most = min(max_bytes, MAX_BLOCK_BYTES)
        found = inflate(data, most + 1)
        if found is None or len(found) > most:
            raise OptionError(
                f"{FORMAT}: a block of one of the table's manifests has more than {most} bytes: no "
                "known writer makes such manifests. It was not read: have the table's owner "
                "rewrite its manifests"
            )
        return found

    return decompress


def _keep(data: bytes, _: int) -> bytes:
    return data


def _inflate(data: bytes, max_bytes: int) -> bytes:
    return _read_whole(zlib.decompressobj(-15), data, max_bytes)  # no header (RFC 1951)


def _bunzip(data: bytes, max_bytes: int) -> bytes:
    return _read_whole(bz2.BZ2Decompressor(), data, max_bytes)


def _read_whole(inflater: Any, data: bytes, max_bytes: int) -> bytes:
    found: bytes = inflater.decompress(data, max_bytes)
    if not inflater.eof and len(found) < max_bytes:
        raise ValueError("a block of an Avro file ends in the middle")
    return found


def _unzstd(data: bytes, max_bytes: int) -> bytes:
    from zstandard import ZstdDecompressor

    found = bytearray()
    with ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        # In pieces: the reader asks at once for as much memory as it may return.
        while piece := reader.read(min(_PIECE_BYTES, max_bytes - len(found))):
            found += piece
    return bytes(found)


def _unsnap(data: bytes, max_bytes: int) -> bytes | None:
    """Return the bytes; None if they are announced to be more, which takes memory at once."""
    announced = 0
    for position, byte in enumerate(data[:5]):
        announced |= (byte & 0x7F) << 7 * position
        if byte < 0x80:  # the last byte of the number  # noqa: PLR2004
            break
    codec: Any = KNOWN_CODECS["snappy"]
    return None if announced >= max_bytes else codec.decompress(data)


_INFLATERS: dict[str, Callable[[bytes, int], bytes | None]] = {
    "null": _keep,
    "bzip2": _bunzip,
    "deflate": _inflate,
    "snappy": _unsnap,
    "zstandard": _unzstd,
}
