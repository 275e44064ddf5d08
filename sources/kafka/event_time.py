"""Event time in partitions, from metadata: how far the watermark has come, and aligned reading.

Kafka's event time is the timestamp of its records, which producers choose. What is decided depends
on offsets and on timestamps in the cluster; the clock of this machine only excludes timestamps that
are too far ahead of it (`EventTimeLimit`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from krishiv_spark.kafka.offset_lookups import list_offsets
from krishiv_spark.kafka.topic_partition import MAX_TIMESTAMP, TopicPartition
from krishiv_spark.offsets.watermark import EventTimeLimit, WatermarkPlanner
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
    """Looks at timestamps in the cluster, for one batch.

    Attributes:
        options: With delay, idle time-out and ``maxSkew``.
        lookup: Looks up offsets.
        watermarks: Plans the watermarks of the query.
        limit: Of timestamps that count; those past it are as if they were not there.
    """

    options: KafkaSourceOptions
    lookup: OffsetLookup
    watermarks: WatermarkPlanner
    limit: EventTimeLimit

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
        times = {tp: ms for tp, ms in self._counted(start.times).items() if tp in ends}
        found, ahead = self._times(stood, moved)
        for tp, ms in found.items():
            # What lay before may be newer: records need not be in the order of their times.
            times[tp] = max(ms, times.get(tp, ms))
        quiet = self._counted(start.quiet)
        known = known_times(times, quiet, ends, newest, self.options.idle_timeout)
        held = "a partition has no record yet" if known.times else None
        slowest = known.slowest()
        watermark = self.watermarks.advance(
            start.watermark,
            self.limit.sort(ahead.values())._replace(newest_ms=slowest),
            self.limit,
            held if slowest is None else None,
        )
        return replace(
            end, watermark=watermark, times=known.times, quiet=known.quiet, idle=known.idle
        )

    def _counted(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the times of an offset without those that a release without a limit let in."""
        return {tp: ms for tp, ms in times.items() if self.limit.admits(ms)}

    def _times(
        self, stood: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], dict[tuple[TopicPartition, int], int]]:
        """The greatest timestamp before each end, or less where metadata does not tell.

        The newest timestamp of a partition (KIP-734) may lie after the end, or be that of a
        marker, which is dated by a broker's clock. Then the last records before the end count.
        It may be that of a record that was aborted or that the query did not read.

        Returns:
            The timestamps by partition; and those that do not count, by the first offset of their
            batch of records.
        """
        ahead: dict[tuple[TopicPartition, int], int] = {}
        asked = dict.fromkeys(ends, MAX_TIMESTAMP)
        found = list_offsets(self.lookup.client, asked, committed=self.options.committed)
        newest = {
            tp: each.offset
            for tp, each in found.items()
            if 0 <= each.offset < ends[tp]
            and (self.limit.admits(each.timestamp) or each.offset >= stood.get(tp, 0))
        }
        times = self._records_at(newest, ends, stood, ahead)
        for stride in _STRIDES:
            # What lies before the batch was counted when it was read.
            left = {p: max(end - stride, stood.get(p, 0), 0) for p, end in ends.items()}
            missing = {p: at for p, at in left.items() if p not in times}
            times |= self._records_at(missing, ends, stood, ahead)
        return times, ahead

    def _records_at(
        self,
        offsets: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        stood: Mapping[TopicPartition, int],
        ahead: dict[tuple[TopicPartition, int], int],
    ) -> dict[TopicPartition, int]:
        """The greatest timestamp of records that lie at some offsets, wholly before the end.

        Those that do not count are added to `ahead`, unless an earlier batch has had them.
        """
        inside = {tp: at for tp, at in offsets.items() if at < ends[tp]}
        found = read_batch_headers(self.lookup.client, inside) if inside else {}
        times: dict[TopicPartition, list[int]] = {}
        for tp, headers in found.items():
            for header in headers:
                if not _counts(header, ends[tp]):
                    continue
                if self.limit.admits(header.newest_ms):
                    times.setdefault(tp, []).append(header.newest_ms)
                elif header.last >= stood.get(tp, 0):
                    ahead[tp, header.base] = header.newest_ms
        return {tp: max(each) for tp, each in times.items()}

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
        times = self._counted(start.times)
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
        """The newest timestamp in the first batch of records that waits in each partition.

        None for a partition in which that is too far ahead: it is read without being aligned.
        """
        found = read_batch_headers(self.lookup.client, begins)
        first = {p: next((h for h in found[p] if not h.is_marker), None) for p in found}
        times = {tp: header.newest_ms for tp, header in first.items() if header is not None}
        return self._counted(times)

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
        past = self.lookup.records_at(dict.fromkeys(marks, max(limit + 1, 0)))
        # A record that is too far ahead hides those after it from this look-up, wherever it lies.
        # Its partition is not aligned, or it would never be read beyond that record.
        hidden = {
            tp: begins[tp]
            for tp, found in past.items()
            if found.offset >= 0 and not self.limit.admits(found.timestamp)
        }
        # If such records are all that waits there, its time stands still: none waits for it.
        still = hidden.keys() - self._ahead(hidden).keys() if hidden else set()
        if still:
            moving = {tp: ms for tp, ms in marks.items() if tp not in still}
            return self._within(moving, begins, newest)
        ends = {
            tp: min(max(found.offset, begins[tp]), newest[tp])
            for tp, found in past.items()
            if found.offset >= 0 and tp not in hidden
        }
        return {**newest, **ends}
