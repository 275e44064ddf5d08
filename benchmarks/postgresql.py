"""Rows per second into PostgreSQL, beside Spark's JDBC writer in foreachBatch and beside psql.

    ./run python -m benchmarks.postgresql [--rows 1000000] [--epochs 5]

A stream of one file for each epoch; the fastest trigger counts, without the first one, since other
programs may disturb any of them. Beside it is the processor time of a whole stream for a million
rows, of Spark with its workers and of the server, which other programs change less. JDBC gets
`batchsize` = 10000 and `reWriteBatchedInserts`; for upserts it fills a table from which a statement
moves the rows, since it has none. A sink in Python that drops its rows shows the time of Spark and
of its transport to Python. The bound is psql alone: COPY of the same rows in binary form
into an UNLOGGED table by two processes at once, as there are two tasks, and INSERT … SELECT.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from pg_onlooker import Database
from pg_server import KillableServer, open_killable
from postgres import PASSWORD, USER, require_programs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from benchmarks.writers import Life
from krishiv_spark.kafka.dev.maven import Jar, bring
from krishiv_spark.sinks.postgresql.writer import PostgresqlWriter

_JDBC = Jar("org.postgresql", "postgresql", "42.7.11")
_WARM, _EPOCHS = 10, 100
_COLUMNS = "id bigint, name text, at timestamptz, amount float8, n int4"
_MOVE = (
    "INSERT INTO {} SELECT * FROM {} ON CONFLICT (id) DO UPDATE SET name = EXCLUDED.name, "
    "at = EXCLUDED.at, amount = EXCLUDED.amount, n = EXCLUDED.n"
)


def make_files(folder: Path, rows: int, epochs: int, keys: int | None) -> None:
    """Write one file for each epoch; keys come again after `keys` rows."""
    folder.mkdir()
    for epoch in range(epochs):
        numbers = np.arange(epoch * rows, (epoch + 1) * rows)
        table = pa.table(
            {
                "id": numbers if keys is None else numbers % keys,
                "name": [f"customer number {n % 1000} of a list" for n in range(rows)],
                "at": pa.array(numbers * 1_000_003).cast(pa.timestamp("us", "UTC")),
                "amount": numbers * 1.25,
                "n": (numbers % 1000).astype(np.int32),
            }
        )
        pq.write_table(table, folder / f"{epoch}.parquet", row_group_size=rows // 2)


def run_stream(spark: SparkSession, source: Path, start: Callable[[Any], Any]) -> float:
    """Return the time of the fastest trigger in seconds, without the first one."""
    frame = (
        spark.readStream.schema(spark.read.parquet(str(source)).schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(source))
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.option("checkpointLocation", checkpoint)
        query = start(writer.trigger(availableNow=True)).start()
        query.awaitTermination()
        times = [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
    return min(times[1:]) / 1000


def read_processor_time(root: int) -> float:
    """Return the processor time of a process and all that it has started, in seconds."""
    found = 0.0
    for each in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has just ended, and its parent counts it
            found += sum(each.cpu_times()[:4])
    return found


def run_bound(database: Database, folder: Path, rows: int) -> float:
    """Return the time of psql in seconds: two COPY at once, then INSERT … SELECT."""
    copy = [folder / f"copy{n}" for n in range(2)]
    with database.connect() as connection:
        for n, file in enumerate(copy):
            cursor = connection.cursor()
            half = f"(SELECT * FROM ours ORDER BY id LIMIT {rows // 2} OFFSET {n * rows // 2})"
            statement = f"COPY {half} TO STDOUT (FORMAT binary)"
            with cursor.copy(statement) as out, file.open("wb") as to:
                to.writelines(out)
        connection.execute(f"CREATE TABLE bound ({_COLUMNS})")
    times = []
    for _ in range(6):
        begun = time.perf_counter()
        for n in range(2):
            database.run(f"CREATE UNLOGGED TABLE bound{n} ({_COLUMNS})")
        uri = f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{database.port}/postgres"
        started = [
            subprocess.Popen(["psql", uri, "-qc", f"\\copy bound{n} from {file} (format binary)"])
            for n, file in enumerate(copy)
        ]
        assert [each.wait() for each in started] == [0, 0]
        with psycopg.connect(uri) as connection:
            for n in range(2):
                connection.execute(f"INSERT INTO bound SELECT * FROM bound{n}")
                connection.execute(f"DROP TABLE bound{n}")
        times.append(time.perf_counter() - begun)
    return min(times[1:])


def jdbc(database: Database, table: str, then: str | None = None) -> Callable[[Any], Any]:
    """Return what sets a stream up that writes by JDBC in foreachBatch."""
    uri = f"jdbc:postgresql://127.0.0.1:{database.port}/postgres?reWriteBatchedInserts=true"

    def write(frame: DataFrame, _: int) -> None:
        given = {"url": uri, "dbtable": table, "user": USER, "password": PASSWORD}
        options = {**given, "batchsize": "10000", "driver": "org.postgresql.Driver"}
        mode = "append" if then is None else "overwrite"
        frame.write.format("jdbc").options(**options).option("truncate", "true").mode(mode).save()
        if then is not None:
            database.run(then)

    return lambda writer: writer.foreachBatch(write)


class _DroppingWriter(DataSourceStreamArrowWriter):
    """A writer that reads its rows and drops them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            del batch
        return WriterCommitMessage()


class _Dropping(DataSource):
    """A sink that drops its rows."""

    @classmethod
    def name(cls) -> str:
        return "dropping"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802  Spark's
        del schema, overwrite
        return _DroppingWriter()


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()
    programs = require_programs()
    jars = sorted(bring("postgresql-jdbc-42.7.11", [_JDBC], transitive=False).glob("*.jar"))
    settings = {"fsync": "on", "shared_buffers": "256MB", "max_wal_size": "4GB"}
    with (
        open_killable(programs, **settings) as server,
        tempfile.TemporaryDirectory() as name,
    ):
        measure(server, Path(name), given, jars)


Start = Callable[[Any], Any]


def open_session(jars: list[Path]) -> SparkSession:
    """Start Spark on two cores, with drivers of JDBC."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.files.maxPartitionBytes", "4m")
        .config("spark.sql.files.openCostInBytes", "0")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(_Dropping)
    return spark


def create_tables(database: Database) -> None:
    """Create a table for each way of appends and of upserts."""
    for table in ("ours", "theirs"):
        database.run(f"CREATE TABLE {table} ({_COLUMNS})")
    for table in ("our_keys", "their_keys"):
        database.run(f"CREATE TABLE {table} ({_COLUMNS}, PRIMARY KEY (id))")


def start_ours(database: Database, **more: str) -> Start:
    """Return a function that gives a writer the format krishiv-postgresql."""
    options = database.options(**more)
    return lambda writer: writer.format("krishiv-postgresql").options(**options)


def list_ways(database: Database) -> dict[str, tuple[str, Start]]:
    """Return the ways by name, each with the folder of its rows."""
    upsert = start_ours(database, table="our_keys", mode="upsert", keyColumns="id")
    move = _MOVE.format("their_keys", "batch")
    return {
        "append, rows dropped": ("append", lambda writer: writer.format("dropping")),
        "append, krishiv-postgresql": ("append", start_ours(database, table="ours")),
        "append, JDBC": ("append", jdbc(database, "theirs")),
        "upsert, krishiv-postgresql": ("upsert", upsert),
        "upsert, JDBC": ("upsert", jdbc(database, "batch", move)),
    }


def measure(server: KillableServer, folder: Path, given: Any, jars: list[Path]) -> None:
    """Measure all ways in one session."""
    database, rows, spark = server.database, given.rows, open_session(jars)
    make_files(folder / "append", rows, given.epochs, None)
    make_files(folder / "upsert", rows, given.epochs, 2 * rows)
    create_tables(database)
    for warm in (
        start_ours(database, table="warm"),
        jdbc(database, "warm"),
    ):  # compiles Spark's code
        run_stream(spark, folder / "append", warm)
    found, processors = {}, {}
    roots = (os.getpid(), server.process_id)
    million = given.epochs * rows / 1e6
    for way, (files, start) in list_ways(database).items():
        before = [read_processor_time(root) for root in roots]
        found[way] = run_stream(spark, folder / files, start)
        after = [read_processor_time(root) for root in roots]
        whole, of_server = ((b - a) / million for a, b in zip(before, after, strict=True))
        processors[way] = (whole - of_server, of_server)  # this process has started the server
    found["append, psql"] = run_bound(database, folder, rows)
    print_comparison(found, processors, rows)
    spark.stop()
    print_commits(database)


def print_comparison(
    found: Mapping[str, float], processors: Mapping[str, Sequence[float]], rows: int
) -> None:
    """Print the rate of each way, and how they compare.

    Args:
        found: Seconds of an epoch by way.
        processors: Processor seconds for a million rows, of Spark and of the server.
        rows: Rows of an epoch.
    """
    for way, took in found.items():
        of_spark, of_server = processors.get(way, (0, 0))
        print(
            f"{way:28} {took:6.2f} s {rows / took:10,.0f} rows/s; processor seconds for a million "
            f"rows: Spark {of_spark:5.2f}, server {of_server:5.2f}"
        )
    for kind in ("append", "upsert"):
        times = found[f"{kind}, JDBC"] / found[f"{kind}, krishiv-postgresql"]
        print(f"{kind}: {times:.2f} times JDBC")
    of_dropping = found["append, krishiv-postgresql"] / found["append, rows dropped"]
    print(f"append: {of_dropping:.2f} times the time of a sink that drops its rows")
    ours, psql = found["append, krishiv-postgresql"], found["append, psql"]
    print(
        f"append: {psql / ours:.2f} of psql, which is {found['append, JDBC'] / psql:.2f} times JDBC"
    )
    both = psql + found["append, rows dropped"]
    print(f"append: {both / ours:.2f} of psql after a sink that drops its rows")


def print_commits(database: Database) -> None:
    """Print the rate of small epochs, from the plan to the commit, and the time of their phases."""
    life = Life(PostgresqlWriter, database.options(table="small"))
    life.commits(_WARM)
    begun = time.perf_counter()
    life.commits(_EPOCHS)
    rate = _EPOCHS / (time.perf_counter() - begun)
    phases = {name: statistics.median(times[_WARM:]) for name, times in life.spent.items()}
    shown = ", ".join(f"{name} {1000 * took:.0f} ms" for name, took in phases.items())
    print(f"small epochs: {rate:.1f} epochs/s; {shown}")


if __name__ == "__main__":
    main()
