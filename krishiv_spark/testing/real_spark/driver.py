"""A connector on real Spark, in a driver process that is killed at random moments."""

from __future__ import annotations

import contextlib
import io
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import Self

from krishiv_spark.sinks.base import Guarantee
from krishiv_spark.testing.processes.interpreters import START, homes_of, package_path
from krishiv_spark.testing.processes.pickling import pickled
from krishiv_spark.testing.real_spark.job import SparkJob, run
from krishiv_spark.testing.rows import Row, columns, numbers_of
from krishiv_spark.testing.rules import Broken, Rule, Violation
from krishiv_spark.testing.subjects import SinkUnderTest, SourceUnderTest

__all__ = ["DriverProcess", "SparkDriver"]


class DriverProcess:
    """A driver in a process group of its own, with its output. It runs until `kill`.

    Args:
        command: The program and its arguments.
        environment: Its environment variables.
        order: Its standard input; `says` reports a process that ends before it has read all of
            it.
        errors: The target of its standard error; None for `lines`.

    Raises:
        OSError: If it cannot be started.

    Attributes:
        lines: Its output so far, one entry per line.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        order: bytes = b"",
        errors: IO[bytes] | None = None,
    ) -> None:
        self.lines: list[str] = []
        self._is_silent = False
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors or subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
        self._changed = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._tell(order)

    def says(self, word: str, seconds: float) -> bool:
        """Await a line that begins with a word, among all lines since the start.

        Returns:
            False if the process ends without such a line, or none comes in time.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._said(word) or self._is_silent, seconds)
            return self._said(word)

    def outlives(self, seconds: float) -> bool:
        """Wait; return True if the process still runs afterwards."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def signal(self, number: int) -> None:
        """Send a signal to its process group: Python and the JVM, not Spark's workers."""
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill the process group with ``kill -9``; Spark's workers end on their own soon after."""
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
        self._process.wait()
        self._listener.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _said(self, word: str) -> bool:
        return any(line.startswith(word) for line in self.lines)

    def _tell(self, order: bytes) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self._process.stdin as stream:
                stream.write(order)

    def _listen(self) -> None:
        if self._process.stdout is not None:
            # A progress bar ends in "\r", which is the end of a line here.
            with io.TextIOWrapper(self._process.stdout, "utf-8", errors="replace") as stream:
                for line in stream:
                    self._hear(line.strip("\0").rstrip())
        with self._changed:
            self._is_silent = True
            self._changed.notify_all()

    def _hear(self, line: str) -> None:
        with self._changed:
            self.lines.append(line)
            self._changed.notify_all()


_FILES, _ROWS = 8, 20
_KILLS = 3
_PATIENCE_SECONDS = 600
_LONGEST_LIFE_SECONDS = 4.0
_SHOWN_LINES = 40


class SparkDriver:
    """The cases of one connector on real Spark.

    Args:
        folder: An empty folder for inputs and checkpoints.
        promise: The promise of the case, for the message of a failure.
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
            with self._start(job) as process:
                added = self._add(source, added)
                self._live_on(process)
        self._run(job)
        self._compare(numbers_of(self._result(), source.schema, source.row, added), range(added))

    def batch_from(self, source: SourceUnderTest) -> None:
        """Read all rows with ``spark.read``."""
        added = self._add(source, self._add(source, 0))
        self._run(self._job(source, "batch_from"))
        self._compare(numbers_of(self._result(), source.schema, source.row, added), range(added))

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
            with self._start(job) as process:
                self._live_on(process)
        self._run(job)

    def _live_on(self, process: DriverProcess) -> None:
        process.outlives(self._random.uniform(0.0, _LONGEST_LIFE_SECONDS))

    def _run(self, job: SparkJob) -> None:
        with self._start(job) as process:
            self._expect(process, "DONE")

    @contextmanager
    def _start(self, job: SparkJob) -> Iterator[DriverProcess]:
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
            # Rows may be repeated after a death.
            found = Counter(dict.fromkeys(found, 1))
        self._compare(found, sink.remaining(range(written)))

    def _compare(self, found: Counter[int | Row], numbers: Iterable[int | Row]) -> None:
        wanted = Counter(numbers)
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
