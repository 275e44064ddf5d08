"""What differs by where a table lies: on a disk, or in a store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from krishiv_spark.errors import OptionError
from krishiv_spark.parquet.layout import PATH_OPTION, log_within, staged_folder, staged_within
from krishiv_spark.sinks.base import OutputMode, Task
from krishiv_spark.sinks.parquet.completing import UploadParticipant
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.sinks.parquet.participant import TableLogView
from krishiv_spark.sinks.parquet.renaming import DiskParticipant
from krishiv_spark.sinks.parquet.staging import DiskStaging, Staging, UploadStaging
from krishiv_spark.sinks.parquet.tables import DiskTable, StoreTable, TableFolder
from krishiv_spark.sinks.parquet.values import StagedFiles, StagedUploads
from krishiv_spark.sinks.participant import Participant
from krishiv_spark.storage import Storage, StoreUrl
from krishiv_spark.storage.paths import local_path, url_scheme

__all__ = ["TableKind", "kind_of"]


class TableKind(Protocol):
    """The parts of the sink that go together. Any process; made once for each table."""

    @property
    def table(self) -> TableFolder:
        """The table's folder."""
        ...

    def staging(self, task: Task) -> Staging[Any]:
        """Executor: where an attempt stages its files."""
        ...

    def staged(self, task: Task, files: Sequence[Any]) -> StagedFiles | None:
        """Executor: what an attempt tells the driver of its files; None of no file."""
        ...

    def participant(
        self, options: ParquetSinkOptions, mode: OutputMode, view: TableLogView, *, streaming: bool
    ) -> Participant[Any]:
        """Driver: who makes them visible."""
        ...

    def log_location(self, query: str) -> str:
        """Driver: where the epoch log is, unless an option says otherwise."""
        ...


def kind_of(options: ParquetSinkOptions) -> TableKind:
    """By the scheme of a table's path.

    Raises:
        OptionError: If that is not known, or is a whole bucket.
    """
    path = options.path
    if url_scheme(path) is None and not os.path.isabs(path):
        path = os.path.join(os.getcwd(), path)  # which may be another folder by the next time
    return _kind_at(path, options.storage)


@lru_cache(maxsize=64)
def _kind_at(place: str, storage: Storage) -> TableKind:
    url = None if url_scheme(place) in {None, "file"} else StoreUrl.parse(place)
    if url is None or url.kind == "disk":
        return _OnDisk(local_path(place if url is None else url.path, PATH_OPTION))
    if not url.path.strip("/"):
        raise OptionError(f"{PATH_OPTION} {place!r} is all of a bucket: name a folder in it")
    return _InStore(StoreTable(url, storage))


class _OnDisk:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.table = DiskTable(path)

    def staging(self, task: Task) -> DiskStaging:
        return DiskStaging(staged_folder(self._path, task.query, task.generation or 0))

    def staged(self, task: Task, files: Sequence[Any]) -> StagedFiles | None:
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
        del task  # names are of the attempt
        return UploadStaging(self.table.uploads)

    def staged(self, task: Task, files: Sequence[Any]) -> StagedUploads | None:
        del task
        return StagedUploads(files=tuple(files)) if files else None

    def participant(
        self, options: ParquetSinkOptions, mode: OutputMode, view: TableLogView, *, streaming: bool
    ) -> UploadParticipant:
        return UploadParticipant(options, self.table, mode, view, streaming=streaming)

    def log_location(self, query: str) -> str:
        return str(self.table.meta_url(query, "log"))
