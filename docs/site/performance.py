"""The page about performance, with plots of the ratios before its text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import Figure
from benchmarks.report import bars, results
from docs.tables import is_beside_a_peer

__all__ = ["performance_page"]

_ROOT = Path(__file__).parents[2]
_LONGER = (
    "**Speed: longer is better.** Rows per second of krishiv-spark divided by the peer's: at 2, it "
    "is twice as fast."
)
_SHORTER = (
    "**Time: shorter is better.** Time of a trigger or a first listing divided by the peer's: at "
    "0.5, it takes half as long."
)
_PART = re.compile(r"^(trigger|speed), ")  # stated above each plot
_LEGEND = (
    "A bar ends at the median, the line over it is the 95 % interval, the upright line is the "
    "goal: green where it is met, orange where it is missed. At 1, both are the same."
)


def performance_page(text: str) -> str:
    """Return the page with plots before its first section.

    Args:
        text: The contents of ``docs/performance.md``.
    """
    head, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return "".join([head, plots(), "\n", *sections])


def plots() -> str:
    """Return two plots of the ratios to connectors of other projects."""
    known = results.load(_ROOT / "docs" / "performance.json")
    shown = [(name, line) for name, line in known.figures() if is_beside_a_peer(line)]
    faster = [_named(name, line) for name, line in shown if not _is_time(line)]
    shorter = [_named(name, line) for name, line in shown if _is_time(line)]
    return f"{_LEGEND}\n\n{_plot(_LONGER, faster)}\n\n{_plot(_SHORTER, shorter)}\n"


def _is_time(line: Figure) -> bool:
    return line.name.startswith(("trigger", "first look"))


def _named(benchmark: str, line: Figure) -> Figure:
    return replace(line, name=f"{benchmark}: {_PART.sub('', line.name)}")


def _plot(words: str, lines: Sequence[Figure]) -> str:
    drawn = " ".join(bars.chart(lines).splitlines())
    return f'{words}\n\n<div class="plot">{drawn}</div>'
