"""The topic between the two streams of ``./run demo --kafka``, at a real broker."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import NewTopic

from krishiv_spark.kafka.dev import open_cluster

PARTITIONS = 4
KEPT = {"retention.ms": "-1"}
"""Records have the time of their flights, 2013: brokers remove what is older than a week."""


@dataclass(frozen=True)
class Topic:
    """The topic that the flights go through.

    Attributes:
        bootstrap: The brokers.
        name: Of the topic.
    """

    bootstrap: str
    name: str


@contextmanager
def opened() -> Iterator[tuple[Topic, str]]:
    """Create a topic, temporarily or at KRISHIV_TEST_KAFKA; yield it and the origin."""
    with open_cluster() as cluster, contextlib.ExitStack() as stack:
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        stack.callback(admin.close)
        topic = Topic(cluster.bootstrap, f"flights-{uuid.uuid4().hex[:6]}")
        admin.create_topics([NewTopic(topic.name, PARTITIONS, -1, topic_configs=KEPT)])
        stack.callback(admin.delete_topics, [topic.name])
        yield topic, cluster.origin


def flights_in(topic: Topic, schema: pa.Schema) -> pa.Table:
    """Return the records that kafka-python's consumer of committed records finds."""
    consumer = KafkaConsumer(
        bootstrap_servers=topic.bootstrap,
        isolation_level="read_committed",
        enable_auto_commit=False,
        max_poll_records=10_000,
    )
    with contextlib.closing(consumer):
        partitions = [TopicPartition(topic.name, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        return pa.Table.from_pylist(list(_records(consumer, partitions)), schema)


def _records(
    consumer: KafkaConsumer, partitions: list[TopicPartition]
) -> Iterator[dict[str, object]]:
    ends = consumer.end_offsets(partitions)
    while any(consumer.position(tp) < end for tp, end in ends.items()):
        for some in consumer.poll(timeout_ms=1000).values():
            for record in some:
                yield {**json.loads(record.value), "scheduled": record.timestamp * 1000}
