"""Requests about offsets, which the leaders of partitions answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.requests import Routing, send_all
from krishiv_spark.kafka.topic_partition import MAX_TIMESTAMP, FoundOffset, TopicPartition
from krishiv_spark.kafka.transport import Node

__all__ = ["ListOffsets", "epoch_ends"]

_CONSUMER = -1
"""Instead of the id of a replica."""


def epoch_ends(
    client: KafkaClient, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Where leader epochs end in the logs of today's leaders (OffsetForLeaderEpoch, KIP-320).

    Args:
        client: Of this process.
        epochs: By partition, the leader epoch that is asked about.

    Returns:
        By partition an offset, exclusive: before it lie the records of that leader epoch and of
        those before it. -1 where the leader does not know.

    Raises:
        KafkaFailedError: If a partition may not be read, or has no answer in time.
    """
    kind = _EpochEnds(epochs)
    return send_all(client, kind, epochs, format_item=lambda tp: f" of {tp}")


class _OfLeaders:
    """What is the same for all of them: who answers."""

    def nodes_for(
        self, client: KafkaClient, items: Collection[TopicPartition], within_s: float
    ) -> Routing[TopicPartition]:
        """See `BatchedRequest`."""
        del within_s
        return list(_by_leader(client, items).items()), "it has no leader"

    def forget(self, client: KafkaClient, items: Collection[TopicPartition]) -> None:
        """See `BatchedRequest`."""
        client.forget_leaders({tp.topic for tp in items})


@dataclass(frozen=True)
class ListOffsets(_OfLeaders):
    """Offsets of partitions by time, from their leaders.

    `krishiv_spark.kafka.offset_lookups` asks for many at once, and in this way for the rest.

    Attributes:
        asked: By partition, a time in ms, or `EARLIEST`, `LATEST` or `MAX_TIMESTAMP`.
        committed: Whether the end is the last stable offset.
    """

    asked: Mapping[TopicPartition, int]
    committed: bool
    what: str = "look up offsets"

    def request(self, items: list[TopicPartition]) -> Any:
        """See `BatchedRequest`."""
        from kafka.protocol.consumer import ListOffsetsRequest

        topic = ListOffsetsRequest.ListOffsetsTopic
        partition = topic.ListOffsetsPartition
        grouped = _by_topic(
            (tp, partition(partition_index=tp.partition, timestamp=self.asked[tp])) for tp in items
        )
        newest = MAX_TIMESTAMP in self.asked.values()
        return ListOffsetsRequest(
            isolation_level=int(self.committed),
            topics=[topic(name=name, partitions=parts) for name, parts in grouped.items()],
            # 2 knows isolation levels, 7 the newest timestamp (KIP-734).
            min_version=7 if newest else 2,
        )

    def answers(
        self, response: Any, items: list[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, int, FoundOffset]]:
        """See `BatchedRequest`."""
        del items
        for topic in response.topics:
            for each in topic.partitions:
                found = FoundOffset(each.offset, each.timestamp, each.leader_epoch)
                yield TopicPartition(topic.name, each.partition_index), each.error_code, found


@dataclass(frozen=True)
class _EpochEnds(_OfLeaders):
    """OffsetForLeaderEpoch.

    Attributes:
        epochs: By partition, the leader epoch that is asked about.
    """

    epochs: Mapping[TopicPartition, int]
    what: str = "look up the ends of leader epochs"

    def request(self, items: list[TopicPartition]) -> Any:
        """See `BatchedRequest`."""
        from kafka.protocol.consumer import OffsetForLeaderEpochRequest

        topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        partition = topic.OffsetForLeaderPartition
        grouped = _by_topic(
            (tp, partition(partition=tp.partition, leader_epoch=self.epochs[tp])) for tp in items
        )
        topics = [topic(topic=name, partitions=parts) for name, parts in grouped.items()]
        return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics)

    def answers(
        self, response: Any, items: list[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, int, int]]:
        """See `BatchedRequest`."""
        del items
        for topic in response.topics:
            for each in topic.partitions:
                yield TopicPartition(topic.topic, each.partition), each.error_code, each.end_offset


def _by_leader(
    client: KafkaClient, partitions: Collection[TopicPartition]
) -> dict[Node, list[TopicPartition]]:
    """Partitions by the node that leads them, without those that nobody leads."""
    if unknown := {tp.topic for tp in partitions} - client.list_cached_topics():
        client.fetch_topics(unknown)
    found: dict[Node, list[TopicPartition]] = {}
    for tp in partitions:
        node = client.get_leader(tp)
        if node is not None:
            found.setdefault(node, []).append(tp)
    return found


def _by_topic(wanted: Iterable[tuple[TopicPartition, Any]]) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for tp, partition in wanted:
        grouped.setdefault(tp.topic, []).append(partition)
    return grouped
