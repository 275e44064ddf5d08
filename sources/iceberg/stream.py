"""Where the next batch ends, and which files lie in it. Driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from krishiv_spark.errors import DataLossError
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.files import SnapshotFiles, TableFile
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets import Watermark
from krishiv_spark.offsets.watermark import WatermarkPlanner
from krishiv_spark.sources.base import Limit
from krishiv_spark.sources.iceberg.changelog.files import NetChanges, changes_of
from krishiv_spark.sources.iceberg.history import ChangedRowsError, History, Skips, number_of
from krishiv_spark.sources.iceberg.options import IcebergSourceOptions
from krishiv_spark.sources.iceberg.position import IcebergOffset, StreamingOffset
from krishiv_spark.sources.iceberg.slices import FileSlice, ahead, between, done, first_file
from krishiv_spark.sources.iceberg.starts import start_of_stream, time_travel_snapshot

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.types import NestedField

__all__ = ["SnapshotStream"]


class SnapshotStream:
    """Follows a branch of a table, or travels to one snapshot.

    Args:
        options: Name table and branch, where a new query begins, and what counts as an error.
        event_time: The field of the event time; None without a watermark.
        schema: Has the columns that filters name.
    """

    def __init__(
        self, options: IcebergSourceOptions, event_time: NestedField | None, schema: Schema
    ) -> None:
        self._options = options
        self._has_watermark = event_time is not None
        self._files = SnapshotFiles(event_time, schema)
        self._skips = Skips(
            options.skip_overwrite_snapshots, options.skip_delete_snapshots, options.read_changes
        )
        # In a tuple: an empty table is frozen at None.
        self._frozen: tuple[int | None] | None = None
        self._table: Table | None = None
        self._backlog: dict[str, int] = {}
        self._watermarks = WatermarkPlanner(options.watermark_delay, options.max_event_time_ahead)

    # --- ends

    def freeze(self) -> None:
        """See `SupportsAvailableNow`."""
        head = self._history(open_table(self._options)).head
        self._frozen = (None if head is None else head.snapshot_id,)

    def backlog(self) -> Mapping[str, int]:
        """What waits after the batch that was chosen last."""
        return {**self._backlog, **self._watermarks.report()}

    def next(self, start: IcebergOffset, limit: Limit) -> IcebergOffset:
        """The end of the next batch of a stream; see `StreamReader.latest`."""
        table = self._loaded(start.table)
        return self._next(table, self._history(table), start, limit)

    def latest_within(self, start: IcebergOffset, limit: Limit) -> IcebergOffset:
        """The same within the snapshot of `start`, whatever has come after it."""
        table = self._loaded(start.table)
        name, metadata = self._options.table_name, table.metadata
        head = None if start.spot is None else start.spot.snapshot
        history = History.up_to(name, metadata, head)
        # If it has expired, the error names those that there are.
        return self._next(table, history if history.line else self._history(table), start, limit)

    def _next(
        self, table: Table, history: History, start: IcebergOffset, limit: Limit
    ) -> IcebergOffset:
        begin = start.spot or start_of_stream(self._options, history)
        if begin is None:
            return start
        end, files = self._reached(table, history, begin, limit)
        self._note_backlog(table, history, end)
        if end == start.spot:
            return start
        is_first = start.spot is None and begin != end
        return IcebergOffset(
            table=str(table.metadata.table_uuid),
            spot=end,
            began=begin if is_first else None,
            watermark=self._watermark(start.watermark, files),
        )

    def everything(self, start: IcebergOffset) -> IcebergOffset:
        """The end of a batch read, which names its begin too."""
        table = self._loaded(None)
        began, ended = self._ends(table)
        if ended is None or began == ended:
            return start
        return IcebergOffset(table=str(table.metadata.table_uuid), spot=ended, began=began)

    def _ends(self, table: Table) -> tuple[StreamingOffset | None, StreamingOffset | None]:
        if self._options.start_snapshot_id is None:
            snapshot = time_travel_snapshot(self._options, table)
            return (None, None) if snapshot is None else (first_file(snapshot), done(snapshot))
        history = self._history(table)
        began = start_of_stream(self._options, history)
        head = history.named(self._options.end_snapshot_id, "end-snapshot-id")
        return began, None if head is None else done(head)

    def _reached(
        self, table: Table, history: History, begin: StreamingOffset, limit: Limit
    ) -> tuple[StreamingOffset, list[TableFile]]:
        """The offset that a batch within a limit reaches, and its files."""
        taken: list[TableFile] = []
        reached, rows, size = begin, 0, 0
        try:
            for part in ahead(history, begin, self._skips):
                for number, unit in self._units(table, part):
                    rows += sum(file.rows for file in unit)
                    size += sum(file.size for file in unit)
                    files = len(taken) + len(unit)
                    # The first is taken however large it is, or the stream would stand still.
                    if taken and not limit.admits(rows=rows, files=files, size=size):
                        # One place has one text: before a snapshot's first file is after the
                        # snapshot before.
                        is_inside = number > 0 or part.scan
                        return (part.stop(number) if is_inside else reached), taken
                    taken += unit
                reached = done(part.snapshot)
        except ChangedRowsError:
            if reached == begin:
                raise  # what lies before it has been read
        return reached, taken

    def _units(self, table: Table, part: FileSlice) -> Iterator[tuple[int, tuple[TableFile, ...]]]:
        """Files that a batch takes together, with the number of the first one."""
        if part.rewrites and part.end is None:
            yield 0, changes_of(self._files, table, part.snapshot).files
        else:
            for number, file in self._numbered(table, part):
                yield number, (file,)

    def _numbered(self, table: Table, part: FileSlice) -> Iterable[tuple[int, TableFile]]:
        if part.end == 0:
            return ()
        files = self._files.of(table, part.snapshot, scan=part.scan)
        return enumerate(files[part.first : part.end], part.first)

    def _watermark(self, before: Watermark | None, files: Iterable[TableFile]) -> Watermark | None:
        if not self._has_watermark:
            return None
        facts, limit = list(files), self._watermarks.limit()
        # A file whose bound is too far ahead may have rows that are not: it moves nothing.
        times = limit.sort(fact.newest_ms for fact in facts if fact.newest_ms is not None)
        held = next((fact.unknown for fact in facts if fact.unknown is not None), None)
        return self._watermarks.advance(before, times, limit, held)

    def _note_backlog(self, table: Table, history: History, end: StreamingOffset) -> None:
        """From the summaries of snapshots; what is left of one that is being read, exactly."""
        waiting = history.line_after(end.snapshot)
        files = sum(number_of(snapshot, "added-data-files", 0) for snapshot in waiting)
        rows = sum(number_of(snapshot, "added-records", 0) for snapshot in waiting)
        begun = None if end.file is None else history.find(end.snapshot)
        if begun is not None:
            rest = list(self._numbered(table, FileSlice(begun, end.scan, end.file or 0)))
            files, rows = files + len(rest), rows + sum(file.rows for _, file in rest)
        self._backlog = {
            "snapshots_waiting": len(waiting),
            "files_waiting": files,
            "rows_waiting": rows,
        }
        if history.head is not None:
            self._backlog["newest_snapshot"] = history.head.snapshot_id
            self._backlog["newest_committed_ms"] = history.head.timestamp_ms

    # --- files

    def between(
        self, start: IcebergOffset, end: IcebergOffset, row_filter: BooleanExpression | None
    ) -> tuple[Table, list[TableFile]]:
        """The files between two offsets that may have rows under a filter, and their table.

        The same files whenever it is asked: everything is in snapshots, which never change.

        Raises:
            DataLossError: If the snapshots have expired, or the table was made anew.
        """
        table, found = self._slices(start, end)
        return table, [file for part in found for file in self._chosen(table, part, row_filter)]

    def changes_between(self, start: IcebergOffset, end: IcebergOffset) -> tuple[Table, NetChanges]:
        """What snapshots between two offsets do together, and their table; see `between`.

        Raises:
            DataLossError: If the snapshots have expired, or the table was made anew.
        """
        table, found = self._slices(start, end)
        net = NetChanges()
        for part in found:
            changes = partial(changes_of, self._files, table, part.snapshot)
            if not part.rewrites:
                net.append(file for _, file in self._numbered(table, part))
            elif part.end is None:
                net.rewrite(changes())
            else:
                net.copy(changes)
        return table, net

    def _slices(
        self, start: IcebergOffset, end: IcebergOffset
    ) -> tuple[Table, Sequence[FileSlice]]:
        begin, offset = start.spot or end.began, end.spot
        if begin is None or offset is None:
            return self._loaded(end.table), []
        table = self._knowing(end.table, offset)
        history = History.up_to(self._options.table_name, table.metadata, offset.snapshot)
        return table, between(history, begin, offset, self._skips)

    def _chosen(
        self, table: Table, part: FileSlice, row_filter: BooleanExpression | None
    ) -> Iterable[TableFile]:
        is_whole = part.first == 0 and part.end is None
        if row_filter is None or part.end == 0:
            return [file for _, file in self._numbered(table, part)]
        kept = self._files.of(table, part.snapshot, scan=part.scan, row_filter=row_filter)
        if is_whole:
            return kept
        # The numbers in offsets count all files of the snapshot, whatever the filter leaves out.
        paths = {file.path for file in kept}
        return [file for _, file in self._numbered(table, part) if file.path in paths]

    # --- table

    def _history(self, table: Table) -> History:
        name, metadata = self._options.table_name, table.metadata
        if self._frozen is not None:
            return History.up_to(name, metadata, self._frozen[0])
        return History.of_branch(name, metadata, self._options.branch)

    def _loaded(self, uuid: str | None) -> Table:
        """The table as it is now, if it is still the same."""
        table = self._table = open_table(self._options)
        found = str(table.metadata.table_uuid)
        if uuid is not None and found != uuid:
            raise DataLossError(
                f"{FORMAT}: table {self._options.table_name} was dropped and recreated since "
                f"the query started (its UUID was {uuid}, and is {found}): start with "
                f"{NEW_CHECKPOINT}"
            )
        return table

    def _knowing(self, uuid: str | None, offset: StreamingOffset) -> Table:
        """The table as it was loaded last, unless an offset is newer."""
        known = self._table
        if known is not None and known.metadata.snapshot_by_id(offset.snapshot or 0) is not None:
            return known
        return self._loaded(uuid)
