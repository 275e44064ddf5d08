"""Sinks whose external system cannot make several things visible in one step.

Their point of truth is an intent in the epoch log (`krishiv_spark.offsets.epochs`). An author
writes `stage` and `discard` as for any two-phase sink, and two verbs more: `log`, where the log
is, and `finish`, which makes an intent visible by pure repetition.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar, final

from pydantic import BaseModel

from krishiv_spark.errors import SinkError
from krishiv_spark.offsets import EpochLog, State
from krishiv_spark.sinks.base import Epoch, TwoPhaseWriter

__all__ = ["LoggedWriter"]

StagedT = TypeVar("StagedT", bound=BaseModel)


class LoggedWriter(TwoPhaseWriter[StagedT]):
    """A two-phase sink over an epoch log. What `stage` returns is a pydantic model."""

    staged_type: type[StagedT]

    @abstractmethod
    def log(self, query: str) -> EpochLog:
        """The epoch log of a query. Driver."""

    @abstractmethod
    def finish(self, epoch: Epoch, staged: Sequence[StagedT]) -> None:
        """Make visible what an intent names. Driver; repeated until it has succeeded once.

        It meets any mixture of things that are visible already and things that are not, and
        removes what else the generation has staged.
        """

    @abstractmethod
    def finished(self, epoch: Epoch) -> bool:
        """Whether `finish` has nothing left to do. Cheap; False is always allowed."""

    def check_new(self, query: str) -> None:
        """Refuse a query whose log is empty although it has published. Planner, once.

        Raises:
            LogError: If the log was removed, or is looked for in another place than before.
        """

    def prepare_generation(self, query: str, generation: int) -> None:
        """Remove what earlier generations left, make room for this one. Planner, after recovery."""

    @final
    def begin(self, query: str) -> int:
        """Append the owner entry, finish what an earlier generation published, then clean up."""
        log = self.log(query)
        if log.state().number == 0:
            self.check_new(query)
        generation = log.begin()
        state = log.state()
        self.roll_forward(query, state)
        self.prepare_generation(query, generation)
        log.fold(state)
        return generation

    @final
    def check_owner(self, epoch: Epoch) -> None:
        """Whoever was taken over from must not go on to the next epoch and take over again."""
        if epoch.generation is not None:
            self.log(epoch.query).check_owner(epoch.generation)

    @final
    def last_committed(self, query: str) -> int | None:
        """The newest epoch with an intent, made wholly visible first."""
        state = self.log(query).state()
        self.roll_forward(query, state)
        return state.held

    @final
    def publish(self, epoch: Epoch, staged: Sequence[StagedT]) -> None:
        """Log the intent, then finish it. Whatever dies behind the intent, the epoch is true."""
        if epoch.generation is None:
            raise SinkError(f"epoch {epoch.number} of query {epoch.query} was never begun")
        log = self.log(epoch.query)
        whole = self.prepare(epoch, staged)
        dumped = [item.model_dump(mode="json") for item in whole]
        log.intend(epoch.generation, epoch.number, dumped)
        self.finish(epoch, whole)
        if not self.streaming:
            self.forget(epoch.query)

    def forget(self, query: str) -> None:
        """Remove what a batch job that is over has kept: nobody will ask for its epoch again."""
        self.log(query).destroy()

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
    def roll_forward(self, query: str, state: State) -> None:
        """Finish the newest intent of a state. Anybody, any number of times, even side by side."""
        if state.intent is None or state.intent.epoch is None:
            return
        epoch = Epoch(query, state.intent.epoch, state.intent_generation)
        if not self.finished(epoch):
            self.finish(epoch, [self.staged_type.model_validate(s) for s in state.intent.staged])
