"""Numbers of many partitions in arrays: a row for each, in an order that stays.

Ten thousand partitions are asked for at each trigger. As objects, what is asked and answered takes
longer than the brokers do.
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

__all__ = ["FoundOffsets", "PartitionNumbers", "PartitionRows", "keys_of"]

V = TypeVar("V")


class PartitionRows:
    """Partitions in an order.

    Args:
        partitions: Each of them once, in any order.

    Attributes:
        partitions: By row: those of a topic follow one another, in the order of their numbers.
        topics: The topics, in that order.
        counts: By topic, how many of its partitions there are.
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
        """By row, the number of the topic: its place in `topics`."""
        return np.repeat(np.arange(len(self.topics)), self.counts)


def keys_of(topics: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number for each of some partitions, ordered as these are.

    Args:
        topics: Numbers of their topics; below 0 for those that are not known.
        numbers: Their own numbers.
    """
    keys: NDArray[np.int64] = (topics << 32) + numbers
    return keys


class _ByPartition(Mapping[TopicPartition, V]):
    """Values in arrays, which become objects when the first one is asked for."""

    rows: PartitionRows

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

    # A dict's own views: those of a mapping look each key up.

    def keys(self) -> Any:
        return self._objects.keys()

    def values(self) -> Any:
        return self._objects.values()

    def items(self) -> Any:
        return self._objects.items()


@dataclass(frozen=True, eq=False)
class PartitionNumbers(_ByPartition[int]):
    """A number for each of many partitions.

    Attributes:
        rows: The partitions.
        array: By row, its number.
    """

    rows: PartitionRows
    array: NDArray[np.int64]

    def _values(self) -> Iterator[int]:
        return iter(self.array.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartitionNumbers) and other.rows is self.rows:
            return bool(np.array_equal(self.array, other.array))
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # as a mapping has it


@dataclass(frozen=True, eq=False)
class FoundOffsets(_ByPartition[FoundOffset]):
    """What was looked up in many partitions, as `FoundOffset` has it.

    Attributes:
        rows: The partitions.
        offsets: By row, `FoundOffset.offset`.
        timestamps: By row, `FoundOffset.timestamp`.
        epochs: By row, `FoundOffset.epoch`.
    """

    rows: PartitionRows
    offsets: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    epochs: NDArray[np.int64]

    @cached_property
    def numbers(self) -> PartitionNumbers:
        """The offsets alone."""
        return PartitionNumbers(self.rows, self.offsets)

    def _values(self) -> Iterator[FoundOffset]:
        columns = self.offsets, self.timestamps, self.epochs
        return map(FoundOffset, *(column.tolist() for column in columns))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FoundOffsets) and other.rows is self.rows:
            pairs = zip(self._columns(), other._columns(), strict=True)
            return all(np.array_equal(mine, its) for mine, its in pairs)
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # as a mapping has it

    def _columns(self) -> tuple[NDArray[np.int64], ...]:
        return self.offsets, self.timestamps, self.epochs
