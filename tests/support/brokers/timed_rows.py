"""Rows with times that another program produces into topics, as JSON."""

import datetime as dt
import json
from typing import Any

import pyarrow as pa
from kafka import KafkaProducer
from kafka.errors import KafkaConnectionError

from krishiv_spark.kafka.client import KafkaFailedError
from krishiv_spark.testing import ROW_SCHEMA
from krishiv_spark.testing.subjects import default_row

TIMED = pa.schema([*ROW_SCHEMA, ("timestamp", pa.timestamp("us", "UTC"))])
REQUESTS = {
    "krishiv_spark.kafka.client:KafkaClient.ask": KafkaFailedError,
    "krishiv_spark.kafka.client:KafkaClient.submit": KafkaFailedError,
    "krishiv_spark.kafka.client:KafkaClient.wait": KafkaConnectionError,  # tried again
}
"""The requests of a reader to a broker, for the kit."""

_NEW_YEAR = dt.datetime(2013, 1, 1, tzinfo=dt.timezone.utc)


def timed_row(number: int) -> tuple[Any, ...]:
    """A row a minute."""
    return (*default_row(number), _NEW_YEAR + dt.timedelta(minutes=number))


def send(producer: KafkaProducer, topic: str, rows: list[tuple[Any, ...]]) -> None:
    """Produce rows, and wait until they are there."""
    for number, text, at in rows:
        value = json.dumps({"id": number, "text": text}).encode()
        producer.send(topic, value, timestamp_ms=int(at.timestamp() * 1000))
    producer.flush()
