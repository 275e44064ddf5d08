"""Paired repetition: what is compared runs in turn, so that a busy machine slows both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from pydantic import computed_field
from pydantic.dataclasses import dataclass

__all__ = [
    "Figure",
    "Goal",
    "Wrong",
    "each_once",
    "expect",
    "figure",
    "followed",
    "in_turn",
    "interval",
    "ratios",
    "seconds",
    "slope",
    "tails",
]

_RESAMPLES = 10_000
_SEED = 20_261_121  # the same values have the same interval, whenever it is computed
_FEWEST = 3  # of two values nobody can tell how far the third would be
_TAILS = (95, 99)
_COSTS = ("ms", "s", "GiB")

_Follower = Callable[[int, int], None]
_follower: ContextVar[_Follower] = ContextVar("follower", default=lambda _done, _of: None)


class Wrong(Exception):  # noqa: N818  it names what the output is
    """The output of what was measured is not what it should be."""


@dataclass(frozen=True)
class Goal:
    """The value that a figure should reach.

    Attributes:
        bound: The number it is compared with.
        at_most: Whether smaller is better.
    """

    bound: float
    at_most: bool = True

    def met(self, value: float) -> bool:
        """Return True if a value reaches it."""
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
        interval: Where the median lies with 95 % confidence, both ends inclusive; None where there
            are too few repetitions to tell.
        smaller: Whether smaller is better.
    """

    name: str
    unit: str
    median: float
    low: float
    high: float
    count: int
    goal: Goal | None = None
    interval: tuple[float, float] | None = None
    smaller: bool = False

    @computed_field  # type: ignore[prop-decorator]
    @property
    def met(self) -> bool:
        """Return True if the goal is reached; a figure without one has nothing to miss."""
        return self.goal is None or self.goal.met(self.median)


def figure(
    name: str,
    unit: str,
    values: Sequence[float],
    goal: Goal | None = None,
    *,
    smaller: bool | None = None,
) -> Figure:
    """Sum repetitions up.

    Args:
        name: What was measured.
        unit: Of the values.
        values: One of each repetition.
        goal: What their median should reach.
        smaller: Whether smaller is better; None to tell by the goal, or else by the unit: of times
            and sizes it is, of rates and ratios it is not.

    Raises:
        Wrong: If there are no values.
    """
    if not values:
        raise Wrong(f"{name}: nothing was measured")
    low, middle, high = _quartiles(values)
    if smaller is None:
        smaller = goal.at_most if goal else unit in _COSTS
    return Figure(name, unit, middle, low, high, len(values), goal, interval(values), smaller)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval of the median with 95 % confidence, by the percentile bootstrap.

    The seed is fixed. None for fewer than three values.
    """
    if len(values) < _FEWEST:
        return None
    draws = np.random.default_rng(_SEED)
    drawn = draws.choice(np.asarray(values, float), (_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return float(low), float(high)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


@contextmanager
def followed(follower: _Follower) -> Iterator[None]:
    """Call something when `in_turn` begins within the block, and after each of its runs.

    Args:
        follower: Given how many runs are over, and of how many.
    """
    token = _follower.set(follower)
    try:
        yield
    finally:
        _follower.reset(token)


def in_turn(
    rounds: int, variants: Mapping[str, Callable[[], float]], told: Callable[[str], None]
) -> dict[str, list[float]]:
    """Run each variant once per round, in an order that turns round: A B, B A, A B.

    Args:
        rounds: Number of rounds.
        variants: What to run, by name; each returns its own figure.
        told: Called with what runs next, and with its figure.

    Returns:
        The figures of each variant, in the order of the rounds.
    """
    results: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    follow, total = _follower.get(), rounds * len(names)
    follow(0, total)
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            told(f"{name}, round {number + 1} of {rounds}")
            results[name].append(variants[name]())
            told(f"{name}: {results[name][-1]:,.6g}")
            follow(sum(map(len, results.values())), total)
    return results


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratio of each pair, in which common slow-downs cancel out."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def slope(values: Mapping[int, Sequence[float]]) -> float:
    """Return the growth of a value with one more of what its key counts, by least squares."""
    counts, found = zip(*((n, value) for n, each in values.items() for value in each), strict=True)
    return float(np.polyfit(counts, found, 1)[0])


def tails(name: str, unit: str, values: Sequence[float]) -> Iterator[Figure]:
    """Yield the percentiles that describe the slowest values."""
    for percent in _TAILS:
        yield figure(f"{name}, p{percent}", unit, [float(np.percentile(values, percent))])


def each_once(rows: int) -> tuple[int, int]:
    """Return the number of rows and the sum of their numbers, each from 0 on being there once."""
    return rows, rows * (rows - 1) // 2


def seconds(work: Callable[[], object]) -> float:
    """Measure the duration of a call in seconds."""
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
