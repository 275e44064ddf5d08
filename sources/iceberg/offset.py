"""Offsets of an Iceberg table: a snapshot, and the number of a file in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from krishiv_spark.offsets import Offset, Value

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["IcebergOffset", "StartName", "StreamingOffset", "end_of_snapshot", "start_of_scan"]

StartName = Literal["earliest", "current", "latest", "timestamp", "snapshot"]


class StreamingOffset(Value):
    """A position in the history of a table.

    Attributes:
        snapshot: The snapshot that was read last, wholly or in part; None for a table that had no
            snapshot yet.
        sequence: Its sequence number (Iceberg spec, "Sequence Numbers"): shows that no commit is
            between it and a snapshot whose parent has expired. 0 in tables of version 1.
        file: Number of its files that have been read, in the order of `SnapshotFiles`; None for
            all.
        scan: True if the files are all that were in the table at that snapshot (a first load);
            False if they are those that the snapshot added. Only with `file`.
    """

    snapshot: int | None = None
    sequence: int = 0
    file: int | None = None
    scan: bool = False


class IcebergOffset(Offset):
    """The exclusive end of what was read of a table. Names of attributes are those of its JSON.

    Attributes:
        at: Name of the start that the options specify; only in the first offset of a query, which
            never changes and has no `spot`.
        table: UUID of the table.
        spot: Position of the next file.
        began: Position at which the first batch of a query started; only in the offset that ends
            that batch.
    """

    kind = "iceberg"

    at: StartName | None = None
    table: str | None = None
    spot: StreamingOffset | None = None
    began: StreamingOffset | None = None


def end_of_snapshot(snapshot: Snapshot) -> StreamingOffset:
    """Return the offset after all files of a snapshot."""
    return StreamingOffset(snapshot=snapshot.snapshot_id, sequence=snapshot.sequence_number or 0)


def start_of_scan(snapshot: Snapshot) -> StreamingOffset:
    """Return the offset before the first file of a full scan of a snapshot."""
    return end_of_snapshot(snapshot).model_copy(update={"file": 0, "scan": True})
