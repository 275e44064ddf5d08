"""From a number to a history."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simulation.disturbances import KINDS
from simulation.incidents import PLACES, Incident, draw_incidents
from simulation.play import Played, play
from simulation.scenario import Scenario

__all__ = ["Kind", "play_history", "prepare"]

_LAST = (100, 200, 400, 800)
_MOODS = (0.3, 1, 3)


@dataclass(frozen=True)
class Kind:
    """The kind of histories to play; by default, all.

    Attributes:
        fixed: Constant values, by attributes of `Scenario`.
        incidents: Weights by kinds of incidents; empty for any.
        places: Calls near which incidents happen.
        gaps: Mean steps between two incidents: one of these for each history.
    """

    fixed: Mapping[str, Any] = field(default_factory=dict)
    incidents: Mapping[str, float] = field(default_factory=dict)
    places: Sequence[str] = PLACES
    gaps: Sequence[int] = (10, 20, 40, 80)


ANY = Kind()


def prepare(seed: int, kind: Kind = ANY) -> tuple[Scenario, Iterator[Incident]]:
    """The settings of a seed's history, and what goes wrong in it."""
    rng = random.Random(seed)
    if "sink" not in kind.fixed:
        kind = replace(kind, fixed={"sink": rng.choice(("shelf", "kafka")), **kind.fixed})
    scenario = Scenario.drawn(rng, **kind.fixed)
    weights = kind.incidents or _drawn_weights(rng)
    return scenario, draw_incidents(
        rng, weights, rng.choice(kind.gaps), rng.choice(_LAST), kind.places
    )


def _drawn_weights(rng: random.Random) -> dict[str, float]:
    """Few kinds at a time: whoever is killed all the time never gets to what else may happen."""
    return {k: w * rng.choice(_MOODS) for k, (_, w) in KINDS.items() if rng.random() < 0.6}


def play_history(seed: int, kind: Kind = ANY, *, tell: bool = False) -> Played:
    """Play the history of a seed."""
    return play(*prepare(seed, kind), tell=tell)
