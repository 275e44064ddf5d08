"""``krishiv-memory`` under Spark: source to sink, restarts, modes, triggers, batches."""

import contextlib
import shutil
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone

import pyarrow as pa
import pytest
from available_now import ENDS_WITH_LIMITS
from patience import PATIENCE
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, raise_error, when
from pyspark.sql.streaming.query import StreamingQuery

import krishiv_spark
from krishiv_spark.errors import OptionError
from krishiv_spark.memory.store import open_store
from krishiv_spark.sources.memory.handle import MemorySource

IDS = pa.schema([("id", pa.int64())])


@pytest.fixture
def name() -> Iterator[str]:
    # Spark's workers know the default store only: names of this run, and removed after it.
    unique = f"test-{uuid.uuid4().hex[:8]}"
    yield unique
    shutil.rmtree(open_store().folder("pushes", unique), ignore_errors=True)
    for result in (unique, f"{unique}-out"):
        with contextlib.suppress(OptionError):  # the test made none
            krishiv_spark.memory_clear(result)


@pytest.fixture
def source(name: str) -> MemorySource:
    return krishiv_spark.memory_source(name, IDS)


def push(source: MemorySource, *values: int) -> None:
    source.add(pa.table({"id": pa.array(values, pa.int64())}))


def shown(result: StreamingQuery | str) -> list[int]:
    return sorted(krishiv_spark.memory_table(result).column("id").to_pylist())


def started(spark: SparkSession, name: str, checkpoint: str, **options: str) -> StreamingQuery:
    rows = spark.readStream.format("krishiv-memory").options(**options).load(name)
    sink = rows.writeStream.format("krishiv-memory").option("checkpointLocation", checkpoint)
    return sink.start(f"{name}-out")


def copied(frame: DataFrame, name: str) -> str:
    """Batch rows through the sink: PySpark 4.0's `collect` leaves its socket open."""
    frame.write.format("krishiv-memory").mode("overwrite").save(name)
    return name


def finish(query: StreamingQuery) -> None:
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def end(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(PATIENCE)
    finally:
        query.stop()


@pytest.mark.core
def test_rows_go_through_once_over_a_restart(spark, name, source, checkpoint) -> None:
    push(source, 1, 2)
    query = started(spark, name, checkpoint)
    try:
        query.processAllAvailable()
        assert shown(f"{name}-out") == shown(query) == [1, 2]
        push(source, 3)
        query.processAllAvailable()
    finally:
        query.stop()
    push(source, 4)
    finish(started(spark, name, checkpoint))
    assert shown(query) == [1, 2, 3, 4]


@pytest.mark.core
def test_a_replayed_epoch_is_not_seen_twice(spark, name, source, checkpoint, tmp_path) -> None:
    push(source, 1)
    finish(started(spark, name, checkpoint))
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    for file in (newest, newest.with_name(f".{newest.name}.crc")):
        file.unlink(missing_ok=True)  # as if Spark had died between the sink's commit and its own
    push(source, 2)
    finish(started(spark, name, checkpoint))
    assert shown(f"{name}-out") == [1, 2]


def test_complete_mode_shows_the_newest_result(spark, name, source, checkpoint) -> None:
    rows = spark.readStream.format("krishiv-memory").load(name)
    counts = rows.groupBy((col("id") % 2).alias("odd")).agg(count("*").alias("n"))
    sink = counts.writeStream.format("krishiv-memory").outputMode("complete").queryName(name)
    query = sink.option("checkpointLocation", checkpoint).start()
    try:
        for values in ([1, 2], [3]):
            push(source, *values)
            query.processAllAvailable()
    finally:
        query.stop()
    found = krishiv_spark.memory_table(name).to_pylist()
    assert sorted(found, key=lambda row: row["odd"]) == [{"odd": 0, "n": 1}, {"odd": 1, "n": 2}]


def test_update_mode_through_foreach_batch(spark, name, source, checkpoint) -> None:
    rows = spark.readStream.format("krishiv-memory").load(name)
    counts = rows.groupBy((col("id") % 3).alias("rest")).agg(count("*").alias("n"))
    write = krishiv_spark.upsert(f"{name}-out", "rest", format="krishiv-memory")

    def twice(batch: DataFrame, number: int) -> None:
        write(batch, number)
        write(batch, number)  # as Spark repeats its last batch

    sink = counts.writeStream.outputMode("update").foreachBatch(twice)
    query = sink.option("checkpointLocation", checkpoint).start()
    try:
        for values in ([1, 2], [3], [4, 7]):
            push(source, *values)
            query.processAllAvailable()
    finally:
        query.stop()
    found = krishiv_spark.memory_table(f"{name}-out").to_pylist()
    assert {row["rest"]: row["n"] for row in found} == {0: 1, 1: 3, 2: 1}
    assert len(found) == 3


def test_available_now_ends_and_honours_limits(spark, name, source, checkpoint) -> None:
    for value in range(3):
        push(source, value)

    def run() -> StreamingQuery:
        rows = spark.readStream.format("krishiv-memory").option("maxFilesPerTrigger", 1).load(name)
        sink = rows.writeStream.format("krishiv-memory").option("checkpointLocation", checkpoint)
        return sink.trigger(availableNow=True).start(f"{name}-out")

    runs = 1 if ENDS_WITH_LIMITS else 3  # 4.0 and 4.1 run one batch
    for _ in range(runs):
        query = run()
        end(query)
    assert shown(query) == [0, 1, 2]
    assert len(krishiv_spark.memory_batches(query)) == 3


def test_latest_survives_a_first_batch_that_fails(spark, name, source, checkpoint) -> None:
    push(source, 1)
    rows = spark.readStream.format("krishiv-memory").option("startingOffsets", "latest").load(name)

    def run(frame) -> StreamingQuery:
        sink = frame.writeStream.format("krishiv-memory").option("checkpointLocation", checkpoint)
        return sink.start(f"{name}-out")

    poisoned = rows.select(
        when(col("id") == 2, raise_error("boom")).otherwise(col("id")).alias("id")
    )
    query = run(poisoned)
    try:
        query.processAllAvailable()  # pins the start
        push(source, 2)
        with pytest.raises(PySparkException, match="boom"):
            query.processAllAvailable()
    finally:
        query.stop()
    push(source, 3)
    finish(run(rows))
    assert shown(f"{name}-out") == [2, 3]


@pytest.mark.once
def test_late_rows_are_flagged_by_the_watermark_of_the_offsets(spark, name, checkpoint) -> None:
    source = krishiv_spark.memory_source(name, pa.schema([("at", pa.timestamp("us", tz="UTC"))]))
    for minute in (0, 10, 5):
        source.add([{"at": datetime(2024, 1, 1, 0, minute, tzinfo=timezone.utc)}])
    query = started(
        spark, name, checkpoint, eventTime="at", lateRows="flag", maxFilesPerTrigger="1"
    )
    finish(query)
    rows = krishiv_spark.memory_table(query).to_pylist()
    assert [(row["at"].minute, row["_late"]) for row in rows] == [
        (0, False),
        (10, False),
        (5, True),
    ]


@pytest.mark.once
def test_a_full_result_fails_the_query_and_says_why(spark, name, source, checkpoint) -> None:
    push(source, 1, 2)
    rows = spark.readStream.format("krishiv-memory").load(name)
    sink = rows.writeStream.format("krishiv-memory").option("maxRows", 1)
    query = sink.option("checkpointLocation", checkpoint).start(f"{name}-out")
    with pytest.raises(PySparkException, match="dropOldest"):
        finish(query)


@pytest.mark.once
def test_a_checkpoint_in_the_configuration_will_do(spark, name, source, tmp_path) -> None:
    push(source, 1)
    rows = spark.readStream.format("krishiv-memory").load(name)
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        query = rows.writeStream.format("krishiv-memory").queryName(name).start()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    finish(query)
    assert shown(query) == shown(name) == [1]


@pytest.mark.core
def test_batches_append_overwrite_and_read_back(spark, name) -> None:
    frame = spark.createDataFrame([(1, "a"), (2, None)], "id long, text string")
    for _ in range(2):
        frame.write.format("krishiv-memory").mode("append").save(name)
    assert shown(name) == [1, 1, 2, 2]
    read = spark.read.format("krishiv-memory").load(name)
    assert read.schema.simpleString() == "struct<id:bigint,text:string>"
    assert shown(copied(read, f"{name}-out")) == [1, 1, 2, 2]
    frame.limit(1).write.format("krishiv-memory").mode("overwrite").save(name)
    assert krishiv_spark.memory_table(name).to_pylist() == [{"id": 1, "text": "a"}]
    frame.limit(0).write.format("krishiv-memory").mode("overwrite").save(name)
    assert krishiv_spark.memory_table(name).schema.names == ["id", "text"]


@pytest.mark.once
def test_a_batch_reads_pushes_where_there_is_no_result(spark, name, source) -> None:
    push(source, 1)
    push(source, 2)
    read = spark.read.format("krishiv-memory").load(name)
    assert shown(copied(read, f"{name}-out")) == [1, 2]


def test_times_are_utc_whatever_the_session_says(spark, name) -> None:
    spark.sql("SELECT TIMESTAMP'2024-07-01 12:00:00' AS at").write.format("krishiv-memory").mode(
        "append"
    ).save(name)
    at = krishiv_spark.memory_table(name).column("at")
    assert at.type == pa.timestamp("us", tz="UTC")
    assert at[0].as_py() == datetime(2024, 7, 1, 16, tzinfo=timezone.utc)  # session: New York


@pytest.mark.skipif(ENDS_WITH_LIMITS, reason="Spark says where the query stands")
def test_a_wrapper_that_asks_for_an_end_before_the_query_stands_anywhere_is_refused(
    spark, name, source, checkpoint
) -> None:
    push(source, 1, 2)
    finish(started(spark, name, checkpoint))
    push(source, 3)
    spark.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "true")
    rows = spark.readStream.format("krishiv-memory").load(name)
    sink = rows.writeStream.format("krishiv-memory").option("checkpointLocation", checkpoint)
    try:
        query = sink.trigger(availableNow=True).start(f"{name}-out")
        with pytest.raises(PySparkException, match=r"triggerAvailableNowWrapper\.enabled to false"):
            end(query)
    finally:
        spark.conf.unset("spark.sql.streaming.triggerAvailableNowWrapper.enabled")
    assert shown(f"{name}-out") == [1, 2]
    finish(started(spark, name, checkpoint))
    assert shown(f"{name}-out") == [1, 2, 3]
