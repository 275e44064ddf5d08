"""The batches of one partition on their way to its leader, in order, each exactly once.

An idempotent producer numbers its records. A leader refuses a number that it does not expect, and
knows the five batches that it took last, so what was perhaps lost is simply sent again, in order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from krishiv_spark.kafka.client import KafkaClient, is_retriable
from krishiv_spark.kafka.records import EncodedBatch, next_sequence
from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.kafka.transactions import TransactionVersion
from krishiv_spark.runtime.retry import Backoff

__all__ = ["InFlightBatch", "PartitionQueue", "ProducerIdAndEpoch"]

_IN_FLIGHT = 5
"""So many batches of a producer a leader knows again (``ProducerStateEntry``)."""


@dataclass(frozen=True)
class ProducerIdAndEpoch:
    """Who sends: what a broker knows a producer by.

    Attributes:
        producer_id: Given by a broker.
        producer_epoch: The epoch in which it is valid.
        transactional_id: Of a transaction, else None.
        version: Of the transaction's protocol; TV1 without one.
    """

    producer_id: int
    producer_epoch: int
    transactional_id: str | None = None
    version: TransactionVersion = TransactionVersion.TV1


@dataclass
class InFlightBatch:
    """A batch with its number.

    Attributes:
        data: As it is sent.
        count: Records in it.
        in_flight: Whether an answer is awaited.
    """

    data: bytes
    count: int
    in_flight: bool = False


class PartitionQueue:
    """The batches of one partition.

    Args:
        tp: All batches go there, in the order in which they were put.
        producer: Id and epoch that the batches bear.
    """

    def __init__(self, tp: TopicPartition, producer: ProducerIdAndEpoch) -> None:
        self.tp = tp
        self._producer = producer
        self._sequence = 0
        self._waiting: deque[InFlightBatch] = deque()
        self._sent: deque[InFlightBatch] = deque()
        self._backoff: Backoff | None = None
        self._known = False

    def put(self, encoded: EncodedBatch) -> int:
        """Number a batch, after those before; how many bytes it has."""
        who = self._producer
        data = encoded.to_bytes(
            who.producer_id,
            who.producer_epoch,
            self._sequence,
            transactional=who.transactional_id is not None,
        )
        self._sequence = next_sequence(self._sequence, encoded.count)
        self._waiting.append(InFlightBatch(data, encoded.count))
        return len(data)

    def is_waiting(self) -> bool:
        """Whether a batch is there that is not under way."""
        return bool(self._waiting)

    def is_empty(self) -> bool:
        """Whether all has been acknowledged."""
        return not self._waiting and not self._sent

    def is_ready(self) -> bool:
        """Whether the next batch may be sent now.

        The first one goes alone. A leader that knows nothing of a producer takes any number: one
        that could not take the first yet, but the second, never takes the first (KAFKA-15591).
        """
        # After a failure all that is under way comes back first, or batches would overtake one
        # another.
        failed = self._backoff is not None and bool(self._sent)
        most = _IN_FLIGHT if self._known else 1
        return bool(self._waiting) and not failed and len(self._sent) < most

    def next(self) -> InFlightBatch:
        """The next batch, which counts as sent."""
        batch = self._waiting.popleft()
        batch.in_flight = True
        self._sent.append(batch)
        return batch

    def acknowledge(self, batch: InFlightBatch) -> None:
        """It is in the log of every replica that counts."""
        self._known = True
        self._sent.remove(batch)
        if not self._sent:
            self._backoff = None
        # It failed before: this may have been the last answer that those after it have waited for.
        elif self._backoff is not None:
            self._gather()

    def may_repeat(self, batch: InFlightBatch, error: Exception) -> bool:
        """Whether an error is one after which a batch is sent again."""
        from kafka.errors import OutOfOrderSequenceNumberError

        follows = self._sent[0] is not batch  # one before it is on its way again
        return is_retriable(error) or (follows and isinstance(error, OutOfOrderSequenceNumberError))

    def repeat(self, batch: InFlightBatch, client: KafkaClient) -> bool:
        """Send it again, with all after it, once none of them is under way any more.

        Returns:
            False when that has been tried for too long.
        """
        batch.in_flight = False
        self._backoff = self._backoff or Backoff(client.config.api_timeout_s)
        # Most errors that pass are those of a leader that no longer is one.
        client.forget_leaders([self.tp.topic])
        return not self._gather() or self._backoff.pause()

    def _gather(self) -> bool:
        """Queue again what failed, in its order, unless an answer is still awaited."""
        if any(other.in_flight for other in self._sent):
            return False
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        return True
