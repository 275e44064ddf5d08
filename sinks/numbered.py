"""Batch jobs that users number, so that one that comes again is known: in ``foreachBatch``, say.

Such a job is an epoch of what it is named after, as those of a stream are: it has a mark, and where
there is an epoch log, an intent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from typing_extensions import Self

from krishiv_spark.errors import BatchMismatch, CheckpointMismatch
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.options import Options
from krishiv_spark.sinks.base import CommittedEpoch, Epoch
from krishiv_spark.spark.checkpoint import BATCH_PREFIX, checked_id

__all__ = [
    "JobNumber",
    "NumberedJobOptions",
    "check_same",
    "check_writer",
    "given_name",
    "is_done",
    "number_of_job",
]


def given_name(given: str) -> str:
    """A name that a user gives a query; it becomes a part of paths and of transactional ids.

    Raises:
        ValueError: If it is none.
    """
    if checked_id(given).startswith(BATCH_PREFIX):
        raise ValueError(f"the names of batch jobs start with {BATCH_PREFIX!r}")
    return given


@dataclass(frozen=True)
class JobNumber:
    """What a user calls a batch job.

    Attributes:
        name: Of the series of jobs.
        number: Of this one; later ones have higher numbers.
        repeats: Which numbers may come again: any that is not higher, or only the newest.
        compares: Whether the rows of a job that comes again are compared with those before.
        rows: What is compared instead: count and checksum of what the rows were computed from.
        writer: Spark's id of the query that writes, where the name is another one.
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
        """What tells the job from another one of its number, if that is not in its rows."""
        if self.rows is None or not self.compares:
            return (
                None if self.writer is None else PlannedOffsets.of_writer(self.number, self.writer)
            )
        rows, _, checksum = self.rows.partition(":")
        return self.offsets_of(int(rows), int(checksum, 16))

    def offsets_of(self, rows: int, checksum: int) -> PlannedOffsets:
        """Return what tells the job from another one of its number, by the rows that it has."""
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
        description="Numbers that may be repeated and are then skipped: any number that is not "
        "higher (`any`), or only the newest, as Spark repeats batches (`newest`). With `newest`, "
        "a lower number is an error, because another batch may have had it: the checkpoint was "
        "rolled back.",
    )
    txn_compare: bool = Field(
        default=True,
        description="If `true`, a skipped batch must have the same rows as the batch that was "
        "written under its number, by count and checksum. Otherwise it is an error.",
    )

    txn_query_id: Annotated[str, AfterValidator(checked_id)] | None = Field(
        default=None,
        description="Spark's id of the query that numbers the batches. It is stored with the "
        "newest batch, and another query that uses the same `txnAppId` is refused. `each_batch`, "
        "`upsert` and `aggregate` set it if `query` names the query.",
    )
    txn_replaces: Annotated[str, AfterValidator(checked_id)] | None = Field(
        default=None,
        description="Spark's id of another query, which no longer runs and whose batches of this "
        "`txnAppId` this query continues.",
    )
    txn_checkpoint: str | None = Field(
        default=None,
        description="Checkpoint of the query around `foreachBatch`. Its folder `krishiv` records "
        "the newest batch that was committed into each target, so that a target that was restored "
        "from an older copy is refused. `each_batch` and `upsert` set it.",
    )
    txn_run: str | None = Field(
        default=None,
        description="Text that is different for each start of the query. The record in the "
        "checkpoint is then read once for each start and process, instead of for each batch. "
        "`each_batch` and `upsert` set it.",
    )

    @model_validator(mode="after")
    def _check_number(self) -> Self:
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise ValueError("options 'txnAppId' and 'txnVersion' belong together")
        return self

    @property
    def job(self) -> JobNumber | None:
        """The number of the batch job, if it has one."""
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
        """Return a text that tells the target of these options from another target.

        It is the same for each batch, and contains no secret. By default it is the option `path`;
        for options without one, all texts among the fields of the connector's own.
        """
        if "path" in type(self).model_fields:
            return str(getattr(self, "path", None) or "").rstrip("/")
        own = type(self).model_fields.keys() - NumberedJobOptions.model_fields.keys()
        texts = {name: getattr(self, name) for name in sorted(own)}
        return repr({name: text for name, text in texts.items() if isinstance(text, str)})


def number_of_job(options: object) -> JobNumber | None:
    """The number that options give a batch job, if their sink knows such and they do."""
    return options.job if isinstance(options, NumberedJobOptions) else None


def is_done(job: JobNumber, mark: CommittedEpoch | None) -> bool:
    """Whether a sink holds a batch job already, or one that comes after it. Anywhere.

    Args:
        job: As the user numbers it now.
        mark: The newest that the sink holds of its name.

    Raises:
        CheckpointMismatch: If it holds a later one, and only the newest may come again.
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
        job: As the user numbers it now.
        mark: The newest that the sink holds of its name.

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
    """Refuse a batch whose rows are not those that the sink holds under its number.

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
