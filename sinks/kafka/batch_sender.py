"""Sends batches to the leaders: bounded memory, several requests under way, each record once."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from krishiv_spark.kafka.client import KafkaClient, KafkaFailedError
from krishiv_spark.kafka.records import EncodedBatch
from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.kafka.transactions import TransactionVersion
from krishiv_spark.runtime.retry import Backoff
from krishiv_spark.sinks.kafka.partition_queue import (
    InFlightBatch,
    PartitionQueue,
    ProducerIdAndEpoch,
)
from krishiv_spark.sinks.kafka.refusals import explain

__all__ = ["BatchSender"]

_MOST_BYTES = 32 * 2**20
"""Of batches that no leader has acknowledged yet."""

_REQUEST_BYTES = 4 * 2**20
_REQUESTS = 5
"""Under way to one broker."""

_REPLICAS_MS = 30_000
"""How long a leader waits for its replicas (``request.timeout.ms`` of Java's producer)."""

# A duplicate is in the log: its first answer was lost. But the leader no longer knows at which
# offset (``Sender.completeBatch`` of Java's producer).
_NO_ERROR, _DUPLICATE = 0, 46


@dataclass(frozen=True)
class _Request:
    """A message under way.

    Attributes:
        node: The leader that the batches were sent to.
        future: Of the answer.
        parts: What it carries, one batch of a partition at most.
    """

    node: int
    future: Any
    parts: dict[TopicPartition, InFlightBatch]


class BatchSender:
    """Sends what one task writes. Executor.

    Args:
        client: Of this process.
        producer: Id and epoch that batches bear, and whether they are in a transaction.
        join: Called with partitions before the first batches for them, if they have to be added.

    Attributes:
        first: Where the first acknowledged batch lies, with its offset.
    """

    def __init__(
        self,
        client: KafkaClient,
        producer: ProducerIdAndEpoch,
        join: Callable[[Collection[TopicPartition]], None] | None = None,
    ) -> None:
        self._client = client
        self._producer = producer
        self._join = join
        self._new: list[TopicPartition] = []
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._waiting: dict[TopicPartition, PartitionQueue] = {}
        self._unacknowledged = 0
        self._requests: deque[_Request] = deque()
        self._backoff: Backoff | None = None
        self.first: tuple[TopicPartition, int] | None = None

    def put(self, topic: str, batches: Iterable[EncodedBatch]) -> None:
        """Send batches; waits while too much is unacknowledged.

        Raises:
            KafkaFailedError: If a leader refuses one, or does not answer in time.
        """
        for encoded in batches:
            queue = self._take_in(topic, encoded)
            if not self._new:
                self._send([queue])
        if self._new:  # they are added together
            self._send(list(self._waiting.values()))

    def put_last(self, topic: str, batches: Iterable[EncodedBatch]) -> None:
        """As `put`, for batches that `flush` sends: small ones then share requests.

        Raises:
            KafkaFailedError: If a leader refuses one, or does not answer in time.
        """
        for encoded in batches:
            self._take_in(topic, encoded)

    def _take_in(self, topic: str, encoded: EncodedBatch) -> PartitionQueue:
        while self._unacknowledged > _MOST_BYTES:
            self._step()
        tp = TopicPartition(topic, encoded.partition)
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = PartitionQueue(tp, self._producer)
            if self._join is not None:
                self._new.append(tp)
        self._unacknowledged += queue.put(encoded)
        self._waiting[tp] = queue
        return queue

    def flush(self) -> None:
        """Wait until everything is acknowledged.

        Raises:
            KafkaFailedError: If a leader refuses a batch, or does not answer in time.
        """
        while self._unacknowledged:
            self._step()

    def drain(self) -> None:
        """Await the answers that are under way, whatever they are."""
        from kafka.errors import KafkaError

        for request in self._requests:
            with contextlib.suppress(KafkaError):
                self._client.wait(request.future)
        self._requests.clear()

    def _step(self) -> None:
        """Send what can be sent, and wait for one answer."""
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
        """Send what waits in some queues, as far as their leaders are free."""
        if self._join is not None and self._new:
            self._join(self._new)
            self._new = []
        busy = Counter(request.node for request in self._requests)
        for node, ready in self._ready(queues, busy).items():
            while busy[node] < _REQUESTS and any(queue.is_ready() for queue in ready):
                parts = self._take(ready)
                future = self._client.submit(self._message(parts), node)
                self._requests.append(_Request(node, future, parts))
                busy[node] += 1

    def _take(self, queues: Iterable[PartitionQueue]) -> dict[TopicPartition, InFlightBatch]:
        """The next batch of each partition, as many as fit into a request."""
        parts: dict[TopicPartition, InFlightBatch] = {}
        size = 0
        for queue in queues:
            if queue.is_ready() and size < _REQUEST_BYTES:
                parts[queue.tp] = queue.next()
                size += len(parts[queue.tp].data)
                if not queue.is_waiting():
                    del self._waiting[queue.tp]
        return parts

    def _ready(
        self, queues: Iterable[PartitionQueue], busy: Mapping[int, int]
    ) -> dict[int, list[PartitionQueue]]:
        found: dict[int, list[PartitionQueue]] = {}
        for queue in queues:
            leader = self._client.get_leader(queue.tp) if queue.is_ready() else None
            if leader is not None and busy[leader] < _REQUESTS:
                found.setdefault(leader, []).append(queue)
        return found

    def _message(self, parts: dict[TopicPartition, InFlightBatch]) -> Any:
        from kafka.protocol.producer import ProduceRequest

        topic = ProduceRequest.TopicProduceData
        grouped: dict[str, list[Any]] = {}
        for tp, batch in parts.items():
            data = topic.PartitionProduceData(index=tp.partition, records=batch.data)
            grouped.setdefault(tp.topic, []).append(data)
        adds_partitions = self._producer.version is TransactionVersion.TV2
        return ProduceRequest(
            transactional_id=self._producer.transactional_id,
            # All replicas in sync: what is acknowledged outlives the leader, and numbered batches
            # need it.
            acks=-1,
            timeout_ms=_REPLICAS_MS,
            topic_data=[topic(name=name, partition_data=data) for name, data in grouped.items()],
            # Version 3 knows transactional ids; 13 names topics by their ids, which rows do not
            # have.
            min_version=12 if adds_partitions else 3,  # from 12 on, Produce itself does
            max_version=12 if adds_partitions else 11,
        )

    # --- answers

    def _receive(self, request: _Request) -> None:
        from kafka.errors import KafkaError

        try:
            response = self._client.wait(request.future)
        # Nobody knows whether it has arrived: sent again, the leader knows it by its number.
        except KafkaError as error:
            for tp, batch in request.parts.items():
                self._repeat(tp, batch, error)
            return
        for topic in response.responses:
            for part in topic.partition_responses:
                tp = TopicPartition(topic.name, part.index)
                self._answered(tp, request.parts[tp], part)

    def _answered(self, tp: TopicPartition, batch: InFlightBatch, part: Any) -> None:
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
            raise self._failed(tp, explain(error, batch.count, len(batch.data)))
        if not queue.repeat(batch, self._client):
            raise self._failed(tp, f"{error}, and the time is up")
        self._wait_if_needed(queue)

    def _wait_if_needed(self, queue: PartitionQueue) -> None:
        """What was sent in vain may be waiting again."""
        if queue.is_waiting():
            self._waiting[queue.tp] = queue

    def _failed(self, tp: TopicPartition, why: str) -> KafkaFailedError:
        return self._client.make_error(f"write to {tp}", why)
