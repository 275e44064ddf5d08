"""Which epoch is which: its number, and what Spark planned for it."""

from __future__ import annotations

from krishiv_spark.errors import CheckpointMismatch
from krishiv_spark.sinks.base import Epoch, Mark

__all__ = ["is_held"]

_WAYS_ON = (
    "Nothing was written. Two ways on: put back the checkpoint that belongs to what the sink "
    "holds; or start with a new checkpoint, whose sources begin where the sink's newest epoch ended"
)


def is_held(epoch: Epoch, mark: Mark | None) -> bool:
    """Whether a sink holds an epoch already, so that it has to be skipped. Anywhere.

    Args:
        epoch: As Spark plans it now.
        mark: The newest that the sink holds.

    Raises:
        CheckpointMismatch: If the sink holds other rows under this number, or a later epoch: to
            skip this one would lose rows. If the epoch is the next one and begins elsewhere than
            the newest ended: rows between would be lost, or written twice.
    """
    if mark is None:
        return False
    if epoch.number > mark.epoch:
        _check_follows(epoch, mark)
        return False
    if epoch.number < mark.epoch:
        raise CheckpointMismatch(
            f"query {epoch.query} is at epoch {epoch.number}, but the sink holds epoch "
            f"{mark.epoch} of it{_at(mark.shown)}. Either the checkpoint was rolled back or "
            "restored from an older copy, or another driver runs on it, which has to be stopped. "
            f"{_WAYS_ON}"
        )
    # Nobody knows what was planned in marks of version 0.1.0, nor where the sink was not told the
    # checkpoint: there the number decides.
    if epoch.digest is None or mark.digest in {None, epoch.digest}:
        return True
    planned = None if epoch.offsets is None else epoch.offsets.shown
    raise CheckpointMismatch(
        f"epoch {epoch.number} of query {epoch.query} is not the one that the sink holds under "
        f"this number{_at(mark.shown)}: the checkpoint plans other offsets for it{_at(planned)}. "
        "It was rolled back, restored from an older copy, or its offsets were removed. "
        f"{_WAYS_ON}"
    )


def _check_follows(epoch: Epoch, mark: Mark) -> None:
    planned = epoch.offsets
    if planned is None or epoch.number > mark.epoch + 1 or planned.may_follow(mark.digest):
        return  # an epoch without rows leaves no mark
    raise CheckpointMismatch(
        f"epoch {epoch.number} does not begin where epoch {mark.epoch} ended{_at(mark.shown)} when "
        f"the sink took it: the offsets of epoch {mark.epoch} were changed in the checkpoint of "
        f"query {epoch.query}. {_WAYS_ON}"
    )


def _at(shown: str | None) -> str:
    return "" if shown is None else f" (up to {shown})"
