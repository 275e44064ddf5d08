"""The newest batch that was committed into a target, as the checkpoint around it records it.

A numbered batch has no offsets, and a function of ``foreachBatch`` may skip an output in any batch.
So the mark in a target does not show whether the batches after it were skipped, or were lost with
an older copy of the target. The record shows it. It is one file for each name and target, which the
committer replaces after each commit, and a planner reads once for each start of the query.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from krishiv_spark.checkpoint import KRISHIV, SparkCheckpoint
from krishiv_spark.errors import CheckpointMismatch, StorageError
from krishiv_spark.lru import LruCache
from krishiv_spark.offsets.offset import Value, canonical_json
from krishiv_spark.sinks.base import Mark, Writer
from krishiv_spark.sinks.numbered import JobNumber, NumberedJobOptions
from krishiv_spark.storage import ENVIRONMENT, Storage, StoreUrl

__all__ = ["RECORD_SUFFIX", "BatchRecord", "records_after"]

_log = logging.getLogger(__name__)

RECORD_SUFFIX = ".batch.json"
"""The end of a record's name in the checkpoint's folder `krishiv`. No id contains a dot."""

_REST_S = 600.0
"""Pause after a failed attempt to store a record: each may take seconds, and is logged."""

_NO_BATCH = -1


class _Committed(Value):
    """The content of a record.

    Attributes:
        batch: Number of the newest batch that was committed.
        before: Number of the newest one before it, -1 for none; None if it is not known.
    """

    v: int = 1
    batch: int
    before: int | None = None


@dataclass(frozen=True)
class BatchRecord:
    """The record of one name and target. Driver: planner and committer.

    Attributes:
        checkpoint: Of the query around ``foreachBatch``.
        name: `JobNumber.name`.
        target: Text that tells the target from another one.
        run: Text that is another one for each start of the query; None if it is not known.
        may_be_empty: Whether a target without any mark is accepted, with a warning.
    """

    checkpoint: SparkCheckpoint
    name: str
    target: str
    run: str | None = None
    may_be_empty: bool = False

    @classmethod
    def of(cls, writer: Writer[Any, Any]) -> BatchRecord | None:
        """Return the record of a numbered job; None if its checkpoint is not known."""
        options = writer.options
        if not isinstance(options, NumberedJobOptions) or options.txn_app_id is None:
            return None
        if options.txn_checkpoint is None:
            return None
        storage: Storage = getattr(options, "storage", ENVIRONMENT)  # not each sink has the option
        return cls(
            SparkCheckpoint(options.txn_checkpoint, storage),
            options.txn_app_id,
            f"{type(writer).__module__}.{type(writer).__qualname__} {options.target_text()}",
            options.txn_run,
            writer.is_cleared_at_will,
        )

    @property
    def file(self) -> str:
        """Name of the file in the checkpoint's folder `krishiv`."""
        return f"{self.name}.{sha256(self.target.encode()).hexdigest()[:12]}{RECORD_SUFFIX}"

    def check(self, job: JobNumber, mark: Mark | None) -> None:
        """Refuse a target that lacks a batch which was committed into it. Planner.

        Args:
            job: The batch that begins.
            mark: The newest batch of its name in the target.

        Raises:
            CheckpointMismatch: If the target lacks one, or the record is damaged.
            StorageError: If the record cannot be read.
        """
        committed = _NO_BATCH if mark is None else mark.epoch
        known = None if self.run is None else _known.get(self)
        if known is not None and not _lacks(known, job.number, committed):
            self._keep(known, committed)
            return
        # A record that was removed on purpose, or taken back with the checkpoint, is read again.
        found = self._read()
        if _lacks(found, job.number, committed):
            self._report_missing(found, job, mark)
            found = None
        self._keep(found, committed)

    def _keep(self, found: _Committed | None, committed: int) -> None:
        """Keep what the record contains, or the mark if that is newer: the target had it."""
        newest = _Committed(batch=committed)
        is_newer = found is None or found.batch < committed
        _known.put(self, newest if is_newer else found or newest)

    def note(self, batch: int, before: int | None = None) -> None:
        """Record that a batch is in the target. Committer, before Spark records its end.

        A failure is logged, and the query goes on: the record then names an older batch, which is
        true as well.

        Args:
            batch: The newest batch of the name in the target.
            before: The newest one before it, if that is known.
        """
        if before is not None:
            _known.put(self, _Committed(batch=batch, before=before))
        if time.monotonic() < (_next_write_s.get(self) or 0.0):
            return
        try:
            if before is None:
                found = self._read()
                if found is not None and found.batch >= batch:
                    return
                before = None if found is None else found.batch
            text = canonical_json(_Committed(batch=batch, before=before).model_dump())
            self.checkpoint.folder(KRISHIV).replace(self.file, f"{text}\n".encode())
        except (OSError, StorageError, CheckpointMismatch) as error:
            _next_write_s.put(self, time.monotonic() + _REST_S)
            _log.warning(
                "batch %d of %s is in its target, but that could not be recorded in %s/%s: %s. The "
                "query goes on; but if the target is restored from an older copy, that may not be "
                "noticed",
                batch,
                self.name,
                self.checkpoint.location,
                KRISHIV,
                error,
            )

    def _read(self) -> _Committed | None:
        text = self.checkpoint.folder(KRISHIV).read(self.file)
        try:
            return None if text is None else _Committed.model_validate_json(text)
        except ValueError as error:
            raise CheckpointMismatch(
                f"{self._path} is damaged, so it cannot be checked that the target has all batches "
                f"of {self.name} ({type(error).__name__}). Nothing was written: if the target was "
                "not restored from an older copy, remove that file, which is then written again"
            ) from error

    @property
    def _path(self) -> str:
        return str(StoreUrl.parse(self.checkpoint.location) / KRISHIV / self.file)

    def _report_missing(self, found: _Committed | None, job: JobNumber, mark: Mark | None) -> None:
        """Raise or log that the target lacks a batch."""
        lost = "a batch" if found is None else f"batch {found.batch}"
        if mark is None and self.may_be_empty:
            _log.warning(
                "the target has no batch of %s, though %s was committed into it: it was emptied or "
                "made anew. The query goes on with batch %d",
                job.name,
                lost,
                job.number,
            )
            return
        is_now = "holds none" if mark is None else f"holds batch {mark.epoch} as its newest"
        raise CheckpointMismatch(
            f"{lost} of {job.name} was committed into this target, which now {is_now}: it was "
            "restored from an older copy, emptied or made anew. Batch "
            f"{job.number} would leave the rows between out. Nothing was written. Ways on: put the "
            f"newest copy of the target back; {_again(mark)}or, if the rows are to be missing, "
            f"remove the file {self._path}, and the query goes on with batch {job.number}"
        )


def records_after(checkpoint: SparkCheckpoint, batch: int) -> list[str]:
    """Return the records that name a later batch than one, relative to the checkpoint. Operator.

    A checkpoint that goes back to that batch loses them: its targets do not have to contain batches
    that Spark is going to repeat.

    Raises:
        StorageError: If the folder cannot be read.
    """
    folder = checkpoint.folder(KRISHIV)
    names = sorted(name for name in folder.names() if name.endswith(RECORD_SUFFIX))
    texts = zip(names, folder.read_each(names), strict=True)
    return [f"{KRISHIV}/{name}" for name, text in texts if text and _is_after(text, batch)]


def _is_after(text: bytes, batch: int) -> bool:
    try:
        return _Committed.model_validate_json(text).batch > batch
    except ValueError:
        return True  # a damaged record names no batch that is to stay


def _lacks(found: _Committed | None, number: int, committed: int) -> bool:
    """Return True if a target up to `committed` lacks a batch that was committed before `number`.

    A batch that Spark repeats is written again: then the one before it has to be there. After a
    rewind to before the record, nothing is known.
    """
    if found is None or found.batch > number:
        return False
    needed = found.before if found.batch == number else found.batch
    return needed is not None and committed < needed


def _again(mark: Mark | None) -> str:
    """Return the way on that has the missing batches written again."""
    if mark is None:
        return ""
    return (
        f"stop the query, and 'krishiv-spark checkpoint rewind --to {mark.epoch}' has Spark repeat "
        "the batches since, for all outputs: one that holds them still skips them with the option "
        "'txnRepeats' = 'any', until it is at a new batch; "
    )


_known: LruCache[BatchRecord, _Committed] = LruCache(256)
"""By record, the newest batch that this process knows to be in the target, since it has read the
record in this run of the query."""

_next_write_s: LruCache[BatchRecord, float] = LruCache(256)
"""By record that could not be stored, when that is tried again."""
