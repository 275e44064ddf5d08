"""The Kafka sink with the options of a scenario."""

from __future__ import annotations

import functools

import pyarrow as pa

from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.writer import KafkaWriter
from simulation.cluster.brokers import TOPIC
from simulation.scenario import Scenario

__all__ = ["kafka_writer"]

_SCHEMA = pa.schema([("value", pa.string())])


def kafka_writer(scenario: Scenario, *, streaming: bool = True) -> KafkaWriter:
    """As Spark makes one in each process that needs one."""
    return KafkaWriter(_options(scenario), _SCHEMA, OutputMode.APPEND, streaming=streaming)


@functools.lru_cache(maxsize=64)
def _options(scenario: Scenario) -> KafkaSinkOptions:
    given = {
        "kafka.bootstrap.servers": "simulated:1",
        "topic": TOPIC,
        "checkpointLocation": "/chk",
        "epochLog": "/log",
        "onLostTransactions": scenario.on_lost,
        "kafka.transaction.timeout.ms": str(1000 * scenario.timeout_s),
        "kafka.default.api.timeout.ms": "2000",
        "kafka.batch.size": "1" if scenario.pieces else "1000000",
    }
    return KafkaSinkOptions.parse(given, "krishiv-kafka")
