"""Requests about many items at once, for `krishiv_spark.kafka.client.Client.exchange`."""

# pyright: reportAttributeAccessIssue=false
# It carries stubs of kafka-python 2.

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from krishiv_spark.kafka.places import Topic

if TYPE_CHECKING:
    from krishiv_spark.kafka.client import Client

__all__ = [
    "ANY",
    "Exchange",
    "Features",
    "K",
    "Metadata",
    "Node",
    "Parts",
    "Routed",
    "V",
]

Node: TypeAlias = int | str
"""A broker: its id, or the name of one more connection to it."""

ANY = -1
"""Whichever broker has least to do."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
Parts: TypeAlias = Sequence[tuple[Node, list[K]]]
"""Items, by the node that is asked about them in one message."""

Routed: TypeAlias = tuple[Parts[K], Exception | str | None]
"""Where items are asked for, and why some are left out, if there are such."""

_UNKNOWN_TOPIC, _NO_LEADER_YET = 3, 5


class Exchange(Protocol[K, V_co]):
    """A kind of request about many items, each of which some node answers for."""

    @property
    def what(self) -> str:
        """What is tried, for messages."""
        ...

    def route(self, client: Client, items: Collection[K], within_s: float) -> Routed[K]:
        """Which node is asked about which items; those that are left out are tried again.

        Args:
            client: Of this process.
            items: What still has no answer.
            within_s: How long it may take to find out.
        """
        ...

    def request(self, items: list[K]) -> Any:
        """The message about one part."""
        ...

    def answers(self, response: Any, items: list[K]) -> Iterator[tuple[K, int, V_co]]:
        """For each item the number of an error, 0 for none, and its value."""
        ...

    def forget(self, client: Client, items: Collection[K]) -> None:
        """Where these items were asked for may be stale."""
        ...


@dataclass(frozen=True)
class Metadata:
    """What topics there are, from any broker.

    Attributes:
        names: Which; None for all.
        create: Whether the cluster may make those that it does not have.
        operations: Whether it says what the user may do with them (KIP-430).
    """

    names: tuple[str, ...] | None
    create: bool = False
    operations: bool = False
    what: str = "read the metadata of topics"

    def route(self, client: Client, items: Collection[str], within_s: float) -> Routed[str]:
        """See `Exchange`."""
        del client, within_s
        return [(ANY, list(items))], None

    def request(self, items: list[str]) -> Any:
        """See `Exchange`."""
        from kafka.protocol.metadata import MetadataRequest

        del items
        wanted = MetadataRequest.MetadataRequestTopic
        topics = None if self.names is None else [wanted(name=name) for name in self.names]
        return MetadataRequest(
            topics=topics,
            allow_auto_topic_creation=self.create,
            include_topic_authorized_operations=self.operations,
        )

    def answers(self, response: Any, items: list[str]) -> Iterator[tuple[str, int, Any]]:
        """See `Exchange`. A topic that is just being made is waited for."""
        codes = {topic.error_code for topic in response.topics} if self.names else set()
        yield items[0], _NO_LEADER_YET if _NO_LEADER_YET in codes else 0, response

    def forget(self, client: Client, items: Collection[str]) -> None:
        """See `Exchange`."""

    def topics(self, response: Any) -> dict[str, Topic]:
        """The topics of a response that exist.

        Raises:
            KafkaError: If one that was asked for by name may not be seen.
        """
        from kafka.errors import for_code

        found: dict[str, Topic] = {}
        for topic in response.topics:
            if not topic.error_code and (self.names is not None or not topic.is_internal):
                found[topic.name] = _topic(topic, operations=self.operations)
            elif topic.error_code != _UNKNOWN_TOPIC and self.names is not None:
                raise for_code(topic.error_code)(topic.name)
        return found


@dataclass(frozen=True)
class Features:
    """What the brokers have agreed on (ApiVersions), from any of them."""

    what: str = "ask for the features of the cluster"

    def route(self, client: Client, items: Collection[str], within_s: float) -> Routed[str]:
        """See `Exchange`."""
        del client, within_s
        return [(ANY, list(items))], None

    def request(self, items: list[str]) -> Any:
        """See `Exchange`."""
        from kafka.protocol.metadata import ApiVersionsRequest

        del items
        return ApiVersionsRequest(
            client_software_name="krishiv-spark", client_software_version="1", min_version=3
        )

    def answers(self, response: Any, items: list[str]) -> Iterator[tuple[str, int, dict[str, int]]]:
        """See `Exchange`. The value is the level of each feature."""
        found = getattr(response, "finalized_features", None) or []
        levels = {feature.name: int(feature.max_version_level) for feature in found}
        yield items[0], response.error_code, levels

    def forget(self, client: Client, items: Collection[str]) -> None:
        """See `Exchange`."""


def _topic(found: Any, *, operations: bool) -> Topic:
    leaders = {each.partition_index: each.leader_id for each in found.partitions}
    allowed = frozenset(found.authorized_operations) if operations else None
    return Topic(found.name, str(found.topic_id), dict(sorted(leaders.items())), allowed)
