"""From Arrow rows to record batches, each of one partition and of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.kafka.records.checksum import crc32c
from krishiv_spark.kafka.records.codecs import deflate
from krishiv_spark.kafka.records.layout import (
    ATTRIBUTES_AT,
    CODECS,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    MAX_INT32,
    TRANSACTIONAL,
)
from krishiv_spark.kafka.records.rows import KernelTable, RecordColumns

__all__ = ["Accumulator", "EncodedBatch", "next_sequence"]

_FIRST_BYTES = 4096

# More than any topic has: a table of them is kept for each batch of rows.
_PARTITIONS = 2**20


def next_sequence(base: int, count: int) -> int:
    """The base sequence of the batch that follows one of so many records.

    Sequences begin again at 0 after 2 147 483 647 (``DefaultRecordBatch.incrementSequence``).
    """
    return (base + count) & MAX_INT32


@dataclass(frozen=True)
class EncodedBatch:
    """Records of one batch, which no more are added to.

    Attributes:
        partition: Where it goes.
        count: Number of records.
        codec: Codec that its records are compressed with, by its number in Kafka.
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
        """Bytes of the whole batch, which the broker compares with ``max.message.bytes``."""
        return HEADER_BYTES + len(self.records)

    def to_bytes(
        self,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        *,
        transactional: bool = False,
    ) -> bytes:
        """The batch as it is sent.

        Args:
            producer_id: Of an idempotent or transactional producer; -1 for none.
            producer_epoch: The epoch that came with the producer id; -1 for none.
            base_sequence: Sequence of the first record.
            transactional: Whether the batch belongs to a transaction.
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
class _Open:
    """A batch that records are added to.

    Attributes:
        out: Its bytes, as far as they are needed yet.
        state: How far it has been written.
    """

    out: NDArray[np.uint8]
    state: NDArray[np.int64] = field(default_factory=lambda: np.zeros(5, np.int64))


class Accumulator:
    """Collects rows into batches of records, one open batch for each partition.

    Args:
        batch_bytes: Size of a batch before compression. A record that is larger makes one alone.
        codec: "none", "gzip", "snappy", "lz4" or "zstd".
        level: The codec's own measure of effort; None for its default.

    Raises:
        OptionError: If there is no such codec.
    """

    def __init__(
        self, batch_bytes: int = 2**20, codec: str = "none", level: int | None = None
    ) -> None:
        if codec not in CODECS:
            raise OptionError(f"there is no codec {codec!r}: choose from {', '.join(CODECS)}")
        self._room = max(batch_bytes - HEADER_BYTES, 1)
        self._codec = codec
        self._level = level
        self._open: dict[int, _Open] = {}

    @property
    def buffered_bytes(self) -> int:
        """Memory that open batches take."""
        return sum(batch.out.nbytes for batch in self._open.values())

    def add(self, columns: RecordColumns, partitions: NDArray[np.int32]) -> Iterator[EncodedBatch]:
        """Add rows, in their order; the batches that are full by then come out.

        Everything has been added only when the iterator is exhausted.

        Raises:
            SchemaError: If a row cannot be a record.
        """
        from krishiv_spark.kafka.records.write import sort

        table = KernelTable.of(columns)
        partitions = np.array(partitions, np.int32)  # one type for every kind of input
        ends = _ends(partitions, len(table.stamps))
        order = np.empty(len(partitions), np.int64)
        sort(partitions, ends[:-1].copy(), order)
        for partition in np.flatnonzero(np.diff(ends)).tolist():
            yield from self._add(partition, table, order[ends[partition] : ends[partition + 1]])

    def _add(
        self, partition: int, table: KernelTable, order: NDArray[np.int64]
    ) -> Iterator[EncodedBatch]:
        from krishiv_spark.kafka.records.write import append

        done = 0
        while True:
            batch = self._open.get(partition) or self._begin(partition, _FIRST_BYTES)
            done = append(
                order, done, len(order), table.rows, table.headers, table.stamps, *table.data,
                batch.out, batch.state,
            )  # fmt: skip
            if done == len(order):
                return
            if self._full(batch):
                yield self._seal(partition)
                # A partition that has filled one batch gets the next in its full size: growing
                # copies.
                self._begin(partition, self._room)
            else:
                self._grow(batch)

    def _begin(self, partition: int, size: int) -> _Open:
        batch = _Open(np.empty(min(size, self._room), np.uint8))
        self._open[partition] = batch
        return batch

    def _full(self, batch: _Open) -> bool:
        from krishiv_spark.kafka.records.write import COUNT, NEED, USED

        return bool(batch.state[COUNT] and batch.state[USED] + batch.state[NEED] > self._room)

    def _grow(self, batch: _Open) -> None:
        from krishiv_spark.kafka.records.write import NEED, USED

        used = int(batch.state[USED])
        least = used + int(batch.state[NEED])
        larger = np.empty(max(least, min(4 * len(batch.out), self._room)), np.uint8)
        larger[:used] = batch.out[:used]
        batch.out = larger

    def flush(self) -> Iterator[EncodedBatch]:
        """Seal all open batches, by partition."""
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
            # A batch says which codec it has, so one that would grow goes as it is.
            if len(packed) < len(records):
                records = memoryview(packed)
            else:
                codec = "none"
        return EncodedBatch(partition, count, CODECS.index(codec), base, newest, records)


def _ends(partitions: NDArray[np.int32], count: int) -> NDArray[np.int64]:
    """Where the rows of each partition begin in the order by partition, and where the last end."""
    if len(partitions) != count:
        raise SchemaError(f"{len(partitions)} partitions are given for {count} rows")
    if count and not 0 <= int(partitions.min()) <= int(partitions.max()) < _PARTITIONS:
        raise SchemaError(f"a partition is not among 0 to {_PARTITIONS - 1}: choose another")
    ends = np.zeros(np.max(partitions, initial=0) + 2, np.int64)
    np.cumsum(np.bincount(partitions, minlength=len(ends) - 1), out=ends[1:])
    return ends
