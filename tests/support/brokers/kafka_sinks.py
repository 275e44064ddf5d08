"""``krishiv-kafka`` as a sink into a topic of its own, for the kit."""

import json
import uuid
from collections.abc import Callable

import pyarrow as pa
from kafka_calls import REQUESTS
from kafka_topics import make_topic

from krishiv_spark.formats import KafkaDataSource
from krishiv_spark.testing import FILES, SinkUnderTest


def record(number):
    return f"k{number}", json.dumps({"n": number}).encode()


def into_topic(bootstrap: str, look: Callable, waiting: Callable) -> SinkUnderTest:
    """The sink.

    Args:
        bootstrap: Of the brokers.
        look: Records of a topic, as a reader sees them.
        waiting: Transactions that are open in a topic.
    """
    topic = f"t-{uuid.uuid4().hex}"
    make_topic(bootstrap, topic, partitions=2)
    return SinkUnderTest(
        source=KafkaDataSource,
        options={"kafka.bootstrap.servers": bootstrap, "topic": topic},
        schema=pa.schema([("key", pa.string()), ("value", pa.binary())]),
        row=record,
        any_value=("value",),
        most_held=2**25,  # what waits for the broker's answers
        oracle=lambda: [(each.key.decode(), each.value) for each in look(topic)],
        leftovers=lambda: waiting(topic),
        whole_epochs=False,  # a transaction becomes visible, then the next
        complete=False,
        overwrite=False,
        outside={**FILES, **REQUESTS},
    )
