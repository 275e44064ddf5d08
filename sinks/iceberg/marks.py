"""The epoch's mark: what a table itself says about the queries that write into it.

It stands in two places: the summary of the epoch's snapshot, and properties of the table, so that
the mark outlives the expiry of snapshots (`krishiv_spark.iceberg.property_keys`). All of it comes
with the rows, in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from krishiv_spark.errors import SinkError
from krishiv_spark.iceberg.property_keys import (
    DIGEST_PREFIX,
    EPOCH_KEY,
    EPOCH_PREFIX,
    NO_EPOCH,
    OFFSETS_PREFIX,
    QUERY_KEY,
    find_digest,
    find_query_id,
    iterate_ancestors,
    parse_count,
)
from krishiv_spark.sinks.base import CommittedEpoch, Epoch
from krishiv_spark.spark.checkpoint import BATCH_PREFIX, SparkCheckpoint

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Summary

__all__ = [
    "Reach",
    "epoch_of_rows",
    "has_epoch",
    "has_key",
    "is_marked",
    "last_committed_epoch",
    "outdated",
    "progress_of",
    "properties_of",
    "summary_of",
]

_DIGEST = "krishiv.plan"
_LONGEST_OFFSETS = 16_384
"""Characters; every metadata file has them."""


def properties_of(epoch: Epoch) -> dict[str, str]:
    """The table's properties that say that an epoch is the newest one of its query."""
    number = str(epoch.number)
    # With the number, since somebody may change the other property alone.
    digest = (
        {}
        if epoch.digest is None
        else {f"{DIGEST_PREFIX}{epoch.query}": f"{number}:{epoch.digest}"}
    )
    return {f"{EPOCH_PREFIX}{epoch.query}": number, **digest}


def summary_of(epoch: Epoch) -> dict[str, str]:
    """What the summary of the epoch's snapshot says about it."""
    digest = {} if epoch.digest is None else {_DIGEST: epoch.digest}
    return {QUERY_KEY: epoch.query, EPOCH_KEY: str(epoch.number), **digest}


def progress_of(checkpoint: SparkCheckpoint, epoch: Epoch) -> Reach:
    """How far the epoch goes, by the offsets that Spark wrote down before it ran it.

    Args:
        checkpoint: Of the query.
        epoch: One whose offsets Spark has written down.
    """
    planned = checkpoint.offset_seq(epoch.number)
    if planned is None:
        return Reach()
    told = {"epoch": epoch.number, "offsets": planned.objects}
    text = json.dumps(told, separators=(",", ":"), sort_keys=True)
    is_short = bool(planned.objects) and len(text) <= _LONGEST_OFFSETS
    return Reach(min(planned.source_watermarks_ms, default=None), text if is_short else None)


@dataclass(frozen=True)
class Reach:
    """How far an epoch goes.

    Attributes:
        watermark: The lowest watermark of the sources, milliseconds: every row with an older event
            time that is not late has arrived by this snapshot. None if there is none.
        offsets: The offset of each source, as JSON; None if it is not known, or too long.
    """

    watermark: int | None = None
    offsets: str | None = None

    @property
    def summary(self) -> dict[str, str]:
        """What the summary of the epoch's snapshot says of it."""
        return {} if self.watermark is None else {"krishiv.watermark": str(self.watermark)}

    def properties(self, query: str) -> dict[str, str]:
        """What the table's properties say of it: of the newest epoch of a query alone.

        In summaries, as they had it once, all metadata files would repeat those of all epochs.
        """
        return {} if self.offsets is None else {f"{OFFSETS_PREFIX}{query}": self.offsets}


def outdated(metadata: TableMetadata, query: str) -> list[str]:
    """Names of the properties with offsets that an epoch of a query does not leave as they are.

    Those are its own, and those of queries that none of the table's snapshots is of any more.
    """
    found = [name for name in metadata.properties if name.startswith(OFFSETS_PREFIX)]
    own = f"{OFFSETS_PREFIX}{query}"
    # Nearly always, and spares a look at every snapshot.
    if found in ([], [own]):
        return found
    alive = {f"{OFFSETS_PREFIX}{find_query_id(snapshot)}" for snapshot in metadata.snapshots}
    return [name for name in found if name == own or name not in alive]


def last_committed_epoch(metadata: TableMetadata, query: str) -> CommittedEpoch | None:
    """The newest epoch of a query that the table holds.

    The property decides. Without one (a batch job, or somebody has removed it), it is the newest
    in the summaries of the snapshots that are left.

    Returns:
        Its number, and its digest if that is known; None when there is none.

    Raises:
        SinkError: If the property is no number, or older than the table's rows.
    """
    number = metadata.properties.get(f"{EPOCH_PREFIX}{query}")
    if number is None or number == NO_EPOCH:
        return max(_in_summaries(metadata, query), default=None, key=lambda mark: mark.epoch)
    epoch = parse_count(number)
    if epoch is None:
        raise SinkError(
            f"krishiv-iceberg: table property '{EPOCH_PREFIX}{query}' is {number!r}, not the "
            "number of an epoch: set it to the epoch that the table really has"
        )
    _check_newest(metadata, query, epoch)
    return CommittedEpoch(epoch, find_digest(metadata.properties, query, number))


def _check_newest(metadata: TableMetadata, query: str, epoch: int) -> None:
    """Refuse a property that is older than the rows of the table, which came with a newer one.

    Raises:
        SinkError: If it is: the epochs in between would be written again.
    """
    of_rows = epoch_of_rows(metadata, query)
    if of_rows is not None and of_rows > epoch:
        raise SinkError(
            f"krishiv-iceberg: table property '{EPOCH_PREFIX}{query}' is {epoch}, but the table "
            f"has the rows of epoch {of_rows} of the query: the catalog did not keep the property "
            "of that commit, or it was changed since. Nothing was written. Set it to "
            f"{of_rows}, and have the catalog keep the table properties of each commit"
        )


def has_key(metadata: TableMetadata, query: str) -> bool:
    """Return True if the table has the property of a query's mark, with or without an epoch."""
    return f"{EPOCH_PREFIX}{query}" in metadata.properties


def is_marked(query: str, txn_app_id: str | None) -> bool:
    """Return True if an epoch may come again; a job without a number ends with its id."""
    return txn_app_id is not None or not query.startswith(BATCH_PREFIX)


def has_epoch(metadata: TableMetadata, newest: CommittedEpoch, epoch: Epoch) -> bool:
    """Return True if a table has an epoch of a query, and not another one of its number.

    Args:
        metadata: Of the table.
        newest: The newest epoch of the query in it, this one or a later one.
        epoch: With its digest; without one, or where the table has none, the number decides.
    """
    found = [newest, *_in_summaries(metadata, epoch.query)]
    same = [mark.digest for mark in found if mark.epoch == epoch.number]
    return any(None in {digest, epoch.digest} or digest == epoch.digest for digest in same)


def epoch_of_rows(metadata: TableMetadata, query: str) -> int | None:
    """The newest epoch of a query among the snapshots that led to the table's rows.

    It is another one than that of `last_committed_epoch` if the table was rolled back, which leaves
    properties as they are.

    Returns:
        None if nothing is left that tells it; -1 if the query's snapshots were left out by a
        rollback, and those before them have expired.
    """
    by_id, oldest = {one.snapshot_id: one for one in metadata.snapshots}, 0
    for snapshot in iterate_ancestors(by_id, metadata.current_snapshot_id):
        oldest = snapshot.sequence_number or 0
        if (summary := snapshot.summary) is not None and find_query_id(snapshot) == query:
            return _number_of(summary, query)
    # One that a tag keeps may be older than all that led to the rows and is left; no younger one.
    later = (one for one in metadata.snapshots if (one.sequence_number or 0) > oldest)
    return -1 if any(find_query_id(one) == query for one in later) else None


def _in_summaries(metadata: TableMetadata, query: str) -> Iterator[CommittedEpoch]:
    for snapshot in metadata.snapshots:
        if (summary := snapshot.summary) is not None and find_query_id(snapshot) == query:
            yield CommittedEpoch(_number_of(summary, query), summary.get(_DIGEST))


def _number_of(summary: Summary, query: str) -> int:
    text = summary.get(EPOCH_KEY)
    number = parse_count(text or "0")
    if number is None:
        raise SinkError(
            f"krishiv-iceberg: the summary of a snapshot of query {query} has {EPOCH_KEY!r} = "
            f"{text!r}, not the number of an epoch: the table's metadata was changed"
        )
    return number
