"""The staged files of a task's attempt: their messages, their locations, and their rows. Executor.

A disk stages files in a folder, a store as uploads that are not completed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from krishiv_spark.arrow.compute import children
from krishiv_spark.arrow.conform import conform
from krishiv_spark.arrow.partition_files import OpenFiles
from krishiv_spark.durable import remove_file, start_writing_back
from krishiv_spark.errors import StorageError
from krishiv_spark.parquet.layout import STAGED_SUFFIX, DataFile, check_shared, name_with_count
from krishiv_spark.parquet.partition_folders import split_by_partition
from krishiv_spark.storage import Uploads
from krishiv_spark.storage.no_links import open_own
from krishiv_spark.storage.paths import FileName, FolderWithin, NameWithin
from krishiv_spark.storage.uploads import Upload

__all__ = [
    "DiskStaging",
    "FileLayout",
    "StagedFile",
    "StagedFiles",
    "StagedUpload",
    "StagedUploads",
    "Staging",
    "StagingFile",
    "TaskFiles",
    "UploadStaging",
    "add_counts",
]


class StagedFile(BaseModel, frozen=True):
    """A staged file and its final path.

    Attributes:
        name: Its final name; on disks, without the number of files in the epoch until the epoch is
            published.
        folder: Its partition folder, relative to the table; empty without partitions.
        rows: Number of rows.
        size: Bytes.
    """

    name: FileName
    folder: FolderWithin
    rows: int
    size: int


class StagedFiles(BaseModel, frozen=True):
    """The files of one task; or, once per epoch in mode REPLACE, those that the epoch removes.

    Messages of tasks and intents contain it.

    Attributes:
        folder: Folder in which the files are staged, relative to the table.
        files: Files that become visible.
        removes: Visible files that are deleted, relative to the table.
    """

    folder: FolderWithin = ""
    files: tuple[StagedFile, ...] = ()
    removes: tuple[NameWithin, ...] = ()


class StagedUpload(StagedFile, frozen=True):
    """A file in a store that is not visible before its upload is completed.

    Attributes:
        upload: The upload.
    """

    upload: Upload


class StagedUploads(StagedFiles, frozen=True):
    """`StagedFiles`, in a store.

    Attributes:
        files: Files that become visible.
    """

    files: tuple[StagedUpload, ...] = ()


def add_counts(staged: Sequence[StagedFiles]) -> list[StagedFiles]:
    """Return the same files with final names that contain their number and the number of files.

    So a listing shows whether an epoch is complete, long after the log was compacted.
    """
    total = sum(len(item.files) for item in staged)
    numbers = itertools.count(1)
    return [
        item.model_copy(
            update={"files": tuple(_add_count(file, next(numbers), total) for file in item.files)}
        )
        for item in staged
    ]


def _add_count(file: StagedFile, number: int, total: int) -> StagedFile:
    return file.model_copy(update={"name": name_with_count(file.name, number, total)})


StagedT = TypeVar("StagedT")
StagedT_co = TypeVar("StagedT_co", covariant=True)


class StagingFile(Protocol[StagedT_co]):
    """A file that is being staged.

    Attributes:
        sink: File object that pyarrow writes to.
    """

    sink: Any

    def start_writing_back(self) -> None:
        """Let the system write the content so far to the disk."""
        ...

    def close(self, rows: int) -> StagedT_co:
        """Make the file durable, and return its description."""
        ...

    def drop(self) -> None:
        """Close and remove the file."""
        ...


class Staging(Protocol[StagedT]):
    """The location in which an attempt stages its files.

    Attributes:
        most_open: Maximum number of open files.
    """

    most_open: int

    def open(self, name: str, folder: str) -> StagingFile[StagedT]:
        """Create a file that no reader sees.

        Args:
            name: Its final name, except for the number of files. No other attempt uses it.
            folder: Folder of its partition, relative to the table; empty without partitions.
        """
        ...

    def remove(self, staged: StagedT) -> None:
        """Remove a staged file."""
        ...


class DiskStaging:
    """A `Staging` in a folder on a disk.

    Args:
        folder: Folder that the planner has created. When it is deleted, the generation has ended,
            and a straggler must not create it again.
    """

    most_open = 64

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, name: str, folder: str) -> _DiskFile:
        """Create a file. See `Staging`.

        Raises:
            OptionError: If the table's folder is not on this machine.
            FileNotFoundError: If the generation has ended.
        """
        try:
            return _DiskFile(self._folder, name, folder)
        except FileNotFoundError:
            check_shared(self._folder.parents[2])  # `_krishiv`, which stays
            raise

    def remove(self, staged: StagedFile) -> None:
        """Remove a staged file."""
        _remove(self._folder, staged.name)


def _remove(staging: Path, name: str) -> None:
    with contextlib.suppress(FileNotFoundError), open_own(staging) as folder:
        remove_file(f"{name}{STAGED_SUFFIX}", folder=folder)


# Exclusive: an existing file is another attempt's.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class _DiskFile:
    def __init__(self, staging: Path, name: str, folder: str) -> None:
        self._staging = staging
        self._name = name
        self._folder = folder
        with open_own(staging) as above:
            descriptor = os.open(f"{name}{STAGED_SUFFIX}", _NEW, 0o666, dir_fd=above)
        self.sink = open(descriptor, "wb")  # noqa: SIM115  closed in `close`

    def start_writing_back(self) -> None:
        start_writing_back(self.sink.fileno())

    def close(self, rows: int) -> StagedFile:
        size = self.sink.tell()
        with self.sink:
            self.sink.flush()
            # Here, tasks sync their files in parallel; the committer syncs only the names.
            os.fsync(self.sink.fileno())
        return StagedFile(name=self._name, folder=self._folder, rows=rows, size=size)

    def drop(self) -> None:
        self.sink.close()
        _remove(self._staging, self._name)


class UploadStaging:
    """A `Staging` in a store.

    Args:
        uploads: Uploads to the table's folder.
    """

    most_open = 16  # each needs memory for parts of 8 MiB and more

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads

    def open(self, name: str, folder: str) -> _UploadFile:
        """Start an upload."""
        return _UploadFile(self._uploads, name, folder)

    def remove(self, staged: StagedUpload) -> None:
        """Discard an upload. Its error is ignored: the attempt's own error is the cause."""
        with contextlib.suppress(StorageError):
            self._uploads.discard(staged.upload)


class _UploadFile:
    def __init__(self, uploads: Uploads, name: str, folder: str) -> None:
        self._name = name
        self._folder = folder
        self.sink = uploads.open(f"{folder}/{name}" if folder else name)

    def start_writing_back(self) -> None:
        """Do nothing: parts are sent when they are full."""

    def close(self, rows: int) -> StagedUpload:
        upload = self.sink.close()
        return StagedUpload(
            name=self._name, folder=self._folder, rows=rows, size=upload.size, upload=upload
        )

    def drop(self) -> None:
        with contextlib.suppress(StorageError):  # as in `UploadStaging.remove`
            self.sink.abort()


# --- the files of a task

# A column whose values hardly repeat drops its dictionary at this size: with pyarrow's default of
# 1 MB, encoding takes a fifth longer without a benefit.
_DICTIONARY_BYTES = 64 * 2**10


@dataclass(frozen=True)
class FileLayout:
    """The layout of rows in files.

    Attributes:
        partition_by: Columns that become folders.
        compression: pyarrow's name of the codec.
        max_rows: Maximum number of rows in a file, None for no limit.
        target_bytes: A file is closed when it has grown to this size, None for no limit.
    """

    partition_by: tuple[str, ...]
    compression: str
    max_rows: int | None
    target_bytes: int | None


class _OpenFile(Generic[StagedT]):
    """A staged file that is being written."""

    def __init__(self, file: StagingFile[StagedT], schema: pa.Schema, layout: FileLayout) -> None:
        self.rows = 0
        self._file = file
        self._layout = layout
        self._writer = pq.ParquetWriter(
            file.sink,
            schema,
            compression=layout.compression,
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
        )

    @property
    def room(self) -> int | None:
        most_rows, most_bytes = self._layout.max_rows, self._layout.target_bytes
        # Only with at least one row: if the target is smaller than the file's header, no row would
        # ever fit.
        if self.rows and most_bytes is not None and self._file.sink.tell() >= most_bytes:
            return 0
        return None if most_rows is None else most_rows - self.rows

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self.rows += rows.num_rows
        self._file.start_writing_back()

    def close(self) -> StagedT:
        self._writer.close()
        return self._file.close(self.rows)

    def drop(self) -> None:
        # Closed here, since the garbage collector would close the writer otherwise.
        with contextlib.suppress(Exception):
            self._writer.close()
        self._file.drop()


class TaskFiles(OpenFiles[str, _OpenFile[StagedT], StagedT]):
    """The files of one attempt of a task, by partition folder.

    Args:
        staging: The location for the files.
        name: Name of the attempt's first file; each further file has the next index.
        layout: Layout of the files.
    """

    def __init__(self, staging: Staging[StagedT], name: DataFile, layout: FileLayout) -> None:
        super().__init__()
        self.most_open = staging.most_open
        self._staging = staging
        self._layout = layout
        self._names = (str(name.with_index(count)) for count in itertools.count())

    def write(self, rows: pa.Table) -> None:
        """Append the rows of one chunk to the files of their partitions.

        Raises:
            SchemaError: If a partition's value cannot be the name of a folder.
        """
        self.add(split_by_partition(_to_micros(rows), self._layout.partition_by))

    def make(self, key: str, schema: pa.Schema) -> _OpenFile[StagedT]:
        """Open a new file for a partition's folder."""
        file = self._staging.open(next(self._names), key)
        return _OpenFile(file, schema, self._layout)

    def remove(self, closed: StagedT) -> None:
        """Remove a staged file."""
        self._staging.remove(closed)


def _to_micros(rows: pa.Table) -> pa.Table:
    """Return rows with times of day in microseconds, which all versions of Spark read.

    Arrow has them in nanoseconds, and Spark 4.1 refuses such files.
    """
    schema = pa.schema([field.with_type(_to_micros_type(field.type)) for field in rows.schema])
    if schema == rows.schema:
        return rows
    return pa.Table.from_batches([conform(batch, schema) for batch in rows.to_batches()], schema)


def _to_micros_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_struct(kind):
        fields = children(kind)
        return pa.struct([field.with_type(_to_micros_type(field.type)) for field in fields])
    if pa.types.is_map(kind):
        item = kind.item_field.with_type(_to_micros_type(kind.item_type))
        return pa.map_(_to_micros_type(kind.key_type), item)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_to_micros_type(kind.value_type)))
    return kind
