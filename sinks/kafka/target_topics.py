"""The topics that the sink writes to: existence, rights, ids, number of partitions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.topic_partition import READ, WRITE, Topic
from krishiv_spark.runtime.retry import Backoff

__all__ = ["PlannedTopic", "count_partitions", "fetch_writable_topic", "get_topic_ids"]

# A broker responds before the topic that it creates has leaders.
_CREATION_S = 5.0

_RIGHTS = {
    WRITE: "the user needs the ACL WRITE on this topic",
    READ: "the user needs the ACL READ on this topic too: with the cluster's transaction.version "
    "below 2, only the topic shows the outcome of a transaction that has timed out",
}


@dataclass(frozen=True)
class PlannedTopic:
    """The topic of the option ``topic`` at the time of planning, for all tasks of an epoch.

    Attributes:
        name: Name in the option ``topic``.
        id: Its id; empty if the cluster has no ids.
        partitions: Number of its partitions.
    """

    name: str
    id: str
    partitions: int

    @classmethod
    def from_topic(cls, topic: Topic) -> PlannedTopic:
        """Return the plan for a topic of the cluster."""
        return cls(topic.name, topic.usable_id, len(topic.leaders))


def count_partitions(client: KafkaClient, topic: str, age_s: float) -> int:
    """Return a topic's number of partitions. Some clusters create a topic at the first request.

    Args:
        client: The client of this process.
        topic: Name in the option or in a row.
        age_s: Maximum age of the cached number.

    Raises:
        KafkaFailedError: If there is no such topic, or it may not be seen.
    """
    cached = client.get_topic(topic, age_s, confirmed=True) or _create(client, topic)
    return len(cached.leaders)


def fetch_writable_topic(client: KafkaClient, topic: str, *, reads: bool) -> Topic:
    """Request a topic's metadata, and check that the sink may write to it. Planner.

    Args:
        client: The client of this process.
        topic: Name in the option ``topic``.
        reads: True if the sink may have to read it.

    Raises:
        KafkaRefusedError: If the user lacks the necessary rights, as far as brokers report them.
        KafkaFailedError: If there is no such topic.
    """
    from kafka.errors import TopicAuthorizationFailedError

    topics = client.fetch_confirmed_topics([topic], operations=True)
    found = topics.get(topic) or _create(client, topic)
    for operation in (WRITE, READ) if reads else (WRITE,):
        if not found.allows(operation):
            refused = TopicAuthorizationFailedError()
            raise client.make_error(f"write to topic {topic!r}", refused, _RIGHTS[operation])
    return found


def get_topic_ids(client: KafkaClient, names: Collection[str]) -> dict[str, str]:
    """Return ids of topics, by name: a recreated topic has another id (KIP-516).

    Args:
        client: The client of this process.
        names: Names of topics. Missing topics, and those of clusters without ids, are left out.
    """
    found = map(client.get_topic, names)
    return {topic.name: number for topic in found if topic and (number := topic.usable_id)}


def _create(client: KafkaClient, topic: str) -> Topic:
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
