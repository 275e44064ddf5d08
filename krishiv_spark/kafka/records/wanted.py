"""The offsets that are read of one partition, and the batches of it that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from krishiv_spark.errors import KrishivError

__all__ = ["INFLATED_BYTES", "BatchPolicy", "DeadBatch", "RecordError", "RecordRange"]

# Above what a broker takes by default (1 MB, compressed) even if it shrank to a hundredth.
INFLATED_BYTES = 512 * 2**20


class RecordError(KrishivError):
    """Records from Kafka are damaged, or in an unsupported format."""


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


@dataclass(frozen=True)
class DeadBatch:
    """A batch of records that cannot be delivered, as a dead letter describes it.

    The first four attributes identify it: a task that is repeated, or another task that reads
    another part of the same batch, makes an equal one.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition.
        first_offset: Offset at which the batch starts.
        last_offset: Its last offset.
        size: Its bytes as the broker stores them.
        reason: What is wrong with it; holds nothing of its records.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    size: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: the batch of offsets {self.first_offset} to "
            f"{self.last_offset}, {self.size} bytes, cannot be delivered: {self.reason}"
        )


@dataclass(frozen=True)
class BatchPolicy:
    """How large a batch may become, and what happens to one that cannot be delivered.

    The decision depends on the batch and the wanted columns alone, so that a batch that is read
    again is judged as before.

    Attributes:
        inflated_bytes: Bytes that the records of one batch may become by decompression, and that
            the headers of one record may take in memory; at most 1 GiB.
        skip: Called with each batch that is skipped; None if such a batch is an error.
    """

    inflated_bytes: int = INFLATED_BYTES
    skip: Callable[[DeadBatch], None] | None = None
