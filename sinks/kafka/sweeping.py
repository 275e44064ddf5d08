"""Ending what nobody will commit, whoever still writes there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping

from krishiv_spark.kafka.client import KafkaClient, KafkaFailedError
from krishiv_spark.kafka.coordinators import Transaction, TransactionDescription
from krishiv_spark.kafka.outcomes import ONGOING
from krishiv_spark.kafka.producing import EndTxn, FenceProducer
from krishiv_spark.kafka.requests import send_all
from krishiv_spark.kafka.transactions import (
    TransactionVersion,
    describe,
    look,
    transaction_of,
    transaction_version,
    unfinished,
)
from krishiv_spark.runtime.retry import Backoff

__all__ = ["AT_ONCE_S", "abort_live", "abort_open", "abort_siblings", "try_abort"]

AT_ONCE_S = 1.0
"""How long is waited for whom nobody needs."""


def abort_open(
    client: KafkaClient, start: str, spare: Collection[str], is_owner: Callable[[], bool]
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


def abort_siblings(client: KafkaClient, ids: Collection[str], is_owner: Callable[[], bool]) -> None:
    """Abort what is open under some ids, as far as their coordinators answer within a second.

    Args:
        client: Of this process.
        ids: Transactional ids that attempts of the epoch may have taken, but for those that won.
            Looked at here, since under TV1 what is aborted has to be seen right before.
        is_owner: As in `abort_open`.

    Raises:
        KafkaFailedError: If a coordinator refuses, or stops to answer half-way.
    """
    abort_live(client, look(client, ids, AT_ONCE_S), is_owner, AT_ONCE_S)


def abort_live(
    client: KafkaClient,
    found: Mapping[str, TransactionDescription],
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
    backoff = Backoff(client.config.api_timeout_s if within_s is None else within_s)
    ongoing = {name: now for name, now in found.items() if now.state == ONGOING}
    if not ongoing:
        return
    for left_s in backoff.attempts():
        if not is_owner():
            return
        refused = _abort_once(client, ongoing, left_s)
        seen = describe(client, ongoing, backoff.left_s)  # of the time that this attempt has
        ongoing = {name: was for name, was in ongoing.items() if _is_open(seen[name], was)}
        for name in ongoing:
            if name in refused:
                raise client.make_error(f"abort the transaction under {name!r}", refused[name])
        if not ongoing:
            return
    raise client.make_error(f"abort the transactions under {sorted(ongoing)}", "the time is up")


def _is_open(now: TransactionDescription, was: TransactionDescription) -> bool:
    same = (now.producer_id, now.producer_epoch) == (was.producer_id, was.producer_epoch)
    return same and now.state == ONGOING


def _abort_once(
    client: KafkaClient, ongoing: Mapping[str, TransactionDescription], within_s: float
) -> dict[str, Exception]:
    """Those that are refused, with kafka-python's error: perhaps since they have ended."""
    if transaction_version(client) is TransactionVersion.TV1:
        answers = send_all(
            client, FenceProducer(ongoing), ongoing, on_error="return", within_s=within_s
        )
    else:
        # By the rules of this process: EndTxn of TV2 ends what was begun by TV1 as well.
        exact = {
            name: transaction_of(client, name, now.producer_id, now.producer_epoch)
            for name, now in ongoing.items()
        }
        answers = send_all(
            client, EndTxn(exact, commit=False), exact, on_error="return", within_s=within_s
        )
    return {name: each for name, each in answers.items() if isinstance(each, Exception)}


def try_abort(client: KafkaClient, transaction: Transaction) -> None:
    """Executor: abort what this attempt has open, if that works within a second.

    Otherwise whoever comes next does it. Requests of this attempt may still be under way.
    """
    name = transaction.transactional_id
    with contextlib.suppress(KafkaFailedError):
        now = describe(client, [name], AT_ONCE_S)[name]
        mine = (transaction.producer_id, transaction.producer_epoch)
        if (now.producer_id, now.producer_epoch) == mine:  # else somebody else has it already
            abort_live(client, {name: now}, lambda: True, AT_ONCE_S)
