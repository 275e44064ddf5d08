"""The requests of an epoch of the Kafka sink, one after the other on a bare socket.

No thread, no log, no options, no process but this one: what is left is what the brokers take, and
the encoding of messages. Under the same order of requests, no sink can be faster.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.bare_commits import Loop
from benchmarks.topics import PARTITIONS, Topics
from benchmarks.writers import KEYED
from krishiv_spark.kafka.metadata import MetadataQuery
from krishiv_spark.kafka.records import Accumulator, EncodedBatch, RecordColumns, partition_rows
from krishiv_spark.kafka.transaction_requests import (
    DescribeTransactions,
    EndTxn,
    InitProducerId,
    Transaction,
    TransactionVersion,
)
from krishiv_spark.kafka.transactions import COMMITTING

__all__ = ["bare_epochs"]

_TIMEOUT_MS = 900_000
_SLOTS = 8
_VERSIONS = {"MetadataRequest": 12, "DescribeTransactionsRequest": 0, "InitProducerIdRequest": 4}
"""Of messages that do not say themselves which; what any broker of today knows."""


class _BareBroker:
    """One broker, over a socket that is waited for."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = 0

    def ask(self, request: Any) -> Any:
        """Return the answer to a message."""
        if request.API_VERSION is None:
            request.API_VERSION = _VERSIONS[type(request).__name__]
        self._number += 1
        request.with_header(correlation_id=self._number, client_id="bare")
        self.socket.sendall(request.encode(framed=True, header=True))
        (size,) = struct.unpack(">i", self._received(4))
        data = memoryview(self._received(size))
        # With tagged fields the header has a byte more; all of these messages do.
        return request.header.get_response_class().decode(data[5:])

    def _received(self, size: int) -> bytes:
        pieces = []
        while size:
            pieces.append(self.socket.recv(size))
            size -= len(pieces[-1])
        return b"".join(pieces)


@contextmanager
def bare_epochs(topics: Topics, topic: str) -> Iterator[Loop]:
    """Epochs of one task, by the requests that the sink sends for them, in their order."""
    bare = _BareBroker(topics.bootstrap)
    batches = _encoded()
    start = f"bare.{topic}.0."

    def commit(number: int) -> None:
        ids = [f"{start}{slot}" for slot in range(_SLOTS)]
        mine = ids[number % 2 * (_SLOTS // 2)]
        bare.ask(MetadataQuery((topic,), operations=True).request())
        describe = DescribeTransactions()
        bare.ask(describe.request([mine]))
        begun = bare.ask(InitProducerId(_TIMEOUT_MS).request([mine]))
        bare.ask(_produce(topic, mine, begun, batches))
        bare.ask(describe.request([mine]))
        named = Transaction(
            transactional_id=mine,
            producer_id=begun.producer_id,
            producer_epoch=begun.producer_epoch,
            version=TransactionVersion.TV2,
        )
        bare.ask(EndTxn({mine: named}, commit=True).request([mine]))
        while any(
            each.transaction_state == COMMITTING
            for each in bare.ask(describe.request(ids)).transaction_states
        ):
            pass

    try:
        yield Loop(commit, KEYED)
    finally:
        bare.socket.close()


def _encoded() -> list[EncodedBatch]:
    columns = RecordColumns(KEYED.column("value"), KEYED.column("key"), None, 0)
    accumulator = Accumulator()
    full = list(accumulator.add(columns, partition_rows(columns.key, None, PARTITIONS, 0)))
    return [*full, *accumulator.flush()]


def _produce(topic: str, name: str, begun: Any, batches: list[EncodedBatch]) -> Any:
    from kafka.protocol.producer import ProduceRequest

    data = ProduceRequest.TopicProduceData
    who = begun.producer_id, begun.producer_epoch, 0
    parts = [
        data.PartitionProduceData(index=b.partition, records=b.to_bytes(*who, transactional=True))
        for b in batches
    ]
    return ProduceRequest(
        transactional_id=name,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[data(name=topic, partition_data=parts)],
        version=12,
    )
