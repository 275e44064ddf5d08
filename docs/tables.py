"""Tables of the pages that come from figures and from what the public runners run."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.counts.record import Record, newest_of
from benchmarks.measure import Figure
from benchmarks.report.results import Results
from benchmarks.report.words import number

__all__ = [
    "bad_inputs",
    "counts_table",
    "is_beside_a_peer",
    "runs_table",
    "support_table",
    "table",
]

_WORKFLOW = Path(__file__).parent.parent / ".github" / "workflows" / "test.yml"
_BAD_INPUTS = Path(__file__).parent / "bad-inputs.json"
_WIDTH = 80
_PEERS = {"kafka", "iceberg", "parquet", "console", "memory", "Spark's"}
_SYSTEMS = {"ubuntu-latest": "Linux (Ubuntu)", "macos-latest": "macOS"}


_COUNTED = {
    "calls": "calls",
    "files": "files",
    "looks": "looks at files",
    "system calls": "reads and writes",
    "statements": "SQL statements",
    "requests": "requests",
}
"""Units of counts, and their heads; all counts of a unit together."""


def table(head: list[str], rows: list[list[str]]) -> str:
    """Rows of Markdown below their heads."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def support_table(workflow: Path = _WORKFLOW) -> str:
    """Return a table of what the public runners test, from their workflow."""
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    each, versions = jobs["default"], jobs["versions"]["strategy"]["matrix"]
    (python,) = _given(each, "python-version")
    (java,) = _given(each, "java-version")
    each_change = f"`.ci/run` on {_SYSTEMS[each['runs-on']]}, Python {python}"
    return table(
        ["", "tested, in every combination"],
        [
            ["PySpark", f"{', '.join(versions['spark'])} (4.3 needs Python 3.11)"],
            ["Python", ", ".join(versions["python"])],
            ["system", ", ".join(_SYSTEMS[name] for name in versions["system"])],
            ["Java", java],
            ["with each change", each_change],
        ],
    )


def _given(job: dict[str, Any], name: str) -> list[str]:
    return [step["with"][name] for step in job["steps"] if name in step.get("with", {})]


def is_beside_a_peer(line: Figure) -> bool:
    """Whether a figure is the ratio of one of ours to what a user would pick instead."""
    _, _, theirs = line.name.partition(" / ")
    return line.unit == "x" and theirs.split(",")[0] in _PEERS and "bare" not in line.name


def runs_table(recorded: Results) -> str:
    """Return a table of the runs in which the figures of a record were measured."""
    rows = []
    for key, run in recorded.taken.items():
        names = [f"`{n}`" for n, one in recorded.benchmarks.items() if one.taken == key]
        commit = f"{run.commit[:10]}{', with changes' if run.changed else ''}"
        used = [run.versions["pyspark"], run.machine.processor]
        rows.append([f"{run.date:%Y-%m-%d}", commit, *used, ", ".join(names)])
    return table(["date", "commit", "PySpark", "processor", "benchmarks"], rows)


def bad_inputs(classes: Collection[str], seen: Path = _BAD_INPUTS) -> str:
    """A section for each bad input, as the test of it has recorded what it saw.

    Args:
        classes: Names of the errors that docs/errors.md has a section of.
        seen: What was recorded.
    """
    return "\n".join(_bad_inputs(json.loads(seen.read_text()), classes)) + "\n"


def _bad_inputs(seen: dict[str, dict[str, str]], classes: Collection[str]) -> Iterator[str]:
    group = ""
    for name, case in seen.items():
        if case["group"] != group:
            group = case["group"]
            yield from ("", f"## {group}")
        yield from ("", f"### {name[0].upper()}{name[1:]}", "")
        yield from _wrapped(f"A {case['query']}; {case['soon']}:")
        yield from ("", "```text", *_wrapped(case["line"]), "```", "")
        yield from _wrapped(
            f"Kept: {case['kept']}. Mended by: {case['cure']}.{_link(case, classes)}"
        )


def _link(case: dict[str, str], classes: Collection[str]) -> str:
    named = [word for word in re.findall(r"\b([A-Za-z]+): ", case["line"]) if word in classes]
    return f" See [{named[0]}](errors.md#{named[0].lower()})." if named else ""


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def counts_table(record: Record) -> str:
    """What an epoch of each sink costs, as ``./run bench --counts --record`` keeps it."""
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
    return number(sum(values)) if values else "-"
