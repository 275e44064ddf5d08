"""Transactions that one process starts and another ends.

EndTxn needs only the transactional id, the producer id and the producer epoch, so the driver can
end a transaction whose task has died. Two versions of the protocol exist: under TV1 the producer
adds partitions to a transaction one by one; under TV2 (KIP-890) Produce adds them, and the end of a
transaction raises the producer epoch. A transaction keeps the version with which it started: EndTxn
repeated in the other version gets another response.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum

from krishiv_spark.kafka.client import KafkaClient, KafkaFailedError
from krishiv_spark.kafka.requests import send_all
from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.kafka.transaction_requests import (
    AddPartitionsToTxn,
    DescribeTransactions,
    EndTxn,
    FenceProducer,
    IdempotentProducer,
    InitProducerId,
    ListTransactions,
    Transaction,
    TransactionDescription,
    TransactionVersion,
    build_producer_request,
)
from krishiv_spark.runtime.retry import Backoff

__all__ = [
    "AT_ONCE_S",
    "COMMITTING",
    "ONGOING",
    "UNFINISHED",
    "Outcome",
    "abort_live",
    "abort_open",
    "abort_other_attempts",
    "add_partitions",
    "await_markers",
    "begin_transaction",
    "build_transaction",
    "check_transactions",
    "describe",
    "describe_available",
    "end_transactions",
    "find_outcomes",
    "get_transaction_version",
    "init_producer",
    "judge_outcome",
    "list_open_transactions",
    "list_transactions",
    "pick_transactional_id",
    "try_abort",
]

AT_ONCE_S = 1.0
"""Time limit for requests whose result no epoch needs."""

_LISTED_S = 5.0
"""Time limit for a list of open transactions."""

ONGOING, COMMITTING, _ABORTING = "Ongoing", "PrepareCommit", "PrepareAbort"
UNFINISHED = (ONGOING, COMMITTING, _ABORTING)
"""States of a transaction that has not ended (``TransactionState``)."""

_COMPLETE = frozenset({"CompleteCommit", "CompleteAbort"})
_COMMITTED = frozenset({COMMITTING, "CompleteCommit"})
# PrepareEpochFence: an initialisation of the id has fenced its producer, and the abort follows.
_ABORTED = frozenset({_ABORTING, "CompleteAbort", "PrepareEpochFence"})

_LAST_EPOCH = 2**15 - 2
"""Last epoch of a producer id (``TransactionMetadata.isProducerEpochExhausted``)."""


# --- executor


def get_transaction_version(client: KafkaClient) -> TransactionVersion:
    """Return the protocol of new transactions: TV2 if the cluster has it."""
    level = client.get_features().levels.get("transaction.version", 0)
    return TransactionVersion.TV2 if level >= TransactionVersion.TV2 else TransactionVersion.TV1


def check_transactions(client: KafkaClient) -> None:
    """Check that a cluster has the transactions that exactly-once writing needs. Planner.

    Raises:
        KafkaFailedError: If it does not. It names the missing requests.
    """
    missing = client.get_features().find_missing_transactions()
    if missing:
        why = (
            f"the cluster does not have {', '.join(missing)} of Kafka 3.0, or not as new as needed"
        )
        hint = "set 'delivery' = 'at-least-once', or write to a cluster with transactions"
        raise client.make_error("write exactly once", why, hint)


def pick_transactional_id(client: KafkaClient, ids: Sequence[str]) -> str:
    """Executor: return the first id under which no transaction is open or about to end.

    If all are in use, return the first id, which `begin_transaction` takes over.

    Raises:
        KafkaFailedError: If one may not be seen, or its coordinator does not answer in time.
    """
    # One by one: nearly always the first is free, and the others need no request.
    for name in ids:
        if describe(client, [name])[name].state not in UNFINISHED:
            return name
    return ids[0]


def begin_transaction(client: KafkaClient, transactional_id: str, timeout_ms: int) -> Transaction:
    """Take a transactional id over: abort its open transaction, and fence its producer.

    Args:
        client: The client of this process.
        transactional_id: The id that this attempt has picked.
        timeout_ms: Time-out of the transaction, from its first record to its end.

    Raises:
        KafkaFailedError: If the coordinator refuses, or does not answer in time.
    """
    kind = InitProducerId(timeout_ms)
    answer = send_all(client, kind, [transactional_id], on_error="return")[transactional_id]
    if isinstance(answer, Exception):
        hint = _explain_refusal(answer, timeout_ms)
        raise client.make_error(f"{kind.what} {transactional_id!r}", answer, hint)
    return build_transaction(client, transactional_id, answer.producer_id, answer.producer_epoch)


def build_transaction(
    client: KafkaClient, transactional_id: str, producer_id: int, producer_epoch: int
) -> Transaction:
    """Return the transaction of a producer, with the protocol of this process.

    Args:
        client: The client of this process.
        transactional_id: The transactional id of the producer.
        producer_id: The id that ``InitProducerId`` returned.
        producer_epoch: Its epoch at the start of the transaction.
    """
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        version=get_transaction_version(client),
    )


def _explain_refusal(error: Exception, timeout_ms: int) -> str:
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
        KafkaFailedError: If the producer was fenced or the transaction has ended, or one may not
            be written.
    """
    kind = AddPartitionsToTxn(transaction)
    send_all(client, kind, partitions, format_item=lambda tp: f" {tp}")


def init_producer(client: KafkaClient) -> IdempotentProducer:
    """Executor: return a new idempotent producer without transactions.

    Raises:
        KafkaFailedError: If no broker gives one, or none answers in time.
    """
    answer = client.ask_any("get a producer id", build_producer_request())
    return IdempotentProducer(answer.producer_id, answer.producer_epoch)


# --- driver


def end_transactions(
    client: KafkaClient, transactions: Iterable[Transaction], *, commit: bool
) -> dict[Transaction, Exception]:
    """Commit or abort transactions, side by side. Repeating it changes nothing.

    Returns:
        The transactions that the coordinator refused, with kafka-python's error: `find_outcomes`
        shows their outcomes. An aborted transaction is never committed, nor the other way round.

    Raises:
        KafkaFailedError: If a coordinator does not answer in time; some may have been ended.
    """
    by_id = {each.transactional_id: each for each in transactions}
    answers = send_all(client, EndTxn(by_id, commit), by_id, on_error="return")
    return {by_id[i]: answer for i, answer in answers.items() if isinstance(answer, Exception)}


def describe(
    client: KafkaClient, ids: Collection[str], within_s: float | None = None
) -> dict[str, TransactionDescription]:
    """Return the current state of transactional ids at their coordinators.

    Args:
        client: The client of this process.
        ids: Transactional ids, also ids that their coordinators do not know.
        within_s: Time limit; None for ``default.api.timeout.ms``.

    Raises:
        KafkaFailedError: If one may not be seen, or a coordinator does not answer in time.
    """
    return send_all(client, DescribeTransactions(), ids, within_s=within_s)


def describe_available(
    client: KafkaClient, ids: Collection[str], within_s: float
) -> dict[str, TransactionDescription]:
    """Return the current state of the transactional ids whose coordinators answer in time.

    Args:
        client: The client of this process.
        ids: Transactional ids.
        within_s: Time limit.

    Returns:
        By id; without those whose coordinator does not answer, with a warning, or refuses.
    """
    kind = DescribeTransactions()
    found = send_all(client, kind, ids, on_error="return", on_timeout="skip", within_s=within_s)
    return {name: now for name, now in found.items() if isinstance(now, TransactionDescription)}


def await_markers(client: KafkaClient, ids: Collection[str], within_s: float) -> None:
    """Wait until the brokers have written the markers that commit transactions.

    Args:
        client: The client of this process.
        ids: Transactional ids whose markers were not complete; the first request follows a pause.
        within_s: Time limit.

    Raises:
        KafkaFailedError: If a coordinator does not answer in time.
    """
    backoff = Backoff(within_s)
    while ids and backoff.pause() and (left_s := backoff.left_s):
        found = describe(client, ids, left_s)
        ids = [name for name in ids if found[name].state == COMMITTING]


def list_open_transactions(client: KafkaClient, start: str, *, rest: str = ".*") -> dict[str, str]:
    """Return the transactional ids with a prefix whose transaction has not ended.

    Ids of a broker that does not answer within seconds are left out, with a warning.

    Args:
        client: The client of this process.
        start: The prefix of the ids.
        rest: A regular expression of what follows it.

    Returns:
        The state by id: "Ongoing", or "PrepareCommit" or "PrepareAbort" while the brokers write
        the markers that end it.

    Raises:
        KafkaFailedError: If a broker refuses.
    """
    kind = ListTransactions(start, UNFINISHED, rest)
    within_s = min(_LISTED_S, client.config.api_timeout_s)
    answers = send_all(
        client, kind, kind.names, on_error="return", on_timeout="skip", within_s=within_s
    )
    return _merge_lists(client, kind, answers)


def list_transactions(
    client: KafkaClient, start: str, states: Sequence[str] = (), *, rest: str = ".*"
) -> dict[str, str]:
    """Return the state of the transactional ids with a prefix.

    Args:
        client: The client of this process.
        start: The prefix of the ids.
        states: States to list; empty for all.
        rest: A regular expression of what follows the prefix.

    Raises:
        KafkaFailedError: If a broker that coordinates such ids refuses, or does not answer in time.
    """
    kind = ListTransactions(start, states, rest)
    return _merge_lists(client, kind, send_all(client, kind, kind.names, on_error="return"))


def _merge_lists(
    client: KafkaClient,
    kind: ListTransactions,
    answers: Mapping[str, dict[str, str] | Exception],
) -> dict[str, str]:
    found: dict[str, str] = {}
    for listed in answers.values():
        if isinstance(listed, Exception):
            what = f"list transactional ids that start with {kind.start!r}"
            raise client.make_error(what, listed)
        found |= listed
    return found


# --- outcomes


class Outcome(Enum):
    """The outcome of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


def find_outcomes(
    client: KafkaClient, transactions: Collection[Transaction]
) -> dict[Transaction, Outcome]:
    """Return the outcomes of transactions, as far as their coordinators show them.

    Raises:
        KafkaFailedError: As `describe`.
    """
    found = describe(client, [each.transactional_id for each in transactions])
    return {each: judge_outcome(each, found[each.transactional_id]) for each in transactions}


def judge_outcome(transaction: Transaction, now: TransactionDescription) -> Outcome:
    """Derive the outcome of a transaction from the current state of its id.

    The end of a transaction raises the epoch under TV2, a time-out always. Any other epoch is that
    of a later producer that initialised the id, which hides the outcome.
    """
    raised_by = _compare_epochs(transaction, now)
    if raised_by not in {0, 1}:
        return Outcome.UNKNOWN
    if now.state == ONGOING:
        return Outcome.OPEN if raised_by == 0 else Outcome.UNKNOWN
    is_tv1 = transaction.version is TransactionVersion.TV1
    if raised_by == 1 and is_tv1:  # a time-out, or a later transaction of the id
        return Outcome.UNKNOWN
    if now.state in _COMMITTED:
        return Outcome.COMMITTED
    return Outcome.ABORTED if now.state in _ABORTED else Outcome.UNKNOWN


def _compare_epochs(transaction: Transaction, now: TransactionDescription) -> int | None:
    """Return by how much the current epoch is higher; None for another producer.

    After the last epoch of a producer id comes epoch 0 of another one. Under TV2 only the end of a
    transaction leads there: an initialisation of the id passes it too, but stops at epoch 1.
    """
    if now.producer_id == transaction.producer_id:
        return now.producer_epoch - transaction.producer_epoch
    after_the_last = transaction.producer_epoch == _LAST_EPOCH and now.producer_epoch == 0
    ended = transaction.version is TransactionVersion.TV2 and now.state in _COMPLETE
    return 1 if after_the_last and ended else None


# --- transactions that no intent names, whose producers may still write


def abort_open(
    client: KafkaClient,
    start: str,
    keep: Collection[str],
    is_owner: Callable[[], bool],
    *,
    rest: str = ".*",
) -> dict[str, str]:
    """Abort the open transactions under ids with a prefix, even if their producers still write.

    Args:
        client: The client of this process.
        start: The prefix of the ids.
        keep: Ids whose transactions are not aborted.
        is_owner: Called when the transactions are known; returns True if the caller may end them.
        rest: A regular expression of what follows the prefix.

    Returns:
        The state of each unfinished transaction before, as `list_open_transactions`.

    Raises:
        KafkaFailedError: If a coordinator refuses, or does not answer in time.
    """
    listed = list_open_transactions(client, start, rest=rest)
    to_abort = [name for name, state in listed.items() if state == ONGOING and name not in keep]
    abort_live(client, describe(client, to_abort), is_owner)
    return listed


def abort_other_attempts(
    client: KafkaClient, ids: Collection[str], is_owner: Callable[[], bool]
) -> None:
    """Abort the open transactions of ids whose coordinators answer within a second.

    Args:
        client: The client of this process.
        ids: Transactional ids of the epoch's attempts, without those of the committed attempts.
            Their state is requested here, because under TV1 it must be known right before an abort.
        is_owner: As for `abort_open`.

    Raises:
        KafkaFailedError: If a coordinator refuses, or stops answering half-way.
    """
    abort_live(client, describe_available(client, ids, AT_ONCE_S), is_owner, AT_ONCE_S)


def abort_live(
    client: KafkaClient,
    found: Mapping[str, TransactionDescription],
    is_owner: Callable[[], bool],
    within_s: float | None = None,
) -> None:
    """Abort open transactions in such a way that their producers cannot write any more.

    Under TV2 EndTxn is enough: its markers raise the producer's epoch at the leaders. It names the
    epoch, so it does not touch a newer transaction of the id. Under TV1 it does not raise the
    epoch: brokers before 3.6, and those that do not verify
    (``transaction.partition.verification.enable``), would take the producer's later records into a
    transaction that no coordinator knows and that never ends. There only InitProducerId raises the
    epoch, which would abort a newer transaction too. So it is sent only while the intended
    transaction is observed to be open, and the caller may end it.

    Args:
        client: The client of this process.
        found: The observed state, by transactional id.
        is_owner: Called right before; returns True if the caller may end them.
        within_s: Time limit; None for ``default.api.timeout.ms``.

    Raises:
        KafkaFailedError: If a coordinator refuses, or does not answer in time.
    """
    backoff = Backoff(client.config.api_timeout_s if within_s is None else within_s)
    ongoing = {name: now for name, now in found.items() if now.state == ONGOING}
    if not ongoing:
        return
    for left_s in backoff.attempts():
        if not is_owner():
            return
        refused = _abort_once(client, ongoing, left_s)
        now = describe(client, ongoing, backoff.left_s)  # of the time that this attempt has
        ongoing = {name: was for name, was in ongoing.items() if _is_still_open(now[name], was)}
        for name in ongoing:
            if name in refused:
                raise client.make_error(f"abort the transaction under {name!r}", refused[name])
        if not ongoing:
            return
    raise client.make_error(f"abort the transactions under {sorted(ongoing)}", "the time is up")


def _is_still_open(now: TransactionDescription, was: TransactionDescription) -> bool:
    same = (now.producer_id, now.producer_epoch) == (was.producer_id, was.producer_epoch)
    return same and now.state == ONGOING


def _abort_once(
    client: KafkaClient, ongoing: Mapping[str, TransactionDescription], within_s: float
) -> dict[str, Exception]:
    """Return the refused aborts with kafka-python's error: they may have ended meanwhile."""
    answers: Mapping[str, object]
    if get_transaction_version(client) is TransactionVersion.TV1:
        answers = send_all(
            client, FenceProducer(ongoing), ongoing, on_error="return", within_s=within_s
        )
    else:
        # With the protocol of this process: EndTxn of TV2 ends transactions of TV1 as well.
        exact = {
            name: build_transaction(client, name, now.producer_id, now.producer_epoch)
            for name, now in ongoing.items()
        }
        kind = EndTxn(exact, commit=False)
        answers = send_all(client, kind, exact, on_error="return", within_s=within_s)
    return {name: each for name, each in answers.items() if isinstance(each, Exception)}


def try_abort(client: KafkaClient, transaction: Transaction) -> None:
    """Executor: abort the transaction of this attempt, if that succeeds within a second.

    Otherwise the next attempt or planner aborts it. Requests of this attempt may be in flight.
    """
    name = transaction.transactional_id
    with contextlib.suppress(KafkaFailedError):
        now = describe(client, [name], AT_ONCE_S)[name]
        expected = (transaction.producer_id, transaction.producer_epoch)
        if (now.producer_id, now.producer_epoch) == expected:  # otherwise a later producer has it
            abort_live(client, {name: now}, lambda: True, AT_ONCE_S)
