"""``krishiv-delta`` as a sink: exactly once, in tables of Delta Lake on disks and in S3.

Tasks write Parquet files with their statistics, which no reader finds. The driver adds them to the
table's log in one version for each epoch, together with Delta's own mark of the query and the epoch
(`DeltaCommit`). The unit of parallelism is Spark's task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from krishiv_spark.delta.opening import find_table
from krishiv_spark.delta.options import FORMAT
from krishiv_spark.sinks.base import Guarantee, OutputMode, Ownership, Task, Writer
from krishiv_spark.sinks.delta.options import DeltaSinkOptions
from krishiv_spark.sinks.delta.task_files import StagedDeltaFiles, TargetTable, write_files
from krishiv_spark.spark.query_target import QueryTarget

if TYPE_CHECKING:
    from krishiv_spark.sinks.delta.epoch_commit import DeltaCommitter

__all__ = ["DeltaSinkOptions", "DeltaWriter"]


class DeltaWriter(Writer[StagedDeltaFiles, TargetTable]):
    """A writer of data files; an epoch is committed when the log has its version."""

    options_type = DeltaSinkOptions
    guarantee = Guarantee.EXACTLY_ONCE
    options: DeltaSinkOptions

    def check_start(self) -> None:
        """Planner: check options and table as `plan` does, without a change to the table."""
        from krishiv_spark.sinks.delta.table_creation import check_table

        check_table(self.options, self.schema, replaces=self._replaces)

    def plan(self, ownership: Ownership[StagedDeltaFiles] | None) -> TargetTable:
        """Planner: create or adapt the table, and describe it for tasks."""
        from krishiv_spark.sinks.delta.table_creation import describe_for_tasks, prepare_table

        del ownership
        table = prepare_table(self.options, self.schema, replaces=self._replaces)
        return describe_for_tasks(table)

    def describe_target(self) -> QueryTarget:
        """Driver: describe the table by the id in its metadata, which a copy of it has too."""
        table = find_table(self.options)
        identity = None if table is None else f"Delta table {table.metadata().id}"
        return QueryTarget.of(FORMAT, self.options.path, identity, self.options.secrets())

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: TargetTable
    ) -> StagedDeltaFiles | None:
        """Executor: write files under names that only this attempt uses."""
        return write_files(self.options, plan, batches, task)

    def committer(self) -> DeltaCommitter:
        """Driver: return the committer of the table."""
        from krishiv_spark.sinks.delta.epoch_commit import DeltaCommitter

        return DeltaCommitter(self.options, replaces=self._replaces)

    @property
    def _replaces(self) -> bool:
        return self.mode is OutputMode.REPLACE
