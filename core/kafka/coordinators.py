"""Requests to transaction coordinators, for `krishiv_spark.kafka.client.Client.exchange`.

What they mean is in `krishiv_spark.kafka.transactions`.
"""

# pyright: reportAttributeAccessIssue=false
# It carries stubs of kafka-python 2.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from krishiv_spark.kafka.client import Client
from krishiv_spark.kafka.exchanges import ANY, Node, Parts
from krishiv_spark.kafka.places import Broker, Place
from krishiv_spark.offsets.offset import Value

__all__ = [
    "AddPlaces",
    "Begin",
    "BeginPlain",
    "Describe",
    "Described",
    "End",
    "Fence",
    "Transaction",
]

_LANES = 8
"""Connections to one coordinator over which many transactions are ended."""

_END_VERSION = {1: 3, 2: 5}
"""EndTxn's version under each set of rules."""

_CONCURRENT_TRANSACTIONS, _ID_NOT_FOUND = 51, 105


class Transaction(Value):
    """A transaction, as it is named in commit messages and intents.

    Attributes:
        transactional_id: The id that it was opened under.
        producer_id: That the coordinator gave.
        producer_epoch: The epoch in which it was opened.
        rules: 1 or 2, see the module.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    rules: Literal[1, 2]


class Described(NamedTuple):
    """What a coordinator says of a transactional id now (DescribeTransactions).

    Attributes:
        state: Such as "Ongoing" or "CompleteCommit"; "Gone" if the id is not known.
        producer_id: That has it now.
        producer_epoch: Of that producer.
        started_ms: When the transaction began, by the broker's clock; -1 if none is open.
        timeout_ms: How long it may be open.
        places: The partitions that are in it.
    """

    state: str
    producer_id: int
    producer_epoch: int
    started_ms: int
    timeout_ms: int
    places: tuple[Place, ...]


_GONE = Described("Gone", -1, -1, -1, -1, ())


@dataclass(frozen=True)
class _Find:
    """Which brokers coordinate transactional ids (FindCoordinator)."""

    what: str = "find the coordinator of transactional id"

    def route(self, client: Client, items: Collection[str]) -> Parts[str]:
        del client
        return [(ANY, list(items))]

    def request(self, items: list[str]) -> Any:
        from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

        kind = CoordinatorType.TRANSACTION.value
        return FindCoordinatorRequest(key_type=kind, coordinator_keys=items, min_version=4)

    def answers(self, response: Any, items: list[str]) -> Iterator[tuple[str, int, Broker]]:
        del items
        for each in response.coordinators:
            yield each.key, each.error_code, Broker(each.node_id, each.host, each.port)

    def forget(self, client: Client, items: Collection[str]) -> None:
        pass


class _ToCoordinators:
    """Goes to the coordinators of transactional ids, which are remembered."""

    def route(self, client: Client, items: Collection[str]) -> Parts[str]:
        """See `Exchange`. One message for all ids of a coordinator."""
        return [(broker.node, ids) for broker, ids in self.grouped(client, items).items()]

    def grouped(self, client: Client, items: Collection[str]) -> dict[Broker, list[str]]:
        """Ids by their coordinator."""
        unknown = [item for item in items if item not in client.coordinators]
        client.coordinators.update(client.demand(_Find(), unknown))
        found = defaultdict(list)
        for item in items:
            found[client.coordinators[item]].append(item)
        return found

    def forget(self, client: Client, items: Collection[str]) -> None:
        """See `Exchange`."""
        for item in items:
            client.coordinators.pop(item, None)


class _OneByOne(_ToCoordinators):
    """A message for each id, over several connections where there are many."""

    def route(self, client: Client, items: Collection[str]) -> Parts[str]:
        """See `Exchange`."""
        parts: list[tuple[Node, list[str]]] = []
        for broker, ids in self.grouped(client, items).items():
            alone = len(ids) == 1
            parts += [
                (broker.node if alone else client.lane(broker, number % _LANES), [each])
                for number, each in enumerate(ids)
            ]
        return parts


@dataclass(frozen=True)
class Begin(_OneByOne):
    """InitProducerId: aborts what is open under an id, fences who had it, gives a new epoch."""

    timeout_ms: int
    what: str = "begin a transaction under transactional id"

    def request(self, items: list[str]) -> Any:
        """See `Exchange`."""
        from kafka.protocol.producer import InitProducerIdRequest

        return InitProducerIdRequest(
            transactional_id=items[0], transaction_timeout_ms=self.timeout_ms, max_version=5
        )

    def answers(self, response: Any, items: list[str]) -> Iterator[tuple[str, int, Any]]:
        """See `Exchange`. The value is the response, which names the producer."""
        yield items[0], response.error_code, response


@dataclass(frozen=True)
class Fence(_OneByOne):
    """InitProducerId by somebody else than the producer: it cannot write any more (KIP-360).

    What is open under the id, whatever its epoch, is aborted by markers with a raised epoch. Where
    nothing is open, a producer of another epoch is refused.

    Attributes:
        producers: By transactional id, the producer that is meant.
    """

    producers: Mapping[str, Described]
    what: str = "fence the producer under transactional id"

    def request(self, items: list[str]) -> Any:
        """See `Exchange`."""
        from kafka.protocol.producer import InitProducerIdRequest

        meant = self.producers[items[0]]
        return InitProducerIdRequest(
            transactional_id=items[0],
            transaction_timeout_ms=meant.timeout_ms,
            producer_id=meant.producer_id,
            producer_epoch=meant.producer_epoch,
            min_version=3,
            max_version=5,
        )

    def answers(self, response: Any, items: list[str]) -> Iterator[tuple[str, int, None]]:
        """See `Exchange`. A transaction that is being aborted is answered as a concurrent one."""
        done = response.error_code == _CONCURRENT_TRANSACTIONS
        yield items[0], 0 if done else response.error_code, None


@dataclass(frozen=True)
class BeginPlain:
    """InitProducerId without a transactional id, from any broker (KIP-98)."""

    what: str = "get a producer id"

    def route(self, client: Client, items: Collection[str]) -> Parts[str]:
        """See `Exchange`."""
        del client
        return [(ANY, list(items))]

    def request(self, items: list[str]) -> Any:
        """See `Exchange`."""
        from kafka.protocol.producer import InitProducerIdRequest

        del items
        return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0, max_version=5)

    def answers(self, response: Any, items: list[str]) -> Iterator[tuple[str, int, Any]]:
        """See `Exchange`. The value is the response, which names the producer."""
        yield items[0], response.error_code, response

    def forget(self, client: Client, items: Collection[str]) -> None:
        """See `Exchange`."""


@dataclass(frozen=True)
class End(_OneByOne):
    """EndTxn, by the rules of each transaction.

    Attributes:
        transactions: By transactional id.
        commit: Or else abort.
    """

    transactions: Mapping[str, Transaction]
    commit: bool
    what: str = "end the transaction under transactional id"

    def request(self, items: list[str]) -> Any:
        """See `Exchange`."""
        from kafka.protocol.producer import EndTxnRequest

        transaction = self.transactions[items[0]]
        return EndTxnRequest(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            committed=self.commit,
            version=_END_VERSION[transaction.rules],
        )

    def answers(self, response: Any, items: list[str]) -> Iterator[tuple[str, int, None]]:
        """See `Exchange`."""
        yield items[0], response.error_code, None


@dataclass(frozen=True)
class Describe(_ToCoordinators):
    """DescribeTransactions (KIP-664)."""

    what: str = "describe transactional id"

    def request(self, items: list[str]) -> Any:
        """See `Exchange`."""
        from kafka.protocol.admin import DescribeTransactionsRequest

        return DescribeTransactionsRequest(transactional_ids=items)

    def answers(self, response: Any, items: list[str]) -> Iterator[tuple[str, int, Described]]:
        """See `Exchange`."""
        del items
        for each in response.transaction_states:
            if each.error_code == _ID_NOT_FOUND:
                yield each.transactional_id, 0, _GONE
            else:
                yield each.transactional_id, each.error_code, _described(each)


def _described(each: Any) -> Described:
    places = [Place(topic.topic, number) for topic in each.topics for number in topic.partitions]
    return Described(
        each.transaction_state,
        each.producer_id,
        each.producer_epoch,
        each.transaction_start_time_ms,
        each.transaction_timeout_ms,
        tuple(places),
    )


@dataclass(frozen=True)
class AddPlaces:
    """AddPartitionsToTxn, all in one message to the coordinator of one transaction."""

    transaction: Transaction
    what: str = "add to its transaction the partition"

    def route(self, client: Client, items: Collection[Place]) -> Parts[Place]:
        """See `Exchange`."""
        to = _ToCoordinators().grouped(client, [self.transaction.transactional_id])
        return [(broker.node, list(items)) for broker in to]

    def request(self, items: list[Place]) -> Any:
        """See `Exchange`."""
        from kafka.protocol.producer import AddPartitionsToTxnRequest

        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        grouped: dict[str, list[int]] = {}
        for place in items:
            grouped.setdefault(place.topic, []).append(place.partition)
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transaction.transactional_id,
            v3_and_below_producer_id=self.transaction.producer_id,
            v3_and_below_producer_epoch=self.transaction.producer_epoch,
            v3_and_below_topics=[topic(name=n, partitions=p) for n, p in grouped.items()],
            version=3,
        )

    def answers(self, response: Any, items: list[Place]) -> Iterator[tuple[Place, int, None]]:
        """See `Exchange`."""
        del items
        for topic in response.results_by_topic_v3_and_below:
            for each in topic.results_by_partition:
                yield Place(topic.name, each.partition_index), each.partition_error_code, None

    def forget(self, client: Client, items: Collection[Place]) -> None:
        """See `Exchange`."""
        del items
        _ToCoordinators().forget(client, [self.transaction.transactional_id])
