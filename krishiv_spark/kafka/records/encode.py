"""The encoder of Arrow rows to record batches, and the partition of each row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.kafka.records.batch_format import (
    ATTRIBUTES_AT,
    CODECS,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    MAX_INT32,
    TRANSACTIONAL,
)
from krishiv_spark.kafka.records.checksum import crc32c
from krishiv_spark.kafka.records.codecs import deflate

__all__ = [
    "Accumulator",
    "EncodedBatch",
    "KernelTable",
    "RecordColumns",
    "next_sequence",
    "partition_rows",
    "view_bytes",
]

_FIRST_BYTES = 4096

# Limit of partitions: more than any topic has, since each batch of rows needs a table of them.
_PARTITIONS = 2**20


def next_sequence(base: int, count: int) -> int:
    """Return the base sequence of the batch after one with `count` records.

    Sequences continue at 0 after 2 147 483 647 (``DefaultRecordBatch.incrementSequence``).
    """
    return (base + count) & MAX_INT32


@dataclass(frozen=True)
class EncodedBatch:
    """The records of one complete batch.

    Attributes:
        partition: The partition that it is sent to.
        count: Number of records.
        codec: Number of the codec in Kafka.
        base_timestamp: Timestamp of the first record, milliseconds.
        max_timestamp: Newest timestamp, milliseconds.
        records: The records, compressed, without the batch's header.
    """

    partition: int
    count: int
    codec: int
    base_timestamp: int
    max_timestamp: int
    records: memoryview

    @property
    def size(self) -> int:
        """Size of the whole batch, which the broker compares with ``max.message.bytes``."""
        return HEADER_BYTES + len(self.records)

    def to_bytes(
        self,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        *,
        transactional: bool = False,
    ) -> bytes:
        """Return the bytes of the batch.

        Args:
            producer_id: Id of an idempotent or transactional producer; -1 for none.
            producer_epoch: Epoch of the producer id; -1 for none.
            base_sequence: Sequence of the first record.
            transactional: True if the batch belongs to a transaction.
        """
        length = self.size - LOG_OVERHEAD
        attributes = self.codec | (TRANSACTIONAL if transactional else 0)
        rest = (
            attributes, self.count - 1, self.base_timestamp, self.max_timestamp,
            producer_id, producer_epoch, base_sequence, self.count,
        )  # fmt: skip
        header = HEADER.pack(0, length, -1, MAGIC, 0, *rest)
        crc = crc32c(self.records, crc32c(header[ATTRIBUTES_AT:]))
        return b"".join((HEADER.pack(0, length, -1, MAGIC, crc, *rest), self.records))


@dataclass
class _OpenBatch:
    """A batch to which records are added.

    Attributes:
        out: Its bytes; they grow with the records.
        state: The state of `write_kernels.append_records`.
    """

    out: NDArray[np.uint8]
    state: NDArray[np.int64] = field(default_factory=lambda: np.zeros(5, np.int64))


class Accumulator:
    """An accumulator of rows to batches of records, with one open batch for each partition.

    Args:
        batch_bytes: Maximum size of a batch before compression. A larger record makes a separate
            batch.
        codec: "none", "gzip", "snappy", "lz4" or "zstd".
        level: The codec's compression level; None for its default.

    Raises:
        OptionError: If the codec does not exist.
    """

    def __init__(
        self, batch_bytes: int = 2**20, codec: str = "none", level: int | None = None
    ) -> None:
        if codec not in CODECS:
            raise OptionError(f"there is no codec {codec!r}: choose from {', '.join(CODECS)}")
        self._room = max(batch_bytes - HEADER_BYTES, 1)
        self._codec = codec
        self._level = level
        self._open: dict[int, _OpenBatch] = {}

    @property
    def buffered_bytes(self) -> int:
        """Memory of the open batches, in bytes."""
        return sum(batch.out.nbytes for batch in self._open.values())

    def add(self, columns: RecordColumns, partitions: NDArray[np.int32]) -> Iterator[EncodedBatch]:
        """Add rows in their order, and yield the batches that become full.

        All rows are added only when the iterator is exhausted.

        Raises:
            SchemaError: If a row cannot be a record.
        """
        from krishiv_spark.kafka.records.write_kernels import sort_by_partition

        table = KernelTable.from_columns(columns)
        partitions = np.array(partitions, np.int32)  # one type for every kind of input
        ends = _count_rows(partitions, len(table.stamps))
        order = np.empty(len(partitions), np.int64)
        sort_by_partition(partitions, ends[:-1].copy(), order)
        for partition in np.flatnonzero(np.diff(ends)).tolist():
            yield from self._add(partition, table, order[ends[partition] : ends[partition + 1]])

    def _add(
        self, partition: int, table: KernelTable, order: NDArray[np.int64]
    ) -> Iterator[EncodedBatch]:
        from krishiv_spark.kafka.records.write_kernels import append_records

        done = 0
        while True:
            batch = self._open.get(partition) or self._open_batch(partition, _FIRST_BYTES)
            done = append_records(
                order, done, len(order), table.rows, table.headers, table.stamps, *table.data,
                batch.out, batch.state,
            )  # fmt: skip
            if done == len(order):
                return
            if self._is_full(batch):
                yield self._seal(partition)
                # A partition that has filled a batch gets the next one in full size, since growing
                # a batch copies it.
                self._open_batch(partition, self._room)
            else:
                self._grow(batch)

    def _open_batch(self, partition: int, size: int) -> _OpenBatch:
        batch = _OpenBatch(np.empty(min(size, self._room), np.uint8))
        self._open[partition] = batch
        return batch

    def _is_full(self, batch: _OpenBatch) -> bool:
        from krishiv_spark.kafka.records.write_kernels import COUNT, NEED, USED

        return bool(batch.state[COUNT] and batch.state[USED] + batch.state[NEED] > self._room)

    def _grow(self, batch: _OpenBatch) -> None:
        from krishiv_spark.kafka.records.write_kernels import NEED, USED

        used = int(batch.state[USED])
        least = used + int(batch.state[NEED])
        larger = np.empty(max(least, min(4 * len(batch.out), self._room)), np.uint8)
        larger[:used] = batch.out[:used]
        batch.out = larger

    def flush(self) -> Iterator[EncodedBatch]:
        """Seal all open batches, in the order of their partitions."""
        for partition in sorted(self._open):
            if self._open[partition].state.any():
                yield self._seal(partition)
        self._open.clear()

    def _seal(self, partition: int) -> EncodedBatch:
        batch = self._open.pop(partition)
        used, count, base, newest, _ = batch.state.tolist()
        records = batch.out.data[:used]
        codec = self._codec
        if codec != "none":
            packed = deflate(codec, self._level, records)
            # The codec is a property of each batch, so a batch that would grow is not compressed.
            if len(packed) < len(records):
                records = memoryview(packed)
            else:
                codec = "none"
        return EncodedBatch(partition, count, CODECS.index(codec), base, newest, records)


def _count_rows(partitions: NDArray[np.int32], count: int) -> NDArray[np.int64]:
    """Return the start of each partition's rows in the order by partition, and the end."""
    if len(partitions) != count:
        raise SchemaError(f"{len(partitions)} partitions are given for {count} rows")
    if count and not 0 <= int(partitions.min()) <= int(partitions.max()) < _PARTITIONS:
        raise SchemaError(f"a partition is not among 0 to {_PARTITIONS - 1}: choose another")
    ends = np.zeros(np.max(partitions, initial=0) + 2, np.int64)
    np.cumsum(np.bincount(partitions, minlength=len(ends) - 1), out=ends[1:])
    return ends


# Limit of timestamps, 73 million years from 1970: the difference of two always fits.
_FAR_MS = 2**61 - 1

_NOTHING = np.frombuffer(b"", np.uint8)


@dataclass(frozen=True)
class RecordColumns:
    """The columns of rows to encode.

    Attributes:
        value: Binary or string, with nulls (tombstones).
        key: Binary or string, with nulls; None if no row has one.
        headers: Lists of structs of a string ``key`` and a binary ``value``; None if no row has
            any. A null list counts as an empty one; a key must not be null, a value may be.
        timestamps: Milliseconds since 1970 UTC, one for each row or one for all.
    """

    value: pa.Array
    key: pa.Array | None
    headers: pa.Array | None
    timestamps: NDArray[np.int64] | int


@dataclass(frozen=True)
class KernelTable:
    """The input of the kernels.

    Attributes:
        rows: Positions of key, value and headers of each row, and their sizes.
        headers: Positions of key and value of each header, and their sizes.
        stamps: Timestamp of each row.
        data: Bytes of keys, values, keys of headers and values of headers.
    """

    rows: NDArray[np.int32]
    headers: NDArray[np.int32]
    stamps: NDArray[np.int64]
    data: tuple[NDArray[np.uint8], ...]

    @classmethod
    def from_columns(cls, columns: RecordColumns) -> KernelTable:
        """Return views of columns, without copying them.

        Raises:
            SchemaError: If the key of a header is null, a timestamp is millions of years away, or
                columns have other types or lengths.
        """
        count = len(columns.value)
        rows = np.zeros((6, count), np.int32)
        # Without a column of keys, all keys are null.
        rows[1] = -1
        keys = _NOTHING
        if columns.key is not None:
            _check_length(columns.key, count, "key")
            keys = view_bytes(columns.key, rows[0:2], "key")
        values = view_bytes(columns.value, rows[2:4], "value")
        headers, *rest = _view_headers(columns.headers, rows[4:6])
        return cls(rows, headers, _to_stamps(columns.timestamps, count), (keys, values, *rest))


def _check_length(column: Any, count: int, name: str) -> None:
    if len(column) != count:
        raise SchemaError(f"the column {name!r} has {len(column)} rows, but 'value' has {count}")


def view_bytes(column: pa.Array, spans: NDArray[np.int32], name: str) -> NDArray[np.uint8]:
    """Return the bytes of a binary or string column, and fill in the position of each value.

    Args:
        column: One chunk, of a type that can be cast to Arrow's binary.
        spans: Filled with the start and size of each value; the size is -1 for null.
        name: Name of the column in messages.

    Raises:
        SchemaError: If it has another type.
    """
    column = cast_column(column, pa.binary(), name)
    data = _view_buffer(column.buffers()[2], np.uint8)
    _fill_spans(column, spans, len(data), name)
    if column.null_count:
        spans[1][_find_nulls(column)] = -1
    return data


def _fill_spans(column: Any, spans: NDArray[np.int32], reach: int, name: str) -> None:
    """Fill in starts and sizes of values, and check them: kernels do not compare them again."""
    ends = _view_ends(column)
    spans[0] = ends[:-1]
    np.subtract(ends[1:], ends[:-1], out=spans[1])
    if ends[0] < 0 or ends[-1] > reach or np.min(spans[1], initial=0) < 0:
        raise SchemaError(
            f"the column {name!r} is not a valid Arrow array: its offsets are damaged"
        )


def cast_column(column: pa.Array, kind: pa.DataType, name: str) -> Any:
    """Cast a column to another type.

    Raises:
        SchemaError: If a value does not fit the type.
    """
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise SchemaError(
            f"the column {name!r} has the type {column.type}, which is not a {kind}: {error}"
        ) from error


def _view_ends(column: pa.Array) -> NDArray[np.int32]:
    """Return the start of each value, and the end of the last one."""
    ends = _view_buffer(column.buffers()[1], np.int32)
    return (
        ends[column.offset : column.offset + len(column) + 1]
        if len(ends)
        else np.zeros(1, np.int32)
    )


def _find_nulls(column: pa.Array) -> NDArray[np.bool_]:
    bits = np.unpackbits(_view_buffer(column.buffers()[0], np.uint8), bitorder="little")
    missing: NDArray[np.bool_] = bits[column.offset : column.offset + len(column)] == 0
    return missing


def _view_buffer(buffer: Any, kind: Any) -> NDArray[Any]:
    if buffer is None or not buffer.size:
        return np.frombuffer(b"", kind)
    view = np.frombuffer(buffer, kind, buffer.size // np.dtype(kind).itemsize)
    view.flags.writeable = False  # one type for every kind of input, so one compiled kernel
    return view


def _view_headers(column: pa.Array | None, spans: NDArray[np.int32]) -> tuple[NDArray[Any], ...]:
    """Return the positions of keys and values of headers, and their bytes."""
    if column is None or column.null_count == len(column):
        return np.empty((4, 0), np.int32), _NOTHING, _NOTHING
    _check_length(column, spans.shape[1], "headers")
    kind = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
    lists = cast_column(column, kind, "headers")
    pairs = lists.values
    _fill_spans(lists, spans, len(pairs), "headers")
    if lists.null_count:
        spans[1][_find_nulls(lists)] = 0
    inside = np.empty((4, len(pairs)), np.int32)
    keys = view_bytes(pairs.field("key"), inside[0:2], "headers.key")
    values = view_bytes(pairs.field("value"), inside[2:4], "headers.value")
    # A null header has no key either.
    if pairs.null_count:
        inside[1][_find_nulls(pairs)] = -1
    _check_keys(spans, inside[1] < 0)
    return inside, keys, values


def _check_keys(spans: NDArray[np.int32], missing: NDArray[np.bool_]) -> None:
    for header in np.flatnonzero(missing).tolist():
        rows = (spans[0] <= header) & (header < spans[0] + spans[1])
        if rows.any():
            raise SchemaError(
                f"a header of row {int(rows.argmax())} has no key, which Kafka does not allow: "
                "give it one, or leave the header out"
            )


def _to_stamps(given: NDArray[np.int64] | int, count: int) -> NDArray[np.int64]:
    stamps = np.full(count, given, np.int64)
    if isinstance(given, np.ndarray):
        _check_length(given, count, "timestamp")
    far = (stamps > _FAR_MS) | (stamps < -_FAR_MS)
    if far.any():
        row = int(far.argmax())
        raise SchemaError(f"row {row} has a timestamp of {stamps[row]} ms, which has no place")
    return stamps


def partition_rows(
    keys: pa.Array | None,
    given: pa.Array | None,
    count: int,
    sticky: int,
    nameable: int | None = None,
) -> NDArray[np.int32]:
    """Return the partition of each row: the given one, or that of its key, or the sticky one.

    Keys are hashed as in Java's client, so that all producers agree (KIP-480 for other rows).

    Args:
        keys: Binary or string, with nulls; None if no row has a key.
        given: Whole numbers, with nulls; None if no row names its partition.
        count: Number of partitions that keys are spread over.
        sticky: Partition of rows with neither.
        nameable: Number of partitions of the topic, if it differs from `count`.

    Raises:
        SchemaError: If a row names a partition that the topic does not have, or a column has
            another type.
        ValueError: If there are neither keys nor given partitions.
    """
    some = keys if keys is not None else given
    if some is None:
        raise ValueError("the number of rows is not known: give keys or partitions")
    out = np.full(len(some), sticky, np.int32)
    if keys is not None:
        _assign_by_key(keys, count, out)
    if given is not None:
        _assign_named(given, nameable or count, out)
    return out


def _assign_by_key(keys: pa.Array, count: int, out: NDArray[np.int32]) -> None:
    from krishiv_spark.kafka.records.write_kernels import choose_partitions

    spans = np.empty((2, len(keys)), np.int32)
    data = view_bytes(keys, spans, "key")
    choose_partitions(data, spans[0], spans[1], count, out)


def _assign_named(given: pa.Array, count: int, out: NDArray[np.int32]) -> None:
    named = given.is_valid().to_numpy(zero_copy_only=False)
    numbers = cast_column(given, pa.int64(), "partition").drop_null().to_numpy()
    wrong = (numbers < 0) | (numbers >= count)
    if wrong.any():
        raise SchemaError(
            f"a row names partition {numbers[wrong.argmax()]}, but the topic has the partitions "
            f"0 to {count - 1}"
        )
    out[named] = numbers
