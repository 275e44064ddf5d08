"""The pages on performance: ratios as plots first; the long table on a page of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import Figure
from benchmarks.report import bars, page, results
from docs.tables import is_beside_a_peer

__all__ = ["performance_pages", "report"]

_ROOT = Path(__file__).parents[2]
_PAGE, _RECORDED = "docs/performance.md", "docs/performance-recorded.md"
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


def performance_pages(text: str) -> Iterator[tuple[str, str]]:
    """Split the page of the repository into two, and yield each with its path.

    Args:
        text: Of ``docs/performance.md``.
    """
    head, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    by_title = {section.splitlines()[0]: section for section in sections}
    recorded = by_title.pop("## As recorded")
    title, measuring = head.split("\n", 1)
    first = "".join(by_title.values()).replace(_BELOW, _ELSEWHERE)
    yield _PAGE, f"{title}\n\n{plots()}\n{first}\n## Measure it yourself\n{measuring}"
    yield _RECORDED, _HIDDEN + recorded.replace("## As recorded", _RECORDED_HEAD)


_BELOW = "[below](#as-recorded)"
_ELSEWHERE = "[on a page of their own](performance-recorded.md)"
_HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"
_RECORDED_HEAD = "# All benchmarks\n\n[The same as plots](report.html), on one page."


def plots() -> str:
    """Return two plots of the figures that compare with a connector of others."""
    known = results.load(_ROOT / "docs" / "performance.json")
    shown = [(name, line) for name, line in known.figures() if is_beside_a_peer(line)]
    faster = [_named(name, line) for name, line in shown if not _is_time(line)]
    shorter = [_named(name, line) for name, line in shown if _is_time(line)]
    return f"{_LEGEND}\n\n{_plot(_LONGER, faster)}\n\n{_plot(_SHORTER, shorter)}\n"


def report() -> str:
    """Return all benchmarks as one page of HTML."""
    return page.page(results.load(_ROOT / "docs" / "performance.json"))


def _is_time(line: Figure) -> bool:
    return line.name.startswith(("trigger", "first look"))


def _named(benchmark: str, line: Figure) -> Figure:
    return replace(line, name=f"{benchmark}: {_PART.sub('', line.name)}")


def _plot(words: str, lines: Sequence[Figure]) -> str:
    drawn = " ".join(bars.chart(lines).splitlines())
    return f'{words}\n\n<div class="plot">{drawn}</div>'
