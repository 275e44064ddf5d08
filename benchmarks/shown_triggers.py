"""How long one trigger into the memory and console sinks takes, beside Spark's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.check import memory_totals
from benchmarks.measure import Figure, expect, figure, ratios
from benchmarks.trigger import ROWS, Sink, batches, figures, measured

__all__ = ["console", "memory"]

_PRINTED_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)


@benchmark("memory.trigger", "krishiv_spark.sinks.memory")
def memory(run: Run) -> Iterator[Figure]:
    """Tiny batches into memory, one after the other, against Spark's own sink.

    Spark's forgets its rows with the query and cannot go on from a checkpoint; ours can.
    """
    with scratch(run.folder) as folder:
        sinks = _pair(run, folder, "memory")
        ours, theirs = sinks["krishiv-memory"], sinks["memory"]
        yield from _compared(run, sinks, "memory")
        ours.expect_whole(*memory_totals("benchmark", "value"))
        row = run.spark().table(theirs.query).selectExpr("count(*)", "sum(value)").first()
        expect("rows and sum of the last query", tuple(row), (ROWS, ROWS * (ROWS - 1) // 2))


@benchmark("console.trigger")
def console(run: Run) -> Iterator[Figure]:
    """Tiny batches onto the console (a file here), in turn with Spark's own sink."""
    with scratch(run.folder) as folder:
        sinks = _pair(run, folder, "console")
        yield from _compared(run, sinks, "console")
        for name in ("console", "krishiv-console"):
            before = run.printed.stat().st_size
            sinks[name].finish(run.spark())
            expect(f"{name}, lines of a table", _printed(run.printed, before), ROWS + 1)


def _pair(run: Run, folder: Path, kind: str) -> dict[str, Sink]:
    """Spark's own, which does not go on from a checkpoint, and ours."""
    given: dict[str, dict[str, str]] = {
        "noop": {},
        kind: {"numRows": str(ROWS)} if kind == "console" else {},
        f"krishiv-{kind}": {"numRows": str(ROWS)} if kind == "console" else {"name": "benchmark"},
    }
    return {
        name: Sink(name, folder / name, batches(run), options, resumes=name != kind)
        for name, options in given.items()
    }


def _compared(run: Run, sinks: dict[str, Sink], kind: str) -> Iterator[Figure]:
    medians: dict[str, Any] = measured(run, sinks)
    yield from figures(sinks)
    times = ratios(medians[f"krishiv-{kind}"], medians[kind])
    yield figure(f"trigger, krishiv-{kind} / {kind}", "x", times, smaller=True)


def _printed(file: Path, begin: int) -> int:
    """How many lines of tables have been printed since."""
    return len(_PRINTED_ROW.findall(file.read_bytes()[begin:].decode()))
