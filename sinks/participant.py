"""The contract between the epoch log and a sink whose things become visible one by one.

The calls go one way: lifecycle, `krishiv_spark.sinks.logged.LogCommitter`, participant. A
participant knows the external system, and nothing of the protocol: all that it may know of the log
is in its arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel

from krishiv_spark.errors import CommitRejected, OptionError, SinkError
from krishiv_spark.offsets import EpochLog, PlannedOffsets
from krishiv_spark.offsets.planned import part_of_query
from krishiv_spark.sinks.base import CommittedEpoch, Epoch

__all__ = [
    "LoggedJob",
    "LostIntentError",
    "ModelT",
    "Participant",
    "Replay",
    "TargetRecord",
    "kafka_cannot",
]


@dataclass(frozen=True)
class Replay:
    """A query whose epochs from one on are processed again. It does not run.

    Attributes:
        checkpoint: Path or URL of its checkpoint, for messages.
        query: Its id; of a route, that of the part that goes there.
        name: Of this replay. Folders that keep what is taken back have it; a second run of a
            replay that died has the same.
        before: The offsets that Spark had planned for the last epoch that stays.
    """

    checkpoint: str
    query: str
    name: str
    before: PlannedOffsets

    @property
    def first(self) -> int:
        """The first epoch that is processed again."""
        return self.before.epoch + 1

    def of_route(self, route: str) -> Replay:
        """Return the same for the part of each epoch that goes one route."""
        return replace(self, query=part_of_query(self.query, route))


def kafka_cannot(checkpoint: str, first: int) -> str:
    """Return why a topic cannot go back, and the two ways on, for an error.

    Args:
        checkpoint: Path or URL of the query's checkpoint.
        first: The first epoch that was to be processed again.
    """
    log = f"--format kafka --checkpoint {checkpoint} -o … (the options of the query's writer)"
    return (
        "krishiv-kafka cannot remove committed records: a topic keeps them, and readers have "
        "them already. Nothing was changed. Two ways on: (1) into another topic, which then "
        f"has each row once: 'krishiv-spark checkpoint copy {checkpoint} NEW --to {first - 1}', "
        "then start the query with the checkpoint NEW and another topic (of a fan-out, another "
        f"target for each route); (2) into the same topic, where the rows of epoch {first} and "
        "later are then there TWICE, for readers that keep the last record of a key: "
        f"'krishiv-spark log resolve {log}', 'krishiv-spark checkpoint rewind {checkpoint} --to "
        f"{first - 1}', then 'krishiv-spark log adopt {log}'"
    )


ModelT = TypeVar("ModelT", bound=BaseModel)


class LostIntentError(CommitRejected):
    """Staged data that an intent names was lost, wholly or in part, before it became visible.

    Raised by `Participant.finish`; the next driver voids the intent, and its epoch is staged
    again without what is salvaged.

    Args:
        text: What is gone, why, and what to do; users see it.
        salvaged: Those of the staged values that are visible, as pydantic models.
    """

    def __init__(self, text: str, salvaged: Sequence[BaseModel] = ()) -> None:
        super().__init__(text)
        self.salvaged = salvaged

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.salvaged)


class LoggedJob(Protocol):
    """A job whose intent anybody may finish, in the target that both write into."""

    @property
    def query(self) -> str:
        """Its id."""
        ...

    @property
    def log(self) -> EpochLog:
        """Its log; opened here, which may fail."""
        ...


class TargetRecord(NamedTuple):
    """The newest epoch of a query by the record that one target itself keeps.

    Attributes:
        target: Names the target in messages.
        mark: See `Participant.newest_epoch`.
        generation: See `Participant.newest_generation`.
    """

    target: str
    mark: CommittedEpoch | None = None
    generation: int | None = None


class Participant(ABC, Generic[ModelT]):
    """The external system of a sink over an epoch log. Driver: planner, committer or operator.

    Attributes:
        staged_type: What tasks stage, a pydantic model: intents keep it as JSON.
        may_lose: Whether `finish` may raise `LostIntentError`.
        salvages: Whether the rest of an epoch can be staged again of which a part is visible: then
            `Writer.plan` is told that part, by `Ownership.salvaged`.
    """

    staged_type: type[ModelT]
    may_lose: ClassVar[bool] = True
    salvages: ClassVar[bool] = False

    def load(self, text: str) -> ModelT:
        """Return a staged value from the JSON that an entry of the log holds. Driver.

        Give `staged_type` fields of the types `FileName` and `NameWithin` where it names files: an
        entry may have been written by another user, and is refused if it names something else.

        Raises:
            ValueError: If it is damaged.
        """
        return self.staged_type.model_validate_json(text)

    # --- committer

    def prepare(
        self, epoch: Epoch, staged: Sequence[ModelT], salvaged: Sequence[ModelT]
    ) -> Sequence[ModelT]:
        """Last step before the intent: what must be durable before the epoch is true. Committer.

        Whatever may fail for good has to fail here. After the intent, `finish` must succeed
        sooner or later.

        Args:
            epoch: Which, with the generation that stages it.
            staged: What its tasks have returned.
            salvaged: What is visible of it already, since an earlier intent of it was voided.

        Returns:
            What the intent shall name: `staged`, with whatever else the epoch consists of.

        Raises:
            CommitRejected: If it cannot become visible.
        """
        del epoch, salvaged
        return staged

    @abstractmethod
    def finish(self, epoch: Epoch, staged: Sequence[ModelT]) -> None:
        """Make visible what an intent names. Driver; repeated until it has succeeded once.

        It meets any mixture of things that are visible already and things that are not, and
        removes what else the generation has staged.

        Raises:
            LostIntentError: If something that the intent names can never become visible.
        """

    def finish_or_salvage(self, epoch: Epoch, staged: Sequence[ModelT]) -> None:
        """`finish`, for an intent of an earlier driver, or one whose end is not known. Driver.

        Raises:
            LostIntentError: As `finish`.
        """
        self.finish(epoch, staged)

    @abstractmethod
    def is_finished(self, epoch: Epoch) -> bool:
        """Return True if `finish` has no work left. Driver. Cheap; False is always allowed."""

    @abstractmethod
    def discard(self, staged: Sequence[ModelT]) -> None:
        """Remove staged things that will never be published. Best effort, any number of times."""

    def abandon(self, epoch: Epoch) -> None:
        """Remove what attempts of a generation have left that nobody has heard of. Committer.

        An error keeps the log of a batch job, since something may be left.
        """

    def forget(self, query: str) -> None:
        """Remove what a batch job that is over has kept, but for its log, which is gone. Driver."""

    # --- planner

    def target(self) -> str | None:
        """Return the identity of the external system that receives the epochs. Planner.

        A log whose epochs went elsewhere is refused: an epoch that is half visible there would
        never be finished, and one that is held there would be missing here. None checks nothing.
        """
        return None

    def check_query(self, query: str) -> None:
        """Planner: refuse a query that must not write to the target; nothing has changed yet.

        Called before the log gets an owner, and before an earlier epoch is finished. Not called
        where an operator decides, whose options may lack what the query does.

        Args:
            query: Id of the query.

        Raises:
            OptionError: If its options contradict what the target has recorded of it.
        """

    def newest_epoch(self, query: str) -> CommittedEpoch | None:
        """Return the newest epoch that the target itself records for a query. Planner.

        Override it if `finish` stores `Epoch.number` and `Epoch.digest` in the target, in one step
        with the rows or after them. `LogCommitter` compares it with the log before it takes the log
        over: a target that is ahead of the log, or has another epoch of the same number, is a
        `CheckpointMismatch`, since the log is an older copy. None if the target records nothing.
        """
        del query
        return None

    def newest_generation(self, query: str) -> int | None:
        """Return the newest generation whose epoch the target records as finished. Planner.

        As `newest_epoch`, for a target in which `finish` stores `Epoch.generation`.
        """
        del query
        return None

    def contains(self, epoch: Epoch, staged: Sequence[ModelT]) -> bool | None:
        """Return False if the target certainly lacks an epoch that was finished. Planner.

        Called for the newest finished intent of the log when a driver starts, and for older ones
        until the target has one. It must not be False because the owner of the target has deleted
        or rewritten rows, only because the target was replaced by an older copy.

        Args:
            epoch: With the number, the generation and what Spark planned, as far as known.
            staged: What its intent names; of a route, what goes there.

        Returns:
            True if the target has the epoch, or if that cannot be told. None if the epoch left
            nothing by which the target could be compared.
        """
        generation, mark = self.newest_generation(epoch.query), self.newest_epoch(epoch.query)
        if generation is None and mark is None:
            return True
        has_generation = generation is not None and generation >= (epoch.generation or 0)
        if has_generation or (mark is not None and mark.epoch >= epoch.number):
            return True
        return False if staged else None

    def records(self, query: str) -> Sequence[TargetRecord]:
        """Return the record of each target; a participant with several targets overrides this."""
        mark, generation = self.newest_epoch(query), self.newest_generation(query)
        return [TargetRecord(self._name, mark, generation)]

    def targets_without(self, epoch: Epoch, staged: Sequence[ModelT]) -> Sequence[str] | None:
        """Return the targets that lack a finished epoch, by `contains`; None if that is None."""
        found = self.contains(epoch, staged)
        return None if found is None else [] if found else [self._name]

    def targets_of(self, staged: Sequence[object]) -> Collection[str]:
        """Return names of the targets in which an epoch has left something. Planner.

        Args:
            staged: What its intent names, as JSON.
        """
        return [""] if staged else []

    @property
    def _name(self) -> str:
        return self.target() or type(self).__name__

    def verify_committed_target(self, epoch: Epoch, staged: Sequence[ModelT]) -> None:
        """Refuse to skip an epoch whose place in the target is no longer there. Planner.

        Args:
            epoch: Spark has not written down that it is over, but there is an intent of it.
            staged: What that names.

        Raises:
            LogError: If it went into what has been removed, or made anew, since.
        """

    def verify_empty_log(self, query: str) -> None:
        """Refuse a query whose log is empty although it has published. Planner, once.

        Spark's own commits were looked at before: this is for what the target can tell.

        Raises:
            LogError: If the log was removed, or is looked for in another place than before.
        """

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:
        """Remove what earlier generations left, make room for this one. Planner, after recovery.

        Args:
            query: Whose log it is; what other queries have staged is left alone.
            generation: The one that begins.
            clean: Whether the generation right before has published, and `finish` has returned:
                then it has left nothing, but for stragglers among its tasks.
        """

    def orphaned_jobs(self) -> Iterable[LoggedJob]:
        """Return batch jobs that wrote into the target and get no next driver. Driver."""
        return ()

    # --- operator

    def force_outcome(self, epoch: Epoch, staged: Sequence[ModelT], *, committed: bool) -> None:
        """Take an intent for committed, or for aborted; make that as true as can be. Operator.

        Args:
            epoch: Of the intent.
            staged: What it names.
            committed: Show what can still be shown; otherwise take back what can be taken back.

        Raises:
            KrishivError: If the target cannot be reached; what cannot be helped is no error.
        """
        del epoch, staged, committed
        raise SinkError(f"{type(self).__name__} cannot assume the outcome of an epoch")

    def verify_adoption(self, query: str, epoch: int) -> None:
        """Refuse to begin a log anew at an epoch. Operator.

        Args:
            query: The one that will go on with the log.
            epoch: The newest that the target is to count as holding; -1 for none.

        Raises:
            LogError: If what is in the target has the numbers that come next, and bears them.
        """

    def plan_replay(self, replay: Replay) -> list[str]:
        """Return what `take_back` would do, a line each; changes nothing. Operator.

        Raises:
            OptionError: If the target cannot go back to the end of that epoch.
        """
        del replay
        raise OptionError(
            f"{type(self).__name__} cannot revert epochs, so they cannot be processed again "
            "into the same target"
        )

    def take_back(self, replay: Replay) -> None:
        """Bring the target back to the end of an epoch; repeated until it succeeds. Operator.

        The newest intent is finished, and no driver runs. A process that dies in this method, and
        is run again, does the rest.

        Raises:
            KrishivError: As `plan_replay`; or if the target does not answer.
        """
        raise NotImplementedError
