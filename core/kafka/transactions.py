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

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from krishiv_spark.kafka.client import Client, KafkaFailedError, is_passing
from krishiv_spark.kafka.coordinators import (
    AddPlaces,
    Begin,
    BeginPlain,
    Describe,
    Described,
    End,
    Fence,
    Transaction,
)
from krishiv_spark.kafka.exchanges import ANY
from krishiv_spark.kafka.outcomes import COMMITTING, ONGOING, UNFINISHED, Outcome, outcome
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
    "first_free",
    "known",
    "outcome",
    "outcomes",
    "plain_producer",
    "rules",
    "try_abort",
    "unfinished",
]


_AT_ONCE_S = 1.0

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


def first_free(client: Client, ids: Sequence[str]) -> str:
    """Executor: the first id under which nothing is open or about to end; else the first one.

    Whoever finds all of them in use takes the first one over, as `begin` does.

    Raises:
        KafkaFailedError: If one may not be seen, or its coordinator does not answer in time.
    """
    for name in ids:
        if describe(client, [name])[name].state not in UNFINISHED:
            return name
    return ids[0]


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
    """Executor: abort what this attempt has open, if that works within a second.

    Otherwise whoever comes next does it. Requests of this attempt may still be under way.
    """
    name = transaction.transactional_id
    with contextlib.suppress(KafkaFailedError):
        now = client.demand(Describe(), [name], within_s=_AT_ONCE_S)[name]
        mine = (transaction.producer_id, transaction.producer_epoch)
        if (now.producer_id, now.producer_epoch) == mine:  # else somebody else has it already
            abort_live(client, {name: now}, lambda: True, _AT_ONCE_S)


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
    return known(client, start, UNFINISHED)


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
    """Abort what is open under ids that begin so, whoever still writes there.

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
    abort_live(client, describe(client, doomed), is_owner)
    return listed


def abort_live(
    client: Client,
    found: Mapping[str, Described],
    is_owner: Callable[[], bool],
    within_s: float | None = None,
) -> None:
    """Abort open transactions in such a way that their producers cannot write any more.

    Under TV2 EndTxn does that: the markers that it writes raise the producer's epoch at the
    leaders. It names the epoch, so a newer transaction of the id stays as it is. Under TV1 it
    leaves the epoch as it is: brokers before 3.6, and those that do not verify
    (``transaction.partition.verification.enable``), would take what the producer sends afterwards
    into a transaction that no coordinator knows and nobody ends. There only InitProducerId raises
    it, which would abort a newer transaction too. So it is sent only while the one that is meant
    is seen to be open and to be the caller's to end.

    Args:
        client: Of this process.
        found: By transactional id, what was seen of it.
        is_owner: Asked right before: whether they are the caller's to end.
        within_s: How long it may take; None for ``default.api.timeout.ms``.

    Raises:
        KafkaFailedError: If a coordinator refuses, or does not answer in time.
    """
    pauses = Pauses(client.connection.patience_s if within_s is None else within_s)
    ongoing = {name: now for name, now in found.items() if now.state == ONGOING}
    while ongoing and is_owner():
        refused = _abort_once(client, ongoing, pauses.left_s)
        seen = client.demand(Describe(), ongoing, within_s=pauses.left_s)
        ongoing = {name: was for name, was in ongoing.items() if _is_open(seen[name], was)}
        for name in ongoing:
            if name in refused:
                raise client.failed(f"abort the transaction under {name!r}", refused[name])
        if ongoing and not pauses.pause():
            raise client.failed(f"abort the transactions under {sorted(ongoing)}", "time is up")


def _is_open(now: Described, was: Described) -> bool:
    same = (now.producer_id, now.producer_epoch) == (was.producer_id, was.producer_epoch)
    return same and now.state == ONGOING


def _abort_once(
    client: Client, ongoing: Mapping[str, Described], within_s: float
) -> dict[str, Exception]:
    """Those that are refused, with kafka-python's error: perhaps since they have ended."""
    if rules(client) == 1:
        answers = client.exchange(Fence(ongoing), ongoing, within_s)
    else:
        exact = {name: _as_it_is(client, name, now) for name, now in ongoing.items()}
        answers = client.exchange(End(exact, commit=False), exact, within_s)
    return {name: each for name, each in answers.items() if isinstance(each, Exception)}


def _as_it_is(client: Client, name: str, now: Described) -> Transaction:
    return Transaction(
        transactional_id=name,
        producer_id=now.producer_id,
        producer_epoch=now.producer_epoch,
        rules=rules(client),
    )
