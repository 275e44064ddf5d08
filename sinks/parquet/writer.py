"""The sink ``krishiv-parquet``: exactly once, for every reader of the folder.

Tasks stage files that no reader finds: under names that no glob for Parquet matches, or in a store,
as uploads that are not completed. The driver logs an intent that names them, and only then renames
or completes them. A reader that does not know this protocol sees whole files of logged epochs, and
nothing else. The unit of parallelism is Spark's task.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from krishiv_spark.arrow.partition_files import chunks
from krishiv_spark.errors import Fenced, OptionError, UploadGoneError
from krishiv_spark.parquet.layout import (
    PATH_OPTION,
    DataFile,
    log_within,
    query_tag,
    staged_folder,
    staged_within,
)
from krishiv_spark.parquet.table_identity import Pointer, read_table_id
from krishiv_spark.sinks.base import OutputMode, Task
from krishiv_spark.sinks.logged_writer import LoggedWriter, LogView
from krishiv_spark.sinks.parquet.checks import (
    check_columns,
    check_no_links,
    check_no_sink_log,
    check_partitioning,
    check_same_types,
)
from krishiv_spark.sinks.parquet.disk_table import DiskParticipant, DiskTable
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.sinks.parquet.participant import TableFolder, TableLogView
from krishiv_spark.sinks.parquet.staging import (
    DiskStaging,
    StagedFiles,
    StagedUploads,
    Staging,
    TaskFiles,
    UploadStaging,
)
from krishiv_spark.sinks.parquet.store_table import StoreTable, UploadParticipant
from krishiv_spark.sinks.participant import Participant
from krishiv_spark.spark.query_target import QueryTarget
from krishiv_spark.storage import Storage, StoreUrl
from krishiv_spark.storage.paths import local_path, url_scheme

__all__ = ["ParquetSinkOptions", "ParquetWriter", "TableKind", "choose_kind"]

_FORMAT = "krishiv-parquet"


class ParquetWriter(LoggedWriter[StagedFiles]):
    """A writer of files in a folder.

    An epoch is true when its intent is in the log under ``_krishiv/``.
    """

    options_type = ParquetSinkOptions
    options: ParquetSinkOptions

    @cached_property
    def _kind(self) -> TableKind:
        return choose_kind(self.options)

    def check(self) -> None:
        """Planner: check that the folder can be written, and that Parquet and it fit the rows."""
        self._check(makes=True)

    def check_start(self) -> None:
        """Planner: check as `check`, but create no folder."""
        self._check(makes=False)

    def _check(self, *, makes: bool) -> None:
        check_columns(self.schema, self.options.partition_by)
        table = self._kind.table
        table.check_writable(makes=makes)
        check_no_sink_log(table)
        check_same_types(table, self.schema)
        if self.mode is not OutputMode.APPEND:
            check_no_links(table)
        is_stream = self.streaming and self.options.job is None
        if self.mode is OutputMode.APPEND or is_stream:
            check_partitioning(table, self.options.partition_by)

    def describe_target(self) -> QueryTarget:
        """Driver: describe the table by the id in its folder, which does not depend on mounts."""
        found = read_table_id(self._kind.table.meta())
        identity = None if found is None else f"Parquet table {found}"
        return QueryTarget.of(_FORMAT, str(self._kind.table), identity, self.options.secrets())

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: None
    ) -> StagedFiles | None:
        """Executor: write files durably, under names that only this attempt uses."""
        del plan
        name = DataFile(task.epoch, task.partition, 0, query_tag(task.query), task.nonce)
        try:
            with TaskFiles(self._kind.staging(task), name, self.options.file_layout()) as files:
                for rows in chunks(batches):
                    files.write(rows)
                    del rows  # frees its memory before the next row group is collected
                return self._kind.to_message(task, files.close())
        except (FileNotFoundError, UploadGoneError) as error:
            raise Fenced(
                f"the files that generation {task.generation} of query {task.query} staged in "
                f"{self._kind.table} were removed: another driver on the same checkpoint has "
                "taken over"
            ) from error

    def participant(self, view: LogView) -> Participant[Any]:
        """Driver: return the participant of the table's folder."""

        def pointer(query: str) -> Pointer | None:
            location = view.place(query)
            is_near = location == self._kind.log_location(query)
            # Absolute, since its readers do not run in the working folder of this driver.
            return None if is_near else Pointer(str(StoreUrl.parse(location)), view.route)

        of_table = TableLogView(view.is_owner, pointer)
        kind = self._kind
        return kind.participant(self.options, self.mode, of_table, streaming=self.streaming)

    def log_location(self, query: str) -> str:
        """Driver: return the log's location, by default in the table's folder."""
        configured = self.options.epoch_log
        if configured is None:
            return self._kind.log_location(query)
        return f"{configured.rstrip('/')}/{query}"


# --- the parts that differ between disks and stores


class TableKind(Protocol):
    """The parts of the sink for one kind of table. Any process; made once for each table."""

    @property
    def table(self) -> TableFolder:
        """The table's folder."""
        ...

    def staging(self, task: Task) -> Staging[Any]:
        """Executor: return the staging of an attempt."""
        ...

    def to_message(self, task: Task, files: Sequence[Any]) -> StagedFiles | None:
        """Executor: return the message of an attempt to the driver; None without a file."""
        ...

    def participant(
        self, options: ParquetSinkOptions, mode: OutputMode, view: TableLogView, *, streaming: bool
    ) -> Participant[Any]:
        """Driver: return the participant that makes files visible."""
        ...

    def log_location(self, query: str) -> str:
        """Driver: return the default location of the epoch log."""
        ...


def choose_kind(options: ParquetSinkOptions) -> TableKind:
    """Return the kind of a table by the scheme of its path.

    Raises:
        OptionError: If that is not known, or is a whole bucket.
    """
    path = options.path
    if url_scheme(path) is None and not os.path.isabs(path):
        path = os.path.join(os.getcwd(), path)  # the working folder may change before the next call
    return _make_kind(path, options.storage)


@lru_cache(maxsize=64)
def _make_kind(path: str, storage: Storage) -> TableKind:
    url = None if url_scheme(path) in {None, "file"} else StoreUrl.parse(path)
    if url is None or url.kind == "disk":
        return _OnDisk(local_path(path if url is None else url.path, PATH_OPTION))
    if not url.path.strip("/"):
        raise OptionError(f"{PATH_OPTION} {path!r} is a whole bucket: name a folder in it")
    return _InStore(StoreTable(url, storage))


class _OnDisk:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.table = DiskTable(path)

    def staging(self, task: Task) -> DiskStaging:
        return DiskStaging(staged_folder(self._path, task.query, task.generation or 0))

    def to_message(self, task: Task, files: Sequence[Any]) -> StagedFiles | None:
        folder = staged_within(task.query, task.generation or 0)
        return StagedFiles(folder=folder, files=tuple(files)) if files else None

    def participant(
        self, options: ParquetSinkOptions, mode: OutputMode, view: TableLogView, *, streaming: bool
    ) -> DiskParticipant:
        return DiskParticipant(options, self.table, mode, view, streaming=streaming)

    def log_location(self, query: str) -> str:
        return f"{self._path}/{log_within(query)}"


class _InStore:
    def __init__(self, table: StoreTable) -> None:
        self.table = table

    def staging(self, task: Task) -> UploadStaging:
        del task  # the names of its files contain the attempt
        return UploadStaging(self.table.uploads)

    def to_message(self, task: Task, files: Sequence[Any]) -> StagedUploads | None:
        del task
        return StagedUploads(files=tuple(files)) if files else None

    def participant(
        self, options: ParquetSinkOptions, mode: OutputMode, view: TableLogView, *, streaming: bool
    ) -> UploadParticipant:
        return UploadParticipant(options, self.table, mode, view, streaming=streaming)

    def log_location(self, query: str) -> str:
        return str(self.table.meta_url(query, "log"))
