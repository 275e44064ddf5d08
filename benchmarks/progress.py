"""The progress of the benchmarks, and the time that the rest takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from benchmarks.measure import followed

__all__ = ["Clock", "Shown"]

_BLANK: dict[str, Any] = {"told": "", "left": ""}


@dataclass
class Clock:
    """Estimate of the remaining time by the durations of an earlier run.

    Attributes:
        names: Of the benchmarks, in their order.
        before: How long each took in an earlier run, in seconds, where that is known.
        taken: How long each took that is over, in seconds.
    """

    names: Sequence[str]
    before: Mapping[str, float]
    taken: dict[str, float] = field(default_factory=dict)

    def left(self, elapsed: float) -> float | None:
        """Seconds; None while nothing is known.

        Args:
            elapsed: For how long the present benchmark has been running, in seconds.
        """
        rest = [name for name in self.names if name not in self.taken]
        known = [*self.before.values(), *self.taken.values()]
        if not known or not rest:
            return None if rest else 0.0
        usual = sum(known) / len(known)
        first, *others = (self._slower() * self.before.get(name, usual) for name in rest)
        return max(first - elapsed, 0.0) + sum(others)

    def _slower(self) -> float:
        """Return the ratio of this run's durations to those of the earlier one."""
        both = [name for name in self.taken if self.before.get(name)]
        if not both:
            return 1.0
        return sum(self.taken[name] for name in both) / sum(self.before[name] for name in both)


class Shown:
    """A bar for the benchmarks and one for the rounds; lines, where there is no terminal."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console, self._clock = console, clock
        self._begun = self._rounds_begun = time.monotonic()
        self._name = ""
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[told]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task("benchmarks", total=len(clock.names), **_BLANK)
        self._rounds = self._bars.add_task("rounds", total=None, **_BLANK)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show them while the block runs."""
        with self._bars, followed(self._round):
            yield

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Report the start of a benchmark, and its end after the block."""
        self._name, self._begun = name, time.monotonic()
        self._bars.remove_task(self._rounds)  # resetting it would keep its total
        self._rounds = self._bars.add_task(name, total=None, **_BLANK)
        self.told("starting")
        try:
            yield
        finally:
            self._clock.taken[name] = time.monotonic() - self._begun
            self._bars.advance(self._all)

    def told(self, text: str) -> None:
        """Report the current step."""
        self._tick()
        self._bars.update(self._rounds, told=text)
        if not self._console.is_terminal:
            print(f"{self._name}: {text}", file=sys.stderr, flush=True)

    def _round(self, done: int, of: int) -> None:
        now = time.monotonic()
        if not done:
            self._rounds_begun = now
        left = (now - self._rounds_begun) * (of - done) / done if done else None
        self._bars.update(self._rounds, completed=done, total=of, left=_minutes(left))
        self._tick()

    def _tick(self) -> None:
        left = self._clock.left(time.monotonic() - self._begun)
        self._bars.update(self._all, left=_minutes(left))


def _minutes(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} left"
