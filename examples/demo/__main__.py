"""``./run demo``: feeds the flights, kills the stream in the middle, compares the result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import krishiv_spark
from examples.demo import answer, flights

screen = Console(highlight=False)


@contextmanager
def stream(folder: Path, preview: list[str]) -> Iterator[subprocess.Popen[str]]:
    """The pipeline as a process group of its own; what it prints is kept as the preview."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.demo.pipeline", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    reader = threading.Thread(target=lambda: preview.extend(process.stdout or ()), daemon=True)
    reader.start()
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join(5)


def rows_through(folder: Path) -> int:
    """Rows in the table now, from the footers of its visible files."""
    return sum(pq.read_metadata(file).num_rows for file in folder.glob("table/**/*.parquet"))


def watch(folder: Path, process: subprocess.Popen[str], bar: Progress, goal: int | None) -> None:
    """Follow the rows until there are enough of them, or until the stream has ended."""
    task = bar.task_ids[0]
    while process.poll() is None:
        through = rows_through(folder)
        bar.update(task, completed=through)
        if goal is not None and through >= goal:
            return
        time.sleep(0.3)
    bar.update(task, completed=rows_through(folder))
    if goal is not None or process.returncode != 0:
        raise SystemExit(f"the stream ended by itself, with exit code {process.returncode}")


def feed(folder: Path, table: pa.Table) -> None:
    """Let the files arrive one after another."""
    for number, part in enumerate(flights.files(table)):
        flights.arrive(part, folder / "arriving", number)
        time.sleep(0.35)
    (folder / "all-arrived").touch()


def chart(by_hour: pa.Table) -> None:
    """Mean delay for each hour of the day, as bars."""
    hours = by_hour.append_column("of_day", pc.hour(by_hour["hour"]))
    sums = hours.group_by("of_day").aggregate([("delay", "sum"), ("flights", "sum")])
    screen.print("\n[bold]Mean delay by scheduled hour of departure[/bold], from krishiv-memory")
    for row in sums.sort_by("of_day").to_pylist():
        mean = row["delay_sum"] / row["flights_sum"]
        bar = "█" * max(0, round(mean * 2))
        screen.print(
            f"  {row['of_day']:02d}:00 {bar} {mean:4.1f} min  [dim]{row['flights_sum']:,}[/dim]"
        )


def run_and_kill(folder: Path, table: pa.Table, preview: list[str]) -> int:
    """Feed, kill in the middle, resume. Returns how many rows were visible at the kill."""
    feeder = threading.Thread(target=feed, args=(folder, table), daemon=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,} rows"))
    with Progress(*columns, TimeElapsedColumn(), console=screen) as bar:
        task = bar.add_task("streaming", total=table.num_rows)
        with stream(folder, preview) as process:
            feeder.start()
            watch(folder, process, bar, goal=table.num_rows // 2)
            os.killpg(process.pid, signal.SIGKILL)
        at_kill = rows_through(folder)
        bar.update(task, description=f"kill -9 at {at_kill:,} rows; resuming")
        with stream(folder, preview) as process:
            watch(folder, process, bar, goal=None)
    feeder.join()
    return at_kill


def report(folder: Path, table: pa.Table, at_kill: int) -> int:
    """Compare, and say it in one line. Returns the exit code."""
    rows, by_hour = answer.table_of(folder / "table"), krishiv_spark.memory_table("delays by hour")
    chart(by_hour)
    late = pc.sum(rows["_late"]).as_py()
    problems = answer.expected(table).differences(answer.found(rows, by_hour))
    for problem in problems:
        screen.print(f"[red]{problem}[/red]")
    if problems:
        screen.print("[red bold]The result differs from the plain computation.[/red bold]")
        return 1
    screen.print(
        f"\n[green bold]Exact.[/green bold] {rows.num_rows:,} flights went in and came out once; "
        f"the driver was killed with kill -9 at {at_kill:,} rows and resumed; {late:,} rows were "
        "flagged as later than the watermark; rows, distinct rows and sums equal plain pyarrow's."
    )
    return 0


def main() -> int:
    """The demo; exit code 1 if anything differs."""
    with tempfile.TemporaryDirectory(prefix="krishiv-demo-") as name:
        folder = Path(name)
        os.environ["KRISHIV_MEMORY_DIR"] = str(folder / "memory")
        screen.print("[bold]krishiv-spark[/bold]: New York's flights of 2013 through a stream")
        table, preview = flights.flights(), []
        at_kill = run_and_kill(folder, table, preview)
        screen.print("\n[bold]The last preview of krishiv-console[/bold]")
        screen.print("".join(last_preview(preview)), markup=False)
        return report(folder, table, at_kill)


def last_preview(lines: list[str]) -> list[str]:
    """The last epoch that the console sink printed."""
    starts = [i for i, line in enumerate(lines) if line.startswith("Batch: ")]
    tail = lines[starts[-1] - 1 :] if starts else lines[-12:]
    return [line for line in tail if not line.startswith(("DONE", "STARTED"))][:14]


if __name__ == "__main__":
    sys.exit(main())
