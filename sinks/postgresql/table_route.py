"""A table as a route of ``krishiv-fanout``: an intent in the epoch log commits each epoch.

The intent names staging tables, and may be finished after a crash of the server. So they are logged
by the server, unlike those of the sink alone. One transaction then moves their rows and writes the
mark, which makes every repetition do nothing.

An entry of a log may have been written by another user. So it contains names only, which become
quoted identifiers; types and casts are read from the catalog. The fingerprints of columns in it are
only compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated

import pyarrow as pa
from pydantic import BaseModel, StringConstraints

from krishiv_spark.errors import (
    CheckpointMismatch,
    CommitRejected,
    KrishivError,
    OptionError,
)
from krishiv_spark.messages.exception_chains import raise_alone
from krishiv_spark.postgresql.catalog import has_table
from krishiv_spark.postgresql.connection import (
    DatabaseTransaction,
    describe_error,
    open_transaction,
)
from krishiv_spark.postgresql.names import TableName
from krishiv_spark.postgresql.options import FORMAT
from krishiv_spark.sinks.base import CommittedEpoch, Epoch, OutputMode, Ownership, Task
from krishiv_spark.sinks.logged_writer import Examiner, LoggedWriter, LogView
from krishiv_spark.sinks.marked import MarkedParticipant
from krishiv_spark.sinks.participant import LostIntentError
from krishiv_spark.sinks.postgresql.change_queries import Effect
from krishiv_spark.sinks.postgresql.marks import Marks
from krishiv_spark.sinks.postgresql.moving import move_rows
from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions
from krishiv_spark.sinks.postgresql.staging_tables import (
    StagedTable,
    StagingPlan,
    drop_tables,
    find_of_query,
)
from krishiv_spark.sinks.postgresql.target import read_staged, resolve_name, staging_schema
from krishiv_spark.sinks.postgresql.writer import PostgresqlWriter
from krishiv_spark.spark.query_target import QueryTarget

__all__ = ["PostgresqlParticipant", "PostgresqlRoute", "StagedForPostgresql"]

StagingName = Annotated[str, StringConstraints(pattern=r"^krishiv_l_[0-9a-z_]{1,53}$")]


class StagedForPostgresql(BaseModel, frozen=True):
    """The staging table of a task; in an intent, with the effect of the epoch.

    Attributes:
        staging_schema: Schema of the staging table.
        name: The staging table; None if the epoch only removes rows.
        partition: Number of the task.
        replaces: True if the epoch replaces all rows.
        truncates: True if it empties the table by TRUNCATE.
        keys: Columns of the table that identify a changed row; empty if rows are added.
        order: Column whose highest value wins among the changes of a key.
        columns: Fingerprints of the columns that the rows were checked against, by name.
        are_records: True for changes that were decoded from records of change data.
        missing_is_null: True to write null for an unchanged value of a row that does not exist.
    """

    staging_schema: str = ""
    name: StagingName | None = None
    partition: int = 0
    replaces: bool = False
    truncates: bool = False
    keys: tuple[str, ...] = ()
    order: str | None = None
    columns: Mapping[str, str] = {}
    are_records: bool = False
    missing_is_null: bool = False

    @property
    def effect(self) -> Effect:
        """The effect of the epoch on earlier rows."""
        given = (self.replaces, self.truncates, self.keys, self.order)
        return Effect(*given, self.are_records, self.missing_is_null)

    @property
    def table(self) -> TableName | None:
        """The staging table."""
        return None if self.name is None else TableName(self.staging_schema, self.name)


class PostgresqlRoute(LoggedWriter[StagedForPostgresql, StagingPlan]):
    """``krishiv-postgresql`` as a route of ``krishiv-fanout``."""

    options_type = PostgresqlSinkOptions
    options: PostgresqlSinkOptions

    @cached_property
    def _sink(self) -> PostgresqlWriter:
        return PostgresqlWriter(self.options, self.schema, self.mode, streaming=self.streaming)

    def check(self) -> None:
        """Planner: create the table if it is missing, and check that the rows fit it."""
        self._sink.check()

    def check_start(self) -> None:
        """Planner: check as `check`, and create nothing."""
        self._sink.check_start()

    def plan(self, ownership: Ownership[StagedForPostgresql] | None) -> StagingPlan:
        """Planner: return the columns of the staging tables."""
        del ownership
        return self._sink.plan_staging(is_logged=True)

    def describe_target(self) -> QueryTarget:
        """Driver: describe the table as the sink does."""
        return self._sink.describe_target()

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: StagingPlan
    ) -> StagedForPostgresql | None:
        """Executor: copy the rows into a table that only this attempt uses."""
        staged = self._sink.stage(batches, task, plan)
        if staged is None:
            return None
        effect = Effect.of(self.options, [staged], replaces=self.mode is OutputMode.REPLACE)
        return StagedForPostgresql(
            staging_schema=str(staged.name.schema),
            name=staged.name.name,
            partition=staged.partition,
            replaces=effect.replaces,
            truncates=effect.truncates,
            keys=effect.keys,
            order=effect.order,
            are_records=effect.are_records,
            missing_is_null=effect.missing_is_null,
            columns={column.target: column.fingerprint for column in staged.columns},
        )

    @property
    def examines_rows(self) -> bool:
        """True for records of change data, which tasks decode."""
        return self.options.change_format is not None

    def create_examiner(self, plan: StagingPlan) -> Examiner | None:
        """Executor: return the function that decodes records, and finds those that are bad."""
        from krishiv_spark.sinks.postgresql.record_columns import open_records

        records = open_records(self.options, plan)
        return None if records is None else records.examine

    def participant(self, view: LogView) -> PostgresqlParticipant:
        """Driver: return the participant of the table."""
        del view  # staging tables have random names, and the mark shows what is finished
        return PostgresqlParticipant(self.options, self.mode)

    def log_location(self, query: str) -> str:
        """Raise an error: a table outside a fan-out has no epoch log."""
        raise OptionError(f"{FORMAT}: query {query} has no epoch log: the table has its epochs")


class PostgresqlParticipant(MarkedParticipant[StagedForPostgresql]):
    """A participant that moves the rows of an epoch in one transaction with its mark.

    Args:
        options: Options of the sink.
        mode: The effect of an epoch on earlier rows.
    """

    staged_type = StagedForPostgresql
    format_name = FORMAT

    def __init__(self, options: PostgresqlSinkOptions, mode: OutputMode) -> None:
        self._options = options
        self._mode = mode

    @property
    def table(self) -> str:
        """The name of the table, for messages."""
        return str(self._options.table_name)

    def prepare(
        self,
        epoch: Epoch,
        staged: Sequence[StagedForPostgresql],
        salvaged: Sequence[StagedForPostgresql],
    ) -> Sequence[StagedForPostgresql]:
        """Committer: move the rows in a transaction that is rolled back, so that `finish` can.

        Raises:
            CommitRejected: If PostgreSQL refuses a row.
        """
        import psycopg

        del salvaged  # an epoch is visible as a whole
        whole = list(staged)
        if not whole and self._mode is OutputMode.REPLACE:
            whole = [StagedForPostgresql(replaces=True, truncates=self._options.truncate)]
        if not whole:
            return ()
        action = f"try epoch {epoch.number} on table {self._options.table_name}"
        with open_transaction(self._options, action) as transaction:
            try:
                self._move(transaction, epoch, whole)
                transaction.run("SET CONSTRAINTS ALL IMMEDIATE")
            except psycopg.Error as error:
                text = describe_error(error, self._options)
                raise_alone(
                    CommitRejected(
                        f"{FORMAT}: epoch {epoch.number} does not fit table "
                        f"{self._options.table_name}: {text}"
                    )
                )
        return whole

    def finish(self, epoch: Epoch, staged: Sequence[StagedForPostgresql]) -> None:
        """Driver: move the rows and write the mark, unless the table has the epoch.

        Raises:
            LostIntentError: If a staging table was dropped before it was moved.
            CommitUnknown: If PostgreSQL does not accept it now, or does not respond.
            CheckpointMismatch: If the table has another epoch of this number.
        """
        if not staged:
            return
        action = f"finish epoch {epoch.number} in table {self._options.table_name}"
        try:
            with open_transaction(self._options, action) as transaction:
                self._finish(transaction, epoch, staged)
        except (CheckpointMismatch, LostIntentError):
            raise
        except KrishivError as error:
            raise self.refuse_intent(epoch, error) from error
        self.abandon(epoch)

    def _finish(
        self,
        transaction: DatabaseTransaction,
        epoch: Epoch,
        staged: Sequence[StagedForPostgresql],
    ) -> None:
        marks = Marks(resolve_name(transaction, self._options))
        found = marks.lock(transaction, epoch.query)
        if found is not None and found.epoch >= epoch.number:
            self._check_same(epoch, found)
            return
        for table in _tables_of(staged):
            if not has_table(transaction, table):
                raise LostIntentError(
                    f"{FORMAT}: the staging table {table} of epoch {epoch.number} was dropped "
                    "before its rows were moved"
                )
        self._move(transaction, epoch, staged)
        if names := [table.sql for table in _tables_of(staged)]:
            transaction.run(f"DROP TABLE {', '.join(names)}")
        transaction.commit()

    def _check_same(self, epoch: Epoch, found: CommittedEpoch) -> None:
        if _is_another(found, epoch):
            raise CheckpointMismatch(
                f"{FORMAT}: table {self._options.table_name} has another epoch {epoch.number} of "
                f"query {epoch.query} than the epoch log: the log was restored from an older copy. "
                "The table was not changed: put the newest checkpoint back and restart the query"
            )

    def _move(
        self,
        transaction: DatabaseTransaction,
        epoch: Epoch,
        staged: Sequence[StagedForPostgresql],
    ) -> None:
        """Write the mark and move the rows; the caller commits, or does not."""
        marks = Marks(resolve_name(transaction, self._options))
        marks.lock(transaction, epoch.query)
        marks.write(transaction, epoch)
        own = [
            (item.table, item.partition, item.columns) for item in staged if item.table is not None
        ]
        tables = [
            StagedTable(name, 0, partition, columns)
            for name, partition, columns in read_staged(transaction, marks.table, own)
        ]
        move_rows(transaction, marks.table, tables, staged[0].effect, epoch.query)

    def is_finished(self, epoch: Epoch) -> bool:
        """Driver: return True if the table has this epoch, by number and digest, or a later one."""
        found = self.newest_epoch(epoch.query)
        return found is not None and found.epoch >= epoch.number and not _is_another(found, epoch)

    def discard(self, staged: Sequence[StagedForPostgresql]) -> None:
        """Anywhere: drop staging tables. Best effort."""
        with contextlib.suppress(KrishivError):
            drop_tables(self._options, _tables_of(staged))

    def abandon(self, epoch: Epoch) -> None:
        """Committer: drop all other staging tables of a generation. Best effort."""
        if epoch.generation is not None:
            with contextlib.suppress(KrishivError):
                self._sweep(epoch.query, lambda number: number == epoch.generation)

    # --- planner

    def target(self) -> str:
        """Planner: return the name of the table and the address of its database."""
        return f"PostgreSQL table {self._options.table_name} in {self._options.address()}"

    def newest_epoch(self, query: str) -> CommittedEpoch | None:
        """Planner: return the epoch of the mark."""
        action = f"read the committed epochs of table {self._options.table_name}"
        with open_transaction(self._options, action, reads=True) as transaction:
            name = resolve_name(transaction, self._options)
            return Marks(name).read(transaction, query)

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:
        """Planner: drop the staging tables of earlier generations."""
        if not clean:
            self._sweep(query, lambda number: number < generation)

    def _sweep(self, query: str, is_left: Callable[[int], bool]) -> None:
        options = self._options
        with open_transaction(options, "sweep staging tables", reads=True) as transaction:
            name = resolve_name(transaction, options)
            schema = staging_schema(options, name)
            found = find_of_query(transaction, schema, query, name, logged=True)
        drop_tables(options, [table for number, table in found if is_left(number)])

    # --- operator

    def force_outcome(
        self, epoch: Epoch, staged: Sequence[StagedForPostgresql], *, committed: bool
    ) -> None:
        """Operator: finish the epoch as far as its tables exist, or drop them."""
        if committed:
            with contextlib.suppress(LostIntentError):
                self.finish(epoch, staged)
        elif not self.is_finished(epoch):
            drop_tables(self._options, _tables_of(staged))


def _is_another(found: CommittedEpoch, epoch: Epoch) -> bool:
    """Return True if an epoch of the same number has other rows; False if that is not known."""
    is_known = None not in {found.digest, epoch.digest}
    return found.epoch == epoch.number and is_known and found.digest != epoch.digest


def _tables_of(staged: Sequence[StagedForPostgresql]) -> list[TableName]:
    return [item.table for item in staged if item.table is not None]
