"""One task's rows on their way to the leaders. Executor."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.kafka.records import Accumulator, await_warm
from krishiv_spark.kafka.records.checksum import crc32c
from krishiv_spark.kafka.records.encode import view_bytes
from krishiv_spark.sinks.kafka.batch_sender import BatchSender
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.partitioner import Partitioner
from krishiv_spark.sinks.kafka.rows import by_topic

__all__ = ["Fingerprint", "TaskWriter"]


_MOST_BYTES = 32 * 2**20
"""Of batches that are not full."""


class Fingerprint:
    """By which a task's rows are known again.

    The same rows in the same order have the same, however they are cut into batches. Timestamps
    are left out: they may be those of the moment of writing.

    Args:
        form: Which columns count, and how. 1: of headers only how many a row has. 2: headers too.

    Attributes:
        rows: How many were added.
    """

    NEWEST: ClassVar[int] = 2

    def __init__(self, form: int = NEWEST) -> None:
        self.rows = 0
        self._form = form
        self._sums: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Count rows that follow those before."""
        self.rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_list(column.type):
                self._sum(name, np.asarray(column.value_lengths().fill_null(-1)))
                self._add_headers(name, column)
            elif pa.types.is_int32(column.type):
                self._sum(name, np.asarray(column.fill_null(-1)))
            elif not pa.types.is_timestamp(column.type):
                self._add_bytes(name, column)

    @property
    def checksum(self) -> int:
        """Of everything that was added."""
        return crc32c(repr(sorted(self._sums.items())).encode())

    def _add_headers(self, name: str, column: pa.ListArray) -> None:
        if self._form > 1:
            for part, values in zip(("key", "value"), column.flatten().flatten(), strict=True):
                self._add_bytes(f"{name} {part}", values)

    def _add_bytes(self, name: str, column: pa.Array) -> None:
        spans = np.zeros((2, len(column)), np.int32)
        data = view_bytes(column, spans, name)
        begins, sizes = spans
        self._sum(f"{name} sizes", sizes)
        if len(sizes):  # of a slice, whose buffer has the bytes of other rows as well
            self._sum(name, data[int(begins[0]) : int(begins[-1]) + max(int(sizes[-1]), 0)])

    def _sum(self, name: str, numbers: NDArray[Any]) -> None:
        data = np.ascontiguousarray(numbers).view(np.uint8)
        self._sums[name] = crc32c(data, self._sums.get(name, 0))


class TaskWriter:
    """Writes the rows of one task; memory stays bounded, however many there are.

    Attributes:
        written: By which the rows that were accumulated are known again.
        sender: What sends the batches; None until there is a row.

    Args:
        options: Of the sink.
        partitioner: Chooses the partition of each row.
        start: Makes the sender, once there is a row.
    """

    def __init__(
        self, options: KafkaSinkOptions, partitioner: Partitioner, start: Callable[[], BatchSender]
    ) -> None:
        self.written = Fingerprint()
        self._options = options
        self._partitioner = partitioner
        self._start = start
        self.sender: BatchSender | None = None
        self._open: dict[str, Accumulator] = {}

    @property
    def topics(self) -> Collection[str]:
        """Those that had rows."""
        return self._open.keys()

    def accumulate(self, batch: pa.RecordBatch) -> None:
        """Encode rows into the batches of their partitions, and send those that are full.

        Raises:
            SchemaError: If a row cannot be a record.
            KafkaFailedError: If a leader refuses, or does not answer in time.
        """
        for rows in by_topic(batch, self._options.topic) if batch.num_rows else ():
            sender = self._started()
            partitions = self._partitioner.of(rows)
            sender.put(rows.topic, self._accumulator(rows.topic).add(rows.columns, partitions))
            self._relieve()
        self.written.add(batch)
        # A partition for each Arrow batch, not for each row: fewer and fuller batches (KIP-480).
        self._partitioner.turn()

    def flush(self) -> None:
        """Send the batches that are not full, and wait until all are acknowledged.

        Raises:
            KafkaFailedError: If a leader refuses, or does not answer in time.
        """
        if self.sender is not None:
            for topic, accumulator in self._open.items():
                self.sender.put_last(topic, accumulator.flush())
            self.sender.flush()

    def _relieve(self) -> None:
        """Send batches that are not full, when many partitions have one."""
        if self.sender and sum(o.buffered_bytes for o in self._open.values()) > _MOST_BYTES:
            for topic, accumulator in self._open.items():
                self.sender.put(topic, accumulator.flush())

    def _started(self) -> BatchSender:
        if self.sender is None:
            self.sender = self._start()
            # Only now: the kernels have been loading while the coordinator was asked.
            await_warm()
        return self.sender

    def _accumulator(self, topic: str) -> Accumulator:
        if topic not in self._open:
            options = self._options
            self._open[topic] = Accumulator(options.batch_bytes, options.compression)
        return self._open[topic]
