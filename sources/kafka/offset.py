"""The position of a query in Kafka: the offset that Spark stores, and its form in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import Field
from typing_extensions import override

from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.offsets import Offset
from krishiv_spark.offsets.offset import Value, Watermark

__all__ = [
    "KafkaOffset",
    "PartitionPosition",
    "QueryPosition",
    "StartName",
    "ValueSchema",
    "nest_by_topic",
]

ByPartition: TypeAlias = dict[str, dict[str, int]]
"""A number for each partition, by topic and the text of the partition's number."""

StartName: TypeAlias = Literal["earliest", "latest", "offsets", "timestamps"]
"""The start of a new query, as its options specify it."""


T = TypeVar("T")


class ValueSchema(Value):
    """The schema in a registry with which a query reads values, or keys.

    Attributes:
        subject: Its subject.
        version: Its version in the subject.
        id: Its id in the registry.
        fingerprint: A digest of the schema.
    """

    subject: str
    version: int
    id: int
    fingerprint: str


class KafkaOffset(Offset):
    """The position of a query: the next offset of each partition.

    Attributes:
        topics: The next offset of each partition that is read.
        ids: Ids of these topics, of the topics in `left`, and of deleted topics that the options
            name: a recreated topic has another id (KIP-516). Brokers before Kafka 2.8 have no ids.
        began: Start offsets of partitions in the batch that ended here, if they differ from the end
            of the previous batch: for new partitions, or if offsets were skipped. They make a
            replay read the same rows, although records have aged out meanwhile.
        epochs: Leader epochs of the leaders that returned `topics` (KIP-320). They distinguish the
            records that were read from others that have taken the same offsets since. Offsets of
            version 1 have none, and neither have brokers before Kafka 2.1.
        left: Positions of partitions that the options no longer include: if the options include
            them again, the query continues there.
        at: Before the first batch, the start that the options specify.
        times: With event time, the greatest record timestamp before `topics`, in milliseconds.
        quiet: With event time, the partitions without any record so far, with the newest
            timestamp in the other partitions when they were first read.
        idle: Partitions that the watermark does not wait for.
        value_schema: The reader's schema of values from a schema registry.
        key_schema: The reader's schema of keys from a schema registry.
    """

    kind = "kafka"
    version = 2  # 1 had neither `epochs` nor `left`

    topics: ByPartition = Field(default_factory=dict)
    ids: dict[str, str] = Field(default_factory=dict)
    began: ByPartition = Field(default_factory=dict)
    epochs: ByPartition = Field(default_factory=dict)
    left: ByPartition = Field(default_factory=dict)
    at: StartName | None = None
    times: ByPartition = Field(default_factory=dict)
    quiet: ByPartition = Field(default_factory=dict)
    idle: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    value_schema: ValueSchema | None = None
    key_schema: ValueSchema | None = None

    @override
    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, without empty fields."""
        found = {key: value for key, value in super().to_dict().items() if value != {}}
        for name in ("value_schema", "key_schema"):
            if found.get(name) is None:
                found.pop(name, None)
        return found


class PartitionPosition(NamedTuple):
    """A position in a partition.

    Attributes:
        offset: The next offset. All records before it existed when the position was looked up.
        epoch: Leader epoch of the leader that returned the offset; -1 if it is unknown.
    """

    offset: int
    epoch: int = -1


@dataclass(frozen=True)
class QueryPosition:
    """A `KafkaOffset` in memory, with its numbers by partition.

    Attributes:
        read: Positions in the partitions that are read: `KafkaOffset.topics` and `epochs`.
        left: Positions in partitions that the options no longer include.
        began: `KafkaOffset.began`.
        ids: `KafkaOffset.ids`.
        at: `KafkaOffset.at`.
        watermark: `KafkaOffset.watermark`.
        times: `KafkaOffset.times`.
        quiet: `KafkaOffset.quiet`.
        idle: `KafkaOffset.idle`, partition by partition.
    """

    read: Mapping[TopicPartition, PartitionPosition]
    left: Mapping[TopicPartition, PartitionPosition]
    began: Mapping[TopicPartition, int]
    ids: Mapping[str, str]
    at: StartName | None = None
    watermark: Watermark | None = None
    times: Mapping[TopicPartition, int] = field(default_factory=dict)
    quiet: Mapping[TopicPartition, int] = field(default_factory=dict)
    idle: Collection[TopicPartition] = frozenset()

    @classmethod
    def from_offset(cls, offset: KafkaOffset) -> QueryPosition:
        """Convert an offset."""
        epochs = _flatten(offset.epochs)
        read, left = (
            {tp: PartitionPosition(n, epochs.get(tp, -1)) for tp, n in _flatten(numbers).items()}
            for numbers in (offset.topics, offset.left)
        )
        return cls(
            read=read,
            left=left,
            began=_flatten(offset.began),
            ids=offset.ids,
            at=offset.at,
            watermark=offset.watermark,
            times=_flatten(offset.times),
            quiet=_flatten(offset.quiet),
            idle={TopicPartition(topic, n) for topic, each in offset.idle.items() for n in each},
        )

    def to_offset(self) -> KafkaOffset:
        """Return the offset that Spark stores."""
        epochs = {tp: position.epoch for tp, position in {**self.left, **self.read}.items()}
        return KafkaOffset(
            topics=nest_by_topic(self.offsets),
            epochs=nest_by_topic({tp: epoch for tp, epoch in epochs.items() if epoch >= 0}),
            left=nest_by_topic({tp: position.offset for tp, position in self.left.items()}),
            began=nest_by_topic(self.began),
            ids=dict(self.ids),
            at=self.at,
            watermark=self.watermark,
            times=nest_by_topic(self.times),
            quiet=nest_by_topic(self.quiet),
            idle=_nest_numbers(self.idle),
        )

    def advance(
        self,
        begins: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, PartitionPosition],
        left: Mapping[TopicPartition, PartitionPosition],
        ids: Mapping[str, str],
    ) -> QueryPosition:
        """Return the end of the batch that starts here, without any event time.

        Args:
            begins: First offset of each partition in the batch.
            ends: End of the batch in each partition, exclusive.
            left: Positions in partitions that the query no longer reads.
            ids: Ids of the topics of all these partitions, if they have one.
        """
        began = {tp: n for tp, n in begins.items() if self.offsets.get(tp) != n}
        return QueryPosition(read=ends, left=left, began=began, ids=ids)

    @cached_property
    def topics(self) -> frozenset[str]:
        """The topics of the partitions that are read."""
        return frozenset(tp.topic for tp in self.read)

    @cached_property
    def offsets(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that is read."""
        return {tp: position.offset for tp, position in self.read.items()}

    def is_at(self, other: QueryPosition) -> bool:
        """Return True if both are the same position.

        A new leader epoch alone makes no batch; an epoch that was unknown before does.
        """
        return self._parts() == other._parts()

    def _parts(self) -> tuple[Any, ...]:
        read, left = (
            {tp: (position.offset, position.epoch >= 0) for tp, position in positions.items()}
            for positions in (self.read, self.left)
        )
        return read, left, self.ids


def _flatten(numbers: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Return the numbers of an offset by partition."""
    return {
        TopicPartition(topic, int(partition)): number
        for topic, each in numbers.items()
        for partition, number in each.items()
    }


def nest_by_topic(values: Mapping[TopicPartition, T]) -> dict[str, dict[str, T]]:
    """Return values by partition in the form of an offset."""
    found: dict[str, dict[str, T]] = {}
    for tp, value in values.items():
        found.setdefault(tp.topic, {})[str(tp.partition)] = value
    return found


def _nest_numbers(partitions: Iterable[TopicPartition]) -> dict[str, tuple[int, ...]]:
    """Return partitions in the form of an offset."""
    found: dict[str, list[int]] = {}
    for tp in partitions:
        found.setdefault(tp.topic, []).append(tp.partition)
    return {topic: tuple(sorted(each)) for topic, each in found.items()}
