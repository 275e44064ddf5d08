"""The result as one page of HTML that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from benchmarks.measure import Figure
from benchmarks.report import words
from benchmarks.report.bars import chart
from benchmarks.report.compare import Change
from benchmarks.report.results import Outcome, Results

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #59636e; --back: #fff; --rule: #d8dee4;
  --plain: #8c9bb0; --met: #3f8f5f; --missed: #c2703d; --goal: #b3261e; --link: #3949ab; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --dim: #9aa5b1; --back: #14171b; --rule: #333a42;
    --plain: #5d6b80; --met: #4f9f70; --missed: #c9783f; --goal: #ff8a80; --link: #a3b0ff; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 1000px; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-top: 1px solid var(--rule); padding-top: 1rem; }
p { max-width: 75ch } .dim, figcaption { color: var(--dim) }
.wrong { color: var(--missed); font-weight: 600; white-space: pre-wrap }
figure { margin: 1rem 0; overflow-x: auto } svg { width: 100%; min-width: 700px; height: auto }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem } a { color: var(--link) }
code { overflow-wrap: anywhere }
svg text { font-size: 12px; fill: var(--ink) } svg .name { text-anchor: end }
svg .tick { text-anchor: middle; fill: var(--dim) }
svg .grid { stroke: var(--rule) } svg .spread { stroke: var(--ink); stroke-width: 1.5 }
svg .goal { stroke: var(--goal); stroke-width: 2.5 }
.bar { fill: var(--plain) } .bar.met { fill: var(--met) } .bar.missed { fill: var(--missed) }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: 14px }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--rule) }
.regression { color: var(--missed); font-weight: 600 } .improvement { color: var(--met) }
"""
_LEGEND = (
    "A bar ends at the median; the line over it is the 95 % interval of the median (bootstrap), or "
    "the quartiles where there are too few repetitions; the upright line is the goal."
)
_HEAD = ("figure", "median", "95 % interval", "quartiles", "n", "goal")
_CHANGED = ("benchmark", "figure", "before", "now", "change")


def page(results: Results, changes: Iterable[Change] = ()) -> str:
    """Return the whole page.

    Args:
        results: A section for each benchmark.
        changes: Beside an earlier result, if there is one.
    """
    body = [*_opening(results), *_changes(list(changes))]
    for name, outcome in results.benchmarks.items():
        body += _section(name, outcome)
    body += _closing(results)
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Benchmarks of krishiv-spark</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    )
    return "\n".join((head, *body, "</body>\n</html>\n"))


def _opening(results: Results) -> Iterator[str]:
    yield "<h1>Benchmarks of krishiv-spark</h1>"
    if len(results.taken) == 1:
        yield from _circumstances(results)
    yield f'<p class="dim">{_LEGEND}</p>'
    yield f"<nav>{' '.join(map(_link, results.benchmarks))}</nav>"


def _link(name: str) -> str:
    return f'<a href="#{escape(name, quote=True)}">{escape(name)}</a>'


def _closing(results: Results) -> Iterator[str]:
    """Yield the circumstances of several runs, which are long and rarely needed."""
    if len(results.taken) > 1:
        yield "<h2>Where, when, and with what</h2>"
        yield from _circumstances(results)


def _circumstances(results: Results) -> Iterator[str]:
    for run in words.runs(results):
        yield f"<p>{escape(run)}</p>"


def _changes(changes: Sequence[Change]) -> Iterator[str]:
    if changes:
        yield "<h2>Beside the earlier result</h2>"
        yield _table(_CHANGED, [_changed(change) for change in changes])


def _changed(change: Change) -> Sequence[str]:
    sides = [words.middle(line) if line else "-" for line in (change.before, change.after)]
    told = f'<span class="{change.verdict.name.lower()}">{escape(words.change(change))}</span>'
    return (*map(escape, (change.benchmark, change.figure.name, *sides)), told)


def _section(name: str, outcome: Outcome) -> Iterator[str]:
    yield f'<section>\n<h2 id="{escape(name, quote=True)}">{escape(name)}</h2>'
    yield f"<p>{escape(outcome.about)} <code>{escape(outcome.command)}</code></p>"
    for what, why in outcome.missing.items():
        yield f'<p class="wrong">{escape(what)} is missing: {escape(why)}</p>'
    if outcome.failed:
        yield f'<p class="wrong">Failed: {escape(outcome.failed)}</p>'
    for lines in _by_unit(outcome.figures):
        yield f"<figure>\n{chart(lines)}\n</figure>"
    if outcome.figures:
        yield _table(_HEAD, [_row(line) for line in outcome.figures])
    yield "</section>"


def _by_unit(figures: Iterable[Figure]) -> list[list[Figure]]:
    """Those of one unit share an axis."""
    units: dict[str, list[Figure]] = {}
    for line in figures:
        units.setdefault(line.unit, []).append(line)
    return list(units.values())


def _row(line: Figure) -> Sequence[str]:
    quartiles = f"{words.number(line.low)} - {words.number(line.high)}"
    interval = words.spread(line) if line.interval else "too few"
    cells = (line.name, words.middle(line), interval, quartiles, str(line.count), words.goal(line))
    return [escape(cell) for cell in cells]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already."""
    lines = [f"<tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows]
    return '<div class="scroll"><table>\n' + "\n".join(lines) + "\n</table></div>"
