"""Names and values in a table's metadata that describe what queries have written into it.

The summary of an epoch's snapshot has the keys that Iceberg's own Spark sink writes
(``SparkWrite.StreamingWrite``). Properties of the table have the newest epoch of each query, and
its offsets: they outlive the expiry of snapshots. Sink and source share them.

Other programs write metadata too: values are checked before they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

__all__ = [
    "DIGEST_PREFIX",
    "EPOCH_KEY",
    "EPOCH_PREFIX",
    "NO_EPOCH",
    "OFFSETS_PREFIX",
    "PARENT_KEY",
    "QUERY_KEY",
    "UPSERT_KEY",
    "UPSERT_KEY_PREFIX",
    "find_digest",
    "find_parent_id",
    "find_query_id",
    "iterate_ancestors",
    "parse_count",
]

QUERY_KEY = "spark.sql.streaming.queryId"
EPOCH_KEY = "spark.sql.streaming.epochId"
"""In summaries: the query, and the number of the epoch."""

PARENT_KEY = "krishiv.parent"
"""In summaries: the id of the snapshot before, which PyIceberg takes out of the next one when that
expires."""

EPOCH_PREFIX = "krishiv.epoch."
"""Before a query's id, a property of the table: the number of its newest epoch."""

NO_EPOCH = "none"
"""The value of that property before the first epoch: the catalog has shown that it keeps it."""

DIGEST_PREFIX = "krishiv.plan."
"""Likewise: that number, a colon, and the digest of what Spark planned for the epoch."""

OFFSETS_PREFIX = "krishiv.offsets."
"""Likewise: that number, and the offset of each source at the end of that epoch, as JSON."""

UPSERT_KEY = "krishiv.upsert.key"
"""A property of the table: the ids of the key columns of the newest upsert, separated by commas."""

UPSERT_KEY_PREFIX = f"{UPSERT_KEY}."
"""Before a query's id, likewise: those of the query's own upserts."""


def find_digest(properties: Mapping[str, str], query: str, epoch: str) -> str | None:
    """The digest of what Spark planned for an epoch, by the table's properties.

    Args:
        properties: Of the table.
        query: The id that the query has as a sink.
        epoch: Number of its newest epoch, as the table has it.

    Returns:
        None if they do not say it, or say it of another epoch: somebody has changed one of the two.
    """
    number, _, digest = properties.get(f"{DIGEST_PREFIX}{query}", "").partition(":")
    return digest if number == epoch else None


def find_parent_id(snapshot: Snapshot) -> int | None:
    """The id of the snapshot before, also if that has expired; None for the first one.

    Of one that another program has written, None as well if it expired and was taken out.
    """
    if snapshot.parent_snapshot_id is not None or snapshot.summary is None:
        return snapshot.parent_snapshot_id
    told = snapshot.summary.get(PARENT_KEY)
    return parse_count(told)


def find_query_id(snapshot: Snapshot) -> str | None:
    """The query whose epoch a snapshot is; None if it is none's."""
    return None if snapshot.summary is None else snapshot.summary.get(QUERY_KEY)


# --- values


_MOST_DIGITS = 19
"""Of 64 bits, as ids of snapshots have them; Python refuses to convert a few thousand."""


def parse_count(value: object) -> int | None:
    """Return a number that is not negative, as metadata contains it as text; None for others."""
    text = str(value) if type(value) is int else value  # summaries are not always text
    # ``isdigit`` alone accepts characters that ``int`` refuses.
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
        return int(text)
    return None


def iterate_ancestors(snapshots: Mapping[int, Snapshot], start: int | None) -> Iterator[Snapshot]:
    """Yield a snapshot and its ancestors, the newest first, as far as the table has them.

    Ends where an ancestor comes again: damaged metadata may name a child as a parent.

    Args:
        snapshots: By id.
        start: Id of the first one.
    """
    seen: set[int] = set()
    while start is not None and start not in seen and (found := snapshots.get(start)) is not None:
        yield found
        seen.add(start)
        start = found.parent_snapshot_id
