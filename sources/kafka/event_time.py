"""Event time of partitions, from metadata: the watermark, and aligned reading. Driver.

The event time is the timestamp of records, which producers choose. Decisions depend on offsets and
timestamps in the cluster. The clock of this machine only excludes timestamps that are too far ahead
of it (`EventTimeLimit`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from krishiv_spark.kafka.fetches import BatchHeader, read_batch_headers
from krishiv_spark.kafka.list_offsets import list_offsets
from krishiv_spark.kafka.topic_partition import MAX_TIMESTAMP, TopicPartition
from krishiv_spark.offsets.watermark import EventTimeLimit, WatermarkPlanner
from krishiv_spark.sources.kafka.offset import QueryPosition
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.start_offsets import OffsetResolver

__all__ = ["EventTime", "PartitionTimes", "find_idle_partitions"]


_STRIDES = (1, 16, 256, 4096)
"""Distances from the end, in offsets, at which the last records are read if markers follow them."""


@dataclass(frozen=True)
class PartitionTimes:
    """The event times of partitions at a position.

    Attributes:
        times: By partition, the greatest timestamp before the position.
        quiet: Partitions without a record so far, with the newest timestamp in the other partitions
            when they were first read.
        idle: Partitions that the watermark does not wait for.
    """

    times: Mapping[TopicPartition, int]
    quiet: Mapping[TopicPartition, int]
    idle: Collection[TopicPartition]

    def find_slowest(self) -> int | None:
        """Return the time of the slowest partition that is not idle; None if one has none yet."""
        if not self.times or any(tp not in self.idle for tp in self.quiet):
            return None
        return min(self.times[tp] for tp in self.times if tp not in self.idle)


def find_idle_partitions(
    times: Mapping[TopicPartition, int],
    quiet_before: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    newest: Mapping[TopicPartition, int],
    idle_timeout_ms: int,
) -> PartitionTimes:
    """Find idle partitions: they have no unread records, and others have much newer records.

    Args:
        times: By partition, the greatest timestamp before `ends`.
        quiet_before: `PartitionTimes.quiet` at the previous position.
        ends: By partition, the end of the batch, exclusive.
        newest: By partition, its end in the cluster, exclusive.
        idle_timeout_ms: A partition is idle if its newest record is older than the newest one of
            all partitions by more than this.
    """
    top = max(times.values(), default=None)
    if top is None:
        return PartitionTimes({}, {}, ())
    quiet = {p: quiet_before.get(p, top) for p in ends if p not in times}
    idle = {
        tp
        for tp, time in (*times.items(), *quiet.items())
        if ends[tp] == newest[tp] and top - time > idle_timeout_ms
    }
    return PartitionTimes(times, quiet, idle)


def _is_countable(header: BatchHeader, end: int) -> bool:
    return not header.is_marker and header.last < end and header.newest_ms >= 0


@dataclass(frozen=True)
class EventTime:
    """The event time of one batch.

    Attributes:
        options: They specify delay, idle time-out and ``maxSkew``.
        resolver: It finds offsets by timestamp.
        watermarks: The planner of the query's watermarks.
        limit: The limit of timestamps that count; later ones are ignored.
    """

    options: KafkaSourceOptions
    resolver: OffsetResolver
    watermarks: WatermarkPlanner
    limit: EventTimeLimit

    def add_watermark(
        self, start: QueryPosition, end: QueryPosition, newest: Mapping[TopicPartition, int]
    ) -> QueryPosition:
        """Return the end of a batch with its watermark.

        Args:
            start: Start of the batch.
            end: Its end, without any event time.
            newest: By partition, its end in the cluster, exclusive.
        """
        before, ends = start.offsets, end.offsets
        moved = {tp: offset for tp, offset in ends.items() if before.get(tp) != offset}
        times = {tp: ms for tp, ms in self._drop_times_ahead(start.times).items() if tp in ends}
        found, ahead = self._read_times(before, moved)
        for tp, ms in found.items():
            # An earlier record may be newer: records need not be in the order of their times.
            times[tp] = max(ms, times.get(tp, ms))
        quiet = self._drop_times_ahead(start.quiet)
        known = find_idle_partitions(times, quiet, ends, newest, self.options.idle_timeout)
        held = "a partition has no record yet" if known.times else None
        slowest = known.find_slowest()
        watermark = self.watermarks.advance(
            start.watermark,
            self.limit.sort(ahead.values())._replace(newest_ms=slowest),
            self.limit,
            held if slowest is None else None,
        )
        return replace(
            end, watermark=watermark, times=known.times, quiet=known.quiet, idle=known.idle
        )

    def _drop_times_ahead(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the times that count; offsets of a release without a limit may have others."""
        return {tp: ms for tp, ms in times.items() if self.limit.admits(ms)}

    def _read_times(
        self, before: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], dict[tuple[TopicPartition, int], int]]:
        """Return the greatest timestamp before each end, or an earlier one.

        The newest timestamp of a partition (KIP-734) may be after the end, or that of a marker,
        which a broker's clock sets. Then the last records before the end count, which may be older.
        The record of a timestamp may be aborted, or one that the query did not read.

        Returns:
            The timestamps by partition; and those that do not count, by the first offset of their
            batch of records.
        """
        ahead: dict[tuple[TopicPartition, int], int] = {}
        asked = dict.fromkeys(ends, MAX_TIMESTAMP)
        found = list_offsets(self.resolver.client, asked, committed=self.options.committed)
        newest = {
            tp: each.offset
            for tp, each in found.items()
            if 0 <= each.offset < ends[tp]
            and (self.limit.admits(each.timestamp) or each.offset >= before.get(tp, 0))
        }
        times = self._read_times_at(newest, ends, before, ahead)
        for stride in _STRIDES:
            # Records before the batch were counted when they were read.
            left = {p: max(end - stride, before.get(p, 0), 0) for p, end in ends.items()}
            missing = {p: at for p, at in left.items() if p not in times}
            times |= self._read_times_at(missing, ends, before, ahead)
        return times, ahead

    def _read_times_at(
        self,
        offsets: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        before: Mapping[TopicPartition, int],
        ahead: dict[tuple[TopicPartition, int], int],
    ) -> dict[TopicPartition, int]:
        """Return the greatest timestamp of the batches at some offsets that end before the end.

        Timestamps that do not count are added to `ahead`, unless an earlier batch contained them.
        """
        inside = {tp: at for tp, at in offsets.items() if at < ends[tp]}
        found = read_batch_headers(self.resolver.client, inside) if inside else {}
        times: dict[TopicPartition, list[int]] = {}
        for tp, headers in found.items():
            for header in headers:
                if not _is_countable(header, ends[tp]):
                    continue
                if self.limit.admits(header.newest_ms):
                    times.setdefault(tp, []).append(header.newest_ms)
                elif header.last >= before.get(tp, 0):
                    ahead[tp, header.base] = header.newest_ms
        return {tp: max(each) for tp, each in times.items()}

    # --- aligned reading

    def align(
        self,
        start: QueryPosition,
        starts: Mapping[TopicPartition, int],
        newest: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, int]:
        """Return ends that keep partitions within ``maxSkew`` of the slowest one with a backlog."""
        backlog = [tp for tp, offset in starts.items() if offset < newest[tp]]
        if not backlog:
            return newest
        times = self._drop_times_ahead(start.times)
        unknown = {tp: starts[tp] for tp in backlog if tp not in times}
        current = {tp: times[tp] for tp in backlog if tp in times}
        ends = self._limit_skew({**current, **self._read_next_times(unknown)}, starts, newest)
        if ends != starts:
            return ends
        # No partition may advance: in the slowest one, the next record is much newer than the last
        # read one. So the next records decide, and the oldest of them may be read.
        ahead = self._read_next_times({tp: starts[tp] for tp in backlog})
        current = {tp: max(ms, times.get(tp, ms)) for tp, ms in ahead.items()}
        return self._limit_skew(current, starts, newest)

    def _read_next_times(self, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the newest timestamp in the next batch of records of each partition.

        A partition in which it is too far ahead is left out: it is read without being aligned.
        """
        found = read_batch_headers(self.resolver.client, starts)
        first = {p: next((h for h in found[p] if not h.is_marker), None) for p in found}
        times = {tp: header.newest_ms for tp, header in first.items() if header is not None}
        return self._drop_times_ahead(times)

    def _limit_skew(
        self,
        current: Mapping[TopicPartition, int],
        starts: Mapping[TopicPartition, int],
        newest: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        if not current:
            return dict(newest)
        limit = min(current.values()) + (self.options.max_skew or 0)
        # Numbers below 0 are names such as `LATEST`, and not times.
        found = self.resolver.find_records(dict.fromkeys(current, max(limit + 1, 0)))
        # A record that is too far ahead hides later ones from this look-up. Its partition is not
        # aligned, or it would never be read beyond that record.
        hidden = {
            tp: starts[tp]
            for tp, record in found.items()
            if record.offset >= 0 and not self.limit.admits(record.timestamp)
        }
        # If a partition has only such records left, its time stays the same: others do not wait.
        still = hidden.keys() - self._read_next_times(hidden).keys() if hidden else set()
        if still:
            moving = {tp: ms for tp, ms in current.items() if tp not in still}
            return self._limit_skew(moving, starts, newest)
        ends = {
            tp: min(max(record.offset, starts[tp]), newest[tp])
            for tp, record in found.items()
            if record.offset >= 0 and tp not in hidden
        }
        return {**newest, **ends}
