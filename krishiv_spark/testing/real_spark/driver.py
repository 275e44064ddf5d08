"""Runs a connector on real Spark, in a driver process of its own that is killed at will."""

from __future__ import annotations

import os
import random
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_spark.sinks.base import Guarantee
from krishiv_spark.testing.processes.elsewhere import START, homes_of, package_path
from krishiv_spark.testing.processes.pickling import pickled
from krishiv_spark.testing.real_spark.job import SparkJob, run
from krishiv_spark.testing.real_spark.process import DriverProcess
from krishiv_spark.testing.rows import Row, columns, numbers_of
from krishiv_spark.testing.rules import Broken, Rule, Violation
from krishiv_spark.testing.subjects import SinkUnderTest, SourceUnderTest

__all__ = ["SparkDriver"]

_FILES, _ROWS = 8, 20
_KILLS = 3
_PATIENCE_SECONDS = 600
_LONGEST_LIFE_SECONDS = 4.0
_SHOWN_LINES = 40


class SparkDriver:
    """Cases on real Spark for one connector.

    Args:
        folder: An empty folder for inputs and checkpoints.
        promise: What the case is after, for the message of a failure.
    """

    def __init__(self, folder: Path, promise: str) -> None:
        self._folder, self._promise = folder, promise
        self._log = folder / "driver.log"
        self._seed = secrets.randbits(32)
        self._random = random.Random(self._seed)  # noqa: S311  moments of death, no secret

    def stream_into(self, sink: SinkUnderTest, *, complete: bool = False) -> None:
        """Stream rows into a sink: tasks fail, the driver is killed; then compare."""
        job = self._sink_job(sink, "stream_to", mode="complete" if complete else "append")
        self._run_and_kill(job)
        self._compare_sink(sink, _FILES * _ROWS)

    def batch_into(self, sink: SinkUnderTest) -> None:
        """Append, then overwrite if it can, with ``df.write``."""
        job = self._sink_job(sink, "batch_to", mode="append")
        self._run(job)
        self._compare_sink(sink, _FILES * _ROWS)
        if sink.overwrite:
            self._run(job.of(mode="overwrite"))
            self._compare_sink(sink, _FILES * _ROWS)

    def stream_from(self, source: SourceUnderTest) -> None:
        """Stream rows from a source while more are added and the driver is killed; compare."""
        job = self._job(source, "stream_from")
        added = self._add(source, 0)
        for _ in range(_KILLS):
            with self._started(job) as process:
                added = self._add(source, added)
                self._live_on(process)
        self._run(job)
        self._compare(numbers_of(self._result(), source.schema, source.row, added), added)

    def batch_from(self, source: SourceUnderTest) -> None:
        """Read everything with ``spark.read``."""
        added = self._add(source, self._add(source, 0))
        self._run(self._job(source, "batch_from"))
        self._compare(numbers_of(self._result(), source.schema, source.row, added), added)

    # --- jobs

    def _job(self, subject: SinkUnderTest | SourceUnderTest, kind: str) -> SparkJob:
        return SparkJob(
            kind=kind,
            source=subject.source,
            options=dict(subject.options),
            schema=subject.schema,
            folder=str(self._folder),
        )

    def _sink_job(self, sink: SinkUnderTest, kind: str, mode: str) -> SparkJob:
        inputs = self._folder / "input"
        inputs.mkdir()
        for number in range(_FILES):
            first = number * _ROWS
            rows = [sink.row(n) for n in range(first, first + _ROWS)]
            pq.write_table(_table(sink.schema, rows), inputs / f"{number:05}.parquet")
        return self._job(sink, kind).of(mode=mode)

    def _add(self, source: SourceUnderTest, first: int) -> int:
        for number in range(first, first + _ROWS, 4):
            source.add([source.row(n) for n in range(number, number + 4)])
        return first + _ROWS

    def _result(self) -> Any:
        return pq.read_table(self._folder / "result.parquet")

    # --- processes

    def _run_and_kill(self, job: SparkJob) -> None:
        for _ in range(_KILLS):
            with self._started(job) as process:
                self._live_on(process)
        self._run(job)

    def _live_on(self, process: DriverProcess) -> None:
        process.outlives(self._random.uniform(0.0, _LONGEST_LIFE_SECONDS))

    def _run(self, job: SparkJob) -> None:
        with self._started(job) as process:
            self._expect(process, "DONE")

    @contextmanager
    def _started(self, job: SparkJob) -> Iterator[DriverProcess]:
        with self._log.open("ab") as errors:
            process = _process(job, errors)
        with process:
            self._expect(process, "STARTED")
            yield process

    def _expect(self, process: DriverProcess, word: str) -> None:
        if not process.says(word, _PATIENCE_SECONDS):
            log = self._log.read_text(errors="replace").splitlines()
            self._break(Rule.WORKS, "\n".join(log[-_SHOWN_LINES:]))

    # --- rules

    def _compare_sink(self, sink: SinkUnderTest, written: int) -> None:
        found = sink.visible(written)
        if sink.promised is Guarantee.AT_LEAST_ONCE:
            # Its rows may be there again after a death.
            found = Counter(dict.fromkeys(found, 1))
        self._compare(found, written)

    def _compare(self, found: Counter[int | Row], written: int) -> None:
        wanted: Counter[int | Row] = Counter(range(written))
        lost, more = sorted(wanted - found, key=str), sorted(found - wanted, key=str)
        if lost:
            self._break(Rule.NO_ROW_LOST, f"lost: {lost}")
        if more:
            self._break(Rule.NO_ROW_TWICE, f"too often, or never written: {more}")

    def _break(self, rule: Rule, seen: str) -> None:
        story = [f"on real Spark, seed {self._seed}, in {self._folder}"]
        raise Broken(Violation(rule, seen), self._promise, story)


def _process(job: SparkJob, errors: IO[bytes]) -> DriverProcess:
    program = START.format(path=sys.path, homes=homes_of([job]))
    command, order = [sys.executable, "-c", program], pickled((run, (job,)))
    return DriverProcess(command, _environment(), order=order, errors=errors)


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": package_path(),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _table(schema: pa.Schema, rows: Sequence[Row]) -> pa.Table:
    return pa.table(columns(schema, rows), schema=schema)
