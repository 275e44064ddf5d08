"""``krishiv-iceberg`` as a sink: exactly once, in any catalog that PyIceberg can commit to.

Tasks write data files, which no reader finds. The driver adds them to the table in one snapshot for
each epoch, together with properties that record the epoch (`EpochCommit`). With `mode` = `upsert`,
tasks stage changes, and the driver rewrites the files with changed rows. The unit of parallelism is
Spark's task.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.file_access import redact_errors
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.sinks.base import Guarantee, OutputMode, Ownership, Task, Writer
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.iceberg.task_table import StagedDataFiles, TaskTableSpec, task_table_spec

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from krishiv_spark.sinks.change_records import ChangeRecords
    from krishiv_spark.sinks.iceberg.committer import IcebergCommitter
    from krishiv_spark.sinks.iceberg.table_setup import CachedTable
    from krishiv_spark.sinks.iceberg.upserts.upsert_staging import UpsertSpec
    from krishiv_spark.spark.query_target import QueryTarget

__all__ = ["IcebergSinkOptions", "IcebergWriter"]

_log = logging.getLogger(__name__)


class IcebergWriter(Writer[StagedDataFiles, TaskTableSpec]):
    """A writer of data files; an epoch is committed when the catalog accepts its snapshot."""

    options_type = IcebergSinkOptions
    guarantee = Guarantee.EXACTLY_ONCE
    options: IcebergSinkOptions

    def check_start(self) -> None:
        """Planner: check options and table as `plan` does, without a change to the table."""
        from krishiv_spark.sinks.iceberg.table_setup import check_table

        rows, loaded = self._rows()
        self._check_files(check_table(self.options, rows, self._check_history, loaded))

    def check_topics(self, *, starts: bool) -> None:
        """Planner: check rows and options of tables by topic, before the tables are known.

        Args:
            starts: False for a check that must not change anything.
        """
        from krishiv_spark.sinks.iceberg.table_setup import prepare_catalog

        if self.options.change_format is not None:
            self.options.check_records(self.schema, FORMAT)
        elif (upsert_spec := self._upsert_spec()) is not None:
            upsert_spec.check(self.schema)
        prepare_catalog(self.options, creates=starts)

    def plan(self, ownership: Ownership[StagedDataFiles] | None) -> TaskTableSpec:
        """Planner: create or adapt the table, and return its specification for tasks."""
        from krishiv_spark.sinks.iceberg.maintenance.expiry import warn_of_growth
        from krishiv_spark.sinks.iceberg.table_setup import prepare_table

        del ownership
        rows, loaded = self._rows()
        table = prepare_table(self.options, rows, self._check_history, loaded)
        self._cache.set(table)
        self._check_files(table)
        if self.streaming:
            warn_of_growth(table, self.options)
        elif self.options.job is None:
            self.committer().check_key(None)  # a query's is checked once its id is known
        self._warn_of_order()
        return task_table_spec(table, self.options.target_file_size)

    def describe_target(self) -> QueryTarget:
        """Driver: describe the table by its UUID, which is the same through any catalog or URL."""
        from krishiv_spark.sinks.iceberg.table_setup import find_table
        from krishiv_spark.spark.query_target import QueryTarget

        table = self._cache.peek() or find_table(self.options)
        identity = None if table is None else f"Iceberg table {table.metadata.table_uuid}"
        secrets = self.options.secrets()
        return QueryTarget.of(FORMAT, self.options.table_name, identity, secrets)

    def _warn_of_order(self) -> None:
        """Warn once in a process of upserts in which Spark's order of rows decides. Planner."""
        options = self.options
        # With 'txnRows' the rows are totals, one for each key.
        is_ordered = options.order_column is not None or (
            options.change_format is not None and "offset" in self.schema.names
        )
        if options.mode == "upsert" and not is_ordered and options.txn_rows is None:
            warn_once(
                _log,
                options.table_name,
                "%s: without 'orderColumn', of the rows of an epoch that have one key the last "
                "one in Spark's order wins in table %s, and Spark orders neither the files of "
                "a batch by age nor the rows of several partitions. Set 'orderColumn' (a time "
                "or a sequence number), unless no epoch has two rows of one key, as after "
                "groupBy",
                FORMAT,
                options.table_name,
            )

    def _check_files(self, table: Table | None) -> None:
        """Refuse a table whose files cannot be replaced, if epochs replace files."""
        is_upsert = self.options.mode != "append"
        if table is not None and (is_upsert or self.mode is OutputMode.REPLACE):
            from krishiv_spark.sinks.iceberg.upserts.replaced_rows import (
                check_no_equality_deletes,
                check_upsertable,
            )

            check_no_equality_deletes(table, self.options)
            if self.options.mode == "upsert":
                from krishiv_spark.sinks.iceberg.upserts.upsert_updates import find_upsert_mode

                find_upsert_mode(self.options, table.metadata)  # which raises
            if is_upsert:
                check_upsertable(table, self.options)

    def _rows(self) -> tuple[pa.Schema, Table | None]:
        """Return the columns for the table, and the table if it was loaded to know them.

        Raises:
            OptionError: If the options are wrong, whatever the table is.
        """
        if self.options.if_snapshot is not None and self.streaming and not self.options.job:
            raise OptionError(
                f"{FORMAT}: 'ifSnapshot' is for batches: a stream moves the table on "
                "with each epoch"
            )
        upsert_spec = self._upsert_spec()
        if upsert_spec is None:
            return self.schema, None
        if self.mode is OutputMode.REPLACE:
            raise OptionError(
                f"{FORMAT}: 'mode' = {self.options.mode!r} cannot replace the whole table"
            )
        if self.options.change_format is not None:
            columns, table = self._find_columns(upsert_spec)
            if len(columns):
                upsert_spec.check(columns)
                self.options.check_units(columns, FORMAT)
            return upsert_spec.add_columns(columns), table
        upsert_spec.check(self.schema)
        return upsert_spec.add_columns(upsert_spec.without_op(self.schema)), None

    def _find_columns(self, upsert_spec: UpsertSpec) -> tuple[pa.Schema, Table | None]:
        """Return the columns of the rows of change data: declared, or those that the table has.

        The table is returned too, if it was loaded: a second request would give the same one.

        A table that is missing has none: it is created without columns, and the committer of the
        first epoch adds those that the schemas of its records describe.

        Raises:
            OptionError: If the rows are no records, or the table is missing and gets partitions or
                an order.
        """
        self.options.check_records(self.schema, FORMAT)
        upsert_spec.check_records(self.schema)
        if (declared := self.options.declared_columns) is not None:
            return declared, None
        from krishiv_spark.sinks.iceberg.table_schema import to_arrow_columns
        from krishiv_spark.sinks.iceberg.table_setup import find_table

        table = find_table(self.options)
        if table is not None:
            return upsert_spec.without_added(to_arrow_columns(table.schema())), table
        if self.options.partition_by or self.options.sort_by or self.options.mode != "upsert":
            raise OptionError(
                f"{FORMAT}: table {self.options.table_name} does not exist, and 'partitionBy', "
                "'sortBy' and 'mode' = 'scd2' need its columns before the first event: declare "
                "them with 'tableSchema', such as 'id BIGINT, name STRING', or create the table "
                "first"
            )
        return pa.schema([]), None

    def _check_history(self, table: Table) -> None:
        """Refuse a table that is no history, if epochs write one. Planner."""
        spec = self._upsert_spec()
        if spec is not None:
            spec.check_table(table, self.options)

    def _upsert_spec(self) -> UpsertSpec | None:
        """Return how rows change others; None if they are only added."""
        if self.options.mode == "append":
            return None
        if self.options.mode == "scd2":
            from krishiv_spark.sinks.iceberg.history.history_spec import HistorySpec

            return HistorySpec.of(self.options)
        from krishiv_spark.sinks.iceberg.upserts.upsert_staging import UpsertSpec

        return UpsertSpec.of(self.options)

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: TaskTableSpec
    ) -> StagedDataFiles | None:
        """Executor: write files under names that only this attempt uses."""
        upsert_spec = self._upsert_spec()
        with redact_errors(plan.io, f"write files of table {self.options.table_name}"):
            if upsert_spec is None:
                from krishiv_spark.sinks.iceberg.data_files import write_files

                return write_files(plan, batches, task)
            from krishiv_spark.sinks.iceberg.upserts.upsert_staging import stage_changes

            records = self.read_records(plan)
            return stage_changes(plan, batches, task, upsert_spec, records)

    def find_keys(self, records: pa.RecordBatch) -> tuple[str, ...]:
        """Executor: return the columns of the first record's key that has some; else none."""
        from krishiv_spark.changes.debezium import DebeziumDecoder, DebeziumRules

        rules = DebeziumRules(self.options.value_rules, registry=self.options.registry)
        return DebeziumDecoder(pa.schema([]), (), rules).find_keys(records.column("key"))

    def read_records(self, plan: TaskTableSpec) -> ChangeRecords | None:
        """Executor: return the decoder of change data; None for rows."""
        upsert_spec = self._upsert_spec()
        if self.options.change_format is None or upsert_spec is None:
            return None
        from krishiv_spark.sinks.change_records import ChangeRecords
        from krishiv_spark.sinks.iceberg.table_schema import to_arrow_columns
        from krishiv_spark.sinks.iceberg.upserts.upsert_staging import IcebergRecords

        columns = upsert_spec.without_added(to_arrow_columns(plan.metadata.schema()))
        target = IcebergRecords(self.options.table_name, upsert_spec)
        return ChangeRecords(self.options, target, columns)

    def committer(self) -> IcebergCommitter:
        """Driver: return the committer for the table's catalog."""
        from krishiv_spark.sinks.iceberg.committer import IcebergCommitter
        from krishiv_spark.sinks.iceberg.epoch_updates import EpochMode

        # The rows are not checked here: an operator who finishes an epoch has none.
        mode = EpochMode(self._upsert_spec(), replaces=self.mode is OutputMode.REPLACE)
        return IcebergCommitter(self.options, mode, self._cache)

    @cached_property
    def _cache(self) -> CachedTable:
        from krishiv_spark.sinks.iceberg.table_setup import CachedTable

        return CachedTable()
