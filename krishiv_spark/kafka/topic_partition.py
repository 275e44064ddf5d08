"""The names and values of a cluster: topics, partitions, brokers and offsets."""

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
"""Names that can be looked up in a partition instead of a time."""

NO_ID = str(UUID(int=0))
"""The id that brokers return for a topic without an id."""

READ, WRITE = 3, 4
"""Operations on a topic (``AclOperation``)."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class BrokerAddress(NamedTuple):
    """The address of a broker, as the cluster advertises it."""

    node: int
    host: str
    port: int


@dataclass(frozen=True)
class Topic:
    """A topic in a response of the cluster.

    Attributes:
        name: Its name as the cluster spells it.
        id: Its id; a topic that is recreated under the same name has another (KIP-516).
        leaders: By partition, the node that leads it; -1 while there is none.
        operations: Operations that the user may perform (``AclOperation``); None if they were not
            requested.
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
        """Return True if the user may perform an operation, as far as is known."""
        return self.operations is None or operation in self.operations

    def including(self, partitions: Collection[int]) -> Topic:
        """Return this topic with these partitions too; a partition that it lacks has no leader.

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
    """The result of a look-up in a partition; all numbers are -1 if there is no such record.

    Attributes:
        offset: Offset of the record; for `LATEST`, of the next one.
        timestamp: Timestamp of the record, in ms; -1 for `EARLIEST` and `LATEST`.
        epoch: Leader epoch of the record; for `LATEST`, of the leader that responds. -1 from
            brokers before Kafka 2.1.
    """

    offset: int
    timestamp: int
    epoch: int = -1
