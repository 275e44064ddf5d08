"""The snapshots of a branch in their order, and which of them a stream reads. Driver.

PyIceberg's incremental scan is no help here: it passes over snapshots that change rows without a
word, and refuses positions whose snapshot has expired though nothing after it is missing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from krishiv_spark.errors import DataLossError, OffsetError, OptionError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.query_marks import parent_of
from krishiv_spark.iceberg.untrusted import iterate_ancestors, parse_count
from krishiv_spark.sources.iceberg.position import StreamingOffset

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = [
    "ChangedRowsError",
    "History",
    "Reading",
    "Skips",
    "no_reference",
    "number_of",
    "operation_of",
    "snapshots_after",
    "when",
]

MAIN = "main"


class ChangedRowsError(OffsetError):
    """A snapshot overwrites or deletes rows, which a stream of appended rows cannot represent."""


@dataclass(frozen=True)
class Skips:
    """What becomes of snapshots that are no appends.

    Attributes:
        overwrites: Whether those that overwrite rows are passed over.
        deletes: Whether those that only delete rows are.
        changes: Whether both are read, with the rows that they take out.
    """

    overwrites: bool = False
    deletes: bool = False
    changes: bool = False


@dataclass(frozen=True)
class History:
    """Snapshots from the oldest that the table still has to a head; empty without a snapshot.

    Attributes:
        table: Name of the table, for messages.
        line: Each is the parent of the next.
        known: Ids of all snapshots that the table has, on whatever branch, with their sequence
            numbers.
    """

    table: str
    line: tuple[Snapshot, ...]
    known: Mapping[int, int]

    @classmethod
    def of_branch(cls, table: str, metadata: TableMetadata, branch: str | None) -> History:
        """The history of a branch, or of the main one.

        Raises:
            OptionError: If there is no such branch.
        """
        name = branch or MAIN
        reference = metadata.refs.get(name)
        if reference is None and name == MAIN:
            return cls.up_to(table, metadata, metadata.current_snapshot_id)
        if reference is None or reference.snapshot_ref_type != "branch":
            raise OptionError(no_reference(metadata, "branch", name))
        return cls.up_to(table, metadata, reference.snapshot_id)

    @classmethod
    def up_to(cls, table: str, metadata: TableMetadata, head: int | None) -> History:
        """The history of a snapshot; of none at all, or none that is there, it is empty."""
        by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
        line = list(iterate_ancestors(by_id, head))
        known = {number: snapshot.sequence_number or 0 for number, snapshot in by_id.items()}
        return cls(table, tuple(reversed(line)), known)

    @property
    def head(self) -> Snapshot | None:
        """The newest snapshot."""
        return self.line[-1] if self.line else None

    def find(self, snapshot_id: int | None) -> Snapshot | None:
        """The snapshot of an id, if it is in this history."""
        return next((s for s in self.line if s.snapshot_id == snapshot_id), None)

    def named(self, snapshot_id: int | None, option: str) -> Snapshot | None:
        """The snapshot that an option names, or the newest one.

        Raises:
            OptionError: If it is not in this history.
        """
        if snapshot_id is None:
            return self.head
        found = self.find(snapshot_id)
        if found is None:
            raise OptionError(
                f"{FORMAT}: option {option!r} names snapshot {snapshot_id}, which table "
                f"{self.table} does not have or no longer has; {self.available()}"
            )
        return found

    def line_after(self, snapshot_id: int | None) -> tuple[Snapshot, ...]:
        """The snapshots after one, or all if it is not in this history."""
        ids = [snapshot.snapshot_id for snapshot in self.line]
        return self.line[ids.index(snapshot_id) + 1 :] if snapshot_id in ids else self.line

    def after(self, offset: StreamingOffset) -> tuple[Snapshot, ...]:
        """The snapshots after the one of an offset, oldest first.

        Raises:
            DataLossError: If some of them may have expired, or the history has been rewritten.
        """
        if not self.line:
            if offset.snapshot is None:
                return ()
            raise DataLossError(self._lost(offset))
        if self.find(offset.snapshot) is not None or self._follows(offset):
            return self.line_after(offset.snapshot)
        raise DataLossError(self._lost(offset))

    def is_whole(self) -> bool:
        """Whether nothing was in the table before the oldest snapshot that it still has."""
        oldest = self.line[0]
        if oldest.parent_snapshot_id is not None:
            return False
        # PyIceberg takes the parent out when it expires it, so that its child looks like a root.
        # Sequence numbers grow by one with each commit, so those before must all be there still,
        # on other branches. Version 1 has none, but a root has added all files that there are.
        number = oldest.sequence_number or 0
        before = {known for known in self.known.values() if 0 < known < number}
        if operation_of(oldest) not in _OF_FIRST or len(before) < number - 1:
            return False
        added = number_of(oldest, "added-data-files", 0)
        return number_of(oldest, "total-data-files", added if number else -1) == added

    def _follows(self, offset: StreamingOffset) -> bool:
        """Whether the oldest snapshot is the very next one after an offset that has expired."""
        oldest = self.line[0]
        if offset.snapshot is None:
            return self.is_whole()
        # It is there, but off this line: rolled back, or what followed it has expired.
        if offset.snapshot in self.known:
            return False
        parent = parent_of(oldest)
        if parent is not None:
            return parent == offset.snapshot
        # PyIceberg takes the parent out when it expires it, and other programs tell of it nowhere
        # else. Sequence numbers grow by one with each commit (Iceberg spec, "Sequence Numbers"),
        # also with one after a rollback, which is not noticed here; version 1 has none.
        return offset.sequence > 0 and oldest.sequence_number == offset.sequence + 1

    def _lost(self, offset: StreamingOffset) -> str:
        where = (
            f"{FORMAT}: table {self.table}: snapshot {offset.snapshot}, the last one that was read,"
        )
        if offset.snapshot is None:
            where = (
                f"{FORMAT}: table {self.table} was empty when the query started, and its history"
            )
        if offset.snapshot in self.known:
            return (
                f"{where} is no longer in the history of the branch: it was rolled back or "
                f"replaced, or snapshots after it have expired; {self.available()}. {_ADVICE}"
            )
        return (
            f"{where} has expired, and so have snapshots after it, whose rows cannot be "
            f"determined any more; {self.available()}. {_ADVICE} To prevent it, keep snapshots "
            "for longer than the query may be stopped"
        )

    def available(self) -> str:
        """Which snapshots there are, for messages."""
        if not self.line:
            return "there is no snapshot"
        oldest, newest = self.line[0], self.line[-1]
        return (
            f"there are {len(self.line)} snapshots, from {oldest.snapshot_id} of "
            f"{when(oldest.timestamp_ms)} to {newest.snapshot_id} of {when(newest.timestamp_ms)}"
        )


_ADVICE = (
    "Start with another checkpoint: 'startingOffsets' = 'current' reads all rows that are in "
    "the table now and follows it from there."
)


Reading = Literal["rows", "changes", "copies", "nothing"]
"""What is read of a snapshot: the rows that it adds, those that it takes out as well, only where
it has copied what was added just before, or nothing."""


def snapshots_after(
    history: History, offset: StreamingOffset, skips: Skips
) -> Iterator[tuple[Snapshot, Reading]]:
    """The snapshots after an offset, each with what is to be read of it.

    Raises:
        DataLossError: See `History.after`.
        ChangedRowsError: If one of them changes rows and is not to be skipped; when its turn
            comes, so that what lies before it can be read.
    """
    for snapshot in history.after(offset):
        yield snapshot, _reading(history.table, snapshot, skips)


def _reading(table: str, snapshot: Snapshot, skips: Skips) -> Reading:
    """By its kind: the files that an append adds are new rows (``SparkMicroBatchStream``)."""
    operation = operation_of(snapshot)
    found = _WITH_CHANGES.get(operation) if skips.changes else _WITHOUT.get(operation)
    skipped = {"overwrite": skips.overwrites, "delete": skips.deletes}
    if found is not None or skipped.get(operation):
        return found or "nothing"
    option = (
        f"'streaming-skip-{operation}-snapshots' = 'true' skips it, and 'readChanges' = 'true' "
        "reads the deleted rows as well; "
    )
    raise ChangedRowsError(
        f"{FORMAT}: table {table}: snapshot {snapshot.snapshot_id} of "
        f"{when(snapshot.timestamp_ms)} is not an append but of kind {operation!r}: its rows "
        f"cannot be read as a stream of new ones; {option if operation in skipped else ''}a new "
        "query with 'startingOffsets' = 'current' starts after it, with all rows of the newest "
        "snapshot"
    )


# A replace is a compaction: the same rows in other files.
_WITHOUT: dict[str, Reading] = {"append": "rows", "replace": "nothing"}
_WITH_CHANGES: dict[str, Reading] = {
    "append": "rows",
    "replace": "copies",
    "overwrite": "changes",
    "delete": "changes",
}

_OF_FIRST = {"append", "overwrite"}
"""Kinds that the first snapshot of a table may have: there is nothing to delete or to compact."""


def operation_of(snapshot: Snapshot) -> str:
    """Its kind, as the Iceberg spec names it; "unknown" without a summary."""
    return "unknown" if snapshot.summary is None else str(snapshot.summary.operation.value)


def number_of(snapshot: Snapshot, name: str, default: int = -1) -> int:
    """A number of a snapshot's summary, or the default."""
    text = None if snapshot.summary is None else snapshot.summary.get(name)
    number = parse_count(text)
    return default if number is None else number


def when(ms: int) -> str:
    """A moment as people and `as-of-timestamp` read it."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(milliseconds=ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def no_reference(metadata: TableMetadata, kind: str, name: str) -> str:
    """The text of an error about a branch or tag that is not there."""
    there = (n for n, reference in metadata.refs.items() if reference.snapshot_ref_type == kind)
    listed = ", ".join(sorted(there)) or "none"
    return f"{FORMAT}: the table has no {kind} {name!r}; known: {listed}"
