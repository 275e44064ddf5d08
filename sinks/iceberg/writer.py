"""``krishiv-iceberg`` as a sink: exactly once, in any catalog that PyIceberg can commit to.

Tasks write data files, which no reader sees. The driver adds them to the table in one snapshot for
each epoch, together with the epoch's mark; `Committer` says when the epoch is true. With `mode` =
`upsert`, tasks write changes aside, and the driver rewrites the files that they touch. The unit of
parallelism is Spark's task.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from krishiv_spark.errors import CheckpointMismatch, OptionError, SinkError
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.sinks.base import Epoch, Mark, OutputMode, Task, TwoPhaseWriter
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.iceberg.target import StagedFiles, Target, target_of

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from krishiv_spark.sinks.iceberg.changesets import UpsertSpec
    from krishiv_spark.sinks.iceberg.commits import Change

__all__ = ["IcebergSinkOptions", "IcebergWriter"]

_log = logging.getLogger(__name__)


class IcebergWriter(TwoPhaseWriter[StagedFiles]):
    """Data files in a table; an epoch is true when the catalog has taken its snapshot.

    Attributes:
        target: Found out by the planner, for `stage`: what tasks need of the table.
    """

    options_type = IcebergSinkOptions
    options: IcebergSinkOptions
    target: Target | None = None
    _table: Table | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A table does not pickle: tasks get the target, and a committer looks for itself.
        return {**self.__dict__, "_table": None}

    def check(self) -> None:
        """Planner: the table is there, and can take the rows."""
        from krishiv_spark.sinks.iceberg.retention import warn_of_growth
        from krishiv_spark.sinks.iceberg.tables import prepare_table

        rows, upsert_spec = self.schema, self._upsert_spec()
        if upsert_spec is not None:
            if self.mode is OutputMode.REPLACE:
                raise OptionError(f"{FORMAT}: 'mode' = 'upsert' cannot replace the whole table")
            rows = upsert_spec.without_op(rows)
        self._table = prepare_table(self.options, rows)
        if self.streaming:
            warn_of_growth(self._table, self.options)
        self.target = target_of(self._table, self.options.target_file_size)

    def _upsert_spec(self) -> UpsertSpec | None:
        """How rows change others; None if they are added."""
        if self.options.mode == "append":
            return None
        from krishiv_spark.sinks.iceberg.changesets import UpsertSpec

        return UpsertSpec.of(self.options, self.schema)

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task) -> StagedFiles | None:
        """Executor: write files under names that only this attempt uses."""
        from krishiv_spark.sinks.iceberg.changesets import write_changes
        from krishiv_spark.sinks.iceberg.files import write_files

        if self.target is None:
            raise SinkError(f"epoch {task.epoch} of query {task.query} was never planned")
        upsert_spec = self._upsert_spec()
        if upsert_spec is None:
            return write_files(self.target, batches, task)
        return write_changes(self.target, batches, task, upsert_spec)

    def last_committed(self, query: str) -> Mark | None:
        """Driver: the newest epoch in the table's own mark."""
        from krishiv_spark.sinks.iceberg.marks import last_committed_epoch

        if self._table is None:
            self._table = open_table(self.options)
        return last_committed_epoch(self._table.metadata, query)

    def has_done(self) -> bool:
        """Driver: whether the table holds the number that the user has given the batch job.

        Raises:
            CheckpointMismatch: If it holds a higher one, and only the newest may come again.
        """
        version = self.options.txn_version
        if self.options.txn_app_id is None or version is None:
            return False
        mark = self.last_committed(self.options.txn_app_id)
        if mark is not None and mark.epoch > version and self.options.txn_repeats == "newest":
            raise CheckpointMismatch(
                f"{FORMAT}: batch {version} of {self.options.txn_app_id} comes after batch "
                f"{mark.epoch}, which the table {self.options.table} holds: the checkpoint was "
                "rolled back, restored from an older copy or replaced by a new one, or another "
                "driver runs on it. Nothing was written: put the newest checkpoint back, or use a "
                "new one with another name in 'query' of upsert() ('txnAppId')"
            )
        return mark is not None and mark.epoch >= version

    def publish(self, epoch: Epoch, staged: Sequence[StagedFiles]) -> None:
        """Driver: one snapshot with the rows and the mark. See `Committer`."""
        from krishiv_spark.sinks.iceberg.commits import Committer

        if not staged and self.mode is OutputMode.APPEND:
            return  # a batch job without rows
        epoch = self._marked(epoch)
        change = self._change(epoch, staged)
        committer = Committer(self.options, epoch, change)
        table, self._table = self._table or open_table(self.options), None
        try:
            committer.commit(table)
        except SinkError:
            if not committer.unknown:
                self._clean(change, table, published=False, certain=True)
                self.discard(staged)
            raise
        self._clean(change, table, published=True, certain=not committer.unknown)

    def _marked(self, epoch: Epoch) -> Epoch:
        """The epoch that the table's mark names: that of the options for a batch with a number."""
        if self.options.txn_app_id is None:
            return epoch
        return Epoch(self.options.txn_app_id, self.options.txn_version or 0)

    def _change(self, epoch: Epoch, staged: Sequence[StagedFiles]) -> Change:
        from krishiv_spark.sinks.iceberg.changes import Append, Replace
        from krishiv_spark.sinks.iceberg.upserts import Upsert

        upsert_spec = self._upsert_spec()
        if upsert_spec is not None:
            return Upsert(self.options, staged, upsert_spec, epoch)
        kind = Append if self.mode is OutputMode.APPEND else Replace
        return kind(self.options, staged)

    @staticmethod
    def _clean(change: Change, table: Table, *, published: bool, certain: bool) -> None:
        from krishiv_spark.sinks.iceberg.upserts import Upsert

        if isinstance(change, Upsert):
            change.clean(table.io, published=published, certain=certain)

    def discard(self, staged: Sequence[StagedFiles]) -> None:
        """Anywhere: remove staged files that no snapshot names."""
        from krishiv_spark.sinks.iceberg.unused import remove_unused

        try:
            remove_unused(self.options, staged)
        except Exception:  # noqa: BLE001  best effort: `krishiv-spark iceberg vacuum` finds them
            _log.warning("staged files are left for vacuum to remove", exc_info=True)
