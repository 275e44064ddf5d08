"""Writing one task's rows into staged Parquet files, in bounded memory. Executor."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from krishiv_spark.arrow import conform
from krishiv_spark.durable import start_writing_back, sync_file
from krishiv_spark.nested import children
from krishiv_spark.openfiles import OpenFiles
from krishiv_spark.parquet.names import STAGED_SUFFIX, DataFile
from krishiv_spark.parquet.partitions import split

__all__ = ["FileLayout", "StagedFile", "StagedFiles", "TaskFiles", "counted"]

# A column whose values hardly repeat gives up its dictionary at this size: pyarrow's default, 1 MB,
# costs a fifth of the encoding for nothing.
_DICTIONARY_BYTES = 64 * 2**10


class StagedFile(BaseModel, frozen=True):
    """A staged file and where it will be visible.

    Attributes:
        name: Its final name; until the epoch is published, without the number of files in it.
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


def counted(staged: Sequence[StagedFiles]) -> list[StagedFiles]:
    """The same files, each with a final name that says which of how many it is.

    So a listing tells whether an epoch is whole, long after its intent was folded away.
    """
    total = sum(len(item.files) for item in staged)
    numbers = itertools.count(1)
    return [
        item.model_copy(
            update={"files": tuple(_counted(file, next(numbers), total) for file in item.files)}
        )
        for item in staged
    ]


def _counted(file: StagedFile, number: int, total: int) -> StagedFile:
    name = DataFile.parse(file.name)
    final = file.name if name is None else str(name.counted(number, total))
    return file.model_copy(update={"name": final})


@dataclass(frozen=True)
class FileLayout:
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


class _OpenFile:
    """One staged file while it grows."""

    def __init__(self, path: Path, folder: str, schema: pa.Schema, layout: FileLayout) -> None:
        self.path = path
        self.folder = folder
        self.rows = 0
        self._layout = layout
        # Exclusive: a name that is taken is another attempt's, whatever it holds.
        self._sink = open(path, "xb")  # noqa: SIM115  closed in `close`
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=layout.compression,
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
        )

    @property
    def room(self) -> int | None:
        most_rows, most_bytes = self._layout.max_rows, self._layout.target_bytes
        # With a row at least: below a target that is smaller than the file's own head, none would
        # ever fit.
        if self.rows and most_bytes is not None and self._sink.tell() >= most_bytes:
            return 0
        return None if most_rows is None else most_rows - self.rows

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self.rows += rows.num_rows
        start_writing_back(self._sink.fileno())

    def close(self) -> StagedFile:
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        # By the task, side by side with the others; the committer has only the names left to sync.
        sync_file(self.path)
        name = self.path.name.removesuffix(STAGED_SUFFIX)
        return StagedFile(name=name, folder=self.folder, rows=self.rows, size=size)

    def drop(self) -> None:
        with contextlib.suppress(Exception):  # or it is tried when the writer is collected
            self._writer.close()
        self._sink.close()
        self.path.unlink(missing_ok=True)


class TaskFiles(OpenFiles[str, _OpenFile, StagedFile]):
    """The files of one attempt of a task, by partition folder.

    Args:
        folder: Where to stage; the planner has made it. Once it is gone, the generation is over,
            and a straggler must not bring it back.
        name: Name of the attempt's first file; later ones count up its index.
        layout: How rows are cut into files.
    """

    def __init__(self, folder: Path, name: DataFile, layout: FileLayout) -> None:
        super().__init__()
        self._folder = folder
        self._layout = layout
        self._names = (name.numbered(count) for count in itertools.count())

    def write(self, rows: pa.Table) -> None:
        """Append the rows of one chunk to the files of their partitions.

        Raises:
            SchemaError: If a partition's value cannot be the name of a folder.
        """
        self.add(split(_as_stored(rows), self._layout.partition_by))

    def make(self, key: str, schema: pa.Schema) -> _OpenFile:
        """Open a new file for a partition's folder."""
        path = self._folder / f"{next(self._names)}{STAGED_SUFFIX}"
        return _OpenFile(path, key, schema, self._layout)

    def remove(self, closed: StagedFile) -> None:
        """Remove a staged file."""
        (self._folder / f"{closed.name}{STAGED_SUFFIX}").unlink(missing_ok=True)


def _as_stored(rows: pa.Table) -> pa.Table:
    """Rows with times of day in microseconds, which Spark has, and which all of its versions read.

    Arrow carries them in nanoseconds, and Spark 4.1 refuses files with those.
    """
    schema = pa.schema([field.with_type(_stored_type(field.type)) for field in rows.schema])
    if schema == rows.schema:
        return rows
    return pa.Table.from_batches([conform(batch, schema) for batch in rows.to_batches()], schema)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_struct(kind):
        fields = children(kind)
        return pa.struct([field.with_type(_stored_type(field.type)) for field in fields])
    if pa.types.is_map(kind):
        item = kind.item_field.with_type(_stored_type(kind.item_type))
        return pa.map_(_stored_type(kind.key_type), item)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_stored_type(kind.value_type)))
    return kind
