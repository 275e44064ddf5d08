"""The end of the next batch, and the files between two offsets. Driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from krishiv_spark.errors import DataLossError, OffsetError
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.planning import SnapshotFiles, TableFile
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets import Watermark
from krishiv_spark.offsets.watermark import WatermarkPlanner
from krishiv_spark.sources.base import Limit
from krishiv_spark.sources.iceberg.changelog.file_changes import NetChanges, list_changes
from krishiv_spark.sources.iceberg.history import (
    History,
    find_batch_snapshot,
    format_time,
    get_operation,
    read_count,
    resolve_start,
)
from krishiv_spark.sources.iceberg.offset import (
    IcebergOffset,
    StreamingOffset,
    end_of_snapshot,
    start_of_scan,
)
from krishiv_spark.sources.iceberg.options import IcebergSourceOptions

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.types import NestedField

__all__ = [
    "ChangedRowsError",
    "SnapshotStream",
]


class ChangedRowsError(OffsetError):
    """A snapshot overwrites or deletes rows, which a stream of appended rows cannot represent."""


Reading = Literal["rows", "changes", "copies", "nothing"]
"""Rows of a snapshot to read: those that it adds; those that it adds and deletes; only copies of
rows that were added just before; or none."""

# A replace is a compaction: the same rows in other files.
_WITHOUT_CHANGES: dict[str, Reading] = {"append": "rows", "replace": "nothing"}
_WITH_CHANGES: dict[str, Reading] = {
    "append": "rows",
    "replace": "copies",
    "overwrite": "changes",
    "delete": "changes",
}


@dataclass(frozen=True)
class SnapshotPolicy:
    """The treatment of snapshots that are not appends. Default: they are an error.

    Attributes:
        skip_overwrites: True to skip snapshots that overwrite rows.
        skip_deletes: True to skip snapshots that only delete rows.
        read_changes: True to read both, with the rows that they delete.
    """

    skip_overwrites: bool = False
    skip_deletes: bool = False
    read_changes: bool = False

    def choose(self, table: str, snapshot: Snapshot) -> Reading:
        """Return what to read of a snapshot, by its operation.

        The files that an append adds contain new rows (Iceberg's ``SparkMicroBatchStream``).

        Args:
            table: Name of the table, for messages.
            snapshot: One of the history that the stream follows.

        Raises:
            ChangedRowsError: If it changes rows and is neither skipped nor read as changes.
        """
        operation = get_operation(snapshot)
        chosen = (_WITH_CHANGES if self.read_changes else _WITHOUT_CHANGES).get(operation)
        skipped = {"overwrite": self.skip_overwrites, "delete": self.skip_deletes}
        if chosen is not None or skipped.get(operation):
            return chosen or "nothing"
        option = (
            f"'streaming-skip-{operation}-snapshots' = 'true' skips it, and 'readChanges' = "
            "'true' reads the deleted rows as well; "
        )
        raise ChangedRowsError(
            f"{FORMAT}: table {table}: snapshot {snapshot.snapshot_id} of "
            f"{format_time(snapshot.timestamp_ms)} is not an append but of kind {operation!r}: its "
            f"rows cannot be read as a stream of new ones; {option if operation in skipped else ''}"
            "a new query with 'startingOffsets' = 'current' starts after it, with all rows of the "
            "newest snapshot"
        )


def snapshots_after(
    history: History, offset: StreamingOffset, policy: SnapshotPolicy
) -> Iterator[tuple[Snapshot, Reading]]:
    """Yield the snapshots after an offset, oldest first, each with what is to be read of it.

    Raises:
        DataLossError: If some of them may have expired (`History.list_unread`).
        ChangedRowsError: If the next one changes rows and is an error by the policy. The snapshots
            before it were yielded, so that they can be read.
    """
    for snapshot in history.list_unread(offset):
        yield snapshot, policy.choose(history.table, snapshot)


# --- slices


@dataclass(frozen=True)
class FileSlice:
    """Consecutive files of one snapshot.

    Attributes:
        snapshot: The snapshot that added the files, or as of which the table is read.
        scan: True if files are numbered among all files of the table at that snapshot; False if
            they are numbered among the files that it added.
        first: Number of the first file.
        end: Number after the last file, exclusive; None for all files, 0 for none.
        rewrites: True if the snapshot replaces files by others, which are read as a whole; with
            `end` 0, if it only copies rows.
    """

    snapshot: Snapshot
    scan: bool = False
    first: int = 0
    end: int | None = None
    rewrites: bool = False

    def offset_before(self, number: int) -> StreamingOffset:
        """Return the offset before one of its files."""
        offset = end_of_snapshot(self.snapshot)
        return offset.model_copy(update={"file": number, "scan": self.scan})


def slices_from(
    history: History, position: StreamingOffset, policy: SnapshotPolicy
) -> Iterator[FileSlice]:
    """Yield all slices from an offset on; that of a snapshot that is skipped is empty.

    Raises:
        DataLossError: If files from the offset on may have expired.
        ChangedRowsError: If a snapshot is an error by the policy, after the slices before it.
    """
    if position.file is not None:
        yield _continue_snapshot(history, position, position.file)
    for snapshot, reading in snapshots_after(history, position, policy):
        end = None if reading in {"rows", "changes"} else 0
        yield FileSlice(snapshot, end=end, rewrites=reading in {"changes", "copies"})


def _continue_snapshot(history: History, position: StreamingOffset, file: int) -> FileSlice:
    snapshot = history.find(position.snapshot or 0)
    if snapshot is None:
        raise DataLossError(
            f"{FORMAT}: table {history.table}: snapshot {position.snapshot} has expired, or was "
            f"rolled back, while it was being read; {history.describe_available()}. Start with "
            "another checkpoint, and keep snapshots for longer than reading them takes"
        )
    return FileSlice(snapshot, position.scan, file)


def slices_between(
    history: History, start: StreamingOffset, end: StreamingOffset, policy: SnapshotPolicy
) -> Sequence[FileSlice]:
    """Return the slices between two offsets.

    Args:
        history: History up to the snapshot of the end.
        start: The offset before the first file, inclusive.
        end: The offset before the next file, exclusive.
        policy: The treatment of snapshots that are not appends.

    Raises:
        DataLossError: If files between the offsets may have expired.
        ChangedRowsError: If a snapshot is an error by the policy.
    """
    if history.head is None and end.snapshot is not None:
        raise DataLossError(
            f"{FORMAT}: table {history.table}: snapshot {end.snapshot}, the end of a batch, has "
            "expired before the batch was read"
        )
    found = list(slices_from(history, start, policy))
    if found and end.file is not None:
        last = found.pop()
        found.append(FileSlice(last.snapshot, last.scan, last.first, end.file))
    return found


# --- batches


class SnapshotStream:
    """A planner that follows a branch of a table, or travels to one snapshot.

    Args:
        options: Specify table and branch, the start of a new query, and the snapshots that are an
            error.
        event_time: The field of the event time; None without a watermark.
        schema: The reader's columns, which filters name.
    """

    def __init__(
        self, options: IcebergSourceOptions, event_time: NestedField | None, schema: Schema
    ) -> None:
        self._options = options
        self._has_watermark = event_time is not None
        self._files = SnapshotFiles(event_time, schema)
        self._policy = SnapshotPolicy(
            options.skip_overwrite_snapshots, options.skip_delete_snapshots, options.read_changes
        )
        # The id of the snapshot is in a tuple, since an empty table is frozen at None.
        self._frozen: tuple[int | None] | None = None
        self._table: Table | None = None
        self._backlog: dict[str, int] = {}
        self._watermarks = WatermarkPlanner(options.watermark_delay, options.max_event_time_ahead)

    # --- ends

    def freeze(self) -> None:
        """Read no snapshot that is committed after this call (`SupportsAvailableNow`)."""
        head = self._build_history(open_table(self._options)).head
        self._frozen = (None if head is None else head.snapshot_id,)

    def backlog(self) -> Mapping[str, int]:
        """Return the backlog after the batch that was planned last."""
        return {**self._backlog, **self._watermarks.report()}

    def latest(self, start: IcebergOffset, limit: Limit) -> IcebergOffset:
        """Return the end of the next batch of a stream (`StreamReader.latest`)."""
        table = self._load_table(start.table)
        return self._find_end(table, self._build_history(table), start, limit)

    def latest_within(self, start: IcebergOffset, limit: Limit) -> IcebergOffset:
        """Return the end of the next batch within the snapshot of `start`, ignoring later ones."""
        table = self._load_table(start.table)
        name, metadata = self._options.table_name, table.metadata
        head = None if start.spot is None else start.spot.snapshot
        history = History.up_to(name, metadata, head)
        # If it has expired, the error names the snapshots that the table still has.
        return self._find_end(
            table, history if history.snapshots else self._build_history(table), start, limit
        )

    def _find_end(
        self, table: Table, history: History, start: IcebergOffset, limit: Limit
    ) -> IcebergOffset:
        position = start.spot or resolve_start(self._options, history)
        if position is None:
            return start
        end, files = self._take_files(table, history, position, limit)
        self._record_backlog(table, history, end)
        if end == start.spot:
            return start
        is_first = start.spot is None and position != end
        return IcebergOffset(
            table=str(table.metadata.table_uuid),
            spot=end,
            began=position if is_first else None,
            watermark=self._advance_watermark(start.watermark, files),
        )

    def find_batch_end(self, start: IcebergOffset) -> IcebergOffset:
        """Return the end of a batch read, which contains its start too."""
        table = self._load_table(None)
        began, ended = self._find_batch_ends(table)
        if ended is None or began == ended:
            return start
        return IcebergOffset(table=str(table.metadata.table_uuid), spot=ended, began=began)

    def _find_batch_ends(
        self, table: Table
    ) -> tuple[StreamingOffset | None, StreamingOffset | None]:
        if self._options.start_snapshot_id is None:
            snapshot = find_batch_snapshot(self._options, table)
            if snapshot is None:
                return None, None
            return start_of_scan(snapshot), end_of_snapshot(snapshot)
        history = self._build_history(table)
        began = resolve_start(self._options, history)
        head = history.resolve(self._options.end_snapshot_id, "end-snapshot-id")
        return began, None if head is None else end_of_snapshot(head)

    def _take_files(
        self, table: Table, history: History, position: StreamingOffset, limit: Limit
    ) -> tuple[StreamingOffset, list[TableFile]]:
        """Return the end of a batch within a limit, and its files."""
        taken: list[TableFile] = []
        reached, rows, size = position, 0, 0
        try:
            for part in slices_from(history, position, self._policy):
                for number, unit in self._iterate_units(table, part):
                    rows += sum(file.read_rows for file in unit)
                    size += sum(file.read_size for file in unit)
                    files = len(taken) + len(unit)
                    # The first unit is taken even if it is too large: otherwise the stream would
                    # never advance.
                    if taken and not limit.admits(rows=rows, files=files, size=size):
                        # Each position has one text: that before a snapshot's first file is the
                        # one after the previous snapshot.
                        is_inside = number > 0 or part.scan
                        return (part.offset_before(number) if is_inside else reached), taken
                    taken += unit
                reached = end_of_snapshot(part.snapshot)
        except ChangedRowsError:
            if reached == position:
                raise  # all snapshots before it have been read
        return reached, taken

    def _iterate_units(
        self, table: Table, part: FileSlice
    ) -> Iterator[tuple[int, tuple[TableFile, ...]]]:
        """Yield files that a batch takes together, with the number of the first one."""
        if part.rewrites and part.end is None:
            yield 0, list_changes(self._files, table, part.snapshot).files
        else:
            for number, file in self._enumerate_files(table, part):
                yield number, (file,)

    def _enumerate_files(self, table: Table, part: FileSlice) -> Iterable[tuple[int, TableFile]]:
        if part.end == 0:
            return ()
        files = self._files.list_files(table, part.snapshot, scan=part.scan)
        return enumerate(files[part.first : part.end], part.first)

    def _advance_watermark(
        self, before: Watermark | None, files: Iterable[TableFile]
    ) -> Watermark | None:
        if not self._has_watermark:
            return None
        facts, limit = list(files), self._watermarks.limit()
        # A file whose bound is too far ahead may have rows that are not: it does not advance the
        # watermark.
        times = limit.sort(fact.newest_ms for fact in facts if fact.newest_ms is not None)
        reason = next((fact.unknown for fact in facts if fact.unknown is not None), None)
        return self._watermarks.advance(before, times, limit, reason)

    def _record_backlog(self, table: Table, history: History, end: StreamingOffset) -> None:
        """Count the backlog by summaries, and exactly in a snapshot that is half read."""
        waiting = history.slice_after(end.snapshot)
        files = sum(read_count(snapshot, "added-data-files", 0) for snapshot in waiting)
        rows = sum(read_count(snapshot, "added-records", 0) for snapshot in waiting)
        current = None if end.file is None else history.find(end.snapshot)
        if current is not None:
            rest = list(self._enumerate_files(table, FileSlice(current, end.scan, end.file or 0)))
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

    def list_files(
        self, start: IcebergOffset, end: IcebergOffset, row_filter: BooleanExpression | None
    ) -> tuple[Table, list[TableFile]]:
        """Return the table, and its files between two offsets that may have rows under a filter.

        Two calls return the same files: snapshots never change.

        Raises:
            DataLossError: If the snapshots have expired, or the table was recreated.
        """
        table, slices = self._list_slices(start, end)
        return table, [
            file for part in slices for file in self._filter_files(table, part, row_filter)
        ]

    def list_net_changes(
        self, start: IcebergOffset, end: IcebergOffset
    ) -> tuple[Table, NetChanges]:
        """Return the table, and the net changes of its snapshots between two offsets.

        Raises:
            DataLossError: If the snapshots have expired, or the table was recreated.
        """
        table, slices = self._list_slices(start, end)
        net = NetChanges()
        for part in slices:
            changes = partial(list_changes, self._files, table, part.snapshot)
            if not part.rewrites:
                net.append(file for _, file in self._enumerate_files(table, part))
            elif part.end is None:
                net.rewrite(changes())
            else:
                net.copy(changes)
        return table, net

    def _list_slices(
        self, start: IcebergOffset, end: IcebergOffset
    ) -> tuple[Table, Sequence[FileSlice]]:
        position, offset = start.spot or end.began, end.spot
        if position is None or offset is None:
            return self._load_table(end.table), []
        table = self._reuse_table(end.table, offset)
        history = History.up_to(self._options.table_name, table.metadata, offset.snapshot)
        return table, slices_between(history, position, offset, self._policy)

    def _filter_files(
        self, table: Table, part: FileSlice, row_filter: BooleanExpression | None
    ) -> Iterable[TableFile]:
        is_whole = part.first == 0 and part.end is None
        if row_filter is None or part.end == 0:
            return [file for _, file in self._enumerate_files(table, part)]
        kept = self._files.list_files(table, part.snapshot, scan=part.scan, row_filter=row_filter)
        if is_whole:
            return kept
        # Numbers in offsets count all files of the snapshot, also those that the filter excludes.
        paths = {file.path for file in kept}
        return [file for _, file in self._enumerate_files(table, part) if file.path in paths]

    # --- table

    def _build_history(self, table: Table) -> History:
        name, metadata = self._options.table_name, table.metadata
        if self._frozen is not None:
            return History.up_to(name, metadata, self._frozen[0])
        return History.of_branch(name, metadata, self._options.branch)

    def _load_table(self, uuid: str | None) -> Table:
        """Load the table.

        Raises:
            DataLossError: If its UUID is another one: it was recreated.
        """
        table = self._table = open_table(self._options)
        found = str(table.metadata.table_uuid)
        if uuid is not None and found != uuid:
            raise DataLossError(
                f"{FORMAT}: table {self._options.table_name} was dropped and recreated since "
                f"the query started (its UUID was {uuid}, and is {found}): start with "
                f"{NEW_CHECKPOINT}"
            )
        return table

    def _reuse_table(self, uuid: str | None, offset: StreamingOffset) -> Table:
        """Return the table as loaded last; load it again if it lacks the snapshot of an offset."""
        known = self._table
        if known is not None and known.metadata.snapshot_by_id(offset.snapshot or 0) is not None:
            return known
        return self._load_table(uuid)
