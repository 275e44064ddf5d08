"""Transactions that one process begins and another ends.

EndTxn needs nothing but the transactional id, the producer id and the producer epoch, so the driver
can end what a task opened, although the task's process is gone. Two versions of the protocol exist:
TV1, where partitions are added to a transaction one by one, and TV2 (KIP-890), where Produce adds
them and ending raises the producer epoch. A transaction keeps the version that it began with:
repeating an EndTxn in the other one is answered otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.coordinators import (
    DescribeTransactions,
    ListTransactions,
    Transaction,
    TransactionDescription,
    TransactionVersion,
)
from krishiv_spark.kafka.outcomes import COMMITTING, ONGOING, UNFINISHED, Outcome, outcome
from krishiv_spark.kafka.producing import AddPartitionsToTxn, EndTxn, InitProducerId
from krishiv_spark.kafka.requests import send_all
from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.runtime.retry import Backoff

__all__ = [
    "COMMITTING",
    "ONGOING",
    "Outcome",
    "Transaction",
    "TransactionVersion",
    "add_partitions",
    "await_markers",
    "begin",
    "describe",
    "end",
    "first_free",
    "known",
    "look",
    "outcome",
    "outcomes",
    "plain_producer",
    "transaction_of",
    "transaction_version",
    "unfinished",
]


_LISTED_S = 5.0
"""How long a list of what is open is waited for."""

# --- executor


def transaction_version(client: KafkaClient) -> TransactionVersion:
    """By which this process begins transactions: TV2 where the cluster has it."""
    has_tv2 = client.get_feature_level("transaction.version") >= TransactionVersion.TV2
    return TransactionVersion.TV2 if has_tv2 else TransactionVersion.TV1


def first_free(client: KafkaClient, ids: Sequence[str]) -> str:
    """Executor: the first id under which nothing is open or about to end; else the first one.

    Whoever finds all of them in use takes the first one over, as `begin` does.

    Raises:
        KafkaFailedError: If one may not be seen, or its coordinator does not answer in time.
    """
    # One by one: nearly always the first is free, and the others need no answer.
    for name in ids:
        if describe(client, [name])[name].state not in UNFINISHED:
            return name
    return ids[0]


def begin(client: KafkaClient, transactional_id: str, timeout_ms: int) -> Transaction:
    """Take a transactional id over: what is open under it is aborted, who had it is fenced.

    Args:
        client: Of this process.
        transactional_id: The id that this attempt has chosen for itself.
        timeout_ms: How long the transaction may be open, from its first record to its end.

    Raises:
        KafkaFailedError: If the coordinator refuses, or does not answer in time.
    """
    kind = InitProducerId(timeout_ms)
    answer = send_all(client, kind, [transactional_id], on_error="return")[transactional_id]
    if isinstance(answer, Exception):
        raise client.make_error(
            f"{kind.what} {transactional_id!r}", answer, _hint(answer, timeout_ms)
        )
    return transaction_of(client, transactional_id, answer.producer_id, answer.producer_epoch)


def transaction_of(
    client: KafkaClient, transactional_id: str, producer_id: int, producer_epoch: int
) -> Transaction:
    """The transaction of a producer, by the protocol of this process.

    Args:
        client: Of this process.
        transactional_id: That the producer has.
        producer_id: The id that ``InitProducerId`` gave it.
        producer_epoch: Its epoch when the transaction began.
    """
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        rules=transaction_version(client),
    )


def _hint(error: Exception, timeout_ms: int) -> str:
    from kafka import errors

    if isinstance(error, errors.InvalidTransactionTimeoutError):
        return (
            f"the brokers allow less than 'kafka.transaction.timeout.ms' = {timeout_ms}; "
            "lower it, or raise their 'transaction.max.timeout.ms'"
        )
    if isinstance(error, errors.AuthorizationError):
        return "the user needs the ACLs WRITE and DESCRIBE on this transactional id"
    return ""


def add_partitions(
    client: KafkaClient, transaction: Transaction, partitions: Collection[TopicPartition]
) -> None:
    """Executor: add partitions to a transaction, before the first record for them (TV1 only).

    Raises:
        KafkaFailedError: If the transaction is no longer this one's, or one may not be written.
    """
    kind = AddPartitionsToTxn(transaction)
    send_all(client, kind, partitions, format_item=lambda tp: f" {tp}")


def plain_producer(client: KafkaClient) -> tuple[int, int]:
    """Executor: id and epoch of an idempotent producer without transactions.

    Raises:
        KafkaFailedError: If no broker gives one, or none answers in time.
    """
    from kafka.protocol.producer import InitProducerIdRequest

    # Version 6 is that of two-phase commit (KIP-939).
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0, max_version=5)
    answer = client.ask_any("get a producer id", request)
    return answer.producer_id, answer.producer_epoch


# --- driver


def end(
    client: KafkaClient, transactions: Iterable[Transaction], *, commit: bool
) -> dict[Transaction, Exception]:
    """Commit or abort transactions, side by side. Repeating it changes nothing.

    Returns:
        Those that the coordinator refused, with kafka-python's error: `outcomes` tells what became
        of them. An aborted transaction is never committed, nor the other way round.

    Raises:
        KafkaFailedError: If a coordinator does not answer in time; some may have been ended.
    """
    by_id = {each.transactional_id: each for each in transactions}
    answers = send_all(client, EndTxn(by_id, commit), by_id, on_error="return")
    return {by_id[i]: answer for i, answer in answers.items() if isinstance(answer, Exception)}


def describe(
    client: KafkaClient, ids: Collection[str], within_s: float | None = None
) -> dict[str, TransactionDescription]:
    """What the coordinators say of transactional ids now.

    Args:
        client: Of this process.
        ids: Transactional ids, whether their coordinators know them or not.
        within_s: How long that may take; None for ``default.api.timeout.ms``.

    Raises:
        KafkaFailedError: If one may not be seen, or a coordinator does not answer in time.
    """
    return send_all(client, DescribeTransactions(), ids, within_s=within_s)


def outcomes(
    client: KafkaClient, transactions: Collection[Transaction]
) -> dict[Transaction, Outcome]:
    """What became of transactions."""
    found = describe(client, [each.transactional_id for each in transactions])
    return {each: outcome(each, found[each.transactional_id]) for each in transactions}


def look(
    client: KafkaClient, ids: Collection[str], within_s: float
) -> dict[str, TransactionDescription]:
    """What the coordinators say of transactional ids now, as far as they answer in time.

    Args:
        client: Of this process.
        ids: Transactional ids.
        within_s: How long that may take.

    Returns:
        By id; without those whose coordinator does not answer, with a warning, or refuses.
    """
    kind = DescribeTransactions()
    seen = send_all(client, kind, ids, on_error="return", on_timeout="skip", within_s=within_s)
    return {name: now for name, now in seen.items() if isinstance(now, TransactionDescription)}


def await_markers(client: KafkaClient, ids: Collection[str], within_s: float) -> None:
    """Wait until the brokers have written what commits the transactions under some ids.

    Args:
        client: Of this process.
        ids: Transactional ids that were seen to be without; looked at again after a pause.
        within_s: How long they are waited for.

    Raises:
        KafkaFailedError: If a coordinator does not answer in time.
    """
    backoff = Backoff(within_s)
    while ids and backoff.pause() and (left_s := backoff.left_s):
        found = describe(client, ids, left_s)
        ids = [name for name in ids if found[name].state == COMMITTING]


def unfinished(client: KafkaClient, start: str) -> dict[str, str]:
    """The transactional ids that begin so and whose transaction has not ended.

    Those of a broker that does not answer soon are left out, with a warning.

    Returns:
        By id its state: "Ongoing", or "PrepareCommit" or "PrepareAbort" while the brokers write
        the markers that end it.

    Raises:
        KafkaFailedError: If a broker refuses.
    """
    kind = ListTransactions(start, UNFINISHED)
    within_s = min(_LISTED_S, client.config.api_timeout_s)
    answers = send_all(
        client, kind, kind.names, on_error="return", on_timeout="skip", within_s=within_s
    )
    return _merged(client, kind, answers)


def known(client: KafkaClient, start: str, states: Sequence[str] = ()) -> dict[str, str]:
    """The transactional ids that begin so, by their state.

    Args:
        client: Of this process.
        start: Beginning of the ids.
        states: Which states count; empty for all.

    Raises:
        KafkaFailedError: If a broker that coordinates such ids refuses, or does not answer in time.
    """
    kind = ListTransactions(start, states)
    return _merged(client, kind, send_all(client, kind, kind.names, on_error="return"))


def _merged(
    client: KafkaClient, kind: ListTransactions, answers: Mapping[str, dict[str, str] | Exception]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for listed in answers.values():
        if isinstance(listed, Exception):
            raise client.make_error(
                f"list transactional ids that start with {kind.start!r}", listed
            )
        found |= listed
    return found
