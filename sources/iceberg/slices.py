"""The files between two offsets, as slices of the files of one snapshot each. Driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from krishiv_spark.errors import DataLossError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.sources.iceberg.history import History, Skips, snapshots_after
from krishiv_spark.sources.iceberg.position import StreamingOffset

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["FileSlice", "ahead", "between", "done", "first_file"]


def done(snapshot: Snapshot) -> StreamingOffset:
    """The offset after all files of a snapshot."""
    return StreamingOffset(snapshot=snapshot.snapshot_id, sequence=snapshot.sequence_number or 0)


def first_file(snapshot: Snapshot) -> StreamingOffset:
    """The offset before the first file of a full scan of a snapshot."""
    return done(snapshot).model_copy(update={"file": 0, "scan": True})


@dataclass(frozen=True)
class FileSlice:
    """Consecutive files of one snapshot.

    Attributes:
        snapshot: The snapshot that added the files, or as of which the table is read.
        scan: Whether they are numbered among all files of the table then, or among the added ones.
        first: Number of the first file.
        end: Number after the last one; None for all that there are.
        rewrites: Whether the snapshot puts files in the place of others, to be read as a whole; or,
            if there is nothing to read, only copies rows.
    """

    snapshot: Snapshot
    scan: bool = False
    first: int = 0
    end: int | None = None
    rewrites: bool = False

    def stop(self, number: int) -> StreamingOffset:
        """The offset before one of its files."""
        offset = done(self.snapshot)
        return offset.model_copy(update={"file": number, "scan": self.scan})


def ahead(history: History, begin: StreamingOffset, skips: Skips) -> Iterator[FileSlice]:
    """Everything from an offset on; what is passed over is an empty part.

    Raises:
        DataLossError: If something of it has expired.
        ChangedRowsError: See `snapshots_after`.
    """
    if begin.file is not None:
        yield _rest(history, begin, begin.file)
    for snapshot, reading in snapshots_after(history, begin, skips):
        end = None if reading in {"rows", "changes"} else 0
        yield FileSlice(snapshot, end=end, rewrites=reading in {"changes", "copies"})


def _rest(history: History, begin: StreamingOffset, file: int) -> FileSlice:
    snapshot = history.find(begin.snapshot or 0)
    if snapshot is None:
        raise DataLossError(
            f"{FORMAT}: table {history.table}: snapshot {begin.snapshot} has expired, or was "
            f"rolled back, while it was being read; {history.available()}. Start with another "
            "checkpoint, and keep snapshots for longer than reading them takes"
        )
    return FileSlice(snapshot, begin.scan, file)


def between(
    history: History, begin: StreamingOffset, end: StreamingOffset, skips: Skips
) -> Sequence[FileSlice]:
    """What lies between two offsets.

    Args:
        history: Of the snapshot of the end.
        begin: The offset before the first file.
        end: The offset before the file that comes next.
        skips: What is passed over.

    Raises:
        DataLossError: If something of it has expired.
        ChangedRowsError: See `snapshots_after`.
    """
    if history.head is None and end.snapshot is not None:
        raise DataLossError(
            f"{FORMAT}: table {history.table}: snapshot {end.snapshot}, the end of a batch, has "
            "expired before the batch was read"
        )
    found = list(ahead(history, begin, skips))
    if found and end.file is not None:
        last = found.pop()
        found.append(FileSlice(last.snapshot, last.scan, last.first, end.file))
    return found
