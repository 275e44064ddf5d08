"""What producers ask of transaction coordinators, for `krishiv_spark.kafka.requests`.

Whoever knows the producer id and epoch can ask it in a producer's place. What it means is in
`krishiv_spark.kafka.transactions`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.coordinators import (
    OneByOne,
    ToCoordinators,
    Transaction,
    TransactionDescription,
    TransactionVersion,
)
from krishiv_spark.kafka.requests import Routing
from krishiv_spark.kafka.topic_partition import TopicPartition

__all__ = ["AddPartitionsToTxn", "EndTxn", "FenceProducer", "InitProducerId"]

_END_VERSION = {TransactionVersion.TV1: 3, TransactionVersion.TV2: 5}
"""EndTxn's version under each of them."""

_CONCURRENT_TRANSACTIONS, _NOT_ATTEMPTED = 51, 55


@dataclass(frozen=True)
class InitProducerId(OneByOne):
    """InitProducerId: aborts what is open under an id, fences who had it, gives a new epoch."""

    timeout_ms: int
    what: str = "start a transaction under transactional id"

    def request(self, items: list[str]) -> Any:
        """See `BatchedRequest`."""
        from kafka.protocol.producer import InitProducerIdRequest

        # Version 6 is that of two-phase commit (KIP-939).
        return InitProducerIdRequest(
            transactional_id=items[0], transaction_timeout_ms=self.timeout_ms, max_version=5
        )

    def answers(self, response: Any, items: list[str]) -> Iterator[tuple[str, int, Any]]:
        """See `BatchedRequest`. The value is the response, which names the producer."""
        yield items[0], response.error_code, response


@dataclass(frozen=True)
class FenceProducer(OneByOne):
    """InitProducerId by somebody else than the producer: it cannot write any more (KIP-360).

    What is open under the id, whatever its epoch, is aborted by markers with a raised epoch. Where
    nothing is open, a producer of another epoch is refused.

    Attributes:
        producers: By transactional id, the producer that is meant.
    """

    producers: Mapping[str, TransactionDescription]
    what: str = "fence the producer under transactional id"

    def request(self, items: list[str]) -> Any:
        """See `BatchedRequest`."""
        from kafka.protocol.producer import InitProducerIdRequest

        meant = self.producers[items[0]]
        return InitProducerIdRequest(
            transactional_id=items[0],
            transaction_timeout_ms=meant.timeout_ms,
            producer_id=meant.producer_id,
            producer_epoch=meant.producer_epoch,
            # From 3 on it names the producer that is expected (KIP-360).
            min_version=3,
            max_version=5,
        )

    def answers(self, response: Any, items: list[str]) -> Iterator[tuple[str, int, None]]:
        """See `BatchedRequest`. What is being aborted is answered as a concurrent transaction."""
        done = response.error_code == _CONCURRENT_TRANSACTIONS
        yield items[0], 0 if done else response.error_code, None


@dataclass(frozen=True)
class EndTxn(OneByOne):
    """EndTxn, in the version of each transaction's protocol.

    Attributes:
        transactions: By transactional id.
        commit: Or else abort.
    """

    transactions: Mapping[str, Transaction]
    commit: bool
    what: str = "end the transaction under transactional id"

    def request(self, items: list[str]) -> Any:
        """See `BatchedRequest`."""
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
        """See `BatchedRequest`."""
        yield items[0], response.error_code, None


@dataclass(frozen=True)
class AddPartitionsToTxn:
    """AddPartitionsToTxn, all in one message to the coordinator of one transaction."""

    transaction: Transaction
    what: str = "add to its transaction the partition"

    def nodes_for(
        self, client: KafkaClient, items: Collection[TopicPartition], within_s: float
    ) -> Routing[TopicPartition]:
        """See `BatchedRequest`."""
        to, why = ToCoordinators().grouped(client, [self.transaction.transactional_id], within_s)
        return [(broker.node, list(items)) for broker in to], why

    def request(self, items: list[TopicPartition]) -> Any:
        """See `BatchedRequest`."""
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
            # The schema of the message keeps later versions for brokers.
            version=3,
        )

    def answers(
        self, response: Any, items: list[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, int, None]]:
        """See `BatchedRequest`. Those that are refused because of another one are tried again."""
        del items
        for topic in response.results_by_topic_v3_and_below:
            for each in topic.results_by_partition:
                if each.partition_error_code == _NOT_ATTEMPTED:
                    continue
                tp = TopicPartition(topic.name, each.partition_index)
                yield tp, each.partition_error_code, None

    def forget(self, client: KafkaClient, items: Collection[TopicPartition]) -> None:
        """See `BatchedRequest`."""
        del items
        ToCoordinators().forget(client, [self.transaction.transactional_id])
