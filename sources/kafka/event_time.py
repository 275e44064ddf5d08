"""Event time in partitions, from metadata: how far the watermark has come, and aligned reading.

Kafka's event time is the timestamp of its records. What is decided depends on offsets and on
timestamps in the cluster only, never on a clock of this machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from krishiv_spark.kafka.offset_lookups import list_offsets
from krishiv_spark.kafka.topic_partition import MAX_TIMESTAMP, TopicPartition
from krishiv_spark.offsets.watermark import advance
from krishiv_spark.sources.kafka.batch_headers import BatchHeader, read_batch_headers
from krishiv_spark.sources.kafka.limits import waiting
from krishiv_spark.sources.kafka.offset_lookup import OffsetLookup
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.position import QueryPosition

__all__ = ["EventTime", "Known", "known_times"]


_STRIDES = (1, 16, 256, 4096)
"""How far before the end the last records are looked for, after which only markers lie."""


@dataclass(frozen=True)
class Known:
    """What is known of event time at a position.

    Attributes:
        times: By partition, the greatest timestamp before the position.
        quiet: Partitions that had no record so far, with the newest timestamp in the others when
            they were first seen.
        idle: Partitions that are not waited for.
    """

    times: Mapping[TopicPartition, int]
    quiet: Mapping[TopicPartition, int]
    idle: Collection[TopicPartition]

    def slowest(self) -> int | None:
        """The least of the times that are waited for; None if one of them is not known yet."""
        if not self.times or any(tp not in self.idle for tp in self.quiet):
            return None
        return min(self.times[tp] for tp in self.times if tp not in self.idle)


def known_times(
    times: Mapping[TopicPartition, int],
    quiet_before: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    newest: Mapping[TopicPartition, int],
    idle_timeout_ms: int,
) -> Known:
    """Decide which partitions are idle: all is read, and much newer records lie in others.

    Args:
        times: By partition, the greatest timestamp before `ends`.
        quiet_before: `Known.quiet` at the position before.
        ends: By partition, where the batch ends, exclusive.
        newest: Where each partition ends in the cluster.
        idle_timeout_ms: A partition whose newest record is older by more than this is idle.
    """
    top = max(times.values(), default=None)
    if top is None:
        return Known({}, {}, ())
    quiet = {p: quiet_before.get(p, top) for p in ends if p not in times}
    idle = {
        tp
        for tp, time in (*times.items(), *quiet.items())
        if ends[tp] == newest[tp] and top - time > idle_timeout_ms
    }
    return Known(times, quiet, idle)


def _counts(header: BatchHeader, end: int) -> bool:
    return not header.is_marker and header.last < end and header.newest_ms >= 0


@dataclass(frozen=True)
class EventTime:
    """Looks at timestamps in the cluster.

    Attributes:
        options: With delay, idle time-out and ``maxSkew``.
        lookup: Looks up offsets.
    """

    options: KafkaSourceOptions
    lookup: OffsetLookup

    def mark(
        self, start: QueryPosition, end: QueryPosition, newest: Mapping[TopicPartition, int]
    ) -> QueryPosition:
        """The end of a batch with its watermark.

        Args:
            start: Begin of the batch.
            end: Its end, without any event time.
            newest: Where each partition ends in the cluster.
        """
        stood, ends = start.offsets, end.offsets
        moved = {tp: offset for tp, offset in ends.items() if stood.get(tp) != offset}
        times = {tp: ms for tp, ms in start.times.items() if tp in ends}
        for tp, ms in self._times(stood, moved).items():
            # What lay before may be newer: records need not be in the order of their times.
            times[tp] = max(ms, times.get(tp, ms))
        known = known_times(times, start.quiet, ends, newest, self.options.idle_timeout)
        held = "a partition has no record yet" if known.times else None
        slowest = known.slowest()
        watermark = advance(
            start.watermark,
            slowest,
            self.options.watermark_delay,
            held if slowest is None else None,
        )
        return replace(
            end, watermark=watermark, times=known.times, quiet=known.quiet, idle=known.idle
        )

    def _times(
        self, stood: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The greatest timestamp before each end, or less where metadata does not tell.

        The newest timestamp of a partition (KIP-734) may lie after the end, or be that of a
        marker, which is dated by a broker's clock. Then the last records before the end count.
        It may be that of a record that was aborted or that the query did not read.
        """
        asked = dict.fromkeys(ends, MAX_TIMESTAMP)
        found = list_offsets(self.lookup.client, asked, committed=self.options.committed)
        newest = {p: each.offset for p, each in found.items() if 0 <= each.offset < ends[p]}
        times = self._records_at(newest, ends)
        for stride in _STRIDES:
            # What lies before the batch was counted when it was read.
            left = {p: max(end - stride, stood.get(p, 0), 0) for p, end in ends.items()}
            times |= self._records_at({p: at for p, at in left.items() if p not in times}, ends)
        return times

    def _records_at(
        self, offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The greatest timestamp of records that lie at some offsets, wholly before the end."""
        inside = {tp: at for tp, at in offsets.items() if at < ends[tp]}
        found = read_batch_headers(self.lookup.client, inside) if inside else {}
        times = {p: [h.newest_ms for h in found[p] if _counts(h, ends[p])] for p in found}
        return {tp: max(each) for tp, each in times.items() if each}

    # --- aligned reading

    def align(
        self,
        start: QueryPosition,
        begins: Mapping[TopicPartition, int],
        newest: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, int]:
        """Ends that keep every partition within ``maxSkew`` of the slowest that has a backlog."""
        waits = waiting(begins, newest)
        if not waits:
            return newest
        times = start.times
        unknown = {tp: begins[tp] for tp in waits if tp not in times}
        marks = {tp: times[tp] for tp in waits if tp in times}
        ends = self._within({**marks, **self._ahead(unknown)}, begins, newest)
        if ends != begins:
            return ends
        # Nobody may move: what waits in the slowest is far from what was read of it. So what waits
        # in each decides, and the least of it may be read.
        ahead = self._ahead({tp: begins[tp] for tp in waits})
        marks = {tp: max(ms, times.get(tp, ms)) for tp, ms in ahead.items()}
        return self._within(marks, begins, newest)

    def _ahead(self, begins: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The newest timestamp in the first batch of records that waits in each partition."""
        found = read_batch_headers(self.lookup.client, begins)
        first = {p: next((h for h in found[p] if not h.is_marker), None) for p in found}
        return {tp: header.newest_ms for tp, header in first.items() if header is not None}

    def _within(
        self,
        marks: Mapping[TopicPartition, int],
        begins: Mapping[TopicPartition, int],
        newest: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        if not marks:
            return dict(newest)
        limit = min(marks.values()) + (self.options.max_skew or 0)
        # Below 0 are words, as `LATEST`, and no times.
        past = self.lookup.at_times(dict.fromkeys(marks, max(limit + 1, 0)))
        ends = {p: min(max(n, begins[p]), newest[p]) for p, n in past.items() if n >= 0}
        return {**newest, **ends}
