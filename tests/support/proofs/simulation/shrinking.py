"""From a history that fails to a short one that fails, for people to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from simulation.incidents import Incident
from simulation.scenario import Scenario

__all__ = ["shrink_history"]

_MOST_PLAYS = 600

Case = tuple[Scenario, tuple[Incident, ...]]


def shrink_history(
    scenario: Scenario,
    incidents: Sequence[Incident],
    fails: Callable[[Scenario, Sequence[Incident]], bool],
) -> Case:
    """A history with less in it that still fails.

    Args:
        scenario: Of the one that fails.
        incidents: Of it.
        fails: Plays another one.

    Returns:
        The simplest settings, and the fewest and plainest incidents, that were found.
    """
    case: Case = scenario, tuple(incidents)
    plays = 0
    is_simpler = True
    while is_simpler:
        is_simpler = False
        for simpler in _simpler(*case):
            plays += 1
            if plays > _MOST_PLAYS:
                return case
            if fails(*simpler):
                case, is_simpler = simpler, True
                break
    return case


def _simpler(scenario: Scenario, incidents: tuple[Incident, ...]) -> Iterator[Case]:
    """Yield simpler histories to try next, the greatest steps first."""
    length = len(incidents)
    while length:
        for begin in range(0, len(incidents), length):
            yield scenario, incidents[:begin] + incidents[begin + length :]
        length //= 2
    yield from ((other, incidents) for other in _plainer_settings(scenario))
    for at, incident in enumerate(incidents):
        for plainer in _plainer(incident):
            yield scenario, (*incidents[:at], plainer, *incidents[at + 1 :])


def _plainer_settings(scenario: Scenario) -> Iterator[Scenario]:
    for each in fields(scenario):
        if each.name != "sink" and getattr(scenario, each.name) != each.default:
            plainer: dict[str, Any] = {each.name: each.default}
            yield replace(scenario, **plainer)
    if scenario.goal > 0:
        yield replace(scenario, goal=scenario.goal - 1)


def _plainer(incident: Incident) -> Iterator[Incident]:
    for number in sorted({0, 1, incident.number % 4, incident.number % 16}):
        if number < incident.number:
            yield replace(incident, number=number)
