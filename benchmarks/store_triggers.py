"""The duration of one trigger from Kafka into a bucket with next to nothing to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.check import totals
from benchmarks.measure import Figure, expect, figure, ratios
from benchmarks.peer import KAFKA, S3A
from benchmarks.stores import Place
from benchmarks.topics import NUMBER, OURS, THEIRS
from benchmarks.trigger import ROWS, Sink, batches, figures, measured

__all__ = ["trigger"]

_S3, _DISK, _SPARK = "krishiv-parquet, S3", "krishiv-parquet, disk", "parquet, S3"
_TASKS = 2
_ROWS = 100_000
"""In the topic: more than all triggers together take; the last batch has the rest."""


@benchmark("store.trigger", peers=(KAFKA, S3A))
def trigger(run: Run) -> Iterator[Figure]:
    """Tiny batches from a topic into a table: ours in S3 and on a disk, and Spark's own in S3.

    Each has its checkpoint beside its table, and the source of its own family.
    """
    bucket, spark = run.bucket(), run.spark()
    bucket.tell(spark)
    ours, theirs = bucket.place(), bucket.place()
    with scratch(run.folder) as folder, run.kafka().topic(_TASKS) as topic:
        run.kafka().fill(spark, topic, _ROWS, 100)
        in_bucket = {**bucket.options(), "path": f"{ours.url}/table"}
        sinks = {
            _SPARK: _sink(run, _SPARK, theirs.url, {"path": f"{theirs.url}/table"}, topic),
            _DISK: _sink(run, _DISK, f"{folder}", {"path": f"{folder}/table"}, topic),
            _S3: _sink(run, _S3, ours.url, in_bucket, topic),
        }
        medians = measured(run, sinks)
        _verify(spark, sinks, ours, folder)
        yield from figures(sinks)
    for other in (_SPARK, _DISK):
        times = ratios(medians[_S3], medians[other])
        yield figure(f"trigger, {_S3} / {other}", "x", times, smaller=True)


def _sink(run: Run, name: str, folder: str, options: dict[str, str], topic: str) -> Sink:
    source = THEIRS if name == _SPARK else OURS
    return Sink(
        name,
        folder,
        batches(run),
        options,
        columns=(f"{NUMBER} AS value",),
        source=_rows_of(run, source, topic),
    )


def _rows_of(run: Run, source: str, topic: str) -> Callable[[Any, bool], Any]:
    def rows(spark: Any, last: bool) -> Any:
        limit = {} if last else {"maxOffsetsPerTrigger": str(ROWS)}
        return run.kafka().stream(spark, source, topic, **limit)

    return rows


def _verify(spark: Any, sinks: dict[str, Sink], ours: Place, folder: Path) -> None:
    """All rows of the topic, each once; in Spark's own table for its own source, as elsewhere."""
    sinks[_S3].expect_whole(*ours.totals("value"))
    sinks[_DISK].expect_whole(*totals(folder, "value"))
    rows = spark.read.parquet(sinks[_SPARK].options["path"])
    sinks[_SPARK].expect_whole(*rows.selectExpr("count(*)", "sum(value)").first())
    expect("rows of the topic", rows.count(), _ROWS)
