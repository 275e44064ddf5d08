"""The files that one attempt of a task writes: few of them open, none left when it fails.

A partition gets one file of a task, however many partitions there are and in whatever order their
rows come. Rows that arrive in chunks are written at once into the file of their partition, if that
is open or may be opened; otherwise they wait (`Spill`) and are written last, one file after the
other. Where rows come in the order of their partitions, files are completed on the way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import ClassVar, Generic, Protocol, TypeVar, cast

import pyarrow as pa
from typing_extensions import Self

from krishiv_spark.arrow.spill import Spill

__all__ = ["CHUNK_BYTES", "CHUNK_ROWS", "GrowingFile", "OpenFiles", "chunks"]

# A row group of a Parquet file. Two chunks are in memory at a time.
CHUNK_BYTES = 64 * 2**20
CHUNK_ROWS = 2**20

Key = TypeVar("Key")
Closed = TypeVar("Closed")
Closed_co = TypeVar("Closed_co", covariant=True)


def chunks(
    batches: Iterable[pa.RecordBatch], most_rows: int = CHUNK_ROWS, most_bytes: int = CHUNK_BYTES
) -> Iterator[pa.Table]:
    """Gather small batches into tables of about so much; by default, of decent row groups.

    Spark hands over 10 000 rows at a time (spark.sql.execution.arrow.maxRecordsPerBatch).
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if size >= most_bytes or rows >= most_rows:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)


class GrowingFile(Protocol[Closed_co]):
    """A file that is open for more rows."""

    @property
    def room(self) -> int | None:
        """How many rows it still takes, 0 when it is to be completed; None for any number."""
        ...

    def write(self, rows: pa.Table) -> None:
        """Append rows, no more than it has room for."""
        ...

    def close(self) -> Closed_co:
        """Complete it, and say what it has become."""
        ...

    def drop(self) -> None:
        """Give it up and remove it; called at most once, instead of `close`."""
        ...


Growing = TypeVar("Growing", bound=GrowingFile[object])


class OpenFiles(ABC, Generic[Key, Growing, Closed]):
    """Files by the partition that they belong to. Executor.

    At most 64 are open for rows as they come, and one for rows that have waited. Two chunks are in
    memory; what waits longer is on the disk. As a context, it removes all files, also those that
    are complete, when the task fails.
    """

    most_open: int = 64
    group_bytes: ClassVar[int] = 128 * 2**10
    """With so many bytes in a chunk, a partition is worth a row group and an open file."""

    def __init__(self) -> None:
        self._open: dict[Key, Growing] = {}
        self._waiting: Spill[Key] = Spill()
        self._closed: list[Closed] = []
        self._left: set[Key] = set()
        self._is_ordered = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._waiting.close()
        if kind is not None:
            self._drop_all()

    @abstractmethod
    def make(self, key: Key, schema: pa.Schema) -> Growing:
        """Open a new file for a partition, whose rows have this schema."""

    @abstractmethod
    def remove(self, closed: Closed) -> None:
        """Remove a file that is complete."""

    @property
    def may_write_early(self) -> bool:
        """Whether rows may be written before all rows of their partition are there."""
        return True

    def arranged(self, pieces: Sequence[pa.Table]) -> Iterator[pa.Table]:
        """Rows of a partition that have waited, in the order in which they are to be written.

        Args:
            pieces: At most one of each chunk, in the order in which they came.
        """
        return chunks(batch for piece in pieces for batch in piece.to_batches())

    def add(self, parts: Iterable[tuple[Key, pa.Table]]) -> None:
        """Take the rows of one chunk, cut by their partitions."""
        found = list(parts)
        # Before the new rows: what is complete gives up its place to them.
        self._make_room({key for key, _ in found})
        for key, rows in found:
            if key in self._open or self._may_open(rows):
                self._write_waiting(key)
                self._write(key, rows)
            else:
                self._waiting.add(key, rows)

    def close(self) -> tuple[Closed, ...]:
        """Complete what is left, and say what all files have become; empty without rows."""
        for key in [*self._open, *self._waiting.keys()]:
            self._finish(key)
        return tuple(self._closed)

    def _may_open(self, rows: pa.Table) -> bool:
        is_free = self.may_write_early and len(self._open) < self.most_open
        return is_free and rows.nbytes >= self.group_bytes

    def _make_room(self, coming: set[Key]) -> None:
        """Complete partitions that have no rows in the next chunk, if there are many of them.

        They are believed to be over until one of them comes back: then rows are in no order, and
        nothing is completed any more before the end. So a partition has two files at most.
        """
        self._is_ordered = self._is_ordered and coming.isdisjoint(self._left)
        if self._is_ordered and len(self._open) + len(self._waiting) > self.most_open:
            for key in [*self._open, *self._waiting.keys()]:
                if key not in coming:
                    self._finish(key)
                    self._left.add(key)
        self._waiting.flush()

    def _finish(self, key: Key) -> None:
        self._write_waiting(key)
        if key in self._open:
            self._complete(key)

    def _write_waiting(self, key: Key) -> None:
        if key in self._waiting:
            for rows in self.arranged(self._waiting.pop(key)):
                self._write(key, rows)

    def _write(self, key: Key, rows: pa.Table) -> None:
        while rows.num_rows:
            file = self._open.get(key)
            if file is None:
                file = self._open[key] = self.make(key, rows.schema)
            fitting = rows.slice(0, file.room)
            file.write(fitting)
            rows = rows.slice(fitting.num_rows)
            if file.room == 0:
                self._complete(key)

    def _complete(self, key: Key) -> None:
        closed = self._open[key].close()
        self._closed.append(cast("Closed", closed))  # no bound can name another variable
        del self._open[key]

    def _drop_all(self) -> None:
        for file in self._open.values():
            file.drop()
        for closed in self._closed:
            self.remove(closed)
