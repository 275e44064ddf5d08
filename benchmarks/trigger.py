"""The duration of one trigger with next to nothing to write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.check import totals
from benchmarks.measure import Figure, Goal, each_once, expect, figure, in_turn, ratios
from benchmarks.peer import DELTA

__all__ = ["ROWS", "Sink", "batches", "figures", "measured", "trigger"]

ROWS = 100
"""In a batch."""

_SKIPPED = 3  # the first batches of a round start planner, workers and commit process
_GOAL = Goal(1.0)


@dataclass
class Sink:
    """One format and the query that writes to it, again and again, from one checkpoint.

    Attributes:
        name: What it is called: the format, and more where a format is measured twice.
        folder: Of its table and its checkpoint, or a URL.
        batches: How many batches to measure in a round.
        options: Of its writer.
        columns: Expressions over the columns ``value`` and ``timestamp``.
        rows: In a batch.
        parts: Tasks of a batch.
        resumes: Whether a query goes on from its checkpoint; otherwise each has a new one.
        source: Makes the stream by the session, and by whether it is for the last batch, which
            takes what is left; None for Spark's rate-micro-batch.
        times: What Spark reported for each measured batch, in milliseconds.
        started: Number of queries so far.
    """

    name: str
    folder: Path | str
    batches: int
    options: Mapping[str, str] = field(default_factory=dict)
    columns: Sequence[str] = ("*",)
    rows: int = ROWS
    parts: int = 2
    resumes: bool = True
    source: Callable[[Any, bool], Any] | None = None
    times: list[dict[str, int]] = field(default_factory=list)
    started: int = 0

    @property
    def table(self) -> Path:
        """Return the folder of the rows, on a disk."""
        return Path(self.folder) / "table"

    def round(self, spark: Any) -> float:
        """Run the query for a number of batches; median of its triggers."""
        query = self._start(spark, processingTime="0 seconds")
        seen: dict[int, dict[str, int]] = {}
        try:
            while len(seen) < _SKIPPED + self.batches:
                time.sleep(0.3)
                seen |= {p.batchId: p.durationMs for p in query.recentProgress}
                _alive(query)
        finally:
            query.stop()
        taken = [seen[batch] for batch in sorted(seen)][_SKIPPED:]
        self.times.extend(taken)
        return figure(self.name, "ms", [t["triggerExecution"] for t in taken]).median

    def finish(self, spark: Any) -> None:
        """One last batch that is not stopped midway, after which the output is whole."""
        query = self._start(spark, last=True, availableNow=True)
        query.awaitTermination()
        _alive(query)

    def of(self, *phases: str) -> list[float]:
        """Return the measured times of some phases of a trigger together."""
        return [float(sum(times.get(phase, 0) for phase in phases)) for times in self.times]

    def expect_whole(self, rows: int, total: int) -> None:
        """Check that the values are those from 0 on, each once, by their number and sum."""
        self.expect_batches(rows)
        expect(f"{self.name}, rows and their sum", (rows, total), each_once(rows))

    def expect_batches(self, rows: int) -> None:
        """Check that the rows are those of whole batches, and include all measured ones."""
        expect(f"{self.name}, enough rows", rows >= len(self.times) * self.rows, wanted=True)
        expect(f"{self.name}, rows in whole batches", rows % self.rows, 0)

    @property
    def query(self) -> str:
        """Name of the last query, where each has one of its own."""
        return f"{self.name}_{self.started}"

    def _start(self, spark: Any, *, last: bool = False, **trigger: Any) -> Any:
        self.started += 1
        made = self.source(spark, last) if self.source else _rows(spark, self.rows, self.parts)
        writer = (
            made.selectExpr(*self.columns)
            .writeStream.format(self.name.partition(",")[0])
            .trigger(**trigger)
        )
        if not self.resumes:
            writer = writer.queryName(self.query)
        place = "checkpoint" if self.resumes else f"checkpoint-{self.started}"
        writer = writer.option("checkpointLocation", f"{self.folder}/{place}")
        return writer.options(**self.options).start()


@benchmark("parquet.trigger", peers=(DELTA,), alone=True)
def trigger(run: Run) -> Iterator[Figure]:
    """Tiny batches, one after the other, against Spark's own sink and Delta's.

    Rows come from Spark's rate-micro-batch source, so that each trigger has the same few.
    """
    with scratch(run.folder) as folder:
        sinks = _sinks(run, folder)
        medians = measured(run, sinks)
        for name, sink in sinks.items():
            if name != "noop":
                sink.expect_whole(*_totals(sink, run.spark()))
        yield from figures(sinks)
    yield figure(
        "trigger, krishiv-parquet / parquet",
        "x",
        ratios(medians["krishiv-parquet"], medians["parquet"]),
        _GOAL,
    )


def _sinks(run: Run, folder: Path) -> dict[str, Sink]:
    delta = () if DELTA in run.absent else ("delta",)
    names = ("noop", "parquet", *delta, "krishiv-parquet")
    places = {name: folder / name for name in names}
    given = {name: {"path": f"{place}/table"} for name, place in places.items() if name != "noop"}
    return {n: Sink(n, place, batches(run), given.get(n, {})) for n, place in places.items()}


def batches(run: Run) -> int:
    """Return the number of batches of a round that are measured."""
    return 10 if run.quick else 15


def measured(run: Run, sinks: Mapping[str, Sink]) -> dict[str, list[float]]:
    """Return the median trigger of each round, after a round that warms up."""
    spark = run.spark()
    variants = {name: lambda sink=sink: sink.round(spark) for name, sink in sinks.items()}
    in_turn(1, variants, lambda what: run.told(f"warming up: {what}"))
    for sink in sinks.values():
        sink.times.clear()
    medians = in_turn(3 if run.quick else 5, variants, run.told)
    for sink in sinks.values():
        sink.finish(spark)
    return medians


def _rows(spark: Any, rows: int, parts: int) -> Any:
    reader = spark.readStream.format("rate-micro-batch")
    return reader.option("rowsPerBatch", rows).option("numPartitions", parts).load()


def _alive(query: Any) -> None:
    if query.exception() is not None:
        raise query.exception()


def _totals(sink: Sink, spark: Any) -> tuple[int, int]:
    if sink.name == "krishiv-parquet":
        return totals(sink.table, "value")
    # A stopped batch leaves files in a table of Spark's, which only its own source ignores.
    rows = spark.read.format(sink.name).load(str(sink.table))
    row = rows.selectExpr("count(*)", "sum(value)").first()
    return row[0], row[1]


def figures(sinks: Mapping[str, Sink]) -> Iterator[Figure]:
    """Yield the triggers of all rounds, and their parts in the sink and the checkpoint."""
    for name, sink in sinks.items():
        yield figure(f"trigger, {name}", "ms", sink.of("triggerExecution"))
        yield figure(f"addBatch, {name}", "ms", sink.of("addBatch"))
        yield figure(f"Spark's own logs, {name}", "ms", sink.of("walCommit", "commitOffsets"))
