"""What transaction coordinators are asked, for `krishiv_spark.kafka.requests`.

What they mean is in `krishiv_spark.kafka.transactions`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from krishiv_spark.kafka.client import KafkaClient, is_retriable
from krishiv_spark.kafka.requests import Routing
from krishiv_spark.kafka.topic_partition import BrokerAddress, TopicPartition
from krishiv_spark.kafka.transport import LEAST_LOADED, Node
from krishiv_spark.offsets.offset import Value

__all__ = [
    "DescribeTransactions",
    "ListTransactions",
    "OneByOne",
    "ToCoordinators",
    "Transaction",
    "TransactionDescription",
    "TransactionVersion",
]

_CONNECTIONS = 8
"""Connections to one coordinator over which many transactions are ended."""

_ID_NOT_FOUND = 105

_NAMES = 512
"""So many hit each of 50 partitions of the coordinators' topic but once in 30 000 times."""


class TransactionVersion(IntEnum):
    """Kafka's feature ``transaction.version``: which protocol a transaction goes by.

    See `krishiv_spark.kafka.transactions`.
    """

    TV1 = 1
    TV2 = 2


def _version(given: Any) -> TransactionVersion:
    """The version for a number, as intents and messages have it; anything else is refused."""
    # True is an int for isinstance, and no version.
    if type(given) not in {int, TransactionVersion}:
        raise ValueError(f"{given!r} is not a version of transactions")
    return TransactionVersion(given)


class Transaction(Value):
    """A transaction, as it is named in commit messages and intents.

    Attributes:
        transactional_id: The id that it was opened under.
        producer_id: That the coordinator gave.
        producer_epoch: The epoch in which it was opened.
        rules: The version of the protocol that it began with; named as epoch logs name it.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    rules: Annotated[TransactionVersion, BeforeValidator(_version)]


class TransactionDescription(NamedTuple):
    """What a coordinator says of a transactional id now (DescribeTransactions).

    Attributes:
        state: Such as "Ongoing" or "CompleteCommit"; "Gone" if the id is not known.
        producer_id: That has it now.
        producer_epoch: Of that producer.
        started_ms: When the transaction began, by the broker's clock; -1 if none is open.
        timeout_ms: How long it may be open.
        partitions: The partitions that are in it.
    """

    state: str
    producer_id: int
    producer_epoch: int
    started_ms: int
    timeout_ms: int
    partitions: tuple[TopicPartition, ...]


_GONE = TransactionDescription("Gone", -1, -1, -1, -1, ())


class ToCoordinators:
    """Goes to the coordinators of transactional ids, which are remembered."""

    def nodes_for(
        self, client: KafkaClient, items: Collection[str], within_s: float
    ) -> Routing[str]:
        """See `BatchedRequest`. One message for all ids of a coordinator."""
        grouped, why = self.grouped(client, items, within_s)
        return [(broker.node, ids) for broker, ids in grouped.items()], why

    def grouped(
        self, client: KafkaClient, items: Collection[str], within_s: float
    ) -> tuple[dict[BrokerAddress, list[str]], Exception | str | None]:
        """Ids by their coordinator, without those that have none; and why that is so."""
        client.prune_coordinators(items)
        unknown = [item for item in items if item not in client.coordinators]
        why = self._find(client, unknown, within_s) if unknown else None
        found = defaultdict(list)
        for item in items:
            if item in client.coordinators:
                found[client.coordinators[item]].append(item)
        return found, why

    def _find(self, client: KafkaClient, ids: list[str], within_s: float) -> Exception | str | None:
        """Ask any broker once; it may still wait for the coordinators' topic to be made.

        Returns:
            Why some have none yet; None if all have one.
        """
        from kafka.errors import KafkaError, for_code

        what = "find the coordinator of transactional id"
        (answer,) = client.ask([(LEAST_LOADED, _find_coordinators(ids))], within_s)
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
        """See `BatchedRequest`."""
        for item in items:
            client.coordinators.pop(item, None)


class OneByOne(ToCoordinators):
    """A message for each id, over several connections where there are many."""

    def nodes_for(
        self, client: KafkaClient, items: Collection[str], within_s: float
    ) -> Routing[str]:
        """See `BatchedRequest`."""
        parts: list[tuple[Node, list[str]]] = []
        grouped, why = self.grouped(client, items, within_s)
        for broker, ids in grouped.items():
            if len(ids) == 1:
                parts.append((broker.node, ids))
                continue
            parts += [
                (client.add_connection(broker, number % _CONNECTIONS), [each])
                for number, each in enumerate(ids)
            ]
        return parts, why


@dataclass(frozen=True)
class DescribeTransactions(ToCoordinators):
    """DescribeTransactions (KIP-664)."""

    what: str = "describe transactional id"

    def request(self, items: list[str]) -> Any:
        """See `BatchedRequest`."""
        from kafka.protocol.admin.transactions import DescribeTransactionsRequest

        return DescribeTransactionsRequest(transactional_ids=items)

    def answers(
        self, response: Any, items: list[str]
    ) -> Iterator[tuple[str, int, TransactionDescription]]:
        """See `BatchedRequest`."""
        del items
        for each in response.transaction_states:
            if each.error_code == _ID_NOT_FOUND:
                yield each.transactional_id, 0, _GONE
            else:
                yield each.transactional_id, each.error_code, _description(each)


def _find_coordinators(ids: list[str]) -> Any:
    from kafka.protocol.metadata.find_coordinator import CoordinatorType, FindCoordinatorRequest

    kind = int(CoordinatorType.TRANSACTION)
    # From version 4 on one message asks about many ids (KIP-699).
    return FindCoordinatorRequest(key_type=kind, coordinator_keys=ids, min_version=4)


def _description(each: Any) -> TransactionDescription:
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
class ListTransactions(ToCoordinators):
    """ListTransactions (KIP-664), from the coordinators of all ids that begin in some way.

    Which broker coordinates an id is decided by a hash of it, so a few hundred names that begin in
    that way, whatever they are, lead to all brokers that have to do with such ids. Others, perhaps
    out of reach, are not asked.

    Attributes:
        start: How the ids begin.
        states: Of transactions, which count; empty for all.
    """

    start: str
    states: Sequence[str]
    what: str = "list the transactions of the coordinator of"

    @property
    def names(self) -> list[str]:
        """The items to ask about."""
        return [f"{self.start}{number}" for number in range(_NAMES)]

    def request(self, items: list[str]) -> Any:
        """See `BatchedRequest`."""
        from kafka.protocol.admin.transactions import ListTransactionsRequest

        del items
        pattern = re.escape(self.start) + ".*"  # brokers before 4.1 list all
        return ListTransactionsRequest(
            state_filters=list(self.states), transactional_id_pattern=pattern
        )

    def answers(self, response: Any, items: list[str]) -> Iterator[tuple[str, int, dict[str, str]]]:
        """See `BatchedRequest`. The value is the states of the coordinator's ids, by id."""
        listed = {
            each.transactional_id: each.transaction_state
            for each in response.transaction_states
            if each.transactional_id.startswith(self.start)
        }
        for item in items:
            yield item, response.error_code, listed
