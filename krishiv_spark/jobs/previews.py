"""Rows and plans that are shown before a job starts. Driver."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from krishiv_spark.jobs.ready import ReadyJob
from krishiv_spark.jobs.views import make_views, with_samples
from krishiv_spark.queries.failures import failure_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["show_plans", "show_rows"]

_SAMPLED = 1_000
"""Rows of each stream that previews are made of; of these, steps may leave few."""


def show_rows(spark: SparkSession, job: ReadyJob, say: Callable[[str], object]) -> None:
    """Show some rows of each view, from the beginnings of the streams, which are not moved.

    Args:
        spark: A session of its own, since the views get its names.
        job: Says how many rows.
        say: Given each line.
    """
    lines = job.model.show_preview_lines

    def show(name: str, frame: DataFrame) -> None:
        say(f"{job.name}: {name}, from the first {_SAMPLED} rows of each stream")
        _say_printed(say, lambda: frame.show(lines, truncate=60))

    if lines:
        _look(spark, job, say, show, _SAMPLED)


def show_plans(spark: SparkSession, job: ReadyJob, say: Callable[[str], object]) -> None:
    """Show the plan of each output, with streams as batches; arguments as `show_rows`.

    Spark explains no stream over views: to it, that would be to run it as a batch.
    """

    def explain(name: str, frame: DataFrame) -> None:
        for output in job.outputs:
            if output.model.source == name:
                say(f"{job.name}: plan of {output.model.name}")
                _say_printed(say, frame.explain)

    if job.model.explain:
        _look(spark, job, say, explain, None)


def _look(
    spark: SparkSession,
    job: ReadyJob,
    say: Callable[[str], object],
    see: Callable[[str, DataFrame], object],
    rows: int | None,
) -> None:
    from pyspark.errors import PySparkException

    try:
        make_views(spark, job, with_samples(spark, job, rows), see)
    except PySparkException as error:
        # Of a source that only streams; what is wrong with the job is said when it starts.
        say(f"{job.name}: cannot be shown: {failure_of(error).line}")


def _say_printed(say: Callable[[str], object], function: Callable[[], object]) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        function()
    for line in text.getvalue().rstrip().split("\n"):
        say(line)
