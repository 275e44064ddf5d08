"""Where a query stands in Kafka."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import Field

from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.offsets import Offset
from krishiv_spark.offsets.offset import Watermark

__all__ = ["KafkaOffset", "Position", "QueryPosition", "StartName", "nested"]

ByPartition: TypeAlias = dict[str, dict[str, int]]
"""A number for each partition, by topic and the text of the partition's number."""

StartName: TypeAlias = Literal["earliest", "latest", "offsets", "timestamps"]
"""What a new query begins at, as its options say."""


T = TypeVar("T")


class KafkaOffset(Offset):
    """Where a query stands: the next offset of each partition.

    Attributes:
        topics: The next offset of each partition that is read.
        ids: Ids of these topics, of those in `left`, and of topics that the options name and that
            have gone: one that was deleted and made anew has another (KIP-516). Brokers older than
            2.8 have none.
        began: Where partitions began in the batch that ended here, if not at the offset where the
            batch before it ended: they are new, or offsets were skipped. With it a replay reads
            the same rows, whatever has aged out meanwhile.
        epochs: Leader epochs of the leaders that `topics` were found at (KIP-320): they tell
            records that were read from others that have taken their offsets since. Offsets of
            version 1 have none, and neither have brokers before Kafka 2.1.
        left: Positions of partitions that the options no longer ask for: if they do again, the
            query goes on there.
        at: For the very beginning, before any batch: which start the options ask for.
        times: With event time, the greatest record timestamp before `topics`, milliseconds.
        quiet: With event time, the partitions without any record so far, with the newest
            timestamp in the others when they were first seen.
        idle: Partitions that the watermark does not wait for.
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

    def to_dict(self) -> dict[str, Any]:
        """See `Offset`; what is empty is left out."""
        return {key: value for key, value in super().to_dict().items() if value != {}}


class Position(NamedTuple):
    """A position in a partition.

    Attributes:
        offset: The next offset; everything before it was there when the position was found.
        epoch: Leader epoch of the leader that was asked then; -1 if it is not known.
    """

    offset: int
    epoch: int = -1


@dataclass(frozen=True)
class QueryPosition:
    """A `KafkaOffset` as it is worked with, its numbers by partition.

    Attributes:
        read: Where it stands in partitions that are read: `KafkaOffset.topics` and `epochs`.
        left: Where it stands in partitions that the options no longer ask for.
        began: `KafkaOffset.began`.
        ids: `KafkaOffset.ids`.
        at: `KafkaOffset.at`.
        watermark: `KafkaOffset.watermark`.
        times: `KafkaOffset.times`.
        quiet: `KafkaOffset.quiet`.
        idle: `KafkaOffset.idle`, partition by partition.
    """

    read: Mapping[TopicPartition, Position]
    left: Mapping[TopicPartition, Position]
    began: Mapping[TopicPartition, int]
    ids: Mapping[str, str]
    at: StartName | None = None
    watermark: Watermark | None = None
    times: Mapping[TopicPartition, int] = field(default_factory=dict)
    quiet: Mapping[TopicPartition, int] = field(default_factory=dict)
    idle: Collection[TopicPartition] = frozenset()

    @classmethod
    def of(cls, offset: KafkaOffset) -> QueryPosition:
        """Read the numbers of an offset."""
        epochs = _flat(offset.epochs)
        read, left = (
            {tp: Position(n, epochs.get(tp, -1)) for tp, n in _flat(numbers).items()}
            for numbers in (offset.topics, offset.left)
        )
        return cls(
            read=read,
            left=left,
            began=_flat(offset.began),
            ids=offset.ids,
            at=offset.at,
            watermark=offset.watermark,
            times=_flat(offset.times),
            quiet=_flat(offset.quiet),
            idle={TopicPartition(topic, n) for topic, each in offset.idle.items() for n in each},
        )

    def to_offset(self) -> KafkaOffset:
        """The offset that Spark keeps."""
        epochs = {tp: position.epoch for tp, position in {**self.left, **self.read}.items()}
        return KafkaOffset(
            topics=nested(self.offsets),
            epochs=nested({tp: epoch for tp, epoch in epochs.items() if epoch >= 0}),
            left=nested({tp: position.offset for tp, position in self.left.items()}),
            began=nested(self.began),
            ids=dict(self.ids),
            at=self.at,
            watermark=self.watermark,
            times=nested(self.times),
            quiet=nested(self.quiet),
            idle=_listed(self.idle),
        )

    def advance(
        self,
        begins: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, Position],
        left: Mapping[TopicPartition, Position],
        ids: Mapping[str, str],
    ) -> QueryPosition:
        """The end of the batch that begins here, without any event time.

        Args:
            begins: First offset of each partition in the batch.
            ends: Where the batch ends in each of them.
            left: Where the query stands in partitions that it does not read any more.
            ids: Ids of the topics of all of them, as far as they have one.
        """
        began = {tp: n for tp, n in begins.items() if self.offsets.get(tp) != n}
        return QueryPosition(read=ends, left=left, began=began, ids=ids)

    @cached_property
    def topics(self) -> frozenset[str]:
        """The topics of what is read."""
        return frozenset(tp.topic for tp in self.read)

    @cached_property
    def offsets(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that is read."""
        return {tp: position.offset for tp, position in self.read.items()}

    def is_at(self, other: QueryPosition) -> bool:
        """Whether both are one position.

        Elections alone make no batch, epochs that were unknown do.
        """
        return self._parts() == other._parts()

    def _parts(self) -> tuple[Any, ...]:
        read, left = (
            {tp: (position.offset, position.epoch >= 0) for tp, position in positions.items()}
            for positions in (self.read, self.left)
        )
        return read, left, self.ids


def _flat(numbers: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """The numbers of an offset by partition."""
    return {
        TopicPartition(topic, int(partition)): number
        for topic, each in numbers.items()
        for partition, number in each.items()
    }


def nested(values: Mapping[TopicPartition, T]) -> dict[str, dict[str, T]]:
    """The form in which an offset holds numbers by partition."""
    found: dict[str, dict[str, T]] = {}
    for tp, value in values.items():
        found.setdefault(tp.topic, {})[str(tp.partition)] = value
    return found


def _listed(partitions: Iterable[TopicPartition]) -> dict[str, tuple[int, ...]]:
    """The form in which an offset names partitions."""
    found: dict[str, list[int]] = {}
    for tp in partitions:
        found.setdefault(tp.topic, []).append(tp.partition)
    return {topic: tuple(sorted(each)) for topic, each in found.items()}
