"""The decoder from the response to a Fetch about one partition to Arrow rows.

Aborted transactions are found as in Java's consumer (``CompletedFetch``): a transaction in the list
of the response starts when a batch reaches its first offset, and ends with its control record.
"""

from __future__ import annotations

import heapq
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.kafka.records.batch_format import (
    ABORT,
    ATTRIBUTES,
    ATTRIBUTES_AT,
    BASE,
    BATCH_WIDTH,
    CONTROL,
    COUNT,
    CRC,
    END,
    GOOD,
    HEADER_BYTES,
    LAST,
    MAGIC_AT,
    MAX_INT32,
    MAX_INT64,
    PRODUCER,
    SIZE,
    START,
    TRANSACTIONAL,
)
from krishiv_spark.kafka.records.checksum import choose_crc32c
from krishiv_spark.kafka.records.scanner import (
    FAULTS,
    SCHEMA,
    BadBatchError,
    BatchPolicy,
    DeadBatch,
    RecordError,
    RecordRange,
    Scanner,
    Window,
    build_record_batch,
)

__all__ = ["Decoded", "decode"]

Aborted = tuple[int, int]
"""Producer id and first offset of an aborted transaction, as in the response to a Fetch."""

_CONTROL_KEY = struct.Struct(">hh")

# Positions in the bytes that are parsed at once, up to `_ROOM` and one batch, have 31 bits.
_MOST_INFLATED = 2**30

_ALL = frozenset(SCHEMA.names)
_DEFAULT = BatchPolicy()


@dataclass(frozen=True)
class Decoded:
    """The rows of one partition in a response, and the next offset.

    Attributes:
        batches: The rows, in batches of at most 65 536 rows and about 32 MiB. They are decoded on
            demand, and only once. The iterator raises `RecordError` if records are damaged, or if a
            batch cannot be delivered and the policy does not skip it.
        next_offset: The batches contain every row of the range before this offset. It is the
            range's end if all of it was read, and its start if no batch was complete.
        consumed: Number of bytes of complete batches. If it is 0 although there were bytes, the
            fetch was too small for one batch.
    """

    batches: Iterator[pa.RecordBatch]
    next_offset: int
    consumed: int


def decode(
    data: Any,
    wanted: RecordRange,
    columns: Collection[str] = _ALL,
    aborted: Iterable[Aborted] = (),
    policy: BatchPolicy = _DEFAULT,
) -> Decoded:
    """Decode the batches of one partition in a response to a Fetch.

    Args:
        data: Consecutive batches; the last one may be truncated. It must not change until the rows
            are decoded.
        wanted: The partition, and the offsets to decode.
        columns: Names of columns of `SCHEMA`, whose order the rows have.
        aborted: Producer id and first offset of the aborted transactions in the response; their
            rows are left out, as for isolation level ``read_committed``.
        policy: The maximum size of a batch, and the action for a batch that cannot be delivered.

    Raises:
        RecordError: If the header of a batch is damaged or of another format.
        ValueError: If a column does not exist.
    """
    if unknown := set(columns) - _ALL:
        raise ValueError(f"no column {sorted(unknown)} among {', '.join(SCHEMA.names)}")
    source = np.frombuffer(data, np.uint8)
    source.flags.writeable = False  # one type for every kind of input, so one compiled kernel
    schema = pa.schema([field for field in SCHEMA if field.name in columns])
    response = _Response(source, wanted, schema, policy)
    table, next_offset, consumed = response.walk()
    batches = response.batches(table, tuple(aborted))
    return Decoded(batches, min(max(next_offset, wanted.start), wanted.end), consumed)


@dataclass(frozen=True)
class _Response:
    source: NDArray[np.uint8]
    wanted: RecordRange
    schema: pa.Schema
    policy: BatchPolicy

    def walk(self) -> tuple[NDArray[np.int64], int, int]:
        """Return the table of complete batches, the offset after them, and their size."""
        from krishiv_spark.kafka.records import read_kernels

        if len(self.source) > MAX_INT32:
            self._fail(self.wanted.start, f"{len(self.source)} bytes are more than a response has")
        table = np.empty((len(self.source) // HEADER_BYTES + 1, BATCH_WIDTH), np.int64)
        state = np.zeros(3, np.int64)
        code = read_kernels.walk_batches(self.source, self.wanted.end, table, state)
        found, consumed, next_offset = state.tolist()
        if code != GOOD:
            magic = int(self.source[consumed + MAGIC_AT])
            at = next_offset if found else self.wanted.start
            self._fail(at, f"the batch {FAULTS[code].format(magic=magic)}")
        return table[:found], next_offset, consumed

    def batches(
        self, table: NDArray[np.int64], aborted: tuple[Aborted, ...]
    ) -> Iterator[pa.RecordBatch]:
        self._check_checksums(table)
        keep = (table[:, ATTRIBUTES] & CONTROL) == 0
        keep &= (table[:, LAST] >= self.wanted.start) & (table[:, COUNT] > 0)
        if aborted:
            keep &= ~find_aborted_rows(
                table, aborted, lambda row: self._read_control_type(table[[row]])
            )
        scanner = self._make_scanner(self.wanted)
        windows = self._open_windows if self.policy.skip is None else self._filter_windows
        for window in windows(table[keep], scanner):
            try:
                for rows in scanner.records(window):
                    yield build_record_batch(rows, self.wanted, self.schema)
            except BadBatchError as error:
                raise self._make_error(window.batches[error.row], error) from error

    def _make_scanner(self, wanted: RecordRange) -> Scanner:
        return Scanner(
            self.source,
            wanted,
            min(self.policy.inflated_bytes, _MOST_INFLATED),
            has_headers="headers" in self.schema.names,
            has_time="timestamp" in self.schema.names,
        )

    def _open_windows(self, table: NDArray[np.int64], scanner: Scanner) -> Iterator[Window]:
        """Decompress batches; refuse batches that cannot be decompressed."""
        while len(table):
            try:
                window, past = scanner.open_window(table)
            except BadBatchError as error:
                self._refuse(table[0], error)
                table = table[1:]
            else:
                yield window
                table = table[past:]

    def _filter_windows(self, table: NDArray[np.int64], scanner: Scanner) -> Iterator[Window]:
        """Leave out batches that cannot be delivered, before any of their rows is delivered.

        The decision is about a whole batch, whichever of its offsets are wanted: another task that
        reads another part of it must make the same decision.
        """
        judge = replace(scanner, wanted=_whole_partition(self.wanted))
        for window in self._open_windows(table, scanner):
            if window.large is not None and not self._is_good_large(window.large, judge):
                window.batches, window.rest, window.large = window.batches[:-1], None, None
            past = len(window.batches) - (window.large is not None)
            bad = self._find_bad_rows(window.data, window.batches[:past], judge)
            window.batches = np.delete(window.batches, bad, axis=0)
            yield window

    def _is_good_large(self, batch: NDArray[np.int64], judge: Scanner) -> bool:
        try:
            window, _ = judge.open_window(batch)
            deque(judge.records(window), maxlen=0)
        except BadBatchError as error:
            self._refuse(batch[0], error)
            return False
        return True

    def _find_bad_rows(self, data: Any, batches: NDArray[np.int64], judge: Scanner) -> list[int]:
        """Refuse batches whose records cannot be read; return their rows in the table."""
        bad: list[int] = []
        first = 0
        while first < len(batches):
            try:
                deque(judge.records(Window(data, batches[first:])), maxlen=0)
                break
            except BadBatchError as error:
                bad.append(first + error.row)
                self._refuse(batches[bad[-1]], error)
                first = bad[-1] + 1
        return bad

    def _refuse(self, batch: NDArray[np.int64], error: BadBatchError) -> None:
        """Skip a batch, or fail, according to the policy.

        Raises:
            RecordError: If a batch that cannot be delivered is an error.
        """
        if self.policy.skip is None:
            raise self._make_error(batch, error) from error
        self.policy.skip(self._describe(batch, error))

    def _describe(self, batch: NDArray[np.int64], error: BadBatchError) -> DeadBatch:
        topic, partition = self.wanted.topic, self.wanted.partition
        first, last, size = batch[[BASE, LAST, SIZE]].tolist()
        return DeadBatch(topic, partition, first, last, size, error.reason)

    def _make_error(self, batch: NDArray[np.int64], error: BadBatchError) -> RecordError:
        dead = self._describe(batch, error)
        offset = dead.first_offset if error.offset < 0 else error.offset
        return RecordError(
            f"{dead.topic}-{dead.partition} at offset {offset}: {dead.reason}. The batch has the "
            f"offsets {dead.first_offset} to {dead.last_offset} and {dead.size} bytes: if it is "
            "only too large, raise the option 'maxInflatedBytes'; to go on without it, set the "
            "option 'badBatches' to 'skip': its rows are then lost for this query"
        )

    def _check_checksums(self, table: NDArray[np.int64]) -> None:
        view, checksum = self.source.data, choose_crc32c()
        columns = (table[:, column].tolist() for column in (START, END, BASE, CRC))
        for start, end, base, crc in zip(*columns, strict=True):
            if checksum(view[start + ATTRIBUTES_AT : end], 0) != crc:
                self._fail(
                    base, "the checksum of the batch is wrong: it was damaged on its way or on disk"
                )

    def _read_control_type(self, batch: NDArray[np.int64]) -> int:
        """Return the type of a control batch; one that cannot be read is always an error."""
        everything = _whole_partition(self.wanted)
        scanner = Scanner(self.source, everything, min(self.policy.inflated_bytes, _MOST_INFLATED))
        try:
            window, _ = scanner.open_window(batch)
            for rows in scanner.records(window):
                keys = build_record_batch(rows, everything, pa.schema([SCHEMA.field("key")]))
                return parse_control_type(keys.column(0)[0].as_py())
        except BadBatchError as error:
            raise self._make_error(batch[0], error) from error
        except ValueError as error:
            self._fail(int(batch[0, BASE]), str(error))
        return -1

    def _fail(self, offset: int, what: str) -> NoReturn:
        raise RecordError(f"{self.wanted.topic}-{self.wanted.partition} at offset {offset}: {what}")


def _whole_partition(wanted: RecordRange) -> RecordRange:
    return RecordRange(wanted.topic, wanted.partition, 0, MAX_INT64)


def find_aborted_rows(
    table: NDArray[np.int64], aborted: Iterable[Aborted], type_of: Callable[[int], int]
) -> NDArray[np.bool_]:
    """Return True for each batch of a table that belongs to an aborted transaction.

    Args:
        table: Batches, in order.
        aborted: The aborted transactions.
        type_of: A function from the row of a batch to the type of its control record.
    """
    waiting = [(first, producer) for producer, first in aborted]
    heapq.heapify(waiting)
    started: set[int] = set()
    found = np.zeros(len(table), np.bool_)
    for row, batch in enumerate(table[:, (LAST, ATTRIBUTES, PRODUCER)].tolist()):
        last, attributes, producer = batch
        while waiting and waiting[0][0] <= last:
            started.add(heapq.heappop(waiting)[1])
        if attributes & CONTROL:
            if producer in started and type_of(row) == ABORT:
                started.remove(producer)
        elif attributes & TRANSACTIONAL:
            found[row] = producer in started
    return found


def parse_control_type(key: bytes | None) -> int:
    """Return the type of a control record, which is in its key.

    Raises:
        ValueError: If the key is not that of a control record.
    """
    if key is None or len(key) < _CONTROL_KEY.size:
        raise ValueError(f"a control record has the key {key!r}")
    version, kind = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise ValueError(f"a control record has version {version}")
    return int(kind)
