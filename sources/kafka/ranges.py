"""The offsets that each task of a batch reads. Driver; without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from krishiv_spark.kafka.topic_partition import TopicPartition

__all__ = ["OffsetRange", "TaskRanges", "split_range", "spread_over_tasks"]


@dataclass(frozen=True)
class OffsetRange:
    """Offsets of one partition that one task reads.

    Attributes:
        tp: The partition.
        topic_id: Id of its topic when the batch was planned; empty if the cluster has no ids.
        start: First offset.
        end: Last offset, exclusive.
        epoch: Leader epoch of the leader that returned `end`; -1 if it is unknown.
        schema_id: Id of the reader's schema of values in the schema registry; None without one.
        key_schema_id: Likewise of keys.
    """

    tp: TopicPartition
    topic_id: str
    start: int
    end: int
    epoch: int = -1
    schema_id: int | None = None
    key_schema_id: int | None = None

    @property
    def size(self) -> int:
        """Number of offsets; the number of rows may be smaller."""
        return self.end - self.start


TaskRanges: TypeAlias = tuple[OffsetRange, ...]
"""The ranges that one task reads."""


def split_range(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Split a range into parts whose sizes differ by at most one."""
    if parts == 1 and whole.size > 0:
        return [whole]
    bounds = [whole.start + whole.size * i // parts for i in range(parts + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(bounds) if start < end]


def spread_over_tasks(
    ranges: Iterable[OffsetRange],
    *,
    fewest: int | None = None,
    most_offsets: int | None = None,
    together: int = 0,
) -> list[TaskRanges]:
    """Spread ranges over tasks, as ``KafkaOffsetRangeCalculator`` does.

    Args:
        ranges: One range for each partition.
        fewest: Minimum number of tasks; larger ranges are split to reach it. None for one task per
            partition.
        most_offsets: Maximum number of offsets in a task.
        together: Ranges that together have at most this number of offsets share a task. It has no
            effect if `fewest` is given.
    """
    found = [whole for whole in ranges if whole.size > 0]
    parts = [
        part for whole in found for part in split_range(whole, _count_parts(whole, most_offsets))
    ]
    if fewest is not None:
        parts = parts if len(parts) >= fewest else _spread(found, fewest)
        return [(part,) for part in parts]
    return _pack(parts, min(together, most_offsets or together))


def _count_parts(whole: OffsetRange, most_offsets: int | None) -> int:
    return 1 if most_offsets is None else -(-whole.size // most_offsets)


def _spread(ranges: Sequence[OffsetRange], fewest: int) -> list[OffsetRange]:
    total = sum(whole.size for whole in ranges)
    small = {whole for whole in ranges if _weight(whole, total, fewest) == 1}
    rest = total - sum(whole.size for whole in small)
    remaining = max(fewest - len(small), 1)
    return [
        part
        for whole in ranges
        for part in split_range(whole, 1 if whole in small else _weight(whole, rest, remaining))
    ]


def _weight(whole: OffsetRange, total: int, parts: int) -> int:
    return max((2 * whole.size * parts + total) // (2 * total), 1)  # rounded half up


def _pack(parts: Iterable[OffsetRange], together: int) -> list[TaskRanges]:
    found: list[list[OffsetRange]] = []
    room = 0
    for part in parts:
        if found and part.size <= room:
            found[-1].append(part)
            room -= part.size
        else:
            found.append([part])
            room = together - part.size
    return [tuple(ranges) for ranges in found]
