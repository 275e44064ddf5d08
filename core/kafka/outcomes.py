"""What became of a transaction, judged from what its coordinator says of its id now."""

from __future__ import annotations

from enum import Enum

from krishiv_spark.kafka.coordinators import Described, Transaction

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

_COMMITTED = frozenset({COMMITTING, "CompleteCommit"})
_ABORTED = frozenset({_ABORTING, "CompleteAbort", "PrepareEpochFence"})


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
