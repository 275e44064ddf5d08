"""``krishiv-parquet`` as a sink: exactly once, for every reader of the folder.

Tasks stage files that no glob for Parquet finds. The driver logs an intent that names them, and
only then renames them to their final names. A reader that knows nothing of all this sees whole
files of logged epochs, and nothing else. The unit of parallelism is Spark's task.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from krishiv_spark.errors import Fenced
from krishiv_spark.offsets import EpochLog, open_log
from krishiv_spark.openfiles import chunks
from krishiv_spark.parquet.layout import PATH_OPTION, log_folder, staged_folder
from krishiv_spark.parquet.names import DataFile, query_tag
from krishiv_spark.paths import local_path
from krishiv_spark.sinks.base import Guarantee, OutputMode, Task, Writer
from krishiv_spark.sinks.logged import LogCommitter
from krishiv_spark.sinks.parquet.checks import check_columns, check_same_types, check_writable
from krishiv_spark.sinks.parquet.files import StagedFile, StagedFiles, TaskFiles
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.sinks.parquet.participant import ParquetParticipant
from krishiv_spark.sinks.parquet.targets import check_partitioning

__all__ = ["ParquetSinkOptions", "ParquetWriter"]


class ParquetWriter(Writer[StagedFiles]):
    """Files in a folder; an epoch is true when its intent is in the log under ``_krishiv/``."""

    options_type = ParquetSinkOptions
    guarantee = Guarantee.EXACTLY_ONCE
    options: ParquetSinkOptions

    @cached_property
    def table(self) -> Path:
        """The table's folder."""
        return local_path(self.options.path, PATH_OPTION)

    def check(self) -> None:
        """Planner: the folder can be written, and the rows fit Parquet and what is there."""
        check_columns(self.schema, self.options.partition_by)
        check_writable(self.table)
        check_same_types(self.table, self.schema)
        # A batch that overwrites leaves none of the files that are there, whoever wrote them.
        if self.mode is OutputMode.APPEND or self.streaming:
            check_partitioning(self.table, self.options.partition_by)

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: None
    ) -> StagedFiles | None:
        """Executor: write files, synced, under names that only this attempt uses."""
        del plan
        folder = staged_folder(self.table, task.query, task.generation or 0)
        try:
            files = self._write(folder, batches, task)
        except FileNotFoundError as error:
            raise Fenced(
                f"what generation {task.generation} of query {task.query} staged in {folder} is "
                "gone: another driver on the same checkpoint took over and removed it"
            ) from error
        if not files:
            return None
        return StagedFiles(folder=folder.relative_to(self.table).as_posix(), files=files)

    def _write(
        self, folder: Path, batches: Iterator[pa.RecordBatch], task: Task
    ) -> tuple[StagedFile, ...]:
        name = DataFile(task.epoch, task.partition, 0, query_tag(task.query), task.nonce)
        with TaskFiles(folder, name, self.options.layout()) as files:
            for rows in chunks(batches):
                files.write(rows)
                del rows  # or the next row group is gathered beside it
            return files.close()

    def committer(self) -> LogCommitter[StagedFiles]:
        """Driver: the log of the query, and the table's folder."""
        participant = ParquetParticipant(
            self.options, self.table, self.mode, streaming=self.streaming
        )
        return LogCommitter(self.log, participant, streaming=self.streaming)

    def log(self, query: str) -> EpochLog:
        """Driver: in the table's folder, or where the option ``epochLog`` says."""
        elsewhere = self.options.log_elsewhere(query)
        return open_log(elsewhere or str(log_folder(self.table, query)), query)
