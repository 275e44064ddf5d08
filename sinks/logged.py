"""Sinks whose external system cannot make several things visible in one step.

Their point of truth is an intent in the epoch log (`krishiv_spark.offsets.epochs`). An author
writes `stage` and `discard` as for any two-phase sink, and two verbs more: `log`, where the log
is, and `finish`, which makes an intent visible by pure repetition.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, final

from pydantic import BaseModel

from krishiv_spark.errors import CommitRejected, Fenced, LogError, SinkError
from krishiv_spark.offsets import Claim, EpochLog, State
from krishiv_spark.sinks.base import Epoch, Mark, TwoPhaseWriter
from krishiv_spark.sinks.history import (
    ADOPT,
    check_history,
    check_target,
    held_mark,
    operators_claim,
)
from krishiv_spark.workers import application

__all__ = ["Kept", "LoggedWriter", "LostIntentError"]

_log = logging.getLogger(__name__)

StagedT = TypeVar("StagedT", bound=BaseModel)


class LostIntentError(CommitRejected):
    """What an intent names is gone, wholly or in part, before it became visible.

    Raised by `LoggedWriter.finish`; the next driver voids the intent, and its epoch is staged
    again without what is kept.

    Args:
        text: What happened.
        kept: Those of the staged values that are visible, as pydantic models.
    """

    def __init__(self, text: str, kept: Sequence[BaseModel] = ()) -> None:
        super().__init__(text)
        self.kept = kept

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.kept)


@dataclass(frozen=True)
class Kept(Generic[StagedT]):
    """What is visible of an epoch whose intent was voided.

    Attributes:
        epoch: Which; None for none.
        staged: What `stage` had returned for it.
    """

    epoch: int | None = None
    staged: Sequence[StagedT] = ()


class LoggedWriter(TwoPhaseWriter[StagedT]):
    """A two-phase sink over an epoch log. What `stage` returns is a pydantic model.

    Attributes:
        kept: Found out by the planner, for `stage`: these values must not be staged again. Empty
            for sinks whose `finish` never raises `LostIntentError`.
        turn: Found out by the planner, for `stage`: how many generations have begun.
    """

    staged_type: type[StagedT]
    kept: Kept[StagedT] = Kept()
    turn: int = 0

    @abstractmethod
    def log(self, query: str) -> EpochLog:
        """The epoch log of a query. Driver."""

    def target(self) -> str | None:
        """Which external system the epochs go to, by an identity of that system's own. Planner.

        A log whose epochs went elsewhere is refused: an epoch that is half visible there would
        never be finished, and one that is held there would be missing here. None checks nothing.
        """
        return None

    def check_held(self, epoch: Epoch, staged: Sequence[StagedT]) -> None:
        """Refuse to skip an epoch whose place in the target is no longer there. Planner.

        Args:
            epoch: Spark has not written down that it is over, but there is an intent of it.
            staged: What that names.

        Raises:
            LogError: If it went into what has been removed, or made anew, since.
        """

    @abstractmethod
    def finish(self, epoch: Epoch, staged: Sequence[StagedT]) -> None:
        """Make visible what an intent names. Driver; repeated until it has succeeded once.

        It meets any mixture of things that are visible already and things that are not, and
        removes what else the generation has staged.

        Raises:
            LostIntentError: If something that the intent names can never become visible.
        """

    def recover(self, epoch: Epoch, staged: Sequence[StagedT]) -> None:
        """`finish`, for an intent of an earlier driver, or one whose end is not known. Driver.

        Raises:
            LostIntentError: As `finish`.
        """
        self.finish(epoch, staged)

    def assume(self, epoch: Epoch, staged: Sequence[StagedT], *, committed: bool) -> None:
        """Operator: an intent counts as committed, or as aborted; make that as true as can be.

        Args:
            epoch: Of the intent.
            staged: What it names.
            committed: Show what can still be shown; otherwise take back what can be taken back.

        Raises:
            KrishivError: If the target cannot be reached; what cannot be helped is no error.
        """
        del epoch, staged, committed
        raise SinkError(f"{type(self).__name__} cannot assume what became of an epoch")

    def check_adopted(self, query: str, epoch: int) -> None:
        """Refuse to begin a log anew at an epoch. Operator.

        Args:
            query: Whose log.
            epoch: The newest that the target is to count as holding; -1 for none.

        Raises:
            LogError: If what is in the target has the numbers that come next, and bears them.
        """

    @abstractmethod
    def finished(self, epoch: Epoch) -> bool:
        """Whether `finish` has nothing left to do. Cheap; False is always allowed."""

    def check_new(self, query: str) -> None:
        """Refuse a query whose log is empty although it has published. Planner, once.

        Spark's own commits were looked at before: this is for what the target can tell.

        Raises:
            LogError: If the log was removed, or is looked for in another place than before.
        """

    def prepare_generation(self, query: str, generation: int, *, clean: bool) -> None:
        """Remove what earlier generations left, make room for this one. Planner, after recovery.

        Args:
            query: Whose.
            generation: The one that begins.
            clean: Whether the generation right before has published, and `finish` has returned:
                then it has left nothing, but for stragglers among its tasks.
        """

    @final
    def begin(self, epoch: Epoch) -> int:
        """Append the owner entry, finish what an earlier generation published, then clean up."""
        log = self.log(epoch.query)
        claim = Claim(
            query=epoch.query,
            offsets=epoch.offsets,
            target=self.target(),
            application=application(),
        )
        state = self._begin(log, claim, partial(self._check, log, epoch, claim))
        self.turn = state.begun
        self.kept = Kept(state.kept_epoch, self.loaded(state.kept or []))
        return state.owner

    @final
    def resolve(self, query: str) -> None:
        """Operator: what the next driver would do, finish or void the newest intent and sweep.

        Raises:
            CommitUnknown: If what became of the intent cannot be found out.
        """
        log = self.log(query)
        self._begin(log, operators_claim(query, log.state()))

    @final
    def unfinished(self, query: str) -> tuple[int | None, Sequence[StagedT]]:
        """Operator: the newest epoch, and what its intent names if that may not be finished."""
        log = self.log(query)
        state = log.state()
        if state.intent is None or log.is_finished(state):
            return state.held, ()
        return state.held, self.loaded(state.intent.staged)

    def _begin(
        self, log: EpochLog, claim: Claim, check: Callable[[State], object] | None = None
    ) -> State:
        state, clean = self._take_over(log, claim, check)
        self.prepare_generation(claim.query, state.owner, clean=clean)
        log.fold(state)
        return state

    def _take_over(
        self, log: EpochLog, claim: Claim, check: Callable[[State], object] | None
    ) -> tuple[State, bool]:
        """Own the log, with its newest intent finished or voided, and known to be so.

        A generation may stage over what an intent named long before. So the log itself has to say
        that the intent is finished, unless the own entry is right behind it.
        """
        while True:
            state = log.begin(claim, check)
            try:
                was_finished = self.roll_forward(log, claim.query, state)
            except LostIntentError as lost:
                kept = [*(state.kept or []), *(item.model_dump(mode="json") for item in lost.kept)]
                log.void(state, kept)
                continue
            right_behind = state.intent_number == state.owner - 1
            if right_behind or (state.settled or 0) >= state.intent_number:
                return state, right_behind and was_finished

    def _check(self, log: EpochLog, epoch: Epoch, claim: Claim, state: State) -> None:
        """What has to be so before this driver may take the log over; nothing has changed yet."""
        if not self.streaming:
            return  # its id is new
        if state.number == 0 or (epoch.offsets is not None and _is_blank(state)):
            self._check_first_still(log, epoch, state)
        check_target(log, claim, state)
        if state.held == epoch.number and state.intent is not None and not log.is_finished(state):
            self.check_held(epoch, self.loaded(state.intent.staged))
        if epoch.offsets is not None:
            check_history(log, epoch, epoch.offsets, state)

    def _check_first_still(self, log: EpochLog, epoch: Epoch, state: State) -> None:
        """What the target shows may be younger than what the log has shown."""
        try:
            self._check_first(log, epoch)
        except LogError as error:
            if log.state().number == state.number:
                raise
            raise Fenced(
                f"another driver has begun the query meanwhile, as its epoch log {log} shows: two "
                "drivers run on one checkpoint, stop one of them"
            ) from error

    def _check_first(self, log: EpochLog, epoch: Epoch) -> None:
        if epoch.number > 0:
            raise LogError(
                f"query {epoch.query} is at epoch {epoch.number}, but its epoch log {log} "
                "is empty: the log was removed, the option that says where "
                "it is has changed, or the query has written elsewhere so far. Put it back, or use "
                f"a new checkpoint. {ADOPT}"
            )
        self.check_new(epoch.query)

    @final
    def begun_here(self, query: str, number: int) -> Epoch | None:
        """The newest generation, if its owner entry names this application and the epoch."""
        state = self.log(query).state()
        claim = state.claim
        if claim is None or claim.application is None or claim.application != application():
            return None
        if claim.offsets is None or claim.offsets.epoch != number:
            return None
        return Epoch(query, number, state.owner, claim.offsets)

    @final
    def check_owner(self, epoch: Epoch) -> None:
        """Whoever was taken over from must not go on to the next epoch and take over again."""
        if epoch.generation is not None:
            self.log(epoch.query).check_owner(epoch.generation)

    @final
    def last_committed(self, query: str) -> Mark | None:
        """The newest epoch with an intent, made wholly visible first."""
        log = self.log(query)
        state = log.state()
        self.roll_forward(log, query, state)
        return held_mark(state)

    @final
    def publish(self, epoch: Epoch, staged: Sequence[StagedT]) -> None:
        """Log the intent, then finish it. Whatever dies behind the intent, the epoch is true."""
        if epoch.generation is None:
            raise SinkError(f"epoch {epoch.number} of query {epoch.query} was never begun")
        log = self.log(epoch.query)
        whole, state = self._intend(log, epoch, epoch.generation, staged)
        self.finish(epoch, whole)
        log.note_finished(state)
        if not self.streaming:
            self._forget_done(epoch.query)

    def _intend(
        self, log: EpochLog, epoch: Epoch, generation: int, staged: Sequence[StagedT]
    ) -> tuple[Sequence[StagedT], State]:
        """Prepare the epoch, and make it true. What no intent names shall not be left behind.

        Raises:
            Fenced: If another driver has taken over, whatever it was that failed because of it.
            CommitRejected: As `prepare` and `EpochLog.intend`.
        """
        try:
            whole = self.prepare(epoch, staged)
            dumped = [item.model_dump(mode="json") for item in whole]
            return whole, log.intend(generation, epoch.number, dumped)
        except (CommitRejected, Fenced):
            self._discard_refused(epoch, staged)
            log.check_owner(generation)
            raise

    def _discard_refused(self, epoch: Epoch, staged: Sequence[StagedT]) -> None:
        try:
            self.discard(staged)
        except Exception:  # noqa: BLE001  why it was refused is what the user must see
            _log.exception("what epoch %d had staged could not be removed", epoch.number)

    def kept_of(self, epoch: Epoch) -> Sequence[StagedT]:
        """What is visible of an epoch already, since its intent was voided. Committer."""
        state = self.log(epoch.query).state()
        return self.loaded(state.kept or []) if state.kept_epoch == epoch.number else ()

    def _forget_done(self, query: str) -> None:
        """The job has succeeded: an error from here on would have it run again."""
        try:
            self.forget(query)
        except Exception:  # noqa: BLE001  nobody needs what is left
            _log.exception("job %s is done, but its epoch log could not be removed", query)

    def forget(self, query: str) -> None:
        """Remove what a batch job that is over has kept: nobody will ask for its epoch again."""
        self.log(query).destroy()

    @final
    def abandon(self, epoch: Epoch) -> None:
        """Committer: remove what failed attempts have left, and all of a batch job that failed."""
        self.sweep(epoch)
        if not self.streaming:
            self.forget(epoch.query)

    def sweep(self, epoch: Epoch) -> None:
        """Remove what attempts of this generation have left that nobody has heard of. Committer.

        An error keeps the log of a batch job, since something may be left.
        """

    def prepare(self, epoch: Epoch, staged: Sequence[StagedT]) -> Sequence[StagedT]:
        """Last step before the intent: what must be durable before the epoch is true.

        Whatever may fail for good has to fail here. Behind the intent, `finish` must succeed
        sooner or later.

        Returns:
            What the intent shall name: `staged`, with whatever else the epoch consists of.
        """
        del epoch
        return staged

    @final
    def roll_forward(self, log: EpochLog, query: str, state: State) -> bool:
        """Finish the newest intent of a state. Anybody, any number of times, even side by side.

        Args:
            log: Of any query that writes into the same target.
            query: Whose log it is.
            state: What it says.

        Returns:
            Whether there was nothing left to do.
        """
        if log.is_finished(state) or state.intent is None or state.intent.epoch is None:
            return True
        epoch = Epoch(query, state.intent.epoch, state.intent_generation)
        was_finished = self.finished(epoch)
        if not was_finished:
            self.recover(epoch, self.loaded(state.intent.staged))
        log.note_finished(state)
        return was_finished

    @final
    def loaded(self, staged: Sequence[object]) -> tuple[StagedT, ...]:
        """What `stage` returned, from the JSON of an entry."""
        texts = map(json.dumps, staged)  # strict models take a list for a tuple in JSON alone
        return tuple(map(self.staged_type.model_validate_json, texts))


def _is_blank(state: State) -> bool:
    """Whether a log tells of no epoch, since only operators have taken it over."""
    is_nobodys = state.claim is not None and state.claim.offsets is None
    return is_nobodys and state.number == state.begun
