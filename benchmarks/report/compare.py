"""A result beside an earlier one: what has changed by more than the noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from benchmarks.measure import Figure
from benchmarks.report.results import Outcome, Results

__all__ = ["Change", "Verdict", "changes", "regressions"]

_NOTICED = 0.02  # milliseconds are counted in whole ones: their intervals can be points


class Verdict(Enum):
    """The result of a comparison."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    NOISE = "within the noise"
    UNKNOWN = "not judged"
    NEW = "new"
    GONE = "gone"


@dataclass(frozen=True)
class Change:
    """A figure then and now.

    Attributes:
        benchmark: Its name.
        before: None where there was none.
        after: None where there is none.
        verdict: What may be said of the two.
        why: Why nothing may be said; empty otherwise.
    """

    benchmark: str
    before: Figure | None
    after: Figure | None
    verdict: Verdict
    why: str = ""

    @property
    def figure(self) -> Figure:
        """The later one of those that are there."""
        found = self.after or self.before
        assert found is not None
        return found

    @property
    def percent(self) -> float | None:
        """By how much the median has grown; None where that is no number."""
        if self.before is None or self.after is None or not self.before.median:
            return None
        return 100 * (self.after.median - self.before.median) / abs(self.before.median)


def changes(before: Results, after: Results) -> list[Change]:
    """Each figure of the benchmarks that were measured now.

    Args:
        before: The earlier result. If it is a summary, figures that it lacks are left out.
        after: The later one. What it has not measured is left out.
    """
    return [change for name in after.benchmarks for change in _of(name, before, after)]


def regressions(found: Iterable[Change]) -> list[Change]:
    """Those that are worse by more than the noise."""
    return [change for change in found if change.verdict is Verdict.REGRESSION]


def _of(name: str, before: Results, after: Results) -> Iterator[Change]:
    then, now = _lines(before.benchmarks.get(name)), _lines(after.benchmarks[name])
    for key in {**now, **then}:
        old, new = then.get(key), now.get(key)
        if old is None and before.is_summary:  # measured then, perhaps, and not kept
            continue
        if old is None or new is None:
            yield Change(name, old, new, Verdict.NEW if old is None else Verdict.GONE)
            continue
        why = _doubt(name, before, after, new) or _too_few(old, new)
        verdict = Verdict.UNKNOWN if why else _verdict(old, new)
        yield Change(name, old, new, verdict, why)


def _lines(outcome: Outcome | None) -> dict[tuple[str, str], Figure]:
    return {(line.name, line.unit): line for line in outcome.figures} if outcome else {}


def _doubt(name: str, before: Results, after: Results, line: Figure) -> str:
    """Return the reason that the two runs cannot be compared in this figure; empty if they can."""
    then, now = before.of(name), after.of(name)
    if then.quick != now.quick:
        return "one of the two is --quick"
    if then.profiled or now.profiled:
        return "a profiler ran"
    if not then.machine.like(now.machine) and line.unit != "x":
        return "another machine: only ratios compare"
    return ""


def _too_few(old: Figure, new: Figure) -> str:
    return "" if old.interval and new.interval else "too few repetitions to know the noise"


def _verdict(old: Figure, new: Figure) -> Verdict:
    """Compare the intervals, and the medians by a difference that anybody would notice."""
    assert old.interval
    assert new.interval
    (old_low, old_high), (new_low, new_high) = old.interval, new.interval
    noticed = abs(new.median - old.median) >= _NOTICED * abs(old.median)
    if not noticed or (new_low <= old_high and old_low <= new_high):
        return Verdict.NOISE
    larger = new.median > old.median
    return Verdict.REGRESSION if larger == new.smaller else Verdict.IMPROVEMENT
