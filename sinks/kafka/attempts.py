"""One attempt at a task, in a transaction of its own. Executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from krishiv_spark.errors import SinkError
from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import KafkaClient, open_client
from krishiv_spark.kafka.records import warm_ahead
from krishiv_spark.kafka.transactions import Transaction, TransactionVersion
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets.offset import Value
from krishiv_spark.sinks.base import Task
from krishiv_spark.sinks.kafka.batch_sender import BatchSender
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.partition_queue import ProducerIdAndEpoch
from krishiv_spark.sinks.kafka.partitioner import Partitioner
from krishiv_spark.sinks.kafka.sweeping import try_abort
from krishiv_spark.sinks.kafka.task_writer import Fingerprint, TaskWriter
from krishiv_spark.sinks.kafka.topics import PlannedTopic, topic_ids

__all__ = [
    "StagedTransaction",
    "check_same",
    "slot_ids",
    "stage",
    "transactional_ids",
    "write_plainly",
]

_TURNS, _SLOTS = 2, 4
"""Of generations, and of attempts at one task in each."""


class StagedTransaction(Value):
    """What a task has staged: a transaction, open, with every record acknowledged.

    Attributes:
        transaction: With the producer id and epoch by which the driver ends it.
        task: Number of the task.
        rows: How many rows.
        checksum: See `krishiv_spark.sinks.kafka.task_writer.Fingerprint`.
        topic: One of the topics that it wrote to; with `partition` and `offset`, where records of
            it lie, and after them the marker that ends it.
        partition: Of that topic.
        offset: Of the first record there; -1 if it is not known.
        form: Of the checksum.
        topics: The topics that it wrote to with their ids; none where the cluster has no ids.
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


def transactional_ids(prefix: str, task: Task, turn: int) -> list[str]:
    """The ids that an attempt may take: ``<prefix>.<query id>.<task>.<slot>``.

    Whoever initialises an id aborts what is open under it, so an attempt takes the first one under
    which nothing is open. Neighbouring generations have different ids, by their turn. Within one,
    Spark has at most four attempts at a task alive: one, its speculative copy, and both once more
    where a stage is run again while tasks of its first run go on. Brokers remember an id for days.

    Args:
        prefix: Of the sink.
        task: Query, partition and number of the attempt.
        turn: How many generations have begun, with this one.

    Returns:
        In the order in which they are looked at. An attempt and its speculative copy, whose numbers
        follow one another, begin with different ones.
    """
    first = turn % _TURNS * _SLOTS
    slots = [first + (task.attempt_number + n) % _SLOTS for n in range(_SLOTS)]
    return [f"{prefix}.{task.query}.{task.partition}.{slot}" for slot in slots]


def slot_ids(prefix: str, query: str, tasks: int) -> list[str]:
    """Every id that the tasks of a query may ever take.

    Args:
        prefix: Of the sink.
        query: Id that Spark keeps in the query's checkpoint.
        tasks: How many, from 0 on.
    """
    slots = range(_TURNS * _SLOTS)
    return [f"{prefix}.{query}.{task}.{slot}" for task in range(tasks) for slot in slots]


def stage(
    batches: Iterable[pa.RecordBatch],
    task: Task,
    options: KafkaSinkOptions,
    turn: int = 0,
    planned: PlannedTopic | None = None,
) -> StagedTransaction | None:
    """Write rows into a transaction, and leave it open.

    Args:
        batches: The rows, in Spark's order; pulled one at a time.
        task: Its names choose the transactional id.
        options: Of the sink.
        turn: How many generations have begun, with this one.
        planned: The topic of the option ``topic``, for all tasks of the epoch; None to look it up.

    Returns:
        None if there were no rows; then no transaction was opened either.

    Raises:
        SchemaError: If a row cannot be a record.
        KafkaFailedError: If a broker refuses something, or does not answer in time.
    """
    warm_ahead()
    ids = transactional_ids(options.id_prefix, task, turn)
    attempt = _Attempt(open_client(options.kafka), task, options, ids, planned)
    try:
        for batch in batches:
            attempt.writer.accumulate(batch)
        attempt.writer.flush()
    # Any end of a task leaves a transaction open, an interruption as well.
    except BaseException:
        attempt.abort()
        raise
    return attempt.leave_open()


def write_plainly(
    batches: Iterable[pa.RecordBatch],
    task: Task,
    options: KafkaSinkOptions,
    planned: PlannedTopic | None = None,
) -> None:
    """Write rows without a transaction: each once in this attempt, and visible at once.

    Args:
        batches: The rows, in Spark's order; pulled one at a time.
        task: Its numbers say at which partition records without a key begin.
        options: Of the sink.
        planned: As for `stage`.

    Raises:
        SchemaError: If a row cannot be a record.
        KafkaFailedError: If a broker refuses something, or does not answer in time.
    """
    warm_ahead()
    client = open_client(options.kafka)

    # Records without a key begin at another partition in each task and epoch, or small epochs would
    # all go to the first.
    def start() -> BatchSender:
        return BatchSender(client, ProducerIdAndEpoch(*transactions.plain_producer(client)))

    writer = TaskWriter(options, Partitioner(client, planned, task.partition + task.epoch), start)
    for batch in batches:
        writer.accumulate(batch)
    writer.flush()


class _Attempt:
    """A transaction, from the first row that a task writes to its end."""

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
        partitioner = Partitioner(client, planned, task.partition + task.epoch)
        self.writer = TaskWriter(options, partitioner, self._begin)

    def _begin(self) -> BatchSender:
        name = transactions.first_free(self._client, self._ids)
        begun = transactions.begin(self._client, name, self._options.timeout_ms)
        self._transaction = begun
        who = ProducerIdAndEpoch(begun.producer_id, begun.producer_epoch, name, begun.rules)
        if begun.rules is TransactionVersion.TV2:  # Produce itself adds partitions
            return BatchSender(self._client, who)
        add = transactions.add_partitions
        return BatchSender(
            self._client, who, lambda partitions: add(self._client, begun, partitions)
        )

    def leave_open(self) -> StagedTransaction | None:
        """Name the transaction for whoever commits it; None if there were no rows."""
        if self._transaction is None:
            return None
        written = self.writer.written
        return StagedTransaction(
            transaction=self._transaction,
            task=self._task.partition,
            rows=written.rows,
            checksum=written.checksum,
            form=Fingerprint.NEWEST,
            topics=self._topics(),
            **self._somewhere(),
        )

    def _topics(self) -> tuple[tuple[str, str], ...]:
        found = topic_ids(self._client, self.writer.topics)
        planned = self._planned
        if planned is not None and planned.name in found:
            found[planned.name] = planned.id  # what this process remembers may be of another topic
        return tuple(found.items())

    def _somewhere(self) -> dict[str, Any]:
        sender = self.writer.sender
        if sender is None or sender.first is None:
            return {}
        tp, offset = sender.first
        return {"topic": tp.topic, "partition": tp.partition, "offset": offset}

    def abort(self) -> None:
        """Abort at once, if that is easy; otherwise whoever comes next does it."""
        if self._transaction is not None:
            if self.writer.sender is not None:
                # First the answers: by rules before TV2, a batch that arrives after the abort would
                # be taken into a transaction that no coordinator knows.
                self.writer.sender.drain()
            try_abort(self._client, self._transaction)


def check_same(batches: Iterator[pa.RecordBatch], kept: StagedTransaction) -> None:
    """Compare the rows of a task with those that it wrote before, which are visible.

    Raises:
        SinkError: If they are others: then nobody knows which rows are missing.
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
