"""The batches of one partition on their way to its leader, in order, each exactly once.

An idempotent producer numbers its records. A leader refuses a number that it does not expect, and
knows the five batches that it took last, so what was perhaps lost is simply sent again, in order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from krishiv_spark.kafka.client import Client, is_passing
from krishiv_spark.kafka.pauses import Pauses
from krishiv_spark.kafka.places import Place
from krishiv_spark.kafka.records import Sealed, next_sequence

__all__ = ["Identity", "Lane", "Sending"]

_IN_FLIGHT = 5
"""So many batches of a producer a leader knows again (``ProducerStateEntry``)."""


@dataclass(frozen=True)
class Identity:
    """Who sends: what a broker knows a producer by.

    Attributes:
        producer_id: Given by a broker.
        producer_epoch: The epoch in which it is valid.
        transactional_id: Of a transaction, else None.
        rules: Of the transaction, see `krishiv_spark.kafka.transactions`; 1 without one.
    """

    producer_id: int
    producer_epoch: int
    transactional_id: str | None = None
    rules: int = 1


@dataclass
class Sending:
    """A batch with its number.

    Attributes:
        data: As it is sent.
        count: Records in it.
        flying: Whether an answer is awaited.
    """

    data: bytes
    count: int
    flying: bool = False


class Lane:
    """The batches of one partition.

    Args:
        place: The partition.
        identity: Who sends.
    """

    def __init__(self, place: Place, identity: Identity) -> None:
        self.place = place
        self._identity = identity
        self._sequence = 0
        self._waiting: deque[Sending] = deque()
        self._sent: deque[Sending] = deque()
        self._pauses: Pauses | None = None

    def put(self, sealed: Sealed) -> int:
        """Number a batch, behind those before; how many bytes it has."""
        who = self._identity
        data = sealed.to_bytes(
            who.producer_id,
            who.producer_epoch,
            self._sequence,
            transactional=who.transactional_id is not None,
        )
        self._sequence = next_sequence(self._sequence, sealed.count)
        self._waiting.append(Sending(data, sealed.count))
        return len(data)

    def is_waiting(self) -> bool:
        """Whether a batch is there that is not under way."""
        return bool(self._waiting)

    def is_empty(self) -> bool:
        """Whether all has been acknowledged."""
        return not self._waiting and not self._sent

    def is_ready(self) -> bool:
        """Whether the next batch may be sent now."""
        failed = self._pauses is not None and bool(self._sent)
        return bool(self._waiting) and not failed and len(self._sent) < _IN_FLIGHT

    def next(self) -> Sending:
        """The next batch, which counts as sent."""
        sending = self._waiting.popleft()
        sending.flying = True
        self._sent.append(sending)
        return sending

    def acknowledge(self, sending: Sending) -> None:
        """It is in the log of every replica that counts."""
        self._sent.remove(sending)
        if not self._sent:
            self._pauses = None
        elif self._pauses is not None:
            self._gather()

    def may_repeat(self, sending: Sending, error: Exception) -> bool:
        """Whether an error is one after which a batch is sent again."""
        from kafka.errors import OutOfOrderSequenceNumberError

        behind = self._sent[0] is not sending  # one before it is on its way again
        return is_passing(error) or (behind and isinstance(error, OutOfOrderSequenceNumberError))

    def repeat(self, sending: Sending, client: Client) -> bool:
        """Send it again, with all behind it, once none of them is under way any more.

        Returns:
            False when that has been tried for too long.
        """
        sending.flying = False
        self._pauses = self._pauses or Pauses(client.connection.patience_s)
        client.forget_leaders([self.place.topic])
        return not self._gather() or self._pauses.pause()

    def _gather(self) -> bool:
        """Queue again what failed, in its order, unless an answer is still awaited."""
        if any(other.flying for other in self._sent):
            return False
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        return True
