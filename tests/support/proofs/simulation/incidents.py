"""The incidents of a history, and the steps at which they happen: drawn from a seed, or given."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["NEVER", "PLACES", "Incident", "Incidents", "draw_incidents"]

NEVER = 10**9
_LARGEST = 2**10
_PATIENCE = 60
PLACES = (
    *("", "", "", "", "create", "replace", "remove", "list", "read 0", "stage", "show", "take"),
    *("EndTxn", "InitProducerId", "Describe", "Produce", "AddPartitions", "/commits/", "read rows"),
)
"""Calls near which an incident matters more than elsewhere."""


@dataclass(frozen=True, order=True)
class Incident:
    """Something that happens at a step.

    Attributes:
        at: The step, from 1: the calls of all actors are counted together.
        kind: Which, one of `simulation.disturbances.KINDS`.
        number: What else there is to choose: which one, how long, before or after. 0 is the
            plainest choice.
        near: It waits for a call whose name has this in it, and happens at none if there is none
            within `_PATIENCE` steps.
    """

    at: int
    kind: str
    number: int = 0
    near: str = ""

    def is_late(self, step: int) -> bool:
        """Return True if the incident can no longer happen."""
        return step >= self.at + _PATIENCE and self.near != ""


class Incidents:
    """Those that are still to come.

    Attributes:
        at: The step of the next one; `NEVER` if there is none.
        taken: Those that were taken.
    """

    def __init__(self, given: Iterable[Incident]) -> None:
        self._given = iter(given)
        self.taken: list[Incident] = []
        self._advance()

    def _advance(self) -> None:
        self._next = next(self._given, None)
        self.at = NEVER if self._next is None else self._next.at

    def take(self, step: int, name: str) -> Incident | None:
        """The next one, if it happens at a call; its step has come."""
        while self._next is not None and self._next.is_late(step):
            self._advance()
        incident = self._next
        if incident is None or step < incident.at or incident.near not in name:
            return None
        self.taken.append(incident)
        self._advance()
        return incident

    def end(self) -> None:
        """Nothing goes wrong any more."""
        self._given = iter(())
        self._advance()


def draw_incidents(
    rng: random.Random,
    weights: Mapping[str, float],
    gap: float,
    until: int,
    places: Sequence[str] = PLACES,
) -> Iterator[Incident]:
    """Incidents at random.

    Args:
        rng: Decides.
        weights: How often each kind is drawn, relative to the others.
        gap: Steps between two of them, on average.
        until: The last step at which there may be one.
        places: Near which calls they happen, one of these for each.
    """
    kinds, shares = list(weights), list(weights.values())
    at = 0
    while kinds:
        at += 1 + int(rng.expovariate(1 / gap))
        if at > until:
            return
        kind = rng.choices(kinds, shares)[0]
        yield Incident(at, kind, rng.randrange(_LARGEST), rng.choice(places))
