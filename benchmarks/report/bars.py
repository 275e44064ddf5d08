"""Bars with their intervals and goals, as SVG that stands in a page and takes its colours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.measure import Figure
from benchmarks.report import words

__all__ = ["chart", "ticks"]

_WIDTH, _ROW, _BAR, _FOOT = 900, 30, 16, 26
_LEFT, _RIGHT = 330, 130  # for the names and the values
_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Scale:
    """The scale of a bar.

    Attributes:
        low: The value at the left end.
        high: The value at the right end.
    """

    low: float
    high: float

    def x(self, value: float) -> float:
        """Pixels from the left of the drawing."""
        share = (value - self.low) / (self.high - self.low)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)


def chart(lines: Sequence[Figure]) -> str:
    """One bar for each figure; they have one unit.

    A bar ends at the median. The line over it is the interval, or else the quartiles; the upright
    line is the goal.
    """
    marks = ticks([value for line in lines for value in _values(line)])
    scale = Scale(marks[0], marks[-1])
    height = len(lines) * _ROW + _FOOT
    parts = [*_axis(marks, scale, len(lines) * _ROW)]
    for number, line in enumerate(lines):
        parts += _bar(line, scale, number * _ROW)
    label = escape(f"bars, {lines[0].unit}", quote=True)
    head = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">'
    return "\n".join((head, *parts, "</svg>"))


def ticks(values: Sequence[float]) -> list[float]:
    """Three to seven round numbers from below the smallest value, or zero, to above the largest."""
    low, high = min(0.0, *values), max(0.0, *values)
    wide = (high - low) or 1.0
    power = 10 ** math.floor(math.log10(wide / 5))
    step = next(power * each for each in _STEPS if wide / (power * each) <= 5)
    first, last = math.floor(low / step), math.ceil((high or wide) / step)
    return [number * step for number in range(first, last + 1)]


def _values(line: Figure) -> Iterator[float]:
    yield line.median
    yield from line.interval or (line.low, line.high)
    if line.goal:
        yield line.goal.bound


def _axis(marks: Sequence[float], scale: Scale, bottom: int) -> Iterator[str]:
    for mark in marks:
        x = scale.x(mark)
        yield _upright("grid", x, 0, bottom)
        yield f'<text class="tick" x="{x}" y="{bottom + 16}">{words.number(mark)}</text>'


def _bar(line: Figure, scale: Scale, top: int) -> Iterator[str]:
    middle = top + _ROW // 2
    begin, end = sorted((scale.x(0), scale.x(line.median)))
    kind = "bar" if line.goal is None else "bar met" if line.met else "bar missed"
    size = f'width="{end - begin:.1f}" height="{_BAR}"'
    yield f'<text class="name" x="{_LEFT - 10}" y="{middle + 4}">{escape(line.name)}</text>'
    yield f'<rect class="{kind}" x="{begin}" y="{middle - _BAR // 2}" {size}>{_title(line)}</rect>'
    low, high = (scale.x(value) for value in line.interval or (line.low, line.high))
    yield f'<line class="spread" x1="{low}" x2="{high}" y1="{middle}" y2="{middle}"/>'
    for x in (low, high):
        yield _upright("spread", x, middle - 4, middle + 4)
    if line.goal:
        yield _upright("goal", scale.x(line.goal.bound), top + 2, top + _ROW - 2)
    value = escape(words.middle(line))
    yield f'<text class="value" x="{_WIDTH - _RIGHT + 12}" y="{middle + 4}">{value}</text>'


def _title(line: Figure) -> str:
    goal = f", goal {words.goal(line)}" if line.goal else ""
    told = f"{line.name}: {words.middle(line)} [{words.spread(line)}], n = {line.count}{goal}"
    return f"<title>{escape(told)}</title>"


def _upright(kind: str, x: float, top: float, bottom: float) -> str:
    return f'<line class="{kind}" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>'
