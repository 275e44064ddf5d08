"""``krishiv-kafka`` as a sink: exactly once for readers with ``isolation.level=read_committed``.

Each task opens a transaction, writes its rows into it, and leaves it open. The driver logs an
intent that names all transactions of the epoch, and only then commits them, one by one, which can
be repeated. The unit of parallelism is Spark's task. Each transaction becomes visible in one step,
and an epoch within milliseconds, transaction by transaction.

A transactional id is ``<prefix>.<query id>.<task>.<slot>``. Slots are few, since brokers keep ids
for days, and an attempt uses one under which no transaction is open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.client import KafkaClient, open_client
from krishiv_spark.kafka.transaction_requests import TransactionVersion
from krishiv_spark.kafka.transactions import check_transactions, get_transaction_version
from krishiv_spark.runtime.contact import has_contacted, record_contact
from krishiv_spark.sinks.base import (
    AtLeastOnceWriter,
    Epoch,
    OutputMode,
    Ownership,
    Salvaged,
    Task,
)
from krishiv_spark.sinks.kafka import task as tasks
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.participant import KafkaParticipant
from krishiv_spark.sinks.kafka.row_records import check_columns
from krishiv_spark.sinks.kafka.target_topics import PlannedTopic, fetch_writable_topic
from krishiv_spark.sinks.kafka.task import StagedTransaction
from krishiv_spark.sinks.logged_writer import LoggedWriter, LogView
from krishiv_spark.sinks.options import log_in_checkpoint
from krishiv_spark.spark.query_target import QueryTarget, digest_of

if TYPE_CHECKING:
    from krishiv_spark.sinks.kafka.registered_rows import PlannedSchemas

__all__ = [
    "KafkaAtLeastOnceWriter",
    "KafkaPlan",
    "KafkaWriter",
    "StagedTransaction",
    "check_writable",
]


@dataclass(frozen=True)
class KafkaPlan:
    """The planner's results, for all tasks of an epoch.

    Attributes:
        topic: The topic of the option ``topic``; None without that option.
        generation_count: Number of generations so far, including this one.
        salvaged: The part of an epoch that is visible already, and must not be staged again.
        schemas: The schemas of an epoch; empty for raw records.
        salvaged_schemas: Those with which the salvaged part was written.
    """

    topic: PlannedTopic | None
    generation_count: int = 0
    salvaged: Salvaged[StagedTransaction] | None = None
    schemas: PlannedSchemas = field(default_factory=dict)
    salvaged_schemas: PlannedSchemas = field(default_factory=dict)

    def find_schemas(self, task: Task) -> PlannedSchemas:
        """Return the schemas of a task: those of the salvaged part, if its epoch is written."""
        if self.salvaged is not None and self.salvaged.epoch == task.epoch:
            return self.salvaged_schemas
        return self.schemas

    def already_visible(self, task: Task) -> StagedTransaction | None:
        """Return the part that a task has written and that is visible already; None for none."""
        if self.salvaged is None or self.salvaged.epoch != task.epoch:
            return None
        return next((item for item in self.salvaged.staged if item.task == task.partition), None)


class KafkaWriter(LoggedWriter[StagedTransaction, KafkaPlan]):
    """The exactly-once writer. `EpochLog.intend` is the step that makes an epoch true."""

    options_type = KafkaSinkOptions
    options: KafkaSinkOptions
    takes_records = True

    # --- planner

    def check(self) -> None:
        """Planner: check that the rows can be records, and that the cluster has the topic."""
        check_writable(self.options, self.schema, self.mode, streaming=self.streaming)

    def describe_target(self) -> QueryTarget:
        """Driver: return the cluster and the topic."""
        return _describe(self.options)

    def plan(self, ownership: Ownership[StagedTransaction] | None) -> KafkaPlan:
        """Planner: return the topic that `check` has requested, schemas, and the log's state."""
        topic, schemas = _plan_topic(self.options), _plan_schemas(self.options, self.schema)
        if ownership is None:
            return KafkaPlan(topic, schemas=schemas)
        salvaged = ownership.salvaged
        known = _find_ids(salvaged)
        before = schemas if known is None else _plan_schemas(self.options, self.schema, known)
        return KafkaPlan(topic, ownership.generations, salvaged, schemas, before)

    # --- executor

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: KafkaPlan
    ) -> StagedTransaction | None:
        """Executor: write the rows into a transaction of this attempt, and leave it open.

        Rows that are visible already, of an epoch that was committed in part, are only compared.
        """
        schemas = plan.find_schemas(task)
        rows = _encode(batches, self.options, self.schema, schemas)
        visible = plan.already_visible(task)
        if visible is not None:
            tasks.check_same(rows, visible)
            return visible
        staged = tasks.stage(rows, task, self.options, plan.generation_count, plan.topic)
        if staged is None or not schemas:
            return staged
        ids = tuple((part, each.id) for part, each in schemas.items())
        return staged.model_copy(update={"schemas": ids})

    # --- driver

    def participant(self, view: LogView) -> KafkaParticipant:
        """Driver: return the brokers as a participant."""
        return KafkaParticipant(self.options, view.is_owner, streaming=self.streaming)

    def log_location(self, query: str) -> str:
        """Driver: return the log's location: the checkpoint, or that of the option ``epochLog``."""
        return log_in_checkpoint(self.options, "krishiv-kafka", query, streaming=self.streaming)


class KafkaAtLeastOnceWriter(AtLeastOnceWriter[None, KafkaPlan]):
    """The writer without transactions: records are visible immediately.

    An epoch that is replayed is written again.
    """

    options_type = KafkaSinkOptions
    options: KafkaSinkOptions

    def check(self) -> None:
        """Planner: check that the rows can be records, and that the cluster has the topic."""
        check_writable(self.options, self.schema, self.mode, streaming=self.streaming)

    def describe_target(self) -> QueryTarget:
        """Driver: return the cluster and the topic."""
        return _describe(self.options)

    def plan(self, ownership: Ownership[None] | None) -> KafkaPlan:
        """Planner: return the topic that `check` has requested, and the schemas."""
        del ownership
        schemas = _plan_schemas(self.options, self.schema)
        return KafkaPlan(_plan_topic(self.options), schemas=schemas)

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task, plan: KafkaPlan) -> None:
        """Executor: write the rows, idempotently within this attempt."""
        rows = _encode(batches, self.options, self.schema, plan.schemas)
        tasks.write_idempotent(rows, task, self.options, plan.topic)

    def publish(self, epoch: Epoch, staged: Sequence[None]) -> None:
        """Do nothing: the records are visible."""


# --- what both do in the planner


def check_writable(
    options: KafkaSinkOptions, schema: pa.Schema, mode: OutputMode, *, streaming: bool
) -> None:
    """Refuse rows, modes and topics that cannot be written.

    Raises:
        OptionError: If a batch is to replace the contents of the topic.
        SchemaError: If the rows cannot be records.
        KafkaFailedError: If the cluster cannot be reached, or the topic does not exist or may not
            be written.
    """
    # In mode "complete" a stream appends its whole result each time, as with Spark's own sink.
    if mode is OutputMode.REPLACE and (not streaming or options.job is not None):
        raise OptionError("krishiv-kafka: a topic cannot be overwritten: use mode('append')")
    if options.registered_parts:
        from krishiv_spark.sinks.kafka.registered_rows import RegisteredColumns, check_schemas

        check_columns(RegisteredColumns.from_schema(options, schema).schema, options.topic)
        check_schemas(options, schema)
    else:
        check_columns(schema, options.topic)
    client = _open_first_client(options, streaming=streaming)
    is_exact = options.delivery == "exactly-once"
    if is_exact:
        check_transactions(client)
    if options.topic is not None:
        reads = is_exact and get_transaction_version(client) is TransactionVersion.TV1
        fetch_writable_topic(client, options.topic, reads=reads)


def _find_ids(salvaged: Salvaged[StagedTransaction] | None) -> dict[str, int] | None:
    """Return the ids of the schemas with which a part of an epoch was written; None for none."""
    staged = () if salvaged is None else salvaged.staged
    return next((dict(each.schemas) for each in staged if each.schemas), None)


def _plan_schemas(
    options: KafkaSinkOptions, schema: pa.Schema, known: dict[str, int] | None = None
) -> PlannedSchemas:
    if not options.registered_parts:
        return {}
    from krishiv_spark.sinks.kafka.registered_rows import plan_schemas

    return plan_schemas(options, schema, known)


def _encode(
    batches: Iterator[pa.RecordBatch],
    options: KafkaSinkOptions,
    schema: pa.Schema,
    planned: PlannedSchemas,
) -> Iterator[pa.RecordBatch]:
    if not planned:
        return batches
    from krishiv_spark.sinks.kafka.registered_rows import RegisteredRows

    return RegisteredRows(options, schema, planned).encode(batches)


def _open_first_client(options: KafkaSinkOptions, *, streaming: bool) -> KafkaClient:
    """Return the client; it waits for a cluster that the query has reached before."""
    query = options.query_id or options.checkpoint_location or options.job
    name = f"Kafka {options.kafka.bootstrap} for {query or options.topic}"
    client = open_client(options.kafka, at_start=not (streaming and has_contacted(name)))
    record_contact(name)
    return client


def _plan_topic(options: KafkaSinkOptions) -> PlannedTopic | None:
    """Return the topic that `check_writable` has requested; None without the option ``topic``.

    Raises:
        KafkaFailedError: If it was deleted in the meantime.
    """
    if options.topic is None:
        return None
    client = open_client(options.kafka)
    cached = client.get_topic(options.topic)
    found = cached or fetch_writable_topic(client, options.topic, reads=False)
    return PlannedTopic.from_topic(found)


def _describe(options: KafkaSinkOptions) -> QueryTarget:
    """Return the cluster by its own id, with the topic that the options name for all rows."""
    cluster = f"Kafka cluster {open_client(options.kafka).fetch_cluster_id()}"
    if options.topic is None:
        return QueryTarget.of("krishiv-kafka", "topics of a column", cluster)
    # Only a digest: the name may come from a reference to a secret.
    identity = f"{cluster}, topic {digest_of(options.topic)[:12]}"
    return QueryTarget.of("krishiv-kafka", options.topic, identity, options.secrets())
