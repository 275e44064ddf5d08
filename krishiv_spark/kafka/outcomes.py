"""What became of a transaction, judged from what its coordinator says of its id now."""

from __future__ import annotations

from enum import Enum

from krishiv_spark.kafka.coordinators import Transaction, TransactionDescription, TransactionVersion

__all__ = ["COMMITTING", "ONGOING", "UNFINISHED", "Outcome", "outcome"]


class Outcome(Enum):
    """What became of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


ONGOING, COMMITTING, _ABORTING = "Ongoing", "PrepareCommit", "PrepareAbort"
UNFINISHED = (ONGOING, COMMITTING, _ABORTING)
"""States of a transaction that has not ended (``TransactionState``)."""

_COMPLETE = frozenset({"CompleteCommit", "CompleteAbort"})
_COMMITTED = frozenset({COMMITTING, "CompleteCommit"})
# PrepareEpochFence: who initialises the id has fenced its producer, and the abort follows.
_ABORTED = frozenset({_ABORTING, "CompleteAbort", "PrepareEpochFence"})


_LAST_EPOCH = 2**15 - 2
"""That a coordinator gives to a producer (``TransactionMetadata.isProducerEpochExhausted``)."""


def outcome(transaction: Transaction, now: TransactionDescription) -> Outcome:
    """Judge from what its id looks like now.

    Ending raises the epoch under TV2, a time-out always; any other epoch belongs to somebody who
    initialised the id again, which hides the outcome.
    """
    raised = _raised(transaction, now)
    if raised not in {0, 1}:
        return Outcome.UNKNOWN
    if now.state == ONGOING:
        return Outcome.OPEN if raised == 0 else Outcome.UNKNOWN
    is_tv1 = transaction.rules is TransactionVersion.TV1
    if raised == 1 and is_tv1:  # a time-out, or a later transaction of the id
        return Outcome.UNKNOWN
    if now.state in _COMMITTED:
        return Outcome.COMMITTED
    return Outcome.ABORTED if now.state in _ABORTED else Outcome.UNKNOWN


def _raised(transaction: Transaction, now: TransactionDescription) -> int | None:
    """By how much the epoch is higher than that of a transaction; None for another producer.

    After the last epoch of a producer id comes epoch 0 of another one. Under TV2 an end leads
    there, and nothing else: whoever initialises an id begins there too, but ends at epoch 1.
    """
    if now.producer_id == transaction.producer_id:
        return now.producer_epoch - transaction.producer_epoch
    after_the_last = transaction.producer_epoch == _LAST_EPOCH and now.producer_epoch == 0
    ended = transaction.rules is TransactionVersion.TV2 and now.state in _COMPLETE
    return 1 if after_the_last and ended else None
