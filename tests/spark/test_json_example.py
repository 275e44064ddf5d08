"""The example ``examples/json_source.py`` on Spark, into Spark's own sink."""

import json
from pathlib import Path

import pytest
from available_now import ENDS_WITH_LIMITS
from patience import PATIENCE
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples.json_source import JsonSource

COLUMNS = "id LONG, text STRING, tags ARRAY<STRING>"


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Path:
    spark.dataSource.register(JsonSource)
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def row(number: int) -> tuple[int, str | None, list[str]]:
    return number, None if number % 3 == 0 else f"é\u2028 {number}", ["a", str(number)]


def drop(folder: Path, name: str, *numbers: int) -> None:
    rows = (dict(zip(("id", "text", "tags"), row(number), strict=True)) for number in numbers)
    (folder / "aside").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "aside").rename(folder / f"{name}.jsonl")


def started(spark: SparkSession, folder: Path, limit: int, **trigger: bool) -> StreamingQuery:
    rows = spark.readStream.format("json-lines").schema(COLUMNS).option("maxRowsPerTrigger", limit)
    sink = rows.load(str(folder)).writeStream.format("parquet")
    sink = sink.option("checkpointLocation", f"{folder.parent}/checkpoint")
    return (sink.trigger(**trigger) if trigger else sink).start(f"{folder.parent}/out")


def finish(query: StreamingQuery) -> None:
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def rows_of(frame: DataFrame) -> list[tuple]:
    return sorted(map(tuple, frame.collect()))


def streamed(spark: SparkSession, folder: Path) -> list[tuple]:
    return rows_of(spark.read.schema(COLUMNS).parquet(f"{folder.parent}/out"))


def test_rows_go_through_once_over_a_restart(spark, folder) -> None:
    drop(folder, "m", 1, 2)
    query = started(spark, folder, 1)
    try:
        query.processAllAvailable()
        drop(folder, "c", 3)
        query.processAllAvailable()
    finally:
        query.stop()
    drop(folder, "a", 4, 5)
    drop(folder, "z", 6)
    finish(started(spark, folder, 1))
    finish(started(spark, folder, 1))
    assert streamed(spark, folder) == [row(number) for number in range(1, 7)]


@pytest.mark.long
def test_available_now_ends_and_honours_limits(spark, folder) -> None:
    for number in range(5):
        drop(folder, str(number), number)
    batches = 3  # of at most two rows
    for _ in range(1 if ENDS_WITH_LIMITS else batches):  # 4.0 and 4.1 run one batch
        query = started(spark, folder, 2, availableNow=True)
        assert query.awaitTermination(PATIENCE)
    assert len(list((folder.parent / "checkpoint" / "commits").glob("[0-9]*"))) == batches
    assert streamed(spark, folder) == [row(number) for number in range(5)]


@pytest.mark.long
def test_a_batch_reads_everything(spark, folder) -> None:
    read = spark.read.format("json-lines").schema(COLUMNS)
    assert rows_of(read.load(str(folder))) == []
    for number in range(0, 9, 3):
        drop(folder, str(number), number, number + 1, number + 2)
    assert rows_of(read.load(str(folder))) == [row(number) for number in range(9)]
