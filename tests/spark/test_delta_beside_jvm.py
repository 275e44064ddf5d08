"""The Delta sink beside delta-spark: each reads what the other writes, and knows its marks."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from delta_life import DeltaLife, ids, numbered
from delta_spark import DeltaSpark
from deltalake import DeltaTable
from pyspark.sql import datasource

from benchmarks.peer import DELTA
from krishiv_spark.errors import OffsetError, OptionError
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.delta.reader import DeltaReader

pytestmark = [
    pytest.mark.skipif(
        pyspark.__version__[:3] not in DELTA.lines, reason="Delta has no connector for this Spark"
    ),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def jvm(tmp_path_factory):
    with DeltaSpark(tmp_path_factory.mktemp("delta-spark")) as spark:
        yield spark


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tablé"


# --- values, partitions, statistics

UTC = dt.timezone.utc
ROWS = pa.table(
    {
        "id": pa.array(range(4), pa.int64()),
        "i8": pa.array([-1, None, 3, 4], pa.int8()),
        "f": pa.array([0.5, float("nan"), None, float("inf")], pa.float64()),
        "n": pa.array(
            [Decimal("1.25"), Decimal("-3.50"), None, Decimal("99999999999999999999.75")],
            pa.decimal128(22, 2),
        ),
        "ts": pa.array([1_700_000_000_123_456, None, 0, -1], pa.timestamp("us", "UTC")),
        "ntz": pa.array([1_700_000_000_123_999, None, 0, -1], pa.timestamp("us")),
        "day": pa.array([dt.date(2013, 1, 1), None, dt.date(1970, 1, 1), dt.date(9999, 1, 1)]),
        "edge": pa.array([253_402_300_799_999_999, None, 0, 1], pa.timestamp("us", "UTC")),
        "edge_ntz": pa.array([253_402_300_799_999_999, None, 0, 1], pa.timestamp("us")),
        "flag": [True, None, False, True],
        "text": ["a", "b" * 40 + "é", None, "\U0010ffff" * 40],
        "nested": [{"x": 1, "y": ["a"]}, None, {"x": None, "y": None}, {"x": 7, "y": []}],
        "m": pa.array([[("k", 1)], None, [], [("z", None)]], pa.map_(pa.string(), pa.int64())),
    }
)
CONDITIONS = [
    "i8 = 3",
    "f > 0.75",
    "isnan(f)",
    "n >= 99999999999999999999.75",
    "n < 0",
    "ts = timestamp '2023-11-14 17:13:20.123456'",
    "ts > timestamp '2023-11-14 17:13:20.1234'",
    "ntz = timestamp_ntz '2023-11-14 22:13:20.123999'",
    "ts < timestamp '1969-12-31 19:00:00'",
    "edge >= timestamp_micros(253402300799999999)",
    "edge < timestamp '1970-01-02'",
    "edge_ntz >= timestamp_ntz '9999-12-31 23:59:59.999999'",
    "flag",
    "NOT flag",
    "flag = false",
    "flag IS NULL",
    "day = '9999-01-01'",
    "day IS NULL",
    "text = repeat('b', 40) || 'é'",
    "text > repeat('b', 40)",
    "text >= 'c'",
    "nested.x = 7",
    "nested.x IS NULL",
    "p = 'a/b c%20é'",
    "p IS NULL",
    "t = timestamp '2013-01-01 00:00:00.5'",
]
PARTS = pa.table(
    {
        "p": ["a/b c%20é", None, "x=y", "__HIVE_DEFAULT_PARTITION__"],
        "t": pa.array([1_357_016_400_500_000, None, 0, -1], pa.timestamp("us", "UTC")),
        "d": pa.array([Decimal("1.10"), None, Decimal("0.00"), Decimal("-7.00")]),
    }
)
PARTITIONED = pa.table([*ROWS.columns, *PARTS.columns], [*ROWS.column_names, *PARTS.column_names])


@pytest.fixture
def written(folder):
    life = DeltaLife(folder, partitionBy="p,t,d")
    for number in range(4):  # a file for each row, so that each condition can skip the others
        life.epoch(number, PARTITIONED.slice(number, 1))
    return folder


def test_delta_spark_reads_the_same_values(jvm, written):
    columns = (
        "id, i8, f, n, unix_micros(ts), day, text, p, unix_micros(t), d, nested.x, nested.y, m"
    )
    found = jvm.sql(f"SELECT {columns} FROM delta.`{written}` ORDER BY id")
    wanted = [
        [
            row["id"], row["i8"], row["f"], row["n"], _micros(PARTITIONED["ts"][i]), row["day"],
            row["text"], row["p"], _micros(PARTITIONED["t"][i]), row["d"],
            (row["nested"] or {}).get("x"), (row["nested"] or {}).get("y"),
            None if row["m"] is None else dict(row["m"]),
        ]
        for i, row in enumerate(PARTITIONED.to_pylist())
    ]  # fmt: skip
    assert [_plain(row) for row in found] == [_plain(row) for row in wanted]


def _micros(value):
    return value.cast(pa.int64()).as_py()


def _plain(row):
    """Numbers that JSON and Python do not compare are texts."""
    return [str(v) if isinstance(v, (float, Decimal, dt.date)) else v for v in row]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_delta_spark_skips_no_row_by_our_statistics(jvm, written, condition):
    skipped = f"SELECT id FROM delta.`{written}` WHERE {condition} ORDER BY id"
    # A condition on a value that is computed from the column cannot use statistics.
    whole = (
        f"SELECT id FROM (SELECT * FROM delta.`{written}` LIMIT 100) WHERE {condition} ORDER BY id"
    )
    assert jvm.sql(skipped) == jvm.sql(whole) != []


def test_delta_spark_has_the_statistics(jvm, written):
    jvm.sql("SET spark.databricks.delta.optimizeMetadataQuery.enabled=true")
    assert jvm.sql(f"SELECT count(*), max(id), min(i8) FROM delta.`{written}`") == [[4, 3, -1]]


# --- marks


def test_each_knows_the_marks_of_the_other(jvm, folder):
    ours = DeltaLife(folder, query="app")
    ours.epoch(3, numbered(0, 2))
    jvm.write(folder, [100], txnAppId="app", txnVersion="3")
    assert ids(folder) == [0, 1]
    jvm.write(folder, [100], txnAppId="app", txnVersion="4")
    ours.epoch(4, numbered(10, 2))
    ours.epoch(5, numbered(10, 2))
    jvm.write(folder, [101], txnAppId="app", txnVersion="5")
    assert ids(folder) == [0, 1, 10, 11, 100]


def test_a_stream_changes_from_delta_spark_to_ours_and_back(jvm, folder, tmp_path):
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    for number, form in enumerate(["delta", "krishiv-delta", "delta"]):
        pq.write_table(numbered(number * 10), source / f"{number}.parquet")
        query = jvm.copy_stream(source, folder, checkpoint, form)
        assert ids(folder) == [*range(number * 10 + 10)]
        assert DeltaTable(str(folder)).transaction_version(query) == number


# --- the source on tables of delta-spark


def rows_of_source(folder, *filters, streaming=False, **given):
    options = DeltaReader.options_type.parse({"path": str(folder), **given}, "krishiv-delta")
    one = DeltaReader(options, None, streaming=streaming)
    one.push(filters)
    start, rows = one.initial(), []
    while (end := one.latest(start, UNLIMITED)) != start:
        tasks = one.plan(start, end)
        rows += [row for task in tasks for batch in one.read(task) for row in batch.to_pylist()]
        if not streaming:
            break
        start = end
    return rows


def test_the_source_leaves_out_rows_of_deletion_vectors(jvm, folder):
    jvm.sql(
        f"CREATE TABLE delta.`{folder}` (id BIGINT) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors'='true')"
    )
    jvm.write(folder, range(5000))
    jvm.sql(f"DELETE FROM delta.`{folder}` WHERE id % 7 = 3")
    jvm.sql(f"DELETE FROM delta.`{folder}` WHERE id % 7 = 4")
    kept = [n for n in range(5000) if n % 7 not in {3, 4}]
    assert sorted(row["id"] for row in rows_of_source(folder)) == kept
    assert sorted(row["id"] for row in rows_of_source(folder, streaming=True)) == kept
    once = [n for n in range(5000) if n % 7 != 3]
    assert sorted(row["id"] for row in rows_of_source(folder, versionAsOf="2")) == once
    changed = rows_of_source(folder, streaming=True, startingVersion="2", ignoreChanges="true")
    assert sorted(row["id"] for row in changed) == sorted([*once, *kept])
    with pytest.raises(OffsetError, match="version 2"):
        rows_of_source(folder, streaming=True, startingVersion="2")


def test_the_source_reads_values_and_statistics_of_delta_spark(jvm, folder):
    jvm.sql(
        f"CREATE TABLE delta.`{folder}` USING delta PARTITIONED BY (p, t) AS SELECT id, "
        "timestamp_micros(1700000000123456 + id) AS ts, timestamp_ntz '2013-01-01' AS ntz, "
        "repeat('b', 40) || id AS text, cast(id AS decimal(20, 2)) AS n, "
        "named_struct('x', id) AS s, "
        "concat('a/b ', id, '%') AS p, timestamp_micros(id * 500000) AS t FROM range(4)"
    )
    jvm.sql(f"ALTER TABLE delta.`{folder}` ADD COLUMNS (later STRING)")
    rows = sorted(rows_of_source(folder), key=lambda row: row["id"])
    times = [
        dt.datetime.fromtimestamp(0, UTC) + dt.timedelta(microseconds=500_000 * n) for n in range(4)
    ]
    assert [row["t"] for row in rows] == times
    assert [row["p"] for row in rows] == [f"a/b {n}%" for n in range(4)]
    assert [row["text"] for row in rows] == ["b" * 40 + str(n) for n in range(4)]
    assert [row["later"] for row in rows] == [None] * 4
    exact = dt.datetime.fromtimestamp(1_700_000_000, UTC) + dt.timedelta(microseconds=123_458)
    for condition in (
        datasource.EqualTo(("ts",), exact),
        datasource.EqualTo(("text",), "b" * 40 + "2"),
        datasource.EqualTo(("n",), Decimal("2.00")),
        datasource.EqualTo(("s", "x"), 2),
        datasource.EqualTo(("t",), times[2]),
        datasource.EqualTo(("p",), "a/b 2%"),
    ):
        assert 2 in {row["id"] for row in rows_of_source(folder, condition)}, condition


def test_the_source_reads_checkpoints_of_the_newer_form(jvm, folder):
    jvm.sql(
        f"CREATE TABLE delta.`{folder}` (id BIGINT) USING delta TBLPROPERTIES "
        "('delta.checkpointPolicy'='v2', 'delta.checkpointInterval'='2')"
    )
    for number in range(5):
        jvm.write(folder, [number])
    assert sorted(row["id"] for row in rows_of_source(folder)) == [*range(5)]
    DeltaLife(folder).epoch(0, numbered(5, 1))
    assert jvm.sql(f"SELECT count(*) FROM delta.`{folder}`") == [[6]]


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_changes_equal_those_that_delta_spark_reads(jvm, folder, vectors):
    jvm.sql(
        f"CREATE TABLE delta.`{folder}` (id BIGINT, text STRING, p STRING) USING delta "
        f"PARTITIONED BY (p) TBLPROPERTIES ('delta.enableChangeDataFeed'='true', "
        f"'delta.enableDeletionVectors'='{vectors}')"
    )
    numbers = "SELECT id, 't' || id, concat('a/b %', id % 2) FROM range"
    merge = (
        f"MERGE INTO delta.`{folder}` t USING (SELECT explode(array(2L, 77L)) AS id) s ON t.id = "
        "s.id WHEN MATCHED THEN UPDATE SET text = 'merged' WHEN NOT MATCHED THEN INSERT "
        "(id, text, p) VALUES (s.id, 'in', 'x')"
    )
    for statement in (
        f"INSERT INTO delta.`{folder}` {numbers}(20)",
        f"DELETE FROM delta.`{folder}` WHERE id % 7 = 3",
        f"UPDATE delta.`{folder}` SET text = 'new' WHERE id % 5 = 1",
        f"DELETE FROM delta.`{folder}` WHERE p = 'a/b %1' AND id > 12",
        merge,
        f"OPTIMIZE delta.`{folder}`",
        f"RESTORE TABLE delta.`{folder}` TO VERSION AS OF 2",
        f"INSERT OVERWRITE delta.`{folder}` {numbers}(3)",
    ):
        jvm.sql(statement)
    DeltaLife(folder).epoch(0, pa.table({"id": [500], "text": ["ours"], "p": ["y"]}))
    columns = "id, text, p, _change_type, _commit_version, unix_millis(_commit_timestamp)"
    wanted = jvm.sql(f"SELECT {columns} FROM table_changes_by_path('{folder}', 0)")
    for streaming in (False, True):
        rows = rows_of_source(
            folder, streaming=streaming, readChangeFeed="true", startingVersion="0"
        )
        found = [
            [
                *(row[name] for name in ("id", "text", "p", "_change_type", "_commit_version")),
                round(row["_commit_timestamp"].timestamp() * 1000),
            ]
            for row in rows
        ]
        assert sorted(found) == sorted(wanted)
    some = jvm.sql(f"SELECT {columns} FROM table_changes_by_path('{folder}', 2, 4)")
    rows = rows_of_source(folder, readChangeFeed="true", startingVersion="2", endingVersion="4")
    assert sorted(row["id"] for row in rows) == sorted(row[0] for row in some) != []


@pytest.mark.parametrize("mode", ["name", "id"])
def test_column_mapping_is_refused_by_name(jvm, folder, mode):
    jvm.sql(
        f"CREATE TABLE delta.`{folder}` (id BIGINT) USING delta "
        f"TBLPROPERTIES ('delta.columnMapping.mode'='{mode}')"
    )
    jvm.write(folder, [1])
    with pytest.raises(OptionError, match="column mapping"):
        rows_of_source(folder)
    with pytest.raises(OptionError, match="column mapping"):
        DeltaLife(folder).epoch(0, numbered(5, 1))


# --- tables of delta-spark


@pytest.mark.parametrize(
    "setting", ["delta.enableChangeDataFeed", "delta.enableDeletionVectors", "delta.appendOnly"]
)
def test_a_table_of_delta_spark_takes_our_rows(jvm, folder, setting):
    jvm.sql(
        f"CREATE TABLE delta.`{folder}` (id BIGINT) USING delta TBLPROPERTIES ('{setting}'='true')"
    )
    jvm.write(folder, range(5))
    if setting != "delta.appendOnly":
        jvm.sql(f"DELETE FROM delta.`{folder}` WHERE id = 2")
    DeltaLife(folder).epoch(0, numbered(10, 2))
    kept = [0, 1, 2, 3, 4] if setting == "delta.appendOnly" else [0, 1, 3, 4]
    assert jvm.sql(f"SELECT id FROM delta.`{folder}` ORDER BY id") == [[n] for n in (*kept, 10, 11)]
    if setting == "delta.appendOnly":
        return
    DeltaLife(folder, output=OutputMode.REPLACE).epoch(1, numbered(20, 1))
    assert jvm.sql(f"SELECT id FROM delta.`{folder}`") == [[20]]
    if setting == "delta.enableChangeDataFeed":
        changes = f"SELECT id, _change_type FROM table_changes_by_path('{folder}', 4) ORDER BY id"
        found = [[n, "delete"] for n in (*kept, 10, 11)] + [[20, "insert"]]
        assert jvm.sql(changes) == found


def test_delta_spark_changes_the_table_between_our_epochs(jvm, folder):
    life = DeltaLife(folder)
    for epoch in range(0, 30, 3):
        life.epoch(epoch, numbered(epoch, 2))
        jvm.write(folder, [1000 + epoch])
        staged = life.stage(epoch + 1, numbered(epoch + 2, 1))
        jvm.sql(f"OPTIMIZE delta.`{folder}`")
        life.publish(epoch + 1, staged, numbered(0))
    assert ids(folder) == [*range(30), *range(1000, 1030, 3)]
    assert jvm.sql(f"SELECT count(*), count(DISTINCT id) FROM delta.`{folder}`") == [[40, 40]]
