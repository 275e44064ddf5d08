"""Producer epochs near their end, without thirty thousand transactions before them.

A coordinator keeps what it knows in a topic, and reads it when it starts. So the newest record of a
transactional id is written once more with a higher epoch, and the broker started again.
"""

import struct
import time
from collections.abc import Mapping

from kafka.protocol.producer import ProduceRequest
from kafka.record import MemoryRecordsBuilder

from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import Cluster

LAST_EPOCH = 32_766
"""The last that a coordinator gives to a producer (``TransactionMetadata.isEpochExhausted``)."""

_TOPIC = "__transaction_state"
_WRITER = {"client.id": "__admin_client"}  # who may write to topics of the brokers' own
_EMPTY = 0
_TIMEOUT_MS = 60_000


def raise_epochs(cluster: Cluster, epochs: Mapping[str, int]) -> None:
    """Start the only broker of a cluster again, with other epochs of ids that have nothing open."""
    client = KafkaClient(
        KafkaConfig.from_settings({"bootstrap.servers": cluster.bootstrap, **_WRITER})
    )
    known = transactions.describe(client, list(epochs))
    partitions = len(client.fetch_topics([_TOPIC])[_TOPIC].leaders)
    for name, epoch in epochs.items():
        partition = abs(_java_hash(name)) % partitions
        _write(client, partition, _record(name, known[name].producer_id, epoch))
    client.close()
    cluster.brokers[0].kill()
    cluster.brokers[0].start()
    cluster.wait()


def _record(name: str, producer_id: int, epoch: int) -> bytes:
    """``TransactionLogKey`` and ``TransactionLogValue``, version 0 of both."""
    now = time.time_ns() // 1_000_000
    key = struct.pack(">hh", 0, len(name)) + name.encode()
    no_partitions, not_begun = -1, -1
    found = (producer_id, epoch, _TIMEOUT_MS, _EMPTY, no_partitions, now, not_begun)
    builder = MemoryRecordsBuilder(2, 0, 2**16)
    builder.append(timestamp=now, key=key, value=struct.pack(">hqhibiqq", 0, *found))
    builder.close()
    return builder.buffer()


def _write(client: KafkaClient, partition: int, records: bytes) -> None:
    topic = ProduceRequest.TopicProduceData
    part = topic.PartitionProduceData(index=partition, records=records)
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[topic(name=_TOPIC, partition_data=[part])],
        min_version=3,
        max_version=9,
    )
    (answer,) = client.ask([(client.list_nodes()[0], request)])
    assert not answer.responses[0].partition_responses[0].error_code, answer


def _java_hash(text: str) -> int:
    """``String.hashCode``."""
    found = 0
    for letter in text:
        found = (31 * found + ord(letter)) % 2**32
    return found - 2**32 if found >= 2**31 else found
