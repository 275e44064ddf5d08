"""Records that were lost before they were read: how losses are detected, and their consequences.

The driver detects them when it plans a batch, and a task when a fetch fails. Both report them to
`DataLossPolicy`, which alone decides between an error and a warning.

A log can be truncated (KIP-320): a leader that was elected although it had not replicated
everything, or whose disk was lost, drops the end of the log, and new records take the same offsets.
Offsets alone do not show that. Each leader has a number, its *leader epoch*, and knows the end of
each epoch in its log. If the epoch in which a position was looked up ends before that position,
the log was truncated.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from krishiv_spark.errors import DataLossError
from krishiv_spark.kafka.client import KafkaClient, KafkaFailedError
from krishiv_spark.kafka.expected_topics import (
    ExpectedTopic,
    any_topic_deleted,
    fetch_topics_once,
    fetch_topics_with_retry,
)
from krishiv_spark.kafka.list_offsets import fetch_epoch_ends, list_offsets
from krishiv_spark.kafka.topic_partition import EARLIEST, LATEST, FoundOffset, Topic, TopicPartition
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.runtime.retry import Backoff
from krishiv_spark.sources.kafka.offset import PartitionPosition
from krishiv_spark.sources.kafka.ranges import OffsetRange

__all__ = [
    "AvailableRange",
    "DataLossPolicy",
    "Truncation",
    "find_truncations",
    "probe_available_ranges",
]

_log = logging.getLogger(__name__)
_LENIENCE = (
    "set 'failOnDataLoss' to false to continue with the remaining records; records deleted "
    "before they were read are then lost for this query, also those that are deleted while it "
    "is set"
)
_ADVICE = f"restore the topic if it can be; {_LENIENCE}. Or start the query with {NEW_CHECKPOINT}"
_MOST_KEPT, _MOST_SHOWN = 10, 5


@dataclass
class DataLossPolicy:
    """The consequences of lost records, by the option ``failOnDataLoss``.

    Attributes:
        fail: True if a loss is an error.
        offsets: Number of offsets skipped so far, as far as it is known.
        latest: Descriptions of the last losses, for operators.
    """

    fail: bool
    offsets: int = 0
    latest: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_KEPT))

    def report_aged_out(self, tp: TopicPartition, asked: int, oldest: int) -> None:
        """Report that offsets from `asked` up to `oldest` were deleted: by retention or request.

        Raises:
            DataLossError: If losses are errors.
        """
        self._handle(
            f"{tp}: the query is at offset {asked}, but the oldest remaining one is {oldest}",
            oldest - asked,
        )

    def report_added_aged_out(self, tp: TopicPartition, oldest: int) -> None:
        """Report that the first records of a new partition, up to `oldest`, were deleted.

        Raises:
            DataLossError: If losses are errors.
        """
        self._handle(
            f"{tp}: the query has not read the partition yet, but the oldest remaining offset is "
            f"{oldest}: the records before it were deleted",
            oldest,
        )

    def report_named_aged_out(self, tp: TopicPartition, what: str, asked: int, oldest: int) -> None:
        """Report that the start or end (`what`) that the options name was deleted.

        Raises:
            DataLossError: If losses are errors.
        """
        self._handle(
            f"{tp}: the {what} is given as offset {asked}, but the oldest remaining one is "
            f"{oldest}",
            oldest - asked,
            f"set it to that or to 'earliest', or {_LENIENCE}",
        )

    def report_truncated(self, tp: TopicPartition, position: int, truncation: Truncation) -> None:
        """Report that records that were read were truncated: the query goes back to the cut.

        Raises:
            DataLossError: If losses are errors.
        """
        self._handle(
            f"{tp}: the query is at offset {position}, but {truncation.reason}: the cluster has "
            f"lost records, and the records from offset {truncation.offset} on are different ones"
        )

    def report_unavailable(self, tp: TopicPartition, begin: int, end: int, reason: str) -> None:
        """Report that offsets of the current batch, from `begin` up to `end`, no longer exist.

        If `begin` is not before `end`, offsets before `end` exist, but may be other records.

        Raises:
            DataLossError: If losses are errors.
        """
        which = f"offsets {begin} to {end - 1} of the batch no longer exist"
        doubt = f"offsets up to {end - 1} of the batch may be other records than the planned ones"
        self._handle(f"{tp}: {which if begin < end else doubt}: {reason}", end - begin)

    def report_topic_deleted(self, what: str, positions: Mapping[TopicPartition, int]) -> None:
        """Report that a topic or partition was deleted, or recreated under the same name.

        Args:
            what: Description of the event, for the message.
            positions: Positions of the query in the lost partitions.

        Raises:
            DataLossError: If losses are errors.
        """
        shown = ", ".join(f"{n} in {tp}" for tp, n in sorted(positions.items())[:_MOST_SHOWN])
        more = f" and {len(positions) - _MOST_SHOWN} more" if len(positions) > _MOST_SHOWN else ""
        self._handle(f"{what}: the records after the query's position, {shown}{more}, were deleted")

    def report(self) -> dict[str, Any]:
        """Return an entry for the progress of the query; an empty one if nothing was lost."""
        if not self.latest:
            return {}
        return {"offsets_passed_over": self.offsets, "losses": list(self.latest)}

    def _handle(self, what: str, offsets: int = 0, advice: str = _ADVICE) -> None:
        if self.fail:
            raise DataLossError(f"{what}: {advice}")
        self.offsets += offsets
        self.latest.append(what)
        _log.warning(
            "%s: continuing, because 'failOnDataLoss' is false; %d offsets skipped so far",
            what,
            self.offsets,
        )


@dataclass(frozen=True)
class Truncation:
    """A log that was truncated before a position.

    Attributes:
        offset: The end of the remaining records, exclusive; new records may follow.
        reason: The evidence, for the message.
        is_certain: False if a broker that lags behind others could give the same evidence.
    """

    offset: int
    reason: str
    is_certain: bool


def _is_doubtful(position: PartitionPosition, end: FoundOffset) -> bool:
    """Return True if the log may have been truncated before a position.

    Args:
        position: The position of the query.
        end: The high watermark or the last stable offset, from the leader.
    """
    is_another = position.epoch != end.epoch and position.epoch >= 0
    return is_another or end.offset < position.offset


def _compare_with_log(
    position: PartitionPosition, high_watermark: FoundOffset, epoch_end: int = -1
) -> Truncation | None:
    """Compare a position with the log of the current leader.

    Args:
        position: The position of the query.
        high_watermark: The current high watermark. The last stable offset may be before a position
            up to which uncommitted records were read.
        epoch_end: End of the position's leader epoch, and of earlier ones, in the log of the
            current leader; -1 if it was not requested, or the leader does not know it.

    Returns:
        The truncation; None if the log still contains everything before the position.
    """
    if 0 <= high_watermark.epoch < position.epoch:
        # Epochs only increase: the log is another one, or the broker lacks the last election.
        reason = f"its leader epoch has gone back from {position.epoch} to {high_watermark.epoch}"
        return Truncation(min(position.offset, high_watermark.offset), reason, is_certain=False)
    if epoch_end >= 0:
        reason = f"its new leader has only the records before offset {epoch_end} of that"
        return (
            Truncation(epoch_end, reason, is_certain=True) if epoch_end < position.offset else None
        )
    if high_watermark.offset < position.offset:
        return Truncation(
            high_watermark.offset,
            f"the partition ends at {high_watermark.offset}",
            is_certain=False,
        )
    return None


def _find_truncations_once(
    client: KafkaClient,
    positions: Mapping[TopicPartition, PartitionPosition],
    high_watermarks: Mapping[TopicPartition, FoundOffset],
) -> dict[TopicPartition, Truncation]:
    """Return truncated logs by partition, by one request.

    Args:
        client: The client of this process.
        positions: Positions of the query, or ends of a batch of it.
        high_watermarks: They must have been requested before: a fetch in their leader epochs then
            fails after every later election.

    Raises:
        KafkaFailedError: If a partition has no response in time.
    """
    asked = {
        p: position.epoch
        for p, position in positions.items()
        if 0 <= position.epoch < high_watermarks[p].epoch
    }
    # Some services have leader epochs, and do not report their ends.
    has_ends = asked and client.get_features().has_epoch_ends
    ends = fetch_epoch_ends(client, asked) if has_ends else {}
    found = {
        p: _compare_with_log(position, high_watermarks[p], ends.get(p, -1))
        for p, position in positions.items()
    }
    return {tp: truncation for tp, truncation in found.items() if truncation is not None}


def find_truncations(
    client: KafkaClient,
    positions: Mapping[TopicPartition, PartitionPosition],
    ends: Mapping[TopicPartition, FoundOffset],
) -> dict[TopicPartition, Truncation]:
    """Return truncated logs by partition; repeat the request until each one is certain.

    After ``default.api.timeout.ms`` an uncertain one counts too.

    Args:
        client: The client of this process.
        positions: Positions of the query.
        ends: Ends of these partitions: the high watermarks, or the last stable offsets. A partition
            whose end confirms its position is not requested again.

    Raises:
        KafkaFailedError: If a partition has no response in time.
    """
    doubtful = {tp: each for tp, each in positions.items() if _is_doubtful(each, ends[tp])}
    found: dict[TopicPartition, Truncation] = {}
    backoff = Backoff(client.config.api_timeout_s)
    while doubtful:
        high_watermarks = list_offsets(client, dict.fromkeys(doubtful, LATEST), committed=False)
        found = {tp: truncation for tp, truncation in found.items() if tp not in doubtful}
        found |= _find_truncations_once(client, doubtful, high_watermarks)
        doubtful = {
            tp: positions[tp] for tp, truncation in found.items() if not truncation.is_certain
        }
        client.forget_leaders({tp.topic for tp in doubtful})
        if doubtful and not backoff.pause():
            break
    return found


@dataclass(frozen=True)
class AvailableRange:
    """The offsets of a range that still exist, from the next one to read on.

    Attributes:
        begin: First existing offset.
        end: End of the existing offsets, exclusive.
        reason: The reason why that is not the range's own end; empty if it is.
        is_certain: True if `end` counts at once, and not only if it is the same after the time-out.
        whole_topic: True if the same holds for all partitions of the topic.
        epoch: Leader epoch of the leader that has the offsets; -1 if it is unknown.
    """

    begin: int
    end: int
    reason: str = ""
    is_certain: bool = True
    whole_topic: bool = False
    epoch: int = -1


def probe_available_ranges(
    client: KafkaClient, positions: Mapping[OffsetRange, int], *, final: bool
) -> dict[OffsetRange, AvailableRange]:
    """Find the existing offsets of ranges, by metadata, the ends of logs and their leader epochs.

    Args:
        client: The client of this process.
        positions: By range, the next offset to read.
        final: True if an uncertain result will count. Then a missing topic or partition is
            requested again for 2 s.

    Returns:
        The existing offsets by range, without ranges about which nothing is known now, since no
        broker responds or the partition has no leader.

    Raises:
        KafkaFailedError: If a leader does not respond in time, or a topic may not be read.
    """
    expected = _expect_topics(positions)
    topics = None if final else fetch_topics_once(client, expected)
    if final or (topics and any(expected[name].is_other(topics[name]) for name in topics)):
        # A broker that lags behind may return the id of the topic's predecessor.
        topics = fetch_topics_with_retry(client, expected)
    if topics is None:
        return {}
    try:
        return _probe_topics(client, positions, topics)
    except KafkaFailedError:
        if not any_topic_deleted(client, topics):
            raise
        # It was deleted between the two requests: metadata shows that by now.
        return probe_available_ranges(client, positions, final=final)


def _expect_topics(positions: Mapping[OffsetRange, int]) -> dict[str, ExpectedTopic]:
    partitions: dict[str, set[int]] = {}
    for part in positions:
        partitions.setdefault(part.tp.topic, set()).add(part.tp.partition)
    ids = {part.tp.topic: part.topic_id for part in positions}
    return {name: ExpectedTopic(ids[name], frozenset(each)) for name, each in partitions.items()}


def _probe_topics(
    client: KafkaClient, positions: Mapping[OffsetRange, int], topics: Mapping[str, Topic]
) -> dict[OffsetRange, AvailableRange]:
    by_metadata = {
        part: _check_metadata(part, at, topics.get(part.tp.topic)) for part, at in positions.items()
    }
    found = {part: each for part, each in by_metadata.items() if each is not None}
    rest = {part: at for part, at in positions.items() if part not in found}
    return {
        **found,
        **_probe_leaders(client, {p: at for p, at in rest.items() if _is_led(p, topics)}),
    }


def _check_metadata(part: OffsetRange, at: int, topic: Topic | None) -> AvailableRange | None:
    """Return an empty range if metadata shows that the partition no longer exists; else None."""
    name = part.tp.topic
    if topic is None:
        reason = f"topic {name!r} was deleted"
        return AvailableRange(at, at, reason, is_certain=False, whole_topic=True)
    expected = ExpectedTopic(part.topic_id, frozenset({part.tp.partition}))
    if expected.is_other(topic):
        return AvailableRange(at, at, f"topic {name!r} was deleted and recreated", whole_topic=True)
    if not expected.is_confirmed_by(topic):
        reason = f"topic {name!r} has only {len(topic.leaders)} partitions now"
        return AvailableRange(at, at, reason, is_certain=False)
    return None


def _is_led(part: OffsetRange, topics: Mapping[str, Topic]) -> bool:
    return topics[part.tp.topic].leaders.get(part.tp.partition, -1) >= 0


def _probe_leaders(
    client: KafkaClient, positions: Mapping[OffsetRange, int]
) -> dict[OffsetRange, AvailableRange]:
    """Return the existing offsets in the logs of the leaders."""
    if not positions:
        return {}
    partitions = [part.tp for part in positions]
    oldest = list_offsets(client, dict.fromkeys(partitions, EARLIEST))
    high_watermarks = list_offsets(client, dict.fromkeys(partitions, LATEST), committed=False)
    found = _find_truncations_once(
        client,
        {part.tp: PartitionPosition(part.end, part.epoch) for part in positions},
        high_watermarks,
    )
    return {
        part: _clip(part, max(at, oldest[tp].offset), found.get(tp), high_watermarks[tp].epoch)
        for (part, at), tp in zip(positions.items(), partitions, strict=True)
    }


def _clip(
    part: OffsetRange, begin: int, truncation: Truncation | None, epoch: int
) -> AvailableRange:
    begin = min(begin, part.end)
    if truncation is None:
        return AvailableRange(begin, part.end, epoch=epoch)
    end = min(max(begin, truncation.offset), part.end)
    return AvailableRange(begin, end, truncation.reason, truncation.is_certain, epoch=epoch)
