"""``krishiv-iceberg`` as a source: tables of Apache Iceberg, as batches and as streams.

A batch reads one snapshot. A stream reads all rows of one snapshot first, unless an option
specifies another start, and then the rows that each later snapshot appends, every row exactly once.
An offset contains a snapshot and the number of a file in it: snapshots never change, so a replay
reads the same rows also after later commits. The unit of a batch is a file; files are split
over tasks by row group, and small ones share a task.

Only the driver sends requests to the catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.scan_tasks import (
    ScanProjection,
    ScanTaskGroup,
    choose_task_bytes,
    plan_tasks,
    read_task,
)
from krishiv_spark.sources.base import Limit, StreamReader
from krishiv_spark.sources.handover import TableProvenance
from krishiv_spark.sources.iceberg.changelog.row_changes import (
    INSERT,
    ChangeTask,
    plan_comparison,
    read_changes,
    to_changes,
)
from krishiv_spark.sources.iceberg.history import get_start_name
from krishiv_spark.sources.iceberg.offset import IcebergOffset
from krishiv_spark.sources.iceberg.options import IcebergSourceOptions
from krishiv_spark.sources.iceberg.planner import SnapshotStream

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

    from krishiv_spark.iceberg.planning import TableFile
    from krishiv_spark.sources.iceberg.selection import ColumnSelection

__all__ = ["IcebergOffset", "IcebergReader", "IcebergSourceOptions"]


class IcebergReader(StreamReader[IcebergOffset, ScanTaskGroup | ChangeTask]):
    """A reader of tables, in streams and batches."""

    options_type = IcebergSourceOptions
    offset_type = IcebergOffset

    options: IcebergSourceOptions

    def __init__(
        self, options: IcebergSourceOptions, schema: pa.Schema | None, *, streaming: bool
    ) -> None:
        super().__init__(options, schema, streaming=streaming)
        self._opened: tuple[ColumnSelection, SnapshotStream] | None = None
        self._pushed: tuple[Any, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader with every batch; executors open no table.
        return {**self.__dict__, "_opened": None, "_pushed": ()}

    def infer_schema(self) -> pa.Schema:
        """Return the columns of the table now, or of the snapshot that the options name."""
        from krishiv_spark.sources.iceberg.selection import infer_schema

        return infer_schema(self.options, open_table(self.options))

    # --- positions

    def initial(self) -> IcebergOffset:
        """Return the name of the start that the options specify, which is constant.

        The first batch resolves it to a snapshot, and the end of that batch contains it.

        Raises:
            OptionError: If an option has no meaning in a stream, or in a batch.
        """
        refused = self.options.list_meaningless(streaming=self.streaming)
        if refused:
            other = "batch reads" if self.streaming else "streams"
            raise OptionError(f"{FORMAT}: option {refused[0]!r} is for {other}")
        return IcebergOffset(at=get_start_name(self.options))

    def latest(self, start: IcebergOffset, limit: Limit) -> IcebergOffset:
        """Load the table, and list the files of new snapshots, up to the end of the next batch."""
        stream = self._stream
        return stream.latest(start, limit) if self.streaming else stream.find_batch_end(start)

    def freeze(self) -> None:
        """Read no snapshot that is committed after this call."""
        self._stream.freeze()

    def backlog(self) -> Mapping[str, Any]:
        """Return the backlog after the batch that was planned last."""
        return self._stream.backlog()

    def push(self, filters: Sequence[Any]) -> None:
        """Keep filters of Spark for `plan`."""
        self._pushed = tuple(filters)

    def provenance(self, by: str | None, snapshot: int | None) -> TableProvenance[IcebergOffset]:
        """Return all rows of the table, and the position of the source that they came from."""
        from krishiv_spark.sources.iceberg.landing import find_landed_rows

        return find_landed_rows(self.options, open_table(self.options), by, snapshot)

    def latest_within(self, start: IcebergOffset, limit: Limit) -> IcebergOffset:
        """Return the end of the next batch of the first scan; opens no table at its end."""
        is_complete = start.spot is None or start.spot.file is None
        return start if is_complete else self._stream.latest_within(start, limit)

    # --- rows

    def plan(
        self, start: IcebergOffset, end: IcebergOffset
    ) -> Sequence[ScanTaskGroup | ChangeTask]:
        """Plan the tasks, by the two offsets and the snapshots that they contain."""
        if start == end:
            return []
        row_filter = self._columns.combine_filters(self._pushed)
        if self.options.read_changes:
            return self._plan_changes(start, end, row_filter)
        table, files = self._stream.list_files(start, end, row_filter)
        return self._plan_tasks(files, self._columns.create_projection(table, row_filter))

    def _plan_changes(
        self, start: IcebergOffset, end: IcebergOffset, row_filter: BooleanExpression | None
    ) -> Sequence[ScanTaskGroup | ChangeTask]:
        """Plan comparisons first, so that no row is deleted after the row that replaces it."""
        table, net = self._stream.list_net_changes(start, end)
        scan = self._columns.create_projection(table, row_filter)
        removed, moved = net.list_compared()
        if not removed:
            return self._plan_tasks([*moved, *net.appended], scan)
        compared = plan_comparison(
            removed, moved, scan, self._columns.arrow, self.options.key_columns
        )
        return [*compared, *self._plan_tasks(list(net.appended), scan)]

    def _plan_tasks(self, files: Sequence[TableFile], scan: ScanProjection) -> list[ScanTaskGroup]:
        most = self.options.max_partition_bytes
        if "max_partition_bytes" not in self.options.model_fields_set:
            most = choose_task_bytes(files, most)
        return plan_tasks(files, scan, most)

    def read(self, partition: ScanTaskGroup | ChangeTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task (`read_task`), or its changes (`read_changes`)."""
        if isinstance(partition, ChangeTask):
            yield from read_changes(partition)
        else:
            for batch in read_task(partition):
                yield to_changes(batch, INSERT, 1) if self.options.read_changes else batch

    @property
    def _columns(self) -> ColumnSelection:
        return self._open()[0]

    @property
    def _stream(self) -> SnapshotStream:
        return self._open()[1]

    def _open(self) -> tuple[ColumnSelection, SnapshotStream]:
        from krishiv_spark.sources.iceberg.selection import ColumnSelection

        if self._opened is None:
            columns = ColumnSelection.resolve(self.options, open_table(self.options), self.schema)
            event_time = columns.event_time if self.streaming else None
            self._opened = columns, SnapshotStream(self.options, event_time, columns.schema)
        return self._opened
