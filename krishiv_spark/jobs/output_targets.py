"""Comparison of the targets and names of a job's outputs with those in its checkpoints. Driver.

A sink of this package compares its target with the recorded one in a check before its start
(`krishiv_spark.lifecycle.resumption`). Functions of ``foreachBatch`` and formats of other packages
have no such check, so the job compares and records for them.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from krishiv_spark.errors import CheckpointMismatch, KrishivError, OptionError, StorageError
from krishiv_spark.jobs.plan import BATCHES, ReadyJob, ReadyOutput
from krishiv_spark.lifecycle.resumption import check_same_target
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.messages.redaction import redact
from krishiv_spark.options.references import Referenced
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.spark.query_target import QueryTarget, digest_of
from krishiv_spark.storage import Storage, StoreUrl

__all__ = ["JobTargets"]

_log = logging.getLogger(__name__)

_NAMING = (
    *("path", "url", "table", "dbtable", "topic", "database", "collection", "keyspace", "index"),
    *("resource", "es.resource", "stream", "queue"),
)
"""Options of other formats that name a target, in lower case. Addresses of brokers and the like are
not among them, since they may change under a query."""


_SCHEMES = re.compile(r"(?:[A-Za-z][\w+.-]*:)+")


@dataclass(frozen=True)
class JobTargets:
    """The targets of a job's outputs, and the records of its checkpoints. Driver.

    Attributes:
        job: The job.
        accepted: Outputs, by name or as ``job.output``, whose new target or new name is accepted.
    """

    job: ReadyJob
    accepted: Collection[str]

    def is_accepted(self, output: ReadyOutput) -> bool:
        """Return True if an output may have a new target, or a new name."""
        name = output.model.name
        return name in self.accepted or f"{self.job.name}.{name}" in self.accepted

    def checkpoint_at(self, number: int) -> SparkCheckpoint:
        """Return the checkpoint of a query of the job, by its index."""
        return self._checkpoint_of(self.job.outputs[number])

    def check(self) -> Iterator[str]:
        """Refuse an output whose target or name has changed; changes nothing.

        Yields:
            Warnings about changes that cannot be detected.

        Raises:
            CheckpointMismatch: If an output would lose rows, or write them twice.
        """
        if not self.job.model.is_streaming:
            return
        for output in self._recorded_here():
            if not self.is_accepted(output):
                self._check_target(output)
        if self.job.writes_batches:
            self._check_names_of_batches()
        else:
            yield from self._check_names()

    def forget_accepted(self) -> None:
        """Remove the records of outputs whose new target is accepted; the next epoch records it.

        The new target is thus accepted once, even if this run has no rows. An error is logged.
        """
        for output in self.job.outputs:
            if self.job.writes_batches or not self.is_accepted(output):
                continue
            checkpoint = self._checkpoint_of(output)
            try:
                if checkpoint.recorded_target() is not None:
                    checkpoint.forget_target()
            except (KrishivError, OSError) as error:
                _log.warning(
                    "the old target of output %r is still recorded until its next epoch",
                    output.model.name,
                    exc_info=scrub(error),
                )

    def record(self, number: int) -> None:
        """Record the targets of a query that has started, if its sinks do not. An error is logged.

        Args:
            number: Index of the query in the job, as for `checkpoint_at`.
        """
        of_query = self.job.outputs if self.job.writes_batches else [self.job.outputs[number]]
        for output in self._recorded_here():
            if output not in of_query:
                continue
            checkpoint, now, name = self._find_target(output)
            try:
                # If no query is stored there as seen from this process, the checkpoint is on
                # another machine.
                if now is not None and _has_query(checkpoint):
                    checkpoint.record_target(now, name)
            except (KrishivError, OSError) as error:
                _log.warning(
                    "the target of output %r is not recorded, so that another one will not be "
                    "noticed",
                    output.model.name,
                    exc_info=scrub(error),
                )

    # --- targets

    def _check_target(self, output: ReadyOutput) -> None:
        try:
            check_same_target(*self._find_target(output))
        # Such outputs may have a checkpoint that only Spark can read. Their targets are not
        # compared.
        except (OptionError, StorageError, OSError) as error:
            _log.info(
                "it is not checked that output %r writes to the same target as before",
                output.model.name,
                exc_info=scrub(error),
            )

    def _recorded_here(self) -> Iterator[ReadyOutput]:
        """Yield the outputs whose targets no sink compares and records."""
        for output in self.job.outputs:
            by_function = self.job.writes_batches or output.model.output_mode == "update"
            if by_function or not output.place.is_ours:
                yield output

    def _find_target(
        self, output: ReadyOutput
    ) -> tuple[SparkCheckpoint, QueryTarget | None, str | None]:
        name = output.model.name if self.job.writes_batches else None
        return self._checkpoint_of(output), self._describe(output), name

    def _checkpoint_of(self, output: ReadyOutput) -> SparkCheckpoint:
        location = output.checkpoint or self.job.batches_checkpoint
        return SparkCheckpoint(location, Storage.for_query(output.place.options).also_at(location))

    def _describe(self, output: ReadyOutput) -> QueryTarget | None:
        """Return the target by the options of the job; None if it is unknown here."""
        try:
            return describe_target_of_output(output)
        # Spark's driver may run on another machine, with other packages, networks and folders.
        except (KrishivError, OSError, ImportError) as error:
            _log.debug("output %r is not compared", output.model.name, exc_info=scrub(error))
            return None

    # --- names

    def _check_names(self) -> Iterator[str]:
        root = self.job.checkpoint
        news = [
            output
            for output in self.job.outputs
            if output.checkpoint == f"{root}/{output.model.name}"
            if not self.is_accepted(output) and not _has_query(self._checkpoint_of(output))
        ]
        if root is None or not news:
            return
        for name in self._folders_without_output:
            folder = SparkCheckpoint(f"{root}/{name}", self._storage)
            before = _read_recorded(folder)
            for output in news:
                if before is None:
                    yield (
                        f"{folder.location} is the checkpoint of no output, and output "
                        f"{output.model.name!r} is new: if it is the same one under another name, "
                        "its rows are written again; stop it and rename that folder"
                    )
                elif (now := self._describe(output)) is not None and before.is_same(now):
                    raise _renamed_error(self.job.name, folder.location, name, output, now)

    @cached_property
    def _storage(self) -> Storage:
        root = self.job.checkpoint or ""
        return Storage.for_query(self.job.outputs[0].place.options).also_at(root)

    @cached_property
    def _folders_without_output(self) -> list[str]:
        """The folders of the job's checkpoint that contain a query, but belong to no output."""
        root = self.job.checkpoint or ""
        used = {*self.job.checkpoints, *self.job.other_checkpoints, f"{root}/{BATCHES}"}
        try:
            place = StoreUrl.parse(root)
            found = list(self._storage.files(place).entries(str(place)))
        except (KrishivError, OSError):
            return []  # it does not exist yet, or only Spark can read it
        names = sorted(entry.name.rstrip("/") for entry in found if entry.is_dir())
        folders = (name for name in names if f"{root}/{name}" not in used)
        return [
            name for name in folders if _has_query(SparkCheckpoint(f"{root}/{name}", self._storage))
        ]

    def _check_names_of_batches(self) -> None:
        """Refuse a new name until the newest batch, which Spark repeats, is completed."""
        checkpoint = self._checkpoint_of(self.job.outputs[0])
        with suppress(OSError, OptionError, StorageError):  # only Spark can read it
            epochs = checkpoint.epochs()
            if not epochs or checkpoint.is_committed(epochs[-1]):
                return
            recorded = checkpoint.recorded_targets()
            names = {output.model.name for output in self.job.outputs}
            olds = {str(name): each for name, each in recorded.items() if name not in names}
            for output in self.job.outputs:
                if output.model.name in recorded or self.is_accepted(output):
                    continue
                now = self._describe(output)
                for name, before in olds.items():
                    if now is not None and before.is_same(now):
                        raise _renamed_batch_error(self.job.name, epochs[-1], name, output, now)


def describe_target_of_output(output: ReadyOutput) -> QueryTarget | None:
    """Return the target of an output; None if the options of a foreign format name none.

    Raises:
        KrishivError, OSError: If the target cannot be reached from this machine.
        ImportError: If a package is missing on this machine.
    """
    place = output.place
    source = place.source
    if source is None:
        return _foreign_target(place.format, place.options)
    if source.writer_type is None:
        return None
    kind, options = source.open_sink(place.options)
    found = kind(options, pa.schema([]), OutputMode.APPEND, streaming=True).describe_target()
    hidden = {str.__str__(t) for t in place.options.values() if isinstance(t, Referenced)}
    return None if found is None else found.hiding(hidden)


def _foreign_target(name: str, options: Mapping[str, str]) -> QueryTarget | None:
    given = {key.lower(): text for key, text in options.items()}
    named = [key for key in _NAMING if key in given]
    if not named:
        return None
    shown = ", ".join(f"{key}={_shown(key, given[key])}" for key in named)
    compared = ", ".join(f"{key}={_normal(key, str.__str__(given[key]))}" for key in named)
    return QueryTarget(name.lower(), shown, digest_of(compared))


def _shown(key: str, text: str) -> str:
    """Return a name for messages; secrets are replaced by their references."""
    if isinstance(text, Referenced) and text.is_secret is not False:
        return text.reference
    return _without_login(text) if key == "url" else redact(text)


def _normal(key: str, text: str) -> str:
    """Return a normalized name without credentials, which may change; only its digest is stored."""
    if key == "url":
        return _without_login(text)
    if key != "path" or StoreUrl.kind_of(text) is None:
        return redact(text)
    try:
        place = StoreUrl.parse(text)
    except OptionError:
        return redact(text)  # Spark may accept it
    if place.kind == "disk":
        return os.path.realpath(place.path)
    # Spark accepts several schemes for one bucket, and several names of one HDFS.
    bucket = f"{place.account}/{place.bucket}" if place.has_bucket else ""
    return f"{place.kind}:{bucket}/{place.path}"


def _without_login(url: str) -> str:
    """Return a URL, such as one of JDBC, without parameters and credentials."""
    bare = redact(url.partition("?")[0].partition(";")[0])
    front, _, address = bare.rpartition("@")  # Oracle writes thin:user/password@//host
    if not front:
        return bare
    schemes = _SCHEMES.match(front)
    return f"{'' if schemes is None else schemes[0]}//{address.removeprefix('//')}"


def _has_query(checkpoint: SparkCheckpoint) -> bool:
    try:
        return checkpoint.folder().read("metadata") is not None
    except (KrishivError, OSError):
        return False  # only Spark can read it, and will report errors


def _read_recorded(checkpoint: SparkCheckpoint) -> QueryTarget | None:
    try:
        return checkpoint.recorded_target()
    except (KrishivError, OSError):
        return None


def _renamed_error(
    job: str, folder: str, name: str, output: ReadyOutput, now: QueryTarget
) -> CheckpointMismatch:
    new = output.model.name
    return CheckpointMismatch(
        f"job {job!r}: output {new!r} is new, and writes to {now}, the target of output "
        f"{name!r}, whose checkpoint is {folder}: all rows would be written again. Nothing was "
        f"written. Ways on: call the output {name!r} again; or rename the folder {folder!r} to "
        f"{folder.removesuffix(name) + new!r}, and the query continues; or, if all rows are to "
        f"be written again, 'krishiv-spark run --new-target {new}'"
    )


def _renamed_batch_error(
    job: str, epoch: int, name: str, output: ReadyOutput, now: QueryTarget
) -> CheckpointMismatch:
    new = output.model.name
    return CheckpointMismatch(
        f"job {job!r}: output {new!r} is new, and writes to {now}, the target of output "
        f"{name!r}: epoch {epoch} is not completed, and its rows would be written again. "
        f"Nothing was written. Ways on: call the output {name!r} until that epoch is completed; "
        f"or, if its rows are to be written again, 'krishiv-spark run --new-target {new}'"
    )
