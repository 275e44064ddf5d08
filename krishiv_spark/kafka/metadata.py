"""Requests for topics (Metadata) and for the features of a cluster (ApiVersions)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from krishiv_spark.kafka.topic_partition import Topic

__all__ = ["MetadataQuery", "features_request"]

_UNKNOWN_TOPIC, _NO_LEADER_YET = 3, 5


@dataclass(frozen=True)
class MetadataQuery:
    """A query for topics, which any broker answers.

    Attributes:
        names: Names of topics; None for all.
        create: True if the cluster may create missing ones.
        operations: True to request the operations that the user may perform (KIP-430).
    """

    names: tuple[str, ...] | None
    create: bool = False
    operations: bool = False

    def request(self) -> Any:
        """Return the message."""
        from kafka.protocol.metadata import MetadataRequest

        wanted = MetadataRequest.MetadataRequestTopic
        topics = None if self.names is None else [wanted(name=name) for name in self.names]
        return MetadataRequest(
            topics=topics,
            allow_auto_topic_creation=self.create,
            include_topic_authorized_operations=self.operations,
        )

    def code_of(self, response: Any) -> int:
        """Return an error code if the query must be repeated, since a topic is being created.

        That is also true of a topic without partitions: each topic of Kafka has at least one.
        """
        named = response.topics if self.names else ()
        return _NO_LEADER_YET if any(map(_is_incomplete, named)) else 0

    def topics(self, response: Any) -> dict[str, Topic]:
        """Return the existing topics of a response.

        Raises:
            KafkaError: If the user may not describe a topic of the query.
        """
        from kafka.errors import for_code

        found: dict[str, Topic] = {}
        for topic in response.topics:
            is_listed = self.names is None
            if is_listed and (topic.is_internal or _is_incomplete(topic)):
                continue
            if not topic.error_code:
                found[topic.name] = _topic(topic, operations=self.operations)
            elif topic.error_code != _UNKNOWN_TOPIC and not is_listed:
                raise for_code(topic.error_code)(topic.name)
        return found


def features_request() -> Any:
    """Return the message that requests the features of the cluster, from any broker."""
    from kafka.protocol.metadata.api_versions import ApiVersionsRequest

    return ApiVersionsRequest(client_software_name="krishiv-spark", client_software_version="1")


def _is_incomplete(topic: Any) -> bool:
    """Return True if a broker does not know the partitions of a topic yet."""
    return topic.error_code == _NO_LEADER_YET or not (topic.error_code or topic.partitions)


def _topic(found: Any, *, operations: bool) -> Topic:
    leaders = {each.partition_index: each.leader_id for each in found.partitions}
    # Brokers before Kafka 2.3 do not list them.
    listed = found.authorized_operations if operations else None
    allowed = None if listed is None else frozenset(listed)
    return Topic(found.name, str(found.topic_id), dict(sorted(leaders.items())), allowed)
