"""The files that one attempt of a task writes: few of them open, none left when it fails. Executor.

A partition gets one file of a task, however many partitions there are and in whatever order their
rows come. Rows that arrive in chunks are written at once into the file of their partition, if that
is open or may be opened; otherwise they wait on a local disk (`Spill`) and are written last, one
file after the other. Where rows come in the order of their partitions, files are completed on the
way.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import tempfile
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from types import TracebackType
from typing import IO, ClassVar, Generic, Protocol, TypeVar, cast

import pyarrow as pa
from typing_extensions import Self

from krishiv_spark.errors import SinkError

__all__ = ["CHUNK_BYTES", "CHUNK_ROWS", "GrowingFile", "OpenFiles", "chunks"]

Key = TypeVar("Key")


_ALIGNMENT = 64
"""Bytes: as Arrow aligns what it allocates itself."""


class Spill(Generic[Key]):
    """Tables by key: in memory until `flush`, then in a file that has no name.

    The file goes with the process, however that ends. What is read is mapped, not loaded.
    """

    def __init__(self) -> None:
        self._fresh: dict[Key, list[pa.Table]] = {}
        self._runs: list[tuple[int, int]] = []
        self._mapped = pa.py_buffer(b"")
        self._opened: dict[int, pa.Table] = {}
        # Of each piece on the disk its run, its first row and how many rows it has: 24 bytes, where
        # a task may have millions of pieces.
        self._places: dict[Key, array[int]] = {}

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._fresh.keys() | self._places.keys())

    def __contains__(self, key: Key) -> bool:
        return key in self._fresh or key in self._places

    def keys(self) -> list[Key]:
        """Return the keys, in the order in which they were added."""
        return list(dict.fromkeys((*self._places, *self._fresh)))

    def add(self, key: Key, rows: pa.Table) -> None:
        """Keep rows; all tables have one schema."""
        self._fresh.setdefault(key, []).append(rows)

    def pop(self, key: Key) -> list[pa.Table]:
        """Give back the tables of a key in the order in which they were added, and forget them."""
        numbers = iter(self._places.pop(key, ()))
        pieces = zip(numbers, numbers, numbers, strict=True)
        stored = [self._run(number).slice(start, rows) for number, start, rows in pieces]
        return [*stored, *self._fresh.pop(key, ())]

    def flush(self) -> None:
        """Bring what is in memory to the disk.

        Raises:
            SinkError: If the disk cannot take it.
        """
        if not self._fresh:
            return
        pieces = [(key, rows) for key, tables in self._fresh.items() for rows in tables]
        self._fresh = {}
        with _disk_errors(self._folder):
            # In one piece, so that a slice of it is found at once; and a copy, so that what was
            # cut out of a larger table does not hold all of it in memory.
            whole = pa.concat_tables(rows for _, rows in pieces).combine_chunks()
            self._runs.append(_append(self._file, whole))
        first = 0
        for key, rows in pieces:
            place = (len(self._runs) - 1, first, rows.num_rows)
            self._places.setdefault(key, array("q")).extend(place)
            first += rows.num_rows

    def close(self) -> None:
        """Give the disk back, once nobody holds what was given out."""
        self._fresh, self._places, self._opened = {}, {}, {}
        self._mapped = pa.py_buffer(b"")
        if "_file" in self.__dict__:
            self._file.close()

    def _run(self, number: int) -> pa.Table:
        """Return the tables of one flush, whose buffers are the file's."""
        start, end = self._runs[number]
        if end > self._mapped.size:  # a mapping for each run would be a descriptor for each
            self._opened = {}
            whole = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            self._mapped = pa.py_buffer(whole)
        if number not in self._opened:
            stored = self._mapped.slice(start, end - start)
            self._opened[number] = pa.ipc.open_stream(stored).read_all()
        return self._opened[number]

    @cached_property
    def _folder(self) -> str:
        """One of Spark's folders for such files: PySpark tells its workers (``PythonRunner``)."""
        folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
        return random.choice(folders) or tempfile.gettempdir()  # noqa: S311  it spreads the load

    @cached_property
    def _file(self) -> IO[bytes]:
        return tempfile.TemporaryFile(prefix="krishiv-spill-", dir=self._folder)


def _append(file: IO[bytes], rows: pa.Table) -> tuple[int, int]:
    """Append a table to a file; where it begins, and the byte after it."""
    start = -(-file.seek(0, os.SEEK_END) // _ALIGNMENT) * _ALIGNMENT
    file.seek(start)
    with pa.ipc.new_stream(file, rows.schema) as stream:
        stream.write_table(rows)
    file.flush()
    return start, file.tell()


@contextlib.contextmanager
def _disk_errors(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SinkError(
            f"rows of a task with many partitions cannot wait in {folder}: {error}; give Spark "
            "another local folder ('spark.local.dir'), or repartition by the partition columns "
            "before writing, so that a task has few of them"
        ) from error


# A row group of a Parquet file. Two chunks are in memory at a time.
CHUNK_BYTES = 64 * 2**20
CHUNK_ROWS = 2**20

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
        """Return the number of rows that fit, 0 when it is to be completed; None for any number."""
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
        """Return True if rows may be written before all rows of their partition are there."""
        return True

    def arrange(self, pieces: Sequence[pa.Table]) -> Iterator[pa.Table]:
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
            for rows in self.arrange(self._waiting.pop(key)):
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
