"""What differs by where a table lies: on a disk, or in a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from krishiv_spark.errors import OptionError
from krishiv_spark.parquet.layout import PATH_OPTION, log_folder, staged_folder
from krishiv_spark.paths import local_path, url_scheme
from krishiv_spark.sinks.base import OutputMode, Task
from krishiv_spark.sinks.parquet.completing import UploadParticipant
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.sinks.parquet.participant import TableLogView
from krishiv_spark.sinks.parquet.renaming import DiskParticipant
from krishiv_spark.sinks.parquet.staging import DiskStaging, Staging, UploadStaging
from krishiv_spark.sinks.parquet.tables import DiskTable, StoreTable, TableFolder
from krishiv_spark.sinks.parquet.values import StagedFiles, StagedUploads
from krishiv_spark.sinks.participant import Participant
from krishiv_spark.storage import StoreUrl

__all__ = ["TableKind", "kind_of"]


class TableKind(Protocol):
    """The parts of the sink that go together. Any process."""

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
        self, mode: OutputMode, view: TableLogView, *, streaming: bool
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
    scheme = url_scheme(options.path)
    url = None if scheme in {None, "file"} else StoreUrl.parse(options.path)
    if url is None or url.kind == "disk":
        path = options.path if url is None else url.path
        return _OnDisk(options, local_path(path, PATH_OPTION))
    if not url.path.strip("/"):
        raise OptionError(f"{PATH_OPTION} {options.path!r} is all of a bucket: name a folder in it")
    return _InStore(options, StoreTable(url, options.storage))


class _OnDisk:
    def __init__(self, options: ParquetSinkOptions, path: Path) -> None:
        self._options = options
        self._path = path
        self.table = DiskTable(path)

    def staging(self, task: Task) -> DiskStaging:
        return DiskStaging(self._staged_folder(task))

    def staged(self, task: Task, files: Sequence[Any]) -> StagedFiles | None:
        folder = self._staged_folder(task).relative_to(self._path).as_posix()
        return StagedFiles(folder=folder, files=tuple(files)) if files else None

    def participant(
        self, mode: OutputMode, view: TableLogView, *, streaming: bool
    ) -> DiskParticipant:
        return DiskParticipant(self._options, self._path, mode, view, streaming=streaming)

    def log_location(self, query: str) -> str:
        return str(log_folder(self._path, query))

    def _staged_folder(self, task: Task) -> Path:
        return staged_folder(self._path, task.query, task.generation or 0)


class _InStore:
    def __init__(self, options: ParquetSinkOptions, table: StoreTable) -> None:
        self._options = options
        self.table = table

    def staging(self, task: Task) -> UploadStaging:
        del task  # names are of the attempt
        return UploadStaging(self.table.uploads)

    def staged(self, task: Task, files: Sequence[Any]) -> StagedUploads | None:
        del task
        return StagedUploads(files=tuple(files)) if files else None

    def participant(
        self, mode: OutputMode, view: TableLogView, *, streaming: bool
    ) -> UploadParticipant:
        return UploadParticipant(self._options, self.table, mode, view, streaming=streaming)

    def log_location(self, query: str) -> str:
        return str(self.table.meta_url(query, "log"))
