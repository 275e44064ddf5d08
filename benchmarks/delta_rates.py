"""Tables of Delta: tiny batches and large ones beside delta-spark, and epochs per second."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench import MEMORY, Run, benchmark, scratch
from benchmarks.bulk import Job, compared, rows_of
from benchmarks.commits import epoch_rates
from benchmarks.lives import delta_life
from benchmarks.measure import Figure, Goal, expect, figure, ratios
from benchmarks.peer import DELTA
from benchmarks.trigger import Sink, batches, figures, measured

__all__ = ["bulk", "commits", "trigger"]

_OURS, _THEIRS = "krishiv-delta", "delta"
_TRIGGER, _BULK = Goal(0.5), Goal(1.0, at_most=False)


@benchmark("delta.trigger", "deltalake", peers=(DELTA,), alone=True)
def trigger(run: Run) -> Iterator[Figure]:
    """Tiny batches, one after the other, against Delta's own sink."""
    with scratch(run.folder) as folder:
        sinks = {
            name: Sink(name, folder / name, batches(run), {"path": f"{folder / name}/table"})
            for name in _names(run)
        }
        medians = measured(run, sinks)
        for sink in sinks.values():
            sink.expect_whole(*_totals(sink.table, "value"))
        yield from figures(sinks)
    if _THEIRS in medians:
        beside = ratios(medians[_OURS], medians[_THEIRS])
        yield figure(f"trigger, {_OURS} / {_THEIRS}", "x", beside, _TRIGGER)


@benchmark("delta.bulk", "deltalake", peers=(DELTA,), alone=True)
def bulk(run: Run) -> Iterator[Figure]:
    """Compare a batch of 10 million rows of about 110 bytes with Delta's own connector."""
    with scratch(run.folder) as folder:
        jobs = {name: _job(name, folder / name) for name in _names(run)}
        yield from compared(run, jobs, lambda count: rows_of(run.spark(), count, 1), _BULK)


@benchmark("commits.delta", "deltalake")
def commits(run: Run) -> Iterator[Figure]:
    """Epochs per second of the Delta sink, in memory and on the disk."""
    with scratch(MEMORY) as memory, scratch(run.folder) as disk:
        lives = {"tmpfs": delta_life(memory / "table"), "disk": delta_life(disk / "table")}
        rates = epoch_rates(run, lives)
        for life in lives.values():
            expect("rows and sum of ids", _totals(Path(life.options["path"]), "id"), life.rows)
    for name in lives:
        yield figure(f"{_OURS}, 1 task, {name}", "epochs/s", rates[name])


def _names(run: Run) -> tuple[str, ...]:
    return (_OURS,) if DELTA in run.absent else (_OURS, _THEIRS)


def _job(name: str, table: Path) -> Job:
    def write(rows: Any) -> None:
        rows.write.format(name).mode("append").save(str(table))

    return Job(write, lambda: _totals(table, "id"), lambda: shutil.rmtree(table))


def _totals(table: Path, column: str) -> tuple[int, int]:
    """Return the number of rows of a table and the sum of a column, by the library."""
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    rows = DeltaTable(str(table)).to_pyarrow_dataset().to_table(columns=[column])
    return rows.num_rows, pc.sum(rows[column]).as_py()
