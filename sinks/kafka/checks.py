"""What is refused before any row moves. Planner."""

from __future__ import annotations

import pyarrow as pa

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.client import KafkaClient, open_client
from krishiv_spark.kafka.transactions import TransactionVersion, transaction_version
from krishiv_spark.runtime.contact import has_contacted, record_contact
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.rows import check_columns
from krishiv_spark.sinks.kafka.topics import PlannedTopic, writable_topic

__all__ = ["check", "planned_topic"]


def check(
    options: KafkaSinkOptions, schema: pa.Schema, mode: OutputMode, *, streaming: bool
) -> None:
    """Refuse what cannot be written.

    Raises:
        OptionError: If a batch is to replace what is in the topic.
        SchemaError: If the rows cannot be records.
        KafkaFailedError: If the cluster cannot be reached, or the topic is not there or may not be
            written.
    """
    # In mode "complete" a stream appends its whole result each time, as with Spark's own sink.
    if mode is OutputMode.REPLACE and (not streaming or options.job is not None):
        raise OptionError("krishiv-kafka: a topic cannot be overwritten: use mode('append')")
    check_columns(schema, options.topic)
    client = _opened(options, streaming=streaming)
    if options.topic is not None:
        is_exact = options.delivery == "exactly-once"
        reads = is_exact and transaction_version(client) is TransactionVersion.TV1
        writable_topic(client, options.topic, reads=reads)


def _opened(options: KafkaSinkOptions, *, streaming: bool) -> KafkaClient:
    """The client, of a cluster that is waited for if the query has reached it before."""
    query = options.query_id or options.checkpoint_location or options.job
    name = f"Kafka {options.kafka.bootstrap} for {query or options.topic}"
    client = open_client(options.kafka, at_start=not (streaming and has_contacted(name)))
    record_contact(name)
    return client


def planned_topic(options: KafkaSinkOptions) -> PlannedTopic | None:
    """The topic of the option ``topic`` as `check` has just seen it; None without that option.

    Raises:
        KafkaFailedError: If it is gone already.
    """
    if options.topic is None:
        return None
    client = open_client(options.kafka)
    found = client.get_topic(options.topic) or writable_topic(client, options.topic, reads=False)
    return PlannedTopic.of(found)
