"""What is asked of one partition, and what is said when it cannot be had."""

from __future__ import annotations

from dataclasses import dataclass

from krishiv_spark.errors import KrishivError

__all__ = ["RecordError", "RecordRange"]


class RecordError(KrishivError):
    """Records that came from Kafka are damaged, or in a format that is not read."""


@dataclass(frozen=True)
class RecordRange:
    """Offsets of one partition.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition.
        start: First offset.
        end: Last offset, exclusive.
    """

    topic: str
    partition: int
    start: int
    end: int
