"""Writing one task's rows into staged Parquet files, in bounded memory. Executor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from krishiv_spark.durable import start_writing_back, sync_file
from krishiv_spark.openfiles import OpenFiles
from krishiv_spark.parquet.layout import STAGED_SUFFIX, DataFile
from krishiv_spark.parquet.partitions import split

__all__ = ["FileShape", "StagedFile", "StagedFiles", "TaskFiles", "chunks"]

_CHUNK_BYTES = 64 * 2**20
_CHUNK_ROWS = 2**20
# A column whose values hardly repeat gives up its dictionary at this size: pyarrow's default, 1 MB,
# costs a fifth of the encoding for nothing.
_DICTIONARY_BYTES = 64 * 2**10


class StagedFile(BaseModel, frozen=True):
    """A staged file and where it will be visible.

    Attributes:
        name: Its final name.
        folder: Its partition folder, relative to the table; empty without partitions.
        rows: Number of rows.
        size: Bytes.
    """

    name: str
    folder: str
    rows: int
    size: int


class StagedFiles(BaseModel, frozen=True):
    """What one task staged; or, once per epoch in mode REPLACE, what the epoch removes.

    Attributes:
        folder: Where the files are staged, relative to the table.
        files: Files that become visible.
        removes: Visible files that go, relative to the table.
    """

    folder: str = ""
    files: tuple[StagedFile, ...] = ()
    removes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileShape:
    """How rows are cut into files.

    Attributes:
        partition_by: Columns that become folders.
        compression: Name of the codec, as pyarrow knows it.
        max_rows: Most rows in a file, None for no limit.
        target_bytes: A file is closed when it has grown to this size, None for no limit.
    """

    partition_by: tuple[str, ...]
    compression: str
    max_rows: int | None
    target_bytes: int | None


def chunks(
    batches: Iterator[pa.RecordBatch], most_rows: int = _CHUNK_ROWS, most_bytes: int = _CHUNK_BYTES
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


class _OpenFile:
    """One staged file while it grows."""

    def __init__(self, path: Path, folder: str, schema: pa.Schema, compression: str) -> None:
        self.path = path
        self.folder = folder
        self.rows = 0
        self._sink = open(path, "xb")  # noqa: SIM115  closed in `close`
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=compression,
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
        )

    @property
    def size(self) -> int:
        return self._sink.tell()

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self.rows += rows.num_rows
        start_writing_back(self._sink.fileno())

    def close(self) -> StagedFile:
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        sync_file(self.path)
        name = self.path.name.removesuffix(STAGED_SUFFIX)
        return StagedFile(name=name, folder=self.folder, rows=self.rows, size=size)

    def drop(self) -> None:
        self._sink.close()
        self.path.unlink(missing_ok=True)


class TaskFiles(OpenFiles[str, _OpenFile, StagedFile]):
    """The files of one attempt of a task, by partition folder.

    Args:
        folder: Where to stage; the planner has made it. Once it is gone, the generation is over,
            and a straggler must not bring it back.
        name: Name of the attempt's first file; later ones count up its index.
        shape: How rows are cut into files.
    """

    def __init__(self, folder: Path, name: DataFile, shape: FileShape) -> None:
        super().__init__()
        self._folder = folder
        self._shape = shape
        self._names = (name.numbered(count) for count in itertools.count())

    def write(self, rows: pa.Table) -> None:
        """Append rows to the files of their partitions."""
        for folder, part in split(rows, self._shape.partition_by):
            for piece in self._pieces(folder, part):
                self._append(folder, piece)

    def remove(self, closed: StagedFile) -> None:
        """Remove a staged file."""
        (self._folder / f"{closed.name}{STAGED_SUFFIX}").unlink(missing_ok=True)

    def _pieces(self, folder: str, rows: pa.Table) -> Iterator[pa.Table]:
        limit = self._shape.max_rows
        while limit is not None and rows.num_rows:
            current = self._open.get(folder)
            room = limit - (current.rows if current else 0)
            yield rows.slice(0, room)
            rows = rows.slice(room)
        if rows.num_rows:
            yield rows

    def _append(self, folder: str, rows: pa.Table) -> None:
        file = self.growing(folder, lambda: self._new(folder, rows.schema))
        file.write(rows)
        full = self._shape.max_rows is not None and file.rows >= self._shape.max_rows
        large = self._shape.target_bytes is not None and file.size >= self._shape.target_bytes
        if full or large:
            self.complete(folder)

    def _new(self, folder: str, schema: pa.Schema) -> _OpenFile:
        path = self._folder / f"{next(self._names)}{STAGED_SUFFIX}"
        return _OpenFile(path, folder, schema, self._shape.compression)
