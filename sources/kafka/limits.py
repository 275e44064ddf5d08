"""How much of what waits a batch takes. Pure; driver."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from krishiv_spark.kafka.topic_partition import TopicPartition

__all__ = ["Delay", "in_proportion", "waiting"]


def waiting(
    begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """How many offsets wait in each partition that has any."""
    sizes = {tp: ends[tp] - begin for tp, begin in begins.items()}
    return {tp: size for tp, size in sizes.items() if size > 0}


def in_proportion(
    begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], most: int | None
) -> dict[TopicPartition, int]:
    """Ends nearer to the begins, so that a batch holds about so many offsets.

    Each partition has a share in proportion to what waits in it, and one offset at least, so that
    small ones never starve (``KafkaMicroBatchStream.rateLimit``): with more partitions than
    offsets, the batch is larger than asked.

    Args:
        begins: First offset of each partition.
        ends: Its end, exclusive.
        most: Most offsets in all partitions together; None for no limit.
    """
    sizes = waiting(begins, ends)
    total = sum(sizes.values())
    if most is None or total <= most:
        return dict(ends)
    taken = {tp: begins[tp] + _share(size, most, total) for tp, size in sizes.items()}
    return {**ends, **taken}


def _share(size: int, most: int, total: int) -> int:
    return min(max(most * size // total, 1), size)


@dataclass
class Delay:
    """Lets small batches wait for more rows, but not for long.

    Kept by the reader, in memory: after a restart the first batch never waits.

    Attributes:
        least: Fewest offsets of a batch.
        longest_s: How long they are waited for.
    """

    least: int
    longest_s: float
    _since_s: float = -math.inf

    def holds(self, offsets: int, now_s: float) -> bool:
        """Whether the batch is to wait.

        Args:
            offsets: How many it would have.
            now_s: A clock that never goes back.
        """
        is_early = now_s - self._since_s <= self.longest_s
        if offsets < self.least and is_early:
            return True
        self._since_s = now_s
        return False
