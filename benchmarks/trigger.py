"""How long one trigger takes when there is next to nothing to write."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.check import memory_totals, totals
from benchmarks.measure import Figure, Goal, expect, figure, in_turn, ratios

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
        folder: Of its table and its checkpoint.
        batches: How many batches to measure in a round.
        options: Of its writer.
        columns: Expressions over the columns ``value`` and ``timestamp``.
        times: What Spark reported for each measured batch, in milliseconds.
    """

    name: str
    folder: Path
    batches: int
    options: Mapping[str, str] = field(default_factory=dict)
    columns: Sequence[str] = ("*",)
    times: list[dict[str, int]] = field(default_factory=list)

    @property
    def table(self) -> Path:
        """Where the rows go."""
        return self.folder / "table"

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
        query = self._start(spark, availableNow=True)
        query.awaitTermination()
        _alive(query)

    def of(self, phase: str) -> list[float]:
        """The measured times of one phase of a trigger."""
        return [float(times.get(phase, 0)) for times in self.times]

    def _start(self, spark: Any, **trigger: Any) -> Any:
        rows = _rows(spark).selectExpr(*self.columns)
        writer = rows.writeStream.format(self.name.partition(",")[0]).trigger(**trigger)
        writer = writer.option("checkpointLocation", f"{self.folder}/checkpoint")
        return writer.options(**self.options).start()


@benchmark("parquet.trigger")
def trigger(run: Run) -> Iterator[Figure]:
    """Tiny batches, one after the other, against Spark's own sinks.

    Rows come from Spark's rate-micro-batch source, so that each trigger has the same few.
    """
    with scratch(run.folder) as folder:
        sinks = _sinks(folder, batches(run))
        medians = measured(run, sinks)
        for sink in sinks.values():
            _verify(sink, run.spark())
        yield from figures(sinks)
    yield figure(
        "trigger, krishiv-parquet / parquet",
        "x",
        ratios(medians["krishiv-parquet"], medians["parquet"]),
        _GOAL,
    )


def _sinks(folder: Path, count: int) -> dict[str, Sink]:
    names = ("noop", "parquet", "krishiv-parquet", *_others())
    return {name: Sink(name, folder / name, count, _options(name, folder / name)) for name in names}


def _options(name: str, folder: Path) -> dict[str, str]:
    if name.endswith("parquet"):
        return {"path": f"{folder}/table"}
    return {"name": name} if name.endswith("memory") else {}


def _others() -> Sequence[str]:
    from krishiv_spark.formats import FORMATS

    return [f.format_name for f in FORMATS if f.format_name == "krishiv-memory"]


def batches(run: Run) -> int:
    """How many batches of a round are measured."""
    return 15 if run.quick else 30


def measured(run: Run, sinks: Mapping[str, Sink]) -> dict[str, list[float]]:
    """The median trigger of each round, after a round that warms up."""
    spark = run.spark()
    variants = {name: lambda sink=sink: sink.round(spark) for name, sink in sinks.items()}
    in_turn(1, variants, lambda what: run.told(f"warming up: {what}"))
    for sink in sinks.values():
        sink.times.clear()
    medians = in_turn(3 if run.quick else 6, variants, run.told)
    for sink in sinks.values():
        sink.finish(spark)
    return medians


def _rows(spark: Any) -> Any:
    reader = spark.readStream.format("rate-micro-batch")
    return reader.option("rowsPerBatch", ROWS).option("numPartitions", 2).load()


def _alive(query: Any) -> None:
    if query.exception() is not None:
        raise query.exception()


def _verify(sink: Sink, spark: Any) -> None:
    """All values from 0 on, each once: their number tells their sum."""
    if sink.name == "noop":
        return
    rows, total = _totals(sink, spark)
    expect(f"{sink.name}, enough rows", rows >= len(sink.times) * ROWS, wanted=True)
    expect(f"{sink.name}, rows in whole batches", rows % ROWS, 0)
    expect(f"{sink.name}, sum of {rows} rows", total, rows * (rows - 1) // 2)


def _totals(sink: Sink, spark: Any) -> tuple[int, int]:
    if sink.name == "krishiv-parquet":
        return totals(sink.table, "value")
    if sink.name == "krishiv-memory":
        return memory_totals(sink.name, "value")
    # Spark's own: a stopped batch leaves files in the table, which only Spark knows to ignore.
    row = spark.read.parquet(str(sink.table)).selectExpr("count(*)", "sum(value)").first()
    return row[0], row[1]


def figures(sinks: Mapping[str, Sink]) -> Iterator[Figure]:
    """The triggers of all rounds, and the part of them that the sink takes."""
    for name, sink in sinks.items():
        yield figure(f"trigger, {name}", "ms", sink.of("triggerExecution"))
        yield figure(f"addBatch, {name}", "ms", sink.of("addBatch"))
