"""Arrow columns, in Spark's order and types, over records that kernels have found."""

from __future__ import annotations

import codecs
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.kafka.records.wanted import RecordRange

__all__ = ["SCHEMA", "ScannedRecords", "find_far_time", "record_batch"]

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", pa.list_(_HEADER)),
    ]
)

_BYTES_AT_ONCE = 2**20

_MICROSECONDS = 1000
_MOST_MILLISECONDS = (2**63 - 1) // _MICROSECONDS


@dataclass(frozen=True)
class ScannedRecords:
    """Records whose bytes have been found.

    Attributes:
        source: The decompressed batches, one after the other.
        offsets: Offset of each.
        stamps: Timestamp of each, milliseconds since 1970 UTC.
        kinds: Type of each timestamp: 0 given by the producer, 1 by the broker.
        spans: Where key, value and headers of each lie; it has room for more rows.
    """

    source: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    stamps: NDArray[np.int64]
    kinds: NDArray[np.int32]
    spans: NDArray[np.int32]

    def span(self, column: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Beginnings and sizes of what `scan` numbers so."""
        begins, sizes = self.spans[column : column + 2, : len(self.offsets)]
        return begins, sizes


def record_batch(rows: ScannedRecords, wanted: RecordRange, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema, which is a part of `SCHEMA`; `find_far_time` finds nothing."""
    columns = [_BUILDERS[name](rows, wanted) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _key(rows: ScannedRecords, _: RecordRange) -> pa.Array:
    from krishiv_spark.kafka.records.scan import KEY

    return _bytes(rows.source, *rows.span(KEY), pa.binary())


def _value(rows: ScannedRecords, _: RecordRange) -> pa.Array:
    from krishiv_spark.kafka.records.scan import VALUE

    return _bytes(rows.source, *rows.span(VALUE), pa.binary())


def _topic(rows: ScannedRecords, wanted: RecordRange) -> pa.Array:
    count = len(rows.offsets)
    # In lengths that are powers of two, a few columns serve batches of all lengths.
    return _repeated(wanted.topic, 1 << (count - 1).bit_length()).slice(0, count)


@functools.lru_cache(maxsize=32)
def _repeated(topic: str, count: int) -> pa.Array:
    text = topic.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(text * count)]
    )


def _partition(rows: ScannedRecords, wanted: RecordRange) -> pa.Array:
    return _numbers(np.full(len(rows.offsets), wanted.partition, np.int32), pa.int32())


def _offset(rows: ScannedRecords, _: RecordRange) -> pa.Array:
    return _numbers(rows.offsets, pa.int64())


def find_far_time(rows: ScannedRecords) -> int | None:
    """Return the first row whose timestamp Spark cannot hold; None if there is none."""
    far = (rows.stamps > _MOST_MILLISECONDS) | (rows.stamps < -_MOST_MILLISECONDS)
    return int(far.argmax()) if far.any() else None


def _timestamp(rows: ScannedRecords, _: RecordRange) -> pa.Array:
    return _numbers(rows.stamps * _MICROSECONDS, SCHEMA.field("timestamp").type)


def _kind(rows: ScannedRecords, _: RecordRange) -> pa.Array:
    return _numbers(rows.kinds, pa.int32())


def _headers(rows: ScannedRecords, _: RecordRange) -> pa.Array:
    from krishiv_spark.kafka.records.scan import HEADERS, KEY, VALUE, unfold

    counts = rows.span(HEADERS)[1]
    offsets = _ends(counts)
    total = int(offsets[-1])
    if not total:
        return pa.nulls(len(counts), SCHEMA.field("headers").type)
    inside = np.empty((4, total), np.int32)
    unfold(rows.source, rows.spans, len(counts), inside)
    keys = _bytes(rows.source, inside[KEY], inside[KEY + 1], pa.string())
    values = _bytes(rows.source, inside[VALUE], inside[VALUE + 1], pa.binary())
    pairs = pa.StructArray.from_arrays([_text(keys), values], fields=list(_HEADER))
    buffers = [_bits(counts > 0), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(
        SCHEMA.field("headers").type, len(counts), buffers, children=[pairs]
    )


def _text(keys: pa.Array) -> pa.Array:
    """Keys of headers as Java reads them: what is no UTF-8 becomes U+FFFD."""
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        return _replaced(keys)
    return keys


def _replaced(keys: pa.Array) -> pa.Array:
    """Decode and encode again, piece by piece: a text in memory is larger than its bytes."""
    text = bytearray()
    ends = np.zeros(len(keys) + 1, np.int32)
    for row, key in enumerate(keys.cast(pa.binary())):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        data = memoryview(key.as_buffer())
        for at in range(0, len(data), _BYTES_AT_ONCE):
            text += decoder.decode(data[at : at + _BYTES_AT_ONCE]).encode()
        text += decoder.decode(b"", final=True).encode()
        ends[row + 1] = len(text)
    return pa.Array.from_buffers(
        pa.string(), len(keys), [None, pa.py_buffer(ends), pa.py_buffer(text)]
    )


def _bytes(
    source: NDArray[np.uint8],
    begins: NDArray[np.int32],
    sizes: NDArray[np.int32],
    kind: pa.DataType,
) -> pa.Array:
    from krishiv_spark.kafka.records.scan import gather

    present = sizes >= 0
    count = int(np.count_nonzero(present))
    if not count:
        return pa.nulls(len(sizes), kind)
    offsets = _ends(sizes if count == len(sizes) else np.maximum(sizes, 0))
    data = pa.allocate_buffer(int(offsets[-1]))
    gather(source, begins, offsets, np.frombuffer(data, np.uint8))
    valid = None if count == len(sizes) else _bits(present)
    return pa.Array.from_buffers(kind, len(sizes), [valid, pa.py_buffer(offsets), data])


def _numbers(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    # pa.array(), pa.scalar() and pa.repeat() import pandas, which takes half a second.
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _ends(sizes: NDArray[np.int32]) -> NDArray[np.int32]:
    ends = np.empty(len(sizes) + 1, np.int32)
    ends[0] = 0
    np.cumsum(sizes, out=ends[1:])
    return ends


def _bits(present: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(present, bitorder="little"))


_BUILDERS: dict[str, Any] = {
    "key": _key,
    "value": _value,
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "timestampType": _kind,
    "headers": _headers,
}
