"""The Iceberg source under Spark."""

import datetime as dt
import os
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from iceberg_tables import append, append_files, compact, delete_rows, make_table, paths, table_in
from patience import PATIENCE

VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
KNOWS_LIMITS = VERSION >= (4, 2)
KNOWS_FILTERS = VERSION >= (4, 1)
UTC = dt.timezone.utc
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC"))])


def rows(*ids):
    times = [dt.datetime(2013, 1, 1, n % 24, tzinfo=UTC) for n in ids]
    return pa.table({"id": ids, "name": [f"n{n}" for n in ids], "at": times}, schema=SCHEMA)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "warehouse"
    path.mkdir()
    make_table(path, SCHEMA)
    return path


def stream(spark, folder, **options):
    return (
        spark.readStream.format("krishiv-iceberg").options(warehouse=folder, **options).load("db.t")
    )


def batch(spark, folder, **options):
    return spark.read.format("krishiv-iceberg").options(warehouse=folder, **options).load("db.t")


def run(frame, checkpoint):
    """Return the ids of each batch, until all available rows were read."""
    found = []
    query = (
        frame.writeStream.foreachBatch(lambda b, _: found.append(sorted(r.id for r in b.collect())))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE)
    return found


def ids(frame):
    return sorted(row.id for row in frame.collect())


@pytest.mark.core
def test_a_table_is_read_as_a_batch(spark, folder):
    first = append(folder, rows(1, 2))
    append(folder, rows(3))
    frame = batch(spark, folder)
    assert frame.dtypes == [("id", "bigint"), ("name", "string"), ("at", "timestamp")]
    assert ids(frame) == [1, 2, 3]
    assert ids(batch(spark, folder, **{"snapshot-id": first})) == [1, 2]
    found = batch(spark, folder, columns="name", rowFilter="id > 1").collect()
    assert sorted(row.name for row in found) == ["n2", "n3"]
    delete_rows(folder, {path: [0] for path in paths(folder)})
    assert ids(batch(spark, folder)) == [2]


def test_conditions_reach_the_source(spark, folder):
    append_files(folder, rows(1, 2), rows(3, 4), rows(5))
    where = "id >= 3 and name <> 'n9' and at < timestamp'2013-01-01 04:30:00Z' and name like 'n%'"
    frame = batch(spark, folder, maxPartitionBytes="10k").where(where)
    assert frame.rdd.getNumPartitions() == 3
    assert ids(frame) == [3, 4]
    if KNOWS_FILTERS:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            frame = batch(spark, folder, maxPartitionBytes="10k").where(where)
            assert frame.rdd.getNumPartitions() == 1  # of three files
            assert ids(frame) == [3, 4]
            assert ids(batch(spark, folder).where("id = 3 or id = 5")) == [3, 5]
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def count_read_files(files, read):
    """Return how many files a read opens, by their times of access, which a mount may not keep."""
    for path in files:
        os.utime(path, (0, path.stat().st_mtime))
    read()
    return sum(path.stat().st_atime > 0 for path in files)


@pytest.mark.long  # data of twelve tasks
def test_a_limit_reads_the_files_of_one_task(spark, folder):
    append_files(folder, *(rows(*range(n * 50_000, (n + 1) * 50_000)) for n in range(12)))
    files = [Path(path.removeprefix("file://")) for path in paths(folder)]
    frame = batch(spark, folder, maxPartitionBytes="4m")
    if count_read_files(files, frame.collect) == 0:
        pytest.skip("this file system keeps no times of access (noatime)")
    for read in (frame.limit(1).collect, frame.where("id >= 0").head, lambda: frame.take(3)):
        assert count_read_files(files, read) == 1
    # A limit within a plan: Spark starts all tasks, and each ends after its first batch.
    assert frame.rdd.getNumPartitions() > 2
    assert count_read_files(files, frame.limit(1).count) <= frame.rdd.getNumPartitions()


@pytest.mark.core
def test_a_stream_reads_every_row_once_across_restarts(spark, folder, checkpoint):
    append_files(folder, rows(1), rows(2), rows(3))
    frame = stream(spark, folder, **{"streaming-max-files-per-micro-batch": "2"})
    expected = [[1, 2], [3]]
    # Before 4.2, Spark does not ask a Python source again, and the next run goes on.
    found = run(frame, checkpoint)
    if not KNOWS_LIMITS:
        found += run(frame, checkpoint)
    assert found == expected
    append(folder, rows(4))
    compact(folder)
    with table_in(folder).update_schema() as update:
        update.rename_column("name", "text")
    append(folder, rows(5).rename_columns(["id", "text", "at"]))
    again = stream(spark, folder)
    assert again.columns == ["id", "text", "at"]
    assert [n for part in run(again, checkpoint) for n in part] == [4, 5]
    assert run(again, checkpoint) == []


@pytest.mark.long
def test_a_running_stream_sees_new_snapshots_and_reports_what_waits(spark, folder, checkpoint):
    append(folder, rows(1))
    found = []
    query = (
        stream(spark, folder, eventTime="at", maxFilesPerTrigger=1)
        .writeStream.foreachBatch(lambda b, _: found.extend(row.id for row in b.collect()))
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        query.processAllAvailable()
        assert found == [1]
        for number in (2, 3):
            append(folder, rows(number))
        query.processAllAvailable()
        assert found == [1, 2, 3]
        progress = query.lastProgress.sources[0]
        watermark = int(dt.datetime(2013, 1, 1, 3, tzinfo=UTC).timestamp()) * 1000
        assert str(watermark) in progress.endOffset
        if KNOWS_LIMITS:
            assert '"rows_waiting"' in progress.latestOffset
    finally:
        query.stop()


@pytest.mark.long
def test_a_snapshot_that_changes_rows_ends_the_query(spark, folder, checkpoint):
    append(folder, rows(1, 2))
    assert run(stream(spark, folder), checkpoint) == [[1, 2]]
    table_in(folder).delete("id = 1")
    with pytest.raises(Exception, match="streaming-skip-overwrite-snapshots"):
        run(stream(spark, folder), checkpoint)
    skipping = {"streaming-skip-overwrite-snapshots": "true"}
    append(folder, rows(3))
    assert run(stream(spark, folder, **skipping), checkpoint) == [[3]]


def test_what_our_sink_writes_and_expires_is_followed(spark, folder, checkpoint):
    def write(first, end):
        frame = spark.range(first, end, 1, 2).selectExpr("id", "cast(id AS string) AS name")
        frame = frame.selectExpr("*", "timestamp_seconds(id) AS at")
        options = {"warehouse": folder, "keepSnapshots": "2", "mergeManifests": "true"}
        frame.write.format("krishiv-iceberg").mode("append").options(**options).save("db.t")

    write(0, 10)
    assert run(stream(spark, folder), checkpoint) == [[*range(10)]]
    write(10, 20)
    write(20, 30)
    assert len(table_in(folder).metadata.snapshots) == 2
    assert run(stream(spark, folder), checkpoint) == [[*range(10, 30)]]
    for first in (30, 40, 50):
        write(first, first + 10)
    with pytest.raises(Exception, match="has expired, and so have snapshots after it"):
        run(stream(spark, folder), checkpoint)
