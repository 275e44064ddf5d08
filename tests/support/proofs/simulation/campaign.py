"""Many histories, one after another, and what is said of the first one that fails."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from simulation.histories import ANY, Kind, prepare
from simulation.incidents import Incident
from simulation.play import Played, play
from simulation.scenario import Scenario
from simulation.shrinking import shrink_history

__all__ = ["Campaign", "Failure", "run"]


@dataclass(frozen=True)
class Failure:
    """A history in which something has happened that must not happen.

    Attributes:
        seed: Of the history.
        kind: Of histories, which belongs to the seed.
        violation: What has happened.
        scenario: Of the shortest history like it that was found.
        incidents: Of that.
        tale: Of that, a line for each call.
    """

    seed: int
    kind: Kind
    violation: str
    scenario: Scenario
    incidents: tuple[Incident, ...]
    tale: tuple[str, ...]

    def __str__(self) -> str:
        sink = self.kind.fixed.get("sink")
        again = f"./run simulate --seed {self.seed} --histories 1" + (
            f" --sink {sink}" if sink else ""
        )
        told = "\n".join([*map(str, self.incidents), "", *self.tale])
        return (
            f"the history of seed {self.seed} fails: {self.violation}\n\nAgain: {again}\n\n"
            f"The shortest one like it, where {self.scenario.changes()}:\n{told}"
        )


@dataclass
class Campaign:
    """The result of many histories.

    Attributes:
        histories: Number of histories.
        steps: Calls in all of them.
        incidents: Number of incidents in them.
        seconds: Time on this machine.
        failure: The first failure; no history is played after it.
    """

    histories: int = 0
    steps: int = 0
    incidents: int = 0
    seconds: float = 0.0
    failure: Failure | None = None

    def __str__(self) -> str:
        return (
            f"{self.histories} histories, {self.steps} steps, {self.incidents} incidents in "
            f"{self.seconds:.1f} s: {self.histories / self.seconds:.0f} histories/s, "
            f"{self.steps / self.seconds:.0f} steps/s"
        )


def run(
    seed: int, *, histories: int = 2**62, steps: int = 2**62, kind: Kind = ANY, shrink: bool = True
) -> Campaign:
    """Play the histories of one seed after another, until one fails.

    Args:
        seed: The first; whole numbers follow.
        histories: How many at most.
        steps: No history begins after so many.
        kind: Which histories.
        shrink: Whether the one that fails is made shorter, and told.
    """
    found, begun = Campaign(), time.monotonic()
    while found.histories < histories and found.steps < steps and found.failure is None:
        mine = seed + found.histories
        scenario, incidents = prepare(mine, kind)
        played = play(scenario, incidents)
        found.histories += 1
        found.steps += played.steps
        found.incidents += len(played.incidents)
        if played.violation is not None:
            found.failure = _failure(mine, kind, scenario, played, shrink=shrink)
    found.seconds = time.monotonic() - begun
    return found


def _failure(seed: int, kind: Kind, scenario: Scenario, played: Played, *, shrink: bool) -> Failure:
    incidents: Sequence[Incident] = played.incidents
    if shrink:
        scenario, incidents = shrink_history(scenario, incidents, _fails)
    told = play(scenario, incidents, tell=True)
    violation = played.violation or ""
    return Failure(seed, kind, violation, scenario, tuple(incidents), told.tale)


def _fails(scenario: Scenario, incidents: Sequence[Incident]) -> bool:
    return play(scenario, incidents).violation is not None
