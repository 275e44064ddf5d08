"""What waits after the batch that was chosen last, for the query's progress. Driver."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from krishiv_spark.kafka.client import Client
from krishiv_spark.kafka.offset_lookups import RepeatedLookup
from krishiv_spark.kafka.partition_rows import FoundOffsets, PartitionNumbers, PartitionRows
from krishiv_spark.kafka.topic_partition import LATEST, TopicPartition
from krishiv_spark.sources.kafka.position import nested

__all__ = ["Lag"]

_SHARE_OF_TIME = 10
"""High watermarks are looked up again when that many times as long has passed as that took."""

_PATIENCE_S = 5.0
"""It is for people: no query waits for it for longer."""


class _Held(NamedTuple):
    """Readers of committed records are held back by a transaction that is open.

    Attributes:
        last_stable_offset: The last stable offset.
        high_watermark: The high watermark.
        since: When the former was first seen where it is, with records after it.
    """

    last_stable_offset: int
    high_watermark: int
    since: dt.datetime


class Lag:
    """Follows what waits, for the life of a reader."""

    def __init__(self) -> None:
        self._ends = RepeatedLookup(LATEST, committed=True)
        self._look = RepeatedLookup(LATEST, committed=False)
        # Where there is none, nothing is held back.
        self._high_watermarks: PartitionNumbers | None = None
        self._held: dict[TopicPartition, _Held] = {}
        self._until_s = 0.0

    def look_up_ends(self, client: Client, partitions: PartitionRows) -> FoundOffsets:
        """The last stable offsets, with a look at what open transactions hold back after them.

        High watermarks are looked up before: then records between the two wait for the end of a
        transaction, and have not just been written.

        Raises:
            KafkaFailedError: If a partition has no last stable offset in time.
        """
        self._look_at_high_watermarks(client, partitions)
        ends = self._ends.demand(client, partitions)
        self._compare(ends)
        return ends

    def _look_at_high_watermarks(self, client: Client, partitions: PartitionRows) -> None:
        """Now and then. A partition without an answer in time has none."""
        began_s = time.monotonic()
        if began_s < self._until_s:
            return
        found, is_there = self._look.gather(client, partitions, _PATIENCE_S)
        offsets = np.where(is_there, found.offsets, 0)
        self._high_watermarks = PartitionNumbers(partitions, offsets)
        now_s = time.monotonic()
        self._until_s = now_s + _SHARE_OF_TIME * (now_s - began_s)

    def _compare(self, last_stable_offsets: FoundOffsets) -> None:
        """Find out which last stable offsets lie before the high watermarks."""
        now = dt.datetime.now(dt.timezone.utc)
        partitions, offsets = last_stable_offsets.rows.partitions, last_stable_offsets.offsets
        high = self._high_watermarks_of(last_stable_offsets.rows)
        held = {}
        for row in np.flatnonzero(offsets < high).tolist():
            tp, offset = partitions[row], int(offsets[row])
            held[tp] = _Held(offset, int(high[row]), self._since(tp, offset, now))
        self._held = held

    def _high_watermarks_of(self, rows: PartitionRows) -> NDArray[np.int64]:
        known = self._high_watermarks
        if known is None:
            return np.zeros(len(rows), np.int64)
        if known.rows is rows:
            return known.array
        # Looked up for other partitions: some are new, or have gone.
        return np.fromiter((known.get(tp, 0) for tp in rows.partitions), np.int64)

    def _since(self, tp: TopicPartition, last_stable_offset: int, now: dt.datetime) -> dt.datetime:
        before = self._held.get(tp)
        is_same = before is not None and before.last_stable_offset == last_stable_offset
        return before.since if before is not None and is_same else now

    def report(
        self, ends: Mapping[TopicPartition, int], newest: Mapping[TopicPartition, int]
    ) -> dict[str, Any]:
        """What waits after a batch, as JSON.

        Args:
            ends: Where the batch ends.
            newest: Where it could have ended.
        """
        lag = {tp: newest[tp] - offset for tp, offset in ends.items()}
        held = {p: _shown(each, newest[p]) for p, each in self._held.items() if p in lag}
        return {
            "latest": nested(newest),
            "lag": nested(lag),
            "offsets_waiting": sum(lag.values()),
            "held_back": nested({tp: each for tp, each in held.items() if each["offsets"]}),
            "offsets_held_back": sum(each["offsets"] for each in held.values()),
        }


def _shown(held: _Held, newest: int) -> dict[str, Any]:
    since = held.since.isoformat(timespec="milliseconds").replace("+00:00", "Z")  # as Spark does
    return {
        "high_watermark": held.high_watermark,
        "offsets": max(held.high_watermark - newest, 0),
        "since": since,
    }
