"""Names and values in a table's metadata that describe the epochs of queries.

The summary of an epoch's snapshot has the keys that Iceberg's own Spark sink writes
(``SparkWrite.StreamingWrite``). Properties of the table have the newest epoch of each query, and
its offsets: they outlive the expiry of snapshots. Sink and source share them.

Other programs write metadata too: values are checked before they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = [
    "CHANGE_TIME_KEY",
    "DIGEST_PREFIX",
    "EPOCH_KEY",
    "EPOCH_PREFIX",
    "MERGE_MODE",
    "MOVE_KEY",
    "NO_EPOCH",
    "OFFSETS_PREFIX",
    "PARENT_KEY",
    "POSITION_KEY",
    "QUERY_KEY",
    "UPSERT_KEY",
    "UPSERT_KEY_PREFIX",
    "SnapshotIndex",
    "find_digest",
    "find_newest_entry",
    "find_parent_id",
    "find_query_id",
    "get_head",
    "iterate_ancestors",
    "parse_count",
]

QUERY_KEY = "spark.sql.streaming.queryId"
EPOCH_KEY = "spark.sql.streaming.epochId"
"""Keys in summaries of snapshots: the query, and the number of the epoch."""

PARENT_KEY = "krishiv.parent"
"""Key in summaries of snapshots: the id of the parent, which PyIceberg removes from a snapshot when
the parent expires."""

EPOCH_PREFIX = "krishiv.epoch."
"""A table property with this prefix and a query's id: the number of the query's newest epoch."""

NO_EPOCH = "none"
"""The value of that property before the first epoch, which shows that the catalog keeps it."""

DIGEST_PREFIX = "krishiv.plan."
"""Likewise: that number, a colon, and the digest of Spark's plan of the epoch."""

OFFSETS_PREFIX = "krishiv.offsets."
"""Likewise: that number, and the offset of each source at the end of the epoch, as JSON."""

MOVE_KEY = "krishiv.change-moves"
"""Key in summaries of snapshots: for partitions of the topic whose last event was a delete, its
position, the snapshot before it and its key, as JSON."""

POSITION_KEY = "krishiv.change-position"
"""Key in summaries of snapshots: the highest position of a database's log among all changes so far,
by partition of the topic, as JSON."""

CHANGE_TIME_KEY = "krishiv.change-time"
"""Key in summaries of snapshots: the newest time in the database among all changes so far, in
microseconds, and the highest position at that time, by partition of the topic, as JSON."""

MERGE_MODE = "write.merge.mode"
"""Iceberg's table property: whether a MERGE, here an upsert, writes delete files."""

UPSERT_KEY = "krishiv.upsert.key"
"""A table property: the ids of the key columns of the newest upsert, separated by commas. Where the
catalog keeps none, a key in summaries: those of the query's upserts, or ``none`` after an epoch
that replaced all rows; and the tag that keeps the summary of batch jobs without a number."""

UPSERT_KEY_PREFIX = f"{UPSERT_KEY}."
"""Likewise, with a query's id: those of the query's own upserts."""


def find_digest(properties: Mapping[str, str], query: str, epoch: str) -> str | None:
    """Return the digest of Spark's plan of an epoch, from the table's properties.

    Args:
        properties: Properties of the table.
        query: Id of the query, as of a sink.
        epoch: Number of its newest epoch, as the table's property contains it.

    Returns:
        None if the property is missing, or of another epoch: a program has changed one of the two.
    """
    number, _, digest = properties.get(f"{DIGEST_PREFIX}{query}", "").partition(":")
    return digest if number == epoch else None


def find_parent_id(snapshot: Snapshot) -> int | None:
    """Return the id of the parent, also if that has expired; None for the first snapshot.

    For a snapshot of another program, None also if the expired parent's id was removed.
    """
    if snapshot.parent_snapshot_id is not None or snapshot.summary is None:
        return snapshot.parent_snapshot_id
    return parse_count(snapshot.summary.get(PARENT_KEY))


def find_query_id(snapshot: Snapshot) -> str | None:
    """Return the query whose epoch a snapshot is; None for other snapshots."""
    return None if snapshot.summary is None else snapshot.summary.get(QUERY_KEY)


# --- values


_MOST_DIGITS = 19
"""Digits of 64 bits, as ids of snapshots have. Python refuses to convert a few thousand digits."""


def parse_count(value: object) -> int | None:
    """Return a number from its text in metadata; None for negative numbers and other texts."""
    text = str(value) if type(value) is int else value  # summaries are not always text
    # ``isdigit`` alone accepts characters that ``int`` refuses.
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
        return int(text)
    return None


class SnapshotIndex:
    """The snapshots of a table by id, which are searched from the newest one on.

    Most callers need the newest one, or a few of its ancestors, of thousands.

    Args:
        metadata: Metadata of the table.
    """

    def __init__(self, metadata: TableMetadata) -> None:
        self._older = reversed(metadata.snapshots)
        self._found: dict[int, Snapshot] = {}

    def get(self, snapshot_id: int) -> Snapshot | None:
        """Return a snapshot; None if the table does not have it."""
        while snapshot_id not in self._found:
            older = next(self._older, None)
            if older is None:
                return None
            self._found.setdefault(older.snapshot_id, older)
        return self._found[snapshot_id]


def get_head(metadata: TableMetadata) -> Snapshot | None:
    """Return the table's current snapshot; None of an empty table."""
    head = metadata.current_snapshot_id
    return None if head is None else SnapshotIndex(metadata).get(head)


def iterate_ancestors(
    snapshots: Mapping[int, Snapshot] | SnapshotIndex, start: int | None
) -> Iterator[Snapshot]:
    """Yield a snapshot and its ancestors that the table still has, newest first.

    Ends before an ancestor that was yielded: damaged metadata may name a child as a parent.

    Args:
        snapshots: Snapshots of the table by id.
        start: Id of the first one to yield; None for none.
    """
    yielded: set[int] = set()
    while (
        start is not None and start not in yielded and (found := snapshots.get(start)) is not None
    ):
        yield found
        yielded.add(start)
        start = found.parent_snapshot_id


def find_newest_entry(metadata: TableMetadata, key: str) -> str | None:
    """Return the entry of the newest summary in the table's current history that has one."""
    for snapshot in iterate_ancestors(SnapshotIndex(metadata), metadata.current_snapshot_id):
        text = None if snapshot.summary is None else snapshot.summary.get(key)
        if text is not None:
            return str(text)
    return None
