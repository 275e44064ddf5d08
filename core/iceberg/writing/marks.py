"""The epoch's mark: what a table itself says about the queries that write into it.

It stands in two places. The summary of the epoch's snapshot has the keys that Iceberg's own Spark
sink writes (``SparkWrite.StreamingWrite``). A property of the table has the newest epoch of each
query, so that the mark outlives the expiry of snapshots. Both come with the rows, in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from krishiv_spark.checkpoint import epoch_offsets, source_watermark
from krishiv_spark.errors import SinkError
from krishiv_spark.sinks.base import Epoch

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["held", "progress_of", "property_of", "summary_of"]

_QUERY = "spark.sql.streaming.queryId"
_EPOCH = "spark.sql.streaming.epochId"
_PROPERTY = "krishiv.epoch."
_LONGEST_OFFSETS = 16_384
"""Characters; every metadata file repeats the summaries of all snapshots."""


def property_of(query: str) -> str:
    """Name of the table property that has the newest epoch of a streaming query."""
    return f"{_PROPERTY}{query}"


def summary_of(epoch: Epoch) -> dict[str, str]:
    """What the summary of the epoch's snapshot says about it."""
    return {_QUERY: epoch.query, _EPOCH: str(epoch.number)}


def progress_of(location: str, epoch: Epoch) -> dict[str, str]:
    """How far the epoch goes, for the summary: the offsets that Spark wrote down before it ran.

    ``krishiv.watermark`` is the lowest watermark of the sources, milliseconds: every row with an
    older event time that is not late has arrived by this snapshot. ``krishiv.offsets`` has the
    offset of each source, unless they are long.

    Args:
        location: Spark's checkpoint.
        epoch: Which.
    """
    sources = epoch_offsets(location, epoch.number)[1:]
    marks = [ms for offset in sources if (ms := source_watermark(offset)) is not None]
    found = {"krishiv.watermark": str(min(marks))} if marks else {}
    offsets = json.dumps(sources, separators=(",", ":"), sort_keys=True)
    if sources and len(offsets) <= _LONGEST_OFFSETS:
        found["krishiv.offsets"] = offsets
    return found


def held(metadata: TableMetadata, query: str) -> int | None:
    """The newest epoch of a query that the table holds.

    The property decides. Without one (a batch job, or somebody has removed it), it is the newest
    in the summaries of the snapshots that are left.

    Returns:
        Its number, or None when there is none.

    Raises:
        SinkError: If the mark is no number: somebody has changed it.
    """
    mark = metadata.properties.get(property_of(query))
    if mark is None:
        return max(_in_summaries(metadata, query), default=None)
    try:
        return int(mark)
    except ValueError:
        raise SinkError(
            f"krishiv-iceberg: table property {property_of(query)!r} is {mark!r}, not the number "
            "of an epoch: put back the epoch that the table really holds"
        ) from None


def _in_summaries(metadata: TableMetadata, query: str) -> Iterator[int]:
    for snapshot in metadata.snapshots:
        summary = snapshot.summary
        if summary is not None and summary.get(_QUERY) == query:
            yield int(summary.get(_EPOCH) or 0)
