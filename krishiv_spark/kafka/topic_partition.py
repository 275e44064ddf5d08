"""Names of things in a cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "NO_ID",
    "READ",
    "WRITE",
    "BrokerAddress",
    "FoundOffset",
    "Topic",
    "TopicPartition",
]

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
"""What can be looked up in a partition besides a time."""

NO_ID = str(UUID(int=0))
"""The id that brokers return for a topic without an id."""

READ, WRITE = 3, 4
"""What may be done with a topic (``AclOperation``)."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class BrokerAddress(NamedTuple):
    """Where a broker is reached, as the cluster says."""

    node: int
    host: str
    port: int


@dataclass(frozen=True)
class Topic:
    """What the cluster says of a topic.

    Attributes:
        name: As the cluster spells it.
        id: Its id; a topic that is made anew under the same name has another (KIP-516).
        leaders: By partition, the node that leads it; -1 while there is none.
        operations: What the user may do with it (``AclOperation``); None if that was not asked for.
    """

    name: str
    id: str
    leaders: Mapping[int, int]
    operations: frozenset[int] | None = None

    @property
    def usable_id(self) -> str:
        """Its id; empty if the cluster has none (before Kafka 2.8)."""
        # kafka-python returns a missing id as None, which is "None" as a text.
        return "" if self.id in {"", "None", NO_ID} else self.id

    def allows(self, operation: int) -> bool:
        """Whether the user may do something with it, as far as is known."""
        return self.operations is None or operation in self.operations

    def including(self, partitions: Collection[int]) -> Topic:
        """Return this topic with these partitions too; those that it lacks have no leader.

        For responses that omit partitions of a topic with an unchanged id: the cluster still has
        them, because Kafka never removes a partition from a topic.
        """
        missing = set(partitions) - self.leaders.keys()
        if not missing:
            return self
        leaders = {**self.leaders, **dict.fromkeys(missing, -1)}
        return replace(self, leaders=dict(sorted(leaders.items())))

    @cached_property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Its partitions."""
        return tuple(TopicPartition(self.name, partition) for partition in self.leaders)


class FoundOffset(NamedTuple):
    """Where a partition has what was looked up; -1 where it has nothing.

    Attributes:
        offset: Of the record; for `LATEST`, of the next one.
        timestamp: Of the record, in ms; -1 for `EARLIEST` and `LATEST`.
        epoch: Leader epoch of the record; for `LATEST`, that of the leader which answers. -1 where
            brokers do not say (before Kafka 2.1).
    """

    offset: int
    timestamp: int
    epoch: int = -1
