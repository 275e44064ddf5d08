"""The result as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.measure import Figure
from benchmarks.report import words
from benchmarks.report.compare import Change
from benchmarks.report.results import Outcome, Results

__all__ = ["document", "table"]

_HEAD = ("benchmark", "figure", "median", "95 % interval", "n", "goal")
_CHANGED = ("benchmark", "figure", "before", "now", "change")


def document(results: Results, changes: Iterable[Change] = ()) -> str:
    """Return the machine, the figures, the command of each benchmark, and the changes."""
    if not results.benchmarks:
        return "Nothing has been recorded yet.\n"
    changed = list(changes)
    parts = [*words.runs(results), table(results), _commands(results)]
    if changed:
        parts.append(_changes(changed))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def table(results: Results) -> str:
    """One row for each figure; a benchmark without any has one that says why."""
    rows = [row for name, outcome in results.benchmarks.items() for row in _rows(name, outcome)]
    return _table(_HEAD, rows)


def _rows(name: str, outcome: Outcome) -> list[Sequence[str]]:
    rows = [_row(name, line) for line in outcome.figures]
    if outcome.failed:
        rows.append((f"`{name}`", f"failed: {outcome.failed.splitlines()[0]}", *"----"))
    rows += [
        (f"`{name}`", f"{what} is missing: {why}", *"----") for what, why in outcome.missing.items()
    ]
    return rows


def _row(name: str, line: Figure) -> Sequence[str]:
    told = (words.middle(line), words.spread(line), str(line.count), words.goal(line))
    return (f"`{name}`", line.name, *told)


def _commands(results: Results) -> str:
    rows = [
        (f"`{name}`", outcome.about, f"`{outcome.command}`")
        for name, outcome in results.benchmarks.items()
    ]
    return _table(("benchmark", "what it measures", "command"), rows)


def _changes(changes: Iterable[Change]) -> str:
    return _table(_CHANGED, [_changed(change) for change in changes])


def _changed(change: Change) -> Sequence[str]:
    sides = [words.middle(line) if line else "-" for line in (change.before, change.after)]
    return (f"`{change.benchmark}`", change.figure.name, *sides, words.change(change))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
