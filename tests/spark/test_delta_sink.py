"""The Delta sink under Spark: batches, streams, foreachBatch, bad input."""

import pytest
from delta_life import ids, rows_of
from deltalake import DeltaTable
from pyspark.errors import PySparkException

# PySpark 4.0 leaves the socket of a `collect` to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

EVERY_TYPE = """
    SELECT cast(1 AS tinyint) i8, cast(2 AS smallint) i16, 3 i32, 4L i64, 1.5f f32, 2.5d f64,
    cast('1.25' AS decimal(20, 2)) dec, 'x' s, binary('y') b, true bool, date '2024-02-03' d,
    timestamp '2024-02-03 04:05:06.789' ts, timestamp_ntz '2024-02-03 04:05:06.789' ntz,
    array(1, null) a, map('k', 1.5d) m, struct(1 AS x, 'z' AS y) st, cast(null AS string) n
"""


def save(frame, folder, mode="append", **options):
    frame.write.format("krishiv-delta").mode(mode).options(**options).save(str(folder))


@pytest.fixture
def table(tmp_path):
    return tmp_path / "table"


def test_batches_append_and_overwrite(spark, table):
    save(spark.range(10), table)
    save(spark.range(10, 20), table)
    assert ids(table) == list(range(20))
    save(spark.range(5), table, mode="overwrite")
    assert ids(table) == list(range(5))
    save(spark.range(0), table)
    assert ids(table) == list(range(5))
    save(spark.range(0), table, mode="overwrite")
    assert ids(table) == []


def test_every_type_of_spark(spark, table):
    frame = spark.sql(EVERY_TYPE)
    save(frame, table, partitionBy="i8,dec,s,bool,d,ts,ntz,f64")
    (found,) = rows_of(table).select(frame.columns).to_pylist()
    (wanted,) = frame.toArrow().to_pylist()
    assert found == wanted


def test_a_stream_in_complete_mode_replaces_the_table(spark, table, tmp_path, checkpoint):
    for number in range(2):
        spark.range(number * 5, number * 5 + 5).coalesce(1).write.mode("append").parquet(
            str(tmp_path / "in")
        )
    source = spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 1)
    counts = source.parquet(str(tmp_path / "in")).groupBy().count()
    writer = counts.writeStream.outputMode("complete").format("krishiv-delta")
    query = writer.option("checkpointLocation", checkpoint).start(str(table))
    query.processAllAvailable()
    query.stop()
    assert rows_of(table)["count"].to_pylist() == [10]
    assert DeltaTable(str(table)).transaction_version(query.id) == 1


def test_a_batch_of_for_each_batch_is_written_once(spark, table):
    for _ in range(2):
        save(spark.range(3), table, txnAppId="copy of x", txnVersion="7")
    assert ids(table) == [0, 1, 2]
    save(spark.range(3, 4), table, txnAppId="copy of x", txnVersion="8")
    assert ids(table) == [0, 1, 2, 3]


def test_upserts_are_refused_with_the_way_on(spark, table):
    with pytest.raises(PySparkException, match="MERGE"):
        spark.range(3).write.format("krishiv-delta").mode("append").option("mode", "upsert").save(
            str(table)
        )
