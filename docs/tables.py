"""Tables of the pages that come from figures and from what the public runners run."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import yaml

from benchmarks.counts.record import Record, newest_of
from benchmarks.measure import Figure
from benchmarks.report import words
from benchmarks.report.results import Results

__all__ = [
    "counts_table",
    "is_beside_a_peer",
    "ratios_table",
    "selected_ratios_table",
    "support_table",
    "table",
]

_WORKFLOWS = Path(__file__).parent.parent / ".github" / "workflows"
_PEERS = {"kafka", "iceberg", "parquet", "console", "memory", "Spark's"}
_SYSTEMS = {"ubuntu-latest": "Linux (Ubuntu)", "macos-latest": "macOS"}


_SAME = re.compile(r"krishiv-(\w+) / \1")
"""The names of a format and of the one that it is compared with."""

_SCALING = {"iceberg.files", "parquet.listing"}
"""Benchmarks with figures for each size, which the page has in its own table."""

_COUNTED = {
    "calls": "calls",
    "files": "files",
    "looks": "calls of stat",
    "system calls": "reads and writes",
    "statements": "SQL statements",
    "requests": "requests",
}
"""Units of counts, and their heads; all counts of a unit together."""


def table(head: list[str], rows: list[list[str]]) -> str:
    """Rows of Markdown below their heads."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def support_table(workflows: Path = _WORKFLOWS) -> str:
    """Return a table of what the public runners test, from their workflows."""
    each = _jobs_of(workflows / "test.yml")["default"]
    versions = _jobs_of(workflows / "nightly.yml")["versions"]["strategy"]["matrix"]
    (python,) = _given(each, "python-version")
    (java,) = _given(each, "java-version")
    each_change = f"`.ci/run` on {_SYSTEMS[each['runs-on']]}, Python {python}"
    return table(
        ["", "tested every night, in every combination"],
        [
            ["PySpark", f"{', '.join(versions['spark'])} (4.3 needs Python 3.11)"],
            ["Python", ", ".join(versions["python"])],
            ["system", ", ".join(_SYSTEMS[name] for name in versions["system"])],
            ["Java", java],
            ["with each change", each_change],
        ],
    )


def _jobs_of(workflow: Path) -> dict[str, Any]:
    jobs: dict[str, Any] = yaml.safe_load(workflow.read_text())["jobs"]
    return jobs


def _given(job: dict[str, Any], name: str) -> list[str]:
    return [step["with"][name] for step in job["steps"] if name in step.get("with", {})]


def is_beside_a_peer(line: Figure) -> bool:
    """Return True if a figure compares a connector of this package with its alternative."""
    _, _, theirs = line.name.partition(" / ")
    return line.unit == "x" and theirs.split(",")[0] in _PEERS and "bare" not in line.name


def ratios_table(recorded: Results) -> str:
    """Return a table of the ratios to other connectors, and of the figures that miss a goal.

    Of a benchmark with goals, ratios without one are left out: they are variants.
    """
    figures = [
        (name, line)
        for name, line in recorded.figures()
        if "bare" not in line.name and (line.goal or name not in _SCALING)
    ]
    with_goals = {name for name, line in figures if line.goal}
    rows = [
        (name, line)
        for name, line in figures
        if (is_beside_a_peer(line) and (line.goal or name not in with_goals))
        or (line.goal and not line.met)
    ]
    return _figures_table(rows)


def selected_ratios_table(recorded: Results, wanted: Collection[tuple[str, str]]) -> str:
    """Return a table of the ratios whose benchmark and name are in `wanted`."""
    return _figures_table(
        [(name, line) for name, line in recorded.figures() if (name, line.name) in wanted]
    )


def _figures_table(figures: Iterable[tuple[str, Figure]]) -> str:
    return table(
        ["benchmark", "figure", "median", "95 % interval", "goal"],
        [
            [f"`{name}`", _quantity(line), words.middle(line), words.spread(line), words.goal(line)]
            for name, line in figures
        ],
    )


def _quantity(line: Figure) -> str:
    """Return the name of a figure without the names of format and peer, if those are the same."""
    if not is_beside_a_peer(line):
        return line.name
    parts = [part for part in line.name.split(", ") if not _SAME.fullmatch(part)]
    return ", ".join(parts if parts[0] in {"speed", "trigger"} else ["speed", *parts])


def counts_table(record: Record) -> str:
    """Return the cost of an epoch of each sink, as ``./run bench --counts --record`` stores it."""
    rows = []
    for name, counts in record.cases.items():
        kind, _, sink = name.partition(".")
        if kind == "sink":
            rows.append([f"`{sink}`", *(_summed(counts, unit) for unit in _COUNTED)])
    return table(["an epoch of", *_COUNTED.values()], rows)


def _summed(counts: dict[str, dict[str, Any]], unit: str) -> str:
    values = [
        newest_of(kept)
        for name, kept in counts.items()
        if kept["unit"].removesuffix(" beside a broker") == unit and not name.endswith(", later")
    ]
    return words.number(sum(values)) if values else "-"
