"""The growth of a query's Python processes under Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.check import totals
from benchmarks.listing import small_files
from benchmarks.measure import Figure, Wrong, expect, figure, slope
from benchmarks.writers import BATCH

__all__ = ["count_epochs", "spark"]

_KIND = "krishiv-parquet"
_EVERY = 20  # epochs
_SETTLED = 100
_PATIENCE_S = 300
_MEBIBYTE = 2**20


@benchmark("resident.spark", long=True)
def spark(run: Run) -> Iterator[Figure]:
    """Memory of all Python processes of a query from folder to folder, over 300 epochs."""
    epochs = 160 if run.quick else 300
    with scratch(run.folder) as folder:
        small_files(folder / "source", epochs)
        run.told(f"{epochs} epochs")
        seen = _run(run, folder, epochs)
        rows, total = BATCH.num_rows * epochs, sum(range(BATCH.num_rows)) * epochs
        expect("rows and sum of ids", totals(folder / "table", "id"), (rows, total))
    settled = {epoch: [held] for epoch, held in seen.items() if epoch >= _SETTLED}
    for epoch in (min(settled), max(settled)):
        name = f"memory that is each process's own, epoch {epoch}"
        yield figure(name, "MiB", settled[epoch], smaller=True)
    growth = [10_000 * slope(settled)]
    yield figure("for 10 000 epochs more", "MiB", growth, smaller=True)


def _run(run: Run, folder: Path, epochs: int) -> dict[int, float]:
    """By epoch, what the processes hold that no other one shares, in MiB."""
    session = run.spark()
    rows = session.readStream.format(_KIND).option("maxFilesPerTrigger", 1)
    writer = rows.load(str(folder / "source")).writeStream.format(_KIND)
    places = {"path": str(folder / "table"), "checkpointLocation": str(folder / "checkpoint")}
    query = writer.options(**places).trigger(processingTime="0 seconds").start()
    jvm = psutil.Process(session.sparkContext._gateway.proc.pid)  # noqa: SLF001  as `Costs` has it
    seen: dict[int, float] = {}
    until = time.monotonic() + _PATIENCE_S
    try:
        while (epoch := count_epochs(query)) < epochs:
            if time.monotonic() > until or query.exception() is not None:
                raise Wrong(f"{epoch} epochs of {epochs} in {_PATIENCE_S} s: {query.exception()}")
            if epoch >= max(seen, default=0) + _EVERY:
                seen[epoch] = _own_mib(jvm)
            time.sleep(0.05)
        seen[epoch] = _own_mib(jvm)
    finally:
        query.stop()
    return seen


def count_epochs(query: Any) -> int:
    """Return the number of epochs that are over."""
    progress = query.lastProgress
    return 0 if progress is None else int(progress.batchId) + bool(progress.numInputRows)


def _own_mib(jvm: psutil.Process) -> float:
    held = 0
    for process in jvm.children(recursive=True):
        try:
            held += process.memory_full_info().uss
        except psutil.Error:
            continue  # it has ended meanwhile
    return held / _MEBIBYTE
