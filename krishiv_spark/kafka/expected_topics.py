"""Topics that must exist, and the retries after a response that lacks them.

A broker that has just started, or that lags behind, may respond without an error and know only a
part of the metadata, or the deleted predecessor of a topic. So one response alone never proves that
a topic or partition was deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.metadata import MetadataQuery
from krishiv_spark.kafka.topic_partition import Topic
from krishiv_spark.kafka.transport import LEAST_LOADED

__all__ = [
    "Expected",
    "ExpectedTopic",
    "any_topic_deleted",
    "are_confirmed",
    "fetch_topics_once",
    "fetch_topics_with_retry",
    "retry_until_confirmed",
]

_Found = TypeVar("_Found", bound=Mapping[str, Topic] | None)

_RETRIES, _PAUSE_S = 10, 0.2
"""Number of further requests, and the pause before each, when metadata lack an expected topic."""


class ExpectedTopic(NamedTuple):
    """A topic as an offset or an earlier response describes it.

    Attributes:
        id: Its id; empty if it is unknown.
        partitions: Its partitions.
    """

    id: str
    partitions: frozenset[int]

    @classmethod
    def from_topic(cls, topic: Topic) -> ExpectedTopic:
        """Return the topic of a response."""
        return cls(topic.usable_id, frozenset(topic.leaders))

    def is_same(self, found: Topic) -> bool:
        """Return True if a topic certainly is this one, by its id."""
        return self.id != "" and found.usable_id == self.id

    def is_other(self, found: Topic) -> bool:
        """Return True if a topic has another id: this one was deleted."""
        return "" not in (self.id, found.usable_id) and not self.is_same(found)

    def is_confirmed_by(self, found: Topic | None) -> bool:
        """Return True if a response proves that this topic still exists with all partitions.

        The same id is a proof, whichever partitions the response contains: Kafka never removes
        one. Without ids (before Kafka 2.8), the response must contain all partitions.
        """
        if found is None or self.is_other(found):
            return False
        return self.is_same(found) or self.partitions <= found.leaders.keys()


Expected: TypeAlias = Mapping[str, ExpectedTopic]
"""Expected topics by name."""


def are_confirmed(expected: Expected, found: Mapping[str, Topic]) -> bool:
    """Return True if a response confirms all of these topics."""
    return all(each.is_confirmed_by(found.get(name)) for name, each in expected.items())


def retry_until_confirmed(request: Callable[[], _Found], expected: Expected) -> _Found:
    """Request metadata until a response confirms all of these topics, for at most two seconds.

    Args:
        request: A function that requests them; it returns None if there is no response.
        expected: Topics that must exist.

    Returns:
        The last response.
    """
    found = request()
    for _ in range(_RETRIES):
        if found is None or are_confirmed(expected, found):
            break
        time.sleep(_PAUSE_S)
        found = request()
    return found


def fetch_topics_with_retry(client: KafkaClient, expected: Expected) -> dict[str, Topic] | None:
    """Request topics, and repeat the request while expected ones are missing.

    Returns:
        The existing topics by name; None if no broker responds.
    """
    return retry_until_confirmed(lambda: fetch_topics_once(client, expected), expected)


def fetch_topics_once(client: KafkaClient, names: Collection[str]) -> dict[str, Topic] | None:
    """Request topics of one broker, without a retry.

    Returns:
        The existing topics by name; None if the broker does not respond.
    """
    from kafka.errors import KafkaError

    query = MetadataQuery(tuple(sorted(names)))
    (answer,) = client.ask([(LEAST_LOADED, query.request())])
    try:
        return None if isinstance(answer, KafkaError) else query.topics(answer)
    except KafkaError:
        return None


def any_topic_deleted(client: KafkaClient, before: Mapping[str, Topic]) -> bool:
    """Return True if a topic was deleted or recreated, or has fewer partitions."""
    expected = {name: ExpectedTopic.from_topic(topic) for name, topic in before.items()}
    now = fetch_topics_with_retry(client, expected)
    return now is not None and not are_confirmed(expected, now)
