"""The sender of a task: bounded memory, parallel requests, each record once. Executor.

An idempotent producer numbers its records. A leader refuses a number that it does not expect, and
recognises the five newest batches of a producer. So batches that were perhaps lost are sent again,
in order.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import KafkaClient, KafkaFailedError, is_retriable
from krishiv_spark.kafka.records import EncodedBatch, next_sequence
from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.kafka.transaction_requests import (
    IdempotentProducer,
    Transaction,
    TransactionVersion,
)
from krishiv_spark.runtime.retry import Backoff

__all__ = ["BatchSender", "InFlightBatch", "PartitionQueue"]

Producer: TypeAlias = Transaction | IdempotentProducer
"""The sender of batches, as brokers know it."""

_MOST_BYTES = 32 * 2**20
"""Bytes of batches that no leader has acknowledged yet."""

_REQUEST_BYTES = 4 * 2**20
_REQUESTS = 5
"""Requests in flight to one broker."""

_IN_FLIGHT = 5
"""Batches of a producer that a leader recognises (``ProducerStateEntry``)."""

_REPLICAS_MS = 30_000
"""Time a leader waits for its replicas (``request.timeout.ms`` of Java's producer)."""

# A duplicate is in the log: its first response was lost. But the leader no longer knows its offset
# (``Sender.completeBatch`` of Java's producer).
_NO_ERROR, _DUPLICATE = 0, 46


# --- one partition


@dataclass
class InFlightBatch:
    """A numbered batch.

    Attributes:
        data: The bytes to send.
        count: Number of records.
        in_flight: True while a response is awaited.
    """

    data: bytes
    count: int
    in_flight: bool = False


class PartitionQueue:
    """The batches of one partition, in order.

    Args:
        tp: The partition.
        producer: The producer whose id and epoch the batches bear.
    """

    def __init__(self, tp: TopicPartition, producer: Producer) -> None:
        self.tp = tp
        self._producer = producer
        self._sequence = 0
        self._waiting: deque[InFlightBatch] = deque()
        self._sent: deque[InFlightBatch] = deque()
        self._backoff: Backoff | None = None
        self._is_acknowledged = False

    def put(self, encoded: EncodedBatch) -> int:
        """Assign the next number to a batch, and return its size in bytes."""
        data = encoded.to_bytes(
            self._producer.producer_id,
            self._producer.producer_epoch,
            self._sequence,
            transactional=isinstance(self._producer, Transaction),
        )
        self._sequence = next_sequence(self._sequence, encoded.count)
        self._waiting.append(InFlightBatch(data, encoded.count))
        return len(data)

    def is_waiting(self) -> bool:
        """Return True if a batch is not in flight."""
        return bool(self._waiting)

    def is_empty(self) -> bool:
        """Return True if all batches are acknowledged."""
        return not self._waiting and not self._sent

    def is_ready(self) -> bool:
        """Return True if the next batch may be sent now.

        The first one is sent alone. A leader that does not know a producer takes any number: one
        that could not take the first yet, but the second, never takes the first (KAFKA-15591).
        """
        # After a failure all batches in flight return first, or batches would overtake one another.
        failed = self._backoff is not None and bool(self._sent)
        most = _IN_FLIGHT if self._is_acknowledged else 1
        return bool(self._waiting) and not failed and len(self._sent) < most

    def take_next(self) -> InFlightBatch:
        """Return the next batch, and count it as sent."""
        batch = self._waiting.popleft()
        batch.in_flight = True
        self._sent.append(batch)
        return batch

    def acknowledge(self, batch: InFlightBatch) -> None:
        """Remove a batch that the log of every in-sync replica contains."""
        self._is_acknowledged = True
        self._sent.remove(batch)
        if not self._sent:
            self._backoff = None
        # After a failure: this may be the last response that later batches have waited for.
        elif self._backoff is not None:
            self._requeue()

    def may_repeat(self, batch: InFlightBatch, error: Exception) -> bool:
        """Return True if a batch is to be sent again after an error."""
        from kafka.errors import OutOfOrderSequenceNumberError

        follows = self._sent[0] is not batch  # an earlier one is sent again
        return is_retriable(error) or (follows and isinstance(error, OutOfOrderSequenceNumberError))

    def repeat(self, batch: InFlightBatch, client: KafkaClient) -> bool:
        """Send a batch again, with all later ones, when none of them is in flight any more.

        Returns:
            False if the time limit is over.
        """
        batch.in_flight = False
        self._backoff = self._backoff or Backoff(client.config.api_timeout_s)
        # Most passing errors are those of a broker that leads the partition no longer.
        client.forget_leaders([self.tp.topic])
        return not self._requeue() or self._backoff.pause()

    def _requeue(self) -> bool:
        """Queue failed batches again, in their order, unless a response is still awaited."""
        if any(other.in_flight for other in self._sent):
            return False
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        return True


# --- all partitions


@dataclass(frozen=True)
class _Request:
    """A request in flight.

    Attributes:
        node: The leader to which it was sent.
        future: Future of the response.
        parts: Its batches; at most one of each partition.
    """

    node: int
    future: Any
    parts: dict[TopicPartition, InFlightBatch]


class BatchSender:
    """A sender of one task's batches.

    Args:
        client: The client of this process.
        producer: The transaction to which the records belong, or a producer without transactions.

    Attributes:
        first: Partition and offset of the first acknowledged batch.
    """

    def __init__(self, client: KafkaClient, producer: Producer) -> None:
        self._client = client
        self._producer = producer
        self._adds_partitions = (
            isinstance(producer, Transaction) and producer.version is TransactionVersion.TV1
        )
        self._new: list[TopicPartition] = []
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._waiting: dict[TopicPartition, PartitionQueue] = {}
        self._unacknowledged = 0
        self._requests: deque[_Request] = deque()
        self._backoff: Backoff | None = None
        self.first: tuple[TopicPartition, int] | None = None

    def put(self, topic: str, batches: Iterable[EncodedBatch]) -> None:
        """Send batches; waits while too many bytes are unacknowledged.

        Raises:
            KafkaFailedError: If a leader refuses one, or does not answer in time.
        """
        for encoded in batches:
            queue = self._enqueue(topic, encoded)
            if not self._new:
                self._send([queue])
        if self._new:  # they are added together
            self._send(list(self._waiting.values()))

    def put_last(self, topic: str, batches: Iterable[EncodedBatch]) -> None:
        """`put`, for batches that `flush` sends: small ones then share requests.

        Raises:
            KafkaFailedError: If a leader refuses one, or does not answer in time.
        """
        for encoded in batches:
            self._enqueue(topic, encoded)

    def _enqueue(self, topic: str, encoded: EncodedBatch) -> PartitionQueue:
        while self._unacknowledged > _MOST_BYTES:
            self._step()
        tp = TopicPartition(topic, encoded.partition)
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = PartitionQueue(tp, self._producer)
            if self._adds_partitions:
                self._new.append(tp)
        self._unacknowledged += queue.put(encoded)
        self._waiting[tp] = queue
        return queue

    def flush(self) -> None:
        """Wait until all batches are acknowledged.

        Raises:
            KafkaFailedError: If a leader refuses a batch, or does not answer in time.
        """
        while self._unacknowledged:
            self._step()

    def drain(self) -> None:
        """Await the responses to requests in flight, and ignore them."""
        from kafka.errors import KafkaError

        for request in self._requests:
            with contextlib.suppress(KafkaError):
                self._client.wait(request.future)
        self._requests.clear()

    def _step(self) -> None:
        """Send as many batches as possible, and wait for one response."""
        self._send(list(self._waiting.values()))
        if self._requests:
            self._backoff = None
            self._receive(self._requests.popleft())
        else:
            self._await_leaders()

    def _await_leaders(self) -> None:
        self._backoff = self._backoff or Backoff(self._client.config.api_timeout_s)
        waiting = [tp for tp, queue in self._queues.items() if not queue.is_empty()]
        self._client.forget_leaders({tp.topic for tp in waiting})
        if not self._backoff.pause():
            raise self._client.make_error(
                f"write to {waiting[0]}", "it has no leader, and the time is up"
            )

    # --- requests

    def _send(self, queues: Iterable[PartitionQueue]) -> None:
        """Send waiting batches of some queues to the leaders that are not busy."""
        if self._new and isinstance(self._producer, Transaction):
            transactions.add_partitions(self._client, self._producer, self._new)
            self._new = []
        busy = Counter(request.node for request in self._requests)
        for node, ready in self._group_by_leader(queues, busy).items():
            while busy[node] < _REQUESTS and any(queue.is_ready() for queue in ready):
                parts = self._take_batches(ready)
                future = self._client.submit(self._build_request(parts), node)
                self._requests.append(_Request(node, future, parts))
                busy[node] += 1

    def _take_batches(
        self, queues: Iterable[PartitionQueue]
    ) -> dict[TopicPartition, InFlightBatch]:
        """Return the next batch of each partition, as many as fit into a request."""
        parts: dict[TopicPartition, InFlightBatch] = {}
        size = 0
        for queue in queues:
            if queue.is_ready() and size < _REQUEST_BYTES:
                parts[queue.tp] = queue.take_next()
                size += len(parts[queue.tp].data)
                if not queue.is_waiting():
                    del self._waiting[queue.tp]
        return parts

    def _group_by_leader(
        self, queues: Iterable[PartitionQueue], busy: Mapping[int, int]
    ) -> dict[int, list[PartitionQueue]]:
        found: dict[int, list[PartitionQueue]] = {}
        for queue in queues:
            leader = self._client.get_leader(queue.tp) if queue.is_ready() else None
            if leader is not None and busy[leader] < _REQUESTS:
                found.setdefault(leader, []).append(queue)
        return found

    def _build_request(self, parts: dict[TopicPartition, InFlightBatch]) -> Any:
        from kafka.protocol.producer import ProduceRequest

        topic = ProduceRequest.TopicProduceData
        grouped: dict[str, list[Any]] = {}
        for tp, batch in parts.items():
            data = topic.PartitionProduceData(index=tp.partition, records=batch.data)
            grouped.setdefault(tp.topic, []).append(data)
        transaction = self._producer if isinstance(self._producer, Transaction) else None
        is_tv2 = transaction is not None and transaction.version is TransactionVersion.TV2
        return ProduceRequest(
            transactional_id=None if transaction is None else transaction.transactional_id,
            # All in-sync replicas: acknowledged batches survive the leader, and numbered batches
            # require it.
            acks=-1,
            timeout_ms=_REPLICAS_MS,
            topic_data=[topic(name=name, partition_data=data) for name, data in grouped.items()],
            # Version 3 has transactional ids; 12 adds partitions to the transaction; 13 names
            # topics by their ids, which rows do not have.
            min_version=12 if is_tv2 else 3,
            max_version=12 if is_tv2 else 11,
        )

    # --- responses

    def _receive(self, request: _Request) -> None:
        from kafka.errors import KafkaError

        try:
            response = self._client.wait(request.future)
        # The batches may have arrived: the leader recognises repeated ones by their numbers.
        except KafkaError as error:
            for tp, batch in request.parts.items():
                self._repeat(tp, batch, error)
            return
        for topic in response.responses:
            for part in topic.partition_responses:
                tp = TopicPartition(topic.name, part.index)
                self._handle_part(tp, request.parts[tp], part)

    def _handle_part(self, tp: TopicPartition, batch: InFlightBatch, part: Any) -> None:
        from kafka.errors import for_code

        if self.first is None and part.error_code == _NO_ERROR:
            self.first = tp, part.base_offset
        queue = self._queues[tp]
        if part.error_code in {_NO_ERROR, _DUPLICATE}:
            self._unacknowledged -= len(batch.data)
            queue.acknowledge(batch)
            self._wait_if_needed(queue)
        else:
            self._repeat(tp, batch, for_code(part.error_code)(part.error_message or ""))

    def _repeat(self, tp: TopicPartition, batch: InFlightBatch, error: Exception) -> None:
        queue = self._queues[tp]
        if not queue.may_repeat(batch, error):
            why = explain_produce_error(error, batch.count, len(batch.data))
            raise self._make_error(tp, why)
        if not queue.repeat(batch, self._client):
            raise self._make_error(tp, f"{error}, and the time is up")
        self._wait_if_needed(queue)

    def _wait_if_needed(self, queue: PartitionQueue) -> None:
        """Register a queue whose failed batches wait again."""
        if queue.is_waiting():
            self._waiting[queue.tp] = queue

    def _make_error(self, tp: TopicPartition, why: str) -> KafkaFailedError:
        return self._client.make_error(f"write to {tp}", why)


# --- refusals

_FENCED = (
    "the producer was fenced, by another attempt at this task or by a newer driver on the same "
    "checkpoint"
)
_EXPIRED = "the transaction was ended by the broker or by another driver: see its time-out"
_EXPLANATIONS = {
    "MessageSizeTooLargeError": "raise the topic's 'max.message.bytes', or lower "
    "'kafka.batch.size'",
    "RecordListTooLargeError": "lower 'kafka.batch.size' below the topic's 'segment.bytes'",
    "TopicAuthorizationFailedError": "the user needs the ACL WRITE on this topic",
    "TransactionalIdAuthorizationFailedError": "the user needs the ACLs WRITE and DESCRIBE on "
    "the transactional id",
    "ClusterAuthorizationFailedError": "the user needs the ACL IDEMPOTENT_WRITE on the cluster",
    "InvalidProducerEpochError": _FENCED,
    "ProducerFencedError": _FENCED,
    "InvalidTxnStateError": _EXPIRED,
    "InvalidProducerIdMappingError": _EXPIRED,
    "TransactionAbortableError": _EXPIRED,
    "InvalidTimestampError": "the topic's 'message.timestamp.before.max.ms' and "
    "'...after.max.ms' refuse this time: change them, or the column 'timestamp'",
    "InvalidRecordError": "a compacted topic needs a key in every record",
    "UnsupportedCompressionTypeError": "choose another 'kafka.compression.type'",
    "NotEnoughReplicasError": "fewer replicas are in sync than 'min.insync.replicas' requires",
}
"""Advice for the user, by the name of kafka-python's error."""


def explain_produce_error(error: Exception, records: int, size: int) -> str:
    """Return the text of a leader's refusal, with what to do.

    Args:
        error: The kafka-python error of the broker's code.
        records: Number of records in the batch.
        size: Its size in bytes.
    """
    what = f"{error} (a batch of {records} records, {size} bytes)"
    hint = _EXPLANATIONS.get(type(error).__name__)
    return f"{what}; {hint}" if hint else what
