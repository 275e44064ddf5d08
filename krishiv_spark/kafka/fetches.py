"""Fetch messages: what is asked of a node, and what it answers for each partition."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from krishiv_spark.kafka.topic_partition import Topic, TopicPartition

__all__ = ["PartitionData", "Wanted", "answers", "request", "usable_id"]

_NO_ID = str(UUID(int=0))
# The default of Java's ``fetch.max.wait.ms``.
_WAIT_MS = 500
_FIRST_WITH_IDS = 13
_FIRST_WITH_ISOLATION = 4


@dataclass(frozen=True)
class Wanted:
    """Records of one partition.

    Attributes:
        tp: Where they are; the node that is asked leads it.
        topic_id: Id of its topic; empty if the cluster has none.
        offset: First offset.
        most_bytes: About the most bytes; a batch of records comes whole.
        epoch: The leader epoch in which the offset is known to be that of the log: a leader of
            another one refuses (KIP-320). -1 for whatever the leader has.
    """

    tp: TopicPartition
    topic_id: str
    offset: int
    most_bytes: int
    epoch: int = -1


@dataclass(frozen=True)
class PartitionData:
    """What a node has of one partition.

    Attributes:
        tp: Of which partition all of this is.
        code: Number of the error, 0 for none.
        records: Batches of records, the last one perhaps cut off.
        aborted: Producer id and first offset of aborted transactions among them.
        last_stable_offset: The last stable offset.
        high_watermark: The high watermark.
        oldest: The first offset that the partition still has; -1 if it is not said.
    """

    tp: TopicPartition
    code: int
    records: Any
    aborted: tuple[tuple[int, int], ...]
    last_stable_offset: int
    high_watermark: int
    oldest: int


def usable_id(topic: Topic) -> str:
    """The id of a topic; empty if the cluster has none (before Kafka 2.8)."""
    # "None" is what a missing id is as a text.
    return "" if topic.id in {"", "None", _NO_ID} else topic.id


def request(wanted: Collection[Wanted], *, committed: bool, most_bytes: int) -> Any:
    """The message that asks a node for records.

    Topics are asked for by their ids where they have one (KIP-516), so that a topic that was made
    anew under an old name is never taken for the old one.
    """
    from kafka.protocol.consumer import FetchRequest

    topic = FetchRequest.FetchTopic
    grouped: dict[tuple[str, str], list[Any]] = {}
    for each in wanted:
        grouped.setdefault((each.tp.topic, each.topic_id), []).append(_partition(each))
    topics = [
        topic(topic=name, topic_id=UUID(number or _NO_ID), partitions=parts)
        for (name, number), parts in grouped.items()
    ]
    has_ids = all(each.topic_id for each in wanted)
    return FetchRequest(
        max_wait_ms=_WAIT_MS,
        min_bytes=1,
        max_bytes=most_bytes,
        isolation_level=int(committed),
        session_id=0,
        session_epoch=-1,  # a full fetch outside any session (KIP-227)
        topics=topics,
        min_version=_FIRST_WITH_ISOLATION,
        max_version=None if has_ids else _FIRST_WITH_IDS - 1,
    )


def _partition(wanted: Wanted) -> Any:
    from kafka.protocol.consumer import FetchRequest

    return FetchRequest.FetchTopic.FetchPartition(
        partition=wanted.tp.partition,
        current_leader_epoch=wanted.epoch,
        fetch_offset=wanted.offset,
        # These two are for followers only.
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=wanted.most_bytes,
    )


def answers(response: Any, names: Mapping[str, str]) -> Iterator[PartitionData]:
    """What a response says of each partition.

    Args:
        response: Of a `request`, whatever version its node speaks.
        names: Names of topics by their ids, for responses that have only these.
    """
    for topic in response.responses:
        by_id = response.API_VERSION >= _FIRST_WITH_IDS
        name = names[str(topic.topic_id)] if by_id else topic.topic
        for each in topic.partitions:
            aborted = each.aborted_transactions or ()
            yield PartitionData(
                tp=TopicPartition(name, each.partition_index),
                code=each.error_code,
                records=each.records or b"",
                aborted=tuple((one.producer_id, one.first_offset) for one in aborted),
                last_stable_offset=each.last_stable_offset,
                high_watermark=each.high_watermark,
                oldest=each.log_start_offset,
            )
