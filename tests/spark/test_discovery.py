"""Spark finds the formats by itself, in Python and in SQL."""

import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import krishiv_spark
from krishiv_spark.parquet.partition_folders import _escape


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three rows in a folder of Parquet files."""
    folder = tmp_path / "a table"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3], "name": ["a", "b", None]}), folder / "x.parquet")
    return folder


@pytest.fixture
def name(spark: SparkSession):
    name = f"t_{uuid.uuid4().hex}"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


ROWS = [(1, "a"), (2, "b"), (3, None)]


def rows(frame) -> list[tuple]:
    return sorted(map(tuple, frame.collect()))


def test_a_format_is_found_without_being_registered(spark, folder):
    assert rows(spark.read.format("krishiv-parquet").load(str(folder))) == ROWS
    assert spark.readStream.format("krishiv-parquet").load(str(folder)).isStreaming


def test_a_format_writes_without_being_registered(spark, folder, tmp_path):
    frame = spark.read.parquet(str(folder))
    frame.write.format("krishiv-parquet").mode("append").save(str(tmp_path / "copy"))
    assert rows(spark.read.parquet(str(tmp_path / "copy"))) == ROWS


@pytest.mark.core
def test_every_format_is_found(spark, tmp_path):
    pushed = f"found-{uuid.uuid4().hex}"
    source = krishiv_spark.memory_source(pushed)
    source.add(pa.table({"n": [1]}))
    stream = spark.readStream.format("krishiv-memory").load(pushed)
    query = (
        stream.writeStream.format("krishiv-console")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    query.stop()
    source.clear()
    assert query.exception() is None


@pytest.mark.core
def test_a_view_in_sql_reads_a_format(spark, folder, name):
    spark.sql(f"CREATE TEMPORARY VIEW {name} USING `krishiv-parquet` OPTIONS (path '{folder}')")
    assert rows(spark.sql(f"SELECT id, name FROM {name} WHERE id < 3")) == ROWS[:2]
    spark.sql(f"DROP VIEW {name}")


def test_a_table_in_sql_is_refused_with_what_to_do(spark, folder, name):
    # Spark hands a table's options over when it is created, and never again.
    with pytest.raises(AnalysisException, match="use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE {name} USING `krishiv-parquet` OPTIONS (path '{folder}')")


def test_a_table_in_sql_reads_a_format_when_each_query_says_where(spark, folder, name):
    spark.sql(f"CREATE TABLE {name} (id BIGINT, name STRING) USING `krishiv-parquet`")
    assert rows(spark.sql(f"SELECT * FROM {name} WITH (path = '{folder}')")) == ROWS
    with pytest.raises(AnalysisException, match="option 'path' is required"):
        spark.sql(f"SELECT * FROM {name}").collect()


def test_a_misspelt_option_is_told_in_sql_too(spark, folder, name):
    with pytest.raises(AnalysisException, match="did you mean 'columns'"):
        spark.sql(
            f"CREATE TEMPORARY VIEW {name} USING `krishiv-parquet` "
            f"OPTIONS (path '{folder}', colums 'id')"
        )


def test_registering_is_allowed_any_number_of_times(spark, folder):
    session = spark.newSession()
    for _ in range(2):
        krishiv_spark.register(session)
        assert rows(session.read.format("krishiv-parquet").load(str(folder))) == ROWS


def test_partition_folders_are_escaped_as_spark_escapes_them(spark):
    utils = spark._jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils
    text = "".join(map(chr, [*range(1, 256), 0x20AC]))
    assert _escape(text) == utils.escapePathName(text)
