"""Batches of records that become many times as large as they are on the wire."""

import struct

import pyarrow as pa
from batches import CODECS, move_batch, varint
from crc32c import crc32c

__all__ = [
    "batch",
    "compress_as_stream",
    "compress_as_xerial",
    "compress_at_once",
    "headers",
    "make_value_records",
    "move_batch",
    "record",
]

_HEADER = struct.Struct(">qiibIhiqqqhii")


def batch(records, count, *, base=0, codec="none", packed=None, last_delta=None):
    """A batch of records as they are on the wire, with a checksum that fits.

    Args:
        records: The records, not compressed.
        count: How many it says that there are.
        base: Offset of the first one.
        codec: By which they are compressed.
        packed: The compressed records, where another compressor made them.
        last_delta: Of the offsets; that of `count` records by default.
    """
    data = packed if packed is not None else compress_at_once(records, codec)
    delta = count - 1 if last_delta is None else last_delta
    head = _HEADER.pack(
        base, 49 + len(data), 0, 2, 0, CODECS.index(codec), delta, 1000, 1000, -1, -1, -1, count
    )
    out = bytearray(head + data)
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return bytes(out)


def compress_at_once(records, codec):
    return records if codec == "none" else pa.compress(records, codec=codec, asbytes=True)


def compress_as_stream(records, codec):
    """Compressed as a stream, whose frame does not announce how large the records are."""
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, codec) as stream:
        stream.write(records)
    return out.getvalue().to_pybytes()


def record(delta, value=b"", headers=b"\x00", stamp=0):
    body = b"\x00" + varint(stamp) + varint(delta) + b"\x01" + varint(len(value)) + value + headers
    return varint(len(body)) + body


def make_value_records(count, size):
    """So many records, each of so many bytes."""
    return b"".join(record(number, bytes(size)) for number in range(count))


def headers(count, key=b""):
    """One record with so many headers."""
    one = varint(len(key)) + key + b"\x01"
    return record(0, b"", varint(count) + one * count)


XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def compress_as_xerial(records, block=32 * 1024):
    """Snappy as Java's client frames it."""
    parts = [
        pa.compress(records[at : at + block], codec="snappy", asbytes=True)
        for at in range(0, len(records), block)
    ]
    return XERIAL + b"".join(struct.pack(">i", len(part)) + part for part in parts)
