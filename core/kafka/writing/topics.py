"""Topics that are written to."""

from __future__ import annotations

from krishiv_spark.kafka.client import Client
from krishiv_spark.kafka.pauses import Pauses
from krishiv_spark.kafka.places import Topic

__all__ = ["partition_count"]

_CREATION_S = 5.0


def partition_count(client: Client, topic: str, age_s: float) -> int:
    """How many partitions a topic has. A cluster that is set up so makes it at the first look.

    Args:
        client: Of this process.
        topic: Its name.
        age_s: How old the answer may be.

    Raises:
        KafkaFailedError: If there is no such topic, or it may not be seen.
    """
    known = client.topic_of(topic, age_s) or _created(client, topic)
    return len(known.leaders)


def _created(client: Client, topic: str) -> Topic:
    pauses = Pauses(_CREATION_S)
    while True:
        found = client.topics([topic], create=True)
        if topic in found:
            return found[topic]
        if not pauses.pause():
            raise client.failed(
                f"write to topic {topic!r}",
                "it does not exist, and the brokers do not make it (auto.create.topics.enable): "
                "create it",
            )
