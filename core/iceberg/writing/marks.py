"""The epoch's mark: what a table itself says about the queries that write into it.

It stands in two places. The summary of the epoch's snapshot has the keys that Iceberg's own Spark
sink writes (``SparkWrite.StreamingWrite``). A property of the table has the newest epoch of each
query, so that the mark outlives the expiry of snapshots. Both come with the rows, in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from krishiv_spark.checkpoint import offset_seq
from krishiv_spark.errors import SinkError
from krishiv_spark.sinks.base import Epoch, Mark

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["held", "progress_of", "properties_of", "summary_of"]

_QUERY = "spark.sql.streaming.queryId"
_EPOCH = "spark.sql.streaming.epochId"
_DIGEST = "krishiv.plan"
_EPOCH_OF, _DIGEST_OF = "krishiv.epoch.", "krishiv.plan."
_LONGEST_OFFSETS = 16_384
"""Characters; every metadata file repeats the summaries of all snapshots."""


def properties_of(epoch: Epoch) -> dict[str, str]:
    """The table's properties that say that an epoch is the newest one of its query."""
    number = str(epoch.number)
    # With the number, since somebody may change the other property alone.
    digest = (
        {} if epoch.digest is None else {f"{_DIGEST_OF}{epoch.query}": f"{number}:{epoch.digest}"}
    )
    return {f"{_EPOCH_OF}{epoch.query}": number, **digest}


def summary_of(epoch: Epoch) -> dict[str, str]:
    """What the summary of the epoch's snapshot says about it."""
    digest = {} if epoch.digest is None else {_DIGEST: epoch.digest}
    return {_QUERY: epoch.query, _EPOCH: str(epoch.number), **digest}


def progress_of(location: str, epoch: Epoch) -> dict[str, str]:
    """How far the epoch goes, for the summary: the offsets that Spark wrote down before it ran.

    ``krishiv.watermark`` is the lowest watermark of the sources, milliseconds: every row with an
    older event time that is not late has arrived by this snapshot. ``krishiv.offsets`` has the
    offset of each source, unless they are long.

    Args:
        location: Spark's checkpoint.
        epoch: Which.
    """
    planned = offset_seq(location, epoch.number)
    if planned is None:
        return {}
    marks = planned.source_watermarks_ms
    found = {"krishiv.watermark": str(min(marks))} if marks else {}
    offsets = json.dumps(planned.objects, separators=(",", ":"), sort_keys=True)
    if planned.objects and len(offsets) <= _LONGEST_OFFSETS:
        found["krishiv.offsets"] = offsets
    return found


def held(metadata: TableMetadata, query: str) -> Mark | None:
    """The newest epoch of a query that the table holds.

    The property decides. Without one (a batch job, or somebody has removed it), it is the newest
    in the summaries of the snapshots that are left.

    Returns:
        Its number, and its digest if that is known; None when there is none.

    Raises:
        SinkError: If the mark is no number: somebody has changed it.
    """
    number = metadata.properties.get(f"{_EPOCH_OF}{query}")
    if number is None:
        return max(_in_summaries(metadata, query), default=None, key=lambda mark: mark.epoch)
    planned, _, digest = metadata.properties.get(f"{_DIGEST_OF}{query}", "").partition(":")
    try:
        return Mark(int(number), digest if planned == number else None)
    except ValueError:
        raise SinkError(
            f"krishiv-iceberg: table property '{_EPOCH_OF}{query}' is {number!r}, not the number "
            "of an epoch: put back the epoch that the table really holds"
        ) from None


def _in_summaries(metadata: TableMetadata, query: str) -> Iterator[Mark]:
    for snapshot in metadata.snapshots:
        summary = snapshot.summary
        if summary is not None and summary.get(_QUERY) == query:
            yield Mark(int(summary.get(_EPOCH) or 0), summary.get(_DIGEST))
