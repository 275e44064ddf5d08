"""The Delta source under Spark: batches, conditions, streams over restarts."""

import pytest
from delta_life import DeltaLife, ids, numbered
from deltalake import DeltaTable
from pyspark.errors import PySparkException

# PySpark 4.0 leaves the socket of a `collect` to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture
def table(tmp_path):
    return tmp_path / "table"


def load(spark, folder, **options):
    return spark.read.format("krishiv-delta").options(**options).load(str(folder))


def test_a_stream_reads_every_row_once_across_restarts(spark, table, tmp_path, checkpoint):
    life, copy = DeltaLife(table), tmp_path / "copy"
    for epoch in range(4):
        life.epoch(epoch, numbered(10 * epoch), tasks=2)
        rows = spark.readStream.format("krishiv-delta").option("maxFilesPerTrigger", 1)
        writer = rows.load(str(table)).writeStream.format("krishiv-delta")
        query = writer.option("checkpointLocation", checkpoint).start(str(copy))
        query.processAllAvailable()
        query.stop()
        assert ids(copy) == [*range(10 * epoch + 10)]


def test_a_batch_reads_a_version_and_skips_files(spark, table):
    life = DeltaLife(table)
    for epoch in range(3):
        life.epoch(epoch, numbered(10 * epoch))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = load(spark, table).where("id >= 15 AND id < 17").collect()
        others = load(spark, table).where("id != 7 AND NOT id IN (8, 9) AND id < 20").collect()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert sorted(row.id for row in found) == [15, 16]
    assert sorted(row.id for row in others) == [*range(7), *range(10, 20)]
    assert load(spark, table, versionAsOf=2).count() == 20
    spark.sql(f"CREATE TEMPORARY VIEW delta_rows USING `krishiv-delta` OPTIONS (path '{table}')")
    assert spark.sql("SELECT max(id) AS m FROM delta_rows").collect()[0].m == 29


def test_a_missing_table_is_named(spark, table):
    with pytest.raises(PySparkException, match="is no Delta table"):
        load(spark, table)


def test_changes_are_read_as_a_batch_and_as_a_stream(spark, table, checkpoint):
    enabled = {"tableProperty.delta.enableChangeDataFeed": "true"}
    DeltaLife(table, **enabled).epoch(0, numbered(0, 4))
    DeltaTable(str(table)).delete("id = 2")
    found = load(spark, table, readChangeFeed=True, startingVersion=0)
    assert found.schema["_commit_timestamp"].dataType.typeName() == "timestamp"
    wanted = [("delete", 2, 2), *(("insert", n, 1) for n in range(4))]
    columns = ("_change_type", "id", "_commit_version")
    assert sorted(tuple(row) for row in found.select(*columns).collect()) == wanted
    assert found.where("_change_type = 'delete' AND _commit_version > 1").count() == 1
    rows = spark.readStream.format("krishiv-delta").options(readChangeFeed=True, startingVersion=0)
    writer = rows.load(str(table)).select(*columns).writeStream.format("memory")
    query = writer.queryName("changed").option("checkpointLocation", checkpoint).start()
    query.processAllAvailable()
    query.stop()
    assert sorted(tuple(row) for row in spark.table("changed").collect()) == wanted
