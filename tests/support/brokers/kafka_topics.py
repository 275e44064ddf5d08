"""Topics looked at and written to with kafka-python's own consumer and producer."""

import struct
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.protocol.consumer import FetchRequest
from kafka.record import MemoryRecords
from patience import PATIENCE, await_none, await_that

_LEADS_NOT_YET = {3, 6}  # UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER
_TV = "transaction.version"
LIMITS = {"bootstrap_timeout_ms": 10_000, "request_timeout_ms": 10_000}


class Onlooker:
    """Reads topics as anybody does who reads committed records only."""

    def __init__(self, bootstrap: str, node: int = 1) -> None:
        self._node = node
        given = {"bootstrap_servers": bootstrap, "enable_auto_commit": False}
        self._consumer = KafkaConsumer(
            **given, isolation_level="read_committed", max_poll_records=10_000
        )
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap, **LIMITS)

    def close(self) -> None:
        self._consumer.close()
        self._admin.close()

    def records(self, topic: str) -> list:
        """All records that can be read now, once no transaction is being committed."""
        self._await_markers()
        places = [TopicPartition(topic, n) for n in self._partitions(topic)]
        self._consumer.assign(places)
        self._consumer.seek_to_beginning()
        ends = self._consumer.end_offsets(places)
        found, until = [], time.monotonic() + PATIENCE
        while any(self._consumer.position(place) < end for place, end in ends.items()):
            assert time.monotonic() < until, f"{topic} cannot be read to {ends}"
            for some in self._consumer.poll(timeout_ms=200).values():
                found += some
        return found

    def committed(self, topic: str) -> list:
        """The records of committed transactions, also of those after one that is still open.

        Read uncommitted, and judged by the markers in the log.
        """
        self._await_markers()
        return [
            record
            for partition in self._partitions(topic)
            for record in _judged(self._batches(topic, partition))[0]
        ]

    def waiting(self, topic: str) -> list:
        """The records of transactions that are open."""
        return [
            record
            for partition in self._consumer.partitions_for_topic(topic) or ()
            for records in _judged(self._batches(topic, partition))[1].values()
            for record in records
        ]

    def remove(self, topic: str) -> None:
        """Remove a topic, and wait until it is gone."""
        self._admin.delete_topics([topic])
        await_that(lambda: topic not in self._admin.list_topics(), f"{topic} does not go away")

    def _partitions(self, topic: str) -> Iterable[int]:
        return self._consumer.partitions_for_topic(topic) or ()

    def _batches(self, topic: str, partition: int) -> Iterator:
        offset = 0
        while data := self._fetch(topic, partition, offset):
            records = MemoryRecords(bytes(data))
            while batch := records.next_batch():
                offset = batch.next_offset
                yield batch

    def _fetch(self, topic: str, partition: int, offset: int) -> bytes:
        wanted = FetchRequest.FetchTopic
        part = wanted.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=2**24
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=2**25,
            isolation_level=0,
            topics=[wanted(topic=topic, partitions=[part])],
            max_version=12,
        )

        def of_leader() -> Any:
            """A broker may hear late that it leads a topic which was just made."""
            answer = self._admin._manager.run(self._admin._manager.send, request, self._node)
            (found,) = answer.responses[0].partitions
            assert found.error_code in {0, *_LEADS_NOT_YET}, answer
            return None if found.error_code else found

        return await_that(of_leader, f"nobody leads {topic}").records

    def _await_markers(self) -> None:
        def unmarked() -> list[Any]:
            found = self._admin.list_transactions(state_filters=["PrepareCommit"])
            return [each for each in found.values() if each]

        await_none(unmarked, "not committed to the end")


def _judged(batches: Iterator) -> tuple[list, dict]:
    """The records that count: without a transaction, or in one that was committed.

    And those of transactions that are open, by their producer's id.
    """
    found, waiting = [], defaultdict(list)
    for batch in batches:
        if batch.is_control_batch:
            _, kind = struct.unpack(">hh", next(iter(batch)).key)
            found += waiting.pop(batch.producer_id, []) if kind == 1 else []
            waiting.pop(batch.producer_id, None)
        elif batch.is_transactional:
            waiting[batch.producer_id] += list(batch)
        else:
            found += list(batch)
    return found, waiting


def ask_admin(bootstrap: str, what: str, *args: Any) -> Any:
    """One call of a method of kafka-python's admin client."""
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap, **LIMITS)) as admin:
        return getattr(admin, what)(*args)


def make_topic(
    bootstrap: str, name: str, partitions: int = 1, replicas: int = 1, **configs: str
) -> None:
    """Make a topic, and wait until it can be written; records of 2013 do not age out of it."""
    configs = {"retention.ms": "-1", **configs}
    admin = KafkaAdminClient(bootstrap_servers=bootstrap, **LIMITS)
    admin.create_topics(
        {name: {"num_partitions": partitions, "replication_factor": replicas, "configs": configs}},
        wait_for_metadata=True,
    )
    admin.close()


def set_transaction_version(bootstrap: str, level: int) -> None:
    """The rules of transactions in a cluster: 1 for those before KIP-890, or 2.

    Waits until each broker that is named has heard of it.
    """
    admin = KafkaAdminClient(bootstrap_servers=bootstrap, **LIMITS)
    how = "safe_downgrade" if level == 1 else "upgrade"
    admin.update_features({_TV: (how, level)})
    admin.close()
    for broker in bootstrap.split(","):
        await_that(partial(_has_transaction_version, broker, level))


def _has_transaction_version(broker: str, level: int) -> bool:
    with closing(KafkaAdminClient(bootstrap_servers=broker, **LIMITS)) as admin:
        return admin.describe_features()[_TV]["finalized"][1] == level


def produce(bootstrap: str, topic: str, values: list[bytes], **more: object) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, **LIMITS)
    for value in values:
        producer.send(topic, value, **more)
    producer.flush()
    producer.close()


def in_transaction(
    bootstrap: str, topic: str, values: list[bytes], *, ends: str | None, **more: object
) -> KafkaProducer:
    """Produce in a transaction of its own, and "commit", "abort" or, without an end, leave it."""
    name = f"x-{uuid.uuid4().hex}"
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    for value in values:
        producer.send(topic, value, **more)
    producer.flush()
    if ends is not None:
        getattr(producer, f"{ends}_transaction")()
    return producer


def fill(bootstrap: str, topic: str, rows: int, first: int = 0) -> None:
    """Numbers as text, from the first on, over all partitions."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=20, **LIMITS)
    for number in range(first, first + rows):
        producer.send(topic, b"%d" % number, key=b"%d" % (number % 97))
    producer.flush()
    producer.close()
