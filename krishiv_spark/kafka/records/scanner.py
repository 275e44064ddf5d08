"""Records in batches: decompressed in pieces, located by the kernels, and built into Arrow columns.

A piece is about 32 MiB. A batch with more bytes after decompression is never in memory as a whole,
unless it consists of one record or of one block of snappy.
"""

from __future__ import annotations

import codecs
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.records.batch_format import (
    AT,
    ATTRIBUTES,
    BASE,
    BATCH,
    BEGIN,
    CODEC_MASK,
    CODECS,
    COUNT,
    END,
    GOOD,
    HEADERS,
    KEY,
    LEFT_OVER,
    MALFORMED,
    RECORD,
    RECORD_BYTES,
    ROWS,
    VALUE,
)
from krishiv_spark.kafka.records.codecs import InflateError, Inflation

__all__ = [
    "FAULTS",
    "INFLATED_BYTES",
    "SCHEMA",
    "BadBatchError",
    "BatchPolicy",
    "DeadBatch",
    "RecordError",
    "RecordRange",
    "ScannedRecords",
    "Scanner",
    "Window",
    "build_record_batch",
    "find_far_time",
]

INFLATED_BYTES = 512 * 2**20
"""Default limit: five times a batch of 1 MB, a broker's default maximum, that was compressed to a
hundredth."""


class RecordError(KrishivError):
    """Records from Kafka are damaged, or in an unsupported format."""


@dataclass(frozen=True)
class RecordRange:
    """Offsets of one partition.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition.
        start: First offset.
        end: Last offset, exclusive.
    """

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class DeadBatch:
    """A batch of records that cannot be delivered, as a dead letter describes it.

    The first four attributes identify it: a repeated task, or another task that reads another part
    of the same batch, makes an equal one.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition.
        first_offset: Offset at which the batch starts.
        last_offset: Its last offset.
        size: Its size as the broker stores it, in bytes.
        reason: The fault, without data of the records.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    size: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: the batch of offsets {self.first_offset} to "
            f"{self.last_offset}, {self.size} bytes, cannot be delivered: {self.reason}"
        )


@dataclass(frozen=True)
class BatchPolicy:
    """The maximum size of a batch, and the action for a batch that cannot be delivered.

    The decision depends only on the batch and the wanted columns, so that it is the same whenever
    the batch is read again.

    Attributes:
        inflated_bytes: Maximum size of the records of one batch after decompression, and of the
            headers of one record in memory; at most 1 GiB.
        skip: A function that is called with each skipped batch; None if such a batch is an error.
    """

    inflated_bytes: int = INFLATED_BYTES
    skip: Callable[[DeadBatch], None] | None = None


# Maximum number of rows of an Arrow batch, and approximate size of a piece.
_ROWS = 2**16
_ROOM = 2**25

# Maximum number of bytes of a varint.
_VARINT = 10

HEADER_MEMORY = 32
"""Memory for a header while its row is built, in bytes, besides its own bytes.

Four numbers of 32 bits for the positions, two for the offsets in Arrow, and the temporary arrays of
NumPy.
"""

FAULTS = (
    "is good",
    "is in message format v{magic}; the source reads v2, which Kafka 0.11 and later write",
    "is in message format v{magic}, which is newer than v2",
    "is shorter than its own header",
    "has offsets that are negative or too large",
    "starts at an offset before the end of the previous batch",
    "has a number of records that its offsets have no place for",
    "is compressed with a codec that is not known",
    "is damaged: a length or number in it does not fit its bytes",
    "has an offset that is not after the one before it, or after that of the whole batch",
    "has a timestamp of more than 64 bits",
    "is the last one, but bytes are left over",
    "has headers that take more memory than the {most} bytes that 'maxInflatedBytes' allows",
)
"""The faults by their codes in `batch_format`."""


class BadBatchError(Exception):
    """A batch cannot be delivered.

    Args:
        row: Its row in the table.
        offset: Offset of the bad record; -1 for a fault of the whole batch.
        reason: The fault, without data of the records.
    """

    def __init__(self, row: int, offset: int, reason: str) -> None:
        super().__init__(row, offset, reason)
        self.row = row
        self.offset = offset
        self.reason = reason


@dataclass
class Window:
    """Consecutive batches with decompressed records.

    Attributes:
        data: The bytes of the records; `batches` has their positions.
        batches: Table of the batches.
        rest: The decompression of the last batch, if only a piece of it was decompressed so far.
        large: The row of that batch in the table of the response.
    """

    data: Any
    batches: NDArray[np.int64]
    rest: Inflation | None = None
    large: NDArray[np.int64] | None = None

    @property
    def source(self) -> NDArray[np.uint8]:
        """Return the bytes for kernels."""
        found = np.frombuffer(self.data, np.uint8)
        found.flags.writeable = False  # one type for every kind of input, so one compiled kernel
        return found

    def count_missing(self, state: NDArray[np.int64]) -> int:
        """Return the number of missing bytes of the record at which parsing stopped."""
        if self.rest is None or state[BATCH] < len(self.batches) - 1:
            return 0
        at, end = int(state[AT]), int(self.batches[-1, END])
        size, shift = 0, 0
        for byte in self.data[at : min(at + _VARINT, end)]:
            size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
            if byte < 0x80:  # noqa: PLR2004  no more bytes follow
                return max((size >> 1) - (end - at), 0) if not size & 1 else 0
        return _VARINT if shift < 7 * _VARINT else 0

    def refill(self, state: NDArray[np.int64], least: int) -> None:
        """Replace the bytes before the record at which parsing stopped with the next ones.

        Raises:
            InflateError: If they are damaged or exceed the limit.
        """
        assert self.rest is not None
        arena = bytearray(self.data[state[AT] : self.batches[-1, END]])
        self.data = b""
        if not self.rest.read_into(arena, max(least, _ROOM)):
            self.rest = None
        self.data = arena
        state[AT] = self.batches[-1, BEGIN] = 0
        self.batches[-1, END] = len(arena)


@dataclass(frozen=True)
class Scanner:
    """A scanner of the records of batches in a response.

    Attributes:
        source: The response.
        wanted: The offsets to read.
        inflated_bytes: Maximum size of the records of a batch after decompression.
        has_headers: True to locate headers.
        has_time: True to check timestamps.
    """

    source: NDArray[np.uint8]
    wanted: RecordRange
    inflated_bytes: int
    has_headers: bool = False
    has_time: bool = False

    def open_window(self, table: NDArray[np.int64]) -> tuple[Window, int]:
        """Decompress the first batches of a table, about 32 MiB.

        Returns:
            The window, and the number of batches in it.

        Raises:
            BadBatchError: If the first one cannot be decompressed.
        """
        if not (table[:, ATTRIBUTES] & CODEC_MASK).any():
            return Window(self.source, table), len(table)
        arena, rest, past = bytearray(), None, 0
        rows: list[NDArray[np.int64]] = []
        while past < len(table) and rest is None and len(arena) < _ROOM:
            begin = len(arena)
            row = table[past].copy()  # not the whole table: there may be a window for each batch
            try:
                rest = self._inflate(row, arena)
            except InflateError as error:
                if not past:
                    raise BadBatchError(0, -1, f"the batch {error}") from error
                del arena[begin:]  # the next window starts with this batch
                break
            rows.append(row)
            past += 1
        large = None if rest is None else table[past - 1 : past]
        return Window(arena, np.array(rows), rest, large), past

    def _inflate(self, batch: NDArray[np.int64], arena: bytearray) -> Inflation | None:
        """Append the records of a batch to an arena, or a piece of them, and set their positions.

        Returns:
            The decompression, if there may be more.

        Raises:
            InflateError: If they are damaged or exceed the limit.
        """
        data = self.source.data[batch[BEGIN] : batch[END]]
        codec = CODECS[batch[ATTRIBUTES] & CODEC_MASK]
        batch[BEGIN] = len(arena)
        rest = None
        if codec == "none":
            arena += data
        else:
            inflation = Inflation(codec, data, self.inflated_bytes)
            if inflation.read_into(arena, _ROOM):
                rest = inflation
        batch[END] = len(arena)
        return rest

    def records(self, window: Window) -> Iterator[ScannedRecords]:
        """Locate the records of a window, in parts of at most 65 536 rows and about 32 MiB.

        A part is valid until the next one is requested.

        Raises:
            BadBatchError: If a batch cannot be delivered.
        """
        left = int(window.batches[:, COUNT].sum())
        state = np.zeros(5, np.int64)
        while state[BATCH] < len(window.batches):
            code, rows = self._parse(window, state, max(1, min(left, _ROWS)))
            if self.has_time:
                _check_times(rows, window.batches)
            missing = window.count_missing(state) if code == MALFORMED else 0
            if code != GOOD and not missing:
                raise self._make_fault(code, window, state)
            left -= len(rows.offsets)
            if len(rows.offsets):
                yield rows
            del rows
            if missing:
                _refill(window, state, missing)
        if window.rest is not None:
            self._check_end(window, state)

    def _parse(
        self, window: Window, state: NDArray[np.int64], size: int
    ) -> tuple[int, ScannedRecords]:
        from krishiv_spark.kafka.records import read_kernels

        source = window.source
        offsets, stamps = np.empty(size, np.int64), np.empty(size, np.int64)
        kinds, spans = np.empty(size, np.int32), np.empty((6, size), np.int32)
        code = read_kernels.parse_records(
            source, window.batches, state, self.wanted.start, self.wanted.end, _ROOM,
            HEADER_MEMORY if self.has_headers else 0, self.inflated_bytes,
            offsets, stamps, kinds, spans,
        )  # fmt: skip
        n = int(state[ROWS])
        return code, ScannedRecords(source, offsets[:n], stamps[:n], kinds[:n], spans)

    def _make_fault(self, code: int, window: Window, state: NDArray[np.int64]) -> BadBatchError:

        row = int(state[BATCH])
        count, size = window.batches[row, [COUNT, END]].tolist()
        size -= int(window.batches[row, BEGIN])
        reason = f"record {state[RECORD]} of the batch {FAULTS[code]}"
        if code == MALFORMED and count > size // RECORD_BYTES and window.large is None:
            reason = f"the batch claims to have {count} records, which do not fit into its "
            reason += f"{size} bytes"
        return BadBatchError(row, -1, reason.format(most=self.inflated_bytes))

    def _check_end(self, window: Window, state: NDArray[np.int64]) -> None:
        """Check that nothing follows the last record of the last batch."""
        last = len(window.batches) - 1
        state[AT] = window.batches[last, END]
        _refill(window, state, 1)
        if len(window.data):
            state[BATCH], state[RECORD] = last, window.batches[last, COUNT]
            raise self._make_fault(LEFT_OVER, window, state)


def _refill(window: Window, state: NDArray[np.int64], missing: int) -> None:
    try:
        window.refill(state, missing)
    except InflateError as error:
        raise BadBatchError(len(window.batches) - 1, -1, f"the batch {error}") from error


def _check_times(rows: ScannedRecords, batches: NDArray[np.int64]) -> None:
    row = find_far_time(rows)
    if row is not None:
        offset = int(rows.offsets[row])
        batch = int(np.searchsorted(batches[:, BASE], offset, "right")) - 1
        raise BadBatchError(
            batch,
            offset,
            f"the timestamp is {rows.stamps[row]} ms since 1970, which is out of Spark's range "
            "(are those nanoseconds?): exclude the column 'timestamp' to read the rest",
        )


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
    """Records whose parts are located.

    Attributes:
        source: The decompressed batches, one after the other.
        offsets: Offset of each record.
        stamps: Timestamp of each record, in milliseconds since 1970 UTC.
        kinds: Type of each timestamp: 0 if the producer has set it, 1 for the broker.
        spans: Positions of key, value and headers of each record; it has room for more rows.
    """

    source: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    stamps: NDArray[np.int64]
    kinds: NDArray[np.int32]
    spans: NDArray[np.int32]

    def get_span(self, column: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the starts and sizes of keys, values or headers."""
        begins, sizes = self.spans[column : column + 2, : len(self.offsets)]
        return begins, sizes


def build_record_batch(
    rows: ScannedRecords, wanted: RecordRange, schema: pa.Schema
) -> pa.RecordBatch:
    """Return the columns of a part of `SCHEMA`, for rows in which `find_far_time` found none."""
    columns = [_BUILDERS[name](rows, wanted) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _build_key(rows: ScannedRecords, _: RecordRange) -> pa.Array:
    return _gather_bytes(rows.source, *rows.get_span(KEY), pa.binary())


def _build_value(rows: ScannedRecords, _: RecordRange) -> pa.Array:
    return _gather_bytes(rows.source, *rows.get_span(VALUE), pa.binary())


def _build_topic(rows: ScannedRecords, wanted: RecordRange) -> pa.Array:
    count = len(rows.offsets)
    # With lengths that are powers of two, a few cached columns serve batches of all lengths.
    return _repeat_text(wanted.topic, 1 << (count - 1).bit_length()).slice(0, count)


@functools.lru_cache(maxsize=32)
def _repeat_text(topic: str, count: int) -> pa.Array:
    text = topic.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(text * count)]
    )


def _build_partition(rows: ScannedRecords, wanted: RecordRange) -> pa.Array:
    return _wrap_numbers(np.full(len(rows.offsets), wanted.partition, np.int32), pa.int32())


def _build_offset(rows: ScannedRecords, _: RecordRange) -> pa.Array:
    return _wrap_numbers(rows.offsets, pa.int64())


def find_far_time(rows: ScannedRecords) -> int | None:
    """Return the first row whose timestamp is out of Spark's range; None if there is none."""
    far = (rows.stamps > _MOST_MILLISECONDS) | (rows.stamps < -_MOST_MILLISECONDS)
    return int(far.argmax()) if far.any() else None


def _build_timestamp(rows: ScannedRecords, _: RecordRange) -> pa.Array:
    return _wrap_numbers(rows.stamps * _MICROSECONDS, SCHEMA.field("timestamp").type)


def _build_timestamp_type(rows: ScannedRecords, _: RecordRange) -> pa.Array:
    return _wrap_numbers(rows.kinds, pa.int32())


def _build_headers(rows: ScannedRecords, _: RecordRange) -> pa.Array:
    from krishiv_spark.kafka.records.read_kernels import locate_headers

    counts = rows.get_span(HEADERS)[1]
    offsets = _cumulate_sizes(counts)
    total = int(offsets[-1])
    if not total:
        return pa.nulls(len(counts), SCHEMA.field("headers").type)
    inside = np.empty((4, total), np.int32)
    locate_headers(rows.source, rows.spans, len(counts), inside)
    keys = _gather_bytes(rows.source, inside[KEY], inside[KEY + 1], pa.string())
    values = _gather_bytes(rows.source, inside[VALUE], inside[VALUE + 1], pa.binary())
    pairs = pa.StructArray.from_arrays([_decode_keys(keys), values], fields=list(_HEADER))
    buffers = [_pack_bits(counts > 0), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(
        SCHEMA.field("headers").type, len(counts), buffers, children=[pairs]
    )


def _decode_keys(keys: pa.Array) -> pa.Array:
    """Return keys of headers as Java reads them: invalid UTF-8 becomes U+FFFD."""
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        return _replace_invalid(keys)
    return keys


def _replace_invalid(keys: pa.Array) -> pa.Array:
    """Decode and encode keys piece by piece, since a text in memory is larger than its bytes."""
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


def _gather_bytes(
    source: NDArray[np.uint8],
    begins: NDArray[np.int32],
    sizes: NDArray[np.int32],
    kind: pa.DataType,
) -> pa.Array:
    from krishiv_spark.kafka.records.read_kernels import gather

    present = sizes >= 0
    count = int(np.count_nonzero(present))
    if not count:
        return pa.nulls(len(sizes), kind)
    offsets = _cumulate_sizes(sizes if count == len(sizes) else np.maximum(sizes, 0))
    data = pa.allocate_buffer(int(offsets[-1]))
    gather(source, begins, offsets, np.frombuffer(data, np.uint8))
    valid = None if count == len(sizes) else _pack_bits(present)
    return pa.Array.from_buffers(kind, len(sizes), [valid, pa.py_buffer(offsets), data])


def _wrap_numbers(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    # pa.array(), pa.scalar() and pa.repeat() import pandas, which takes half a second.
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _cumulate_sizes(sizes: NDArray[np.int32]) -> NDArray[np.int32]:
    ends = np.empty(len(sizes) + 1, np.int32)
    ends[0] = 0
    np.cumsum(sizes, out=ends[1:])
    return ends


def _pack_bits(present: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(present, bitorder="little"))


_BUILDERS: dict[str, Any] = {
    "key": _build_key,
    "value": _build_value,
    "topic": _build_topic,
    "partition": _build_partition,
    "offset": _build_offset,
    "timestamp": _build_timestamp,
    "timestampType": _build_timestamp_type,
    "headers": _build_headers,
}
