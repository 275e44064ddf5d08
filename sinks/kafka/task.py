"""One attempt at a task: its transaction, and its rows on their way to the leaders. Executor.

Rows are encoded into batches by partition (`TaskWriter`), and sent while others are encoded
(`krishiv_spark.sinks.kafka.sender.BatchSender`). `stage` returns the open transaction, with
every record acknowledged, for the driver to end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.errors import SinkError
from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import KafkaClient, open_client
from krishiv_spark.kafka.records import Accumulator, await_warm, warm_ahead
from krishiv_spark.kafka.records.checksum import crc32c
from krishiv_spark.kafka.records.encode import view_bytes
from krishiv_spark.kafka.transaction_requests import Transaction
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets.offset import Value
from krishiv_spark.sinks.base import Task
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.row_records import Partitioner, split_by_topic
from krishiv_spark.sinks.kafka.sender import BatchSender
from krishiv_spark.sinks.kafka.target_topics import PlannedTopic, get_topic_ids

__all__ = [
    "Fingerprint",
    "StagedTransaction",
    "TaskWriter",
    "check_same",
    "list_all_transactional_ids",
    "list_transactional_ids",
    "stage",
    "write_idempotent",
]

_ID_SETS, _IDS_PER_TASK = 2, 4
"""Sets of ids, used by generations in turn; and ids of a task in each, for its attempts."""

_MOST_BYTES = 32 * 2**20
"""Bytes of batches that are not full."""


class StagedTransaction(Value):
    """The staged part of a task: an open transaction, with every record acknowledged.

    Attributes:
        transaction: The transaction, with the producer id and epoch by which the driver ends it.
        task: Number of the task.
        rows: Number of rows.
        checksum: Checksum of the rows; see `Fingerprint`.
        topic: One of the topics it wrote to; with `partition` and `offset`, the position of records
            of it, which are followed by the marker that ends it.
        partition: A partition of that topic.
        offset: Offset of its first record there; -1 if it is unknown.
        form: Form of the checksum.
        topics: Names and ids of the topics it wrote to; empty if the cluster has no ids.
        schemas: The parts of a record with schemas, each with the id of its schema; None without.
    """

    transaction: Transaction
    task: int
    rows: int
    checksum: int
    topic: str = ""
    partition: int = -1
    offset: int = -1
    form: int = 1
    topics: tuple[tuple[str, str], ...] = ()
    schemas: tuple[tuple[str, int], ...] | None = None


# --- transactional ids


def list_transactional_ids(prefix: str, task: Task, generation_count: int) -> list[str]:
    """Return the ids that an attempt may use: ``<prefix>.<query id>.<task>.<slot>``.

    Initialising an id aborts its open transaction, so an attempt uses the first id under which none
    is open. Neighbouring generations have different ids. Within a generation, Spark has at most
    four attempts at a task alive: one, its speculative copy, and both again if a stage runs again
    while tasks of its first run go on. Brokers keep an id for days.

    Args:
        prefix: The prefix of the sink.
        task: Query, partition and attempt number.
        generation_count: Number of generations so far, including this one.

    Returns:
        The ids in the order in which they are checked. An attempt and its speculative copy, whose
        numbers follow one another, start with different ones.
    """
    first = generation_count % _ID_SETS * _IDS_PER_TASK
    slots = [first + (task.attempt_number + n) % _IDS_PER_TASK for n in range(_IDS_PER_TASK)]
    return [f"{prefix}.{task.query}.{task.partition}.{slot}" for slot in slots]


IDS_AFTER_QUERY = r"[0-9]+\.[0-9]+"
"""The rest of an id after ``<prefix>.<query id>.``: another sink's prefix may begin with that."""


def list_all_transactional_ids(prefix: str, query: str, tasks: int) -> list[str]:
    """Return every id that the tasks of a query may ever use.

    Args:
        prefix: The prefix of the sink.
        query: Id that Spark keeps in the query's checkpoint.
        tasks: Number of tasks, counted from 0.
    """
    slots = range(_ID_SETS * _IDS_PER_TASK)
    return [f"{prefix}.{query}.{task}.{slot}" for task in range(tasks) for slot in slots]


# --- attempts


def stage(
    batches: Iterable[pa.RecordBatch],
    task: Task,
    options: KafkaSinkOptions,
    generation_count: int = 0,
    planned: PlannedTopic | None = None,
) -> StagedTransaction | None:
    """Write rows into a transaction, and leave it open.

    Args:
        batches: The rows, in Spark's order; pulled one at a time.
        task: The task, whose numbers select the transactional id.
        options: Options of the sink.
        generation_count: Number of generations so far, including this one.
        planned: The topic of the option ``topic``, for all tasks of the epoch; None to look it up.

    Returns:
        None if there were no rows; then no transaction was opened either.

    Raises:
        SchemaError: If a row cannot be a record.
        KafkaFailedError: If a broker refuses something, or does not answer in time.
    """
    warm_ahead()
    ids = list_transactional_ids(options.id_prefix, task, generation_count)
    attempt = _Attempt(open_client(options.kafka), task, options, ids, planned)
    try:
        for batch in batches:
            attempt.writer.accumulate(batch)
        attempt.writer.flush()
    # Any end of a task leaves a transaction open, also an interruption.
    except BaseException:
        attempt.abort()
        raise
    return attempt.to_staged()


def write_idempotent(
    batches: Iterable[pa.RecordBatch],
    task: Task,
    options: KafkaSinkOptions,
    planned: PlannedTopic | None = None,
) -> None:
    """Write rows without a transaction: once in this attempt, and visible immediately.

    Args:
        batches: The rows, in Spark's order; pulled one at a time.
        task: The task, whose numbers select the first partition of records without a key.
        options: Options of the sink.
        planned: As for `stage`.

    Raises:
        SchemaError: If a row cannot be a record.
        KafkaFailedError: If a broker refuses something, or does not answer in time.
    """
    warm_ahead()
    client = open_client(options.kafka)

    def open_sender() -> BatchSender:
        return BatchSender(client, transactions.init_producer(client))

    writer = TaskWriter(options, _make_partitioner(client, task, planned), open_sender)
    for batch in batches:
        writer.accumulate(batch)
    writer.flush()


def _make_partitioner(client: KafkaClient, task: Task, planned: PlannedTopic | None) -> Partitioner:
    # Records without a key start with another partition in each task and epoch: otherwise small
    # epochs would all use the first one.
    return Partitioner(client, planned, task.partition + task.epoch)


class _Attempt:
    """An attempt's transaction, from the first row that it writes to the end of the task."""

    def __init__(
        self,
        client: KafkaClient,
        task: Task,
        options: KafkaSinkOptions,
        ids: Sequence[str],
        planned: PlannedTopic | None,
    ) -> None:
        self._ids = ids
        self._planned = planned
        self._client = client
        self._task = task
        self._options = options
        self._transaction: Transaction | None = None
        self.writer = TaskWriter(
            options, _make_partitioner(client, task, planned), self._begin_transaction
        )

    def _begin_transaction(self) -> BatchSender:
        name = transactions.pick_transactional_id(self._client, self._ids)
        timeout_ms = self._options.timeout_ms
        self._transaction = transactions.begin_transaction(self._client, name, timeout_ms)
        return BatchSender(self._client, self._transaction)

    def to_staged(self) -> StagedTransaction | None:
        """Return the transaction for the driver; None if there were no rows."""
        if self._transaction is None:
            return None
        written = self.writer.written
        return StagedTransaction(
            transaction=self._transaction,
            task=self._task.partition,
            rows=written.rows,
            checksum=written.checksum,
            form=Fingerprint.NEWEST,
            topics=self._list_topics(),
            **self._first_record_position(),
        )

    def _list_topics(self) -> tuple[tuple[str, str], ...]:
        found = get_topic_ids(self._client, self.writer.topics)
        planned = self._planned
        if planned is not None and planned.name in found:
            found[planned.name] = planned.id  # this process may have cached another topic's
        return tuple(found.items())

    def _first_record_position(self) -> dict[str, Any]:
        sender = self.writer.sender
        if sender is None or sender.first is None:
            return {}
        tp, offset = sender.first
        return {"topic": tp.topic, "partition": tp.partition, "offset": offset}

    def abort(self) -> None:
        """Abort, if that succeeds within a second; otherwise a later attempt or planner does."""
        if self._transaction is not None:
            if self.writer.sender is not None:
                # First the responses: under TV1, a batch that arrives after the abort would be
                # taken into a transaction that no coordinator knows.
                self.writer.sender.drain()
            transactions.try_abort(self._client, self._transaction)


def check_same(batches: Iterator[pa.RecordBatch], kept: StagedTransaction) -> None:
    """Compare the rows of a task with those that it wrote before, which are visible.

    Raises:
        SinkError: If they differ: then the missing rows are unknown.
    """
    found = Fingerprint(kept.form)
    for batch in batches:
        found.add(batch)
    if (found.rows, found.checksum) != (kept.rows, kept.checksum):
        raise SinkError(
            f"task {kept.task} now has {found.rows} rows; the {kept.rows} rows that it had "
            "before the driver died are different, and are visible. Its epoch was committed in "
            "part, and can only be completed if rows fall into the same tasks, in the same "
            "order, again. Compare topic and source by hand, and continue with "
            f"{NEW_CHECKPOINT}"
        )


# --- rows


class Fingerprint:
    """A checksum by which the rows of a task are recognised.

    The same rows in the same order have the same checksum, however they are divided into batches.
    It omits timestamps, which may be those of the time of writing.

    Args:
        form: The columns that count, and how. 1: of headers only their number in each row. 2:
            headers too.

    Attributes:
        rows: Number of rows that were added.
    """

    NEWEST: ClassVar[int] = 2

    def __init__(self, form: int = NEWEST) -> None:
        self.rows = 0
        self._form = form
        self._sums: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows that follow those added before."""
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
        """The checksum of all rows that were added."""
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
        if len(sizes):  # the column may be a slice, whose buffer has the bytes of other rows too
            self._sum(name, data[int(begins[0]) : int(begins[-1]) + max(int(sizes[-1]), 0)])

    def _sum(self, name: str, numbers: NDArray[Any]) -> None:
        data = np.ascontiguousarray(numbers).view(np.uint8)
        self._sums[name] = crc32c(data, self._sums.get(name, 0))


class TaskWriter:
    """A writer of one task's rows, in bounded memory.

    Attributes:
        written: Fingerprint of the accumulated rows.
        sender: The sender of the batches; None until there is a row.

    Args:
        options: Options of the sink.
        partitioner: Selects the partition of each row.
        open_sender: Called at the first row; returns the sender.
    """

    def __init__(
        self,
        options: KafkaSinkOptions,
        partitioner: Partitioner,
        open_sender: Callable[[], BatchSender],
    ) -> None:
        self.written = Fingerprint()
        self._options = options
        self._partitioner = partitioner
        self._open_sender = open_sender
        self.sender: BatchSender | None = None
        self._accumulators: dict[str, Accumulator] = {}

    @property
    def topics(self) -> Collection[str]:
        """The topics that got rows."""
        return self._accumulators.keys()

    def accumulate(self, batch: pa.RecordBatch) -> None:
        """Encode rows into the batches of their partitions, and send full batches.

        Raises:
            SchemaError: If a row cannot be a record.
            KafkaFailedError: If a leader refuses, or does not answer in time.
        """
        for rows in split_by_topic(batch, self._options.topic) if batch.num_rows else ():
            sender = self._get_sender()
            partitions = self._partitioner.assign(rows)
            accumulator = self._get_accumulator(rows.topic)
            sender.put(rows.topic, accumulator.add(rows.columns, partitions))
            self._send_if_large()
        self.written.add(batch)
        # A partition for each Arrow batch, not for each row: fewer and fuller batches (KIP-480).
        self._partitioner.rotate()

    def flush(self) -> None:
        """Send the batches that are not full, and wait until all are acknowledged.

        Raises:
            KafkaFailedError: If a leader refuses, or does not answer in time.
        """
        if self.sender is not None:
            for topic, accumulator in self._accumulators.items():
                self.sender.put_last(topic, accumulator.flush())
            self.sender.flush()

    def _send_if_large(self) -> None:
        """Send batches that are not full, if they are large together: of many partitions."""
        size = sum(each.buffered_bytes for each in self._accumulators.values())
        if self.sender and size > _MOST_BYTES:
            for topic, accumulator in self._accumulators.items():
                self.sender.put(topic, accumulator.flush())

    def _get_sender(self) -> BatchSender:
        if self.sender is None:
            self.sender = self._open_sender()
            # Only now: the kernels were loading during the request to the coordinator.
            await_warm()
        return self.sender

    def _get_accumulator(self, topic: str) -> Accumulator:
        if topic not in self._accumulators:
            options = self._options
            self._accumulators[topic] = Accumulator(options.batch_bytes, options.compression)
        return self._accumulators[topic]
