"""Paired repetition: what is compared runs in turn, so that a busy machine slows both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Figure", "Goal", "Wrong", "expect", "figure", "in_turn", "ratios", "seconds"]


class Wrong(Exception):  # noqa: N818  it names what the output is
    """The output of what was measured is not what it should be."""


@dataclass(frozen=True)
class Goal:
    """What a figure should reach.

    Attributes:
        bound: The number it is compared with.
        at_most: Whether smaller is better.
    """

    bound: float
    at_most: bool = True

    def met(self, value: float) -> bool:
        """Whether a value reaches it."""
        return value <= self.bound if self.at_most else value >= self.bound

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.bound:g}"


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        name: What was measured.
        unit: Of the numbers.
        median: Middle of the repetitions.
        low: Lower quartile.
        high: Upper quartile.
        count: Number of repetitions.
        goal: What it should reach, None for a figure that is only shown.
    """

    name: str
    unit: str
    median: float
    low: float
    high: float
    count: int
    goal: Goal | None = None

    @property
    def met(self) -> bool:
        """Whether the goal is reached; a figure without one has nothing to miss."""
        return self.goal is None or self.goal.met(self.median)


def figure(name: str, unit: str, values: Sequence[float], goal: Goal | None = None) -> Figure:
    """Sum repetitions up by their median and quartiles."""
    if not values:
        raise Wrong(f"{name}: nothing was measured")
    low, middle, high = _quartiles(values)
    return Figure(name, unit, middle, low, high, len(values), goal)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def in_turn(
    rounds: int, variants: Mapping[str, Callable[[], float]], told: Callable[[str], None]
) -> dict[str, list[float]]:
    """Run each variant once per round, in an order that turns round: A B, B A, A B.

    Args:
        rounds: Number of rounds.
        variants: What to run, by name; each returns its own figure.
        told: Called with what runs next.

    Returns:
        The figures of each variant, in the order of the rounds.
    """
    results: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            told(f"{name}, round {number + 1} of {rounds}")
            results[name].append(variants[name]())
    return results


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The ratio of each pair: what slowed down both falls out."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def seconds(work: Callable[[], object]) -> float:
    """How long something takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def expect(what: str, found: object, wanted: object) -> None:
    """Compare an output with what it should be.

    Raises:
        Wrong: If it differs; the benchmark fails, whatever its speed.
    """
    if found != wanted:
        raise Wrong(f"{what}: found {found}, wanted {wanted}")
