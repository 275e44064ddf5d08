"""Sinks whose external system cannot make several pieces of data visible in one step.

An epoch is committed when its intent is in the epoch log (`krishiv_spark.offsets.epoch_log`). An
author writes a `Writer` with `stage`, and a `Participant` that makes the data of an intent visible,
however often it is repeated; the writer's `committer` combines it with the log:

    def committer(self) -> LogCommitter[Piece]:
        return LogCommitter(self.log, FolderParticipant(self.options), streaming=self.streaming)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import final

from pydantic import ValidationError

from krishiv_spark.errors import CommitRejected, CommitUnknown, Fenced, LogError, SinkError
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.offsets import Claim, EpochLog, State
from krishiv_spark.runtime.workers import application
from krishiv_spark.sinks.base import CommittedEpoch, Epoch, Ownership, Salvaged, TwoPhaseCommitter
from krishiv_spark.sinks.epoch_checks import to_committed_epoch
from krishiv_spark.sinks.log_checks import (
    check_first,
    check_history,
    check_target,
    check_targets,
    note_epoch,
    operators_claim,
)
from krishiv_spark.sinks.participant import LostIntentError, ModelT, Participant, advise_retry

__all__ = ["LogCommitter", "LostIntentError", "Participant"]

_log = logging.getLogger(__name__)


@final
class LogCommitter(TwoPhaseCommitter[ModelT]):
    """Committer of epochs by a log, in the external system of a participant. Driver.

    Args:
        log: A function that opens the epoch log of a query.
        participant: The participant of the sink.
        streaming: True for a query with a sequence of epochs; the log of a batch job is removed at
            its end.
    """

    def __init__(
        self,
        log: Callable[[str], EpochLog],
        participant: Participant[ModelT],
        *,
        streaming: bool = True,
    ) -> None:
        self.log: Callable[[str], EpochLog] = lru_cache(maxsize=8)(log)  # each step asks for it
        self.participant = participant
        self._streaming = streaming
        self._begun: int | None = None

    # --- planner, and committer through it: `SupportsGenerations`, `SupportsRecall`

    def begin(self, epoch: Epoch) -> Ownership[ModelT]:
        """Append the owner entry, finish what an earlier generation published, then clean up."""
        log = self.log(epoch.query)
        claim = Claim(
            query=epoch.query,
            offsets=epoch.offsets,
            target=self.participant.target(),
            application=application(),
        )
        state = self._begin(log, claim, partial(self._check, log, epoch, claim))
        self._begun = state.owner
        salvaged = self._decode_salvaged(log, state)
        newest = None if state.intent is None else state.intent.staged
        is_first = state.committed_epoch is None and state.salvaged_epoch is None
        return Ownership(state.owner, state.generations, salvaged, newest, is_first)

    def export_state(self, query: str) -> str:
        """Return the state of the log, which ends with the own owner entry."""
        return self.log(query).export_state()

    def import_state(self, query: str, seen: str) -> None:
        """Load that state. The committer then reads nothing of the log before its intent."""
        self._begun = self.log(query).import_state(seen)

    def find_own_generation(self, query: str, number: int) -> Epoch | None:
        """Return the newest generation, if its owner entry names this application and the epoch."""
        state = self.log(query).state()
        claim = state.claim
        if claim is None or claim.application is None or claim.application != application():
            return None
        if claim.offsets is None or claim.offsets.epoch != number:
            return None
        return Epoch(query, number, state.owner, claim.offsets)

    def verify_target(self, query: str) -> None:
        """Check the target of a query whose epoch is committed already. Planner.

        Raises:
            LogError: If the log's epochs were written to another target.
        """
        log = self.log(query)
        check_target(log, Claim(query=query, target=self.participant.target()), log.state())

    def has_epochs(self, query: str) -> bool:
        """Return True if the target itself shows an epoch of a query. Planner."""
        return self.participant.has_epochs(query)

    def check_owner(self, epoch: Epoch) -> None:
        """Raise an error in a fenced driver, which would fence its successor at its next epoch."""
        if epoch.generation is not None:
            self.log(epoch.query).check_owner(epoch.generation)

    def _begin(self, log: EpochLog, claim: Claim, check: Callable[[State], object]) -> State:
        # In this order: the sweep removes data of generations that can no longer publish and have
        # no unfinished intent. The log is folded last, when everything before the own entry is
        # settled.
        state, clean = self._acquire(log, claim, check)
        self.participant.sweep(claim.query, state.owner, clean=clean)
        self._finish_orphaned_jobs()
        log.compact(state)
        return state

    def _acquire(
        self, log: EpochLog, claim: Claim, check: Callable[[State], object]
    ) -> tuple[State, bool]:
        """Own the log, and finish or void its newest intent so that later readers know it.

        A generation may overwrite data of a much earlier intent. So the log itself must record that
        the intent is finished, unless the own entry comes right after it and Spark's commits record
        it later.
        """
        while True:
            state = log.begin(claim, check)
            note_epoch(log, state.owner)  # the check is repeated if this loop continues
            try:
                was_finished = self.roll_forward(log, claim.query, state)
            except LostIntentError as lost:
                found = (item.model_dump(mode="json") for item in lost.salvaged)
                # The void now comes after the own entry: an intent needs a new owner entry right
                # before it.
                log.void(state, [*(state.salvaged or []), *found])
                continue
            right_after = state.intent_number == state.owner - 1
            is_said = (state.finished_intent or 0) >= state.intent_number
            # If Spark's commits cannot be read, only the log shows what is finished.
            if is_said or (right_after and not self._is_unseen(claim)):
                return state, right_after and was_finished

    def _is_unseen(self, claim: Claim) -> bool:
        return self._streaming and claim.offsets is None

    def _check(self, log: EpochLog, epoch: Epoch, claim: Claim, state: State) -> None:
        """Refuse a log that this driver must not take over, before any change."""
        if not self._streaming:
            return  # its id is new
        self.participant.check_query(epoch.query)
        check_first(log, epoch, state, self.participant.verify_empty_log)
        check_target(log, claim, state)
        if epoch.offsets is None:
            self._check_agreement(log, epoch.query, state)
            return  # only the tasks know which epoch it is
        is_again = state.committed_epoch == epoch.number
        if is_again and state.intent is not None and not log.is_finished(state):
            self.participant.verify_committed_target(epoch, self.decode(log, state.intent.staged))
        check_history(log, epoch, epoch.offsets, state)
        self._mark_previous_finished(log, epoch, state)
        self._check_agreement(log, epoch.query, state)

    def _check_agreement(self, log: EpochLog, query: str, state: State) -> None:
        """Refuse a log that is older than a target, or a target that is older than the log."""
        check_targets(log, self.participant, query, state, partial(self.decode, log))

    def _mark_previous_finished(self, log: EpochLog, epoch: Epoch, state: State) -> None:
        """Mark the previous intent as finished: Spark plans an epoch only after that."""
        if state.committed_epoch is not None and state.committed_epoch < epoch.number:
            log.mark_finished(state)

    def _decode_salvaged(self, log: EpochLog, state: State) -> Salvaged[ModelT] | None:
        if state.salvaged_epoch is None:
            return None
        return Salvaged(state.salvaged_epoch, self.decode(log, state.salvaged or []))

    def _finish_orphaned_jobs(self) -> None:
        """Finish jobs whose driver died after its intent; their logs are left to `vacuum`.

        A running job finishes at the same time, which is harmless. A job that cannot be finished
        must not stop this driver.
        """
        for job in self.participant.orphaned_jobs():
            try:
                self.roll_forward(job.log, job.query, job.log.state())
            except Exception as error:  # noqa: BLE001  whatever its disk, its log or its store raise
                _log.error(
                    "%s has published, but not all of it can be made visible",
                    job.query,
                    exc_info=scrub(error),
                )

    # --- committer

    def last_committed(self, query: str) -> CommittedEpoch | None:
        """Return the newest epoch with an intent, after making all of it visible."""
        log = self.log(query)
        state = log.state() if self._begun is None else log.cached_state(self._begun)
        self.roll_forward(log, query, state)
        return to_committed_epoch(state)

    def publish(self, epoch: Epoch, staged: Sequence[ModelT]) -> None:
        """Log the intent, then finish it.

        From the intent on the epoch is committed, even after a crash.
        """
        if epoch.generation is None:
            raise SinkError(f"epoch {epoch.number} of query {epoch.query} was never started")
        log = self.log(epoch.query)
        if not self._streaming:
            # Since the plan, another job may have died after its intent: a job that overwrites must
            # remove the rows of that job too, or they would appear with the next writer.
            self._finish_orphaned_jobs()
        whole, state = self._intend(log, epoch, epoch.generation, staged)
        self.participant.finish(epoch, whole)
        log.mark_finished(state)
        if not self._streaming:
            self._forget_done(epoch.query)

    def _intend(
        self, log: EpochLog, epoch: Epoch, generation: int, staged: Sequence[ModelT]
    ) -> tuple[Sequence[ModelT], State]:
        """Prepare the epoch and append its intent. Staged data without an intent is removed.

        Raises:
            Fenced: If another driver has taken over, whichever step failed because of it.
            CommitRejected: As `Participant.prepare` and `EpochLog.intend`.
        """
        try:
            # The void of an epoch precedes the owner entry of the driver that stages it again, so a
            # state that is as old as that entry contains it.
            found = self._decode_salvaged(log, log.cached_state(generation))
            salvaged = () if found is None or found.epoch != epoch.number else found.staged
            whole = self.participant.prepare(epoch, staged, salvaged)
            return whole, self._log_intent(log, epoch, generation, whole)
        # No other error: after one the intent may exist, and its data must not be touched.
        except (CommitRejected, Fenced):
            self._discard_refused(epoch, staged)
            log.check_owner(generation)
            raise

    @staticmethod
    def _log_intent(log: EpochLog, epoch: Epoch, generation: int, whole: Sequence[ModelT]) -> State:
        dumped = [item.model_dump(mode="json") for item in whole]
        try:
            return log.intend(generation, epoch.number, dumped, epoch.offsets)
        except CommitUnknown as error:
            raise CommitUnknown(f"{error}; {advise_retry(epoch.query)}") from error

    def _discard_refused(self, epoch: Epoch, staged: Sequence[ModelT]) -> None:
        try:
            self.discard(staged)
        except Exception as error:  # noqa: BLE001  why it was refused is what the user must see
            text = "the staged data of epoch %d could not be removed"
            _log.error(text, epoch.number, exc_info=scrub(error))

    def discard(self, staged: Sequence[ModelT]) -> None:
        """Remove staged values, by the participant."""
        self.participant.discard(staged)

    def abandon(self, epoch: Epoch) -> None:
        """Remove data of failed attempts, and everything of a failed batch job."""
        self.participant.abandon(epoch)
        if not self._streaming:
            self._forget(epoch.query)

    def _forget_done(self, query: str) -> None:
        """Remove a completed job without errors, which would make Spark run it again."""
        try:
            self._forget(query)
        except Exception as error:  # noqa: BLE001  nobody needs what is left
            text = "job %s is completed, but its epoch log could not be removed"
            _log.error(text, query, exc_info=scrub(error))

    def _forget(self, query: str) -> None:
        """Remove the records of a completed batch job, whose epoch is never asked for again."""
        # The log first: the participant's data contains its location, if the process dies in
        # between.
        self.log(query).destroy()
        self.participant.forget(query)

    # --- operator

    def resolve(
        self,
        query: str,
        is_over: Callable[[int], bool] = lambda _: False,
        *,
        takes_back: bool = False,
    ) -> None:
        """Finish or void the newest intent and sweep, as the next driver would. Operator.

        Args:
            query: Id of the query.
            is_over: Returns True for an epoch that Spark has logged as committed.
            takes_back: True if later epochs are removed from the target next: then it may be ahead
                of the log, or behind it.

        Raises:
            LogError: If the epochs in the log were written to another target.
            CheckpointMismatch: If the log or the target is an older copy.
            CommitUnknown: If the outcome of the intent is not known.
        """
        log = self.log(query)
        # In another target nothing is staged, which looks as if everything had been made visible.
        given = Claim(query=query, target=self.participant.target())

        def check(state: State) -> None:
            check_target(log, given, state)
            if state.committed_epoch is not None and is_over(state.committed_epoch):
                log.mark_finished(state)
            if not takes_back:
                check_targets(log, self.participant, query, state, partial(self.decode, log))

        claim = operators_claim(query, log.state())
        self._begin(log, claim, check)
        # Only this process knows that the intent is finished, and its next entry records it: an
        # operator continues with 'adopt', and must not treat visible data as aborted.
        log.begin(claim, check)

    def find_unfinished(self, query: str) -> tuple[int | None, Sequence[ModelT]]:
        """Return the newest epoch, and the values of its intent if it may be unfinished.

        Operator.
        """
        log = self.log(query)
        state = log.state()
        if state.intent is None or log.is_finished(state):
            return state.committed_epoch, ()
        return state.committed_epoch, self.decode(log, state.intent.staged)

    # --- any role

    def roll_forward(self, log: EpochLog, query: str, state: State) -> bool:
        """Finish the newest intent of a state. Any role; repeatedly, and even at the same time.

        Args:
            log: The log of any query that writes to the same target.
            query: The query that owns the log.
            state: The state of the log.

        Returns:
            True if there was nothing left to do.
        """
        if log.is_finished(state) or state.intent is None or state.intent.epoch is None:
            return True
        epoch = Epoch(query, state.intent.epoch, state.intent_generation, state.committed_offsets)
        was_finished = self.participant.is_finished(epoch)
        if not was_finished:
            self.participant.finish_or_salvage(epoch, self.decode(log, state.intent.staged))
        log.mark_finished(state)
        return was_finished

    def decode(self, log: EpochLog, staged: Sequence[object]) -> tuple[ModelT, ...]:
        """Return the values of `stage` from the JSON in an entry of a log.

        Raises:
            LogError: If it is damaged, or names something outside of the target, such as
                ``../other``: other users may be able to write the log.
        """
        try:
            texts = map(json.dumps, staged)  # strict models take a list for a tuple in JSON alone
            return tuple(map(self.participant.load, texts))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise LogError(
                f"an entry of the epoch log {log} names something that cannot have been staged: "
                f"{_first_problem(error)}. It is damaged, or was not written by krishiv-spark; "
                "nothing was read, changed or removed because of it. Put the log back from a "
                "copy, and check who may write to its folder"
            ) from error


def _first_problem(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"[:_SHOWN]
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg'].removeprefix('Value error, ')}, not {first['input']!r}"[:_SHOWN]


_SHOWN = 500
