"""``krishiv-iceberg`` as a source: tables of Apache Iceberg, as batches and as streams.

A batch reads one snapshot. A stream reads all rows of one snapshot first, unless it is told to
begin elsewhere, and then what each later snapshot appends, every row exactly once. An offset names
a snapshot and the number of a file in it: snapshots never change, so a replay reads the same rows
however the table has moved on. The unit of a batch is a file; files are split over tasks by row
group, and small ones share a task.

Only the driver asks the catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.catalogs import open_table, worker_io
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.rows import ScanTaskGroup, cut, read_part, task_bytes
from krishiv_spark.iceberg.scan import ScanProjection
from krishiv_spark.sources.base import Limit, StreamReader
from krishiv_spark.sources.handover import TableProvenance
from krishiv_spark.sources.iceberg.changelog.columns import INSERT, as_changes
from krishiv_spark.sources.iceberg.changelog.rows import ChangePart, compare, read_changes
from krishiv_spark.sources.iceberg.options import IcebergSourceOptions
from krishiv_spark.sources.iceberg.position import IcebergOffset
from krishiv_spark.sources.iceberg.starts import start_name
from krishiv_spark.sources.iceberg.stream import SnapshotStream

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

    from krishiv_spark.iceberg.files import TableFile
    from krishiv_spark.sources.iceberg.columns import Columns

__all__ = ["IcebergOffset", "IcebergReader", "IcebergSourceOptions"]


class IcebergReader(StreamReader[IcebergOffset, ScanTaskGroup | ChangePart]):
    """Reads tables, in streams and batches."""

    options_type = IcebergSourceOptions
    offset_type = IcebergOffset

    options: IcebergSourceOptions

    def __init__(
        self, options: IcebergSourceOptions, schema: pa.Schema | None, *, streaming: bool
    ) -> None:
        super().__init__(options, schema, streaming=streaming)
        self._made: tuple[Columns, SnapshotStream] | None = None
        self._pushed: tuple[Any, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader with every batch; executors open no table.
        return {**self.__dict__, "_made": None, "_pushed": ()}

    def infer_schema(self) -> pa.Schema:
        """Columns of the table now, or of the snapshot that is named. See `StreamReader`."""
        from krishiv_spark.sources.iceberg.columns import schema_of

        return schema_of(self.options, open_table(self.options))

    # --- positions

    def initial(self) -> IcebergOffset:
        """The start that the options ask for, by its name; constant. See `StreamReader`.

        The first batch finds out which snapshot that means, and its end names it.
        """
        refused = self.options.refused(streaming=self.streaming)
        if refused:
            other = "batch reads" if self.streaming else "streams"
            raise OptionError(f"{FORMAT}: option {refused[0]!r} is for {other}")
        return IcebergOffset(at=start_name(self.options))

    def latest(self, start: IcebergOffset, limit: Limit) -> IcebergOffset:
        """See `StreamReader`. Loads the table, and lists the files of snapshots that are new."""
        stream = self._stream
        return stream.next(start, limit) if self.streaming else stream.everything(start)

    def freeze(self) -> None:
        """See `SupportsAvailableNow`."""
        self._stream.freeze()

    def backlog(self) -> Mapping[str, Any]:
        """What waits after the batch that was chosen last. See `SupportsBacklog`."""
        return self._stream.backlog()

    def push(self, filters: Sequence[Any]) -> None:
        """See `SupportsFilters`."""
        self._pushed = tuple(filters)

    def provenance(self, by: str | None, snapshot: int | None) -> TableProvenance[IcebergOffset]:
        """See `SupportsBackfillSource`."""
        from krishiv_spark.sources.iceberg.landing import rows_landed

        return rows_landed(self.options, open_table(self.options), by, snapshot)

    def latest_within(self, start: IcebergOffset, limit: Limit) -> IcebergOffset:
        """See `SupportsBackfillSource`. At the end no table is opened."""
        is_over = start.spot is None or start.spot.file is None
        return start if is_over else self._stream.latest_within(start, limit)

    # --- rows

    def plan(
        self, start: IcebergOffset, end: IcebergOffset
    ) -> Sequence[ScanTaskGroup | ChangePart]:
        """See `StreamReader`. From the two offsets and the snapshots that they name."""
        if start == end:
            return []
        row_filter = self._columns.row_filter(self._pushed)
        if self.options.read_changes:
            return self._plan_changes(start, end, row_filter)
        table, files = self._stream.between(start, end, row_filter)
        return self._cut(files, self._columns.scan(worker_io(table), row_filter))

    def _plan_changes(
        self, start: IcebergOffset, end: IcebergOffset, row_filter: BooleanExpression | None
    ) -> Sequence[ScanTaskGroup | ChangePart]:
        """Files to compare first, so that no row goes after one that takes its place."""
        table, net = self._stream.changes_between(start, end)
        scan = self._columns.scan(worker_io(table), row_filter)
        if not net.removed:
            return self._cut([*net.moved, *net.appended], scan)
        compared = compare(
            net.removed, net.moved, scan, self._columns.arrow, self.options.key_columns
        )
        return [*compared, *self._cut(list(net.appended), scan)]

    def _cut(self, files: Sequence[TableFile], scan: ScanProjection) -> list[ScanTaskGroup]:
        most = self.options.max_partition_bytes
        if "max_partition_bytes" not in self.options.model_fields_set:
            most = task_bytes(files, most)
        return cut(files, scan, most)

    def read(self, partition: ScanTaskGroup | ChangePart) -> Iterator[pa.RecordBatch]:
        """See `StreamReader`, `read_part` and `read_changes`."""
        if isinstance(partition, ChangePart):
            yield from read_changes(partition)
        else:
            for batch in read_part(partition):
                yield as_changes(batch, INSERT, 1) if self.options.read_changes else batch

    @property
    def _columns(self) -> Columns:
        return self._opened()[0]

    @property
    def _stream(self) -> SnapshotStream:
        return self._opened()[1]

    def _opened(self) -> tuple[Columns, SnapshotStream]:
        from krishiv_spark.sources.iceberg.columns import Columns

        if self._made is None:
            columns = Columns.of(self.options, open_table(self.options), self.schema)
            event_time = columns.event_time if self.streaming else None
            self._made = columns, SnapshotStream(self.options, event_time, columns.schema)
        return self._made
