"""Records in batches: decompressed in pieces, found by the kernels, and judged.

A piece is about 32 MiB. A batch that becomes more is never in memory as a whole, unless it consists
of one record, or of one block of snappy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from krishiv_spark.kafka.records.codecs import InflateError, Inflation
from krishiv_spark.kafka.records.columns import ScannedRecords, find_far_time
from krishiv_spark.kafka.records.layout import CODEC_MASK, CODECS, RECORD_BYTES
from krishiv_spark.kafka.records.wanted import RecordRange

__all__ = ["FAULTS", "BadBatchError", "Scanner", "Window"]

# Size of one Arrow batch, and of one piece.
_ROWS = 2**16
_ROOM = 2**25

# A varint takes no more bytes.
_VARINT = 10

HEADER_MEMORY = 32
"""Bytes of memory that a header takes while its row is made, besides its own bytes.

Four numbers of 32 bits for the positions, two for the offsets in Arrow, and what NumPy needs on the
way.
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
"""By the codes of `scan`, in its order."""


class BadBatchError(Exception):
    """A batch cannot be delivered.

    Args:
        row: Its row in the table that was read.
        offset: Offset of the record that is wrong; -1 if it is the batch as a whole.
        reason: What is wrong with it; holds nothing of its records.
    """

    def __init__(self, row: int, offset: int, reason: str) -> None:
        super().__init__(row, offset, reason)
        self.row = row
        self.offset = offset
        self.reason = reason


@dataclass
class Window:
    """Batches whose decompressed records lie one after the other.

    Attributes:
        data: The bytes; `batches` says where in them the records of each batch are.
        batches: Table of the batches.
        rest: Of the last batch, if only a piece of it was decompressed so far.
        large: That batch as its table has it.
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

    def missing(self, state: NDArray[np.int64]) -> int:
        """Return how many bytes the record at which a scan stopped lacks; 0 if it is all there."""
        from krishiv_spark.kafka.records import scan

        if self.rest is None or state[scan.BATCH] < len(self.batches) - 1:
            return 0
        at, end = int(state[scan.AT]), int(self.batches[-1, scan.END])
        size, shift = 0, 0
        for byte in self.data[at : min(at + _VARINT, end)]:
            size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
            if byte < 0x80:  # noqa: PLR2004  no more bytes follow
                return max((size >> 1) - (end - at), 0) if not size & 1 else 0
        return _VARINT if shift < 7 * _VARINT else 0

    def refill(self, state: NDArray[np.int64], least: int) -> None:
        """Replace the bytes before the record at which a scan stopped by the next ones.

        Raises:
            InflateError: If they are damaged, or become more than is allowed.
        """
        from krishiv_spark.kafka.records import scan

        assert self.rest is not None
        arena = bytearray(self.data[state[scan.AT] : self.batches[-1, scan.END]])
        self.data = b""
        if not self.rest.read_into(arena, max(least, _ROOM)):
            self.rest = None
        self.data = arena
        state[scan.AT] = self.batches[-1, scan.BEGIN] = 0
        self.batches[-1, scan.END] = len(arena)


@dataclass(frozen=True)
class Scanner:
    """Reads the records of batches in a response.

    Attributes:
        source: The response.
        wanted: The offsets that are wanted.
        inflated_bytes: Bytes that the records of a batch may become.
        has_headers: Whether headers are wanted.
        has_time: Whether timestamps are wanted.
    """

    source: NDArray[np.uint8]
    wanted: RecordRange
    inflated_bytes: int
    has_headers: bool = False
    has_time: bool = False

    def open_window(self, table: NDArray[np.int64]) -> tuple[Window, int]:
        """Decompress the first batches of a table: about 32 MiB of them.

        Returns:
            The window, and the number of batches in it.

        Raises:
            BadBatchError: If the first one cannot be decompressed.
        """
        from krishiv_spark.kafka.records.scan import ATTRIBUTES

        if not (table[:, ATTRIBUTES] & CODEC_MASK).any():
            return Window(self.source, table), len(table)
        arena, rest, past = bytearray(), None, 0
        rows: list[NDArray[np.int64]] = []
        while past < len(table) and rest is None and len(arena) < _ROOM:
            begin = len(arena)
            row = table[past].copy()  # not the whole table: windows may be as many as batches
            try:
                rest = self._inflate(row, arena)
            except InflateError as error:
                if not past:
                    raise BadBatchError(0, -1, f"the batch {error}") from error
                del arena[begin:]  # the next window starts with it
                break
            rows.append(row)
            past += 1
        large = None if rest is None else table[past - 1 : past]
        return Window(arena, np.array(rows), rest, large), past

    def _inflate(self, batch: NDArray[np.int64], arena: bytearray) -> Inflation | None:
        """Append the records of a batch to an arena, or a piece of them, and note where they are.

        Returns:
            The inflation, if there may be more.

        Raises:
            InflateError: If they are damaged, or become more than is allowed.
        """
        from krishiv_spark.kafka.records.scan import ATTRIBUTES, BEGIN, END

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
        """Find the records of a window, in parts of at most 65 536 rows and about 32 MiB.

        A part is valid until the next one is asked for.

        Raises:
            BadBatchError: If a batch cannot be delivered.
        """
        from krishiv_spark.kafka.records import scan

        left = int(window.batches[:, scan.COUNT].sum())
        state = np.zeros(5, np.int64)
        while state[scan.BATCH] < len(window.batches):
            code, rows = self._parse(window, state, max(1, min(left, _ROWS)))
            if self.has_time:
                _check_times(rows, window.batches)
            missing = window.missing(state) if code == scan.MALFORMED else 0
            if code != scan.GOOD and not missing:
                raise self._fault(code, window, state)
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
        from krishiv_spark.kafka.records import scan

        source = window.source
        offsets, stamps = np.empty(size, np.int64), np.empty(size, np.int64)
        kinds, spans = np.empty(size, np.int32), np.empty((6, size), np.int32)
        code = scan.parse(
            source, window.batches, state, self.wanted.start, self.wanted.end, _ROOM,
            HEADER_MEMORY if self.has_headers else 0, self.inflated_bytes,
            offsets, stamps, kinds, spans,
        )  # fmt: skip
        n = int(state[scan.ROWS])
        return code, ScannedRecords(source, offsets[:n], stamps[:n], kinds[:n], spans)

    def _fault(self, code: int, window: Window, state: NDArray[np.int64]) -> BadBatchError:
        from krishiv_spark.kafka.records import scan

        row = int(state[scan.BATCH])
        count, size = window.batches[row, [scan.COUNT, scan.END]].tolist()
        size -= int(window.batches[row, scan.BEGIN])
        reason = f"record {state[scan.RECORD]} of the batch {FAULTS[code]}"
        if code == scan.MALFORMED and count > size // RECORD_BYTES and window.large is None:
            reason = f"the batch claims to have {count} records, which do not fit into its "
            reason += f"{size} bytes"
        return BadBatchError(row, -1, reason.format(most=self.inflated_bytes))

    def _check_end(self, window: Window, state: NDArray[np.int64]) -> None:
        """Check that nothing follows the last record of the last batch."""
        from krishiv_spark.kafka.records import scan

        last = len(window.batches) - 1
        state[scan.AT] = window.batches[last, scan.END]
        _refill(window, state, 1)
        if len(window.data):
            state[scan.BATCH], state[scan.RECORD] = last, window.batches[last, scan.COUNT]
            raise self._fault(scan.LEFT_OVER, window, state)


def _refill(window: Window, state: NDArray[np.int64], missing: int) -> None:
    try:
        window.refill(state, missing)
    except InflateError as error:
        raise BadBatchError(len(window.batches) - 1, -1, f"the batch {error}") from error


def _check_times(rows: ScannedRecords, batches: NDArray[np.int64]) -> None:
    from krishiv_spark.kafka.records.scan import BASE

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
