"""Transactions as values, and the requests about them, for `krishiv_spark.kafka.requests`.

Transaction coordinators answer these requests. Any process that knows the producer id and epoch can
send a producer's requests in its place. `krishiv_spark.kafka.transactions` gives them a meaning.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field

from krishiv_spark.kafka.client import KafkaClient, is_retriable
from krishiv_spark.kafka.requests import Routing
from krishiv_spark.kafka.topic_partition import BrokerAddress, TopicPartition
from krishiv_spark.kafka.transport import LEAST_LOADED, Node
from krishiv_spark.offsets.offset import Value

__all__ = [
    "AddPartitionsToTxn",
    "CoordinatorRequest",
    "DescribeTransactions",
    "EndTxn",
    "FenceProducer",
    "IdempotentProducer",
    "InitProducerId",
    "ListTransactions",
    "SingleIdRequest",
    "Transaction",
    "TransactionDescription",
    "TransactionVersion",
    "build_producer_request",
]

_CONNECTIONS = 8
"""Connections to one coordinator over which many transactions are ended."""

_ID_NOT_FOUND = 105
_CONCURRENT_TRANSACTIONS, _NOT_ATTEMPTED = 51, 55

_NAMES = 512
"""So many names miss one of 50 partitions of the coordinators' topic once in 30 000 times."""

_NEWEST_INIT = 5
"""Newest version of InitProducerId in use: version 6 is that of two-phase commit (KIP-939)."""


# --- values


class TransactionVersion(IntEnum):
    """The level of Kafka's feature ``transaction.version``: the protocol of a transaction.

    `krishiv_spark.kafka.transactions` describes both.
    """

    TV1 = 1
    TV2 = 2


def _parse_version(given: Any) -> TransactionVersion:
    """Return the version for a number, as intents and messages contain it."""
    # True is an int for isinstance, and no version.
    if type(given) not in {int, TransactionVersion}:
        raise ValueError(f"{given!r} is not a version of transactions")
    return TransactionVersion(given)


class Transaction(Value):
    """A transaction from InitProducerId to EndTxn, also in commit messages and intents.

    Attributes:
        transactional_id: The id under which it was opened.
        producer_id: The producer id that the coordinator returned.
        producer_epoch: The producer epoch in which it was opened.
        version: The protocol with which it started. Epoch logs name it ``rules``.
    """

    model_config = ConfigDict(
        serialize_by_alias=True, validate_by_alias=True, validate_by_name=True
    )

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: Annotated[TransactionVersion, BeforeValidator(_parse_version)] = Field(
        validation_alias="rules", serialization_alias="rules"
    )


class IdempotentProducer(NamedTuple):
    """A producer without transactions.

    Attributes:
        producer_id: The producer id that a broker returned.
        producer_epoch: The epoch in which it is valid.
    """

    producer_id: int
    producer_epoch: int


class TransactionDescription(NamedTuple):
    """The current state of a transactional id at its coordinator (DescribeTransactions).

    Attributes:
        state: State such as "Ongoing" or "CompleteCommit"; "Gone" if the coordinator does not know
            the id.
        producer_id: Current producer id.
        producer_epoch: Its current epoch.
        started_ms: Start of the transaction, by the broker's clock; -1 if none is open.
        timeout_ms: Time-out of the transaction.
        partitions: Partitions in the transaction.
    """

    state: str
    producer_id: int
    producer_epoch: int
    started_ms: int
    timeout_ms: int
    partitions: tuple[TopicPartition, ...]


_UNKNOWN_ID = TransactionDescription("Gone", -1, -1, -1, -1, ())


# --- routing to coordinators


class CoordinatorRequest:
    """A request to the coordinators of transactional ids, which are cached.

    One message has all ids of a coordinator.
    """

    def nodes_for(
        self, client: KafkaClient, items: Collection[str], within_s: float
    ) -> Routing[str]:
        """Return the coordinators of the ids, as `BatchedRequest`."""
        grouped, why = self.group_by_coordinator(client, items, within_s)
        return [(broker.node, ids) for broker, ids in grouped.items()], why

    def group_by_coordinator(
        self, client: KafkaClient, items: Collection[str], within_s: float
    ) -> tuple[dict[BrokerAddress, list[str]], Exception | str | None]:
        """Return ids by their coordinator, and the reason why others have none."""
        client.prune_coordinators(items)
        missing = [item for item in items if item not in client.coordinators]
        why = self._find_coordinators(client, missing, within_s) if missing else None
        found = defaultdict(list)
        for item in items:
            if item in client.coordinators:
                found[client.coordinators[item]].append(item)
        return found, why

    def _find_coordinators(
        self, client: KafkaClient, ids: list[str], within_s: float
    ) -> Exception | str | None:
        """Ask any broker once; the coordinators' topic may still be in creation.

        Returns:
            The reason why some have none yet; None if all have one.
        """
        from kafka.errors import KafkaError, for_code

        what = "find the coordinator of transactional id"
        (answer,) = client.ask([(LEAST_LOADED, _build_find_request(ids))], within_s)
        why: Exception | None = None
        if isinstance(answer, KafkaError):
            why = answer
            if not is_retriable(answer):
                raise client.make_error(what, answer)
            return why
        for each in answer.coordinators:
            error = for_code(each.error_code)() if each.error_code else None
            if error is None:
                client.coordinators[each.key] = BrokerAddress(each.node_id, each.host, each.port)
            elif not is_retriable(error):
                raise client.make_error(f"{what} {each.key!r}", error)
            why = error or why
        return why

    def forget(self, client: KafkaClient, items: Collection[str]) -> None:
        """Drop the cached coordinators of the ids, as `BatchedRequest`."""
        for item in items:
            client.coordinators.pop(item, None)


class SingleIdRequest(CoordinatorRequest):
    """A request with a message for each id, over several connections if there are many ids."""

    def nodes_for(
        self, client: KafkaClient, items: Collection[str], within_s: float
    ) -> Routing[str]:
        """Return a connection to its coordinator for each id, as `BatchedRequest`."""
        parts: list[tuple[Node, list[str]]] = []
        grouped, why = self.group_by_coordinator(client, items, within_s)
        for broker, ids in grouped.items():
            if len(ids) == 1:
                parts.append((broker.node, ids))
                continue
            parts += [
                (client.add_connection(broker, number % _CONNECTIONS), [each])
                for number, each in enumerate(ids)
            ]
        return parts, why


def _build_find_request(ids: list[str]) -> Any:
    from kafka.protocol.metadata.find_coordinator import CoordinatorType, FindCoordinatorRequest

    kind = int(CoordinatorType.TRANSACTION)
    # From version 4 on one message asks about many ids (KIP-699).
    return FindCoordinatorRequest(key_type=kind, coordinator_keys=ids, min_version=4)


# --- requests of observers


@dataclass(frozen=True)
class DescribeTransactions(CoordinatorRequest):
    """DescribeTransactions (KIP-664)."""

    what: str = "describe transactional id"

    def request(self, items: list[str]) -> Any:
        """Return the message, as `BatchedRequest`."""
        from kafka.protocol.admin.transactions import DescribeTransactionsRequest

        return DescribeTransactionsRequest(transactional_ids=items)

    def answers(
        self, response: Any, items: list[str]
    ) -> Iterator[tuple[str, int, TransactionDescription]]:
        """Return the answers, as `BatchedRequest`."""
        del items
        for each in response.transaction_states:
            if each.error_code == _ID_NOT_FOUND:
                yield each.transactional_id, 0, _UNKNOWN_ID
            else:
                yield each.transactional_id, each.error_code, _to_description(each)


def _to_description(each: Any) -> TransactionDescription:
    partitions = [
        TopicPartition(topic.topic, number) for topic in each.topics for number in topic.partitions
    ]
    return TransactionDescription(
        each.transaction_state,
        each.producer_id,
        each.producer_epoch,
        each.transaction_start_time_ms,
        each.transaction_timeout_ms,
        tuple(partitions),
    )


@dataclass(frozen=True)
class ListTransactions(CoordinatorRequest):
    """ListTransactions (KIP-664), from the coordinators of all ids with a prefix.

    A hash of an id decides which broker coordinates it. So a few hundred invented names with the
    prefix lead to all brokers that coordinate such ids. Other brokers, which may be unreachable,
    are not asked.

    Attributes:
        start: The prefix of the ids.
        states: The states of the listed transactions; empty for all.
        rest: A regular expression of what follows the prefix, which RE2 and Python read alike.
    """

    start: str
    states: Sequence[str]
    rest: str = ".*"
    what: str = "list the transactions of the coordinator of"

    @property
    def names(self) -> list[str]:
        """The items to ask about."""
        return [f"{self.start}{number}" for number in range(_NAMES)]

    def request(self, items: list[str]) -> Any:
        """Return the message, as `BatchedRequest`."""
        from kafka.protocol.admin.transactions import ListTransactionsRequest

        del items
        return ListTransactionsRequest(
            state_filters=list(self.states), transactional_id_pattern=self._pattern
        )

    @property
    def _pattern(self) -> str:
        return re.escape(self.start) + self.rest

    def answers(self, response: Any, items: list[str]) -> Iterator[tuple[str, int, dict[str, str]]]:
        """Return the answers, as `BatchedRequest`; a value has the states of ids, by id."""
        listed = {
            each.transactional_id: each.transaction_state
            for each in response.transaction_states
            if re.fullmatch(self._pattern, each.transactional_id)  # brokers before 4.1 list all
        }
        for item in items:
            yield item, response.error_code, listed


# --- requests of producers


def build_producer_request() -> Any:
    """Return InitProducerId for a producer without transactions, which any broker answers."""
    from kafka.protocol.producer import InitProducerIdRequest

    return InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=0, max_version=_NEWEST_INIT
    )


@dataclass(frozen=True)
class InitProducerId(SingleIdRequest):
    """InitProducerId: aborts an open transaction, fences its producer, returns a new epoch.

    Attributes:
        timeout_ms: Time-out of the new transaction.
    """

    timeout_ms: int
    what: str = "start a transaction under transactional id"

    def request(self, items: list[str]) -> Any:
        """Return the message, as `BatchedRequest`."""
        from kafka.protocol.producer import InitProducerIdRequest

        return InitProducerIdRequest(
            transactional_id=items[0],
            transaction_timeout_ms=self.timeout_ms,
            max_version=_NEWEST_INIT,
        )

    def answers(self, response: Any, items: list[str]) -> Iterator[tuple[str, int, Any]]:
        """Return the answers, as `BatchedRequest`; a value is the response with the producer."""
        yield items[0], response.error_code, response


@dataclass(frozen=True)
class FenceProducer(SingleIdRequest):
    """InitProducerId by another process than the producer, which cannot write afterwards (KIP-360).

    An open transaction of the id, of any epoch, is aborted by markers with a raised epoch. If none
    is open, the request is refused unless the producer has the given epoch.

    Attributes:
        producers: The producer to fence, by transactional id.
    """

    producers: Mapping[str, TransactionDescription]
    what: str = "fence the producer under transactional id"

    def request(self, items: list[str]) -> Any:
        """Return the message, as `BatchedRequest`."""
        from kafka.protocol.producer import InitProducerIdRequest

        meant = self.producers[items[0]]
        return InitProducerIdRequest(
            transactional_id=items[0],
            transaction_timeout_ms=meant.timeout_ms,
            producer_id=meant.producer_id,
            producer_epoch=meant.producer_epoch,
            # From 3 on it names the expected producer (KIP-360).
            min_version=3,
            max_version=_NEWEST_INIT,
        )

    def answers(self, response: Any, items: list[str]) -> Iterator[tuple[str, int, None]]:
        """Return the answers, as `BatchedRequest`; an abort in progress is a success."""
        done = response.error_code == _CONCURRENT_TRANSACTIONS
        yield items[0], 0 if done else response.error_code, None


_END_VERSION = {TransactionVersion.TV1: 3, TransactionVersion.TV2: 5}
"""The version of EndTxn by the protocol of the transaction."""


@dataclass(frozen=True)
class EndTxn(SingleIdRequest):
    """EndTxn, in the version of each transaction's protocol.

    Attributes:
        transactions: The transactions by transactional id.
        commit: True to commit, False to abort.
    """

    transactions: Mapping[str, Transaction]
    commit: bool
    what: str = "end the transaction under transactional id"

    def request(self, items: list[str]) -> Any:
        """Return the message, as `BatchedRequest`."""
        from kafka.protocol.producer import EndTxnRequest

        transaction = self.transactions[items[0]]
        return EndTxnRequest(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            committed=self.commit,
            version=_END_VERSION[transaction.version],
        )

    def answers(self, response: Any, items: list[str]) -> Iterator[tuple[str, int, None]]:
        """Return the answers, as `BatchedRequest`."""
        yield items[0], response.error_code, None


@dataclass(frozen=True)
class AddPartitionsToTxn:
    """AddPartitionsToTxn: one message with all partitions, to the coordinator of a transaction.

    Attributes:
        transaction: The transaction, of protocol TV1.
    """

    transaction: Transaction
    what: str = "add to its transaction the partition"

    def nodes_for(
        self, client: KafkaClient, items: Collection[TopicPartition], within_s: float
    ) -> Routing[TopicPartition]:
        """Return the coordinator, as `BatchedRequest`."""
        ids = [self.transaction.transactional_id]
        to, why = CoordinatorRequest().group_by_coordinator(client, ids, within_s)
        return [(broker.node, list(items)) for broker in to], why

    def request(self, items: list[TopicPartition]) -> Any:
        """Return the message, as `BatchedRequest`."""
        from kafka.protocol.producer import AddPartitionsToTxnRequest

        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        grouped: dict[str, list[int]] = {}
        for tp in items:
            grouped.setdefault(tp.topic, []).append(tp.partition)
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transaction.transactional_id,
            v3_and_below_producer_id=self.transaction.producer_id,
            v3_and_below_producer_epoch=self.transaction.producer_epoch,
            v3_and_below_topics=[topic(name=n, partitions=p) for n, p in grouped.items()],
            # The schema of the message reserves later versions for brokers.
            version=3,
        )

    def answers(
        self, response: Any, items: list[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, int, None]]:
        """Return the answers, as `BatchedRequest`.

        A partition that was refused because of another one has no answer, and is tried again.
        """
        del items
        for topic in response.results_by_topic_v3_and_below:
            for each in topic.results_by_partition:
                if each.partition_error_code == _NOT_ATTEMPTED:
                    continue
                tp = TopicPartition(topic.name, each.partition_index)
                yield tp, each.partition_error_code, None

    def forget(self, client: KafkaClient, items: Collection[TopicPartition]) -> None:
        """Drop the cached coordinator, as `BatchedRequest`."""
        del items
        CoordinatorRequest().forget(client, [self.transaction.transactional_id])
