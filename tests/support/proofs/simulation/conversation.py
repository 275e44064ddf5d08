"""The same messages to brokers and to their double, so that their answers can be compared.

Messages are made, and answers read, by the classes that the sink uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from kafka.protocol.producer import ProduceRequest

from krishiv_spark.kafka.fetches import PartitionFetch
from krishiv_spark.kafka.fetches import build_fetch as fetch
from krishiv_spark.kafka.fetches import read_response as fetched
from krishiv_spark.kafka.list_offsets import ListOffsets
from krishiv_spark.kafka.records import Accumulator, RecordColumns
from krishiv_spark.kafka.topic_partition import LATEST, TopicPartition
from krishiv_spark.kafka.transaction_requests import (
    AddPartitionsToTxn,
    DescribeTransactions,
    EndTxn,
    FenceProducer,
    InitProducerId,
    Transaction,
    TransactionDescription,
    TransactionVersion,
)

__all__ = ["Conversation", "Ticket"]

_TIMEOUT_MS = 60_000
_PREPARED = {"PrepareCommit", "PrepareAbort"}

Answered = tuple[Any, ...]


@dataclass
class Ticket:
    """The result of an InitProducerId for a client, and the records that it has sent.

    Attributes:
        name: The transactional id.
        producer: Producer id.
        epoch: The epoch of the producer.
        sent: Records, by partition.
    """

    name: str
    producer: int
    epoch: int
    sent: dict[int, int] = field(default_factory=dict)


class Conversation:
    """Messages, one after another; each answer is a tuple without what differs from day to day.

    Args:
        send: Sends a message and returns the response.
        settle: Called after each message that may have ended a transaction: waits until its
            markers are written.
        topic: Which is written to.
        rules: Of transactions that begin.

    Attributes:
        tickets: All that were given.
    """

    def __init__(
        self, send: Callable[[Any], Any], settle: Callable[[], None], topic: str, rules: Any
    ) -> None:
        self.tickets: list[Ticket] = []
        self._send = send
        self._settle = settle
        self._topic = topic
        self._rules = rules
        self._producers: list[int] = []

    def _shown(self, producer: int) -> int:
        """Producer ids are counted as they appear."""
        if producer < 0:
            return producer
        if producer not in self._producers:
            self._producers.append(producer)
        return self._producers.index(producer)

    def _ask(self, kind: Any, items: Sequence[Any]) -> list[tuple[Any, int, Any]]:
        return list(kind.answers(self._send(kind.request(list(items))), list(items)))

    def begin(self, name: str, timeout_ms: int = _TIMEOUT_MS) -> Answered:
        """InitProducerId."""
        ((_, code, answer),) = self._ask(InitProducerId(timeout_ms), [name])
        self._settle()
        if code:
            return (code,)
        self.tickets.append(Ticket(name, answer.producer_id, answer.producer_epoch))
        return code, self._shown(answer.producer_id), answer.producer_epoch

    def fence(self, ticket: Ticket) -> Answered:
        """InitProducerId by somebody else, who knows the producer."""
        meant = TransactionDescription("", ticket.producer, ticket.epoch, -1, _TIMEOUT_MS, ())
        request = FenceProducer({ticket.name: meant}).request([ticket.name])
        code = self._send(request).error_code
        self._settle()
        return (code,)

    def add(self, ticket: Ticket, partition: int) -> Answered:
        """AddPartitionsToTxn."""
        kind = AddPartitionsToTxn(self._transaction(ticket, 1))
        ((_, code, _),) = self._ask(kind, [TopicPartition(self._topic, partition)])
        return (code,)

    def end(self, ticket: Ticket, rules: Any, *, commit: bool) -> Answered:
        """EndTxn."""
        kind = EndTxn({ticket.name: self._transaction(ticket, rules)}, commit)
        ((_, code, _),) = self._ask(kind, [ticket.name])
        self._settle()
        return (code,)

    def _transaction(self, ticket: Ticket, rules: Any) -> Transaction:
        return Transaction(
            transactional_id=ticket.name,
            producer_id=ticket.producer,
            producer_epoch=ticket.epoch,
            version=TransactionVersion(rules),
        )

    def produce(self, ticket: Ticket, partition: int, *, again: bool = False) -> Answered:
        """Produce one record; again: the newest one once more."""
        sent = ticket.sent.get(partition, 0)
        first = max(0, sent - 1) if again else sent
        batch = _batch(f"{ticket.producer} {ticket.epoch} {first}")
        data = batch.to_bytes(ticket.producer, ticket.epoch, first, transactional=True)
        answer = self._send(self._produce_request(ticket.name, partition, data))
        (part,) = answer.responses[0].partition_responses
        if not part.error_code and not again:
            ticket.sent[partition] = sent + 1
        return part.error_code, part.base_offset

    def _produce_request(self, name: str, partition: int, data: bytes) -> Any:
        topic = ProduceRequest.TopicProduceData
        part = topic.PartitionProduceData(index=partition, records=data)
        newest = 12 if self._rules == 2 else 11
        return ProduceRequest(
            transactional_id=name,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[topic(name=self._topic, partition_data=[part])],
            min_version=3,
            max_version=newest,
        )

    def describe(self, name: str) -> Answered:
        """DescribeTransactions."""
        ((_, code, now),) = self._ask(DescribeTransactions(), [name])
        if code:
            return (code,)
        return now.state, self._shown(now.producer_id), now.producer_epoch, sorted(now.partitions)

    def is_settled(self, name: str) -> bool:
        """Return True if the markers of an id's transaction are written."""
        return self.describe(name)[0] not in _PREPARED

    def ends(self, partition: int) -> Answered:
        """The last stable offset, and the end."""
        tp = TopicPartition(self._topic, partition)
        kinds = [ListOffsets({tp: LATEST}, committed=each) for each in (True, False)]
        return tuple(self._ask(kind, [tp])[0][2].offset for kind in kinds)

    def records(self, partition: int) -> bytes:
        """All of a partition, of open and of aborted transactions too."""
        wanted = PartitionFetch(TopicPartition(self._topic, partition), "", 0, 2**20)
        (answer,) = fetched(self._send(fetch([wanted], committed=False, most_bytes=2**20)), {})
        return bytes(answer.records)


def _batch(text: str) -> Any:
    rows = Accumulator()
    columns = RecordColumns(pa.array([text.encode()]), None, None, 1)
    list(rows.add(columns, np.zeros(1, np.int32)))
    (batch,) = rows.flush()
    return batch
