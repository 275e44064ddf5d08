"""A table in a store: its folder, and the participant that completes uploads. Driver.

Staged files are uploads that are not completed. An intent names them, and the process that finishes
it completes them in parallel. To complete one again does nothing. But if neither an upload nor its
file exists, the upload may have been aborted; or it was completed, and the file was removed since,
by another job that overwrites the table, or by its owner. So `finish` writes a marker when all
files are visible, and a process that finds the marker checks nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from krishiv_spark.errors import CommitRejected, CommitUnknown, OptionError, SinkError, StorageError
from krishiv_spark.parquet.calendars import corrected_schema
from krishiv_spark.parquet.file_end import MAGIC
from krishiv_spark.parquet.inputs import open_input
from krishiv_spark.parquet.layout import (
    META,
    SINK_LOG,
    DataFile,
    is_data,
    is_hidden,
    query_tag,
)
from krishiv_spark.parquet.table_identity import ensure_table_id
from krishiv_spark.parquet.table_logs import StoreTableLog
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.runtime.retry import map_in_parallel
from krishiv_spark.sinks.base import Epoch, OutputMode
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.sinks.parquet.participant import TableLogView, TableParticipant
from krishiv_spark.sinks.parquet.staging import StagedUpload, StagedUploads
from krishiv_spark.sinks.participant import LostIntentError, advise_retry
from krishiv_spark.spark.checkpoint import BATCH_PREFIX
from krishiv_spark.storage import Folder, PendingUpload, Storage, StoreUrl, Uploads, UploadState

__all__ = ["StoreTable", "UploadParticipant"]

_MOST_COPIED = 5 * 2**30
"""Bytes that S3's CopyObject copies at most."""

_CHECKED_AFTER_MS = 3_600_000
_EXPIRES_AFTER_MS = 86_400_000
"""Rules of a bucket that abort uploads count in days. A younger upload was aborted by a person, or
its file was visible and has been removed: then its epoch must not simply be staged again."""


@dataclass(frozen=True)
class StoreTable:
    """A `TableFolder` in a store.

    Attributes:
        url: URL of the folder.
        storage: Access to the store.
    """

    url: StoreUrl
    storage: Storage

    def __str__(self) -> str:
        return str(self.url)

    @property
    def uploads(self) -> Uploads:
        """Uploads to the folder."""
        return self.storage.uploads(self.url)

    def check_writable(self, *, makes: bool = True) -> None:
        """Check that the folder can be written, once in a process: permissions rarely change."""
        del makes  # there are no folders
        _check_allowed(self)

    def visible(self) -> Iterator[str]:
        """Yield the relative paths of visible files. A request for each thousand files."""
        for name in self._folder.iter_files():
            *folders, file = name.split("/")
            if is_data(file) and not any(map(is_hidden, (*folders, file))):  # noqa: SIM102  the second reads
                if "." in file or self._ends_as_parquet(name):
                    yield name

    def links(self) -> Iterator[str]:
        """Yield nothing: stores have no links."""
        return iter(())

    def schema_of(self, name: str) -> pa.Schema:
        """Return the readable columns of a file, from its footer."""
        try:
            length = int.from_bytes((self._folder.tail(name, 8) or b"")[:4], "little")
            footer = pa.BufferReader(self._folder.tail(name, length + 8) or b"")
            return corrected_schema(open_input(footer))
        except pa.ArrowException:
            return pa.schema([])

    def has_sink_log(self) -> bool:
        """Return True if the folder has a log of Spark's own file sink. A request."""
        return bool(self.storage.folder(self.url / SINK_LOG).names())

    def meta(self, *names: str) -> Folder:
        """Return ``_krishiv``, or a folder below it."""
        return self.storage.folder(self.meta_url(*names))

    def check_movable(self, names: Sequence[str]) -> None:
        """Check that S3 can copy each file by one request."""
        if self.url.kind != "s3":
            return
        files = self.storage.files(self.url)
        paths = [f"{self.url}/{name}" for name in names]
        for path, found in zip(paths, files.map(files.identity, paths), strict=True):
            if found is not None and found.size > _MOST_COPIED:
                raise OptionError(
                    f"krishiv-parquet {self}: {path} has {found.size} bytes, and S3 copies at most "
                    f"{_MOST_COPIED} by one request, so it cannot be moved. Nothing was changed: "
                    "replay from a later epoch"
                )

    def move(self, name: str, to: str) -> None:
        """Move a file within the folder: a copy in the store, and a removal."""
        self._folder.move(name, to)

    def logs(self, epoch_logs: tuple[str, ...], storage: Storage) -> Iterator[StoreTableLog]:
        """Yield the logs of the queries and jobs that write the table."""
        del storage  # that of the table
        return (self.log_of(name, epoch_logs) for name in self.meta().names())

    def meta_url(self, *names: str) -> StoreUrl:
        """Return the URL of `meta`."""
        url = self.url / META
        for name in names:
            url /= name
        return url

    def log_of(self, query: str, epoch_logs: tuple[str, ...] = ()) -> StoreTableLog:
        """Return the log of a query or a batch job.

        Args:
            query: Id of the query or job.
            epoch_logs: As for `QueryLog`.
        """
        return StoreTableLog(self.url, query, self.storage, epoch_logs)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files in parallel; a missing file is not an error."""
        map_in_parallel(lambda name: self._folder.remove([name]), list(names))

    def _ends_as_parquet(self, name: str) -> bool:
        return (self._folder.tail(name, 8) or b"")[4:] in MAGIC

    @property
    def _folder(self) -> Folder:
        return self.storage.folder(self.url)


@lru_cache(maxsize=64)
def _check_allowed(table: StoreTable) -> None:
    """Try the requests of epochs: list, start an upload, list uploads, abort one."""
    try:
        next(iter(table.visible()), None)
        table.uploads.verify()
    except StorageError as error:
        raise OptionError(f"krishiv-parquet: 'path' {table} cannot be written: {error}") from error


class UploadParticipant(TableParticipant[StagedUploads]):
    """A participant that completes the uploads of a query, and aborts its abandoned ones.

    Args:
        options: Options of the sink.
        table: The table's folder.
        mode: The output mode, by which epochs add rows or replace them.
        view: View of the log.
        streaming: True for a stream, whose epochs follow one another.
    """

    staged_type = StagedUploads

    def __init__(
        self,
        options: ParquetSinkOptions,
        table: StoreTable,
        mode: OutputMode,
        view: TableLogView,
        *,
        streaming: bool,
    ) -> None:
        super().__init__(table, options, view, streaming=streaming)
        self._table = table
        self._mode = mode
        self._is_due = False
        self._newest: dict[str, int | None] = {}

    # --- committer

    def prepare(
        self, epoch: Epoch, staged: Sequence[StagedUploads], salvaged: Sequence[StagedUploads]
    ) -> Sequence[StagedUploads]:
        """Committer: check old uploads, which may have been aborted.

        In mode REPLACE, find the files to delete.

        Raises:
            CommitRejected: If an upload was aborted.
        """
        del salvaged  # no part of an epoch is ever salvaged
        old = [file for file in _files(staged) if _age_ms(file) > _CHECKED_AFTER_MS]
        gone = [
            file
            for file, became in self._read_statuses(old).items()
            if became is UploadState.MISSING
        ]
        if gone:
            raise CommitRejected(
                f"epoch {epoch.number}: {self._describe_missing(gone)} before it was published; "
                "nothing is visible of the epoch: restart the query, which stages it again"
            )
        if self._mode is OutputMode.APPEND:
            return staged
        return [*staged, StagedUploads(removes=tuple(self.find_replaced(epoch)))]

    def finish(self, epoch: Epoch, staged: Sequence[StagedUploads]) -> None:
        """Driver: complete every upload in parallel, then remove replaced files.

        Raises:
            LostIntentError: If missing uploads are so old that the store may have aborted them, and
                nothing is visible.
            CommitUnknown: If uploads are missing otherwise, or the store does not respond.
        """
        try:
            files = _files(staged)
            completed = map_in_parallel(self._table.uploads.complete, [f.upload for f in files])
            gone = [file for file, visible in zip(files, completed, strict=True) if not visible]
            if gone:
                raise self._lost_error(epoch, gone, is_visible=any(completed))
            self._remove_replaced(staged)
            self._table.log_of(epoch.query).mark_finished(epoch.generation or 0)
        except StorageError as error:
            raise self._unknown_error(epoch, error) from error

    def finish_or_salvage(self, epoch: Epoch, staged: Sequence[StagedUploads]) -> None:
        """Driver: finish the epoch, unless an upload is missing: then nothing more may be visible.

        Raises:
            LostIntentError: As `finish`.
            CommitUnknown: As `finish`.
        """
        try:
            found = self._read_statuses(_files(staged))
            gone = [file for file, became in found.items() if became is UploadState.MISSING]
            if gone and UploadState.VISIBLE not in found.values() and _may_have_expired(gone):
                self._abort(staged)
                found = self._read_statuses(
                    _files(staged)
                )  # another driver may have completed some
        except StorageError as error:
            raise self._unknown_error(epoch, error) from error
        if gone:
            raise self._lost_error(epoch, gone, is_visible=UploadState.VISIBLE in found.values())
        self.finish(epoch, staged)

    def is_finished(self, epoch: Epoch) -> bool:
        """Driver: return True by the marker of `finish`, or by Spark's commit log of a stream.

        An older driver that finishes late may overwrite the marker of a generation.
        """
        if self._table.log_of(epoch.query).is_finished(epoch.generation or 0):
            return True
        is_job = epoch.query.startswith(BATCH_PREFIX)
        checkpoint = None if is_job else self._options.checkpoint_of_epochs()
        return checkpoint is not None and checkpoint.is_committed(epoch.number)

    def discard(self, staged: Sequence[StagedUploads]) -> None:
        """Driver: discard uploads that no intent names."""
        map_in_parallel(self._table.uploads.discard, [file.upload for file in _files(staged)])

    def abandon(self, epoch: Epoch) -> None:
        """Driver: discard the uploads that failed attempts have not completed."""
        discard_open_uploads(self._table, epoch, self._view.is_owner)

    def forget(self, query: str) -> None:
        """Driver: remove the folder of a batch job that has ended."""
        self._table.meta(query).destroy()

    # --- planner

    def target(self) -> str | None:
        """Planner: describe the table by its id, which is read once in a process."""
        found = _ensure_id(self._table)
        return f"Parquet table {found}" if self._streaming else None

    def newest_generation(self, query: str) -> int | None:
        """Planner: return the generation in the marker, a request. `contains` uses the result."""
        self._newest[query] = self._table.log_of(query).finished_generation()
        return self._newest[query]

    def contains(self, epoch: Epoch, staged: Sequence[StagedUploads]) -> bool | None:
        """Planner: return True by the marker, or by the files if the marker is older.

        A fenced driver may have written an older marker over a later one.
        """
        if epoch.query not in self._newest:
            self.newest_generation(epoch.query)
        finished = self._newest[epoch.query]
        if finished is None and self._has_started(epoch.query):
            return True  # an earlier version has finished all
        if finished is not None and finished >= (epoch.generation or 0):
            return True
        files = _files(staged)
        return UploadState.VISIBLE in self._read_statuses(files).values() if files else None

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:
        """Planner: discard the open uploads of this query, which are of earlier generations.

        This runs when the query starts, after an epoch that failed, and periodically: lost attempts
        never reported their uploads.
        """
        self._is_due = is_sweep_due(self._table, query, clean=clean)
        if not self._is_due:
            return
        self._point_to_log(query)
        # Before this generation publishes: in a new log, generations start at 1 again.
        self._table.log_of(query).remove_later_marker(generation)
        discard_open_uploads(self._table, Epoch(query, -1, generation), self._view.is_owner)

    def orphaned_jobs(self) -> Iterator[StoreTableLog]:
        """Driver: yield batch jobs, whose drivers may have died.

        They are listed as often as `sweep` runs, and by each overwrite.
        """
        is_due = self._is_due or self._mode is not OutputMode.APPEND
        for name in self._table.meta().names() if is_due else ():
            if name.startswith(BATCH_PREFIX):
                job = self._table.log_of(name, self._options.epoch_logs)
                if job.may_be_finished():
                    yield job

    # --- operator

    def force_outcome(
        self, epoch: Epoch, staged: Sequence[StagedUploads], *, committed: bool
    ) -> None:
        """Operator: complete the uploads that exist, or abort them and remove visible files.

        Files that the epoch has replaced do not return.
        """
        if committed:
            uploads = [file.upload for file in _files(staged)]
            map_in_parallel(self._table.uploads.complete, uploads)
            self._remove_replaced(staged)
            self._table.log_of(epoch.query).mark_finished(epoch.generation or 0)
        else:
            self._abort(staged)
            self._table.remove(file.upload.key for file in _files(staged))

    # --- files

    def _remove_replaced(self, staged: Sequence[StagedUploads]) -> None:
        self._table.remove(name for item in staged for name in item.removes)

    def _abort(self, staged: Sequence[StagedUploads]) -> None:
        """Abort uploads that an intent names, since a fenced driver may still complete them."""
        map_in_parallel(self._table.uploads.abort, [file.upload for file in _files(staged)])

    def _read_statuses(self, files: Sequence[StagedUpload]) -> Mapping[StagedUpload, UploadState]:
        found = map_in_parallel(self._table.uploads.state, [file.upload for file in files])
        return dict(zip(files, found, strict=True))

    def _lost_error(
        self, epoch: Epoch, gone: Sequence[StagedUpload], *, is_visible: bool
    ) -> SinkError:
        text = f"epoch {epoch.number}: {self._describe_missing(gone)} before it was completed"
        if not is_visible and _may_have_expired(gone):
            return LostIntentError(
                f"{text}; nothing is visible of the epoch: restart the query, which stages it again"
            )
        return CommitUnknown(
            f"{text}, or the file was there and has been removed. 'krishiv-spark log resolve "
            "--assume committed' skips it; '--assume aborted' reverts the epoch, which is "
            "staged again"
        )

    def _describe_missing(self, gone: Sequence[StagedUpload]) -> str:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        first = f"{self._table}/{gone[0].upload.key}"
        return f"the store or another program has aborted the upload of {first}{more}"

    def _unknown_error(self, epoch: Epoch, error: StorageError) -> CommitUnknown:
        return CommitUnknown(
            f"epoch {epoch.number}: its intent is logged, but not all of its files could be "
            f"made visible: {error}; {advise_retry(epoch.query)}"
        )


@lru_cache(maxsize=64)
def _ensure_id(table: StoreTable) -> str | None:
    return ensure_table_id(table.meta())


def _may_have_expired(gone: Sequence[StagedUpload]) -> bool:
    return all(_age_ms(file) > _EXPIRES_AFTER_MS for file in gone)


def _age_ms(file: StagedUpload) -> int:
    return time.time_ns() // 1_000_000 - file.upload.begun_ms


def _files(staged: Sequence[StagedUploads]) -> list[StagedUpload]:
    return [file for item in staged for file in item.files]


_SWEEP_AFTER_S = 600.0

_swept: LruCache[tuple[int, StoreTable, str], float] = LruCache(64)
"""Time of the last sweep, by process, table and query."""


def is_sweep_due(table: StoreTable, query: str, *, clean: bool) -> bool:
    """Return True if the uploads of a query are to be swept; record that as a sweep. Planner.

    Args:
        table: The table of the uploads.
        query: The query of the uploads.
        clean: True if the previous generation has left no known uploads.
    """
    key, now_s = (os.getpid(), table, query), time.monotonic()
    before_s = _swept.get(key)
    if clean and before_s is not None and now_s - before_s < _SWEEP_AFTER_S:
        return False
    _swept.put(key, now_s)
    return True


def discard_open_uploads(
    table: StoreTable, epoch: Epoch, is_owner: Callable[[Epoch], bool]
) -> None:
    """Discard the open uploads of a query. Driver; no attempt of a task may be running.

    Uploads do not record their generation. So they are listed first, and discarded only if this
    generation owns the query after that: uploads of a later one start later.

    Args:
        table: The table of the uploads.
        epoch: An epoch of the query, with the generation that must own it.
        is_owner: Returns True if it does.
    """
    found = list(find_pending_uploads(table, epoch.query))
    if found and is_owner(epoch):
        map_in_parallel(table.uploads.discard, [item.upload for item in found])


def find_pending_uploads(table: StoreTable, query: str) -> Iterator[PendingUpload]:
    """Yield the uploads of a query that are not completed."""
    tag = query_tag(query)
    for item in table.uploads.pending():
        file = DataFile.parse(item.upload.key.rpartition("/")[2])
        if file is not None and file.tag == tag:
            yield item
