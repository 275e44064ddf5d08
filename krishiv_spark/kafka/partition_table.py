"""Numbers of many partitions in arrays, with a row for each partition in a fixed order.

Ten thousand partitions are looked up at each trigger. Converting requests and responses to objects
would take longer than the brokers need to respond.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from krishiv_spark.kafka.topic_partition import FoundOffset, TopicPartition

__all__ = ["FoundOffsets", "PartitionNumbers", "PartitionTable", "compute_keys"]

V = TypeVar("V")


class PartitionTable:
    """Partitions in a fixed order.

    Args:
        partitions: The partitions, each once, in any order.

    Attributes:
        partitions: The partitions by row, ordered by topic and number.
        topics: The topics in that order.
        counts: Number of partitions of each topic.
        numbers: By row, the number of the partition.
    """

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        self.partitions = tuple(sorted(partitions))
        grouped = groupby(self.partitions, itemgetter(0))
        counts = {name: sum(1 for _ in each) for name, each in grouped}
        self.topics = list(counts)
        self.counts = np.fromiter(counts.values(), np.int64)
        self.numbers = np.fromiter((tp.partition for tp in self.partitions), np.int64)

    def __len__(self) -> int:
        return len(self.partitions)

    @cached_property
    def topic_numbers(self) -> NDArray[np.int64]:
        """By row, the index of the topic in `topics`."""
        return np.repeat(np.arange(len(self.topics)), self.counts)


def compute_keys(topics: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each partition, which has the same order as topic and partition.

    Args:
        topics: Indexes of topics; below 0 for unknown topics.
        numbers: Numbers of partitions.
    """
    keys: NDArray[np.int64] = (topics << 32) + numbers
    return keys


class _PartitionMapping(Mapping[TopicPartition, V]):
    """Values in arrays, which are converted to objects at the first access to one."""

    rows: PartitionTable

    @cached_property
    def _objects(self) -> dict[TopicPartition, V]:
        return dict(zip(self.rows.partitions, self._values(), strict=True))

    def _values(self) -> Iterator[V]:
        raise NotImplementedError

    def __getitem__(self, tp: TopicPartition) -> V:
        return self._objects[tp]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self.rows.partitions)

    def __len__(self) -> int:
        return len(self.rows)

    # The views of a dict: those of a mapping look up each key.

    def keys(self) -> Any:
        return self._objects.keys()

    def values(self) -> Any:
        return self._objects.values()

    def items(self) -> Any:
        return self._objects.items()


@dataclass(frozen=True, eq=False)
class PartitionNumbers(_PartitionMapping[int]):
    """A number for each of many partitions.

    Attributes:
        rows: The partitions.
        array: The numbers by row.
    """

    rows: PartitionTable
    array: NDArray[np.int64]

    def _values(self) -> Iterator[int]:
        return iter(self.array.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartitionNumbers) and other.rows is self.rows:
            return bool(np.array_equal(self.array, other.array))
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # as in Mapping


@dataclass(frozen=True, eq=False)
class FoundOffsets(_PartitionMapping[FoundOffset]):
    """The results of a look-up of many partitions, each a `FoundOffset`.

    Attributes:
        rows: The partitions.
        offsets: By row, `FoundOffset.offset`.
        timestamps: By row, `FoundOffset.timestamp`.
        epochs: By row, `FoundOffset.epoch`.
    """

    rows: PartitionTable
    offsets: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    epochs: NDArray[np.int64]

    @cached_property
    def numbers(self) -> PartitionNumbers:
        """The offsets without timestamps and epochs."""
        return PartitionNumbers(self.rows, self.offsets)

    def _values(self) -> Iterator[FoundOffset]:
        columns = self.offsets, self.timestamps, self.epochs
        return map(FoundOffset, *(column.tolist() for column in columns))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FoundOffsets) and other.rows is self.rows:
            pairs = zip(self._columns(), other._columns(), strict=True)
            return all(np.array_equal(mine, its) for mine, its in pairs)
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # as in Mapping

    def _columns(self) -> tuple[NDArray[np.int64], ...]:
        return self.offsets, self.timestamps, self.epochs
