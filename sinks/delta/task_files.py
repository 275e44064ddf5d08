"""The files of one attempt at a task, with their statistics and partition values. Executor.

A file is durable when it is staged. No reader finds it before the log names it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from krishiv_spark.arrow.conform import conform
from krishiv_spark.arrow.partition_files import OpenFiles, chunks
from krishiv_spark.delta.file_statistics import FileStatistics, choose_indexed
from krishiv_spark.delta.opening import LOG, explain_errors, store_options, table_uri
from krishiv_spark.delta.options import FORMAT, DeltaOptions
from krishiv_spark.delta.partition_texts import PartitionKey, folder_of, split_rows
from krishiv_spark.durable import make_folder, remove_file, start_writing_back, sync_folder
from krishiv_spark.errors import OptionError
from krishiv_spark.sinks.base import Task
from krishiv_spark.sinks.delta.options import DeltaSinkOptions
from krishiv_spark.storage.paths import NameWithin

__all__ = ["StagedDeltaFile", "StagedDeltaFiles", "TargetTable", "delete_files", "write_files"]

# As of krishiv-parquet: a column whose values hardly repeat drops its dictionary at this size.
_DICTIONARY_BYTES = 64 * 2**10

_DISK_FILES, _STORE_FILES = 64, 16
"""Open files of a task. In a store, each needs memory for parts of an upload."""


class StagedDeltaFile(BaseModel, frozen=True):
    """A data file, as the log will name it.

    Attributes:
        path: Its path within the table.
        size: Bytes.
        partition: Names and texts of its partition columns.
        modified_ms: Time of its end, milliseconds since 1970 UTC.
        stats: Its statistics, as JSON.
    """

    path: NameWithin
    size: int
    partition: tuple[tuple[str, str | None], ...]
    modified_ms: int
    stats: str


class StagedDeltaFiles(BaseModel, frozen=True):
    """The files of one attempt at a task.

    Attributes:
        table: Id of the table that they were written for.
        version: Its version then.
        layout: Digest of its columns then, from `digest_layout`.
        files: The files; not empty.
    """

    table: str
    version: int
    layout: str
    files: tuple[StagedDeltaFile, ...]


@dataclass(frozen=True)
class TargetTable:
    """The table, as tasks need it.

    Attributes:
        id: Id in its metadata.
        version: Its version.
        layout: Digest of its columns, from `digest_layout`.
        columns: All columns, in its order.
        partition_by: Names of its partition columns.
        settings: Its properties.
    """

    id: str
    version: int
    layout: str
    columns: pa.Schema
    partition_by: tuple[str, ...]
    settings: Mapping[str, str]

    @property
    def file_columns(self) -> pa.Schema:
        """The columns that are in files."""
        return pa.schema([field for field in self.columns if field.name not in self.partition_by])


def write_files(
    options: DeltaSinkOptions, target: TargetTable, batches: Iterator[pa.RecordBatch], task: Task
) -> StagedDeltaFiles | None:
    """Write the rows of one task, with bounded memory and a bounded number of open files.

    Returns:
        The files, or None if there were no rows.

    Raises:
        OptionError: If the table's folder is not on this machine.
        SchemaError: If a value does not fit its column.
        StorageError: If a file cannot be written.
    """
    fitting = (conform(batch, target.columns, fill=True) for batch in batches)
    staging = _create_staging(options)
    with (
        explain_errors(options, "write a file of the table"),
        _TaskDataFiles(options, target, task, staging) as files,
    ):
        for rows in chunks(fitting):
            files.add(split_rows(rows, target.partition_by))
            del rows  # frees its memory before the next row group is collected
        written = files.close()
    if not written:
        return None
    return StagedDeltaFiles(
        table=target.id, version=target.version, layout=target.layout, files=written
    )


def delete_files(options: DeltaOptions, paths: Iterator[str]) -> None:
    """Delete files of the table that its log does not name; a missing one is no error."""
    staging = _create_staging(options)
    for path in paths:
        staging.remove(path)


class _Staging(Protocol):
    """The location in which files are written.

    Attributes:
        most_open: Maximum number of open files.
    """

    most_open: int

    def open(self, path: str) -> Any:
        """Create a file; no other attempt uses its path within the table."""
        ...

    def finish(self, path: str, sink: Any) -> None:
        """Close a file, and make it durable."""
        ...

    def remove(self, path: str) -> None:
        """Delete a file, if it exists."""
        ...


def _create_staging(options: DeltaOptions) -> _Staging:
    if options.is_local:
        return _DiskStaging(Path(options.url.path))
    return _StoreStaging(options)


class _DiskStaging:
    most_open = _DISK_FILES

    def __init__(self, table: Path) -> None:
        self._table = table

    def open(self, path: str) -> Any:
        if not (self._table / LOG).is_dir():
            raise OptionError(
                f"{FORMAT}: this machine has no table {self._table}: the folder must be on a file "
                "system that every worker shares"
            )
        file = self._table / path
        make_folder(file.parent)
        return file.open("xb")  # exclusive: an existing file is another attempt's

    def finish(self, path: str, sink: Any) -> None:
        with sink:
            sink.flush()
            os.fsync(sink.fileno())
        sync_folder((self._table / path).parent)

    def remove(self, path: str) -> None:
        remove_file(self._table / path)


class _StoreStaging:
    """A bucket, through the library's own client: a file appears when its upload is complete."""

    most_open = _STORE_FILES

    def __init__(self, options: DeltaOptions) -> None:
        self._options = options

    @cached_property
    def _files(self) -> Any:
        import pyarrow.fs
        from deltalake.fs import DeltaStorageHandler

        options = self._options
        handler = DeltaStorageHandler(table_uri(options), store_options(options))
        return pyarrow.fs.PyFileSystem(handler)

    def open(self, path: str) -> Any:
        return self._files.open_output_stream(path)

    def finish(self, path: str, sink: Any) -> None:
        del path
        sink.close()

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.delete_file(path)


class _OpenDeltaFile:
    """A data file that is being written."""

    def __init__(
        self, files: _TaskDataFiles, path: str, key: PartitionKey, schema: pa.Schema
    ) -> None:
        self._files, self._path, self._key = files, path, key
        self._sink = files.staging.open(path)
        self._statistics = FileStatistics(schema, files.indexed)
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=files.codec,
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
        )

    @property
    def room(self) -> int | None:
        options, rows = self._files.options, self._statistics.rows
        # Only with at least one row: a target below the size of a header would take none.
        if rows and options.target_file_size and self._sink.tell() >= options.target_file_size:
            return 0
        most = options.max_records_per_file
        return None if most is None else most - rows

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._statistics.add(rows)
        if self._files.options.is_local:
            start_writing_back(self._sink.fileno())

    def close(self) -> StagedDeltaFile:
        self._writer.close()
        size = self._sink.tell()
        self._files.staging.finish(self._path, self._sink)
        return StagedDeltaFile(
            path=self._path,
            size=size,
            partition=self._key,
            modified_ms=time.time_ns() // 1_000_000,
            stats=self._statistics.to_json(),
        )

    def drop(self) -> None:
        # Closed here, since the garbage collector would close the writer otherwise.
        with contextlib.suppress(Exception):
            self._writer.close()
        with contextlib.suppress(Exception):
            self._sink.close()
        self._files.staging.remove(self._path)


class _TaskDataFiles(OpenFiles[PartitionKey, _OpenDeltaFile, StagedDeltaFile]):
    """The files of one attempt at a task, by partition."""

    def __init__(
        self, options: DeltaSinkOptions, target: TargetTable, task: Task, staging: _Staging
    ) -> None:
        super().__init__()
        self.options, self.staging = options, staging
        self.most_open = staging.most_open
        self.indexed = choose_indexed(target.file_columns, target.settings)
        plain = options.compression in {"none", "uncompressed"}
        self.codec = "none" if plain else options.compression
        # The query, the epoch and the attempt are in the name, so that an operator can tell whose a
        # leftover is.
        begins = f"part-{task.partition:05d}-{task.query[:40]}-{task.epoch}-{task.nonce}"
        self._names = (f"{begins}-{count}.parquet" for count in itertools.count())

    def make(self, key: PartitionKey, schema: pa.Schema) -> _OpenDeltaFile:
        """Open a new file of a partition."""
        folder, name = folder_of(key), next(self._names)
        return _OpenDeltaFile(self, f"{folder}/{name}" if folder else name, key, schema)

    def remove(self, closed: StagedDeltaFile) -> None:
        """Delete a complete file."""
        self.staging.remove(closed.path)
