"""Removing what failed attempts left in a table in a store, by hand."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from krishiv_spark.offsets import State
from krishiv_spark.parquet.names import DataFile, query_tag
from krishiv_spark.parquet.store_progress import StoreTableLog
from krishiv_spark.sinks.parquet.tables import StoreTable
from krishiv_spark.spark.checkpoint import BATCH_PREFIX
from krishiv_spark.storage.disk import aging_time_s

__all__ = ["StoreOrphan", "store_orphans"]


@dataclass(frozen=True)
class StoreOrphan:
    """Something that can go: an upload that no epoch will ever name, or what a job has kept.

    Attributes:
        shown: What it is, and why it can go.
        remove: Removes it.
        size: Bytes; 0 where the store does not tell.
    """

    shown: str
    remove: Callable[[], None]
    size: int = 0

    def __str__(self) -> str:
        return self.shown


def store_orphans(
    table: StoreTable, older_than_s: float, epoch_logs: tuple[str, ...] = ()
) -> Iterator[StoreOrphan]:
    """What can go from a table, without touching what a live query may still need.

    Uploads do not say of which generation they are: one that is older than the guard goes, unless
    the newest intent of its query names it. What a batch job has kept that is over goes likewise.

    Args:
        table: Its folder.
        older_than_s: Guard age in seconds, by the store's clock, of a job by its own. See
            `aging_time_s`.
        epoch_logs: Where logs of queries may be that are in another store; see `QueryLog`.

    Raises:
        LogError: If a query's log is damaged.
        StorageError: If the store fails, or refuses.
    """
    before_ms = (aging_time_s(partial(_read_time_s, table), table.url) - older_than_s) * 1000
    pending = list(table.uploads.pending())  # before the logs: what is named since, is found there
    named: set[str] = set()
    unknown: set[str] = set()
    for name in table.meta().names():
        job = table.log_of(name, epoch_logs)
        state = job.judging_state()
        if state is None:
            unknown.add(query_tag(name))
            continue
        named |= _named_by(job, state)
        if name.startswith(BATCH_PREFIX) and _is_over(job, state, before_ms):
            yield StoreOrphan(
                f"{table.meta_url(name)}  its batch job has ended", partial(_forget, table, job)
            )
    for item in pending:
        *folders, name = item.upload.key.split("/")
        file = DataFile.parse(name)
        # Below other folders than those of partitions is a table of its own, with its own logs.
        is_ours = file is not None and all("=" in folder for folder in folders)
        is_known = file is not None and file.tag not in unknown
        if is_ours and is_known and item.begun_ms < before_ms and item.upload.id not in named:
            discard = partial(table.uploads.discard, item.upload)
            yield StoreOrphan(f"{item.shown}  older than the guard age", discard)


def _read_time_s(table: StoreTable) -> float:
    """Return the time that the store gives an upload that begins now, and is aborted.

    Azure lists no uploads: there the local clock decides.

    Raises:
        StorageError: If the store refuses it.
    """
    probe = table.uploads.open(f"probe-{uuid.uuid4().hex}")  # the name of no data file
    probe.write(b"?")
    upload = probe.close()
    try:
        found = (item.begun_ms for item in table.uploads.pending() if item.upload.id == upload.id)
        return next(found, upload.begun_ms) / 1000
    finally:
        table.uploads.abort(upload)


def _named_by(job: StoreTableLog, state: State) -> set[str]:
    """The ids of the uploads that the newest intent of a log names, finished or not."""
    return set() if state.intent is None else job.uploads_of(state.intent)


def _is_over(job: StoreTableLog, state: State, before_ms: float) -> bool:
    """Whether a batch job is over, or died before its intent; none that has to be finished."""
    if state.at is not None and state.at >= before_ms:
        return False
    return state.intent is None or job.is_finished(state.intent_generation)


def _forget(table: StoreTable, job: StoreTableLog) -> None:
    # A log that a pointer names may be another job's, of another table: whoever may write the
    # folder may have written the pointer.
    if job.pointer is None or job.pointer.is_named(job.query, job.epoch_logs):
        job.log.destroy()
    table.meta(job.query).destroy()
