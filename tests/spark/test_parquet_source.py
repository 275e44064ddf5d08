"""The Parquet source under Spark."""

import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from available_now import ENDS_WITH_LIMITS
from parquet_fuzzing import write_fatal_file
from patience import PATIENCE
from pyspark.errors import StreamingQueryException

from krishiv_spark.queries.failures import failure_of

# PySpark 4.0 leaves the socket of a `collect` to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

NOON = 1_700_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    return path


def put(folder, name, table, *, at=0):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".aside")
    pq.write_table(pa.table(table), aside)
    os.utime(aside, (NOON + at, NOON + at))
    aside.rename(path)


def numbers(folder, name, *values, at=0):
    put(folder, name, {"n": pa.array(values, pa.int64())}, at=at)


def stream(spark, folder, **options):
    return spark.readStream.format("krishiv-parquet").options(**options).load(str(folder))


class Run:
    """One run of a query until all that is there now was read."""

    def __init__(self, frame, checkpoint):
        self.batches = []
        query = (
            frame.writeStream.foreachBatch(lambda rows, _: self.batches.append(rows.collect()))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE)
        self.progress = query.lastProgress

    @property
    def rows(self):
        return sorted(tuple(row) for batch in self.batches for row in batch)


@pytest.mark.core
def test_a_stream_reads_every_row_once_across_restarts(spark, folder, checkpoint):
    numbers(folder, "a.parquet", 1, 2, at=1)
    numbers(folder, "b.parquet", 3, at=2)
    assert Run(stream(spark, folder), checkpoint).rows == [(1,), (2,), (3,)]
    numbers(folder, "late.parquet", 4, at=0)
    numbers(folder, "c.parquet", 5, at=3)
    assert Run(stream(spark, folder), checkpoint).rows == [(4,), (5,)]
    assert Run(stream(spark, folder), checkpoint).rows == []


def test_available_now_reads_everything_in_limited_batches(spark, folder, checkpoint):
    for number in range(5):
        numbers(folder, f"{number}.parquet", number, at=number)
    frame = stream(spark, folder, maxFilesPerTrigger=2)
    run = Run(frame, checkpoint)
    # Before 4.2, Spark does not ask a Python source again, and the next run goes on.
    expected = [[(0,), (1,)], [(2,), (3,)], [(4,)]]
    assert [sorted(map(tuple, batch)) for batch in run.batches] == (
        expected if ENDS_WITH_LIMITS else expected[:1]
    )
    if not ENDS_WITH_LIMITS:
        assert Run(frame, checkpoint).rows == [(2,), (3,)]
        assert Run(frame, checkpoint).rows == [(4,)]


@pytest.mark.long
def test_a_running_stream_sees_new_files_and_reports_what_waits(spark, folder, checkpoint):
    numbers(folder, "a.parquet", 1)
    found = []
    query = (
        stream(spark, folder, maxFilesPerTrigger=1)
        .writeStream.foreachBatch(lambda rows, _: found.extend(row.n for row in rows.collect()))
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        query.processAllAvailable()
        assert found == [1]
        for number in (2, 3):
            numbers(folder, f"{number}.parquet", number, at=number)
        query.processAllAvailable()
        assert found == [1, 2, 3]
        if ENDS_WITH_LIMITS:
            assert '"files_waiting"' in query.lastProgress.sources[0].latestOffset
    finally:
        query.stop()


@pytest.mark.long
def test_a_start_at_the_newest_file_leaves_out_what_is_there(spark, folder, checkpoint):
    numbers(folder, "old.parquet", 1)
    frame = stream(spark, folder, startingOffsets="latest")
    assert Run(frame, checkpoint).rows == []
    numbers(folder, "new.parquet", 2)
    assert Run(frame, checkpoint).rows == [(2,)]


def moments(folder, name, *seconds, at=0):
    values = pa.array([value * 1_000_000 for value in seconds], pa.timestamp("us", tz="UTC"))
    put(folder, name, {"t": values}, at=at)


@pytest.mark.parametrize(
    ("policy", "expected"), [("flag", [(50, True), (95, False), (150, False)]), ("drop", [95, 150])]
)
@pytest.mark.long
def test_late_rows(spark, folder, checkpoint, policy, expected):
    options = {"eventTime": "t", "watermarkDelay": "10 s", "lateRows": policy}
    moments(folder, "a.parquet", 100, 1)
    first = Run(stream(spark, folder, **options), checkpoint)
    assert len(first.rows) == 2
    moments(folder, "b.parquet", 50, 95, 150, at=1)
    second = Run(stream(spark, folder, **options), checkpoint)
    found = [(int(row[0].timestamp()), *row[1:]) for row in second.rows]
    assert found == expected if policy == "flag" else [row[0] for row in found] == expected
    assert re.search(r"watermark\W+ms\W+140000\b", second.progress.sources[0].endOffset)


@pytest.mark.parametrize("wrong", [2**63 - 1, 9_214_646_400_000_000], ids=["infinity", "2262"])
def test_one_time_at_the_end_drops_no_later_row(spark, folder, checkpoint, wrong):
    options = {"eventTime": "t", "watermarkDelay": "10 s", "lateRows": "drop"}
    values = pa.array([wrong, 100_000_000], pa.timestamp("us", tz="UTC"))
    put(folder, "a.parquet", {"t": values}, at=0)
    first = Run(stream(spark, folder, **options).selectExpr("unix_micros(t)"), checkpoint)
    assert first.rows == [(100_000_000,), (wrong,)]
    moments(folder, "b.parquet", 95, 150, at=1)
    frame = stream(spark, folder, **options).selectExpr("unix_micros(t)")
    assert Run(frame, checkpoint).rows == [(95_000_000,), (150_000_000,)]
    moments(folder, "c.parquet", 95, 145, at=2)
    frame = stream(spark, folder, **options).selectExpr("unix_micros(t)")
    assert Run(frame, checkpoint).rows == [(145_000_000,)]


TYPES = """
    SELECT id, id % 2 = 0 AS bool, CAST(id AS BYTE) AS byte, CAST(id AS SHORT) AS short,
        CAST(id AS INT) AS int, CAST(id AS FLOAT) AS float, id / 3 AS double,
        CAST(id AS DECIMAL(9, 2)) AS dec9, CAST(id AS DECIMAL(18, 4)) AS dec18,
        CAST(id AS DECIMAL(38, 10)) AS dec38, CAST(id AS STRING) AS string,
        CAST(CAST(id AS STRING) AS BINARY) AS binary, DATE_ADD(DATE'1970-01-01', CAST(id AS INT))
        AS date, TIMESTAMP'2013-07-01 12:00:00.123456' + MAKE_DT_INTERVAL(0, id) AS ts,
        TIMESTAMP_NTZ'0001-01-01 00:00:00.000001' + MAKE_DT_INTERVAL(CAST(id AS INT)) AS ntz,
        ARRAY(id, NULL) AS list, MAP('k', id, 'n', NULL) AS map,
        NAMED_STRUCT('a', id, 'b', ARRAY(NAMED_STRUCT('t', TIMESTAMP'2500-01-01 00:00:00')))
        AS deep,
        MAP(id, ARRAY(MAP('x', CAST(id AS DECIMAL(5, 1))))) AS deeper,
        IF(id < 10, NULL, id) AS holes, CAST(NULL AS STRING) AS nothing
    FROM range(20)
"""


@pytest.mark.parametrize("stored", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_every_type_reads_as_spark_reads_it(spark, folder, checkpoint, stored):
    spark.conf.set("spark.sql.parquet.outputTimestampType", stored)
    try:
        spark.sql(TYPES).repartition(3).write.mode("overwrite").parquet(str(folder))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    expected = spark.read.parquet(str(folder))
    batch = spark.read.format("krishiv-parquet").load(str(folder))
    assert batch.schema == expected.schema
    rows = expected.orderBy("id").collect()
    assert batch.orderBy("id").collect() == rows
    streamed = Run(stream(spark, folder), checkpoint)
    found = [row for batch in streamed.batches for row in batch]
    assert sorted(found, key=lambda row: row.id) == rows


def test_a_given_schema_rules(spark, folder):
    numbers(folder, "day=2013-01-01/a.parquet", 1)
    schema = "other STRING, N DECIMAL(20, 1), day TIMESTAMP"
    frame = spark.read.format("krishiv-parquet").schema(schema).option("timeZone", "UTC")
    found = frame.load(f"file://{folder}").selectExpr("other", "N", "CAST(day AS STRING)").collect()
    assert [tuple(row) for row in found] == [(None, 1, "2012-12-31 19:00:00")]  # midnight in UTC


def test_partitions_read_as_spark_reads_them(spark, folder):
    spark.sql(
        "SELECT id, DATE_ADD(DATE'2013-01-01', CAST(id % 3 AS INT)) AS day, "
        "IF(id % 2 = 0, NULL, CONCAT('a/', id)) AS name FROM range(12)"
    ).write.mode("overwrite").partitionBy("day", "name").parquet(str(folder))
    columns = ["id", "day", "name"]
    found = spark.read.format("krishiv-parquet").load(str(folder)).select(columns)
    expected = spark.read.parquet(str(folder)).select(columns)
    assert found.schema == expected.schema
    assert found.orderBy("id").collect() == expected.orderBy("id").collect()


@pytest.mark.core
def test_a_table_of_our_sink_is_followed(spark, folder, tmp_path, checkpoint):
    table = tmp_path / "table"
    numbers(folder, "a.parquet", *range(10))

    def copy():
        query = (
            stream(spark, folder)
            .selectExpr("n", "n % 2 AS k")
            .writeStream.format("krishiv-parquet")
            .option("partitionBy", "k")
            .option("checkpointLocation", str(tmp_path / "copy"))
            .trigger(availableNow=True)
            .start(str(table))
        )
        assert query.awaitTermination(PATIENCE)

    copy()
    follow = stream(spark, table)
    assert Run(follow, checkpoint).rows == [(n, n % 2) for n in range(10)]
    numbers(folder, "b.parquet", *range(10, 15))
    copy()
    spark.sql("SELECT 100L AS n, 0L AS k").write.format("krishiv-parquet").mode("append").option(
        "partitionBy", "k"
    ).save(str(table))
    second = Run(follow, checkpoint)
    assert second.rows == [*((n, n % 2) for n in range(10, 15)), (100, 0)]
    assert Run(follow, checkpoint).rows == []


def test_errors_reach_the_user(spark, folder, tmp_path):
    numbers(folder, "a.parquet", 1)
    (folder / "b.parquet").write_bytes(b"hello")
    frame = spark.read.format("krishiv-parquet").schema("n LONG")
    with pytest.raises(Exception, match=r"b\.parquet cannot be read as Parquet"):
        frame.load(str(folder)).collect()
    assert [row.n for row in frame.option("badFiles", "skip").load(str(folder)).collect()] == [1]
    with pytest.raises(Exception, match=r"nowhere does not exist"):
        spark.read.format("krishiv-parquet").load(str(tmp_path / "nowhere"))
    with pytest.raises(Exception, match=r"did you mean 'maxFilesPerTrigger'"):
        stream(spark, folder, maxFilePerTrigger=1)


def test_a_file_that_ends_the_python_process_is_named_in_the_error(spark, folder, checkpoint):
    """By Spark's own setting: its text of what died has the name of the file that was read."""
    path = write_fatal_file(folder)
    spark.conf.set("spark.sql.execution.pyspark.udf.faulthandler.enabled", "true")
    try:
        with pytest.raises(StreamingQueryException) as caught:
            Run(stream(spark, folder), checkpoint)
    finally:
        spark.conf.unset("spark.sql.execution.pyspark.udf.faulthandler.enabled")
    line = failure_of(caught.value).line
    assert f"has ended the Python process that read {path}: " in line
    assert f"PyArrow {pa.__version__}" in line
