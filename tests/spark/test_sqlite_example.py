"""``examples/sqlite_sink.py`` under Spark: streams with restarts, modes, a lock, batches."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from patience import PATIENCE
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count
from pyspark.sql.streaming.query import StreamingQuery

from examples import sqlite_sink

SCHEMA = "id long, text string, share double, raw binary"


@pytest.fixture(autouse=True)
def _sqlite(spark: SparkSession) -> None:
    # Workers import what is installed or lies in the folder where Spark was started. The examples
    # need not be there, so the class travels by value; one of an installed package needs no help.
    cloudpickle.register_pickle_by_value(sqlite_sink)
    try:
        spark.dataSource.register(sqlite_sink.SqliteDataSource)
    finally:
        cloudpickle.unregister_pickle_by_value(sqlite_sink)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "rows.db"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def push(folder: Path) -> Callable[..., None]:
    """A file of JSON lines for each call."""

    def pushed(*ids: int) -> None:
        aside = folder / "_aside"  # Spark passes over such names
        aside.write_text("\n".join(json.dumps({"id": i, "text": f"row {i}"}) for i in ids))
        aside.rename(folder / f"{ids[0]}.json")

    return pushed


@pytest.fixture
def frame(spark: SparkSession, folder: Path) -> DataFrame:
    files = spark.readStream.schema("id long, text string").option("maxFilesPerTrigger", 1)
    return files.json(str(folder))


@pytest.fixture
def run(database: Path, checkpoint: str) -> Callable[..., StreamingQuery]:
    """Everything that is there, a file an epoch; then the query ends."""

    def finished(frame: DataFrame, mode: str = "append") -> StreamingQuery:
        sink = frame.writeStream.format("sqlite").outputMode(mode).option("table", "a table")
        sink = sink.option("timeout", "200 ms").option("checkpointLocation", checkpoint)
        query = sink.trigger(availableNow=True).start(str(database))
        try:
            assert query.awaitTermination(PATIENCE)
        finally:
            query.stop()
        return query

    return finished


def select(database: Path, sql: str) -> list[tuple]:
    with closing(sqlite3.connect(database)) as db:
        return db.execute(sql).fetchall()


def ids(database: Path) -> list[int]:
    return [number for (number,) in select(database, 'SELECT id FROM "a table" ORDER BY id')]


def epochs(database: Path, query: StreamingQuery) -> list[int]:
    return [n for (n,) in select(database, f"SELECT epoch FROM _epochs WHERE query = '{query.id}'")]


def staged(database: Path) -> list[Path]:
    return list(database.parent.glob("*.arrow"))


def test_a_stream_goes_on_after_a_restart(frame, push, run, database) -> None:
    for first in (0, 10, 20):
        push(first, first + 1)
    run(frame)
    push(30)
    push(40)
    query = run(frame)
    assert ids(database) == [0, 1, 10, 11, 20, 21, 30, 40]
    assert epochs(database, query) == [0, 1, 2, 3, 4]
    assert ("row 11", "text") in select(database, 'SELECT text, typeof(text) FROM "a table"')
    assert not staged(database)


def test_an_epoch_that_spark_repeats_is_there_once(frame, push, run, database, checkpoint) -> None:
    push(0)
    push(1)
    run(frame)
    newest = max(Path(checkpoint, "commits").glob("[0-9]*"))
    for file in (newest, newest.with_name(f".{newest.name}.crc")):
        file.unlink(missing_ok=True)  # as if Spark had died between the sink's commit and its own
    push(2)
    run(frame)
    assert ids(database) == [0, 1, 2]


@pytest.mark.long
def test_a_locked_database_fails_the_query_and_changes_nothing(frame, push, run, database) -> None:
    push(0)
    run(frame)
    push(1)
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(PySparkException, match="CommitRejected: epoch 1: database is locked"):
            run(frame)
    assert ids(database) == [0]
    run(frame)
    assert ids(database) == [0, 1]


@pytest.mark.long
def test_complete_mode_holds_the_newest_result(frame, push, run, database) -> None:
    totals = frame.selectExpr("id % 2 AS odd").groupBy("odd").agg(count("*").alias("n"))
    rows = 'SELECT odd, n FROM "a table" ORDER BY odd'
    push(0, 1)
    push(2)
    run(totals, "complete")
    assert select(database, rows) == [(0, 2), (1, 1)]
    push(3, 5)
    run(totals, "complete")
    assert select(database, rows) == [(0, 2), (1, 3)]


@pytest.mark.long
def test_batches_append_and_overwrite(spark, database) -> None:
    written = [(1, "a", 0.5, b"\x00\xff"), (2, None, None, None), (3, "ü", -1.0, b"")]

    def write(rows: list[tuple], mode: str) -> None:
        sink = spark.createDataFrame(rows, SCHEMA).repartition(2).write.format("sqlite").mode(mode)
        sink.option("table", "a table").save(str(database))

    for _ in range(2):
        write(written, "append")
    everything = 'SELECT * FROM "a table" ORDER BY id'
    assert select(database, everything) == [row for row in written for _ in range(2)]
    write(written[:1], "overwrite")
    assert select(database, everything) == written[:1]
    write([], "overwrite")
    assert select(database, everything) == []
    assert not staged(database)
