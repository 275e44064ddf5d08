"""The contract between the epoch log and a sink whose data becomes visible piece by piece.

The calls go one way: lifecycle, `krishiv_spark.sinks.logged.LogCommitter`, participant. A
participant knows the external system and not the protocol; everything that it needs of the log is
in its arguments.
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
from krishiv_spark.spark.checkpoint import BATCH_PREFIX

__all__ = [
    "LoggedJob",
    "LostIntentError",
    "ModelT",
    "Participant",
    "Replay",
    "TargetRecord",
    "advise_retry",
    "kafka_cannot",
]


@dataclass(frozen=True)
class Replay:
    """A query whose epochs are processed again, from one on. It does not run now.

    Attributes:
        checkpoint: Path or URL of its checkpoint, for messages.
        query: Its id; for a route, the id of the part that is written there.
        name: Name of this replay, which folders with the removed data contain. A second run of a
            replay that died has the same name.
        before: Spark's planned offsets of the last epoch that is kept.
    """

    checkpoint: str
    query: str
    name: str
    before: PlannedOffsets

    @property
    def first(self) -> int:
        """First epoch that is processed again."""
        return self.before.epoch + 1

    def of_route(self, route: str) -> Replay:
        """Return the replay of the part of each epoch that one route receives."""
        return replace(self, query=part_of_query(self.query, route))


def advise_retry(query: str) -> str:
    """Return the advice for an epoch whose intent is in the log, or may be.

    A new start of a batch job is another job, which does not resolve this one.

    Args:
        query: Id of the query or batch job.
    """
    if not query.startswith(BATCH_PREFIX):
        return "restart the query, which resolves it"
    return (
        "check the target before you run the job again: the next query or job that writes there "
        f"may make these rows visible (the job's id is {query})"
    )


def kafka_cannot(checkpoint: str, first: int) -> str:
    """Return the text of an error: a topic cannot go back, and there are two ways to continue.

    Args:
        checkpoint: Path or URL of the query's checkpoint.
        first: The first epoch that was to be processed again.
    """
    log = f"--format kafka --checkpoint {checkpoint} -o … (the options of the query's writer)"
    return (
        "krishiv-kafka cannot remove committed records: a topic keeps them, and readers have "
        "them already. Nothing was changed. Two ways on: (1) into another topic, which then "
        f"has the rows since epoch {first} once: 'krishiv-spark checkpoint copy {checkpoint} NEW "
        f"--to {first - 1}', then start the query with the checkpoint NEW and another topic (of a "
        "fan-out, another target for each route); the earlier rows are in the old topic only, so "
        f"readers take that one up to the end of epoch {first - 1}, then the new one; (2) into the "
        f"same topic, where the rows of epoch {first} and later are then there TWICE, for readers "
        f"that keep the last record of a key: 'krishiv-spark log resolve {log}', 'krishiv-spark "
        f"checkpoint rewind {checkpoint} --to {first - 1}', then 'krishiv-spark log adopt {log}'"
    )


ModelT = TypeVar("ModelT", bound=BaseModel)


class LostIntentError(CommitRejected):
    """Staged data that an intent names was lost, wholly or in part, before it became visible.

    Raised by `Participant.finish`; the next driver voids the intent, and its epoch is staged again
    without the salvaged part.

    Args:
        text: Text for users: the lost data, the cause, and advice.
        salvaged: Those of the staged values that are visible, as pydantic models.
    """

    def __init__(self, text: str, salvaged: Sequence[BaseModel] = ()) -> None:
        super().__init__(text)
        self.salvaged = salvaged

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.salvaged)


class LoggedJob(Protocol):
    """A job whose intent any driver may finish, in the target that both write to."""

    @property
    def query(self) -> str:
        """Id of the job."""
        ...

    @property
    def log(self) -> EpochLog:
        """Epoch log of the job. The access opens it, which may fail."""
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
        staged_type: The pydantic model that tasks stage; intents contain it as JSON.
        may_lose: True if `finish` may raise `LostIntentError`.
        salvages: True if the rest of an epoch can be staged again when a part is visible.
            `Writer.plan` then receives that part in `Ownership.salvaged`.
    """

    staged_type: type[ModelT]
    may_lose: ClassVar[bool] = True
    salvages: ClassVar[bool] = False

    def load(self, text: str) -> ModelT:
        """Return a staged value from the JSON in an entry of the log. Driver.

        Fields of `staged_type` with file names should have the types `FileName` and `NameWithin`:
        another user may have written the entry, and other names are then refused.

        Raises:
            ValueError: If it is damaged.
        """
        return self.staged_type.model_validate_json(text)

    # --- committer

    def prepare(
        self, epoch: Epoch, staged: Sequence[ModelT], salvaged: Sequence[ModelT]
    ) -> Sequence[ModelT]:
        """Make the epoch's data durable, as the last step before the intent. Committer.

        Permanent failures must happen here. After the intent, `finish` must eventually succeed.

        Args:
            epoch: The epoch, with the generation that stages it.
            staged: The return values of its tasks.
            salvaged: The part that is already visible, since an earlier intent of the epoch was
                voided.

        Returns:
            The content of the intent: `staged`, with everything else that the epoch consists of.

        Raises:
            CommitRejected: If it cannot become visible.
        """
        del epoch, salvaged
        return staged

    @abstractmethod
    def finish(self, epoch: Epoch, staged: Sequence[ModelT]) -> None:
        """Make the data of an intent visible. Driver; repeated until it succeeds once.

        Any part of the data may already be visible. It also removes all other staged data of the
        generation.

        Raises:
            LostIntentError: If a part of the data can never become visible.
        """

    def finish_or_salvage(self, epoch: Epoch, staged: Sequence[ModelT]) -> None:
        """Do the same for an intent of an earlier driver, or one with an unknown end. Driver.

        Raises:
            LostIntentError: As `finish`.
        """
        self.finish(epoch, staged)

    @abstractmethod
    def is_finished(self, epoch: Epoch) -> bool:
        """Return True if `finish` has no work left. Driver. Cheap; False is always allowed."""

    @abstractmethod
    def discard(self, staged: Sequence[ModelT]) -> None:
        """Remove staged data that will never be published.

        Best effort; may be called repeatedly.
        """

    def abandon(self, epoch: Epoch) -> None:
        """Remove data of a generation's attempts that were never reported. Committer.

        After an error the log of a batch job is kept, since data may remain.
        """

    def forget(self, query: str) -> None:
        """Remove the data of a completed batch job, whose log was removed before. Driver."""

    # --- planner

    def target(self) -> str | None:
        """Return the identity of the external system that receives the epochs. Planner.

        A log whose epochs were written to another target is refused: an epoch that is visible there
        in part would never be finished, and a committed one would be missing here. None checks
        nothing.
        """
        return None

    def known_target(self) -> str | None:
        """Return the identity that `target` returns, and change nothing. Operator.

        Override it if `target` gives a new external system its identity. None if it has none yet.
        """
        return self.target()

    def check_query(self, query: str) -> None:
        """Refuse a query that must not write to the target. Planner; nothing has changed yet.

        Called before the log gets an owner, and before an earlier epoch is finished. It is not
        called for commands of operators, whose options may differ from those of the query.

        Args:
            query: Id of the query.

        Raises:
            OptionError: If its options contradict the target's record of it.
        """

    def newest_epoch(self, query: str) -> CommittedEpoch | None:
        """Return the newest epoch that the target itself records for a query. Planner.

        Override it if `finish` stores `Epoch.number` and `Epoch.digest` in the target, in one step
        with the rows or after them. `LogCommitter` compares it with the log before it takes the log
        over: a target that is ahead of the log, or has another epoch of the same number, causes a
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

    def has_epochs(self, query: str) -> bool:
        """Return True if the target itself shows an epoch of a query. Planner."""
        return self.newest_epoch(query) is not None or self.newest_generation(query) is not None

    def contains(self, epoch: Epoch, staged: Sequence[ModelT]) -> bool | None:
        """Return False if the target certainly lacks an epoch that was finished. Planner.

        Called for the newest finished intent of the log when a driver starts, and for older ones
        until the target has one. It must not be False because the owner of the target has deleted
        or rewritten rows, only because the target was replaced by an older copy.

        Args:
            epoch: The epoch, with its number, generation and planned offsets as far as they are
                known.
            staged: The data of its intent; for a route, its part of them.

        Returns:
            True if the target has the epoch, or if that is not known. None if the epoch left
            nothing that could be compared.
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
        """Return names of the targets that contain data of an epoch. Planner.

        Args:
            staged: The data of its intent, as JSON.
        """
        return [""] if staged else []

    @property
    def _name(self) -> str:
        return self.target() or type(self).__name__

    def verify_committed_target(self, epoch: Epoch, staged: Sequence[ModelT]) -> None:
        """Refuse to skip an epoch whose data the target has lost. Planner.

        Args:
            epoch: An epoch with an intent, which Spark has not recorded as committed.
            staged: The data of the intent.

        Raises:
            LogError: If it was written into a target that has been removed or recreated since.
        """

    def verify_empty_log(self, query: str) -> None:
        """Refuse a query whose log is empty although it has published. Planner, once.

        Spark's own commits were checked before; this checks the target.

        Raises:
            LogError: If the log was removed, or has another location now.
        """

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:
        """Remove data of earlier generations and prepare for this one. Planner, after recovery.

        Args:
            query: The query of the log; staged data of other queries is kept.
            generation: The generation that begins.
            clean: True if the previous generation has published and `finish` has returned. It has
                then left nothing, except through stragglers among its tasks.
        """

    def orphaned_jobs(self) -> Iterable[LoggedJob]:
        """Return batch jobs that wrote to the target and will have no further driver. Driver."""
        return ()

    # --- operator

    def force_outcome(self, epoch: Epoch, staged: Sequence[ModelT], *, committed: bool) -> None:
        """Treat an intent as committed or as aborted, and change the target to match. Operator.

        Args:
            epoch: The epoch of the intent.
            staged: The data of the intent.
            committed: True to make visible what still can be; False to remove what still can be
                removed.

        Raises:
            KrishivError: If the target cannot be reached. Data that cannot be shown or removed is
                no error.
        """
        del epoch, staged, committed
        raise SinkError(f"{type(self).__name__} cannot assume the outcome of an epoch")

    def verify_adoption(self, query: str, epoch: int) -> None:
        """Refuse to start a new log at an epoch. Operator.

        Args:
            query: The query that will continue with the log.
            epoch: The newest epoch that the target is said to contain; -1 for none.

        Raises:
            LogError: If the target contains data whose names have the next epochs' numbers.
        """

    def plan_replay(self, replay: Replay) -> list[str]:
        """Return the steps of `take_back`, one per line, and change nothing. Operator.

        Raises:
            OptionError: If the target cannot go back to the end of that epoch.
        """
        del replay
        raise OptionError(
            f"{type(self).__name__} cannot revert epochs, so they cannot be processed again "
            "into the same target"
        )

    def take_back(self, replay: Replay) -> None:
        """Revert the target to the end of an epoch; repeated until it succeeds. Operator.

        The newest intent is finished, and no driver runs. If a process dies in this method, the
        next call does the rest.

        Raises:
            KrishivError: As `plan_replay`; or if the target does not respond.
        """
        raise NotImplementedError
