"""Several targets as one: an epoch is committed in all of them, or in none. Driver.

The intent in the one log names the staged data in each target. So each driver that finds it
finishes the epoch in all of them, and without an intent nothing is finished.
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
        parts: The staged items of each route's participant: models, or parsed JSON of an intent.
    """

    parts: dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class RoutePlans:
    """The plans of all routes, for the tasks.

    Attributes:
        plans: The return value of `Writer.plan`, by route.
    """

    plans: Mapping[str, Any]


_Part = Participant[Any]
_Verb = Callable[[_Part, Epoch, Sequence[Any]], None]


def part_of_epoch(epoch: Epoch, route: str) -> Epoch:
    """Return the identity of an epoch for the participant of a route."""
    return replace(epoch, query=part_of_query(epoch.query, route))


class FanoutParticipant(Participant[StagedParts]):
    """A participant that finishes the parts of an epoch by the routes' participants.

    The first are those whose data may expire and can be staged again in part, such as Kafka's
    transactions, which have a timeout; the last are those whose data is never lost. So a lost part
    is detected while the visible parts can still be left out when the epoch is staged again.

    Args:
        parts: The participants by route.
    """

    staged_type = StagedParts

    def __init__(self, parts: Mapping[str, _Part]) -> None:
        self._parts = dict(sorted(parts.items(), key=_precedence))

    def load(self, text: str) -> StagedParts:
        """Return the content of an intent, with all staged items checked by their routes.

        Raises:
            ValueError: If a part is damaged.
        """
        found = super().load(text)
        parts = {
            route: tuple(map(part.load, map(json.dumps, found.parts[route])))
            for route, part in self._parts.items()
            if route in found.parts
        }
        return found.model_copy(update={"parts": {**found.parts, **parts}})

    # --- committer

    def prepare(
        self, epoch: Epoch, staged: Sequence[StagedParts], salvaged: Sequence[StagedParts]
    ) -> Sequence[StagedParts]:
        """Committer: prepare each part; those with a timeout come last, right before the intent."""
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
        """Driver: finish each part.

        Raises:
            LostIntentError: If a part is lost, and the visible parts can be left out when the epoch
                is staged again.
            CommitUnknown: If a part is lost, and that is not possible; or if a participant raises
                it.
        """
        self._end(epoch, staged, lambda part, own, items: part.finish(own, items))

    def finish_or_salvage(self, epoch: Epoch, staged: Sequence[StagedParts]) -> None:
        """Driver: finish or salvage each part that is not finished, as `finish` does.

        The visible data of a finished part may have been removed or compacted since.
        """
        self._end(epoch, staged, _finish_or_salvage)

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
        """Driver: return True if every part is finished."""
        return all(
            part.is_finished(part_of_epoch(epoch, route)) for route, part in self._parts.items()
        )

    def discard(self, staged: Sequence[StagedParts]) -> None:
        """Any process: discard each part. An error does not prevent the others."""
        self._all(lambda route, part: part.discard(self._of(route, staged)))

    def abandon(self, epoch: Epoch) -> None:
        """Committer: abandon each part."""
        self._all(lambda route, part: part.abandon(part_of_epoch(epoch, route)))

    def forget(self, query: str) -> None:
        """Driver: forget each part."""
        self._all(lambda route, part: part.forget(part_of_query(query, route)))

    # --- planner

    def target(self) -> str:
        """Planner: describe the targets of all routes.

        Another route, or one less, is another target.
        """
        return _list_targets({route: part.target() for route, part in self._parts.items()})

    def known_target(self) -> str:
        """Operator: describe them without giving any its identity."""
        return _list_targets({route: part.known_target() for route, part in self._parts.items()})

    def check_query(self, query: str) -> None:
        """Planner: check the query with each part."""
        for route, part in self._parts.items():
            part.check_query(part_of_query(query, route))

    def records(self, query: str) -> Sequence[TargetRecord]:
        """Planner: return the records of each part."""
        return [
            record._replace(target=f"route {route!r}: {record.target}")
            for route, part in self._parts.items()
            for record in part.records(part_of_query(query, route))
        ]

    def has_epochs(self, query: str) -> bool:
        """Planner: return True if a target has an epoch of a query of exactly this name."""
        return any(part.has_epochs(query) for part in self._parts.values())

    def targets_without(self, epoch: Epoch, staged: Sequence[StagedParts]) -> Sequence[str] | None:
        """Planner: return the targets of each part without the epoch."""
        lacking, is_unknown = [], False
        for route, part in self._parts.items():
            own = part.targets_without(part_of_epoch(epoch, route), self._of(route, staged))
            is_unknown = is_unknown or own is None
            lacking += [f"route {route!r}: {target}" for target in own or ()]
        return None if is_unknown and not lacking else lacking

    def targets_of(self, staged: Sequence[object]) -> set[str]:
        """Planner: return the routes that staged items belong to."""
        parts = [item.get("parts") for item in staged if isinstance(item, dict)]
        found = (part for part in parts if isinstance(part, dict))
        return {name for part in found for name in self._parts if part.get(name)}

    def verify_committed_target(self, epoch: Epoch, staged: Sequence[StagedParts]) -> None:
        """Planner: verify the target of each part."""
        for route, part in self._parts.items():
            part.verify_committed_target(part_of_epoch(epoch, route), self._of(route, staged))

    def verify_empty_log(self, query: str) -> None:
        """Planner: verify that each part has no data of the query."""
        for route, part in self._parts.items():
            part.verify_empty_log(part_of_query(query, route))

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:
        """Planner: sweep each part; the generations are those of the one log."""
        for route, part in self._parts.items():
            part.sweep(part_of_query(query, route), generation, clean=clean)

    def orphaned_jobs(self) -> Iterator[LoggedJob]:
        """Planner: yield nothing. Batch jobs in the targets have their own logs."""
        # The intents of batch jobs belong to a target, and to no route.
        return iter(())

    # --- operator

    def force_outcome(
        self, epoch: Epoch, staged: Sequence[StagedParts], *, committed: bool
    ) -> None:
        """Operator: force the outcome of each part."""
        for route, part in self._parts.items():
            own = part_of_epoch(epoch, route)
            part.force_outcome(own, self._of(route, staged), committed=committed)

    def verify_adoption(self, query: str, epoch: int) -> None:
        """Operator: verify the adoption with each part."""
        for route, part in self._parts.items():
            part.verify_adoption(part_of_query(query, route), epoch)

    def plan_replay(self, replay: Replay) -> list[str]:
        """Operator: describe the replay of each part.

        A part that cannot be rewound prevents all of it.
        """
        found = []
        for route, part in self._parts.items():
            try:
                lines = part.plan_replay(replay.of_route(route))
            except OptionError as error:
                raise OptionError(f"route {route!r}: {error}") from error
            found += [f"route {route!r}: {line}" for line in lines]
        return found

    def take_back(self, replay: Replay) -> None:
        """Operator: take back each part, one after the other."""
        for route, part in self._parts.items():
            part.take_back(replay.of_route(route))

    # --- parts

    def part_of_ownership(self, ownership: Ownership[StagedParts], route: str) -> Ownership[Any]:
        """Planner: return the ownership of the query as the sink of one route sees it."""
        found = ownership.salvaged
        own = None if found is None else Salvaged(found.epoch, self._of(route, found.staged))
        newest = ownership.newest
        if newest is not None:
            newest = [each for item in newest for each in item["parts"].get(route, ())]
        return replace(ownership, salvaged=own, newest=newest)

    def _of(self, route: str, staged: Iterable[StagedParts]) -> tuple[Any, ...]:
        load = self._parts[route].load
        return tuple(
            found if isinstance(found, BaseModel) else load(json.dumps(found))
            for item in staged
            for found in item.parts.get(route, ())
        )

    def _all(self, verb: Callable[[str, _Part], None]) -> None:
        """Call a function for each part, even after an error; then raise the first error."""
        errors = []
        for route, part in self._parts.items():
            try:
                verb(route, part)
            except Exception as error:  # noqa: BLE001  raised below
                errors.append(error)
        if errors:
            raise errors[0]


def _finish_or_salvage(part: _Part, epoch: Epoch, staged: Sequence[Any]) -> None:
    if not part.is_finished(epoch):
        part.finish_or_salvage(epoch, staged)


def _precedence(named: tuple[str, _Part]) -> tuple[bool, bool, str]:
    route, part = named
    return not part.salvages, not part.may_lose, route


def _list_targets(found: Mapping[str, str | None]) -> str:
    return "; ".join(f"{route}: {found[route] or 'not known'}" for route in sorted(found))
