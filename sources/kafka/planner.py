"""The start and end of each batch, its limits, and the backlog after it. Driver; metadata only."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from krishiv_spark.kafka.client import KafkaClient, KafkaFailedError, open_client
from krishiv_spark.kafka.cluster_limits import warn_of_limits
from krishiv_spark.kafka.list_offsets import RepeatedLookup
from krishiv_spark.kafka.partition_table import FoundOffsets, PartitionNumbers, PartitionTable
from krishiv_spark.kafka.topic_partition import LATEST, TopicPartition
from krishiv_spark.offsets.watermark import WatermarkPlanner
from krishiv_spark.sources.base import Limit
from krishiv_spark.sources.kafka.event_time import EventTime
from krishiv_spark.sources.kafka.losses import DataLossPolicy
from krishiv_spark.sources.kafka.offset import PartitionPosition, QueryPosition, nest_by_topic
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.start_offsets import OffsetResolver
from krishiv_spark.sources.kafka.subscription import ClusterSnapshot, Subscription, get_topic_ids

__all__ = ["BacklogReport", "BatchPlanner", "MinRowsDelay", "find_backlog", "rate_limit"]

Offsets: TypeAlias = Mapping[TopicPartition, int]
"""An offset for each partition: the starts or the ends of a batch."""


class BatchPlanner:
    """A planner of batches, which lives as long as its reader.

    Args:
        options: They specify topics, starting positions, limits, and whether a loss is an error.
        streaming: True for a stream, False for a batch read.
    """

    def __init__(self, options: KafkaSourceOptions, *, streaming: bool) -> None:
        self._options = options
        self._streaming = streaming
        self._committed = options.committed
        self._subscription = Subscription(options)
        self._losses = DataLossPolicy(options.fail_on_data_loss)
        self._delay = MinRowsDelay(
            options.min_offsets_per_trigger or 0, options.max_trigger_delay / 1000
        )
        self._backlog = BacklogReport()
        self._ends = RepeatedLookup(LATEST, committed=options.committed)
        self._watermarks = WatermarkPlanner(options.watermark_delay, options.max_event_time_ahead)
        self._is_started = False
        self._frozen: ClusterSnapshot | None = None
        self._last_ends: tuple[Offsets, Offsets] = {}, {}
        self._nothing_new: tuple[QueryPosition, ClusterSnapshot] | None = None

    def _client(self) -> KafkaClient:
        client = open_client(self._options.kafka, at_start=not self._is_started)
        self._is_started = True
        return client

    def plan_end(self, start: QueryPosition, limit: Limit) -> QueryPosition:
        """Return the end of the batch that starts at `start`; `start` itself if nothing is new.

        Raises:
            OptionError: If the options name a topic or partition that never existed.
            DataLossError: If records were deleted before they were read, and losses are errors.
            KafkaFailedError: If the cluster does not respond in time.
        """
        client = self._client()
        try:
            return self._plan(client, start, limit)
        except KafkaFailedError:
            # No broker answers for a topic that was deleted after the last metadata request.
            if not self._subscription.is_stale(client):
                raise
            if self._frozen is not None:
                self._frozen = self._take_snapshot(client, start)
            return self._plan(client, start, limit)

    def _plan(self, client: KafkaClient, start: QueryPosition, limit: Limit) -> QueryPosition:
        snapshot = self._get_snapshot(client, start)
        if self._nothing_new == (start, snapshot):  # spares the requests for many partitions
            return start
        resolver = OffsetResolver(client, self._options, self._losses)
        if start.at is not None:
            starts = resolver.resolve_start(snapshot.ends.keys(), streaming=self._streaming)
        else:
            starts = resolver.resume(start, snapshot)
        # A position may be after the last stable offset, if uncommitted records were read before.
        newest = {tp: max(end, starts[tp]) for tp, end in snapshot.ends.items()}
        event_time = EventTime(self._options, resolver, self._watermarks, self._watermarks.limit())
        backlog = sum(newest[tp] - offset for tp, offset in starts.items())
        # An AvailableNow run has no later batch to wait for.
        if self._frozen is None and self._delay.should_wait(backlog, time.monotonic()):
            ends: Offsets = starts
        else:
            has_skew = self._options.max_skew is not None
            aligned = event_time.align(start, starts, newest) if has_skew else newest
            ends = rate_limit(starts, aligned, limit.rows)
        self._last_ends = ends, newest
        reached = {
            tp: PartitionPosition(offset, snapshot.newest[tp].epoch) for tp, offset in ends.items()
        }
        end = start.advance(starts, reached, snapshot.left, snapshot.known_ids)
        # A start without offsets always makes a batch, if only an empty one: its end contains the
        # offsets that the start was resolved to.
        if start.at is None and start.is_at(end):
            self._nothing_new = (start, snapshot) if ends == newest else None
            return start
        has_event_time = self._options.event_time is not None and self._streaming
        return event_time.add_watermark(start, end, newest) if has_event_time else end

    def _get_snapshot(self, client: KafkaClient, start: QueryPosition) -> ClusterSnapshot:
        """Return the snapshot of an AvailableNow run, or take a new one."""
        frozen = self._frozen
        if frozen is None:
            return self._take_snapshot(client, start)
        if not self._subscription.covers(frozen.topics, start):
            # When the run was frozen, its position was unknown: a partition that it has read was
            # not missed then, so it is requested again.
            self._frozen = self._take_snapshot(client, start)
            return self._frozen
        left, known_ids = self._subscription.compare(start, frozen.topics)
        return replace(frozen, left=left, known_ids=known_ids)

    def _take_snapshot(self, client: KafkaClient, start: QueryPosition | None) -> ClusterSnapshot:
        """Request topics and offsets. Without a start, no topic is expected to exist."""
        topics = self._subscription.fetch_topics(client, start)
        left, known_ids = self._subscription.compare(start, topics) if start else ({}, {})
        partitions, ids = self._subscription.partitions_of(topics), get_topic_ids(topics)
        reports_blocked = self._streaming and self._committed
        if reports_blocked:
            self._backlog.refresh_high_watermarks(client, partitions)
        newest = self._ends.fetch(client, partitions)
        if reports_blocked:
            self._backlog.find_blocked(newest)
        if self._streaming:
            ends: Offsets = newest.numbers
        else:
            resolver = OffsetResolver(client, self._options, self._losses)
            ends = resolver.resolve_end(partitions.partitions)
        found = (newest[tp].epoch for tp in ends)
        warn_of_limits(client.config.bootstrap, (t.usable_id for t in topics.values()), found)
        return ClusterSnapshot(topics, ids, newest, ends, left, known_ids)

    def freeze(self) -> None:
        """Take the snapshot that limits all later batches; see `SupportsAvailableNow`."""
        self._frozen = self._take_snapshot(self._client(), None)

    def backlog(self) -> Mapping[str, Any]:
        """Return the backlog after the last planned batch, and counts of lost and ignored rows."""
        known = (
            self._backlog.report(*self._last_ends),
            self._losses.report(),
            self._watermarks.report(),
        )
        return {key: value for report in known for key, value in report.items()}


def find_backlog(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the number of unread offsets of each partition that has any."""
    sizes = {tp: ends[tp] - start for tp, start in starts.items()}
    return {tp: size for tp, size in sizes.items() if size > 0}


def rate_limit(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], most: int | None
) -> dict[TopicPartition, int]:
    """Return earlier ends, so that a batch has about as many offsets as the limit.

    Each partition has a share in proportion to its backlog, and at least one offset, so that small
    ones never starve (``KafkaMicroBatchStream.rateLimit``). With more partitions than `most`, the
    batch exceeds the limit.

    Args:
        starts: First offset of each partition.
        ends: End of each partition, exclusive.
        most: Maximum number of offsets in all partitions together; None for no limit.
    """
    sizes = find_backlog(starts, ends)
    total = sum(sizes.values())
    if most is None or total <= most:
        return dict(ends)
    limited = {tp: starts[tp] + _compute_share(size, most, total) for tp, size in sizes.items()}
    return {**ends, **limited}


def _compute_share(size: int, most: int, total: int) -> int:
    return min(max(most * size // total, 1), size)


@dataclass
class MinRowsDelay:
    """The delay of small batches: ``minOffsetsPerTrigger`` and ``maxTriggerDelay``.

    Its state is in memory only: after a restart the first batch never waits.

    Attributes:
        least: Minimum number of offsets in a batch.
        longest_s: Maximum delay in seconds.
    """

    least: int
    longest_s: float
    _since_s: float = -math.inf

    def should_wait(self, offsets: int, now_s: float) -> bool:
        """Return True if the batch must wait for more offsets.

        Args:
            offsets: Number of offsets that it would have now.
            now_s: Time by a monotonic clock, in seconds.
        """
        is_early = now_s - self._since_s <= self.longest_s
        if offsets < self.least and is_early:
            return True
        self._since_s = now_s
        return False


_SHARE_OF_TIME = 10
"""High watermarks are requested for at most a tenth of the time: a request is followed by a pause
of ten times its duration."""

_TIMEOUT_S = 5.0
"""The report is for operators: no batch is delayed by more than this for it."""


class _BlockedPartition(NamedTuple):
    """A partition in which an open transaction blocks readers of committed records.

    Attributes:
        last_stable_offset: The last stable offset.
        high_watermark: The high watermark.
        since: Time at which this last stable offset was first read with records after it.
    """

    last_stable_offset: int
    high_watermark: int
    since: dt.datetime


class BacklogReport:
    """The backlog of a query and the partitions that open transactions block."""

    def __init__(self) -> None:
        self._high_watermark_lookup = RepeatedLookup(LATEST, committed=False)
        # While it is None, no partition counts as blocked.
        self._high_watermarks: PartitionNumbers | None = None
        self._blocked: dict[TopicPartition, _BlockedPartition] = {}
        self._refresh_at_s = 0.0

    def refresh_high_watermarks(self, client: KafkaClient, partitions: PartitionTable) -> None:
        """Request high watermarks periodically. A partition without a timely response has none.

        They are requested before the last stable offsets: then a transaction blocks the records
        between the two offsets; they were not just written.
        """
        began_s = time.monotonic()
        if began_s < self._refresh_at_s:
            return
        found, is_there = self._high_watermark_lookup.fetch_within(client, partitions, _TIMEOUT_S)
        offsets = np.where(is_there, found.offsets, 0)
        self._high_watermarks = PartitionNumbers(partitions, offsets)
        now_s = time.monotonic()
        self._refresh_at_s = now_s + _SHARE_OF_TIME * (now_s - began_s)

    def find_blocked(self, last_stable_offsets: FoundOffsets) -> None:
        """Find the last stable offsets that are before the high watermarks."""
        now = dt.datetime.now(dt.timezone.utc)
        partitions, offsets = last_stable_offsets.rows.partitions, last_stable_offsets.offsets
        high = self._high_watermarks_of(last_stable_offsets.rows)
        blocked = {}
        for row in np.flatnonzero(offsets < high).tolist():
            tp, offset = partitions[row], int(offsets[row])
            blocked[tp] = _BlockedPartition(
                offset, int(high[row]), self._blocked_since(tp, offset, now)
            )
        self._blocked = blocked

    def _high_watermarks_of(self, rows: PartitionTable) -> NDArray[np.int64]:
        known = self._high_watermarks
        if known is None:
            return np.zeros(len(rows), np.int64)
        if known.rows is rows:
            return known.array
        # They were requested for other partitions: some are new, or were deleted.
        return np.fromiter((known.get(tp, 0) for tp in rows.partitions), np.int64)

    def _blocked_since(
        self, tp: TopicPartition, last_stable_offset: int, now: dt.datetime
    ) -> dt.datetime:
        before = self._blocked.get(tp)
        is_same = before is not None and before.last_stable_offset == last_stable_offset
        return before.since if before is not None and is_same else now

    def report(
        self, ends: Mapping[TopicPartition, int], newest: Mapping[TopicPartition, int]
    ) -> dict[str, Any]:
        """Return the backlog after a batch, for the progress of the query (JSON).

        Args:
            ends: Ends of the batch, exclusive.
            newest: Ends of the partitions, which it could have reached.
        """
        lag = {tp: newest[tp] - offset for tp, offset in ends.items()}
        blocked = {
            p: _describe_blocked(each, newest[p]) for p, each in self._blocked.items() if p in lag
        }
        return {
            "latest": nest_by_topic(newest),
            "lag": nest_by_topic(lag),
            "offsets_waiting": sum(lag.values()),
            "held_back": nest_by_topic(
                {tp: each for tp, each in blocked.items() if each["offsets"]}
            ),
            "offsets_held_back": sum(each["offsets"] for each in blocked.values()),
        }


def _describe_blocked(blocked: _BlockedPartition, newest: int) -> dict[str, Any]:
    since = blocked.since.isoformat(timespec="milliseconds").replace("+00:00", "Z")  # as Spark does
    return {
        "high_watermark": blocked.high_watermark,
        "offsets": max(blocked.high_watermark - newest, 0),
        "since": since,
    }
