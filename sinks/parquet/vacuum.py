"""Removal of the leftovers of failed attempts by hand: ``krishiv-spark parquet vacuum``."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from krishiv_spark.errors import LinkError
from krishiv_spark.offsets import State
from krishiv_spark.parquet.layout import META, SOURCES, DataFile, query_tag, walk
from krishiv_spark.parquet.table_logs import (
    StoreTableLog,
    TableLog,
    find_table_logs,
    list_query_folders,
)
from krishiv_spark.sinks.parquet.store_table import StoreTable
from krishiv_spark.spark.checkpoint import BATCH_PREFIX
from krishiv_spark.storage import ENVIRONMENT, Storage
from krishiv_spark.storage.disk import aging_time_s, read_disk_time_s
from krishiv_spark.storage.no_links import is_link, open_folder, remove_tree, split_at_own

__all__ = [
    "Orphan",
    "StoreOrphan",
    "find_orphans",
    "find_store_orphans",
    "find_unused_state",
    "remove_orphan",
]


@dataclass(frozen=True)
class Orphan:
    """A leftover: a staged file that no epoch will name, or a folder.

    Attributes:
        path: Path of the file or folder.
        size: Bytes.
        reason: Reason why it can be removed.
    """

    path: Path
    size: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}  {self.reason}"


def find_orphans(
    table: Path,
    older_than_s: float,
    epoch_logs: tuple[str, ...] = (),
    storage: Storage = ENVIRONMENT,
) -> Iterator[Orphan]:
    """Yield the leftovers in a table that no running query needs.

    Files of a superseded generation can never be published, at any age. A batch job whose driver
    died leaves a folder, which is an orphan when it is older than the guard age. Files of the
    current generation may belong to a running batch: they are orphans only when they are older than
    the guard age. Files of an unfinished intent are never orphans, nor are those of a query whose
    log is in another location and cannot be found.

    Args:
        table: The table's folder.
        older_than_s: Guard age in seconds, by the file's modification time. See `aging_time_s`.
        epoch_logs: Locations of logs that are in a store; see `QueryLog`.
        storage: Access to the store.

    Raises:
        LogError: If a query's log is damaged.
        LinkError: If a log, or a folder above it, is a link. Other links are skipped.
        OSError: If a folder cannot be listed, so that its files cannot be checked.
    """
    before = _aging_time_s(table) - older_than_s
    for entry in find_table_logs(table, "", epoch_logs, storage):
        if not entry.query.startswith(BATCH_PREFIX):
            yield from _find_in_query(entry, before)
    with suppress(FileNotFoundError):
        for name in list_query_folders(table):
            if name.startswith(BATCH_PREFIX):
                yield from _find_ended_job(TableLog(table, name, epoch_logs, storage), before)


def find_unused_state(table: Path, older_than_s: float) -> Iterator[Orphan]:
    """Yield the state of streams that read a folder and have not run for some time.

    A running stream touches its state once an hour. A stopped stream needs it as well: the user
    decides after what time a query never returns.

    Args:
        table: The folder that the streams read.
        older_than_s: Seconds since the newest file of a stream's state was made or touched.

    Raises:
        OSError: If a folder cannot be listed.
    """
    before = _aging_time_s(table) - older_than_s
    for folder in _list_entries(table / SOURCES):
        yield from _find_older(folder, before, "its query has not run for longer")


def _aging_time_s(table: Path) -> float:
    return aging_time_s(partial(read_disk_time_s, table / META), table)


def remove_orphan(orphan: Orphan) -> None:
    """Remove one orphan: a file, or the folder of a batch job or of a stream.

    No link is followed that has replaced it, or a folder above it, since it was found.
    """
    remove_tree(*split_at_own(orphan.path))


def _find_in_query(entry: TableLog, before: float) -> Iterator[Orphan]:
    state = entry.state_for_vacuum()
    if state is None:
        return
    unfinished = {state.intent_generation} if entry.is_unfinished(state) else set()
    for folder in _list_entries(entry.folder / "staged"):
        if not folder.name.isdecimal() or int(folder.name) in unfinished:
            continue
        superseded = int(folder.name) < state.owner
        for path in _list_entries(folder):
            orphan = _check_file(path, before, superseded=superseded)
            if orphan is not None:
                yield orphan


def _find_ended_job(job: TableLog, before: float) -> Iterator[Orphan]:
    """Yield the folder of a job that has ended, or died before its intent."""
    # A job that has ended has no staged files, whether its log is found or not.
    state = job.state_for_vacuum() if job.is_staging() else job.log.state()
    if state is None or job.is_unfinished(state):
        return
    yield from _find_older(job.folder, before, "its batch job has ended")


def _find_older(folder: Path, before: float, reason: str) -> Iterator[Orphan]:
    """Yield a folder if nothing in it was modified since a time."""
    try:
        statuses = [path.lstat() for path in [folder, *_walk_below(folder)]]
    except FileNotFoundError:  # its owner is running, and has just removed a file
        return
    if max(status.st_mtime for status in statuses) < before:
        yield Orphan(folder, sum(s.st_size for s in statuses), reason)


def _list_entries(folder: Path) -> list[Path]:
    """Return the entries of a folder without links; none if the folder is a link."""
    found: list[Path] = []
    # No other error is ignored: files that are not listed cannot be checked.
    with suppress(FileNotFoundError, LinkError), open_folder(*split_at_own(folder)) as descriptor:
        names = os.listdir(descriptor)
        found += [folder / name for name in names if not is_link(descriptor, name)]
    return found


def _walk_below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in walk(folder):
        yield from (Path(parent, name) for name in (*folders, *files))


def _check_file(path: Path, before: float, *, superseded: bool) -> Orphan | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if superseded:
        return Orphan(path, status.st_size, "its generation was superseded")
    if status.st_mtime < before:
        return Orphan(path, status.st_size, "older than the guard age")
    return None


# --- in a store


@dataclass(frozen=True)
class StoreOrphan:
    """A leftover in a store: an upload that no epoch will name, or the files of a batch job.

    Attributes:
        shown: Its path, and the reason why it can be removed.
        remove: Removes it.
        size: Bytes; 0 if the store does not report it.
    """

    shown: str
    remove: Callable[[], None]
    size: int = 0

    def __str__(self) -> str:
        return self.shown


def find_store_orphans(
    table: StoreTable, older_than_s: float, epoch_logs: tuple[str, ...] = ()
) -> Iterator[StoreOrphan]:
    """Yield the leftovers in a table that no running query needs.

    Uploads do not record their generation: one that is older than the guard age is an orphan,
    unless the newest intent of its query names it. So are the files of a batch job that has ended.

    Args:
        table: The table's folder.
        older_than_s: Guard age in seconds, by the store's clock, for a job by the job's clock. See
            `aging_time_s`.
        epoch_logs: Locations of logs that are in another store; see `QueryLog`.

    Raises:
        LogError: If a query's log is damaged.
        StorageError: If the store fails, or refuses.
    """
    before_ms = (aging_time_s(partial(_read_time_s, table), table.url) - older_than_s) * 1000
    # Listed before the logs are read, so that the logs name each upload that is published since.
    pending = list(table.uploads.pending())
    named: set[str] = set()
    unknown: set[str] = set()
    for name in table.meta().names():
        job = table.log_of(name, epoch_logs)
        state = job.state_for_vacuum()
        if state is None:
            unknown.add(query_tag(name))
            continue
        named |= _uploads_in_intent(job, state)
        if name.startswith(BATCH_PREFIX) and _has_ended(job, state, before_ms):
            yield StoreOrphan(
                f"{table.meta_url(name)}  its batch job has ended", partial(_remove_job, table, job)
            )
    for item in pending:
        *folders, name = item.upload.key.split("/")
        file = DataFile.parse(name)
        # A folder that is not one of a partition contains another table, with its own logs.
        is_of_table = file is not None and all("=" in folder for folder in folders)
        is_known = file is not None and file.tag not in unknown
        if is_of_table and is_known and item.begun_ms < before_ms and item.upload.id not in named:
            discard = partial(table.uploads.discard, item.upload)
            yield StoreOrphan(f"{item.shown}  older than the guard age", discard)


def _read_time_s(table: StoreTable) -> float:
    """Return the store's time of an upload that starts now, and is aborted.

    Azure does not list uploads: there the local clock is used.

    Raises:
        StorageError: If the store refuses it.
    """
    # Below `_krishiv`, since Azure shows an empty blob for a moment when an upload is aborted.
    probe = table.uploads.open(f"{META}/probe-{uuid.uuid4().hex}")
    probe.write(b"?")
    upload = probe.close()
    try:
        found = (item.begun_ms for item in table.uploads.pending() if item.upload.id == upload.id)
        return next(found, upload.begun_ms) / 1000
    finally:
        table.uploads.abort(upload)


def _uploads_in_intent(job: StoreTableLog, state: State) -> set[str]:
    """Return the ids of the uploads in the newest intent of a log, finished or not."""
    return set() if state.intent is None else job.uploads_of(state.intent)


def _has_ended(job: StoreTableLog, state: State, before_ms: float) -> bool:
    """Return True if a batch job has ended, or died before its intent."""
    if state.at is not None and state.at >= before_ms:
        return False
    return state.intent is None or job.is_finished(state.intent_generation)


def _remove_job(table: StoreTable, job: StoreTableLog) -> None:
    # A log that a pointer names may be another job's, of another table: any user who may write the
    # folder may have written the pointer.
    if job.pointer is None or job.pointer.is_named(job.query, job.epoch_logs):
        job.log.destroy()
    table.meta(job.query).destroy()
