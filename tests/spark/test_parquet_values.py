"""Values between Spark's own Parquet source and ours: the same, or refused."""

from contextlib import contextmanager

import pyspark
import pytest
from parquet_forms import encrypted
from pyspark.errors import PySparkException

pytestmark = [
    pytest.mark.once,
    # PySpark 4.0 leaves the socket of a `collect` to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
HAS_TIME = tuple(int(part) for part in pyspark.__version__.split(".")[:2]) >= (4, 3)


@contextmanager
def settings(spark, **values):
    given = {f"spark.sql.{name.replace('_', '.')}": value for name, value in values.items()}
    before = {name: spark.conf.get(name) for name in given}
    try:
        for name, value in given.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


OLD = """
    SELECT id, d, t, NAMED_STRUCT('d', d, 't', t) AS s, ARRAY(d, NULL) AS a, MAP('k', t) AS m
    FROM VALUES (1, DATE'0001-01-01', TIMESTAMP'0001-01-01 00:00:00'),
        (2, DATE'1000-02-28', TIMESTAMP'1000-02-28 23:59:59.999999'),
        (3, DATE'1582-10-04', TIMESTAMP'1582-10-04 12:00:00'),
        (4, DATE'1582-10-15', TIMESTAMP'1582-10-15 00:00:00'),
        (5, DATE'1883-11-18', TIMESTAMP'1883-11-18 12:03:57'),
        (6, DATE'9999-12-31', TIMESTAMP'9999-12-31 23:59:59.999999'), (7, NULL, NULL)
        AS rows(id, d, t)
"""


@pytest.mark.parametrize("stored", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_files_in_the_calendar_of_spark_2_are_read_as_spark_reads_them(spark, tmp_path, stored):
    folder = str(tmp_path)
    modes = {
        "parquet_datetimeRebaseModeInWrite": "LEGACY",
        "parquet_int96RebaseModeInWrite": "LEGACY",
    }
    with settings(spark, parquet_outputTimestampType=stored, **modes):
        spark.sql(OLD).coalesce(1).write.mode("overwrite").parquet(folder)
    texts = [f"CAST({column} AS STRING)" for column in ("id", "d", "t", "s", "a", "m")]
    expected = spark.read.parquet(folder).selectExpr(*texts).collect()
    assert "0001-01-01" in str(expected)
    assert (
        spark.read.format("krishiv-parquet").load(folder).selectExpr(*texts).collect() == expected
    )


PARTITIONED = """
    SELECT id, t, f FROM VALUES (1, TIMESTAMP'2020-01-01 00:00:00', DOUBLE('Infinity')),
        (2, TIMESTAMP'2020-11-01 01:30:00', DOUBLE('-Infinity')),
        (3, TIMESTAMP'2020-11-01 05:30:00.25', DOUBLE('NaN')), (4, NULL, -0.0D) AS rows(id, t, f)
"""


def test_partitions_of_our_sink_are_the_same_for_spark_in_any_session(spark, tmp_path):
    table = str(tmp_path / "table")
    written = spark.sql(PARTITIONED)
    expected = written.selectExpr("id", "unix_micros(t) AS t", "CAST(f AS STRING) AS f").collect()
    sink = written.write.format("krishiv-parquet").option("partitionBy", "t,f").mode("append")
    sink.save(table)
    for zone in ("America/New_York", "Asia/Tokyo"):
        with settings(spark, session_timeZone=zone):
            for reader in (spark.read, spark.read.format("krishiv-parquet")):
                rows = reader.schema("id INT, t TIMESTAMP, f DOUBLE")
                read = rows.parquet(table) if reader is spark.read else rows.load(table)
                found = read.selectExpr("id", "unix_micros(t) AS t", "CAST(f AS STRING) AS f")
                assert sorted(found.collect()) == sorted(expected)


def test_a_folder_of_spark_is_read_in_the_zone_that_is_given(spark, tmp_path):
    folder = str(tmp_path)
    spark.sql(PARTITIONED).drop("f").write.mode("overwrite").partitionBy("t").parquet(folder)
    given = spark.read.format("krishiv-parquet").schema("id INT, t TIMESTAMP")
    found = given.option("timeZone", "America/New_York").load(folder)
    assert sorted(found.collect()) == sorted(spark.sql(PARTITIONED).select("id", "t").collect())
    with pytest.raises(PySparkException, match="'timeZone'"):
        spark.read.format("krishiv-parquet").schema("id INT, t TIMESTAMP").load(folder).collect()


@pytest.mark.skipif(not HAS_TIME, reason="no type TIME")
def test_times_of_day_of_our_sink_are_read_by_spark(spark, tmp_path):
    table = str(tmp_path / "table")
    rows = spark.sql("SELECT TIME'12:34:56.789' AS t, ARRAY(TIME'23:59:59.999999') AS a")
    with settings(spark, timeType_enabled="true"):
        rows.write.format("krishiv-parquet").mode("append").save(table)
        assert spark.read.parquet(table).collect() == rows.collect()
        assert spark.read.format("krishiv-parquet").load(table).collect() == rows.collect()


def test_a_column_that_drifts_is_refused_with_file_column_and_types(spark, tmp_path):
    spark.sql("SELECT NAMED_STRUCT('Name', 1e300D) AS c").write.mode("overwrite").parquet(
        str(tmp_path)
    )
    given = spark.read.format("krishiv-parquet").schema("c STRUCT<name: FLOAT>")
    with pytest.raises(
        PySparkException, match=r"\.parquet: column 'c\.name' of type double .* float"
    ):
        given.load(str(tmp_path)).collect()


@pytest.mark.parametrize(
    ("query", "by", "says"),
    [
        ("SELECT 1 AS a, 2 AS A", "", "columns 'a' and 'A' differ only in case"),
        ("SELECT 1 AS x, 'a' AS `.p`", ".p", "readers ignore folders"),
        ("SELECT 1 AS x, REPEAT('é', 127) AS p", "p", "column 'p' has the value é+.*256 bytes"),
    ],
)
def test_what_no_reader_would_get_back_is_refused_by_name(spark, tmp_path, query, by, says):
    sink = spark.sql(query).write.format("krishiv-parquet").mode("append")
    with pytest.raises(PySparkException, match=says):
        sink.option("partitionBy", by).save(str(tmp_path / "table"))
    assert not list(tmp_path.rglob("*.parquet"))


EXTREMES = [
    "-5000-01-01", "-4714-11-23", "-4713-11-23", "-4713-11-25", "0001-01-01",
    "1600-06-06 06:06:06.123456", "1677-09-21 00:12:43.145224", "1900-01-01",
    "2262-04-11 23:47:17", "9999-12-31 23:59:59.999999",
    "+250000-01-01", "+290000-01-01", "+290300-01-01", "+292278-01-01",
]  # fmt: skip


def test_times_of_int96_are_those_that_spark_reads_flat_and_nested(spark, tmp_path):
    rows = spark.createDataFrame(list(enumerate(EXTREMES)), "id INT, text STRING").selectExpr(
        "id",
        "CAST(text AS TIMESTAMP) AS t",
        "ARRAY(CAST(text AS TIMESTAMP), NULL) AS a",
        "NAMED_STRUCT('t', CAST(text AS TIMESTAMP)) AS s",
        "MAP('k', CAST(text AS TIMESTAMP)) AS m",
    )
    written = {
        "parquet_outputTimestampType": "INT96",
        "parquet_int96RebaseModeInWrite": "CORRECTED",
    }
    with settings(spark, **written):
        rows.coalesce(1).write.parquet(f"{tmp_path}/in")
    micros = [f"unix_micros({name})" for name in ("t", "a[0]", "s.t", "m['k']")]
    right, ours = (
        spark.read.format(name).load(f"{tmp_path}/in").selectExpr("id", *micros).collect()
        for name in ("parquet", "krishiv-parquet")
    )
    assert sorted(ours) == sorted(right)
    assert len({*ours}) == len(EXTREMES)


def test_an_encrypted_column_ends_no_process_and_is_not_skipped(spark, tmp_path):
    encrypted(tmp_path / "a.parquet", plaintext_footer=True)
    reader = spark.read.format("krishiv-parquet").option("badFiles", "skip")
    assert reader.option("columns", "open").load(str(tmp_path)).count() == 2
    with pytest.raises(PySparkException, match="column 'secret' is not supported: it is encrypted"):
        reader.option("columns", "secret").load(str(tmp_path)).count()
