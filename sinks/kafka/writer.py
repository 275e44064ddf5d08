"""``krishiv-kafka`` as a sink: exactly once for readers with ``isolation.level=read_committed``.

Each task opens a transaction, writes its rows into it, and leaves it open. The driver logs an
intent that names all transactions of the epoch, and only then commits them, one by one, which can
be repeated. The unit of parallelism is Spark's task; each transaction becomes visible in one step,
an epoch within milliseconds, transaction by transaction.

A transactional id is ``<prefix>.<query id>.<task>.<slot>``. Slots are few, since brokers keep ids
for days, and an attempt takes one under which nothing is open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from krishiv_spark.kafka.client import open_client
from krishiv_spark.sinks.base import (
    AtLeastOnceWriter,
    Epoch,
    Ownership,
    Salvaged,
    Task,
)
from krishiv_spark.sinks.kafka import attempts
from krishiv_spark.sinks.kafka.attempts import StagedTransaction
from krishiv_spark.sinks.kafka.checks import check, planned_topic
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.participant import KafkaParticipant
from krishiv_spark.sinks.kafka.topics import PlannedTopic
from krishiv_spark.sinks.log_places import log_in_checkpoint
from krishiv_spark.sinks.log_view import LogView
from krishiv_spark.sinks.logged_writer import LoggedWriter
from krishiv_spark.spark.query_target import QueryTarget, digest_of

__all__ = ["KafkaAtLeastOnceWriter", "KafkaPlan", "KafkaWriter", "StagedTransaction"]


@dataclass(frozen=True)
class KafkaPlan:
    """What the planner has found out, for all tasks of an epoch.

    Attributes:
        topic: Of the option ``topic``; None without that option.
        turn: How many generations have begun, with this one.
        salvaged: What of an epoch is visible already, and must not be staged again.
    """

    topic: PlannedTopic | None
    turn: int
    salvaged: Salvaged[StagedTransaction] | None = None

    def salvaged_of(self, task: Task) -> StagedTransaction | None:
        """What a task has written that is visible already."""
        if self.salvaged is None or self.salvaged.epoch != task.epoch:
            return None
        return next((item for item in self.salvaged.staged if item.task == task.partition), None)


class KafkaWriter(LoggedWriter[StagedTransaction, KafkaPlan]):
    """An epoch is true when its intent is in the log (`EpochLog.intend`)."""

    options_type = KafkaSinkOptions
    options: KafkaSinkOptions

    # --- planner

    def check(self) -> None:
        """Planner: the rows can be records, and the cluster and its topic are there."""
        check(self.options, self.schema, self.mode, streaming=self.streaming)

    def describe_target(self) -> QueryTarget:
        """Driver: the cluster and the topic."""
        return _describe(self.options)

    def plan(self, ownership: Ownership[StagedTransaction] | None) -> KafkaPlan:
        """Planner: the topic as `check` has seen it, and what the log has said."""
        topic = planned_topic(self.options)
        if ownership is None:
            return KafkaPlan(topic, 0)
        return KafkaPlan(topic, ownership.generations, ownership.salvaged)

    # --- executor

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: KafkaPlan
    ) -> StagedTransaction | None:
        """Executor: write the rows into a transaction of this attempt, and leave it open.

        Rows that are visible already, of an epoch that was committed in part, are only compared.
        """
        salvaged = plan.salvaged_of(task)
        if salvaged is not None:
            attempts.check_same(batches, salvaged)
            return salvaged
        return attempts.stage(batches, task, self.options, plan.turn, plan.topic)

    # --- driver

    def participant(self, view: LogView) -> KafkaParticipant:
        """Driver: the brokers."""
        return KafkaParticipant(self.options, view.is_owner, streaming=self.streaming)

    def log_location(self, query: str) -> str:
        """Driver: in the checkpoint, or where the option ``epochLog`` says."""
        return log_in_checkpoint(self.options, "krishiv-kafka", query, streaming=self.streaming)


class KafkaAtLeastOnceWriter(AtLeastOnceWriter[None, PlannedTopic | None]):
    """Records are visible as they are written; an epoch that is replayed is written again."""

    options_type = KafkaSinkOptions
    options: KafkaSinkOptions

    def check(self) -> None:
        """Planner: the rows can be records, and the cluster and its topic are there."""
        check(self.options, self.schema, self.mode, streaming=self.streaming)

    def describe_target(self) -> QueryTarget:
        """Driver: the cluster and the topic."""
        return _describe(self.options)

    def plan(self, ownership: Ownership[None] | None) -> PlannedTopic | None:
        """Planner: the topic as `check` has seen it."""
        del ownership
        return planned_topic(self.options)

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: PlannedTopic | None
    ) -> None:
        """Executor: write the rows, idempotently within this attempt."""
        attempts.write_plainly(batches, task, self.options, plan)

    def publish(self, epoch: Epoch, staged: Sequence[None]) -> None:
        """Nothing is left to do."""


def _describe(options: KafkaSinkOptions) -> QueryTarget:
    """Return the cluster by its own id, with the topic that the options name for all rows."""
    cluster = f"Kafka cluster {open_client(options.kafka).fetch_cluster_id()}"
    if options.topic is None:
        return QueryTarget.of("krishiv-kafka", "topics of a column", cluster)
    # Only a digest: the name may come from a reference to a secret.
    identity = f"{cluster}, topic {digest_of(options.topic)[:12]}"
    return QueryTarget.of("krishiv-kafka", options.topic, identity, options.secrets())
