"""Batch jobs that users number, so that a repeated one is recognized, as in ``foreachBatch``.

Such a job is an epoch of its name, like the epochs of a streaming query: its target records it, and
it has an intent if the sink has an epoch log.

A numbered batch has no offsets, and a function of ``foreachBatch`` may skip an output in any batch.
So the newest batch in a target does not show whether the batches after it were skipped, or were
lost with an older copy of the target. A record in the checkpoint of the surrounding query shows it.
It is one file for each name and target, which the committer replaces after each commit, and which a
planner reads once for each start of the query. Each number in it belongs to a committed batch. A
missing number, or a lost or damaged record, is no error: fewer losses are then detected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from typing_extensions import Self

from krishiv_spark.errors import BatchMismatch, CheckpointMismatch, OptionError, StorageError
from krishiv_spark.offsets.offset import Value, canonical_json
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.options import Options
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.base import CommittedEpoch, Epoch, Writer
from krishiv_spark.spark.checkpoint import BATCH_PREFIX, KRISHIV, SparkCheckpoint, checked_id
from krishiv_spark.storage import ENVIRONMENT, Storage, StoreUrl

__all__ = [
    "RECORD_SUFFIX",
    "BatchRecord",
    "JobNumber",
    "NumberedJobOptions",
    "check_same",
    "check_writer",
    "given_name",
    "is_done",
    "number_of_job",
    "records_at",
]


def given_name(given: str) -> str:
    """Return a user's name of a query, after a check; it becomes a part of paths and ids.

    Raises:
        ValueError: If it is not a valid name.
    """
    if checked_id(given).startswith(BATCH_PREFIX):
        raise ValueError(f"the names of batch jobs start with {BATCH_PREFIX!r}")
    return given


@dataclass(frozen=True)
class JobNumber:
    """The name and number that a user gives a batch job.

    Attributes:
        name: Name of the series of jobs.
        number: Number of this job; later ones have higher numbers.
        repeats: The numbers that may be repeated: any that is not higher, or only the newest.
        compares: True if the rows of a repeated job are compared with the earlier ones.
        rows: Count and checksum of the rows that the job's rows were computed from, which are
            compared instead.
        writer: Spark's id of the writing query, if the name is another one.
        replaces: Spark's id of the query whose batches of the name this one continues.
    """

    name: str
    number: int
    repeats: Literal["any", "newest"] = "any"
    compares: bool = True
    rows: str | None = None
    writer: str | None = None
    replaces: str | None = None

    @property
    def offsets(self) -> PlannedOffsets | None:
        """Plan that distinguishes the job from another one of its number, if rows do not."""
        if self.rows is None or not self.compares:
            return (
                None if self.writer is None else PlannedOffsets.of_writer(self.number, self.writer)
            )
        rows, _, checksum = self.rows.partition(":")
        return self.offsets_of(int(rows), int(checksum, 16))

    def offsets_of(self, rows: int, checksum: int) -> PlannedOffsets:
        """Return the plan that distinguishes the job from another one of its number by its rows."""
        return PlannedOffsets.of_rows(self.number, rows, checksum, writer=self.writer)


class NumberedJobOptions(Options):
    """Options of a sink whose batch jobs may have numbers."""

    txn_app_id: Annotated[str, AfterValidator(given_name)] | None = Field(
        default=None,
        description="Writer of batches that may be repeated, as in `foreachBatch`. A batch is "
        "skipped if the sink has this or a higher `txnVersion` of it.",
    )
    txn_version: int | None = Field(default=None, ge=0, description="Number of the batch.")
    txn_repeats: Literal["any", "newest"] = Field(
        default="any",
        description="Numbers that are skipped: each that is not higher than the newest (`any`), "
        "or only the newest (`newest`); then a lower one is an error.",
    )
    txn_compare: bool = Field(
        default=True,
        description="If `true`, a skipped batch with other rows than were written, by count and "
        "checksum, is an error.",
    )

    txn_query_id: Annotated[str, AfterValidator(checked_id)] | None = Field(
        default=None,
        description="Spark's id of the query that numbers the batches. Another query with the "
        "same `txnAppId` is refused.",
    )
    txn_replaces: Annotated[str, AfterValidator(checked_id)] | None = Field(
        default=None,
        description="Spark's id of another query that no longer runs, and whose batches of this "
        "`txnAppId` this query continues.",
    )
    txn_checkpoint: str | None = Field(
        default=None,
        description="Checkpoint of the query around `foreachBatch`. It records the newest batch "
        "of each target, so that an older copy of a target is refused.",
    )
    txn_run: str | None = Field(
        default=None,
        description="Text that differs for each start of the query: the record in the "
        "checkpoint is then read once for each start.",
    )

    @model_validator(mode="after")
    def _check_number(self) -> Self:
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise ValueError("options 'txnAppId' and 'txnVersion' belong together")
        return self

    @property
    def job(self) -> JobNumber | None:
        """Number of the batch job, if it has one."""
        if self.txn_app_id is None or self.txn_version is None:
            return None
        return JobNumber(
            self.txn_app_id,
            self.txn_version,
            self.txn_repeats,
            self.txn_compare,
            writer=self.txn_query_id,
            replaces=self.txn_replaces,
        )

    def target_text(self) -> str:
        """Return a text that distinguishes the target of these options from others.

        It is the same for each batch, and contains no secret. By default it is the option `path`;
        without such an option, it consists of all texts among the connector's own fields.
        """
        if "path" in type(self).model_fields:
            return str(getattr(self, "path", None) or "").rstrip("/")
        own = type(self).model_fields.keys() - NumberedJobOptions.model_fields.keys()
        texts = {name: getattr(self, name) for name in sorted(own)}
        return repr({name: text for name, text in texts.items() if isinstance(text, str)})


def number_of_job(options: object) -> JobNumber | None:
    """Return the number in the options of a batch job; None if there is none."""
    return options.job if isinstance(options, NumberedJobOptions) else None


def is_done(job: JobNumber, mark: CommittedEpoch | None) -> bool:
    """Return True if a sink has committed a batch job or a later one. Any process.

    Args:
        job: The job, with the user's number.
        mark: The newest committed job of its name in the sink.

    Raises:
        CheckpointMismatch: If the sink contains a later one, and only the newest may be repeated.
    """
    if mark is None or mark.epoch < job.number:
        return False
    if mark.epoch > job.number and job.repeats == "newest":
        raise CheckpointMismatch(
            f"batch {job.number} of {job.name} comes after batch {mark.epoch}, which the sink "
            "has: the checkpoint was rolled back, restored from an older copy or replaced by a "
            "new one, or another driver runs on it. Nothing was written: put the newest "
            "checkpoint back, or use a new one with another name for its output ('txnAppId', "
            "or 'query' of each_batch(), upsert() and aggregate())"
        )
    return True


def check_writer(job: JobNumber, mark: CommittedEpoch | None) -> None:
    """Refuse a batch of a name under which another query has written. Anywhere.

    Args:
        job: The job, with the user's number.
        mark: The newest committed job of its name in the sink.

    Raises:
        CheckpointMismatch: If Spark's ids of both queries are known and differ, and the job does
            not continue the other query.
    """
    if job.writer is None or mark is None or mark.digest is None:
        return
    before = PlannedOffsets.writer_of(mark.digest)
    if before in {None, job.writer, job.replaces}:
        return
    raise CheckpointMismatch(
        f"batch {job.number} of {job.name} comes from query {job.writer}, and the sink has "
        f"batch {mark.epoch} of that name from query {before}: two queries or two checkpoints "
        "use one name, and batches with equal numbers would be mistaken for one another. "
        "Nothing was written. Give each query its own name; or, if this query replaces that "
        "one, as with a copy of its checkpoint, and that one no longer runs, set "
        f"replaces={before!r} (option 'txnReplaces')"
    )


def check_same(epoch: Epoch, mark: CommittedEpoch) -> None:
    """Refuse a batch whose rows differ from those in the sink under its number.

    Raises:
        BatchMismatch: If both are known and differ.
    """
    if epoch.digest is None or mark.digest is None:
        return
    contents = {PlannedOffsets.content_of(digest) for digest in (epoch.digest, mark.digest)}
    if len(contents) == 1 or "" in contents:
        return
    now, before = map(PlannedOffsets.rows_of, (epoch.digest, mark.digest))
    raise BatchMismatch(
        f"batch {epoch.number} of {epoch.query} was repeated with other rows: {now} now, and "
        f"the sink has {before}, which it keeps. Either its computation is not repeatable (the "
        "time of day, random numbers, a table that has changed since): make it repeatable, so "
        "that all outputs of a batch agree, or accept it with the option 'txnCompare' = "
        "'false'. Or it is another batch, whose rows would be lost: the checkpoint was rolled "
        "back or is a new one, or another query has the same name; put the newest checkpoint "
        "back, or use another name"
    )


_log = logging.getLogger(__name__)

RECORD_SUFFIX = ".batch.json"
"""The end of a record's name in the checkpoint's folder `krishiv`. No id contains a dot."""

_REST_S = 600.0
"""Pause after a failed attempt to store a record: each attempt may take seconds, and is logged."""

_MOST_BATCHES = 100
"""Numbers in a record. Spark keeps the offsets of as many batches, so it repeats no earlier one
(``spark.sql.streaming.minBatchesToRetain``)."""

_NO_BATCH = -1


class _Committed(Value):
    """The content of a record.

    Attributes:
        batches: Numbers of committed batches, ending with the newest.
    """

    v: int = 1
    batches: tuple[int, ...]

    @property
    def text(self) -> bytes:
        """Content of the file."""
        return f"{canonical_json(self.model_dump(mode='json'))}\n".encode()


@dataclass(frozen=True)
class BatchRecord:
    """The record of one name and target. Driver: planner and committer.

    Attributes:
        checkpoint: The checkpoint of the query around ``foreachBatch``.
        name: `JobNumber.name`.
        target: A text that distinguishes the target from others.
        run: A text that differs for each start of the query; None if it is not known.
        may_be_empty: True if a target without any committed batch is accepted, with a warning.
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

    def check(self, job: JobNumber, mark: CommittedEpoch | None) -> tuple[int, ...]:
        """Refuse a target that lacks a batch that was committed to it. Planner.

        If the record cannot be read, that is logged, and nothing is refused.

        Args:
            job: The batch that begins.
            mark: The newest committed batch of its name in the target.

        Returns:
            The batches that are known to be in the target, for `note`.

        Raises:
            CheckpointMismatch: If the target lacks one.
        """
        committed = _NO_BATCH if mark is None else mark.epoch
        known = None if self.run is None else _known.get(self)
        if known is None or _lacks(known, job.number, committed):
            # A record that was removed on purpose, or rewound with the checkpoint, is read again.
            found = self._read()
            if _lacks(found, job.number, committed):
                self._report_missing(_before(found, job.number)[-1], job, mark)
                found = ()
            known = self._drop_later(found, committed)
        batches = _join(_before(known, job.number), committed)
        _known.put(self, batches)
        return batches

    def _drop_later(self, found: tuple[int, ...], committed: int) -> tuple[int, ...]:
        """Remove batches from the record that the target lacks and that Spark will repeat.

        The target was restored together with Spark's files, but the record was not. If a repeated
        batch has no rows, its number would remain in the record and cause a later batch to be
        refused.
        """
        kept = tuple(number for number in found if number <= committed)
        if kept != found:
            self._store(kept)
        return kept

    def note(self, batch: int, others: Iterable[int]) -> None:
        """Record that a batch is in the target. Committer, before Spark records its end.

        A failure is logged, and the query continues: the record then has an older batch, which is
        correct too.

        Args:
            batch: The newest batch of the name in the target.
            others: The return value of `check`.
        """
        batches = _join(_before(others, batch), batch)
        _known.put(self, batches)
        self._store(batches)

    def _store(self, batches: tuple[int, ...]) -> None:
        if time.monotonic() < (_next_write_s.get(self) or 0.0):
            return
        try:
            text = _Committed(batches=batches).text
            self.checkpoint.folder(KRISHIV).replace(self.file, text, durable=False)
        except (OSError, StorageError) as error:
            _next_write_s.put(self, time.monotonic() + _REST_S)
            _log.warning(
                "batch %s of %s is in its target, but this could not be recorded in %s/%s: %s. "
                "The query continues; but if the target is restored from an older copy, that "
                "may not be noticed",
                batches[-1] if batches else "none",
                self.name,
                self.checkpoint.location,
                KRISHIV,
                error,
            )

    def _read(self) -> tuple[int, ...]:
        """Return the recorded batches; none if there is no record that can be read.

        A power cut may have damaged it, or its store may need other settings than the target's: a
        query that has lost nothing continues.
        """
        try:
            text = self.checkpoint.folder(KRISHIV).read(self.file)
        except (OptionError, OSError, StorageError) as error:
            self._warn_unread(f"cannot be read: {error}")
            return ()
        try:
            return () if text is None else _Committed.model_validate_json(text).batches
        except ValueError:
            self._warn_unread("is damaged")
            return ()

    def _warn_unread(self, why: str) -> None:
        _log.warning(
            "%s %s. The query continues; but if the target was restored from an older copy "
            "since the last start, that is not noticed",
            self._path,
            why,
        )

    @property
    def _path(self) -> str:
        return str(StoreUrl.parse(self.checkpoint.location) / KRISHIV / self.file)

    def _report_missing(self, lost: int, job: JobNumber, mark: CommittedEpoch | None) -> None:
        """Raise or log that the target lacks a batch."""
        if mark is None and self.may_be_empty:
            _log.warning(
                "the target has no batch of %s, although batch %d was committed into it: it "
                "was emptied or replaced by a new one. The query continues with batch %d",
                job.name,
                lost,
                job.number,
            )
            return
        is_now = "has no batch" if mark is None else f"has batch {mark.epoch} as its newest"
        raise CheckpointMismatch(
            f"batch {lost} of {job.name} was committed into this target, which now {is_now}: it "
            "was restored from an older copy, emptied or replaced by a new one. Batch "
            f"{job.number} would leave out the rows in between. Nothing was written. Ways on: "
            f"put the newest copy of the target back; {_again(mark)}or, if the rows are to be "
            f"missing, remove the file {self._path}, and the query continues with batch "
            f"{job.number}"
        )


def records_at(checkpoint: SparkCheckpoint, batch: int) -> Mapping[str, bytes | None]:
    """Return the records that change when a checkpoint is rewound to a batch. Operator.

    They lose later batches, which Spark will repeat. Earlier ones are kept, since a target that was
    restored from an older copy may lack them.

    Returns:
        The new content by path relative to the checkpoint; None for a record to be removed.

    Raises:
        StorageError: If the folder cannot be read.
    """
    folder = checkpoint.folder(KRISHIV)
    names = sorted(name for name in folder.names() if name.endswith(RECORD_SUFFIX))
    texts = zip(names, folder.read_each(names), strict=True)
    found = {f"{KRISHIV}/{name}": (text, _until(text, batch)) for name, text in texts if text}
    return {path: until for path, (text, until) in found.items() if text != until}


def _until(text: bytes, batch: int) -> bytes | None:
    """Return a record without the batches after one; None if it has no others, or is damaged."""
    try:
        found = _Committed.model_validate_json(text).batches
    except ValueError:
        return None
    kept = tuple(number for number in found if number <= batch)
    if kept == found:
        return text
    return _Committed(batches=kept).text if kept else None


def _before(batches: Iterable[int], number: int) -> tuple[int, ...]:
    return tuple(batch for batch in batches if batch < number)


def _join(batches: Iterable[int], newest: int) -> tuple[int, ...]:
    """Return batches with another one, ending with the newest."""
    some = {*batches, newest} - {_NO_BATCH}
    return tuple(sorted(some)[-_MOST_BATCHES:])


def _lacks(batches: Iterable[int], number: int, committed: int) -> bool:
    """Return True if a target up to `committed` lacks a batch that was committed before `number`.

    A batch that Spark repeats is written again; then the target must contain the previous one.
    """
    return max(_before(batches, number), default=_NO_BATCH) > committed


def _again(mark: CommittedEpoch | None) -> str:
    """Return the advice by which the missing batches are written again."""
    if mark is None:
        return ""
    return (
        f"stop the query, and use 'krishiv-spark checkpoint rewind --to {mark.epoch}', so that "
        "Spark repeats the batches since then for all outputs: an output that already has them "
        "still skips them with the option 'txnRepeats' = 'any', until it reaches a new batch; "
    )


_known: LruCache[BatchRecord, tuple[int, ...]] = LruCache(256)
"""By record, the newest batches in the target, as far as this process knows from the record and
this run of the query."""

_next_write_s: LruCache[BatchRecord, float] = LruCache(256)
"""By record that could not be stored, the time of the next attempt."""
