"""Several targets as one: an epoch is in all of them, or in none. Driver.

The intent in the one log names what is staged in each target. So each driver that finds it finishes
it in all of them, and nothing is finished without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from krishiv_spark.errors import CommitUnknown, OptionError, SinkError
from krishiv_spark.offsets.planned import part_of_query
from krishiv_spark.sinks.base import Epoch, Ownership, Salvaged
from krishiv_spark.sinks.participant import (
    LoggedJob,
    LostIntentError,
    Participant,
    Replay,
    TargetRecord,
)

__all__ = ["FanoutParticipant", "RoutePlans", "StagedParts", "part_of_epoch"]


class StagedParts(BaseModel, frozen=True):
    """The staged data of one task, or the data that an intent names.

    Attributes:
        parts: By route, what its participant calls staged: models, or as an intent keeps them.
    """

    parts: dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class RoutePlans:
    """The properties of an epoch that tasks need.

    Attributes:
        plans: By route, what `Writer.plan` of it returned.
    """

    plans: Mapping[str, Any]


_Part = Participant[Any]
_Verb = Callable[[_Part, Epoch, Sequence[Any]], None]


def part_of_epoch(epoch: Epoch, route: str) -> Epoch:
    """The identity of an epoch for the participant of a route."""
    return replace(epoch, query=part_of_query(epoch.query, route))


class FanoutParticipant(Participant[StagedParts]):
    """Finishes the parts of an epoch, one after the other, each as its own participant does.

    First those that may be lost and can be staged again in part, such as Kafka's transactions,
    whose time runs; last those that are never lost. So a part that is lost is found out as long as
    what is visible can be left out when the epoch is staged again.

    Args:
        parts: By route.
    """

    staged_type = StagedParts

    def __init__(self, parts: Mapping[str, _Part]) -> None:
        self._parts = dict(sorted(parts.items(), key=_precedence))

    def load(self, text: str) -> StagedParts:
        """Return what an intent names, with what each route calls staged: all of it is checked.

        Raises:
            ValueError: If a part is damaged.
        """
        found = StagedParts.model_validate_json(text)
        parts = {
            route: tuple(map(part.load, map(json.dumps, found.parts[route])))
            for route, part in self._parts.items()
            if route in found.parts
        }
        return StagedParts(parts={**found.parts, **parts})

    # --- committer

    def prepare(
        self, epoch: Epoch, staged: Sequence[StagedParts], salvaged: Sequence[StagedParts]
    ) -> Sequence[StagedParts]:
        """Committer: each part; what has a time-out comes last, right before the intent."""
        whole = {
            route: tuple(
                part.prepare(
                    part_of_epoch(epoch, route),
                    self._of(route, staged),
                    self._of(route, salvaged),
                )
            )
            for route, part in reversed(self._parts.items())
        }
        return [StagedParts(parts=whole)]

    def finish(self, epoch: Epoch, staged: Sequence[StagedParts]) -> None:
        """Driver: each part.

        Raises:
            LostIntentError: If one is lost, and what is visible of the others can be left out when
                the epoch is staged again.
            CommitUnknown: If one is lost, and that cannot be done; or as its participant says.
        """
        self._end(epoch, staged, lambda part, own, items: part.finish(own, items))

    def finish_or_salvage(self, epoch: Epoch, staged: Sequence[StagedParts]) -> None:
        """Driver: as `finish`."""
        self._end(epoch, staged, lambda part, own, items: part.finish_or_salvage(own, items))

    def _end(self, epoch: Epoch, staged: Sequence[StagedParts], verb: _Verb) -> None:
        visible: dict[str, tuple[Any, ...]] = {}
        for route, part in self._parts.items():
            items = self._of(route, staged)
            try:
                verb(part, part_of_epoch(epoch, route), items)
            except LostIntentError as lost:
                raise self._lost(epoch, route, lost, visible) from lost
            if items:
                visible[route] = items

    def _lost(
        self,
        epoch: Epoch,
        route: str,
        lost: LostIntentError,
        visible: Mapping[str, tuple[Any, ...]],
    ) -> SinkError:
        stays = sorted(name for name in visible if not self._parts[name].salvages)
        if stays:
            return CommitUnknown(
                f"route {route!r}: {lost}. But the epoch is visible already at the targets of "
                f"the routes {', '.join(stays)}. 'krishiv-spark log resolve --assume committed' "
                "skips the lost files; '--assume aborted' reverts what can be reverted, and "
                f"the epoch is staged again (epoch {epoch.number} of query {epoch.query})"
            )
        kept = {**visible, route: tuple(lost.salvaged)}
        salvaged = {name: items for name, items in kept.items() if items}
        found = [StagedParts(parts=salvaged)] if salvaged else []
        return LostIntentError(f"route {route!r}: {lost}", found)

    def is_finished(self, epoch: Epoch) -> bool:
        """Driver: every part is."""
        return all(
            part.is_finished(part_of_epoch(epoch, route)) for route, part in self._parts.items()
        )

    def discard(self, staged: Sequence[StagedParts]) -> None:
        """Anywhere: each part; an error keeps none of the others."""
        self._all(lambda route, part: part.discard(self._of(route, staged)))

    def abandon(self, epoch: Epoch) -> None:
        """Committer: each part."""
        self._all(lambda route, part: part.abandon(part_of_epoch(epoch, route)))

    def forget(self, query: str) -> None:
        """Driver: each part."""
        self._all(lambda route, part: part.forget(part_of_query(query, route)))

    # --- planner

    def target(self) -> str:
        """Planner: where all routes go. Another route, or one less, is another target."""
        found = ((route, self._parts[route].target()) for route in sorted(self._parts))
        return "; ".join(f"{route}: {target or 'not known'}" for route, target in found)

    def check_query(self, query: str) -> None:
        """Planner: each part."""
        for route, part in self._parts.items():
            part.check_query(part_of_query(query, route))

    def records(self, query: str) -> Sequence[TargetRecord]:
        """Planner: those of each part."""
        return [
            record._replace(target=f"route {route!r}: {record.target}")
            for route, part in self._parts.items()
            for record in part.records(part_of_query(query, route))
        ]

    def targets_without(self, epoch: Epoch, staged: Sequence[StagedParts]) -> Sequence[str] | None:
        """Planner: those of each part; None if no part lacks it and one cannot be compared."""
        lacking, is_unknown = [], False
        for route, part in self._parts.items():
            own = part.targets_without(part_of_epoch(epoch, route), self._of(route, staged))
            is_unknown = is_unknown or own is None
            lacking += [f"route {route!r}: {target}" for target in own or ()]
        return None if is_unknown and not lacking else lacking

    def targets_of(self, staged: Sequence[object]) -> set[str]:
        """Planner: the routes."""
        parts = [item.get("parts") for item in staged if isinstance(item, dict)]
        found = (part for part in parts if isinstance(part, dict))
        return {name for part in found for name in self._parts if part.get(name)}

    def verify_committed_target(self, epoch: Epoch, staged: Sequence[StagedParts]) -> None:
        """Planner: each part."""
        for route, part in self._parts.items():
            part.verify_committed_target(part_of_epoch(epoch, route), self._of(route, staged))

    def verify_empty_log(self, query: str) -> None:
        """Planner: each part."""
        for route, part in self._parts.items():
            part.verify_empty_log(part_of_query(query, route))

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:
        """Planner: each part, whose generations are those of the one log."""
        for route, part in self._parts.items():
            part.sweep(part_of_query(query, route), generation, clean=clean)

    def orphaned_jobs(self) -> Iterator[LoggedJob]:
        """Planner: batch jobs in the targets, whose logs are there."""
        # Their intents are of a target's own kind, and of no route.
        return iter(())

    # --- operator

    def force_outcome(
        self, epoch: Epoch, staged: Sequence[StagedParts], *, committed: bool
    ) -> None:
        """Operator: each part."""
        for route, part in self._parts.items():
            own = part_of_epoch(epoch, route)
            part.force_outcome(own, self._of(route, staged), committed=committed)

    def verify_adoption(self, query: str, epoch: int) -> None:
        """Operator: each part."""
        for route, part in self._parts.items():
            part.verify_adoption(part_of_query(query, route), epoch)

    def plan_replay(self, replay: Replay) -> list[str]:
        """Operator: each part; one that cannot go back keeps all from it."""
        found = []
        for route, part in self._parts.items():
            try:
                lines = part.plan_replay(replay.of_route(route))
            except OptionError as error:
                raise OptionError(f"route {route!r}: {error}") from error
            found += [f"route {route!r}: {line}" for line in lines]
        return found

    def take_back(self, replay: Replay) -> None:
        """Operator: each part, one after the other."""
        for route, part in self._parts.items():
            part.take_back(replay.of_route(route))

    # --- parts

    def part_of_ownership(self, ownership: Ownership[StagedParts], route: str) -> Ownership[Any]:
        """Planner: what the sink of a route may know of who owns the query."""
        found = ownership.salvaged
        own = None if found is None else Salvaged(found.epoch, self._of(route, found.staged))
        return Ownership(ownership.generation, ownership.generations, own)

    def _of(self, route: str, staged: Iterable[StagedParts]) -> tuple[Any, ...]:
        load = self._parts[route].load
        return tuple(
            found if isinstance(found, BaseModel) else load(json.dumps(found))
            for item in staged
            for found in item.parts.get(route, ())
        )

    def _all(self, verb: Callable[[str, _Part], None]) -> None:
        """Each part, whatever becomes of the others; then the first error."""
        errors = []
        for route, part in self._parts.items():
            try:
                verb(route, part)
            except Exception as error:  # noqa: BLE001  raised below
                errors.append(error)
        if errors:
            raise errors[0]


def _precedence(named: tuple[str, _Part]) -> tuple[bool, bool, str]:
    route, part = named
    return not part.salvages, not part.may_lose, route
