"""Bad input through a real query: a clear error, no row moved, nothing lost by it."""

import json
import re
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from tables import look, make_input

FILES, ROWS = 6, 10
TOTAL = FILES * ROWS


@pytest.fixture
def source(tmp_path: Path) -> Path:
    make_input(tmp_path / "in", FILES, ROWS)
    return tmp_path / "in"


def copy(spark, source: Path, tmp_path: Path, read=(), write=()):
    rows = spark.readStream.format("krishiv-parquet").option("maxFilesPerTrigger", 2)
    rows = rows.options(**dict(read)).load(str(source))
    options = {"checkpointLocation": str(tmp_path / "checkpoint"), **dict(write)}
    writer = rows.writeStream.format("krishiv-parquet").options(**options)
    query = writer.start(str(tmp_path / "out"))
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def assert_said_first(text: str, says: str) -> None:
    """The sentence is in the first line, and the traceback after it; Python 3.10 has no notes."""
    first, _, rest = text.partition("\n")
    if sys.version_info >= (3, 11):
        assert re.search(says, first), text
        assert "Traceback (most recent call last)" in rest


def exact(tmp_path: Path) -> None:
    assert look(tmp_path / "out") == (TOTAL, TOTAL, TOTAL * (TOTAL - 1) // 2)


@pytest.mark.parametrize(
    ("read", "write", "says"),
    [
        ({"maxFilePerTrigger": "1"}, {}, "did you mean 'maxFilesPerTrigger'"),
        ({"watermarkDelay": "ten minutes"}, {}, "watermarkDelay"),
        ({"eventTime": "when"}, {}, "names column 'when'"),
        ({"eventTime": "id"}, {}, "an event time is"),
        ({"lateRows": "flag"}, {}, "needs an event time"),
        ({}, {"partitonBy": "day"}, "did you mean 'partitionBy'"),
    ],  # more of the sink's: tests/unit/test_parquet_sink.py
)
def test_bad_options_say_what_and_move_nothing(spark, source, tmp_path, read, write, says):
    with pytest.raises(PySparkException, match=says) as error:
        copy(spark, source, tmp_path, read, write)
    assert_said_first(str(error.value), says)
    assert look(tmp_path / "out") == (0, 0, 0)
    if not read:  # a bad option of the sink leaves a checkpoint that goes on where it was
        copy(spark, source, tmp_path)
        exact(tmp_path)


def test_a_path_that_is_not_there_is_named(spark, tmp_path):
    with pytest.raises(PySparkException, match="nowhere"):
        spark.readStream.format("krishiv-parquet").load(str(tmp_path / "nowhere"))


def test_a_checkpoint_that_only_the_session_knows_is_refused_with_advice(spark, source, tmp_path):
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "session"))
    try:
        rows = spark.readStream.format("krishiv-parquet").load(str(source))
        query = rows.writeStream.format("krishiv-parquet").start(str(tmp_path / "out"))
        with pytest.raises(StreamingQueryException, match=r"\.option\('checkpointLocation'"):
            query.processAllAvailable()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert look(tmp_path / "out") == (0, 0, 0)


def newest_offsets(tmp_path: Path) -> Path:
    return max((tmp_path / "checkpoint/offsets").glob("[0-9]*"), key=lambda path: int(path.name))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda offset: {**offset, "v": 99}, "upgrade krishiv-spark"),
        # tests/unit/test_offset.py tries these without Spark
        pytest.param(
            lambda offset: {**offset, "files": 7}, "damaged parquet offset", marks=pytest.mark.long
        ),
        pytest.param(
            lambda offset: {**offset, "kind": "memory"},
            "belongs to one query",
            marks=pytest.mark.long,
        ),
    ],
    ids=["newer version", "damaged", "another source's"],
)
def test_an_offset_that_cannot_be_used_is_refused(spark, source, tmp_path, change, says):
    copy(spark, source, tmp_path)
    path = newest_offsets(tmp_path)
    *head, offset = path.read_text().splitlines()
    path.write_text("\n".join([*head, json.dumps(change(json.loads(offset)))]))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException, match=says) as error:
        copy(spark, source, tmp_path)
    assert_said_first(str(error.value), says)
    exact(tmp_path)


def test_a_damaged_entry_of_the_epoch_log_is_named_and_loses_nothing(spark, source, tmp_path):
    copy(spark, source, tmp_path)
    entry = max((tmp_path / "out/_krishiv").glob("*/log/*.json"))
    whole = entry.read_bytes()
    entry.write_bytes(whole[:20])
    make_input(source, FILES + 1, ROWS)
    with pytest.raises(StreamingQueryException, match=f"{entry.name}.* is damaged"):
        copy(spark, source, tmp_path)
    exact(tmp_path)
    entry.write_bytes(whole)
    copy(spark, source, tmp_path)
    assert look(tmp_path / "out")[:2] == (TOTAL + ROWS, TOTAL + ROWS)


def test_rows_of_another_type_than_the_table_are_refused(spark, source, tmp_path):
    copy(spark, source, tmp_path)
    other = spark.range(3).selectExpr("cast(id as string) as id")
    said = r"column 'id' is string, but int64"
    with pytest.raises(PySparkException, match=said) as error:
        other.write.format("krishiv-parquet").mode("append").save(str(tmp_path / "out"))
    assert_said_first(str(error.value), said)
    exact(tmp_path)


@pytest.mark.long
def test_a_type_that_parquet_cannot_hold_is_refused_before_the_first_row(spark, tmp_path):
    rows = spark.sql("select interval 1 day as pause")
    with pytest.raises(PySparkException, match="column 'pause' is an interval"):
        rows.write.format("krishiv-parquet").mode("append").save(str(tmp_path / "out"))
    assert not list((tmp_path / "out").glob("**/*.parquet"))


@pytest.mark.long
def test_a_start_from_latest_survives_a_crash_of_the_first_batch(spark, source, tmp_path):
    table = tmp_path / "out"
    table.touch()  # a file where the table has to be: the first batch, the empty one, fails
    with pytest.raises(StreamingQueryException, match="cannot be"):
        copy(spark, source, tmp_path, read={"startingOffsets": "latest"})
    make_input(source, FILES + 2, ROWS)
    table.unlink()
    copy(spark, source, tmp_path, read={"startingOffsets": "latest"})
    assert look(table)[:2] == (2 * ROWS, 2 * ROWS)
