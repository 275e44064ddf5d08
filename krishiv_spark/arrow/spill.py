"""Rows that wait on a local disk until their file is written. Executor."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import tempfile
from array import array
from collections.abc import Iterator
from functools import cached_property
from typing import IO, Generic, TypeVar

import pyarrow as pa

from krishiv_spark.errors import SinkError

__all__ = ["Spill"]

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
        """How many keys there are."""
        return len(self._fresh.keys() | self._places.keys())

    def __contains__(self, key: Key) -> bool:
        return key in self._fresh or key in self._places

    def keys(self) -> list[Key]:
        """The keys, in the order in which they came."""
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
            self._runs.append(_stored(self._file, whole))
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
        """What was flushed together; its buffers are the file's."""
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


def _stored(file: IO[bytes], rows: pa.Table) -> tuple[int, int]:
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
