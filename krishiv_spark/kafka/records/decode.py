"""From what a Fetch brought of one partition to Arrow rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.kafka.records.checksum import means
from krishiv_spark.kafka.records.codecs import InflateError, inflate
from krishiv_spark.kafka.records.columns import SCHEMA, ScannedRecords, record_batch
from krishiv_spark.kafka.records.layout import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CODECS,
    CONTROL,
    HEADER_BYTES,
    MAGIC_AT,
    MAX_INT32,
    RECORD_BYTES,
)
from krishiv_spark.kafka.records.transactions import Aborted, aborted_rows, control_type
from krishiv_spark.kafka.records.wanted import RecordError, RecordRange

__all__ = ["INFLATED_BYTES", "Decoded", "decode"]

# Above what a broker takes by default (1 MB, compressed) even if it shrank to a hundredth.
INFLATED_BYTES = 512 * 2**20

# Size of one Arrow batch.
_ROWS = 2**16
_ROOM = 2**25

# Positions in what is parsed at once, which is up to `_ROOM` and one batch, have 31 bits.
_MOST_INFLATED = 2**30

_ALL = frozenset(SCHEMA.names)


@dataclass(frozen=True)
class Decoded:
    """Rows of one partition, and where to go on.

    Attributes:
        batches: The rows, in batches of at most 65 536 rows and about 32 MiB; decoded as they are
            asked for, and only once. Taking one raises `RecordError` if records are damaged.
        next_offset: Every wanted row before this offset is in the batches. It is the range's end
            when nothing else is wanted, and its start when no batch was complete.
        consumed: Bytes of complete batches. When it is 0 although there were bytes, the fetch was
            too small for one batch.
    """

    batches: Iterator[pa.RecordBatch]
    next_offset: int
    consumed: int


def decode(
    data: Any,
    wanted: RecordRange,
    columns: Collection[str] = _ALL,
    aborted: Iterable[Aborted] = (),
    inflated_bytes: int = INFLATED_BYTES,
) -> Decoded:
    """Decode the batches of one partition in a response to a Fetch.

    Args:
        data: Batches one after the other; the last one may be cut off. It must stay as it is
            until the rows are taken.
        wanted: The partition, and the offsets that are wanted of it.
        columns: Names of columns of `SCHEMA`; they come in its order.
        aborted: Producer id and first offset of the aborted transactions that the response names;
            their rows are left out, as for isolation level ``read_committed``.
        inflated_bytes: Bytes that the records of one batch may become by decompression; at most
            1 GiB.

    Raises:
        RecordError: If the header of a batch is damaged or of another format.
        ValueError: If there is no such column.
    """
    if unknown := set(columns) - _ALL:
        raise ValueError(f"no column {sorted(unknown)} among {', '.join(SCHEMA.names)}")
    source = np.frombuffer(data, np.uint8)
    source.flags.writeable = False  # one type for every kind of input, so one compiled kernel
    response = _Response(source, wanted, min(inflated_bytes, _MOST_INFLATED))
    table, next_offset, consumed = response.walk()
    schema = pa.schema([field for field in SCHEMA if field.name in columns])
    batches = response.batches(table, tuple(aborted), schema)
    return Decoded(batches, min(max(next_offset, wanted.start), wanted.end), consumed)


@dataclass(frozen=True)
class _Response:
    source: NDArray[np.uint8]
    wanted: RecordRange
    inflated_bytes: int

    def walk(self) -> tuple[NDArray[np.int64], int, int]:
        """The table of complete batches, the offset after them, and their bytes."""
        from krishiv_spark.kafka.records import scan

        if len(self.source) > MAX_INT32:
            self.fail(self.wanted.start, f"{len(self.source)} bytes are more than a response has")
        table = np.empty((len(self.source) // HEADER_BYTES + 1, scan.BATCH_WIDTH), np.int64)
        state = np.zeros(3, np.int64)
        code = scan.walk(self.source, self.wanted.end, table, state)
        found, consumed, next_offset = state.tolist()
        if code != scan.GOOD:
            magic = int(self.source[consumed + MAGIC_AT])
            at = next_offset if found else self.wanted.start
            self.fail(at, f"the batch {_WRONG[code].format(magic=magic)}")
        return table[:found], next_offset, consumed

    def batches(
        self, table: NDArray[np.int64], aborted: tuple[Aborted, ...], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        from krishiv_spark.kafka.records.scan import ATTRIBUTES, COUNT, LAST

        self._check(table)
        keep = (table[:, ATTRIBUTES] & CONTROL) == 0
        keep &= (table[:, LAST] >= self.wanted.start) & (table[:, COUNT] > 0)
        if aborted:
            keep &= ~aborted_rows(table, aborted, lambda row: self._control(table[[row]]))
        for source, batches in self._chunks(table[keep]):
            for rows in self._rows(source, batches, self.wanted):
                yield record_batch(rows, self.wanted, schema)

    def _check(self, table: NDArray[np.int64]) -> None:
        from krishiv_spark.kafka.records.scan import BASE, CRC, END, START

        view, checksum = self.source.data, means()
        columns = (table[:, column].tolist() for column in (START, END, BASE, CRC))
        for start, end, base, crc in zip(*columns, strict=True):
            if checksum(view[start + ATTRIBUTES_AT : end], 0) != crc:
                self.fail(
                    base, "the checksum of the batch is wrong: it was damaged on its way or on disk"
                )

    def _control(self, batch: NDArray[np.int64]) -> int:
        from krishiv_spark.kafka.records.scan import BASE

        everything = RecordRange(self.wanted.topic, self.wanted.partition, 0, 2**63 - 1)
        for source, batches in self._chunks(batch):
            for rows in self._rows(source, batches, everything):
                keys = record_batch(rows, everything, pa.schema([SCHEMA.field("key")]))
                try:
                    return control_type(keys.column(0)[0].as_py())
                except ValueError as error:
                    self.fail(int(batch[0, BASE]), str(error))
        return -1

    def _chunks(
        self, table: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """Batches with the bytes that their records lie in, decompressed."""
        from krishiv_spark.kafka.records.scan import ATTRIBUTES

        if not (table[:, ATTRIBUTES] & CODEC_MASK).any():
            yield self.source, table
            return
        first = 0
        while first < len(table):
            arena = bytearray()
            past = first
            while past < len(table) and (past == first or len(arena) < _ROOM):
                self._inflate(table[past], arena)
                past += 1
            source = np.frombuffer(arena, np.uint8)
            source.flags.writeable = False
            yield source, table[first:past]
            first = past

    def _inflate(self, batch: NDArray[np.int64], arena: bytearray) -> None:
        """Put the records of a batch after those in the arena, and note where."""
        from krishiv_spark.kafka.records.scan import ATTRIBUTES, BASE, BEGIN, END

        data = self.source.data[batch[BEGIN] : batch[END]]
        codec = CODECS[batch[ATTRIBUTES] & CODEC_MASK]
        batch[BEGIN] = len(arena)
        try:
            arena += data if codec == "none" else inflate(codec, data, self.inflated_bytes)
        except InflateError as error:
            self.fail(int(batch[BASE]), f"the batch {error}")
        batch[END] = len(arena)

    def _rows(
        self, source: NDArray[np.uint8], batches: NDArray[np.int64], wanted: RecordRange
    ) -> Iterator[ScannedRecords]:
        from krishiv_spark.kafka.records import scan

        left = self._count(batches)
        state = np.zeros(5, np.int64)
        while state[scan.BATCH] < len(batches):
            size = max(1, min(left, _ROWS))
            offsets, stamps = np.empty(size, np.int64), np.empty(size, np.int64)
            kinds, spans = np.empty(size, np.int32), np.empty((6, size), np.int32)
            code = scan.parse(
                source, batches, state, wanted.start, wanted.end, _ROOM,
                offsets, stamps, kinds, spans,
            )  # fmt: skip
            if code != scan.GOOD:
                base = int(batches[state[scan.BATCH], scan.BASE])
                self.fail(base, f"record {state[scan.RECORD]} of the batch {_WRONG[code]}")
            n = int(state[scan.ROWS])
            left -= n
            if n:
                yield ScannedRecords(source, offsets[:n], stamps[:n], kinds[:n], spans)

    def _count(self, batches: NDArray[np.int64]) -> int:
        """The number of records; a batch that has not the bytes for its own is refused."""
        from krishiv_spark.kafka.records.scan import BASE, BEGIN, COUNT, END

        short = batches[:, COUNT] > (batches[:, END] - batches[:, BEGIN]) // RECORD_BYTES
        if short.any():
            batch = batches[short.argmax()]
            self.fail(
                int(batch[BASE]),
                f"the batch says that it has {batch[COUNT]} records, which do not fit into its "
                f"{batch[END] - batch[BEGIN]} bytes",
            )
        return int(batches[:, COUNT].sum())

    def fail(self, offset: int, what: str) -> NoReturn:
        raise RecordError(f"{self.wanted.topic}-{self.wanted.partition} at offset {offset}: {what}")


# By the codes of `scan`, in its order.
_WRONG = (
    "is good",
    "is in message format v{magic}; the source reads v2, which Kafka 0.11 and later write",
    "is in message format v{magic}, which is newer than v2",
    "is shorter than its own header",
    "has offsets that are negative or too large",
    "begins at an offset before the end of the batch before it",
    "has a number of records that its offsets have no place for",
    "is compressed with a codec that is not known",
    "is damaged: a length or number in it does not fit its bytes",
    "has an offset that is not after the one before it, or after that of the whole batch",
    "has a timestamp of more than 64 bits",
    "is the last one, but bytes are left over",
)
