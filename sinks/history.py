"""Does a log tell the same story as the checkpoint, up to the epoch that is about to begin?"""

from __future__ import annotations

from collections.abc import Callable

from krishiv_spark.errors import CheckpointMismatch, Fenced, LogError
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets import Claim, EpochLog, PlannedOffsets, State
from krishiv_spark.sinks.base import CommittedEpoch, Epoch
from krishiv_spark.sinks.identity import is_already_committed

__all__ = [
    "ADOPT",
    "check_first",
    "check_history",
    "check_not_overtaken",
    "check_target",
    "operators_claim",
    "to_committed_epoch",
]

ADOPT = (
    "If the query was stopped cleanly, and everything that it has planned is in its target or "
    "is not needed there, 'krishiv-spark log adopt' creates a new log for the current "
    "checkpoint. If the target has later epochs by their numbers, the command lists the steps "
    "to take first"
)


def to_committed_epoch(state: State) -> CommittedEpoch | None:
    """What a log says the target holds."""
    epoch, offsets = state.committed_epoch, state.committed_offsets
    if epoch is None:
        return None
    return (
        CommittedEpoch(epoch)
        if offsets is None
        else CommittedEpoch(epoch, offsets.digest, offsets.shown)
    )


def operators_claim(query: str, state: State) -> Claim:
    """For an owner entry that begins no epoch: the log goes on from where it is."""
    return Claim(query=query) if state.claim is None else state.claim.of_nobody()


def check_first(
    log: EpochLog, epoch: Epoch, state: State, verify_empty_log: Callable[[str], object]
) -> None:
    """Refuse a query that has a past where its log has none. Planner.

    Args:
        log: Of the query.
        epoch: That is about to begin.
        state: What the log says before.
        verify_empty_log: As `Participant.verify_empty_log`, called if the log tells of no epoch.

    Raises:
        LogError: If epochs are missing in the log.
        Fenced: If another driver has begun the query meanwhile.
    """
    # Without offsets, drivers' own owner entries look as an operator's do: nothing tells them
    # apart.
    if state.number > 0 and not (epoch.offsets is not None and _is_blank(state)):
        return
    try:
        if epoch.offsets is not None:  # jobs that users number begin at any
            _check_number(log, epoch)
        verify_empty_log(epoch.query)
    except LogError as error:
        check_not_overtaken(log, state, error)
        raise


def check_not_overtaken(log: EpochLog, state: State, error: Exception) -> None:
    """Blame another driver for a difference between log and target, if it has gone on. Planner.

    Args:
        log: Of the query.
        state: Its state before the target was asked: the target's answer may be a newer one.
        error: The difference.

    Raises:
        Fenced: If the log has a later entry now.
    """
    if log.state().number != state.number:
        raise Fenced(
            f"another driver has started the query meanwhile, as its epoch log {log} shows: two "
            "drivers run on one checkpoint; stop one of them"
        ) from error


def _is_blank(state: State) -> bool:
    """Whether a log tells of no epoch, since only operators have taken it over."""
    is_nobodys = state.claim is not None and state.claim.offsets is None
    return is_nobodys and state.number == state.generations


def _check_number(log: EpochLog, epoch: Epoch) -> None:
    if epoch.number > 0:
        raise LogError(
            f"query {epoch.query} is at epoch {epoch.number}, but its epoch log {log} is empty: "
            "the log was removed, the option with its location has changed, the query wrote to "
            "another target before, or the checkpoint's file 'metadata' was lost, so that the "
            f"query has a new id. Put it back, or use {NEW_CHECKPOINT}. {ADOPT}"
        )


def check_target(log: EpochLog, claim: Claim, state: State) -> None:
    """Refuse a driver whose epochs would go elsewhere than those in the log. Planner.

    Args:
        log: Of the query, for the message.
        claim: What the owner entry of this driver would say.
        state: What the log says before it.

    Raises:
        LogError: If the target is another one.
    """
    before = None if state.claim is None else state.claim.target
    if before is not None and claim.target != before:
        raise LogError(
            f"the epochs in the epoch log {log} were written to {before}, and would now be "
            f"written to {claim.target}. Nothing was written: give the old target, or a "
            f"separate 'txnAppId' for each target, or use {NEW_CHECKPOINT}. {ADOPT}"
        )


def check_history(log: EpochLog, epoch: Epoch, planned: PlannedOffsets, state: State) -> None:
    """Refuse a driver whose checkpoint is not the one that the log knows. Planner.

    Before its owner entry: what is refused has changed nothing, and has fenced nobody.

    Args:
        log: Of the query, for the message.
        epoch: That is about to begin.
        planned: What Spark planned for it.
        state: What the log says before.

    Raises:
        CheckpointMismatch: If the checkpoint is older than the log, or the log than the checkpoint.
    """
    # For its errors: whether there is work to do, the tasks and the committer ask for themselves.
    is_already_committed(epoch, to_committed_epoch(state))
    if state.offsets is not None:
        _check_follows(log, planned, state.offsets)


def _check_follows(log: EpochLog, planned: PlannedOffsets, before: PlannedOffsets) -> None:
    """Every epoch begins with an entry in the log, also one without rows."""
    # The same number once more is no fault: what was begun and not published may be planned anew,
    # and what is held has been compared by its digest before.
    if planned.epoch < before.epoch:
        raise CheckpointMismatch(
            f"the query is at epoch {planned.epoch}, but its epoch log {log} has recorded the "
            f"start of epoch {before.epoch}. Either another driver runs on the checkpoint and "
            "is ahead; then stop it. Or the checkpoint was rolled back or restored from an "
            "older copy. Nothing was written: put the newest checkpoint back, or use a new "
            f"one. {ADOPT}"
        )
    if planned.epoch > before.epoch + 1:
        raise CheckpointMismatch(
            f"the query is at epoch {planned.epoch}, but its epoch log {log} has recorded none "
            f"after {before.epoch}: it was restored from an older copy, or epochs were written "
            "to another sink meanwhile. Nothing was written: put the newest log back, or use "
            f"{NEW_CHECKPOINT}. {ADOPT}"
        )
    if planned.epoch == before.epoch + 1 and planned.begins != before.ends:
        raise CheckpointMismatch(
            f"epoch {planned.epoch} does not start where epoch {before.epoch} ended when the "
            f"epoch log {log} recorded it ({before.shown or 'long offsets'}): the offsets of "
            f"epoch {before.epoch} were changed in the checkpoint. Nothing was written: put the "
            f"checkpoint back, or use a new one. {ADOPT}"
        )
