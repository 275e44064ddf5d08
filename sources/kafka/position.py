"""Where a query stands in Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import Field

from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.offsets import Offset
from krishiv_spark.sources.kafka.truncation import Position

__all__ = ["ByPartition", "KafkaOffset", "StartName", "flat", "listed", "nested"]

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

    def positions(self) -> dict[TopicPartition, Position]:
        """Where the query stands in each partition, also in those that it no longer reads."""
        epochs = flat(self.epochs)
        positions = {**flat(self.left), **flat(self.topics)}
        return {tp: Position(offset, epochs.get(tp, -1)) for tp, offset in positions.items()}

    def to_dict(self) -> dict[str, Any]:
        """See `Offset`; what is empty is left out."""
        return {key: value for key, value in super().to_dict().items() if value != {}}


def flat(numbers: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
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


def listed(partitions: Iterable[TopicPartition]) -> dict[str, tuple[int, ...]]:
    """The form in which an offset names partitions."""
    found: dict[str, list[int]] = {}
    for tp in partitions:
        found.setdefault(tp.topic, []).append(tp.partition)
    return {topic: tuple(sorted(each)) for topic, each in found.items()}
