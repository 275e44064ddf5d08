"""A limit for the blocks of Avro files: PyIceberg inflates a block of a manifest whole. Driver.

Whoever can write a manifest can have 10 KB become gigabytes in the driver of every reader. The
codecs of `bound_avro_blocks` stop at a limit. They replace PyIceberg's in its table of codecs,
since it creates its reader of manifests in many places; what is below the limit is the same.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from pyiceberg.avro.codecs import KNOWN_CODECS, AvroCompressionCodec
from pyiceberg.avro.codecs.codec import Codec

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import FORMAT

__all__ = ["MAX_BLOCK_BYTES", "bound_avro_blocks"]

MAX_BLOCK_BYTES = 256 * 2**20
"""Most bytes of a block. Writers keep whole manifests at about 8 MB."""


def bound_avro_blocks() -> None:
    """Have PyIceberg refuse blocks of Avro files that are larger than `MAX_BLOCK_BYTES`. Driver."""
    for name, inflate in _INFLATERS.items():
        codec = KNOWN_CODECS.get(name)
        if codec is not None and not issubclass(codec, _BoundedCodec):
            members = {"decompress": staticmethod(_bounded(partial(inflate, codec)))}
            KNOWN_CODECS[name] = type(codec.__name__, (_BoundedCodec, codec), members)


class _BoundedCodec(Codec):
    """A codec that stops at `MAX_BLOCK_BYTES`."""


def _bounded(inflate: Callable[[bytes, int], bytes | None]) -> Callable[[bytes], bytes]:
    def decompress(data: bytes) -> bytes:
        found = inflate(data, MAX_BLOCK_BYTES + 1)
        if found is None or len(found) > MAX_BLOCK_BYTES:
            raise OptionError(
                f"{FORMAT}: a block of one of the table's manifests has more than "
                f"{MAX_BLOCK_BYTES} bytes, so that it was not read: no known writer makes such "
                "manifests. Have the table's owner rewrite its manifests"
            )
        return found

    return decompress


def _inflate(_: type[Codec], data: bytes, max_bytes: int) -> bytes:
    return _read_whole(zlib.decompressobj(-15), data, max_bytes)  # no header (RFC 1951)


def _bunzip(_: type[Codec], data: bytes, max_bytes: int) -> bytes:
    return _read_whole(bz2.BZ2Decompressor(), data, max_bytes)


def _read_whole(inflater: Any, data: bytes, max_bytes: int) -> bytes:
    found: bytes = inflater.decompress(data, max_bytes)
    if not inflater.eof and len(found) < max_bytes:
        raise ValueError("a block of an Avro file ends in the middle")
    return found


def _unzstd(_: type[Codec], data: bytes, max_bytes: int) -> bytes:
    from zstandard import ZstdDecompressor

    with ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        return reader.read(max_bytes)


def _unsnap(codec: type[Codec], data: bytes, max_bytes: int) -> bytes | None:
    """Return the bytes; None if they are announced to be more, which takes memory at once."""
    announced = 0
    for position, byte in enumerate(data[:5]):
        announced |= (byte & 0x7F) << 7 * position
        if byte < 0x80:  # the last byte of the number  # noqa: PLR2004
            break
    return None if announced >= max_bytes else codec.decompress(data)


_INFLATERS: dict[AvroCompressionCodec, Callable[[type[Codec], bytes, int], bytes | None]] = {
    "bzip2": _bunzip,
    "deflate": _inflate,
    "snappy": _unsnap,
    "zstandard": _unzstd,
}
