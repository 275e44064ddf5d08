"""The PostgreSQL source against a real server, role by role, without Spark."""

import concurrent.futures
import datetime as dt
import multiprocessing
import re
import shutil
import time
from decimal import Decimal
from itertools import pairwise

import psycopg
import pyarrow as pa
import pytest
from pg_onlooker import Database
from pg_pool import open_pooled
from pg_server import open_killable
from postgres import require_programs
from pyspark.sql import datasource as spark

from krishiv_spark.arrow.conform import conform
from krishiv_spark.errors import KrishivError, SchemaError, StorageError
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions
from krishiv_spark.sinks.postgresql.writer import PostgresqlWriter
from krishiv_spark.sources.postgresql.options import PostgresqlSourceOptions
from krishiv_spark.sources.postgresql.reader import PostgresqlReader

pytestmark = pytest.mark.long  # a server; the kit has the source

FORMAT = "krishiv-postgresql"
UTC = dt.timezone.utc


@pytest.fixture
def database(server) -> Database:
    end_snapshots(server.database)  # they have locks
    server.database.run("DROP SCHEMA public CASCADE")
    server.database.run("CREATE SCHEMA public")
    return server.database


def make_reader(database, schema=None, **options):
    usual = {} if {"query", "table"} & options.keys() else {"table": "orders"}
    parsed = PostgresqlSourceOptions.parse(database.options(**usual, **options), FORMAT)
    return PostgresqlReader(parsed, schema, streaming=False)


def plan(reader):
    return reader.plan(reader.initial(), reader.latest(reader.initial(), None))


def read(reader, tasks=None):
    batches = [b for task in tasks or plan(reader) for b in reader.read(task)]
    return pa.Table.from_batches(batches, reader.infer_schema() if not batches else None)


def ids(table, name="id"):
    return sorted(table[name].to_pylist(), key=lambda value: (value is not None, value))


# --- values


LONG = 2**63 - 1
WRITTEN = {
    "flag": (pa.bool_(), [True, False]),
    "small": (pa.int16(), [-(2**15), 2**15 - 1]),
    "whole": (pa.int32(), [-(2**31), 2**31 - 1]),
    "large": (pa.int64(), [-LONG - 1, LONG]),
    "real": (pa.float32(), [float("inf"), -1.5]),
    "double": (pa.float64(), [float("-inf"), 0.1]),
    "exact": (pa.decimal128(38, 10), [Decimal("-1234567890123456789012345678.0123456789"), 0]),
    "text": (pa.string(), ["", 'ä\\N\t"\n\u2603']),
    "bytes": (pa.binary(), [b"", b"\0\xff"]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "instant": (pa.timestamp("us", "UTC"), [dt.datetime(1, 1, 1, tzinfo=UTC), 2**55]),
    "local": (pa.timestamp("us"), [dt.datetime.fromisoformat("9999-12-31 23:59:59.999999"), -1]),
    "clock": (pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999999)]),
    "span": (pa.duration("us"), [dt.timedelta(-999, 1, 2), dt.timedelta(999)]),
}


@pytest.mark.long
def test_rows_of_the_sink_are_read_as_they_were_written(database):
    kinds = {**WRITTEN}
    for name, (kind, values) in WRITTEN.items():
        kinds[f"{name}_list"] = (pa.list_(kind), [[values[0], None, values[1]], []])
    columns = {n: pa.array([*values, None], kind) for n, (kind, values) in kinds.items()}
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), **columns})
    options = PostgresqlSinkOptions.parse(database.options(table="orders"), FORMAT)
    writer = PostgresqlWriter(options, rows.schema, OutputMode.APPEND)
    staged = writer.stage(iter(rows.to_batches()), Task("q", 0, 0, 0), writer.plan(None))
    writer.committer().publish(Epoch("q", 0), [staged])
    assert make_reader(database).infer_schema().equals(rows.schema)
    assert read(make_reader(database)).sort_by("id").equals(rows)


READ_AS_TEXT = {
    "uuid": "6f5dc7c9-7943-4d4c-ac84-577b55992ff0",
    "jsonb": '{"a": 1}',
    "json": '{"a":1}',
    "inet": "10.0.0.1/32",
    "mood": "happy",
    "char(3)": "a  ",
    "bit(3)": "101",
    "timetz": "12:00:00+01",
    "int4range": "[1,3)",
    "numeric": "1.50",
    "numeric(3,5)": "0.00123",
    "tstzrange": '["2020-01-01 00:00:00+00","2020-01-02 00:00:00+00")',
}


def test_other_types_are_read_as_their_text(database):
    database.run("DROP TYPE IF EXISTS mood; CREATE TYPE mood AS ENUM ('sad', 'happy')")
    with database.connect() as connection:
        connection.execute("SET timezone = 'Asia/Kolkata'")
        types = ", ".join(f'"{name}" {name}' for name in READ_AS_TEXT)
        connection.execute(f"CREATE TABLE orders ({types})")
        marks = ", ".join(["%s"] * len(READ_AS_TEXT))
        connection.execute(f"INSERT INTO orders VALUES ({marks})", [*READ_AS_TEXT.values()])
    found = read(make_reader(database))
    assert found.to_pylist() == [READ_AS_TEXT]
    assert set(found.schema.types) == {pa.string()}


def test_a_schema_chooses_columns_and_the_decimals_of_numbers_without_limits(database):
    database.run('CREATE TABLE orders (n numeric, other text, "ID" int, list numeric[])')
    database.run("INSERT INTO orders VALUES (1.5, 'x', 1, '{2.25,NULL}')")
    money = pa.decimal128(20, 4)
    schema = pa.schema([("id", pa.int64()), ("n", money), ("list", pa.list_(money))])
    reader = make_reader(database, schema)
    (task,) = plan(reader)
    assert "other" not in task.statements[0]
    (batch,) = reader.read(task)
    assert conform(batch, schema).to_pylist() == [
        {"id": 1, "n": Decimal("1.5000"), "list": [Decimal("2.2500"), None]}
    ]
    assert make_reader(database, columns="other").infer_schema().names == ["other"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("'infinity'::date", "infinity, which Spark cannot represent: replace it in"),
        ("'-infinity'::timestamptz", "infinity, which Spark cannot represent"),
        ("'24:00'::time", "24:00:00, which Spark's TIME does not have"),
        ("interval '1 month'", "an interval with months, whose length is not constant"),
        ("'NaN'::numeric(5,2)", "a value that decimal128.5, 2. does not have"),
        ("ARRAY[[1,2],[3,4]]", "an array of several dimensions: cast it to text"),
        ("ARRAY['infinity'::date]", "infinity"),
        ("'294276-12-31'::timestamp", "a time that is too late for Spark"),
    ],
)
def test_a_value_that_spark_lacks_names_its_column(database, value, reason):
    with pytest.raises(SchemaError, match=rf"column 'odd' has {reason}"):
        read(make_reader(database, query=f"SELECT {value} AS odd"))


# --- one snapshot


def fill(database, rows=20_000):
    database.run("CREATE TABLE orders (id bigint, name text)")
    database.run("INSERT INTO orders SELECT n, 'order ' || n FROM generate_series(1, %s) n", [rows])


def _plan_elsewhere(given, queue):
    parsed = PostgresqlSourceOptions.parse(given, FORMAT)
    reader = PostgresqlReader(parsed, None, streaming=False)
    queue.put(plan(reader))


@pytest.mark.long
def test_all_tasks_read_the_snapshot_of_a_planner_that_has_ended(database):
    fill(database)
    given = database.options(table="orders", numPartitions="4")
    spawned = multiprocessing.get_context("spawn")
    queue = spawned.Queue()
    planner = spawned.Process(target=_plan_elsewhere, args=(given, queue))
    planner.start()
    tasks = queue.get(timeout=60)
    planner.join()
    database.run("UPDATE orders SET id = id + 1000000 WHERE id % 2 = 0")
    database.run("DELETE FROM orders WHERE id % 3 = 0")
    database.run("VACUUM orders")
    reader = make_reader(database, numPartitions="4")
    assert len(tasks) >= 4
    assert ids(read(reader, tasks)) == [*range(1, 20_001)]
    assert ids(read(reader, tasks)) == [*range(1, 20_001)]  # a second action on the DataFrame
    with (
        database.connect(options="-c lock_timeout=50") as other,
        pytest.raises(psycopg.errors.LockNotAvailable),
    ):
        other.execute("TRUNCATE orders")  # which no snapshot would see


def end_snapshots(database):
    return database.run(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE application_name = 'krishiv-postgresql snapshot'"
    )


def test_a_task_after_the_end_of_the_snapshot_fails(database):
    fill(database)
    reader = make_reader(database, numPartitions="4")
    tasks = plan(reader)
    end_snapshots(database)
    with pytest.raises(
        StorageError, match=r"snapshot of table orders has ended .* run load\(\) again"
    ):
        read(reader, tasks)


@pytest.mark.long  # waits for the end of snapshots
def test_a_snapshot_ends_some_time_after_its_last_task(database):
    fill(database)
    reader = make_reader(database, numPartitions="4", snapshotTimeout="1200 ms")
    tasks = plan(reader)
    slow = reader.read(tasks[0])
    next(slow)
    time.sleep(3)
    assert read(reader, tasks[1:]).num_rows > 0
    slow.close()
    assert len(end_snapshots(database)) == 1
    tasks = plan(reader)
    time.sleep(2)
    assert end_snapshots(database) == []
    with pytest.raises(StorageError, match="snapshotTimeout"):
        read(reader, tasks)


def test_one_task_and_a_timeout_of_zero_leave_nothing_on_the_server(database):
    fill(database)
    for options in ({}, {"numPartitions": "4", "snapshotTimeout": "0s"}):
        reader = make_reader(database, **options)
        tasks = plan(reader)
        assert {task.snapshot for task in tasks} == {None}
        assert ids(read(reader, tasks)) == [*range(1, 20_001)]
    assert end_snapshots(database) == []


@pytest.mark.long  # another server
def test_a_snapshot_is_kept_through_a_pool(database):
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("PgBouncer is not installed (Debian: apt-get install pgbouncer)")
    fill(database)
    with open_pooled(program, database) as url:
        reader = make_reader(database, url=url, numPartitions="4")
        tasks = plan(reader)
        database.run("DELETE FROM orders")
        assert ids(read(reader, tasks)) == [*range(1, 20_001)]


@pytest.mark.long  # a second server
def test_a_standby_is_read_until_its_replay_ends_the_snapshot(server, database):
    fill(database)
    settings = {"hot_standby": "on", "max_standby_streaming_delay": "200ms"}
    with open_killable(require_programs(), primary=server, **settings) as standby:
        reader = make_reader(standby.database, numPartitions="4")
        tasks = plan(reader)
        assert ids(read(reader, tasks)) == [*range(1, 20_001)]
        with pytest.raises(StorageError, match="another server than the planner's"):
            read(make_reader(database, numPartitions="4"), tasks)
        database.run("DELETE FROM orders WHERE id > 10")
        database.run("VACUUM orders")
        deadline = time.monotonic() + 30
        while list_snapshots(standby.database):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with pytest.raises(StorageError, match="snapshotTimeout"):
            read(reader, tasks)
        assert ids(read(reader)) == [*range(1, 11)]


def list_snapshots(database):
    return database.run(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'krishiv-postgresql snapshot'"
    )


# --- division into tasks


PARTED = """
CREATE TABLE orders (id bigint, name text) PARTITION BY RANGE (id);
CREATE TABLE "First part" PARTITION OF orders FOR VALUES FROM (MINVALUE) TO (5000);
CREATE TABLE second (name text, gone int, id bigint);
ALTER TABLE second DROP COLUMN gone;
ALTER TABLE orders ATTACH PARTITION second FOR VALUES FROM (5000) TO (MAXVALUE);
"""
WIDE = "CREATE TABLE base (id bigint, name text); "
RELATIONS = {
    "table": "CREATE TABLE orders (id bigint, name text)",
    "partitions": PARTED,
    "inheritance": "CREATE TABLE orders (id bigint, name text); "
    "CREATE TABLE more (extra int) INHERITS (orders); INSERT INTO more VALUES (-1, 'x', 2)",
    "view": WIDE + "CREATE VIEW orders AS SELECT * FROM base",
    "materialized view": WIDE + "INSERT INTO base SELECT n, 'm' || n FROM generate_series(1, 9999) "
    "n; CREATE MATERIALIZED VIEW orders AS SELECT * FROM base",
}


@pytest.mark.parametrize("relation", RELATIONS)
def test_each_row_is_in_one_task(database, relation):
    database.run(RELATIONS[relation])
    if relation != "materialized view":
        database.run("INSERT INTO orders SELECT n, 'm' || n FROM generate_series(1, 9999) n")
    wanted = [row[0] for row in database.run("SELECT id FROM orders ORDER BY id")]
    for options in ({}, {"numPartitions": "7"}, {"maxPartitionBytes": "40k"}):
        reader = make_reader(database, **options)
        tasks = plan(reader)
        assert ids(read(reader, tasks)) == wanted
        assert (len(tasks) > 1) is (relation != "view" and bool(options))


@pytest.mark.long  # a second with the types
def test_rights_and_policies_of_the_whole_apply(database):
    database.run(PARTED + "INSERT INTO orders SELECT n, 'm' || n FROM generate_series(1, 9999) n")
    database.run(
        "DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN PASSWORD 'guest'; "
        "GRANT USAGE ON SCHEMA public TO guest; GRANT SELECT ON orders TO guest"
    )
    guest = {
        "url": database.url.replace("krishiv@", ""),
        "user": "guest",
        "password": "guest",
        "numPartitions": "4",
    }
    assert read(make_reader(database, **guest)).num_rows == 9999
    database.run(
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY; GRANT SELECT ON second TO guest;"
        'GRANT SELECT ON "First part" TO guest; CREATE POLICY p ON orders USING (id < 10)'
    )
    assert ids(read(make_reader(database, **guest))) == [*range(1, 10)]


@pytest.mark.long  # reads each of six types several times
@pytest.mark.parametrize(
    ("kind", "values", "bounds"),
    [
        ("integer", "n - 50", ("-20", "7")),
        ("bigint", "n * 100000000000000000", ("0", "5")),
        ("numeric(10,3)", "CASE WHEN n < 3 THEN 'NaN' ELSE n * 1.125 END", ("1.5", "20")),
        (
            "date",
            "CASE WHEN n < 3 THEN 'infinity' ELSE date '2020-01-01' + n::int END",
            ("2020-01-05", "2020-02-01"),
        ),
        (
            "timestamp",
            "timestamp '1900-01-01' + n * interval '1 day'",
            ("1900-01-05", "1900-02-01"),
        ),
        (
            "timestamptz",
            "CASE WHEN n < 3 THEN '-infinity' ELSE now() + n * interval '1 hour' END",
            ("2020-01-01T00:00:00Z", "2020-01-01 02:00"),
        ),
    ],
)
def test_ranges_of_a_column_have_each_row(database, kind, values, bounds):
    database.run(f"CREATE TABLE orders (id bigint, key {kind})")
    database.run(f"INSERT INTO orders SELECT n, {values} FROM generate_series(1, 90) n")
    database.run("INSERT INTO orders VALUES (91, NULL)")
    low, high = bounds
    given = {"partitionColumn": "KEY", "numPartitions": "5"}
    for more in ({}, {"lowerBound": low, "upperBound": high}):
        for source in ({"table": "orders"}, {"query": "SELECT * FROM orders; "}):
            options = {**given, **more, **source}
            reader = make_reader(database, pa.schema([("id", pa.int64())]), **options)
            tasks = plan(reader)
            sizes = [read(reader, [task]).num_rows for task in tasks]
            assert sum(sizes) == 91
            assert ids(read(reader, tasks)) == [*range(1, 92)]
            if not more and kind != "numeric(10,3)":
                assert len(sizes) == 5
                assert max(sizes) < 30


def test_an_empty_table_has_no_rows(database):
    database.run("CREATE TABLE orders (id bigint, at date)")
    for options in ({}, {"partitionColumn": "at", "numPartitions": "3"}):
        reader = make_reader(database, **options)
        assert [b for task in plan(reader) for b in reader.read(task)] == []


TIMES = ("0044-03-15 12:00:00.000001 BC", "1999-12-31 23:59:59.999999", "2027-06-05 04:03:02.1")


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
def test_intervals_have_numbers_of_32_bits(database, kind):
    """PostgreSQL 14 and older refuse others."""
    database.run(f"CREATE TABLE orders (id bigint, at {kind})")
    for n, text in enumerate(TIMES):
        database.run(f"SET timezone = 'UTC'; INSERT INTO orders VALUES ({n}, '{text}')")
    options = {"partitionColumn": "at", "numPartitions": "97", "snapshotTimeout": "30d"}
    reader = make_reader(database, pa.schema([("id", pa.int64())]), **options)
    tasks = plan(reader)
    assert len(tasks) == 97
    assert ids(read(reader, tasks)) == [0, 1, 2]
    statements = [statement for task in tasks for statement in task.statements]
    statements += [text for (text,) in database.run("SELECT query FROM pg_stat_activity")]
    found = [part for text in statements for part in re.findall(r"interval '([^']*)'", text)]
    assert len(found) >= 97
    assert max(int(number) for part in found for number in re.findall(r"\d+", part)) < 2**31


def test_borders_of_times_are_exact(database):
    """Tasks of one microsecond each have the time at their border."""
    database.run("CREATE TABLE orders (id bigint, at timestamp)")
    database.run(
        "INSERT INTO orders SELECT n, '2000-01-01'::timestamp + (base + n) * interval '1 us' "
        "FROM generate_series(0, 9) n, (VALUES (-86400000003), (789004800000000)) AS v(base)"
    )
    for low in ("1999-12-30 23:59:59.999997", "2025-01-01 00:00:00"):
        first = dt.datetime.fromisoformat(low)
        bounds = {"lowerBound": low, "upperBound": str(first + dt.timedelta(microseconds=10))}
        options = {"partitionColumn": "at", "numPartitions": "10", **bounds}
        reader = make_reader(database, pa.schema([("id", pa.int64())]), **options)
        tasks = plan(reader)
        assert [read(reader, [task])["id"].to_pylist() for task in tasks[1:9]] == [
            [n] for n in range(1, 9)
        ]


# --- conditions

ROWS = """
CREATE TABLE orders (id bigint PRIMARY KEY, name text, code char(5), at timestamptz, paid boolean,
                     price numeric(8,2), size real, day date, label text COLLATE loose, key uuid);
INSERT INTO orders SELECT n, CASE WHEN n % 7 > 0 THEN 'it''s 100%_' || n END, 'c' || n % 10,
    timestamptz '2020-01-01Z' + n * interval '1 hour', n % 2 = 0, n * 1.25, n / 4.0,
    date '2020-01-01' + n::int, CASE WHEN n % 2 = 0 THEN 'Abc' ELSE 'abc' END,
    lpad(n::text, 32, '0')::uuid FROM generate_series(1, 500) n;
INSERT INTO orders (id, size) VALUES (501, 'NaN'), (502, NULL);
"""
AT = dt.datetime(2020, 1, 2, tzinfo=UTC)
KEY = f"{'0' * 8}-0000-0000-0000-{'0' * 10}42"
FILTERS = {
    "number": ([spark.EqualTo(("id",), 5)], "id = 5", 1),
    "quotes": (
        [spark.StringStartsWith(("name",), "it's 100%_4")],
        "name LIKE 'it''s 100\\%\\_4%'",
        95,
    ),
    "end": ([spark.StringEndsWith(("name",), "_42")], "name LIKE '%\\_42'", 0),
    "inside": ([spark.StringContains(("name",), "%_49")], "name LIKE '%\\%\\_49%'", 8),
    "list": ([spark.In(("id",), (1, 2, 700))], "id IN (1, 2)", 2),
    "text": ([spark.EqualTo(("name",), "it's 100%_8")], "name = 'it''s 100%_8'", 1),
    "char": ([spark.EqualTo(("code",), "c3   ")], "code = 'c3'", 50),
    "time": ([spark.LessThan(("at",), AT)], "at < '2020-01-02Z'", 23),
    "day": ([spark.GreaterThanOrEqual(("day",), dt.date(2021, 5, 1))], "day >= '2021-05-01'", 15),
    "flag": ([spark.EqualNullSafe(("paid",), value=True)], "paid", 250),
    "price": ([spark.GreaterThan(("price",), Decimal("620.00"))], "price > 620", 4),
    "not a number": ([spark.GreaterThan(("size",), 124.9)], "size > 124.9", 2),
    "uuid": ([spark.EqualTo(("key",), KEY)], f"key = '{KEY}'", 1),
    "null": (
        [spark.IsNull(("name",)), spark.IsNotNull(("at",))],
        "name IS NULL AND at IS NOT NULL",
        71,
    ),
    "negation": ([spark.Not(spark.In(("id",), (3, 4)))], "id NOT IN (3, 4)", 500),
}
LEFT_OUT = {
    "order of texts": spark.GreaterThan(("name",), "it"),
    "negated text": spark.Not(spark.EqualTo(("label",), "abc")),
    "no such character": spark.EqualTo(("name",), "a\0b"),
    "no uuid": spark.EqualTo(("key",), "x"),
    "null": spark.EqualNullSafe(("id",), None),
    "a part": spark.EqualTo(("name", "first"), 1),
    "another type": spark.EqualTo(("id",), "5"),
    "too large": spark.EqualTo(("id",), 2**70),
}


@pytest.fixture
def filtered(database):
    database.run(
        "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    )
    database.run(ROWS)
    return database


@pytest.mark.long
def test_the_server_checks_conditions(filtered):
    for name, (filters, same, count) in FILTERS.items():
        wanted = [row[0] for row in filtered.run(f"SELECT id FROM orders WHERE {same} ORDER BY 1")]
        reader = make_reader(filtered, maxPartitionBytes="8k")
        reader.push(filters)
        assert ids(read(reader)) == wanted, name
        assert len(wanted) == count or not count, name


def test_a_condition_that_the_server_checks_otherwise_is_left_to_spark(filtered):
    for name, each in LEFT_OUT.items():
        reader = make_reader(filtered)
        reader.push([each])
        assert read(reader).num_rows == 502, name


def test_texts_that_a_collation_takes_for_equal_are_not_lost(filtered):
    reader = make_reader(filtered)
    reader.push([spark.EqualTo(("label",), "abc")])
    assert read(reader).num_rows >= 250


@pytest.mark.long  # inserts many rows
def test_conditions_of_null_hold_for_nulls_and_composite_values(database):
    database.run("CREATE TYPE pair AS (a int, b int)")
    database.run("CREATE TABLE orders (id int, n int, p pair)")
    database.run("INSERT INTO orders VALUES (1, 5, (1, 2)), (2, 6, (1, NULL))")
    database.run("INSERT INTO orders VALUES (3, NULL, (NULL, NULL)), (4, NULL, NULL)")
    cases = [
        (spark.IsNotNull(("p",)), [1, 2, 3]),
        (spark.IsNull(("p",)), [4]),
        (spark.Not(spark.IsNull(("p",))), [1, 2, 3]),
    ]
    for condition, wanted in cases:
        reader = make_reader(database)
        reader.push([condition])
        assert ids(read(reader)) == wanted, condition
    reader = make_reader(database)
    reader.push([spark.Not(spark.EqualNullSafe(("n",), 5))])
    assert {2, 3, 4} <= set(ids(read(reader)))  # Spark checks the others again


def test_a_read_that_waits_for_a_truncate_has_the_new_rows(database):
    database.run("CREATE TABLE orders (id int)")
    database.run("INSERT INTO orders VALUES (1)")
    tasks = plan(make_reader(database))
    with (
        database.connect(autocommit=False) as other,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        other.execute("TRUNCATE orders")
        other.execute("INSERT INTO orders VALUES (2)")
        waiting = pool.submit(lambda: ids(read(make_reader(database), tasks)))
        waits = "SELECT FROM pg_locks WHERE NOT granted"
        deadline = time.monotonic() + 20
        while not other.execute(waits).fetchall():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        other.commit()
        assert waiting.result(20) == [2]


def test_a_query_that_waits_for_a_truncate_has_the_new_rows(database):
    """Its tables cannot be locked before the snapshot, so that the read begins again."""
    database.run("CREATE TABLE orders (id int)")
    database.run("INSERT INTO orders VALUES (1)")
    ranges = {"partitionColumn": "id", "numPartitions": "2", "lowerBound": "1", "upperBound": "3"}
    reader = make_reader(database, query="SELECT id FROM orders", **ranges)
    with (
        database.connect(autocommit=False) as other,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        other.execute("TRUNCATE orders")
        other.execute("INSERT INTO orders VALUES (2)")
        waiting = pool.submit(lambda: ids(read(reader)))
        waits = "SELECT FROM pg_locks WHERE NOT granted"
        deadline = time.monotonic() + 20
        while not other.execute(waits).fetchall():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        other.commit()
        assert waiting.result(20) == [2]
    end_snapshots(database)


@pytest.mark.long  # a standby
def test_a_promoted_standby_keeps_the_snapshot_of_its_tasks(server, database):
    fill(database)
    with open_killable(require_programs(), primary=server, hot_standby="on") as standby:
        reader = make_reader(standby.database, numPartitions="4")
        first, *rest = plan(reader)
        found = ids(read(reader, [first]))
        standby.promote()
        deadline = time.monotonic() + 20
        while standby.database.run("SELECT pg_is_in_recovery()") != [(False,)]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        standby.database.run("DELETE FROM orders WHERE id % 2 = 0")
        found += ids(read(reader, rest))
        assert sorted(found) == ids(read(make_reader(database)))
    end_snapshots(database)


def test_a_task_goes_on_if_the_process_that_keeps_the_snapshot_dies(database):
    fill(database)
    reader = make_reader(database, numPartitions="4")
    first, second, *_ = plan(reader)
    every = ids(read(reader, [first]))
    batches = reader.read(first)
    begun = [next(batches)]
    end_snapshots(database)
    database.run("DELETE FROM orders")
    assert ids(pa.Table.from_batches([*begun, *batches])) == every
    with pytest.raises(StorageError, match=r"has ended .* run load\(\) again"):
        read(reader, [second])


def test_a_type_that_is_changed_after_the_plan_of_one_task_is_an_error(database):
    database.run("CREATE TABLE orders (id int)")
    database.run("INSERT INTO orders VALUES (7)")
    reader = make_reader(database)
    tasks = plan(reader)
    database.run("ALTER TABLE orders ALTER id TYPE bigint")
    with pytest.raises(SchemaError, match="'id' was changed or dropped after"):
        read(reader, tasks)
    assert ids(read(reader)) == [7]


def test_few_rows_that_an_index_finds_are_one_task(filtered):
    filtered.run("INSERT INTO orders (id) SELECT n FROM generate_series(1000, 50000) n")
    filtered.run("ANALYZE orders")
    reader = make_reader(filtered, maxPartitionBytes="100k")
    assert len(plan(reader)) > 5
    reader.push([spark.EqualTo(("id",), 7)])
    assert len(plan(reader)) == 1


# --- bad inputs

TABLE = "CREATE TABLE orders (id bigint, name text, at timestamp)"
BY_ID = {"partitionColumn": "id", "numPartitions": "4"}
CASES = {
    "neither table nor query": ({"table": ""}, r"write either the option 'table' or the option"),
    "table and query": ({"query": "SELECT 1"}, r"write either the option 'table' or the option"),
    "query as a table": ({"table": "(SELECT 1) t"}, r"it is a query: write it into the option 'qu"),
    "table that does not exist": ({"table": "order"}, r'relation "order" does not exist'),
    "query with a mistake": ({"table": "", "query": "SELCT 1"}, r"syntax error at or near"),
    "query that writes": (
        {"table": "", "query": "SELECT nextval('s')"},
        r"cannot execute nextval\(\) in a read-only transaction",
    ),
    "query with one name twice": (
        {"table": "", "query": "SELECT 1 AS a, 2 AS a"},
        r"two columns 'a': give one of them another name by AS",
    ),
    "query without a column to divide by": (
        {"table": "", "query": "SELECT 1", "numPartitions": "4"},
        r"'numPartitions' of a query needs the option 'partitionColumn'",
    ),
    "column without a number of tasks": (
        {"partitionColumn": "id"},
        r"'partitionColumn' needs the option 'numPartitions'",
    ),
    "column to divide by that is missing": (
        {**BY_ID, "partitionColumn": "idd"},
        r"'partitionColumn' = 'idd': no such column; did you mean 'id'",
    ),
    "column to divide by of texts": (
        {**BY_ID, "partitionColumn": "name"},
        r"'name': its type has no ranges of equal width: name a column of whole numbers",
    ),
    "one bound": ({**BY_ID, "lowerBound": "1"}, r"write both 'lowerBound' and 'upperBound'"),
    "bound of another type": (
        {**BY_ID, "lowerBound": "a", "upperBound": "b"},
        r"'lowerBound' = 'a': write a whole number, as 'partitionColumn' is",
    ),
    "bounds in the wrong order": (
        {**BY_ID, "lowerBound": "9", "upperBound": "1"},
        r"'lowerBound' = '9' is not below 'upperBound' = '1'",
    ),
    "column to read that is missing": ({"columns": "id,nam"}, r"'columns' has 'nam'; did you mean"),
    "limit of a stream": ({"maxRowsPerTrigger": "5"}, r"'maxRowsPerTrigger' cannot be had: Postgr"),
    "option of JDBC": ({"fetchsize": "5"}, r"unknown option 'fetchsize'"),
    "no right to read": (
        {"user": "stranger", "password": "stranger"},
        r"permission denied for table orders. Grant the user this right",
    ),
}
"""Wrong options, and the expected line."""


def infer_and_read(given, database):
    parsed = PostgresqlSourceOptions.parse(database.options(**given), FORMAT)
    reader = PostgresqlReader(parsed, None, streaming=False)
    reader.infer_schema()
    read(reader)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_the_first_line_states_it(database, case):
    wrong, line = CASES[case]
    database.run(TABLE + "; CREATE SEQUENCE s; GRANT USAGE ON SCHEMA public TO public")
    database.run(
        "DO $$ BEGIN CREATE ROLE stranger LOGIN PASSWORD 'stranger'; "
        "EXCEPTION WHEN duplicate_object THEN NULL; END $$"
    )
    given = {key: text for key, text in {"table": "orders", **wrong}.items() if text}
    if "user" in wrong:
        given["url"] = database.url.replace("krishiv@", "")
    with pytest.raises(KrishivError) as found:
        infer_and_read(given, database)
    first, *rest = str(found.value).splitlines()
    assert re.search(line, first), first
    assert rest == []
    assert "hunter2-very-secret" not in first


def test_a_stream_is_refused(database):
    reader = make_reader(database)
    assert "reads batches: use spark.read" in reader.only_batches


def test_pieces_of_a_large_task_are_small(database):
    database.run(
        "CREATE TABLE orders AS SELECT n AS id, repeat('x', 3000) AS name "
        "FROM generate_series(1, 4000) n"
    )
    reader = make_reader(database)
    (task,) = plan(reader)
    sizes = [batch.num_rows for batch in reader.read(task)]
    assert sum(sizes) == 4000
    assert max(sizes) < 1000
    assert all(size > 100 for size, _ in pairwise(sizes))
