"""A table as a route of ``krishiv-fanout``: an intent in the epoch log commits each epoch.

The intent names the files of the epoch, after everything that could reject them was checked. The
catalog then accepts the epoch once, by the epoch's property, whichever driver sends it.

An intent must be short, however many files the epoch has. So the data files are listed in a
manifest that no snapshot lists: the snapshot of the epoch has manifests of its own. The intent also
contains the effect on existing rows, since the driver that finishes it may have other options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import BaseModel, Field
from typing_extensions import Self

from krishiv_spark.errors import (
    CommitRejected,
    LogError,
    OptionError,
    SchemaError,
)
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.own_files import OwnFiles
from krishiv_spark.sinks.base import CommittedEpoch, Epoch, Ownership, Task
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.iceberg.task_table import StagedDataFiles, TaskTableSpec
from krishiv_spark.sinks.iceberg.writer import IcebergWriter
from krishiv_spark.sinks.logged_writer import Examiner, LogView
from krishiv_spark.sinks.marked import MarkedTableParticipant
from krishiv_spark.sinks.participant import Replay
from krishiv_spark.sinks.topic_route import TopicRoute, TopicTable
from krishiv_spark.spark.query_target import QueryTarget

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from krishiv_spark.sinks.iceberg.committer import IcebergCommitter
    from krishiv_spark.sinks.iceberg.epoch_updates import EpochMode

__all__ = [
    "IcebergParticipant",
    "IcebergRoute",
    "StagedForTable",
    "delete_intent_files",
    "read_intent_files",
    "read_mode",
    "write_intent_files",
]


class StagedForTable(BaseModel, frozen=True):
    """The files that a task has staged; in an intent, the files of the whole epoch.

    Attributes:
        staged: The task's own report; not in intents, which must be short.
        table: UUID of the table. This and the next four are as in `StagedDataFiles`.
        spec_id: Partition spec.
        after: Sequence number.
        changes: Paths of staged changes.
        schema_id: Schema of the changes.
        manifest: Path of a manifest of the data files; None if there are none.
        replaces: Whether the epoch replaces all rows; None in older intents, and in the message of
            a task.
        keys: Key columns of the changes.
        order: Column whose highest value wins among the changes of a key; None for the last one.
        compares_stored: See `UpsertSpec`.
        history: Of a history, see `HistorySpec.to_texts`; empty for upserts.
    """

    staged: Any = Field(default=None, exclude=True)
    table: str
    spec_id: int
    after: int
    changes: tuple[str, ...] = ()
    schema_id: int | None = None
    manifest: str | None = None
    replaces: bool | None = None
    keys: tuple[str, ...] = ()
    order: str | None = None
    compares_stored: bool = False
    history: tuple[str, ...] = ()


class IcebergRoute(TopicRoute[StagedForTable, TaskTableSpec]):
    """``krishiv-iceberg`` as a route of ``krishiv-fanout``, or as the route of a topic."""

    options_type = IcebergSinkOptions
    options: IcebergSinkOptions

    @cached_property
    def _sink(self) -> IcebergWriter:
        return IcebergWriter(self.options, self.schema, self.mode, streaming=self.streaming)

    @cached_property
    def _target(self) -> TaskTableSpec:
        return self._sink.plan(None)

    def check(self) -> None:
        """Planner: check that the table exists and accepts the rows."""
        _ = self._target

    def check_start(self) -> None:
        """Planner: check the table without a change to it."""
        self._sink.check_start()

    def check_topics(self, *, starts: bool) -> None:
        """Planner: check rows, options and catalog of tables by topic."""
        self._sink.check_topics(starts=starts)

    def find_table(self, topic: str, rows: pa.RecordBatch) -> TopicTable:
        """Executor: return the table of a topic, with the columns of its records' keys."""
        if self.options.change_format is None or self.options.key_columns:
            return TopicTable(topic=topic)
        keys = self._sink.find_keys(rows)
        if not keys:
            raise SchemaError(
                f"{FORMAT}: the records of topic {topic!r} have no keys with names of columns, and "
                "'keyColumns' is not set: set it, or leave the topic out of the query. Nothing of "
                "this batch was written"
            )
        return TopicTable(topic=topic, keys=keys)

    def of_topic(self, table: TopicTable, *, must_exist: bool = False) -> Self:
        """Return the writer of a topic's table."""
        options = self.options.of_topic(table.topic, table.keys, must_exist=must_exist)
        return type(self)(options, self.schema, self.mode, streaming=self.streaming)

    def plan(self, ownership: Ownership[StagedForTable] | None) -> TaskTableSpec:
        """Planner: return the specification for tasks of the table that `check` has loaded."""
        del ownership
        return self._target

    def describe_target(self) -> QueryTarget:
        """Driver: describe the table as the sink does."""
        return self._sink.describe_target()

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: TaskTableSpec
    ) -> StagedForTable | None:
        """Executor: stage rows as the sink does."""
        staged = self._sink.stage(batches, task, plan)
        return None if staged is None else _of_task(staged)

    @property
    def examines_rows(self) -> bool:
        """True for records of change data, which tasks decode."""
        return self.options.change_format is not None

    def create_examiner(self, plan: TaskTableSpec) -> Examiner | None:
        """Executor: return the function that decodes records, and finds those that are bad."""
        records = self._sink.read_records(plan)
        return None if records is None else records.examine

    def participant(self, view: LogView) -> IcebergParticipant:
        """Driver: return the participant for the table's catalog."""
        del view  # files have random names, and only vacuum deletes leftovers
        return IcebergParticipant(self.options, self._sink.committer())

    def log_location(self, query: str) -> str:
        """Raise an error: a table outside a fan-out has no epoch log."""
        raise OptionError(
            f"{FORMAT}: query {query} has a committed epoch in the table, but no epoch log"
        )


def _of_task(staged: StagedDataFiles) -> StagedForTable:
    return StagedForTable(
        staged=staged, table=staged.table, spec_id=staged.spec_id, after=staged.after
    )


class IcebergParticipant(MarkedTableParticipant[StagedForTable]):
    """A participant that commits one snapshot for each epoch, with the epoch's property.

    Args:
        options: Options of the sink.
        committer: Committer of the sink.
    """

    staged_type = StagedForTable
    format_name = FORMAT

    def __init__(self, options: IcebergSinkOptions, committer: IcebergCommitter) -> None:
        self._options = options
        self._committer = committer
        self._prepared: tuple[StagedForTable, float] | None = None
        """The epoch that this process has prepared, and the time of its oldest staged file."""

    @property
    def table(self) -> str:
        """The name of the table, for messages."""
        return self._options.table_name

    def prepare(
        self,
        epoch: Epoch,
        staged: Sequence[StagedForTable],
        salvaged: Sequence[StagedForTable],
    ) -> Sequence[StagedForTable]:
        """Committer: check the staged files, and list the data files in a manifest.

        Raises:
            CommitRejected: If the files do not fit the table or do not exist; or the table got
                upserts by another key after the epoch was planned.
        """
        from krishiv_spark.sinks.iceberg.epoch_updates import check_fits, check_staged_exist
        from krishiv_spark.sinks.iceberg.table_setup import adapt_to_changes

        del salvaged  # no part of an epoch is ever lost
        mode = self._committer.mode
        if not staged and not mode.replaces:
            return ()
        reported = [item.staged for item in staged]
        table = adapt_to_changes(self._options, self._committer.table(), reported)
        try:
            self._committer.check_key(epoch.query)
        except OptionError as error:
            raise CommitRejected(str(error)) from error
        check_fits(reported, table.metadata)
        check_staged_exist(table.io, reported)
        whole = write_intent_files(table, reported, mode)
        self._prepared = whole, min((item.at_s for item in reported), default=0.0)
        return [whole]

    def commit(self, epoch: Epoch, staged: Sequence[StagedForTable]) -> None:
        """Driver: commit the snapshot of an epoch."""
        table = self._committer.table()
        mode = read_mode(staged[0])  # `prepare` has returned one item for the whole epoch
        files = [replace(read_intent_files(table, x), at_s=self._time_of(x)) for x in staged]
        self._committer.finish(epoch, files, mode)
        delete_intent_files(table, staged)

    def _time_of(self, item: StagedForTable) -> float:
        """Return `StagedDataFiles.at_s` of the files of an intent."""
        prepared = self._prepared
        return prepared[1] if prepared is not None and prepared[0] == item else 0.0

    def forget_table(self) -> None:
        """Driver: load the table again the next time."""
        self._committer.forget_table()

    def is_finished(self, epoch: Epoch) -> bool:
        """Driver: return True if the table has this epoch, by its number and digest.

        An epoch before the newest one is found in snapshots, as long as they have not expired.
        """
        from krishiv_spark.sinks.iceberg.epoch_properties import has_epoch

        newest = self._committer.read_committed(epoch.query)
        if newest is None or newest.epoch < epoch.number:
            return False
        return has_epoch(self._committer.table().metadata, newest, epoch)

    def discard(self, staged: Sequence[StagedForTable]) -> None:
        """Anywhere: delete staged files that no snapshot names."""
        self._committer.discard([item.staged for item in staged if item.staged is not None])
        if any(item.manifest for item in staged):
            delete_intent_files(self._committer.table(), staged)

    # --- planner

    def target(self) -> str:
        """Planner: return the identity of the table, its UUID."""
        return f"Iceberg table {self._committer.table().metadata.table_uuid}"

    def check_query(self, query: str) -> None:
        """Planner: refuse a table with upserts by another key. See `KeyRule`.

        Raises:
            OptionError: If the table has such upserts.
        """
        self._committer.check_key(query)

    def newest_epoch(self, query: str) -> CommittedEpoch | None:
        """Planner: return the epoch of the table's property; the table was just loaded."""
        return self._committer.read_committed(query)

    def is_elsewhere(self, staged: Sequence[StagedForTable]) -> bool:
        """Planner: return True if the table was recreated."""
        now = str(self._committer.table().metadata.table_uuid)
        return any(item.table != now for item in staged)

    def verify_empty_log(self, query: str) -> None:
        """Planner: check that a query without a log has no epoch in the table, and enrol it.

        Raises:
            LogError: If the table has an epoch of the query.
        """
        super().verify_empty_log(query)
        self._committer.enrol(query)  # before the log has an owner

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:
        """Planner: ensure that the catalog keeps the query's property; the route may be new."""
        del generation, clean
        self._committer.enrol(query)

    # --- operator

    def describe_undo(self, query: str) -> str:
        """Operator: return how an epoch is removed."""
        return (
            "roll the table back to the snapshot before it, and remove the property "
            f"'krishiv.epoch.{query}'"
        )

    def plan_replay(self, replay: Replay) -> list[str]:
        """Operator: describe the snapshots that are undone. See `Rollback`."""
        from krishiv_spark.sinks.iceberg.maintenance.rollback import Rollback

        return Rollback(self._options, must_hold=False).lines(replay)

    def take_back(self, replay: Replay) -> None:
        """Operator: roll the table back, and reset the query's epoch in the same commit."""
        from krishiv_spark.sinks.iceberg.maintenance.rollback import Rollback

        Rollback(self._options, must_hold=False).run(replay)
        self._committer.forget_table()


def write_intent_files(
    table: Table, staged: Sequence[StagedDataFiles], mode: EpochMode
) -> StagedForTable:
    """Describe the staged files of an epoch for its intent; durable when this returns.

    Args:
        table: The table that the files fit.
        staged: One item per task; none for an epoch that only removes rows.
        mode: The effect of the epoch.
    """
    from krishiv_spark.sinks.iceberg.manifest_writers import write_unlisted_manifest

    spec = mode.upsert_spec
    metadata = table.metadata
    files = [file for item in staged for file in item.files]
    return StagedForTable(
        table=str(metadata.table_uuid),
        spec_id=metadata.default_spec_id,
        after=min((item.after for item in staged), default=0),
        changes=tuple(path for item in staged for path in item.changes),
        schema_id=next((item.schema_id for item in staged if item.changes), None),
        manifest=write_unlisted_manifest(table, files) if files else None,
        replaces=mode.replaces,
        keys=() if spec is None else spec.keys,
        order=None if spec is None else spec.order,
        compares_stored=spec is not None and spec.compares_stored,
        history=() if spec is None else spec.to_texts(),
    )


def read_mode(item: StagedForTable) -> EpochMode | None:
    """Return the effect of an epoch from its intent; None for older intents without it."""
    if item.replaces is None:
        return None
    from krishiv_spark.sinks.iceberg.epoch_updates import EpochMode
    from krishiv_spark.sinks.iceberg.upserts.upsert_staging import UpsertSpec

    # The name of the column of operations is not needed: staged changes have a column of deletes.
    compares = item.compares_stored
    given = (item.keys, None, item.order)
    spec = UpsertSpec(*given, compares_stored=compares) if item.keys else None
    if spec is not None and item.history:
        from krishiv_spark.sinks.iceberg.history.history_spec import HistorySpec

        spec = HistorySpec.from_texts(spec, item.history)
    return EpochMode(spec, replaces=item.replaces)


def read_intent_files(table: Table, item: StagedForTable) -> StagedDataFiles:
    """Return the files that an intent names, as the tasks reported them.

    Raises:
        LogError: If it names files that this sink does not stage for the table.
        OSError: If a file is missing, or cannot be read.
    """
    from krishiv_spark.sinks.iceberg.manifest_writers import read_unlisted_manifest

    own = OwnFiles.for_staging(table)
    for path in (*filter(None, [item.manifest]), *item.changes):
        if path not in own:
            raise LogError(
                f"{FORMAT}: an intent names {path!r}, which is not a file staged for the table "
                f"at {table.location()!r}: the epoch log was changed. Nothing was read or "
                "deleted"
            )
    found = item.manifest and read_unlisted_manifest(table.io, item.manifest, item.spec_id)
    return StagedDataFiles(
        item.table, item.spec_id, item.after, tuple(found or ()), item.changes, item.schema_id
    )


def delete_intent_files(table: Table, staged: Sequence[StagedForTable]) -> None:
    """Delete the manifests that intents name; best effort, the rest is for vacuum."""
    with suppress(Exception):
        OwnFiles.for_staging(table).delete(item.manifest for item in staged if item.manifest)
