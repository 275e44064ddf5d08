"""What is refused before any row moves, and where the epoch log of a sink lies. Planner."""

from __future__ import annotations

import pyarrow as pa

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.client import open_client
from krishiv_spark.kafka.transactions import TransactionVersion, transaction_version
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.rows import check_columns
from krishiv_spark.sinks.kafka.topics import PlannedTopic, writable_topic
from krishiv_spark.storage import StoreUrl
from krishiv_spark.workers import local_folder

__all__ = ["check", "log_location", "planned_topic"]


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
    client = open_client(options.kafka)
    if options.topic is not None:
        is_exact = options.delivery == "exactly-once"
        reads = is_exact and transaction_version(client) is TransactionVersion.TV1
        writable_topic(client, options.topic, reads=reads)


def planned_topic(options: KafkaSinkOptions) -> PlannedTopic | None:
    """The topic of the option ``topic`` as `check` has just seen it; None without that option.

    Raises:
        KafkaFailedError: If it is gone already.
    """
    if options.topic is None:
        return None
    client = open_client(options.kafka)
    found = client.topic_of(options.topic) or writable_topic(client, options.topic, reads=False)
    return PlannedTopic.of(found)


def log_location(options: KafkaSinkOptions, query: str, *, streaming: bool) -> str:
    """Where the epoch log of a query is.

    In the option ``epochLog``, or in the checkpoint. A batch job has none, whatever its options
    say: its log serves the driver's own processes, and goes with the driver; unless it has a
    number, by which it may come again.

    Raises:
        OptionError: If neither option is given, and what is to come again would not be known.
    """
    if options.epoch_log is not None:
        return f"{options.epoch_log.rstrip('/')}/{query}"
    if streaming and options.query_id is not None:
        raise OptionError(
            "krishiv-kafka: with 'queryId' the checkpoint is not touched, so the epoch log needs a "
            "place of its own: give 'epochLog'"
        )
    if options.job is not None and options.checkpoint_location is None:
        raise OptionError(
            "krishiv-kafka: a batch with 'txnAppId' is known again by its epoch log, which needs a "
            "place: give 'epochLog', or in foreachBatch the query's checkpoint, by "
            "'checkpointLocation' or each_batch(..., checkpoint=...)"
        )
    if streaming and options.checkpoint_location is not None:
        in_checkpoint = StoreUrl.parse(options.checkpoint_location) / "krishiv"
        return str(in_checkpoint if options.job is None else in_checkpoint / query)
    return str(local_folder() / "krishiv" / query)
