"""A table as one target of several, whose epochs are true by an intent that names its files.

The catalog then takes each epoch once, by its mark, whoever brings it; and what could speak against
it was looked at before the intent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property

import pyarrow as pa

from krishiv_spark.errors import (
    CheckpointMismatch,
    CommitRejected,
    CommitUnknown,
    Fenced,
    LogError,
    OptionError,
    SinkError,
)
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.sinks.base import CommittedEpoch, Epoch, Ownership, Task
from krishiv_spark.sinks.iceberg.committer import IcebergCommitter, check_shared
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.iceberg.staged import StagedForTable
from krishiv_spark.sinks.iceberg.target import StagedDataFiles, Target
from krishiv_spark.sinks.iceberg.writer import IcebergWriter
from krishiv_spark.sinks.log_view import LogView
from krishiv_spark.sinks.logged_writer import LoggedWriter
from krishiv_spark.sinks.participant import Participant
from krishiv_spark.sinks.replays import Replay
from krishiv_spark.spark.query_target import QueryTarget

__all__ = ["IcebergParticipant", "IcebergRoute"]


class IcebergRoute(LoggedWriter[StagedForTable, Target]):
    """``krishiv-iceberg`` as a route of ``krishiv-fanout``."""

    options_type = IcebergSinkOptions
    options: IcebergSinkOptions

    @cached_property
    def _sink(self) -> IcebergWriter:
        return IcebergWriter(self.options, self.schema, self.mode, streaming=self.streaming)

    @cached_property
    def _target(self) -> Target:
        return self._sink.plan(None)

    def check(self) -> None:
        """Planner: the table is there, and can take the rows."""
        _ = self._target

    def check_start(self) -> None:
        """Planner: as far as that can be told of a table that is not touched."""
        self._sink.check_start()

    def plan(self, ownership: Ownership[StagedForTable] | None) -> Target:
        """Planner: what tasks need of the table, as `check` has seen it."""
        del ownership
        return self._target

    def describe_target(self) -> QueryTarget:
        """Driver: as the sink itself does."""
        return self._sink.describe_target()

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: Target
    ) -> StagedForTable | None:
        """Executor: as the sink itself does."""
        staged = self._sink.stage(batches, task, plan)
        return None if staged is None else _of_task(staged)

    def participant(self, view: LogView) -> IcebergParticipant:
        """Driver: the catalog."""
        del view  # files have random names, and are removed by vacuum alone
        return IcebergParticipant(self.options, self._sink.committer())

    def log_location(self, query: str) -> str:
        """A table by itself needs none."""
        raise OptionError(
            f"{FORMAT}: query {query} has a committed epoch in the table, but no epoch log"
        )


def _of_task(staged: StagedDataFiles) -> StagedForTable:
    return StagedForTable(
        staged=staged, table=staged.table, spec_id=staged.spec_id, after=staged.after
    )


class IcebergParticipant(Participant[StagedForTable]):
    """One snapshot for each epoch, with its mark.

    Args:
        options: Of the sink.
        committer: Of the sink.
    """

    staged_type = StagedForTable
    may_lose = False

    def __init__(self, options: IcebergSinkOptions, committer: IcebergCommitter) -> None:
        self._options = options
        self._committer = committer

    def prepare(
        self,
        epoch: Epoch,
        staged: Sequence[StagedForTable],
        salvaged: Sequence[StagedForTable],
    ) -> Sequence[StagedForTable]:
        """Committer: the files fit the table as it is, and are in a manifest of their own.

        Raises:
            CommitRejected: If they do not fit, or are not there; or the table has got upserts by
                another key since the epoch was planned.
        """
        from krishiv_spark.sinks.iceberg.changes import check_fits
        from krishiv_spark.sinks.iceberg.prepared import write_prepared

        del salvaged  # no part of an epoch is ever lost
        effect = self._committer.effect
        if not staged and not effect.replaces:
            return ()
        table = self._committer.table()
        try:
            self._committer.check_key(epoch.query)
        except OptionError as error:
            raise CommitRejected(str(error)) from error
        told = [item.staged for item in staged]
        check_fits(told, table.metadata)
        check_shared(table.io, told)
        return [write_prepared(table, told, effect)]

    def finish(self, epoch: Epoch, staged: Sequence[StagedForTable]) -> None:
        """Driver: bring the snapshot into the table, unless its mark is there.

        Raises:
            CommitUnknown: If the table cannot take it now, or does not answer.
            CheckpointMismatch: If the table has another epoch of this number, or a later one.
        """
        if not staged or self.is_finished(epoch):
            return
        self._check_number_is_free(epoch)
        from krishiv_spark.sinks.iceberg.prepared import delete_prepared, effect_of, read_prepared

        table = self._committer.table()
        effect = effect_of(staged[0])  # of all of it, as `prepare` has made it
        try:
            self._committer.finish(epoch, [read_prepared(table, item) for item in staged], effect)
        except Fenced:
            if not self.is_finished(epoch):  # by somebody else, meanwhile
                raise
        except CommitUnknown:
            raise
        except (OSError, SinkError) as error:
            if self._is_finished_meanwhile(epoch):
                return
            raise CommitUnknown(
                f"{FORMAT}: epoch {epoch.number}: its intent is logged, but table "
                f"{self._options.table_name} does not accept it: {error}. Correct the table and "
                "restart the query, which retries it; or see 'krishiv-spark log resolve "
                "--assume'"
            ) from error
        delete_prepared(table, staged)

    def _is_finished_meanwhile(self, epoch: Epoch) -> bool:
        """Return True if another driver has finished the epoch, and removed what it was read from.

        This driver may have slept since it loaded the table.
        """
        self._committer.forget_table()
        with suppress(OSError, SinkError):  # of a table that cannot be read, the first error tells
            return self.is_finished(epoch)
        return False

    def _check_number_is_free(self, epoch: Epoch) -> None:
        mark = self._committer.newest_epoch(epoch.query)
        if mark is not None and mark.epoch >= epoch.number:
            raise CheckpointMismatch(
                f"table {self._options.table_name} has epoch {mark.epoch} of query "
                f"{epoch.query}, and there is no sign that it has epoch {epoch.number} as the "
                "epoch log records it: the log was restored from an older copy, or another "
                "driver is ahead; if so, stop that driver. The table was not changed: put the "
                "newest checkpoint and log back and restart the query"
            )

    def is_finished(self, epoch: Epoch) -> bool:
        """Driver: the table has this very epoch, by its number and digest.

        Of an epoch before the newest one, the snapshots tell, as long as they have not expired.
        """
        from krishiv_spark.sinks.iceberg.marks import has_epoch

        newest = self._committer.newest_epoch(epoch.query)
        if newest is None or newest.epoch < epoch.number:
            return False
        return has_epoch(self._committer.table().metadata, newest, epoch)

    def discard(self, staged: Sequence[StagedForTable]) -> None:
        """Anywhere: remove data files that no snapshot names."""
        self._committer.discard([item.staged for item in staged if item.staged is not None])
        if any(item.manifest for item in staged):
            from krishiv_spark.sinks.iceberg.prepared import delete_prepared

            delete_prepared(self._committer.table(), staged)

    # --- planner

    def target(self) -> str:
        """Planner: the table, by its UUID."""
        return f"Iceberg table {self._committer.table().metadata.table_uuid}"

    def check_query(self, query: str) -> None:
        """Planner: the table has no upserts by another key. See `KeyRule`.

        Raises:
            OptionError: If it has.
        """
        self._committer.check_key(query)

    def newest_epoch(self, query: str) -> CommittedEpoch | None:
        """Planner: the property that comes with the rows; the table was just loaded."""
        return self._committer.newest_epoch(query)

    def contains(self, epoch: Epoch, staged: Sequence[StagedForTable]) -> bool | None:
        """Planner: by its mark, which an epoch without rows for the table does not leave."""
        if not staged:
            return None
        mark = self._committer.newest_epoch(epoch.query)
        return mark is not None and mark.epoch >= epoch.number

    def verify_committed_target(self, epoch: Epoch, staged: Sequence[StagedForTable]) -> None:
        """Planner: the table is the one that the epoch went into."""
        now = str(self._committer.table().metadata.table_uuid)
        if any(item.table != now for item in staged):
            raise LogError(
                f"epoch {epoch.number} of query {epoch.query} was written to the previous table "
                f"{self._options.table_name}, which has since been removed or recreated. "
                "Nothing was written. 'krishiv-spark log resolve --assume aborted' writes the "
                "epoch again; '--assume committed' skips it"
            )

    def verify_empty_log(self, query: str) -> None:
        """Planner: a query without a log must not have a mark in the table, and can have one."""
        mark = self._committer.newest_epoch(query)
        if mark is not None:
            raise LogError(
                f"table {self._options.table_name} has epoch {mark.epoch} of query {query}, but "
                "its epoch log is empty: the log was removed, or the option 'epochLog' has "
                f"changed; put it back, or use {NEW_CHECKPOINT}"
            )
        self._committer.enrol(query)  # before the log has an owner

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:
        """Planner: the catalog keeps the query's mark, also of a route that was added later."""
        del generation, clean
        self._committer.enrol(query)

    # --- operator

    def force_outcome(
        self, epoch: Epoch, staged: Sequence[StagedForTable], *, committed: bool
    ) -> None:
        """Operator: bring the epoch in if that can be; a snapshot that is there stays.

        Raises:
            SinkError: If the epoch is in the table and shall not be.
        """
        if committed:
            self.finish(epoch, staged)
        elif self.is_finished(epoch):
            raise SinkError(
                f"table {self._options.table_name} has epoch {epoch.number} of query "
                f"{epoch.query}: first roll the table back to the snapshot before it, and "
                f"remove the property 'krishiv.epoch.{epoch.query}'"
            )

    def verify_adoption(self, query: str, epoch: int) -> None:
        """Operator: the table's mark must not be ahead.

        Raises:
            LogError: If it is: epochs up to it would be passed over.
        """
        mark = self._committer.newest_epoch(query)
        if mark is not None and mark.epoch > epoch:
            raise LogError(
                f"table {self._options.table_name} has epoch {mark.epoch} of query {query}, and "
                f"would skip the epochs after {epoch} up to that one: use {NEW_CHECKPOINT}"
            )

    def plan_replay(self, replay: Replay) -> list[str]:
        """Operator: the snapshots that are undone. See `Rollback`."""
        from krishiv_spark.sinks.iceberg.rollback import Rollback

        return Rollback(self._options, must_hold=False).lines(replay)

    def take_back(self, replay: Replay) -> None:
        """Operator: roll the table back, with the mark in the same commit."""
        from krishiv_spark.sinks.iceberg.rollback import Rollback

        Rollback(self._options, must_hold=False).run(replay)
        self._committer.forget_table()
