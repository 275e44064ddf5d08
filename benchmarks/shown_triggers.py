"""The duration of one trigger into the memory and console sinks, beside Spark's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.check import memory_totals
from benchmarks.measure import Figure, each_once, expect, figure, ratios
from benchmarks.trigger import ROWS, Sink, batches, figures, measured

__all__ = ["console", "memory"]

_PRINTED_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)


@benchmark("memory.trigger", "krishiv_spark.sinks.memory")
def memory(run: Run) -> Iterator[Figure]:
    """Tiny batches into memory, one after the other, against Spark's own sink.

    Spark's forgets its rows with the query and cannot go on from a checkpoint; ours can.
    """
    with scratch(run.folder) as folder:
        sinks = _pair(run, folder, "memory", name="benchmark")
        ours, theirs = sinks["krishiv-memory"], sinks["memory"]
        yield from _compared(run, sinks, "memory")
        ours.expect_whole(*memory_totals("benchmark", "value"))
        row = run.spark().table(theirs.query).selectExpr("count(*)", "sum(value)").first()
        expect("rows and sum of the last query", tuple(row), each_once(ROWS))


@benchmark("console.trigger")
def console(run: Run) -> Iterator[Figure]:
    """Tiny batches onto the console (a file here), in turn with Spark's own sink."""
    with scratch(run.folder) as folder:
        sinks = _pair(run, folder, "console", numRows=str(ROWS))
        yield from _compared(run, sinks, "console")
        for name in ("console", "krishiv-console"):
            before = run.printed.stat().st_size
            sinks[name].finish(run.spark())
            expect(f"{name}, lines of a table", _printed(run.printed, before), ROWS + 1)


def _pair(run: Run, folder: Path, kind: str, **options: str) -> dict[str, Sink]:
    """Spark's own, which does not go on from a checkpoint, and ours; beside the no-op sink.

    Each is given all options; Spark passes over those that it does not know.
    """
    names = ("noop", kind, f"krishiv-{kind}")
    given = {name: {} if name == "noop" else options for name in names}
    return {
        name: Sink(name, folder / name, batches(run), given[name], resumes=name != kind)
        for name in names
    }


def _compared(run: Run, sinks: dict[str, Sink], kind: str) -> Iterator[Figure]:
    medians = measured(run, sinks)
    yield from figures(sinks)
    times = ratios(medians[f"krishiv-{kind}"], medians[kind])
    yield figure(f"trigger, krishiv-{kind} / {kind}", "x", times, smaller=True)


def _printed(file: Path, begin: int) -> int:
    """Return the number of lines of tables that were printed since."""
    return len(_PRINTED_ROW.findall(file.read_bytes()[begin:].decode()))
