"""The snapshots of a branch in their order, and those at which reading starts. Driver.

PyIceberg's incremental scan cannot be used: it silently ignores snapshots that change rows, and
refuses positions whose snapshot has expired even if no later one is missing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from krishiv_spark.errors import DataLossError, OptionError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.property_keys import find_parent_id, iterate_ancestors, parse_count
from krishiv_spark.sources.iceberg.offset import (
    StartName,
    StreamingOffset,
    end_of_snapshot,
    start_of_scan,
)
from krishiv_spark.sources.iceberg.options import IcebergSourceOptions

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = [
    "History",
    "find_batch_snapshot",
    "format_time",
    "get_operation",
    "get_start_name",
    "read_count",
    "resolve_start",
]

MAIN = "main"


@dataclass(frozen=True)
class History:
    """The snapshots from the oldest that the table still has to a head; empty without a snapshot.

    Attributes:
        table: Name of the table, for messages.
        snapshots: Oldest first; each is the parent of the next.
        sequence_numbers: By id, those of all snapshots that the table has, on any branch.
    """

    table: str
    snapshots: tuple[Snapshot, ...]
    sequence_numbers: Mapping[int, int]

    @classmethod
    def of_branch(cls, table: str, metadata: TableMetadata, branch: str | None) -> History:
        """Return the history of a branch. Default: the main branch.

        Raises:
            OptionError: If there is no such branch.
        """
        name = branch or MAIN
        reference = metadata.refs.get(name)
        if reference is None and name == MAIN:
            return cls.up_to(table, metadata, metadata.current_snapshot_id)
        if reference is None or reference.snapshot_ref_type != "branch":
            raise OptionError(describe_missing_reference(metadata, "branch", name))
        return cls.up_to(table, metadata, reference.snapshot_id)

    @classmethod
    def up_to(cls, table: str, metadata: TableMetadata, head: int | None) -> History:
        """Return the history of a snapshot; empty for None and for an id that the table lacks."""
        by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
        newest_first = list(iterate_ancestors(by_id, head))
        numbers = {number: snapshot.sequence_number or 0 for number, snapshot in by_id.items()}
        return cls(table, tuple(reversed(newest_first)), numbers)

    @property
    def head(self) -> Snapshot | None:
        """The newest snapshot."""
        return self.snapshots[-1] if self.snapshots else None

    def find(self, snapshot_id: int | None) -> Snapshot | None:
        """Return the snapshot of an id; None if it is not in this history."""
        return next((s for s in self.snapshots if s.snapshot_id == snapshot_id), None)

    def resolve(self, snapshot_id: int | None, option: str) -> Snapshot | None:
        """Return the snapshot that an option names. Default: the newest one.

        Raises:
            OptionError: If it is not in this history.
        """
        if snapshot_id is None:
            return self.head
        found = self.find(snapshot_id)
        if found is None:
            raise OptionError(
                f"{FORMAT}: option {option!r} names snapshot {snapshot_id}, which table "
                f"{self.table} does not have or no longer has; {self.describe_available()}"
            )
        return found

    def slice_after(self, snapshot_id: int | None) -> tuple[Snapshot, ...]:
        """Return the snapshots after one, oldest first; all if it is not in this history."""
        ids = [snapshot.snapshot_id for snapshot in self.snapshots]
        if snapshot_id not in ids:
            return self.snapshots
        return self.snapshots[ids.index(snapshot_id) + 1 :]

    def list_unread(self, offset: StreamingOffset) -> tuple[Snapshot, ...]:
        """Return the snapshots after the one of an offset, oldest first.

        Raises:
            DataLossError: If some of them may have expired, or the history has been rewritten.
        """
        if not self.snapshots:
            if offset.snapshot is None:
                return ()
            raise DataLossError(self._describe_loss(offset))
        if self.find(offset.snapshot) is not None or self._is_next_after(offset):
            return self.slice_after(offset.snapshot)
        raise DataLossError(self._describe_loss(offset))

    def is_whole(self) -> bool:
        """Return True if the table was empty before the oldest snapshot that it still has."""
        oldest = self.snapshots[0]
        if oldest.parent_snapshot_id is not None:
            return False
        # PyIceberg removes the parent's id when it expires the parent, so that the child looks like
        # a root. Sequence numbers grow by one with each commit, so all smaller ones must still be
        # there, on other branches. Version 1 has none, but a root has added all files of the table.
        number = oldest.sequence_number or 0
        before = {other for other in self.sequence_numbers.values() if 0 < other < number}
        if get_operation(oldest) not in _ROOT_OPERATIONS or len(before) < number - 1:
            return False
        added = read_count(oldest, "added-data-files", 0)
        return read_count(oldest, "total-data-files", added if number else -1) == added

    def _is_next_after(self, offset: StreamingOffset) -> bool:
        """Return True if the oldest snapshot is the very next one after an expired offset."""
        oldest = self.snapshots[0]
        if offset.snapshot is None:
            return self.is_whole()
        # The table has it on another line: it was rolled back, or the snapshots after it expired.
        if offset.snapshot in self.sequence_numbers:
            return False
        parent = find_parent_id(oldest)
        if parent is not None:
            return parent == offset.snapshot
        # PyIceberg removes the parent's id when it expires the parent, and other programs record it
        # nowhere else. Sequence numbers grow by one with each commit (Iceberg spec, "Sequence
        # Numbers"), also with one after a rollback, which is not noticed here; version 1 has none.
        return offset.sequence > 0 and oldest.sequence_number == offset.sequence + 1

    def _describe_loss(self, offset: StreamingOffset) -> str:
        where = (
            f"{FORMAT}: table {self.table}: snapshot {offset.snapshot}, the last one that was read,"
        )
        if offset.snapshot is None:
            where = (
                f"{FORMAT}: table {self.table} was empty when the query started, and its history"
            )
        if offset.snapshot in self.sequence_numbers:
            return (
                f"{where} is no longer in the history of the branch: it was rolled back or "
                f"replaced, or snapshots after it have expired; {self.describe_available()}. "
                f"{_ADVICE}"
            )
        return (
            f"{where} has expired, and so have snapshots after it, whose rows cannot be "
            f"determined any more; {self.describe_available()}. {_ADVICE} To prevent it, keep "
            "snapshots for longer than the query may be stopped"
        )

    def describe_available(self) -> str:
        """Return the number and the range of the snapshots, for messages."""
        if not self.snapshots:
            return "there is no snapshot"
        oldest, newest = self.snapshots[0], self.snapshots[-1]
        return (
            f"there are {len(self.snapshots)} snapshots, from {oldest.snapshot_id} of "
            f"{format_time(oldest.timestamp_ms)} to {newest.snapshot_id} of "
            f"{format_time(newest.timestamp_ms)}"
        )


_ADVICE = (
    "Start with another checkpoint: 'startingOffsets' = 'current' reads all rows that are in "
    "the table now and follows it from there."
)

_ROOT_OPERATIONS = {"append", "overwrite"}
"""Operations of a table's first snapshot: there is nothing to delete or to compact."""


def get_operation(snapshot: Snapshot) -> str:
    """Return the operation of a snapshot as the spec names it; "unknown" without a summary."""
    return "unknown" if snapshot.summary is None else str(snapshot.summary.operation.value)


def read_count(snapshot: Snapshot, name: str, default: int = -1) -> int:
    """Return a count from a snapshot's summary, or the default."""
    text = None if snapshot.summary is None else snapshot.summary.get(name)
    number = parse_count(text)
    return default if number is None else number


def format_time(ms: int) -> str:
    """Return a time in the format that `as-of-timestamp` accepts."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(milliseconds=ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def describe_missing_reference(metadata: TableMetadata, kind: str, name: str) -> str:
    """Return the text of an error about a missing branch or tag."""
    there = (n for n, reference in metadata.refs.items() if reference.snapshot_ref_type == kind)
    listed = ", ".join(sorted(there)) or "none"
    return f"{FORMAT}: the table has no {kind} {name!r}; known: {listed}"


# --- starts


def get_start_name(options: IcebergSourceOptions) -> StartName:
    """Return the name of the start that the options specify."""
    if options.snapshot_id is not None or options.start_snapshot_id is not None:
        return "snapshot"
    return "timestamp" if options.stream_from_timestamp is not None else options.starting_offsets


def resolve_start(options: IcebergSourceOptions, history: History) -> StreamingOffset | None:
    """Return the offset that the specified start means now; None while the table has none for it.

    Raises:
        OptionError: If the options name a snapshot that is not there.
        DataLossError: If rows from the start on have expired.
    """
    if options.snapshot_id is not None:
        snapshot = history.resolve(options.snapshot_id, "snapshot-id")
        return None if snapshot is None else start_of_scan(snapshot)
    if options.start_snapshot_id is not None:
        return _start_after(history, options.start_snapshot_id)
    if options.stream_from_timestamp is not None:
        return _start_at_time(history, options.stream_from_timestamp)
    if options.starting_offsets == "latest":
        return StreamingOffset() if history.head is None else end_of_snapshot(history.head)
    if not history.snapshots:
        return None
    return start_of_scan(history.snapshots[-1 if options.starting_offsets == "current" else 0])


def _start_after(history: History, snapshot_id: int) -> StreamingOffset:
    oldest = history.snapshots[0] if history.snapshots else None
    # The named snapshot itself may have expired: no later one is missing.
    if oldest is not None and oldest.parent_snapshot_id == snapshot_id:
        return StreamingOffset(snapshot=snapshot_id)
    snapshot = history.resolve(snapshot_id, "start-snapshot-id")
    return StreamingOffset() if snapshot is None else end_of_snapshot(snapshot)


def _start_at_time(history: History, moment_ms: int) -> StreamingOffset | None:
    """Return the offset before the first snapshot, in commit order, with this time or later.

    Where times are out of order, older snapshots may follow it: they are read too, so that none
    from this time on is left out.
    """
    newer = (
        i for i, snapshot in enumerate(history.snapshots) if snapshot.timestamp_ms >= moment_ms
    )
    index = next(newer, None)
    if index is None:
        return None
    if index > 0:
        return end_of_snapshot(history.snapshots[index - 1])
    if history.is_whole():
        return StreamingOffset()
    raise DataLossError(
        f"{FORMAT}: table {history.table}: snapshots between {format_time(moment_ms)} and the "
        "oldest remaining one have expired, so the rows that they appended are unknown; "
        f"{history.describe_available()}. 'startingOffsets' = 'earliest' starts with all rows of "
        "the oldest snapshot"
    )


def find_batch_snapshot(options: IcebergSourceOptions, table: Table) -> Snapshot | None:
    """Return the one snapshot that a batch reads; None for an empty table.

    Raises:
        OptionError: If there is no such snapshot, branch or tag.
    """
    metadata = table.metadata
    history = History.of_branch(options.table_name, metadata, options.branch)
    if options.snapshot_id is not None:
        snapshot = metadata.snapshot_by_id(options.snapshot_id)
        return snapshot or history.resolve(options.snapshot_id, "snapshot-id")
    if options.tag is not None:
        return _find_tagged(metadata, options.tag)
    if options.as_of_timestamp is not None:
        return _find_as_of(history, metadata, options)
    return history.head


def _find_tagged(metadata: TableMetadata, tag: str) -> Snapshot | None:
    reference = metadata.refs.get(tag)
    if reference is None or reference.snapshot_ref_type != "tag":
        raise OptionError(describe_missing_reference(metadata, "tag", tag))
    return metadata.snapshot_by_id(reference.snapshot_id)


def _find_as_of(
    history: History, metadata: TableMetadata, options: IcebergSourceOptions
) -> Snapshot:
    """Return the snapshot that was current at a time.

    The table's log decides, which contains rollbacks; for a branch, its snapshots. The current one
    has the greatest time that is not after the specified one, as in Iceberg-Java since 1.12: the
    clocks of writers differ, so that a log may not be in the order of its times. Of equal times the
    later entry counts.
    """
    moment = options.as_of_timestamp or 0
    log = [(entry.timestamp_ms, entry.snapshot_id) for entry in metadata.snapshot_log]
    if options.branch is not None:
        log = [(snapshot.timestamp_ms, snapshot.snapshot_id) for snapshot in history.snapshots]
    newest_first = (entry for entry in reversed(log) if entry[0] <= moment)
    _, current = max(newest_first, key=lambda entry: entry[0], default=(0, None))
    snapshot = None if current is None else metadata.snapshot_by_id(current)
    if snapshot is None:
        raise OptionError(
            f"{FORMAT}: table {history.table} has no snapshot at or before {format_time(moment)}; "
            f"{history.describe_available()}"
        )
    return snapshot
