"""The state of transactional ids in transaction coordinators, and their answers.

After ``TransactionCoordinator`` and ``TransactionMetadata`` of Kafka 4.3; the tests in
`tests/brokers/test_kafka_simulated.py` compare every answer with that of a real broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from krishiv_spark.kafka.topic_partition import TopicPartition

__all__ = ["Coordinator", "Ended", "KafkaRefusal", "Known"]

NONE = 0
NOT_COORDINATOR = 16
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
INVALID_TRANSACTION_TIMEOUT = 50
CONCURRENT_TRANSACTIONS = 51
PRODUCER_FENCED = 90
ID_NOT_FOUND = 105
TRANSACTION_ABORTABLE = 120

_MOST_TIMEOUT_MS = 900_000
_EMPTY, _ONGOING = "Empty", "Ongoing"
_PREPARED = {True: "PrepareCommit", False: "PrepareAbort"}
_COMPLETE = {True: "CompleteCommit", False: "CompleteAbort"}
_RESTING = {_EMPTY, *_COMPLETE.values()}


class KafkaRefusal(Exception):  # noqa: N818  an answer, not a failure
    """An answer with the number of an error."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class Known:
    """The state of an id (``TransactionMetadata``).

    Attributes:
        producer: Its producer id.
        epoch: The producer's epoch; -1 if the id is new.
        last_epoch: The previous epoch, if the producer itself has raised it.
        previous: The previous producer id.
        following: The next producer id, when the epochs of this one are used up.
        state: As in DescribeTransactions.
        partitions: Partitions of the transaction.
        begun_ms: Start time of the transaction; -1 without one.
        timeout_ms: Maximum time that it may be open.
        used_ms: Time of the last request.
        rules: Version of the newest transaction, 1 or 2.
    """

    producer: int
    epoch: int = -1
    last_epoch: int = -1
    previous: int = -1
    following: int = -1
    state: str = _EMPTY
    partitions: set[TopicPartition] = field(default_factory=set)
    begun_ms: int = -1
    timeout_ms: int = 0
    used_ms: int = 0
    rules: int = 1


@dataclass(frozen=True)
class Ended:
    """A transaction whose outcome is decided, and whose markers are to be written.

    Attributes:
        name: The id.
        producer: Whose records.
        epoch: That the markers carry.
        partitions: Where.
        commit: How it has ended.
    """

    name: str
    producer: int
    epoch: int
    partitions: tuple[TopicPartition, ...]
    commit: bool


class Coordinator:
    """All of them: which broker one lives on is decided elsewhere.

    Args:
        rules: Of transactions that producers write now, 1 or 2 (``transaction.version``).
        top: The highest epoch.
        now_ms: The time.
        ended: Called when an outcome is decided.

    Attributes:
        known: By id.
    """

    def __init__(
        self, rules: int, top: int, now_ms: Callable[[], int], ended: Callable[[Ended], None]
    ) -> None:
        self.known: dict[str, Known] = {}
        self.rules = rules
        self._top = top
        self._now_ms = now_ms
        self._ended = ended
        self._producers = 0

    def new_producer(self) -> int:
        """A producer id that nobody has."""
        self._producers += 1
        return self._producers

    def _is_exhausted(self, epoch: int) -> bool:
        return epoch >= self._top - 1

    # --- InitProducerId

    def begin(self, name: str, timeout_ms: int, expected: tuple[int, int] | None) -> Known:
        """Give a producer its next epoch, or abort what is open first.

        Args:
            name: The id.
            timeout_ms: Of transactions to come.
            expected: Producer id and epoch that the caller knows (KIP-360), if any.
        """
        if timeout_ms > _MOST_TIMEOUT_MS or timeout_ms <= 0:
            raise KafkaRefusal(INVALID_TRANSACTION_TIMEOUT)
        if name not in self.known:
            self.known[name] = Known(self.new_producer())
        it = self.known[name]
        if expected is not None and not self._is_valid(it, *expected):
            raise KafkaRefusal(PRODUCER_FENCED)
        if it.state in _PREPARED.values():
            raise KafkaRefusal(CONCURRENT_TRANSACTIONS)
        if it.state == _ONGOING:
            self._fence(name, it)
            raise KafkaRefusal(CONCURRENT_TRANSACTIONS)
        self._raise_epoch(it, None if expected is None else expected[1])
        it.state, it.begun_ms, it.timeout_ms = _EMPTY, -1, timeout_ms
        it.used_ms = self._now_ms()
        return it

    def _is_valid(self, it: Known, producer: int, epoch: int) -> bool:
        retried = producer == it.previous and self._is_exhausted(epoch)
        return it.epoch == -1 or producer == it.producer or retried

    def _raise_epoch(self, it: Known, expected: int | None) -> None:
        if self._is_exhausted(it.epoch) and expected in {None, it.epoch}:
            it.previous, it.producer = it.producer, self.new_producer()
            it.last_epoch = -1 if expected is None else it.epoch
            it.epoch = 0
        elif expected is None:
            it.epoch, it.last_epoch = it.epoch + 1, -1
        elif it.epoch in {-1, expected}:
            it.epoch, it.last_epoch = it.epoch + 1, it.epoch
        elif expected != it.last_epoch:
            raise KafkaRefusal(PRODUCER_FENCED)

    def _fence(self, name: str, it: Known) -> None:
        """Abort what is open, with a raised epoch: a time-out, or somebody takes the id over."""
        it.rules = self.rules
        it.last_epoch = it.epoch if it.rules == 2 else -1
        it.epoch += 1
        self._decide(name, it, commit=False)

    # --- partitions of a transaction

    def add(
        self, name: str, producer: int, epoch: int, partitions: set[TopicPartition], rules: int = 1
    ) -> None:
        """AddPartitionsToTxn, of a client (TV1) or of a leader that was written to (TV2)."""
        it = self._checked(name, producer, epoch)
        it.rules = rules
        if it.state in _RESTING:
            it.partitions, it.begun_ms = set(), self._now_ms()
        it.state, it.used_ms = _ONGOING, self._now_ms()
        it.partitions |= partitions

    def verify(self, name: str, producer: int, epoch: int, tp: TopicPartition) -> None:
        """The same, asked by a leader that only wants to know (KIP-890, part 1)."""
        it = self._checked(name, producer, epoch)
        if it.state != _ONGOING or tp not in it.partitions:
            raise KafkaRefusal(TRANSACTION_ABORTABLE)

    def _checked(self, name: str, producer: int, epoch: int) -> Known:
        it = self.known.get(name)
        if it is None or it.producer != producer:
            raise KafkaRefusal(INVALID_PRODUCER_ID_MAPPING)
        if it.epoch != epoch:
            raise KafkaRefusal(PRODUCER_FENCED)
        if it.state in _PREPARED.values():
            raise KafkaRefusal(CONCURRENT_TRANSACTIONS)
        return it

    # --- EndTxn

    def end(self, name: str, producer: int, epoch: int, rules: int, *, commit: bool) -> Known:
        """End a transaction, or say how it has ended.

        Args:
            name: The id.
            producer: Its producer id.
            epoch: Of the producer.
            rules: By the version of the message: up to 4, or from 5 on.
            commit: Or else abort.
        """
        it = self.known.get(name)
        if it is None:
            raise KafkaRefusal(INVALID_PRODUCER_ID_MAPPING)
        (self._end_first if rules == 1 else self._end_second)(name, it, producer, epoch, commit)
        return it

    def _end_first(self, name: str, it: Known, producer: int, epoch: int, commit: bool) -> None:
        if it.producer != producer:
            raise KafkaRefusal(INVALID_PRODUCER_ID_MAPPING)
        if it.epoch != epoch:
            raise KafkaRefusal(PRODUCER_FENCED)
        if it.state == _ONGOING:
            self._decide(name, it, commit=commit)
        elif it.state == _PREPARED[commit]:
            raise KafkaRefusal(CONCURRENT_TRANSACTIONS)
        elif it.state != _COMPLETE[commit]:
            raise KafkaRefusal(INVALID_TXN_STATE)

    def _end_second(self, name: str, it: Known, producer: int, epoch: int, commit: bool) -> None:
        new = it.rules == 2
        overflown = new and it.previous == producer and it.epoch == 0 and epoch == self._top - 1
        repeated = overflown or (new and it.epoch == epoch + 1)
        self._check_second(it, producer, epoch, overflown=overflown, repeated=repeated)
        if it.state == _ONGOING:
            self._end_and_raise(name, it, commit=commit)
        elif it.state == _PREPARED[commit]:
            raise KafkaRefusal(CONCURRENT_TRANSACTIONS)
        elif it.state == _EMPTY or (it.state in _COMPLETE.values() and not repeated):
            if commit:
                raise KafkaRefusal(INVALID_TXN_STATE)
            it.partitions, it.begun_ms = set(), self._now_ms()
            self._end_and_raise(name, it, commit=False)
        elif it.state != _COMPLETE[commit]:
            raise KafkaRefusal(INVALID_TXN_STATE)

    def _check_second(
        self, it: Known, producer: int, epoch: int, *, overflown: bool, repeated: bool
    ) -> None:
        if it.producer != producer and not overflown:
            raise KafkaRefusal(INVALID_PRODUCER_ID_MAPPING)
        same = it.epoch == epoch
        if it.state in {_ONGOING, _EMPTY}:
            valid = same
        elif it.state in _PREPARED.values():
            valid = repeated and not overflown
        else:
            valid = repeated or same
        if not valid:
            raise KafkaRefusal(PRODUCER_FENCED)

    def _end_and_raise(self, name: str, it: Known, *, commit: bool) -> None:
        it.rules = 2
        if self._is_exhausted(it.epoch):
            it.following = self.new_producer()
        it.epoch, it.last_epoch = it.epoch + 1, it.epoch
        self._decide(name, it, commit=commit)

    def _decide(self, name: str, it: Known, *, commit: bool) -> None:
        it.state, it.used_ms = _PREPARED[commit], self._now_ms()
        self._ended(Ended(name, it.producer, it.epoch, tuple(sorted(it.partitions)), commit))

    def complete(self, ended: Ended) -> None:
        """All markers are written."""
        it = self.known[ended.name]
        it.state = _COMPLETE[ended.commit]
        it.partitions = set()
        if it.following != -1:
            it.previous, it.producer, it.following = it.producer, it.following, -1
            it.epoch = 0

    # --- time

    def time_out(self, name: str) -> None:
        """The broker aborts what has been open for too long."""
        self._fence(name, self.known[name])

    def expired(self) -> list[str]:
        """Ids whose transaction has been open for too long."""
        return [
            name
            for name, it in self.known.items()
            if it.state == _ONGOING and it.begun_ms + it.timeout_ms < self._now_ms()
        ]
