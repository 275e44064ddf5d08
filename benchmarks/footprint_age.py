"""The memory of a query's Python processes after hundreds and thousands of epochs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.apart import apart
from benchmarks.bench import Run, benchmark, scratch
from benchmarks.footprint import count_memory, start_query
from benchmarks.listing import small_files
from benchmarks.measure import Figure, Goal, Wrong, figure, slope
from benchmarks.resident_spark import count_epochs
from benchmarks.session import start

__all__ = ["age"]

_KIND = "krishiv-parquet"
_EVERY = 20
"""Epochs between two measurements."""

_STALLED_S = 300
"""A query without a new epoch for this long has failed."""

_GOAL = 1.05


@benchmark("footprint.age", long=True, sizes=("epochs",))
def age(run: Run) -> Iterator[Figure]:
    """Memory (PSS) of a query's Python processes at epochs 300 and 3 000, after `fast_start`.

    The trigger has no interval. Each figure is the median of the measurements in the 100 epochs
    that end there.
    """
    last = run.size("epochs", 3_000, 200)
    first = max(last // 10, 100)
    run.told(f"{last} epochs")
    with scratch(run.folder) as folder:
        seen = apart(_measure, folder, last)
    younger, older = (_median_before(seen, epoch) for epoch in (first, last))
    yield figure(f"epoch {first}", "MB", [younger], smaller=True)
    yield figure(f"epoch {last}", "MB", [older], smaller=True)
    yield figure(f"epoch {last} / epoch {first}", "x", [older / younger], Goal(_GOAL), smaller=True)
    settled = {epoch: [held] for epoch, held in seen.items() if epoch >= first}
    yield figure("for 10 000 epochs more", "MB", [10_000 * slope(settled)], smaller=True)


def _median_before(seen: dict[int, float], last: int) -> float:
    return statistics.median(held for epoch, held in seen.items() if last - 100 <= epoch <= last)


def _measure(folder: Path, epochs: int) -> dict[int, float]:
    """Run a query in a driver of this process; return its memory in MB, by epoch."""
    session = start(folder, fast=["parquet"])
    small_files(folder / "source", epochs)
    query = start_query(session, folder, _KIND, 0, trigger_s=0)
    jvm = psutil.Process(session.sparkContext._gateway.proc.pid)  # noqa: SLF001  as `Costs` has it
    seen: dict[int, float] = {}
    for epoch in _follow(query, epochs):
        if epoch >= max(seen, default=0) + _EVERY or epoch == epochs:
            seen[epoch] = count_memory(jvm).pss
    query.stop()
    session.stop()
    return seen


def _follow(query: Any, epochs: int) -> Iterator[int]:
    """Yield the number of completed epochs whenever it has grown."""
    before, until = 0, time.monotonic() + _STALLED_S
    while before < epochs:
        if (epoch := count_epochs(query)) > before:
            before, until = epoch, time.monotonic() + _STALLED_S
            yield epoch
        if time.monotonic() > until or query.exception() is not None:
            raise Wrong(f"the query ended after {before} epochs of {epochs}: {query.exception()}")
        time.sleep(0.05)
