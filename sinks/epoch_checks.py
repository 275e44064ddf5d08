"""Comparison of an epoch with the newest one of its sink: by number, and by planned offsets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from krishiv_spark.errors import CheckpointMismatch
from krishiv_spark.sinks.base import CommittedEpoch, Epoch

if TYPE_CHECKING:
    from krishiv_spark.offsets import State

__all__ = ["is_already_committed", "to_committed_epoch", "warn_of_epoch_gap"]


_log = logging.getLogger(__name__)

_begun: set[str] = set()
"""Queries for which this process has planned an epoch."""

_WAYS_ON = (
    "Nothing was written. Two ways on: put back the checkpoint that matches the sink; or start "
    "with a new checkpoint, whose sources begin where the sink's newest epoch ended"
)


_WRITE_AGAIN = "'krishiv-spark checkpoint rewind --to {}' writes them again"
_WRITE_ALL_AGAIN = (
    "a new checkpoint writes them again; rows that the sources no longer have are lost"
)


def to_committed_epoch(state: State) -> CommittedEpoch | None:
    """Return the committed epoch of the target, as a log records it."""
    epoch, offsets = state.committed_epoch, state.committed_offsets
    if epoch is None:
        return None
    return (
        CommittedEpoch(epoch)
        if offsets is None
        else CommittedEpoch(epoch, offsets.digest, offsets.shown)
    )


def is_already_committed(epoch: Epoch, mark: CommittedEpoch | None) -> bool:
    """Return True if a sink has committed an epoch, so that it must be skipped. Any process.

    Args:
        epoch: The epoch, with Spark's present plan.
        mark: The newest epoch of the sink.

    Raises:
        CheckpointMismatch: If the sink has other rows under this number, or a later epoch: if this
            one were skipped, rows would be lost. If the epoch is the next one and does not begin
            where the newest ended: rows would be lost or written twice. If the user's name of the
            query belongs to another query.
    """
    if mark is None:
        return False
    _check_query(epoch, mark)
    if epoch.number > mark.epoch:
        _check_follows(epoch, mark)
        return False
    if epoch.number < mark.epoch:
        raise CheckpointMismatch(
            f"query {epoch.query} is at epoch {epoch.number}, but the sink has epoch "
            f"{mark.epoch} of it{_at(mark.shown)}. Either the checkpoint was rolled back or "
            "restored from an older copy, or another driver runs on it; then stop that driver. "
            f"{_WAYS_ON}"
        )
    # The plan is not known for records of version 0.1.0, nor if the sink does not know the
    # checkpoint: then only the number is compared.
    if epoch.digest is None or mark.digest in {None, epoch.digest}:
        return True
    planned = None if epoch.offsets is None else epoch.offsets.shown
    raise CheckpointMismatch(
        f"epoch {epoch.number} of query {epoch.query} is not the one that the sink has under "
        f"this number{_at(mark.shown)}: the checkpoint plans other offsets for "
        f"it{_at(planned)}. It was rolled back, restored from an older copy, or its offsets "
        f"were removed. {_WAYS_ON}"
    )


def warn_of_epoch_gap(epoch: Epoch, mark: CommittedEpoch | None) -> None:
    """Warn of epochs without data in the sink, although the sources have advanced. Planner.

    An epoch without rows leaves no record, so that may be correct. Or the target was restored from
    an older copy, or recreated. The check runs once in a process for each query, at its first epoch
    there: epochs that are skipped later had no rows.

    Args:
        epoch: The epoch, with Spark's present plan.
        mark: The newest epoch of the sink.
    """
    planned = epoch.offsets
    # A batch job has none, but its own id: a worker runs thousands of them.
    if planned is None or epoch.query in _begun:
        return
    _begun.add(epoch.query)
    first = 0 if mark is None else mark.epoch + 1
    if epoch.number <= first or planned.is_unseen:
        return
    if mark is None or not planned.may_follow(mark.digest):
        _log.warning(
            "query %s starts epoch %d, and the sink lacks epochs %d to %d, in which "
            "its sources have advanced. That is correct if none of their rows reached the "
            "sink. If its target was restored from an older copy or recreated, their rows are "
            "missing there: stop the query, and restore that copy again, since this epoch is in "
            "the sink now; then %s. If the query has a new id because the file "
            "'metadata' of its checkpoint was lost, stop it and restore that file: the sink "
            "has its epochs under the old id",
            epoch.query,
            epoch.number,
            first,
            epoch.number - 1,
            _WRITE_AGAIN.format(first - 1) if first else _WRITE_ALL_AGAIN,
        )


def _check_query(epoch: Epoch, mark: CommittedEpoch) -> None:
    """Check the query with a user's name: the name alone does not show that it is the same."""
    planned = epoch.offsets
    if planned is None or not planned.is_unseen or mark.digest in {None, planned.digest}:
        return
    raise CheckpointMismatch(
        f"'queryId' {epoch.query} is taken: the sink has epoch {mark.epoch} of that name from "
        f"another query or checkpoint{_at(mark.shown)}, and this is {planned.shown}. Nothing "
        "was written: put the old checkpoint back, or give this query its own name"
    )


def _check_follows(epoch: Epoch, mark: CommittedEpoch) -> None:
    planned = epoch.offsets
    if planned is None or planned.may_follow(mark.digest):
        return
    if epoch.number > mark.epoch + 1:
        return  # an epoch without rows leaves no record
    raise CheckpointMismatch(
        f"epoch {epoch.number} does not start where epoch {mark.epoch} ended{_at(mark.shown)} "
        f"when the sink committed it: the offsets of epoch {mark.epoch} were changed in the "
        f"checkpoint of query {epoch.query}. {_WAYS_ON}"
    )


def _at(shown: str | None) -> str:
    return "" if shown is None else f" (up to {shown})"
