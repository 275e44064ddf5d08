"""Topics that are written to."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.expected_topics import ExpectedTopic
from krishiv_spark.kafka.list_offsets import RepeatedLookup
from krishiv_spark.kafka.partition_table import PartitionTable
from krishiv_spark.kafka.topic_partition import LATEST, READ, WRITE, Topic, TopicPartition
from krishiv_spark.runtime.retry import Backoff

__all__ = ["PlannedTopic", "partition_count", "reach_below", "topic_ids", "writable_topic"]

# A broker answers before the topic it makes has leaders.
_CREATION_S = 5.0

_LOOKS, _PAUSE_S, _WITHIN_S = 10, 0.2, 5.0
"""A leader that was just elected may report a lower high watermark for a moment."""


@dataclass(frozen=True)
class PlannedTopic:
    """The topic of the option ``topic``, as the planner saw it, for all tasks of an epoch.

    Attributes:
        name: As the option ``topic`` has it.
        id: Its id; empty where the cluster has no ids.
        partitions: How many it has.
    """

    name: str
    id: str
    partitions: int

    @classmethod
    def of(cls, topic: Topic) -> PlannedTopic:
        """From what the cluster says."""
        return cls(topic.name, topic.usable_id, len(topic.leaders))


_RIGHTS = {
    WRITE: "the user needs the ACL WRITE on this topic",
    READ: "the user needs the ACL READ on this topic too: with the cluster's transaction.version "
    "below 2, only the topic shows the outcome of a transaction that has timed out",
}


def partition_count(client: KafkaClient, topic: str, age_s: float) -> int:
    """How many partitions a topic has. A cluster that is set up so makes it at the first look.

    Args:
        client: Of this process.
        topic: As the option or a row names it.
        age_s: How old the answer may be.

    Raises:
        KafkaFailedError: If there is no such topic, or it may not be seen.
    """
    known = client.get_topic(topic, age_s, confirmed=True) or _created(client, topic)
    return len(known.leaders)


def writable_topic(client: KafkaClient, topic: str, *, reads: bool) -> Topic:
    """What a cluster says now of a topic that is to be written to. Planner.

    Args:
        client: Of this process.
        topic: As the option ``topic`` names it.
        reads: Whether the sink may have to read it.

    Raises:
        KafkaRefusedError: If the user has not the rights that it takes, as far as brokers say.
        KafkaFailedError: If there is no such topic.
    """
    from kafka.errors import TopicAuthorizationFailedError

    found = client.fetch_confirmed_topics([topic], operations=True).get(topic) or _created(
        client, topic
    )
    for operation in (WRITE, READ) if reads else (WRITE,):
        if not found.allows(operation):
            refused = TopicAuthorizationFailedError()
            raise client.make_error(f"write to topic {topic!r}", refused, _RIGHTS[operation])
    return found


def topic_ids(client: KafkaClient, names: Collection[str]) -> dict[str, str]:
    """Ids of topics, by name: one that is made anew under an old name has another (KIP-516).

    Args:
        client: Of this process.
        names: Which. Those that do not exist are left out, and those of clusters without such ids.
    """
    found = map(client.get_topic, names)
    return {topic.name: number for topic in found if topic and (number := topic.usable_id)}


def _created(client: KafkaClient, topic: str) -> Topic:
    backoff = Backoff(_CREATION_S)
    while True:
        found = client.fetch_confirmed_topics([topic], create=True)
        if topic in found:
            return found[topic]
        if not backoff.pause():
            raise client.make_error(
                f"write to topic {topic!r}",
                "it does not exist, and the brokers do not create it "
                "(auto.create.topics.enable): create it",
            )


def reach_below(
    client: KafkaClient, offsets: Mapping[TopicPartition, int], ids: Mapping[str, str]
) -> set[TopicPartition]:
    """Return the partitions whose end offset is not beyond an offset, after two seconds at most.

    Args:
        client: Of this process.
        offsets: Of acknowledged records, by partition.
        ids: Of the topics when the records were written. A topic without an id, or with another one
            by now, is not compared: it was deleted on purpose.

    Raises:
        KafkaFailedError: If the cluster does not answer.
    """
    asked = _still_the_same(client, offsets, ids)
    for look in range(_LOOKS):
        if not asked:
            break
        if look:
            time.sleep(_PAUSE_S)
            client.forget_leaders({tp.topic for tp in asked})
        rows = PartitionTable(asked)
        found, is_known = RepeatedLookup(LATEST, committed=False).fetch_within(
            client, rows, _WITHIN_S
        )
        ends = zip(rows.partitions, found.offsets, is_known, strict=True)
        asked = {tp for tp, end, known in ends if known and end <= offsets[tp]}
    return asked


def _still_the_same(
    client: KafkaClient, offsets: Mapping[TopicPartition, int], ids: Mapping[str, str]
) -> set[TopicPartition]:
    names = {tp.topic for tp in offsets if ids.get(tp.topic)}
    topics = client.fetch_topics(names) if names else {}
    same = {
        name
        for name, topic in topics.items()
        if ExpectedTopic(ids[name], frozenset()).is_same(topic)
    }
    return {tp for tp in offsets if tp.topic in same and tp.partition in topics[tp.topic].leaders}
