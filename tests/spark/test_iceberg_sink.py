"""The Iceberg sink under Spark: batches, streams, upserts in foreachBatch, bad input."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_life import ids, table_of
from pyspark.errors import PySparkException

import krishiv_spark

# PySpark 4.0 leaves the socket of a `collect` to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

EVERY_TYPE = """
    SELECT cast(1 AS tinyint) i8, cast(2 AS smallint) i16, 3 i32, 4L i64, 1.5f f32, 2.5d f64,
    cast('1.25' AS decimal(20, 2)) dec, 'x' s, binary('y') b, true bool, date '2024-02-03' d,
    timestamp '2024-02-03 04:05:06.789' ts, timestamp_ntz '2024-02-03 04:05:06.789' ntz,
    array(1, null) a, map('k', 1.5d) m, struct(1 AS x, 'z' AS y) st, cast(null AS string) n
"""


def save(frame, folder, mode="append", **options):
    writer = frame.write.format("krishiv-iceberg").mode(mode)
    writer.option("warehouse", str(folder)).options(**options).save("db.rows")


def put(folder, number, table):
    folder.mkdir(exist_ok=True)
    pq.write_table(table, folder / f"{number}.aside")
    (folder / f"{number}.aside").rename(folder / f"{number}.parquet")


def stream(spark, folder):
    source = spark.readStream.format("krishiv-parquet").option("maxFilesPerTrigger", 1)
    return source.load(str(folder))


def run(writer, checkpoint):
    """Until nothing is left; with availableNow PySpark 4.0 runs one limited batch only."""
    query = writer.option("checkpointLocation", checkpoint).start()
    query.processAllAvailable()
    query.stop()


@pytest.mark.core
def test_batches_append_and_overwrite(spark, tmp_path):
    save(spark.range(10), tmp_path, partitionBy="bucket(3, id)")
    save(spark.range(10, 20), tmp_path)
    assert ids(tmp_path) == list(range(20))
    save(spark.range(5), tmp_path, mode="overwrite")
    assert ids(tmp_path) == list(range(5))
    save(spark.range(0), tmp_path)
    assert ids(tmp_path) == list(range(5))


def test_sql_inserts_into_a_view_of_a_table(spark, tmp_path):
    save(spark.range(3), tmp_path)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW sql_rows USING `krishiv-iceberg` "
        f"OPTIONS (warehouse '{tmp_path}', table 'db.rows')"
    )
    spark.sql("INSERT INTO sql_rows VALUES (7), (8)")
    spark.sql("INSERT INTO sql_rows SELECT id + 100 FROM sql_rows WHERE id < 2")
    assert ids(tmp_path) == [0, 1, 2, 7, 8, 100, 101]


def test_every_type_of_spark(spark, tmp_path):
    frame = spark.sql(EVERY_TYPE)
    save(frame, tmp_path, partitionBy="days(ts), truncate(4, s), bool")
    (found,) = table_of(tmp_path).scan().to_arrow().to_pylist()
    (wanted,) = frame.toArrow().to_pylist()
    assert found == wanted


def test_a_stream_says_how_far_it_is(spark, tmp_path, checkpoint):
    source = tmp_path / "in"
    for number in range(3):
        put(
            source, number, pa.table({"id": [number], "ts": pa.array([number], pa.timestamp("ms"))})
        )
    frame = spark.readStream.format("krishiv-parquet").option("eventTime", "ts")
    rows = frame.option("maxFilesPerTrigger", 1).load(str(source))
    for _ in range(2):
        writer = rows.writeStream.format("krishiv-iceberg").option("warehouse", str(tmp_path))
        run(writer.option("path", "db.rows"), checkpoint)
    assert ids(tmp_path) == [0, 1, 2]
    table = table_of(tmp_path)
    summaries = [snapshot.summary for snapshot in table.snapshots()]
    assert [summary["krishiv.watermark"] for summary in summaries] == ["0", "1", "2"]
    assert [summary.get("krishiv.offsets") for summary in summaries] == [None] * 3
    (said,) = (text for key, text in table.properties.items() if key.startswith("krishiv.offsets."))
    assert json.loads(said)["epoch"] == 2
    assert "2.parquet" in said


def test_update_mode_through_foreach_batch(spark, tmp_path, checkpoint):
    source = tmp_path / "in"
    put(source, 0, pa.table({"word": ["a", "b", "a"]}))
    put(source, 1, pa.table({"word": ["b", "c"]}))
    counts = stream(spark, source).groupBy("word").count()
    write = krishiv_spark.upsert("db.rows", "word", warehouse=str(tmp_path))
    seen = []

    def twice(batch, number):
        seen.append(number)
        write(batch, number)
        write(batch, number)  # as Spark repeats its last batch

    run(counts.writeStream.outputMode("update").foreachBatch(twice), checkpoint)
    rows = table_of(tmp_path).scan().to_arrow()
    assert dict(zip(rows["word"].to_pylist(), rows["count"].to_pylist(), strict=True)) == {
        "a": 2,
        "b": 2,
        "c": 1,
    }
    assert len(table_of(tmp_path).snapshots()) == len(seen) == 2


def test_complete_mode(spark, tmp_path, checkpoint):
    source = tmp_path / "in"
    put(source, 0, pa.table({"word": ["a", "b", "a"]}))
    put(source, 1, pa.table({"word": ["b", "c"]}))
    counts = stream(spark, source).groupBy("word").count()
    writer = counts.writeStream.outputMode("complete").format("krishiv-iceberg")
    run(writer.option("path", "db.rows").option("warehouse", str(tmp_path)), checkpoint)
    rows = table_of(tmp_path).scan().to_arrow()
    assert sorted(rows["count"].to_pylist()) == [1, 2, 2]


@pytest.mark.once
def test_bad_input_is_named(spark, tmp_path):
    with pytest.raises(PySparkException, match="did you mean 'partitionBy'"):
        save(spark.range(1), tmp_path, partitionedBy="id")
    save(spark.range(1), tmp_path)
    table_of(tmp_path).catalog.drop_table("db.rows")
    with pytest.raises(PySparkException, match=r"no table db\.rows"):
        save(spark.range(1), tmp_path, createTable="never")
    with pytest.raises(PySparkException, match="interval"):
        save(spark.sql("SELECT interval '1' day AS i"), tmp_path)
