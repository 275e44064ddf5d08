"""Topics that are written to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from krishiv_spark.kafka.client import Client
from krishiv_spark.kafka.fetches import usable_id
from krishiv_spark.kafka.topic_partition import READ, WRITE, Topic
from krishiv_spark.retry import Backoff

__all__ = ["PlannedTopic", "partition_count", "topic_ids", "writable_topic"]

# A broker answers before the topic it makes has leaders.
_CREATION_S = 5.0


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
        return cls(topic.name, usable_id(topic), len(topic.leaders))


_RIGHTS = {
    WRITE: "the user needs the ACL WRITE on this topic",
    READ: "the user needs the ACL READ on this topic too: by the cluster's rules of transactions "
    "(transaction.version below 2), how one ended that has timed out is told by the topic alone",
}


def partition_count(client: Client, topic: str, age_s: float) -> int:
    """How many partitions a topic has. A cluster that is set up so makes it at the first look.

    Args:
        client: Of this process.
        topic: As the option or a row names it.
        age_s: How old the answer may be.

    Raises:
        KafkaFailedError: If there is no such topic, or it may not be seen.
    """
    known = client.topic_of(topic, age_s, confirmed=True) or _created(client, topic)
    return len(known.leaders)


def writable_topic(client: Client, topic: str, *, reads: bool) -> Topic:
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

    found = client.confirmed_topics([topic], operations=True).get(topic) or _created(client, topic)
    for operation in (WRITE, READ) if reads else (WRITE,):
        if not found.allows(operation):
            refused = TopicAuthorizationFailedError()
            raise client.failed(f"write to topic {topic!r}", refused, _RIGHTS[operation])
    return found


def topic_ids(client: Client, names: Collection[str]) -> dict[str, str]:
    """Ids of topics, by name: one that is made anew under an old name has another (KIP-516).

    Args:
        client: Of this process.
        names: Which. Those that do not exist are left out, and those of clusters without such ids.
    """
    found = map(client.topic_of, names)
    return {topic.name: number for topic in found if topic and (number := usable_id(topic))}


def _created(client: Client, topic: str) -> Topic:
    backoff = Backoff(_CREATION_S)
    while True:
        found = client.confirmed_topics([topic], create=True)
        if topic in found:
            return found[topic]
        if not backoff.pause():
            raise client.failed(
                f"write to topic {topic!r}",
                "it does not exist, and the brokers do not make it (auto.create.topics.enable): "
                "create it",
            )
