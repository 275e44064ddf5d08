"""Transactions that one process begins and another ends.

EndTxn needs nothing but the transactional id, the producer id and the producer epoch, so the driver
can end what a task opened, although the task's process is gone. Two sets of rules exist: TV1, where
partitions are added to a transaction one by one, and TV2 (KIP-890), where Produce adds them and
ending raises the producer epoch. A transaction keeps the rules that it began with: repeating an
EndTxn by other rules is answered otherwise.
"""

# pyright: reportAttributeAccessIssue=false
# It carries stubs of kafka-python 2.

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from typing import Any, Literal

from krishiv_spark.kafka.client import Client, is_passing
from krishiv_spark.kafka.coordinators import (
    AddPlaces,
    Begin,
    BeginPlain,
    Describe,
    Described,
    End,
    Transaction,
)
from krishiv_spark.kafka.exchanges import ANY
from krishiv_spark.kafka.pauses import Pauses
from krishiv_spark.kafka.places import Place

__all__ = [
    "COMMITTING",
    "ONGOING",
    "Outcome",
    "Transaction",
    "abort_open",
    "add_places",
    "begin",
    "describe",
    "end",
    "known",
    "outcome",
    "outcomes",
    "plain_producer",
    "rules",
    "try_abort",
    "unfinished",
]


class Outcome(Enum):
    """What became of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


ONGOING, COMMITTING, ABORTING = "Ongoing", "PrepareCommit", "PrepareAbort"
"""States of a transaction that has not ended (``TransactionState``)."""

_COMMITTED = frozenset({COMMITTING, "CompleteCommit"})
_ABORTED = frozenset({ABORTING, "CompleteAbort", "PrepareEpochFence"})


def outcome(transaction: Transaction, now: Described) -> Outcome:
    """Judge from what its id looks like now.

    Ending raises the epoch under TV2, a time-out always; any other epoch belongs to somebody who
    initialised the id again, which hides the outcome.
    """
    raised = now.producer_epoch - transaction.producer_epoch
    if now.producer_id != transaction.producer_id or raised not in {0, 1}:
        return Outcome.UNKNOWN
    if now.state == ONGOING:
        return Outcome.OPEN if raised == 0 else Outcome.UNKNOWN
    if raised == 1 and transaction.rules == 1:  # a time-out, or a later transaction of the id
        return Outcome.UNKNOWN
    if now.state in _COMMITTED:
        return Outcome.COMMITTED
    return Outcome.ABORTED if now.state in _ABORTED else Outcome.UNKNOWN


# --- executor


@functools.lru_cache(maxsize=16)
def rules(client: Client) -> Literal[1, 2]:
    """The rules by which this process begins transactions: TV2 where the cluster has it."""
    from kafka.protocol.metadata import ApiVersionsRequest

    name = client.connection.values["client_id"]
    request = ApiVersionsRequest(
        client_software_name=name, client_software_version="1", min_version=3
    )
    (answer,) = client.ask([(ANY, request)])
    if isinstance(answer, Exception):
        raise client.failed("ask for the features of the cluster", answer)
    features = getattr(answer, "finalized_features", None) or []
    levels = {feature.name: feature.max_version_level for feature in features}
    return 2 if levels.get("transaction.version", 0) >= 2 else 1  # noqa: PLR2004


def begin(client: Client, transactional_id: str, timeout_ms: int) -> Transaction:
    """Take a transactional id over: what is open under it is aborted, who had it is fenced.

    Args:
        client: Of this process.
        transactional_id: Which.
        timeout_ms: How long the transaction may be open, from its first record to its end.

    Raises:
        KafkaFailedError: If the coordinator refuses, or does not answer in time.
    """
    kind = Begin(timeout_ms)
    answer = client.exchange(kind, [transactional_id])[transactional_id]
    if isinstance(answer, Exception):
        raise client.failed(f"{kind.what} {transactional_id!r}", _advice(answer, timeout_ms))
    return Transaction(
        transactional_id=transactional_id,
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
        rules=rules(client),
    )


def _advice(error: Exception, timeout_ms: int) -> str:
    from kafka import errors

    if isinstance(error, errors.InvalidTransactionTimeoutError):
        return (
            f"{error}: the brokers allow less than 'kafka.transaction.timeout.ms' = {timeout_ms}; "
            "lower it, or raise their 'transaction.max.timeout.ms'"
        )
    if isinstance(error, errors.AuthorizationError):
        return f"{error}: the user needs the ACLs WRITE and DESCRIBE on this transactional id"
    return str(error)


def add_places(client: Client, transaction: Transaction, places: Collection[Place]) -> None:
    """Executor: add partitions to a transaction, before the first record for them (TV1 only).

    Raises:
        KafkaFailedError: If the transaction is no longer this one's, or one may not be written.
    """
    client.demand(AddPlaces(transaction), places, lambda place: f" {place}")


def try_abort(client: Client, transaction: Transaction) -> None:
    """Executor: abort, if that works at once; otherwise whoever comes next does it."""
    name = transaction.transactional_id
    if name in client.coordinators:
        message = End({name: transaction}, commit=False).request([name])
        client.ask([(client.coordinators[name].node, message)])


def plain_producer(client: Client) -> tuple[int, int]:
    """Executor: id and epoch of an idempotent producer without transactions.

    Raises:
        KafkaFailedError: If no broker gives one, or none answers in time.
    """
    answer = client.demand(BeginPlain(), ["producer"], lambda _: "")["producer"]
    return answer.producer_id, answer.producer_epoch


# --- driver


def end(
    client: Client, transactions: Iterable[Transaction], *, commit: bool
) -> dict[Transaction, Exception]:
    """Commit or abort transactions, side by side. Repeating it changes nothing.

    Returns:
        Those that the coordinator refused, with kafka-python's error: `outcomes` tells what became
        of them. An aborted transaction is never committed, nor the other way round.

    Raises:
        KafkaFailedError: If a coordinator does not answer in time; some may have been ended.
    """
    by_id = {each.transactional_id: each for each in transactions}
    answers = client.exchange(End(by_id, commit), by_id)
    return {by_id[i]: answer for i, answer in answers.items() if isinstance(answer, Exception)}


def describe(client: Client, ids: Collection[str]) -> dict[str, Described]:
    """What the coordinators say of transactional ids now.

    Raises:
        KafkaFailedError: If one may not be seen, or a coordinator does not answer in time.
    """
    return client.demand(Describe(), ids)


def outcomes(client: Client, transactions: Collection[Transaction]) -> dict[Transaction, Outcome]:
    """What became of transactions."""
    found = describe(client, [each.transactional_id for each in transactions])
    return {each: outcome(each, found[each.transactional_id]) for each in transactions}


def unfinished(client: Client, start: str) -> dict[str, str]:
    """The transactional ids that begin so and whose transaction has not ended.

    Returns:
        By id its state: "Ongoing", or "PrepareCommit" or "PrepareAbort" while the brokers write
        the markers that end it.

    Raises:
        KafkaFailedError: As `known`.
    """
    return known(client, start, (ONGOING, COMMITTING, ABORTING))


def known(client: Client, start: str, states: Sequence[str] = ()) -> dict[str, str]:
    """The transactional ids that begin so, on all brokers, by their state.

    Args:
        client: Of this process.
        start: Beginning of the ids.
        states: Which states count; empty for all.

    Raises:
        KafkaFailedError: If a broker refuses, or does not answer although the cluster still names
            it when time is up.
    """
    pauses = Pauses(client.connection.patience_s)
    while True:
        listed, error = _listed(client, start, states)
        if error is None:
            return listed
        if not is_passing(error) or not pauses.pause():
            raise client.failed("list the open transactions", error)
        client.topics([])  # the answer names the brokers that are left


def _listed(
    client: Client, start: str, states: Sequence[str]
) -> tuple[dict[str, str], Exception | None]:
    from kafka.errors import KafkaError, for_code
    from kafka.protocol.admin import ListTransactionsRequest

    given: dict[str, Any] = {"state_filters": list(states)}
    given["transactional_id_pattern"] = re.escape(start) + ".*"  # brokers before 4.1 list all
    listed: dict[str, str] = {}
    for answer in client.ask([(node, ListTransactionsRequest(**given)) for node in client.nodes()]):
        if isinstance(answer, KafkaError):
            return {}, answer
        if answer.error_code:
            return {}, for_code(answer.error_code)()
        listed |= {
            each.transactional_id: each.transaction_state for each in answer.transaction_states
        }
    return {name: state for name, state in listed.items() if name.startswith(start)}, None


def abort_open(
    client: Client, start: str, spare: Collection[str], is_owner: Callable[[], bool]
) -> dict[str, str]:
    """Abort what is open under ids that begin so.

    Each transaction by its own producer epoch: should its id be in use again by then, the newer
    transaction stays as it is. (Initialising the id would abort that one too.)

    Args:
        client: Of this process.
        start: Beginning of the ids.
        spare: Ids that are left alone.
        is_owner: Asked once it is known which transactions are meant: whether they are the
            caller's to end.

    Returns:
        As `unfinished`, as it was before.

    Raises:
        KafkaFailedError: If a coordinator refuses, or does not answer in time.
    """
    listed = unfinished(client, start)
    doomed = [name for name, state in listed.items() if state == ONGOING and name not in spare]
    if doomed:
        found = describe(client, doomed)
        exact = [
            _as_it_is(client, name, now) for name, now in found.items() if now.state == ONGOING
        ]
        if is_owner():
            end(client, exact, commit=False)
    return listed


def _as_it_is(client: Client, name: str, now: Described) -> Transaction:
    return Transaction(
        transactional_id=name,
        producer_id=now.producer_id,
        producer_epoch=now.producer_epoch,
        rules=rules(client),
    )
