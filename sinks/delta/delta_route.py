"""A table as a route of ``krishiv-fanout``: an intent in the epoch log commits each epoch.

The intent names the files of the epoch, after everything that could reject them was checked. The
table's log then accepts the epoch once, by its mark, whichever driver sends it.

An intent must be short, however many files the epoch has. So they are listed in a file of the
table's folder `_krishiv`, which neither readers of Delta nor VACUUM enter.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property

import pyarrow as pa
from pydantic import BaseModel, Field

from krishiv_spark.delta.opening import open_table
from krishiv_spark.delta.options import FORMAT
from krishiv_spark.errors import (
    CommitUnknown,
    LogError,
    OptionError,
)
from krishiv_spark.sinks.base import CommittedEpoch, Epoch, OutputMode, Ownership, Task
from krishiv_spark.sinks.delta.epoch_commit import (
    DeltaCommit,
    DeltaCommitter,
    check_fits,
    check_staged_exist,
    find_epoch,
    list_missing,
    read_mark,
)
from krishiv_spark.sinks.delta.options import DeltaSinkOptions
from krishiv_spark.sinks.delta.task_files import StagedDeltaFiles, TargetTable
from krishiv_spark.sinks.delta.writer import DeltaWriter
from krishiv_spark.sinks.logged_writer import LoggedWriter, LogView
from krishiv_spark.sinks.marked import MarkedTableParticipant
from krishiv_spark.spark.query_target import QueryTarget
from krishiv_spark.storage import Folder
from krishiv_spark.storage.paths import FileName

__all__ = ["DeltaParticipant", "DeltaRoute", "StagedForDelta"]

_FOLDER = "_krishiv"


class StagedForDelta(BaseModel, frozen=True):
    """The files that a task has staged; in an intent, the files of the whole epoch.

    Attributes:
        staged: The task's own report; not in intents, which must be short.
        table: Id of the table.
        file: Name of the file with the reports of all tasks; None in the message of a task.
        replaces: True if the epoch replaces all rows.
    """

    staged: StagedDeltaFiles | None = Field(default=None, exclude=True)
    table: str
    file: FileName | None = None
    replaces: bool = False


class DeltaRoute(LoggedWriter[StagedForDelta, TargetTable]):
    """``krishiv-delta`` as a route of ``krishiv-fanout``."""

    options_type = DeltaSinkOptions
    options: DeltaSinkOptions

    @cached_property
    def _sink(self) -> DeltaWriter:
        return DeltaWriter(self.options, self.schema, self.mode, streaming=self.streaming)

    @cached_property
    def _target(self) -> TargetTable:
        return self._sink.plan(None)

    def check(self) -> None:
        """Planner: create or adapt the table, and check that it accepts the rows."""
        _ = self._target

    def check_start(self) -> None:
        """Planner: check the table without a change to it."""
        self._sink.check_start()

    def plan(self, ownership: Ownership[StagedForDelta] | None) -> TargetTable:
        """Planner: return the description for tasks of the table that `check` has read."""
        del ownership
        return self._target

    def describe_target(self) -> QueryTarget:
        """Driver: describe the table as the sink does."""
        return self._sink.describe_target()

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: TargetTable
    ) -> StagedForDelta | None:
        """Executor: stage rows as the sink does."""
        staged = self._sink.stage(batches, task, plan)
        return None if staged is None else StagedForDelta(staged=staged, table=staged.table)

    def participant(self, view: LogView) -> DeltaParticipant:
        """Driver: return the participant of the table."""
        del view  # files have random names, and only VACUUM deletes leftovers
        return DeltaParticipant(self.options, replaces=self.mode is OutputMode.REPLACE)

    def log_location(self, query: str) -> str:
        """Raise an error: a table outside a fan-out has no epoch log."""
        raise OptionError(
            f"{FORMAT}: query {query} has a mark in the table's log, but no epoch log: use "
            "krishiv-fanout"
        )


class DeltaParticipant(MarkedTableParticipant[StagedForDelta]):
    """A participant that commits one version for each epoch, with its mark.

    Args:
        options: Options of the sink.
        replaces: True if the epochs of the query replace all rows.
    """

    staged_type = StagedForDelta
    format_name = FORMAT

    def __init__(self, options: DeltaSinkOptions, *, replaces: bool) -> None:
        self._options = options
        self._replaces = replaces

    @property
    def table(self) -> str:
        """The path of the table, for messages."""
        return self._options.path

    def prepare(
        self,
        epoch: Epoch,
        staged: Sequence[StagedForDelta],
        salvaged: Sequence[StagedForDelta],
    ) -> Sequence[StagedForDelta]:
        """Committer: check the staged files, and list them in a file.

        Raises:
            CommitRejected: If they do not fit the table, or do not exist.
        """
        del salvaged  # no part of an epoch is ever lost
        if not staged and not self._replaces:
            return ()
        table = open_table(self._options)
        reported = [item.staged for item in staged if item.staged is not None]
        check_fits(self._options, table, reported, replaces=self._replaces)
        check_staged_exist(self._options, reported)
        name = f"{epoch.number}-{uuid.uuid4().hex}.json"
        text = json.dumps([item.model_dump(mode="json") for item in reported])
        self._folder.create(name, text.encode())
        identity = str(table.metadata().id)
        return [StagedForDelta(table=identity, file=name, replaces=self._replaces)]

    def commit(self, epoch: Epoch, staged: Sequence[StagedForDelta]) -> None:
        """Driver: commit the version of an epoch.

        Raises:
            CommitUnknown: If staged files were deleted.
        """
        files = [one for item in staged for one in self._read_files(item)]
        self._check_files_exist(epoch, files)
        # `prepare` has returned one item for the whole epoch.
        DeltaCommit(self._options, epoch, files, replaces=staged[0].replaces).run()
        self._delete_lists(staged)

    def _read_files(self, item: StagedForDelta) -> list[StagedDeltaFiles]:
        """Return the files that an intent names.

        Raises:
            LogError: If their list is missing or damaged.
        """
        found = None if item.file is None else self._folder.read(item.file)
        try:
            return [StagedDeltaFiles.model_validate(one) for one in json.loads(found or b"")]
        except ValueError as error:
            raise LogError(
                f"{FORMAT}: the list of files {_FOLDER}/{item.file} in {self._options.path}, which "
                f"an intent names, is missing or damaged: {error}. Restore it; or see "
                "'krishiv-spark log resolve --assume'"
            ) from error

    def _check_files_exist(self, epoch: Epoch, files: Sequence[StagedDeltaFiles]) -> None:
        """Refuse an intent whose files were deleted: readers of its version would fail.

        Raises:
            CommitUnknown: If one is missing, and no other driver has finished the epoch meanwhile.
        """
        missing = list_missing(self._options, files)
        if missing and not self.is_finished_meanwhile(epoch):
            raise CommitUnknown(
                f"{FORMAT}: epoch {epoch.number}: its intent is logged, but {len(missing)} staged "
                f"files of {self._options.path} are missing, such as {missing[0]!r}: VACUUM ran "
                "with a retention that is shorter than the query was down. The table was not "
                "changed. Restore the files and restart the query; or 'krishiv-spark log resolve "
                "--assume aborted' stages the epoch again, and rows that other targets have "
                "committed are there twice"
            )

    def is_finished(self, epoch: Epoch) -> bool:
        """Driver: return True if the table has this epoch, by its number and digest."""
        return find_epoch(self._options, open_table(self._options), epoch)

    def discard(self, staged: Sequence[StagedForDelta]) -> None:
        """Anywhere: delete staged files that no version names."""
        committer = DeltaCommitter(self._options, replaces=self._replaces)
        committer.discard([item.staged for item in staged if item.staged is not None])
        self._delete_lists(staged)

    # --- planner

    def target(self) -> str:
        """Planner: return the identity of the table, its id."""
        return f"Delta table {open_table(self._options).metadata().id}"

    def newest_epoch(self, query: str) -> CommittedEpoch | None:
        """Planner: return the epoch of the table's mark."""
        return read_mark(self._options, open_table(self._options), query)

    def is_elsewhere(self, staged: Sequence[StagedForDelta]) -> bool:
        """Planner: return True if the table was recreated."""
        now = str(open_table(self._options).metadata().id)
        return any(item.table != now for item in staged)

    def describe_undo(self, query: str) -> str:
        """Operator: return how an epoch is removed."""
        del query
        return "restore the version before it, by RESTORE TABLE"

    def _delete_lists(self, staged: Sequence[StagedForDelta]) -> None:
        """Delete the lists of intents; best effort."""
        with suppress(Exception):
            self._folder.remove([item.file for item in staged if item.file is not None])

    @property
    def _folder(self) -> Folder:
        return self._options.storage.folder(self._options.url / _FOLDER)
