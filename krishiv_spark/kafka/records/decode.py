"""From what a Fetch brought of one partition to Arrow rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.kafka.records.checksum import means
from krishiv_spark.kafka.records.columns import SCHEMA, record_batch
from krishiv_spark.kafka.records.layout import (
    ATTRIBUTES_AT,
    CONTROL,
    HEADER_BYTES,
    MAGIC_AT,
    MAX_INT32,
    MAX_INT64,
)
from krishiv_spark.kafka.records.scanning import FAULTS, BadBatchError, Scanner, Window
from krishiv_spark.kafka.records.transactions import Aborted, aborted_rows, control_type
from krishiv_spark.kafka.records.wanted import (
    BatchPolicy,
    DeadBatch,
    RecordError,
    RecordRange,
)

__all__ = ["Decoded", "decode"]

# Positions in what is parsed at once, which is up to `_ROOM` and one batch, have 31 bits.
_MOST_INFLATED = 2**30

_ALL = frozenset(SCHEMA.names)
_DEFAULT = BatchPolicy()


@dataclass(frozen=True)
class Decoded:
    """Rows of one partition, and where to go on.

    Attributes:
        batches: The rows, in batches of at most 65 536 rows and about 32 MiB; decoded as they are
            asked for, and only once. Taking one raises `RecordError` if records are damaged, or a
            batch cannot be delivered and the policy skips none.
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
    policy: BatchPolicy = _DEFAULT,
) -> Decoded:
    """Decode the batches of one partition in a response to a Fetch.

    Args:
        data: Batches one after the other; the last one may be cut off. It must stay as it is
            until the rows are taken.
        wanted: The partition, and the offsets that are wanted of it.
        columns: Names of columns of `SCHEMA`; they come in its order.
        aborted: Producer id and first offset of the aborted transactions that the response names;
            their rows are left out, as for isolation level ``read_committed``.
        policy: How large a batch may become, and what happens to one that cannot be delivered.

    Raises:
        RecordError: If the header of a batch is damaged or of another format.
        ValueError: If there is no such column.
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
            self.fail(at, f"the batch {FAULTS[code].format(magic=magic)}")
        return table[:found], next_offset, consumed

    def batches(
        self, table: NDArray[np.int64], aborted: tuple[Aborted, ...]
    ) -> Iterator[pa.RecordBatch]:
        from krishiv_spark.kafka.records.scan import ATTRIBUTES, COUNT, LAST

        self._check(table)
        keep = (table[:, ATTRIBUTES] & CONTROL) == 0
        keep &= (table[:, LAST] >= self.wanted.start) & (table[:, COUNT] > 0)
        if aborted:
            keep &= ~aborted_rows(table, aborted, lambda row: self._control(table[[row]]))
        scanner = self._scanner(self.wanted)
        windows = self._windows if self.policy.skip is None else self._good_windows
        for window in windows(table[keep], scanner):
            try:
                for rows in scanner.records(window):
                    yield record_batch(rows, self.wanted, self.schema)
            except BadBatchError as error:
                raise self._error(window.batches[error.row], error) from error

    def _scanner(self, wanted: RecordRange) -> Scanner:
        return Scanner(
            self.source,
            wanted,
            min(self.policy.inflated_bytes, _MOST_INFLATED),
            has_headers="headers" in self.schema.names,
            has_time="timestamp" in self.schema.names,
        )

    def _windows(self, table: NDArray[np.int64], scanner: Scanner) -> Iterator[Window]:
        """Decompress batches; refuse those that cannot be decompressed."""
        while len(table):
            try:
                window, past = scanner.open_window(table)
            except BadBatchError as error:
                self._refuse(table[0], error)
                table = table[1:]
            else:
                yield window
                table = table[past:]

    def _good_windows(self, table: NDArray[np.int64], scanner: Scanner) -> Iterator[Window]:
        """Leave out batches that cannot be delivered, before any row of them is delivered.

        Each batch is judged as a whole, whichever of its offsets are wanted: another task that
        reads another part of it has to come to the same decision.
        """
        judge = replace(scanner, wanted=_everything(self.wanted))
        for window in self._windows(table, scanner):
            if window.large is not None and not self._is_good_large(window.large, judge):
                window.batches, window.rest, window.large = window.batches[:-1], None, None
            past = len(window.batches) - (window.large is not None)
            bad = self._bad_rows(window.data, window.batches[:past], judge)
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

    def _bad_rows(self, data: Any, batches: NDArray[np.int64], judge: Scanner) -> list[int]:
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
        """Skip a batch, or fail, as the policy has it.

        Raises:
            RecordError: If a batch that cannot be delivered is an error.
        """
        if self.policy.skip is None:
            raise self._error(batch, error) from error
        self.policy.skip(self._dead(batch, error))

    def _dead(self, batch: NDArray[np.int64], error: BadBatchError) -> DeadBatch:
        from krishiv_spark.kafka.records.scan import BASE, LAST, SIZE

        topic, partition = self.wanted.topic, self.wanted.partition
        first, last, size = batch[[BASE, LAST, SIZE]].tolist()
        return DeadBatch(topic, partition, first, last, size, error.reason)

    def _error(self, batch: NDArray[np.int64], error: BadBatchError) -> RecordError:
        dead = self._dead(batch, error)
        offset = dead.first_offset if error.offset < 0 else error.offset
        return RecordError(
            f"{dead.topic}-{dead.partition} at offset {offset}: {dead.reason}. The batch has the "
            f"offsets {dead.first_offset} to {dead.last_offset} and {dead.size} bytes: if it is "
            "only too large, raise the option 'maxInflatedBytes'; to go on without it, set the "
            "option 'badBatches' to 'skip': its rows are then lost for this query"
        )

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
        """Return the type of a control batch; one that cannot be read is always an error."""
        from krishiv_spark.kafka.records.scan import BASE

        everything = _everything(self.wanted)
        scanner = Scanner(self.source, everything, min(self.policy.inflated_bytes, _MOST_INFLATED))
        try:
            window, _ = scanner.open_window(batch)
            for rows in scanner.records(window):
                keys = record_batch(rows, everything, pa.schema([SCHEMA.field("key")]))
                return control_type(keys.column(0)[0].as_py())
        except BadBatchError as error:
            raise self._error(batch[0], error) from error
        except ValueError as error:
            self.fail(int(batch[0, BASE]), str(error))
        return -1

    def fail(self, offset: int, what: str) -> NoReturn:
        raise RecordError(f"{self.wanted.topic}-{self.wanted.partition} at offset {offset}: {what}")


def _everything(wanted: RecordRange) -> RecordRange:
    return RecordRange(wanted.topic, wanted.partition, 0, MAX_INT64)
