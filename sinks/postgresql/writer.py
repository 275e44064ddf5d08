"""``krishiv-postgresql`` as a sink: exactly once, by one COMMIT of an epoch's rows and mark.

Each task copies its rows into a separate staging table. The driver moves them into the table in one
transaction, which also records the epoch (`Marks`). The unit of parallelism is Spark's task.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from krishiv_spark.errors import OptionError
from krishiv_spark.postgresql.options import FORMAT
from krishiv_spark.sinks.base import Guarantee, OutputMode, Ownership, Task, Writer
from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions

if TYPE_CHECKING:
    from krishiv_spark.postgresql.catalog import Table
    from krishiv_spark.sinks.postgresql.staging_tables import StagedTable, StagingPlan
    from krishiv_spark.sinks.postgresql.table_committer import PostgresqlCommitter
    from krishiv_spark.sinks.postgresql.target import Purpose
    from krishiv_spark.sinks.upserts import ChangeColumns
    from krishiv_spark.spark.query_target import QueryTarget

__all__ = ["PostgresqlWriter"]


class PostgresqlWriter(Writer["StagedTable", "StagingPlan"]):
    """A writer of one table; an epoch is committed when PostgreSQL commits its transaction."""

    options_type = PostgresqlSinkOptions
    guarantee = Guarantee.EXACTLY_ONCE
    options: PostgresqlSinkOptions

    def check(self) -> None:
        """Planner: create the table if it is missing, and check that the rows fit it."""
        _ = self._table

    def check_start(self) -> None:
        """Planner: check as `check`, and create nothing."""
        from krishiv_spark.sinks.postgresql.target import check_before_start

        check_before_start(self.options, self._rows, self._purpose)

    def plan(self, ownership: Ownership[StagedTable] | None) -> StagingPlan:
        """Planner: return the columns of the staging tables."""
        del ownership
        return self.plan_staging(is_logged=False)

    def plan_staging(self, *, is_logged: bool) -> StagingPlan:
        """Planner: return the columns of the staging tables.

        Args:
            is_logged: True if staged rows must survive a crash of the server.
        """
        from krishiv_spark.sinks.postgresql.staging_tables import StagingPlan
        from krishiv_spark.sinks.postgresql.target import fit_rows, staging_schema

        name = self._table.name
        records = None if self.options.change_format is None else self._rows
        columns = fit_rows(self._rows, self._table, of_records=records is not None)
        schema = staging_schema(self.options, name)
        upsert = self._changes if records is None else None
        generated = frozenset(each.name for each in self._table.columns if each.is_generated)
        return StagingPlan(schema, str(name), columns, upsert, records, is_logged, generated)

    def describe_target(self) -> QueryTarget:
        """Driver: describe the table by its name, and by an id that a promoted standby has too."""
        from krishiv_spark.sinks.postgresql.target import read_identity
        from krishiv_spark.spark.query_target import QueryTarget

        options = self.options
        name = f"{options.table_name} in {options.address()}"
        identity = read_identity(options)
        return QueryTarget.of(FORMAT, name, identity, options.secrets(), may_be_restored=True)

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: StagingPlan
    ) -> StagedTable | None:
        """Executor: copy the rows into a table that only this attempt uses."""
        from krishiv_spark.sinks.postgresql.record_columns import decode_records, follow_columns
        from krishiv_spark.sinks.postgresql.staging_tables import stage_rows

        rows: Iterator[tuple[pa.Schema | None, pa.RecordBatch]]
        if plan.records is None:
            rows = ((None, batch) for batch in batches)
        else:
            rows = decode_records(self.options, plan, batches)
        follow = functools.partial(follow_columns, self.options)
        return stage_rows(self.options, plan, rows, task, follow)

    def committer(self) -> PostgresqlCommitter:
        """Driver: return the committer of the table."""
        from krishiv_spark.sinks.postgresql.table_committer import PostgresqlCommitter

        return PostgresqlCommitter(self.options, self.mode)

    @cached_property
    def _rows(self) -> pa.Schema:
        """The columns for the table.

        Raises:
            OptionError: If the options contradict the output mode.
        """
        upsert = self._changes
        if upsert is None:
            return self.schema
        if self.mode is OutputMode.REPLACE:
            raise OptionError(f"{FORMAT}: 'mode' = 'upsert' cannot replace the whole table")
        if self.options.change_format is not None:
            columns = self._find_columns()
            upsert.check(columns)
            self.options.check_units(columns, FORMAT)
            return columns
        upsert.check(self.schema)
        return upsert.without_op(self.schema)

    def _find_columns(self) -> pa.Schema:
        """Return the columns that records of change data fill: declared, or those of the table.

        Raises:
            OptionError: If the rows are no records, or the table does not exist.
        """
        from krishiv_spark.sinks.postgresql.record_columns import list_record_columns
        from krishiv_spark.sinks.postgresql.target import read_table

        self.options.check_records(self.schema, FORMAT)
        if (declared := self.options.declared_columns) is not None:
            return declared
        table = read_table(self.options)
        if table is None:
            raise OptionError(
                f"{FORMAT}: table {self.options.table_name} does not exist: create it, as by "
                "pg_dump --schema-only, or declare its columns with 'tableSchema', such as "
                "'id BIGINT, name STRING'"
            )
        return list_record_columns(table)

    @cached_property
    def _changes(self) -> ChangeColumns | None:
        """The columns by which rows change others; None if rows are only added."""
        if self.options.mode == "append":
            return None
        from krishiv_spark.sinks.postgresql.staging_tables import PostgresqlChanges

        options = self.options
        return PostgresqlChanges(options.key_columns, options.op_column, options.order_column)

    @cached_property
    def _table(self) -> Table:
        """The table, which is created on first use. Planner."""
        from krishiv_spark.sinks.postgresql.target import prepare_table

        return prepare_table(self.options, self._rows, self._purpose)

    @property
    def _purpose(self) -> Purpose:
        from krishiv_spark.sinks.postgresql.target import Purpose

        return Purpose(self.mode is OutputMode.REPLACE, self.streaming)
