"""``./run demo``: feeds the flights, kills the stream in the middle, compares the result."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.compute as pc

import krishiv_spark
from examples.demo import answer, flights, show, topics
from examples.demo.crash import Stream, run_and_kill
from examples.demo.show import screen


@click.command()
@click.option("--kafka", is_flag=True, help="Send the flights through a topic of a real broker.")
@click.option("--job", is_flag=True, help="Run the stream from a job file, flights.yaml.")
def main(*, kafka: bool, job: bool) -> None:
    """Send a year of flights through a stream that is killed; exit code 1 if anything differs."""
    if kafka and job:
        raise click.UsageError("the job file has no topic: give --kafka or --job")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="krishiv-demo-")))
        os.environ["KRISHIV_MEMORY_DIR"] = str(folder / "memory")
        screen.print("[bold]krishiv-spark[/bold]: New York's flights of 2013 through a stream")
        stream = Stream(folder, _topic(stack) if kafka else None, as_job=job)
        table = flights.events()
        at_kill = run_and_kill(stream, table)
        show.preview(stream.printed)
        sys.exit(report(stream, table, at_kill))


def _topic(stack: ExitStack) -> topics.Topic:
    screen.print("[dim]a broker starts; its jars, 44 MB, are fetched once[/dim]")
    topic, origin = stack.enter_context(topics.opened())
    screen.print(f"[dim]topic {topic.name} at {topic.bootstrap} ({origin})[/dim]")
    return topic


def report(stream: Stream, table: pa.Table, at_kill: int) -> int:
    """Compare, and say it in one line. Returns the exit code."""
    rows = answer.table_of(stream.folder / "table")
    by_hour = krishiv_spark.memory_table("delays by hour")
    show.chart(by_hour)
    iceberg = answer.iceberg_table(stream.folder / "warehouse")
    latest = iceberg.scan().to_arrow()
    show.corrected(latest)
    problems = answer.problems(table, rows, by_hour, latest)
    readers = (
        "DuckDB finds every event in the Parquet files; PyIceberg finds in the Iceberg table, of "
        f"{len(iceberg.snapshots())} snapshots, each flight as it was known last"
    )
    if stream.topic is not None:
        problems += answer.problems_in_topic(table, topics.flights_in(stream.topic, table.schema))
        readers += "; kafka-python, reading committed records, finds every event in the topic"
    late = pc.sum(rows["_late"]).as_py()
    show.verdict(
        problems,
        f"{latest.num_rows:,} flights and {rows.num_rows - latest.num_rows:,} corrections went in "
        f"and came out once; the driver was killed with kill -9 at {at_kill:,} events and resumed; "
        f"{late:,} events were flagged as later than the watermark. {readers}.",
    )
    return int(bool(problems))


if __name__ == "__main__":
    main()
