"""Figures and circumstances as people read them."""

from __future__ import annotations

from benchmarks.measure import Figure
from benchmarks.report.compare import Change
from benchmarks.report.results import Results, Taken

__all__ = ["change", "circumstances", "goal", "middle", "number", "runs", "spread"]


def number(value: float) -> str:
    """Return a value with about three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def middle(line: Figure) -> str:
    """Return the median and its unit."""
    return f"{number(line.median)}{'' if line.unit == 'x' else ' '}{line.unit}"


def spread(line: Figure) -> str:
    """Return the interval, or a description of the values if there is none."""
    if line.interval:
        low, high = line.interval
        return f"{number(low)} - {number(high)}"
    if line.count == 1:
        return "one value"
    return f"quartiles {number(line.low)} - {number(line.high)}"


def goal(line: Figure) -> str:
    """Return the target, and whether it is reached; a dash without one."""
    if line.goal is None:
        return "-"
    side = "at most" if line.goal.at_most else "at least"
    return f"{side} {number(line.goal.bound)}: {'met' if line.met else 'missed'}"


def change(found: Change) -> str:
    """Return the verdict, with its difference, or the reason why there is none."""
    percent = "" if found.percent is None else f"{found.percent:+.1f} %, "
    why = f": {found.why}" if found.why else ""
    return f"{percent}{found.verdict.value}{why}"


def circumstances(taken: Taken) -> str:
    """Machine, versions, commit and date, in one sentence each."""
    machine = taken.machine
    where = (
        f"{machine.processor}, {machine.cores} cores, {machine.memory / 2**30:.0f} GiB, "
        f"{machine.filesystem or 'unknown file system'}, {machine.system}."
    )
    tools = {**taken.versions, **taken.peers}
    versions = ", ".join(f"{name} {what}" for name, what in tools.items())
    changed = " with changes" if taken.changed else ""
    commit = f"commit {taken.commit[:10]}{changed}" if taken.commit else "no commit"
    profiled = " Slowed down by a profiler." if taken.profiled else ""
    when = f"{taken.date:%Y-%m-%d %H:%M %Z}, {commit}."
    return f"{when} {where} {versions}.{profiled}"


def runs(results: Results) -> list[str]:
    """Return the circumstances of each run of a result, and its benchmarks."""
    many = len(results.taken) > 1
    found = []
    for key, taken in results.taken.items():
        names = ", ".join(n for n, outcome in results.benchmarks.items() if outcome.taken == key)
        found.append(f"{f'{names}: ' if many else ''}{circumstances(taken)}")
    return found
