"""Removing what failed attempts left in a table, by hand: ``krishiv-spark parquet vacuum``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from krishiv_spark.errors import LinkError
from krishiv_spark.parquet.layout import META, SOURCES, walk
from krishiv_spark.parquet.progress import TableLog, query_folders, table_logs
from krishiv_spark.spark.checkpoint import BATCH_PREFIX
from krishiv_spark.storage import ENVIRONMENT, Storage
from krishiv_spark.storage.disk import aging_time_s, read_disk_time_s
from krishiv_spark.storage.no_links import is_link, open_folder, remove_tree, split_at_own

__all__ = ["Orphan", "orphans", "remove", "unused_state"]


@dataclass(frozen=True)
class Orphan:
    """Something that can go: a staged file that no epoch will ever name, or a folder.

    Attributes:
        path: Where it is.
        size: Bytes.
        reason: Why it can go.
    """

    path: Path
    size: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}  {self.reason}"


def orphans(
    table: Path,
    older_than_s: float,
    epoch_logs: tuple[str, ...] = (),
    storage: Storage = ENVIRONMENT,
) -> Iterator[Orphan]:
    """What can go from a table, without touching what a live query may still need.

    Files of a generation that another has superseded can never be published, whatever their age.
    A batch job whose driver died leaves a folder; it goes when it is older than the guard.
    Files of the current generation may belong to a batch that is running: they count only when
    they are older than the guard. Files of an intent that is not finished are never orphans, nor
    are those of a query whose log is elsewhere and cannot be found.

    Args:
        table: The table's folder.
        older_than_s: Guard age in seconds, by the file's modification time. See `aging_time_s`.
        epoch_logs: Where logs of queries may be that are in a store; see `QueryLog`.
        storage: How it is reached.

    Raises:
        LogError: If a query's log is damaged.
        LinkError: If a log, or a folder above it, is a link. Other links are skipped.
        OSError: If a folder cannot be listed: what is not seen could not be judged.
    """
    before = _aging_time_s(table) - older_than_s
    for entry in table_logs(table, "", epoch_logs, storage):
        if not entry.query.startswith(BATCH_PREFIX):
            yield from _of_query(entry, before)
    with suppress(FileNotFoundError):
        for name in query_folders(table):
            if name.startswith(BATCH_PREFIX):
                yield from _of_batch_job(TableLog(table, name, epoch_logs, storage), before)


def unused_state(table: Path, older_than_s: float) -> Iterator[Orphan]:
    """What streams remember of a folder that have not run for so long.

    A stream that runs touches its state once an hour. One that is only stopped needs it as well: it
    is for the user to say after what time a query never comes back.

    Args:
        table: The folder that the streams read.
        older_than_s: Seconds since the newest file of a stream's state was made or touched.

    Raises:
        OSError: If a folder cannot be listed.
    """
    before = _aging_time_s(table) - older_than_s
    for folder in _listed(table / SOURCES):
        yield from _if_older(folder, before, "its query has not run for longer")


def _aging_time_s(table: Path) -> float:
    return aging_time_s(partial(read_disk_time_s, table / META), table)


def remove(orphan: Orphan) -> None:
    """Remove one orphan: a file, or the folder of a batch job or of a stream.

    No link is followed that has taken its place, or that of a folder above it, since it was found.
    """
    remove_tree(*split_at_own(orphan.path))


def _of_query(entry: TableLog, before: float) -> Iterator[Orphan]:
    state = entry.judging_state()
    if state is None:
        return
    kept = {state.intent_generation} if entry.unfinished(state) else set()
    for folder in _listed(entry.folder / "staged"):
        if not folder.name.isdecimal() or int(folder.name) in kept:
            continue
        superseded = int(folder.name) < state.owner
        for path in _listed(folder):
            orphan = _judge(path, before, superseded=superseded)
            if orphan is not None:
                yield orphan


def _of_batch_job(job: TableLog, before: float) -> Iterator[Orphan]:
    """The folder of a job that is over, or died before its intent; none that has to be finished."""
    # Nothing is staged of one that is over, whether its log is found or not.
    state = job.judging_state() if job.is_staging() else job.log.state()
    if state is None or job.unfinished(state):
        return
    yield from _if_older(job.folder, before, "its batch job has ended")


def _if_older(folder: Path, before: float, reason: str) -> Iterator[Orphan]:
    """A folder, if nothing in it was modified since."""
    try:
        statuses = [path.lstat() for path in [folder, *_below(folder)]]
    except FileNotFoundError:  # whose it is lives, and has just removed something
        return
    if max(status.st_mtime for status in statuses) < before:
        yield Orphan(folder, sum(s.st_size for s in statuses), reason)


def _listed(folder: Path) -> list[Path]:
    """What is in a folder but for links; nothing in one that is a link."""
    found: list[Path] = []
    # No other error is passed over: what is not seen could not be judged.
    with suppress(FileNotFoundError, LinkError), open_folder(*split_at_own(folder)) as descriptor:
        names = os.listdir(descriptor)
        found += [folder / name for name in names if not is_link(descriptor, name)]
    return found


def _below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in walk(folder):
        yield from (Path(parent, name) for name in (*folders, *files))


def _judge(path: Path, before: float, *, superseded: bool) -> Orphan | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if superseded:
        return Orphan(path, status.st_size, "its generation was superseded")
    if status.st_mtime < before:
        return Orphan(path, status.st_size, "older than the guard age")
    return None
