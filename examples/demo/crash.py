"""A stream that is fed, killed in the middle, and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from examples.demo import flights
from examples.demo.show import screen
from examples.demo.topics import Topic

JOB = Path(__file__).parent / "flights.yaml"


@dataclass(frozen=True)
class Stream:
    """The pipeline, and where it works.

    Attributes:
        folder: Files arrive in it, and the table is made in it.
        topic: The flights go through it, if there is one.
        as_job: Whether the pipeline is a job file, and not a program.
        printed: The lines that the pipeline prints.
    """

    folder: Path
    topic: Topic | None
    as_job: bool = False
    printed: list[str] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        """Start the pipeline as a separate process group."""
        process = subprocess.Popen(
            [sys.executable, "-m", *self._command()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        lines = process.stdout or ()
        reader = threading.Thread(target=lambda: self.printed.extend(lines), daemon=True)
        reader.start()
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reader.join(5)

    def _command(self) -> list[str]:
        if self.as_job:
            given = {"FOLDER": self.folder, "AIRLINES": flights.data_folder() / "airlines.csv"}
            words = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
            return ["krishiv_spark", "run", str(JOB), "--master", "local[2]", *words]
        through = [] if self.topic is None else [self.topic.bootstrap, self.topic.name]
        return ["examples.demo.pipeline", str(self.folder), *through]

    def rows_through(self) -> int:
        """Rows in the table now, from the footers of its visible files."""
        files = self.folder.glob("table/**/*.parquet")
        return sum(pq.read_metadata(file).num_rows for file in files)

    def epochs_upserted(self) -> int:
        """Epochs in the Iceberg table now: each has a metadata file, and so has its making."""
        return len(list(self.folder.glob("warehouse/*/*/metadata/*.metadata.json"))) - 1

    def watch(self, process: subprocess.Popen[str], bar: Progress, goal: int | None) -> None:
        """Follow the rows until there are enough of them, or until the stream has ended.

        Enough are so many in the Parquet files, and an epoch in the Iceberg table.
        """
        task = bar.task_ids[0]
        while process.poll() is None:
            through = self.rows_through()
            bar.update(task, completed=through)
            if goal is not None and through >= goal and self.epochs_upserted() > 0:
                return
            time.sleep(0.3)
        bar.update(task, completed=self.rows_through())
        if goal is not None or process.returncode != 0:
            tail = "".join(self.printed[-12:])
            raise SystemExit(f"{tail}the stream ended, with exit code {process.returncode}")

    def feed(self, table: pa.Table, killed: threading.Event) -> None:
        """Let the files arrive one after another; the last third only after the kill."""
        parts = list(flights.files(table))
        for number, part in enumerate(parts):
            if number == 2 * len(parts) // 3:
                killed.wait()
            flights.arrive(part, self.folder / "arriving", number)
            time.sleep(0.35)
        (self.folder / "all-arrived").touch()


def run_and_kill(stream: Stream, table: pa.Table) -> int:
    """Feed, kill in the middle, resume. Returns how many rows were visible at the kill."""
    killed = threading.Event()
    feeder = threading.Thread(target=stream.feed, args=(table, killed), daemon=True)
    count = TextColumn("{task.completed:,} events")
    columns = (TextColumn("{task.description}"), BarColumn(), count)
    with Progress(*columns, TimeElapsedColumn(), console=screen) as bar:
        task = bar.add_task("streaming", total=table.num_rows)
        with stream.running() as process:
            feeder.start()
            stream.watch(process, bar, goal=table.num_rows // 2)
            os.killpg(process.pid, signal.SIGKILL)
        killed.set()
        at_kill = stream.rows_through()
        bar.update(task, description=f"kill -9 at {at_kill:,} events; resuming")
        with stream.running() as process:
            stream.watch(process, bar, goal=None)
    feeder.join()
    return at_kill
