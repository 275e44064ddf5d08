"""What brokers say of topics (Metadata) and of what they agreed on (ApiVersions, KIP-584)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from krishiv_spark.kafka.topic_partition import Topic

__all__ = ["MetadataQuery", "features_of", "features_request"]

_UNKNOWN_TOPIC, _NO_LEADER_YET = 3, 5


@dataclass(frozen=True)
class MetadataQuery:
    """Which topics any broker is asked about.

    Attributes:
        names: Names of topics; None for all.
        create: Whether the cluster may make those that it does not have.
        operations: Whether it says what the user may do with them (KIP-430).
    """

    names: tuple[str, ...] | None
    create: bool = False
    operations: bool = False

    def request(self) -> Any:
        """The message."""
        from kafka.protocol.metadata import MetadataRequest

        wanted = MetadataRequest.MetadataRequestTopic
        topics = None if self.names is None else [wanted(name=name) for name in self.names]
        return MetadataRequest(
            topics=topics,
            allow_auto_topic_creation=self.create,
            include_topic_authorized_operations=self.operations,
        )

    def code_of(self, response: Any) -> int:
        """The error after which the same is asked again: a topic is just being made.

        So is one without partitions: every topic of Kafka's has at least one.
        """
        named = response.topics if self.names else ()
        return _NO_LEADER_YET if any(map(_is_incomplete, named)) else 0

    def topics(self, response: Any) -> dict[str, Topic]:
        """The topics of a response that exist.

        Raises:
            KafkaError: If one that was asked for by name may not be seen.
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
    """The message that asks any broker for the features of the cluster."""
    from kafka.protocol.metadata.api_versions import ApiVersionsRequest

    # Features are named from version 3 on.
    return ApiVersionsRequest(
        client_software_name="krishiv-spark", client_software_version="1", min_version=3
    )


def features_of(response: Any) -> dict[str, int]:
    """The level of each feature."""
    found = getattr(response, "finalized_features", None) or []
    return {feature.name: int(feature.max_version_level) for feature in found}


def _is_incomplete(topic: Any) -> bool:
    """Return True if a broker does not know the partitions of a topic yet."""
    return topic.error_code == _NO_LEADER_YET or not (topic.error_code or topic.partitions)


def _topic(found: Any, *, operations: bool) -> Topic:
    leaders = {each.partition_index: each.leader_id for each in found.partitions}
    allowed = frozenset(found.authorized_operations) if operations else None
    return Topic(found.name, str(found.topic_id), dict(sorted(leaders.items())), allowed)
