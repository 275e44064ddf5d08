"""Under which names a table says what queries have written into it, by sink and source alike.

The summary of an epoch's snapshot has the keys that Iceberg's own Spark sink writes
(``SparkWrite.StreamingWrite``). Properties of the table have the newest epoch of each query, and
its offsets: they outlive the expiry of snapshots.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from krishiv_spark.iceberg.untrusted import parse_count

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

__all__ = [
    "DIGEST_OF",
    "EPOCH_KEY",
    "EPOCH_OF",
    "KEY",
    "KEY_OF",
    "NO_EPOCH",
    "OFFSETS_OF",
    "PARENT_KEY",
    "QUERY_KEY",
    "digest_of",
    "parent_of",
    "query_of",
]

QUERY_KEY = "spark.sql.streaming.queryId"
EPOCH_KEY = "spark.sql.streaming.epochId"
"""In summaries: the query, and the number of the epoch."""

PARENT_KEY = "krishiv.parent"
"""In summaries: the id of the snapshot before, which PyIceberg takes out of the next one when that
expires."""

EPOCH_OF = "krishiv.epoch."
"""Before a query's id, a property of the table: the number of its newest epoch."""

NO_EPOCH = "none"
"""The value of that property before the first epoch: the catalog has shown that it keeps it."""

DIGEST_OF = "krishiv.plan."
"""Likewise: that number, a colon, and the digest of what Spark planned for the epoch."""

OFFSETS_OF = "krishiv.offsets."
"""Likewise: that number, and the offset of each source at the end of that epoch, as JSON."""

KEY = "krishiv.upsert.key"
"""A property of the table: the ids of the key columns of the newest upsert, separated by commas."""

KEY_OF = f"{KEY}."
"""Before a query's id, likewise: those of the query's own upserts."""


def digest_of(properties: Mapping[str, str], query: str, epoch: str) -> str | None:
    """The digest of what Spark planned for an epoch, by the table's properties.

    Args:
        properties: Of the table.
        query: The id that the query has as a sink.
        epoch: Number of its newest epoch, as the table has it.

    Returns:
        None if they do not say it, or say it of another epoch: somebody has changed one of the two.
    """
    number, _, digest = properties.get(f"{DIGEST_OF}{query}", "").partition(":")
    return digest if number == epoch else None


def parent_of(snapshot: Snapshot) -> int | None:
    """The id of the snapshot before, also if that has expired; None for the first one.

    Of one that another program has written, None as well if it expired and was taken out.
    """
    if snapshot.parent_snapshot_id is not None or snapshot.summary is None:
        return snapshot.parent_snapshot_id
    told = snapshot.summary.get(PARENT_KEY)
    return parse_count(told)


def query_of(snapshot: Snapshot) -> str | None:
    """The query whose epoch a snapshot is; None if it is none's."""
    return None if snapshot.summary is None else snapshot.summary.get(QUERY_KEY)
