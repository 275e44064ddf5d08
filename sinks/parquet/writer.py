"""``krishiv-parquet`` as a sink: exactly once, for every reader of the folder.

Tasks stage files that no reader finds: under names that no glob for Parquet matches, or in a store,
as uploads that nobody has completed. The driver logs an intent that names them, and only then
renames or completes them. A reader that knows nothing of all this sees whole files of logged
epochs, and nothing else. The unit of parallelism is Spark's task.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa

from krishiv_spark.arrow.partition_files import chunks
from krishiv_spark.errors import Fenced, UploadGoneError
from krishiv_spark.parquet.identity import Pointer, read_table_id
from krishiv_spark.parquet.names import DataFile, query_tag
from krishiv_spark.sinks.base import OutputMode, Task
from krishiv_spark.sinks.logged_writer import LoggedWriter, LogView
from krishiv_spark.sinks.parquet.checks import (
    check_columns,
    check_no_links,
    check_no_sink_log,
    check_partitioning,
    check_same_types,
)
from krishiv_spark.sinks.parquet.files import TaskFiles
from krishiv_spark.sinks.parquet.kinds import TableKind, kind_of
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.sinks.parquet.participant import TableLogView
from krishiv_spark.sinks.parquet.values import StagedFiles
from krishiv_spark.sinks.participant import Participant
from krishiv_spark.spark.query_target import QueryTarget
from krishiv_spark.storage import StoreUrl

__all__ = ["ParquetSinkOptions", "ParquetWriter"]

_FORMAT = "krishiv-parquet"


class ParquetWriter(LoggedWriter[StagedFiles]):
    """Files in a folder; an epoch is true when its intent is in the log under ``_krishiv/``."""

    options_type = ParquetSinkOptions
    options: ParquetSinkOptions

    @cached_property
    def _kind(self) -> TableKind:
        return kind_of(self.options)

    def check(self) -> None:
        """Planner: the folder can be written, and the rows fit Parquet and what is there."""
        self._check(makes=True)

    def check_start(self) -> None:
        """Planner: as `check`, of a folder that is not made."""
        self._check(makes=False)

    def _check(self, *, makes: bool) -> None:
        check_columns(self.schema, self.options.partition_by)
        table = self._kind.table
        table.check_writable(makes=makes)
        check_no_sink_log(table)
        check_same_types(table, self.schema)
        if self.mode is not OutputMode.APPEND:
            check_no_links(table)
        is_stream = self.streaming and self.options.job is None
        if self.mode is OutputMode.APPEND or is_stream:
            check_partitioning(table, self.options.partition_by)

    def describe_target(self) -> QueryTarget:
        """Driver: the table, by the id in its folder, wherever that is mounted."""
        found = read_table_id(self._kind.table.meta())
        identity = None if found is None else f"Parquet table {found}"
        return QueryTarget.of(_FORMAT, str(self._kind.table), identity, self.options.secrets())

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: None
    ) -> StagedFiles | None:
        """Executor: write files, durably, under names that only this attempt uses."""
        del plan
        name = DataFile(task.epoch, task.partition, 0, query_tag(task.query), task.nonce)
        try:
            with TaskFiles(self._kind.staging(task), name, self.options.layout()) as files:
                for rows in chunks(batches):
                    files.write(rows)
                    del rows  # or the next row group is gathered beside it
                return self._kind.staged(task, files.close())
        except (FileNotFoundError, UploadGoneError) as error:
            raise Fenced(
                f"the files that generation {task.generation} of query {task.query} staged in "
                f"{self._kind.table} were removed: another driver on the same checkpoint has "
                "taken over"
            ) from error

    def participant(self, view: LogView) -> Participant[Any]:
        """Driver: the table's folder."""

        def pointer(query: str) -> Pointer | None:
            place = view.place(query)
            is_near = place == self._kind.log_location(query)
            # Absolute: who looks for it does not run where this driver does.
            return None if is_near else Pointer(str(StoreUrl.parse(place)), view.route)

        of_table = TableLogView(view.is_owner, pointer)
        kind = self._kind
        return kind.participant(self.options, self.mode, of_table, streaming=self.streaming)

    def log_location(self, query: str) -> str:
        """Driver: in the table's folder, or where the option ``epochLog`` says."""
        elsewhere = self.options.epoch_log
        if elsewhere is None:
            return self._kind.log_location(query)
        return f"{elsewhere.rstrip('/')}/{query}"
