"""Decisions of operators for which a log and its target do not suffice: ``krishiv-spark log``."""

from __future__ import annotations

from typing import Any

from krishiv_spark.errors import LogError, OptionError
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets import Claim, EpochLog, PlannedOffsets, State
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.log_checks import operators_claim
from krishiv_spark.sinks.logged import LogCommitter
from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = ["Operator"]


class Operator:
    """The sink and the log of a query, for commands of an operator. No driver may run meanwhile.

    A running driver is fenced and fails.

    Args:
        committer: The committer of the sink, from the options of the query.
        query: Id of the query.
        checkpoint: The checkpoint of the query; None if only Spark can read it.
    """

    def __init__(
        self, committer: LogCommitter[Any], query: str, checkpoint: SparkCheckpoint | None
    ) -> None:
        self._committer = committer
        self._participant = committer.participant
        self._query = query
        self._checkpoint = checkpoint
        self._log: EpochLog = committer.log(query)

    # --- present state

    def lines(self) -> list[str]:
        """Return the content of the log and the checkpoint, one entry per line."""
        state = self._log.state()
        target = None if state.claim is None else state.claim.target
        held = "none" if state.committed_epoch is None else state.committed_epoch
        return [
            f"query {self._query}, epoch log {self._log}, {state.number} entries",
            f"target: {target or 'not known'}; newest owner: {state.owner_writer or 'none'}",
            self._planned_line(),
            f"newest committed epoch of the log: {held}",
            self._intent_line(state),
        ]

    def _planned_line(self) -> str:
        if self._checkpoint is None:
            return "the checkpoint is not read: the query has its own name ('queryId')"
        planned = self._checkpoint.planned_offsets()
        over = "completed" if self._checkpoint.is_committed(planned.epoch) else "not completed"
        return f"the checkpoint has planned epoch {planned.epoch}, which is {over}"

    def _intent_line(self, state: State) -> str:
        if state.intent is None:
            return "no intent is open"
        known = "finished" if self._is_finished(state) else "perhaps not finished"
        return f"the newest intent is of epoch {state.intent.epoch}, and {known}"

    def _is_finished(self, state: State) -> bool:
        if self._log.is_finished(state) or state.intent is None or state.intent.epoch is None:
            return True
        epoch = state.intent.epoch
        return self._is_over(epoch) or self._was_over(epoch)

    # --- actions

    def resolve(self) -> None:
        """Finish or void the newest intent and sweep, as the next driver would.

        Raises:
            OptionError: If there is no log.
            LogError: If its epochs were written to another target than that of the options.
            CheckpointMismatch: If the log or the target is an older copy.
            CommitUnknown: If the outcome of the intent is not known; see `force_outcome`.
        """
        if self._log.state().number == 0:
            raise OptionError(
                f"the epoch log {self._log} is empty, so there is nothing to resolve: check "
                "that --checkpoint and the options are those of the query. If its log was "
                "removed, put it back, or see 'krishiv-spark log adopt'"
            )
        self._committer.resolve(self._query, self._is_over)

    def force_outcome(self, *, committed: bool) -> None:
        """Decide the outcome of the newest intent.

        Args:
            committed: True if its epoch counts as published: rows that are not visible are lost.
                Otherwise it is staged again: visible rows that cannot be removed appear twice. If
                the checkpoint is not read, check first whether Spark has ``commits/<epoch>``.

        Raises:
            OptionError: If there is no intent to decide, or if Spark has recorded the epoch as
                committed, so that it would never be staged again.
        """
        state = self._open_state()
        # Spark replays the epoch that is not in `commits/`, and never one that is.
        if not committed and self._is_over(state.committed_epoch):
            raise OptionError(
                f"Spark has recorded that epoch {state.committed_epoch} is completed, and would "
                "not stage it again: its rows would be lost. Use --assume committed"
            )
        taken = self._take_over(state)
        intent = taken.intent
        if intent is None or intent.epoch is None:
            raise LogError(f"the epoch log {self._log} has changed: run the command again")
        epoch = Epoch(self._query, intent.epoch, taken.intent_generation, taken.committed_offsets)
        staged = self._committer.decode(self._log, intent.staged)
        self._participant.force_outcome(epoch, staged, committed=committed)
        if committed:
            self._log.mark_finished(taken)
            self._log.begin(operators_claim(self._query, taken))  # its entry records that
        else:
            self._log.void(taken)

    def _open_state(self) -> State:
        state = self._log.state()
        if self._log.is_finished(state):
            raise OptionError(f"the epoch log {self._log} has no open intent")
        return state

    def _is_over(self, epoch: int | None) -> bool:
        if epoch is None or self._checkpoint is None:
            return False
        return self._checkpoint.is_committed(epoch)

    def _was_over(self, epoch: int) -> bool:
        """Return True if the epoch was committed before the checkpoint was rewound."""
        return self._checkpoint is not None and self._checkpoint.was_committed(epoch)

    def adopt(self, newest: str | None) -> PlannedOffsets | None:
        """Start a new log for the present state of the checkpoint.

        Args:
            newest: The outcome of the last planned epoch, if Spark has not recorded it as
                committed: "published" or "unpublished".

        Returns:
            The newest epoch of the target by the new log.

        Raises:
            OptionError: If the outcome of the newest epoch is not known, or if the checkpoint is
                not read.
            LogError: If the log has an intent that may be unfinished, or if the target cannot
                contain two epochs with one number.
        """
        state = self._log.state()
        planned = self.check_adoption(newest)
        claim = Claim(query=self._query, offsets=planned, target=self._participant.target())
        # If the process dies in between, the log has the same state as before.
        taken = self._take_over(state)
        # An epoch that the target records from an earlier log is no newer epoch of this one.
        self._participant.sweep(self._query, taken.owner, clean=False)
        self._log.adopt(taken, claim)
        if self._checkpoint is not None:
            self._checkpoint.forget_target()  # or the next start would compare with the old one
        return planned

    def _take_over(self, state: State) -> State:
        """Append an owner entry right after a state.

        Raises:
            LogError: If a driver has appended an entry since the state was read: its intent must
                neither be dropped nor be confused with the one that the operator has seen.
        """
        taken = self._log.begin(operators_claim(self._query, state))
        if taken.number != state.number + 1:
            raise LogError(
                f"the epoch log {self._log} has changed, so nothing was decided: a driver runs "
                "on the checkpoint. Stop it, and run the command again"
            )
        return taken

    def check_adoption(self, newest: str | None) -> PlannedOffsets | None:
        """Return the result of `adopt` without a change, or raise its errors."""
        self._check_no_open_intent()
        planned = self._newest_held(newest)
        self._participant.verify_adoption(self._query, -1 if planned is None else planned.epoch)
        if planned is not None:
            self._check_rows(planned)
        return planned

    def _check_no_open_intent(self) -> None:
        state = self._log.state()
        if not self._is_finished(state):
            raise LogError(
                f"the newest intent in the epoch log {self._log}, of epoch "
                f"{state.committed_epoch}, may not be finished: 'krishiv-spark log resolve' "
                "finishes it, in its old target; if that is refused, because the target is an "
                "older copy, 'krishiv-spark log resolve --assume committed' skips it"
            )

    def _check_rows(self, planned: PlannedOffsets) -> None:
        """Refuse an epoch for which a target records other rows."""
        for record in self._participant.records(self._query):
            mark = record.mark
            if mark is None or mark.epoch != planned.epoch:
                continue
            if mark.digest not in {None, planned.digest}:
                raise LogError(
                    f"{record.target} has other rows as epoch {planned.epoch} of query "
                    f"{self._query} than the checkpoint has planned for it, as after the "
                    "checkpoint was restored from an older copy. Put the newest checkpoint "
                    f"back, or use {NEW_CHECKPOINT}"
                )

    def _newest_held(self, newest: str | None) -> PlannedOffsets | None:
        if self._checkpoint is None:
            raise OptionError(
                "a log can only be recreated for a checkpoint, which is not read with "
                f"'queryId': give another 'queryId' and use {NEW_CHECKPOINT}"
            )
        planned = self._checkpoint.planned_offsets()
        if self._checkpoint.is_committed(planned.epoch) or newest == "published":
            return planned
        if newest is None:
            raise OptionError(
                f"the query was not stopped cleanly: epoch {planned.epoch} was planned, and "
                "Spark has not recorded it as completed. Check whether its rows are in the "
                "target, and give --newest published or --newest unpublished"
            )
        return None if planned.epoch == 0 else self._checkpoint.offsets_of(planned.epoch - 1)
