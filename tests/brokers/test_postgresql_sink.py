"""The PostgreSQL sink against a real server, role by role, without Spark."""

import contextlib
import datetime as dt
import json
import shutil
import time
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest
from cutting_proxy import CuttingProxy
from pg_onlooker import Database
from pg_pool import open_pooled
from pg_server import open_killable
from postgres import PASSWORD, require_programs

from krishiv_spark.errors import (
    CheckpointMismatch,
    CommitRejected,
    CommitUnknown,
    Fenced,
    LogError,
    OptionError,
    SchemaError,
    StorageError,
)
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.logged_writer import LogView
from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions
from krishiv_spark.sinks.postgresql.table_route import PostgresqlRoute
from krishiv_spark.sinks.postgresql.writer import PostgresqlWriter

QUERY = "8503b910-b624-45a4-85db-fcb79eac7740"
FORMAT = "krishiv-postgresql"


@pytest.fixture(scope="module")
def server():
    with open_killable(require_programs(), synchronous_commit="off") as server:
        yield server


@pytest.fixture
def database(server) -> Database:
    server.database.run("DROP SCHEMA public CASCADE")
    server.database.run("CREATE SCHEMA public")
    return server.database


def make_writer(database, schema, *, output=OutputMode.APPEND, table="orders", **options):
    usual = {"table": table, "lockTimeout": "500 ms", "commitTimeout": "2 s"}
    given = database.options(**{**usual, **options})
    return PostgresqlWriter(PostgresqlSinkOptions.parse(given, FORMAT), schema, output)


def stage(writer, *batches, epoch=0, partition=0):
    writer.check()
    task = Task(QUERY, epoch, partition, attempt=0)
    return writer.stage(iter(batches), task, writer.plan(None))


def write(writer, rows, epoch=0):
    staged = [stage(writer, *rows.to_batches(), epoch=epoch)]
    writer.committer().publish(Epoch(QUERY, epoch), [each for each in staged if each])


def ids(database, table="orders"):
    return [row[0] for row in database.run(f"SELECT id FROM {table} ORDER BY id")]


ROWS = pa.table({"id": pa.array([1, 2, 3]), "name": ["a", None, 'c"\\\n,']})


def test_a_crash_between_stage_and_commit_is_refused_and_staged_again(server, database):
    writer = make_writer(database, ROWS.schema)
    staged = [stage(writer, *ROWS.to_batches())]
    server.restart()  # empties UNLOGGED tables
    with pytest.raises(CommitRejected, match="restarted after a crash"):
        writer.committer().publish(Epoch(QUERY, 0), staged)
    assert writer.committer().last_committed(QUERY) is None
    write(make_writer(database, ROWS.schema), ROWS)
    assert ids(database) == [1, 2, 3]


def test_an_epoch_is_committed_once(database):
    writer = make_writer(database, ROWS.schema)
    staged = [stage(writer, *ROWS.to_batches())]
    again = [stage(writer, *ROWS.to_batches())]
    writer.committer().publish(Epoch(QUERY, 0), staged)
    with pytest.raises(Fenced, match="has taken over"):
        writer.committer().publish(Epoch(QUERY, 0), again)
    assert ids(database) == [1, 2, 3]


def test_a_driver_that_slept_through_later_epochs_is_refused(database):
    writer = make_writer(database, ROWS.schema)
    old = [stage(writer, *ROWS.to_batches())]
    for epoch in range(3):
        write(make_writer(database, ROWS.schema), ROWS.slice(0, 1), epoch)
    with pytest.raises((Fenced, CommitRejected)):
        writer.committer().publish(Epoch(QUERY, 0), old)
    assert ids(database) == [1, 1, 1]


def test_commits_are_durable_although_the_server_does_not_wait_for_its_log(database):
    """With synchronous_commit = off, a crash would lose an acknowledged epoch."""
    database.run("CREATE TABLE orders (id bigint, name text)")
    database.run(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "NEW.name := current_setting('synchronous_commit'); RETURN NEW; END $$"
    )
    database.run("CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION note()")
    write(make_writer(database, ROWS.schema), ROWS)
    assert database.run("SELECT DISTINCT name FROM orders") == [("on",)]


def test_names_may_contain_the_sign_of_placeholders(database):
    database.run('CREATE SCHEMA "100%s"')
    rows = pa.table({"a%s": [1], "b%": ["x"]})
    for epoch, table in enumerate(('"100%s"."t%d"', '"100%s"."t%d"', '"100%s"."u%"')):
        keyed = {"mode": "upsert", "keyColumns": "a%s"} if epoch == 2 else {}
        write(make_writer(database, rows.schema, table=table, **keyed), rows, epoch)
    assert database.run('SELECT count(*) FROM "100%s"."t%d"') == [(2,)]
    assert database.run('SELECT "b%" FROM "100%s"."u%"') == [("x",)]


class Cut(psycopg.OperationalError):
    """The connection broke after COMMIT was sent."""


@pytest.mark.parametrize("has_happened", [True, False])
def test_a_lost_answer_of_commit_is_looked_up(database, monkeypatch, has_happened):
    commit = psycopg.Connection.commit

    def cut(connection):
        if has_happened:
            commit(connection)
        raise Cut("server closed the connection unexpectedly")

    writer = make_writer(database, ROWS.schema)
    staged = [stage(writer, *ROWS.to_batches())]
    monkeypatch.setattr(psycopg.Connection, "commit", cut)
    if has_happened:
        writer.committer().publish(Epoch(QUERY, 0), staged)
    else:
        with pytest.raises(CommitRejected, match="was not committed"):
            writer.committer().publish(Epoch(QUERY, 0), staged)
    monkeypatch.undo()
    assert ids(database) == ([1, 2, 3] if has_happened else [])


def test_values_reach_columns_of_other_types(database):
    database.run("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    database.run("CREATE DOMAIN short AS varchar(5) CHECK (VALUE <> 'no')")
    database.run(
        "CREATE TABLE orders (n integer, price numeric(10,2), at timestamptz(3), u uuid, j jsonb, "
        "m mood, d short, days date[], us uuid[], id bigint GENERATED ALWAYS AS IDENTITY, "
        "twice bigint GENERATED ALWAYS AS (n * 2) STORED, made timestamptz DEFAULT now())"
    )
    uuid = "6f5dc7c9-7943-4d4c-ac84-577b55992ff0"
    at = dt.datetime(2024, 2, 29, 12, 0, 0, 123000, dt.timezone.utc)
    row = {
        "n": 7,
        "price": Decimal("-12.50"),
        "at": at,
        "u": uuid,
        "j": '{"a": [1, null]}',
        "m": "ok",
        "d": "yes",
        "days": [dt.date(2024, 1, 1), None],
        "us": [uuid],
    }
    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("price", pa.decimal128(12, 2)),
            ("at", pa.timestamp("us", "UTC")),
            *((name, pa.string()) for name in ("u", "j", "m", "d")),
            ("days", pa.list_(pa.date32())),
            ("us", pa.list_(pa.string())),
        ]
    )
    rows = pa.Table.from_pylist([row, {"n": 8, "days": [], "us": None}], schema)
    write(make_writer(database, schema), rows)
    (first,) = database.run(
        "SELECT n, price, at, u::text, j, m::text, d, days, us::text[], twice FROM orders WHERE n=7"
    )
    wanted = (7, row["price"], at, uuid, {"a": [1, None]}, "ok", "yes", row["days"], [uuid], 14)
    assert first == wanted
    (second,) = database.run("SELECT price, days, us, made IS NULL FROM orders WHERE n = 8")
    assert second == (None, [], None, False)


@pytest.mark.parametrize(
    ("column", "kind", "value", "reason"),
    [
        ("name text", pa.string(), "a\0b", r"U\+0000"),
        ("name integer", pa.int64(), 2**31, "not in range"),
        ("name timestamp(0)", pa.timestamp("us"), 1_700_000_000_000_005, "0 digits"),
        ("name time(0)", pa.time64("us"), 1_999_999, "0 digits"),
        ("name interval(3)", pa.duration("us"), -1_999_999, "3 digits"),
        ("name interval minute to second(0)", pa.duration("us"), 1_700_000, "0 digits"),
        ("name varchar(3)", pa.string(), "ab   ", "3 characters"),
        ("name char(3)", pa.string(), "ab ", "drops blanks"),
        ("name name", pa.string(), "ü" * 32, "63 bytes"),
        ("name varchar(3)[]", pa.list_(pa.string()), ["abcd"], "3 characters"),
        ("name time(3)[]", pa.list_(pa.time64("us")), [1_999_999], "3 digits"),
    ],
)
def test_a_value_that_does_not_fit_names_its_row(database, column, kind, value, reason):
    database.run(f"CREATE TABLE orders (id bigint, {column})")
    rows = pa.table({"id": [1, 2], "name": pa.array([None, value], kind)})
    with pytest.raises(SchemaError, match=reason) as found:
        stage(make_writer(database, rows.schema), *rows.to_batches())
    assert "id = '2'" in str(found.value) or "not in range" in reason or pa.types.is_list(kind)


DOMAINS = (
    "CREATE DOMAIN d1 AS varchar(3)",
    "CREATE DOMAIN d2 AS d1",
    "CREATE DOMAIN n1 AS numeric(5,0)",
    "CREATE DOMAIN n2 AS n1",
    "CREATE DOMAIN lists AS text[]",
    "CREATE DOMAIN lists2 AS lists",
    "CREATE TYPE pair AS (a varchar(3), b numeric(3,1))",
    "CREATE TYPE mood AS ENUM ('ok')",
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        *((name, pa.string()) for name in ("d2", "n1", "n2", '"char"', "bit", "bit(3)", "pair")),
        *((name, pa.string()) for name in ("varbit(2)", "money", "timetz(0)", "timetz", "point")),
        *((name, pa.list_(pa.string())) for name in ("d1[]", "lists2", '"char"[]', "money[]")),
        *((name, pa.duration("us")) for name in ("interval day", "interval hour to minute")),
        ("numeric(5,-2)", pa.int64()),
        ("numeric(5,-2)", pa.decimal128(7, 0)),
        ("numeric(5,-2)[]", pa.list_(pa.int64())),
    ],
)
def test_a_type_that_rounds_or_cuts_off_is_refused(database, declared, kind):
    for statement in DOMAINS:
        database.run(statement)
    database.run(f"CREATE TABLE orders (id bigint, name {declared})")
    schema = pa.schema([("id", pa.int64()), ("name", kind)])
    with pytest.raises(SchemaError, match="or change the column's type"):
        make_writer(database, schema).check()


def test_values_of_limited_types_that_fit_are_kept(database):
    for statement in DOMAINS:
        database.run(statement)
    database.run(
        "CREATE TABLE orders (id time(3), i interval(0), d interval day to second, n name, "
        "v varchar(3), c char(3), l lists, m mood, ms mood[], b varbit, x d1, s numeric(4,5))"
    )
    second, day = dt.timedelta(seconds=5), dt.timedelta(days=1, microseconds=1)
    row = {
        "id": dt.time(1, 2, 3, 4000),
        "i": second,
        "d": day,
        "n": "ü" * 31 + "x",
        "v": "üb ",
        "c": "a",
        "l": ["ab ", None],
        "m": "ok",
        "ms": ["ok"],
        "b": "101",
        "x": "abc",
        "s": Decimal("0.00123"),
    }
    rows = pa.Table.from_pylist([row])
    write(make_writer(database, rows.schema), rows)
    (found,) = database.run(
        "SELECT id, i, d, n, v, rtrim(c), l, m::text, ms::text[], b::text, x, s FROM orders"
    )
    assert found == tuple(row.values())


def test_a_scale_below_zero_is_not_widened(database):
    database.run("CREATE TABLE orders (id numeric(5,-2))")
    schema = pa.schema([("id", pa.decimal128(5, 2))])
    with pytest.raises(SchemaError, match="numeric"):
        make_writer(database, schema, schemaEvolution="widen").check()


def test_a_unique_key_that_is_taken_is_named(database):
    database.run("CREATE TABLE orders (id bigint PRIMARY KEY, name text)")
    database.run("INSERT INTO orders VALUES (2, 'x')")
    with pytest.raises(CommitRejected, match=r"Key \(id\)=\(2\) already exists"):
        write(make_writer(database, ROWS.schema), ROWS)
    assert ids(database) == [2]


@pytest.mark.parametrize(
    ("create", "message"),
    [
        ("CREATE TABLE orders (id bigint)", "has no column 'name'"),
        (
            "CREATE TABLE orders (id bigint, name int)",
            "is string, and the table's column is integer",
        ),
        (
            "CREATE TABLE orders (id bigint, name text, x int NOT NULL)",
            "no column 'x', which is NOT",
        ),
        (
            "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, name text)",
            "GENERATED ALWAYS",
        ),
        ("CREATE VIEW orders AS SELECT 1 AS id, 'x' AS name", "is a view"),
        ("CREATE TABLE orders (id real, name text)", "cannot hold every such value"),
        (
            (
                "CREATE TABLE orders (id bigint, name text); "
                "CREATE RULE r AS ON INSERT TO orders DO INSTEAD NOTHING"
            ),
            "has a rule DO INSTEAD",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_a_row_moves(database, create, message):
    database.run(create)
    with pytest.raises((OptionError, SchemaError), match=message):
        make_writer(database, ROWS.schema).check()
    with pytest.raises((OptionError, SchemaError), match=message):
        make_writer(database, ROWS.schema).check_start()


def test_a_check_before_the_start_creates_nothing(database):
    make_writer(database, ROWS.schema).check_start()
    assert (
        database.run("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace")
        == []
    )


def test_partitioned_tables_and_mixed_case_names(database):
    database.run('CREATE SCHEMA "My Shop"')
    database.run('CREATE TABLE "My Shop"."Orders" (id bigint, "Name" text) PARTITION BY LIST (id)')
    for number in (1, 2):
        database.run(
            f'CREATE TABLE "My Shop".p{number} PARTITION OF "My Shop"."Orders" '
            f"FOR VALUES IN ({number})"
        )
    table = '"My Shop"."Orders"'
    write(make_writer(database, ROWS.schema, table=table), ROWS.slice(0, 2))
    assert ids(database, table) == [1, 2]
    with pytest.raises(CommitRejected, match="no partition of relation"):
        write(make_writer(database, ROWS.schema, table=table), ROWS, epoch=1)
    assert ids(database, table) == [1, 2]
    database.run('DROP SCHEMA "My Shop" CASCADE')


def test_no_error_shows_the_password(database):
    given = {
        "url": f"postgresql://u:hunter3-secret@127.0.0.1:{database.port}/postgres",
        "table": "t",
    }
    writer = PostgresqlWriter(
        PostgresqlSinkOptions.parse(given, FORMAT), ROWS.schema, OutputMode.APPEND
    )
    with pytest.raises(StorageError, match="password authentication failed") as found:
        writer.check()
    assert "hunter3" not in str(found.value)
    assert found.value.__cause__ is None


def test_leftovers_of_dead_attempts_are_swept(database):
    writer = make_writer(database, ROWS.schema)
    for epoch in (0, 1, 5):
        stage(writer, *ROWS.to_batches(), epoch=epoch)  # reported to nobody
    write(make_writer(database, ROWS.schema), ROWS, epoch=1)
    left = database.run("SELECT relname FROM pg_class WHERE relname LIKE 'krishiv_s_%'")
    assert len(left) == 1
    assert "_5_" in left[0][0]


def test_another_epoch_of_the_same_number_is_not_taken_for_this_one(database):
    planned = PlannedOffsets.of_rows(0, 3, 12)
    writer = make_writer(database, ROWS.schema)
    staged = [stage(writer, *ROWS.to_batches())]
    writer.committer().publish(Epoch(QUERY, 0, offsets=planned), staged)
    mark = writer.committer().last_committed(QUERY)
    assert (mark.epoch, mark.digest) == (0, planned.digest)


@pytest.mark.parametrize("fault", ["lost request", "lost answer", "cut"])
def test_a_connection_that_breaks_at_commit_leaves_the_epoch_once(database, fault):
    """A proxy sees COMMIT; the outcome is found out over a new connection."""
    staged = [stage(make_writer(database, ROWS.schema), *ROWS.to_batches())]
    with CuttingProxy(database.port) as proxy:
        proxy.cut(lambda data: b"COMMIT\0" in data, fault)
        url = database.url.replace(str(database.port), str(proxy.port))
        committer = make_writer(database, ROWS.schema, url=url).committer()
        with contextlib.suppress(CommitRejected):
            committer.publish(Epoch(QUERY, 0), staged)
            assert committer.last_committed(QUERY) is not None
        assert proxy.cuts == [fault]
        if committer.last_committed(QUERY) is None:
            assert fault != "lost answer"
            committer.publish(Epoch(QUERY, 0), staged)  # nothing has changed
    assert ids(database) == [1, 2, 3]


def behind(proxy, database, **options):
    url = database.url.replace(str(database.port), str(proxy.port))
    given = {"answerTimeout": "700 ms", "connectTimeout": "2s", **options}
    return make_writer(database, ROWS.schema, url=url, **given).committer()


@pytest.mark.long  # waits for answers
def test_a_commit_that_is_never_answered_is_looked_up(database):
    staged = [stage(make_writer(database, ROWS.schema), *ROWS.to_batches())]
    with CuttingProxy(database.port) as proxy:
        proxy.cut(lambda data: b"COMMIT\0" in data, "silence")
        behind(proxy, database).publish(Epoch(QUERY, 0), staged)
        assert proxy.cuts == ["silence"]
    assert ids(database) == [1, 2, 3]


@pytest.mark.long  # waits for answers
@pytest.mark.parametrize("way", ["requests", "answers"])
def test_a_network_that_is_silent_from_the_commit_on_leaves_the_epoch_once(database, way):
    """The COMMIT may arrive after the driver has given up."""
    staged = [stage(make_writer(database, ROWS.schema), *ROWS.to_batches())]
    with CuttingProxy(database.port) as proxy:
        proxy.after(
            lambda data: b"SET LOCAL statement_timeout = 0" in data, lambda: hold(proxy, way)
        )
        with pytest.raises(CommitUnknown, match="Restart the query, which reads the mark first"):
            behind(proxy, database).publish(Epoch(QUERY, 0), staged)
        proxy.release()
        committer = behind(proxy, database)
        if committer.last_committed(QUERY) is None:
            with contextlib.suppress(CommitRejected, Fenced):
                committer.publish(Epoch(QUERY, 0), staged)
        assert committer.last_committed(QUERY).epoch == 0
    assert ids(database) == [1, 2, 3]


def hold(proxy, way):
    time.sleep(0.1)  # the answer to this statement still gets through
    proxy.hold(way)


def test_a_driver_that_sleeps_in_its_commit_keeps_its_successor_waiting_only(database):
    """The successor waits for the lock, and is refused in time; then it goes on."""
    writer = make_writer(database, ROWS.schema)
    staged = [stage(writer, *ROWS.to_batches())]
    with database.connect(autocommit=False) as sleeper:
        sleeper.execute("INSERT INTO krishiv_epochs VALUES (%s, 'orders', 0)", [QUERY])
        with pytest.raises(CommitRejected, match="lock timeout"):
            writer.committer().publish(Epoch(QUERY, 0), staged)
        sleeper.rollback()
    writer.committer().publish(Epoch(QUERY, 0), staged)
    assert ids(database) == [1, 2, 3]


# --- upserts

KEYED = {"mode": "upsert", "keyColumns": "id", "opColumn": "op"}


def change(database, rows, epoch=0, **more):
    write(make_writer(database, rows.schema, **KEYED, **more), rows, epoch)


def changes(*rows, names=("op", "id", "name")):
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])


def test_the_last_change_of_a_key_wins(database):
    change(database, changes(("c", 1, "a"), ("u", 1, "b"), ("c", 2, "x"), ("d", 2, None)))
    assert database.run("SELECT * FROM orders") == [(1, "b")]
    change(database, changes(("d", 1, None), ("c", 3, "z"), ("c", 1, "c")), epoch=1)
    assert database.run("SELECT * FROM orders ORDER BY id") == [(1, "c"), (3, "z")]


def test_the_highest_value_of_the_order_column_wins(database):
    names = ("op", "id", "name", "at")
    rows = changes(("u", 1, "new", "b"), ("u", 1, "old", "B"), ("u", 1, "no", None), names=names)
    change(database, rows, orderColumn="at")
    assert database.run("SELECT name FROM orders") == [("new",)]


def test_an_upsert_keeps_columns_that_the_rows_lack_and_children_of_its_rows(database):
    database.run("CREATE TABLE orders (id bigint UNIQUE, name text, note text DEFAULT 'n')")
    database.run("CREATE TABLE parts (o bigint REFERENCES orders (id) ON DELETE CASCADE)")
    database.run("INSERT INTO orders VALUES (1, 'a', 'kept')")
    database.run("INSERT INTO parts VALUES (1)")
    change(database, changes(("u", 1, "b"), ("c", 2, "c")))
    found = database.run("SELECT * FROM orders ORDER BY id")
    assert found == [(1, "b", "kept"), (2, "c", "n")]
    assert database.run("SELECT * FROM parts") == [(1,)]


def test_keys_are_compared_as_the_type_of_the_table(database):
    database.run("CREATE TABLE orders (id uuid PRIMARY KEY, name text)")
    uuid = "6f5dc7c9-7943-4d4c-ac84-577b55992ff0"
    change(database, changes(("c", uuid.upper(), "a"), ("u", uuid, "b")))
    assert database.run("SELECT id::text, name FROM orders") == [(uuid, "b")]


@pytest.mark.parametrize(
    ("create", "more", "message"),
    [
        ("CREATE TABLE orders (id bigint, name text)", {}, "CREATE UNIQUE INDEX ON"),
        (
            "CREATE TABLE orders (id bigint PRIMARY KEY, name text)",
            {"keyColumns": "x"},
            "names 'x'",
        ),
    ],
)
def test_an_upsert_that_cannot_work_is_refused(database, create, more, message):
    database.run(create)
    rows = changes(("c", 1, "a"))
    with pytest.raises(OptionError, match=message):
        make_writer(database, rows.schema, **{**KEYED, **more}).check()


@pytest.mark.parametrize(
    ("row", "message"),
    [(("c", None, "a"), "key column 'id' has nulls"), (("t", 1, "a"), "column 'op' has 't'")],
)
def test_a_change_without_a_key_or_with_an_unknown_operation_is_refused(database, row, message):
    rows = pa.Table.from_pylist(
        [dict(zip(("op", "id", "name"), row, strict=True))],
        pa.schema([("op", pa.string()), ("id", pa.int64()), ("name", pa.string())]),
    )
    with pytest.raises(SchemaError, match=message):
        change(database, rows)


@pytest.mark.parametrize(
    "key", ["char(5)", "text COLLATE ci", "varchar(5) COLLATE ci"], ids=["char", "text", "varchar"]
)
def test_a_key_for_which_other_texts_are_equal_is_refused(database, key):
    database.run(
        "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    )
    database.run(f"CREATE TABLE orders (id {key} PRIMARY KEY, name text)")
    with pytest.raises(OptionError, match=r"'id'.* takes different texts for equal"):
        make_writer(database, changes(("c", "a", "b")).schema, **KEYED).check()


def test_a_unique_value_of_a_deleted_row_may_be_taken_in_the_same_epoch(database):
    database.run("CREATE TABLE orders (id bigint PRIMARY KEY, name text UNIQUE)")
    change(database, changes(("c", 1, "x")))
    change(database, changes(("c", 2, "x"), ("d", 1, "x")), epoch=1)
    assert database.run("SELECT * FROM orders") == [(2, "x")]


EXCHANGED = pa.table({"op": ["u", "u", "u"], "id": [1, 2, 3], "name": ["b", "a", "c"]})


def test_rows_may_exchange_unique_values_in_an_epoch(database):
    database.run("CREATE TABLE orders (id bigint PRIMARY KEY, name text UNIQUE)")
    database.run("INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (4, 'd')")
    change(database, EXCHANGED)
    assert database.run("SELECT id, name FROM orders ORDER BY id") == [
        (1, "b"),
        (2, "a"),
        (3, "c"),
        (4, "d"),
    ]
    with pytest.raises(CommitRejected, match=r"duplicate key .*name\)=\(d\) already exists"):
        change(database, changes(("u", 2, "d")), epoch=1)


@pytest.mark.parametrize(
    "more", ["other text DEFAULT 'kept'", "parent bigint REFERENCES orders (id) ON DELETE CASCADE"]
)
def test_rows_that_cannot_be_written_again_exchange_values_of_a_deferrable_constraint(
    database, more
):
    database.run(f"CREATE TABLE orders (id bigint PRIMARY KEY, name text UNIQUE, {more})")
    database.run("INSERT INTO orders (id, name) VALUES (1, 'a'), (2, 'b')")
    with pytest.raises(CommitRejected, match=r"duplicate key value violates unique constraint"):
        change(database, EXCHANGED)
    database.run("ALTER TABLE orders DROP CONSTRAINT orders_name_key, ADD UNIQUE (name) DEFERRABLE")
    change(database, EXCHANGED)
    assert database.run("SELECT name FROM orders ORDER BY id") == [("b",), ("a",), ("c",)]


def test_a_row_may_be_deleted_that_others_do_not_refer_to_any_more(database):
    database.run(
        "CREATE TABLE orders (id bigint PRIMARY KEY, name text, up bigint REFERENCES orders)"
    )
    names = ("op", "id", "name", "up")
    rows = changes(("c", 1, "a", None), ("c", 2, "b", 1), ("c", 3, "c", None), names=names)
    change(database, rows)
    moved = changes(("u", 2, "b", 3), ("d", 1, None, None), names=names)
    change(database, moved, epoch=1)
    assert database.run("SELECT id, up FROM orders ORDER BY id") == [(2, 3), (3, None)]


@pytest.mark.parametrize("option", ["keyColumns", "orderColumn"])
def test_the_column_of_operations_is_neither_key_nor_order(database, option):
    with pytest.raises(OptionError, match="'opColumn' = 'op' is also in"):
        make_writer(database, ROWS.schema, **{**KEYED, option: "op"})


# --- a table that others alter

MICROS = pa.timestamp("us", "UTC")
ALTERED = [
    ("timestamptz", "TYPE date", pa.array([1_700_000_000_000_001], MICROS)),
    ("timestamptz", "TYPE timestamp", pa.array([1_700_000_000_000_001], MICROS)),
    ("double precision", "TYPE real", pa.array([0.123456789])),
    ("double precision", "TYPE integer", pa.array([0.7])),
    ("numeric(5,2)", "TYPE numeric(5,1)", pa.array([Decimal("1.55")])),
    ("text", 'TYPE "char"', pa.array(["abc"])),
]


@pytest.mark.parametrize(("before", "after", "values"), ALTERED)
def test_a_column_that_is_altered_before_the_commit_is_refused(database, before, after, values):
    database.run(f"CREATE TABLE orders (id {before})")
    rows = pa.table({"id": values})
    writer = make_writer(database, rows.schema)
    staged = [stage(writer, *rows.to_batches())]
    database.run(f"ALTER TABLE orders ALTER id {after}")
    with pytest.raises(CommitRejected, match="changed after rows were checked"):
        writer.committer().publish(Epoch(QUERY, 0), staged)
    assert ids(database) == []


@pytest.mark.parametrize(("before", "after", "values"), ALTERED)
def test_a_column_that_is_altered_after_the_intent_is_refused(database, before, after, values):
    database.run(f"CREATE TABLE orders (id {before})")
    rows = pa.table({"id": values})
    route = make_route(database, rows.schema)
    part, epoch = participant_of(route), Epoch(QUERY, 0, generation=1)
    intent = part.prepare(epoch, stage_route(route, rows, 0, 1), ())
    loaded = [part.load(item.model_dump_json()) for item in intent]
    database.run(f"ALTER TABLE orders ALTER id {after}")
    with pytest.raises(CommitUnknown, match="give the column its former type first"):
        part.finish(epoch, loaded)
    assert ids(database) == []
    database.run(f"ALTER TABLE orders ALTER id TYPE {before}")
    part.finish(epoch, loaded)
    assert ids(database) == [value.as_py() for value in values]


def test_a_table_is_not_altered_while_an_epoch_is_committed(database):
    writer = make_writer(database, ROWS.schema)
    staged = [stage(writer, *ROWS.to_batches())]
    with database.connect(autocommit=False) as other:
        other.execute("ALTER TABLE orders ALTER id TYPE integer")
        with pytest.raises(CommitRejected, match="lock timeout"):
            writer.committer().publish(Epoch(QUERY, 0), staged)
        other.rollback()
    writer.committer().publish(Epoch(QUERY, 0), staged)
    assert ids(database) == [1, 2, 3]


# --- a route of a fan-out


def make_route(database, schema, **options):
    given = database.options(table="orders", lockTimeout="500 ms", **options)
    return PostgresqlRoute(PostgresqlSinkOptions.parse(given, FORMAT), schema, OutputMode.APPEND)


def stage_route(route, rows, epoch, generation):
    route.check()
    task = Task(QUERY, epoch, 0, attempt=0, generation=generation)
    return [route.stage(iter(rows.to_batches()), task, route.plan(None))]


def participant_of(route):
    return route.participant(LogView(lambda query: query))


def test_an_intent_outlives_a_crash_of_the_server_and_is_finished_once(server, database):
    database.run("CREATE TABLE orders (id bigint PRIMARY KEY, name uuid)")
    uuid = "6f5dc7c9-7943-4d4c-ac84-577b55992ff0"
    rows = pa.table({"id": [1, 2], "name": [uuid, None]})
    route = make_route(database, rows.schema)
    part, epoch = participant_of(route), Epoch(QUERY, 0, generation=1)
    intent = part.prepare(epoch, stage_route(route, rows, 0, 1), ())
    assert ids(database) == []
    server.restart()
    loaded = [part.load(item.model_dump_json()) for item in intent]
    for _ in range(2):
        part.finish(epoch, loaded)
        assert ids(database) == [1, 2]
    assert part.is_finished(epoch)
    assert database.run("SELECT name::text FROM orders WHERE id = 1") == [(uuid,)]


def test_another_epoch_of_the_same_number_is_not_taken_for_a_finished_one(database):
    database.run("CREATE TABLE orders (id bigint, name text)")
    route = make_route(database, ROWS.schema)
    part = participant_of(route)
    first = Epoch(QUERY, 0, 1, PlannedOffsets.of_rows(0, 3, 1))
    other = Epoch(QUERY, 0, 2, PlannedOffsets.of_rows(0, 3, 2))
    part.finish(first, part.prepare(first, stage_route(route, ROWS, 0, 1), ()))
    assert part.is_finished(first)
    assert not part.is_finished(other)
    with pytest.raises(CheckpointMismatch, match="has another epoch 0"):
        part.finish(other, stage_route(route, ROWS, 0, 2))
    assert part.is_finished(Epoch(QUERY, 0))  # an operator's, without offsets


def test_an_older_log_is_not_adopted_and_an_older_table_lacks_its_epochs(database):
    database.run("CREATE TABLE orders (id bigint, name text)")
    route = make_route(database, ROWS.schema)
    part, epoch = participant_of(route), Epoch(QUERY, 3, generation=1)
    whole = part.prepare(epoch, stage_route(route, ROWS, 3, 1), ())
    part.finish(epoch, whole)
    with pytest.raises(LogError, match="would skip the epochs after 2"):
        part.verify_adoption(QUERY, 2)
    part.verify_adoption(QUERY, 3)
    assert part.contains(epoch, whole)
    database.run("DROP TABLE krishiv_epochs")
    assert part.contains(epoch, whole) is False
    assert part.contains(epoch, ()) is None


def test_rows_that_the_table_refuses_are_refused_before_the_intent(database):
    database.run("CREATE TABLE orders (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, name text)")
    rows = pa.table({"id": [1, 1], "name": ["a", "b"]})
    route = make_route(database, rows.schema)
    with pytest.raises(CommitRejected, match="already exists"):
        participant_of(route).prepare(
            Epoch(QUERY, 0, generation=1), stage_route(route, rows, 0, 1), ()
        )
    assert ids(database) == []


def test_a_planner_sweeps_what_earlier_generations_staged_for_a_fan_out(database):
    route = make_route(database, ROWS.schema)
    for generation in (1, 4):
        stage_route(route, ROWS, 0, generation)
    participant_of(route).sweep(QUERY, 4, clean=False)
    left = database.run("SELECT relname FROM pg_class WHERE relname LIKE 'krishiv_l_%'")
    assert len(left) == 1
    assert "_4_" in left[0][0]


@pytest.mark.parametrize("name", ['krishiv_l_"; DROP TABLE orders; --', "orders", "krishiv_l_ABC"])
def test_a_forged_entry_names_no_other_table(database, name):
    part = participant_of(make_route(database, ROWS.schema))
    with pytest.raises(ValueError, match="name"):
        part.load(json.dumps({"staging_schema": "public", "name": name}))


# --- changes of the table


def columns_of(database):
    return database.run(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'orders'::regclass AND attnum > 0 ORDER BY attnum"
    )


WIDER = pa.table(
    {
        "id": pa.array([2**40]),
        "price": pa.array([Decimal("123456.78")], pa.decimal128(12, 2)),
        "Note": ["new"],
    }
)


def test_columns_are_added_and_widened_where_that_is_allowed(database):
    database.run("CREATE TABLE orders (id integer, price numeric(5,2), kept text DEFAULT 'k')")
    make_writer(database, WIDER.schema, schemaEvolution="widen").check_start()
    assert len(columns_of(database)) == 3  # a check before the start changes nothing
    with pytest.raises(SchemaError, match="has no column 'Note'"):
        make_writer(database, WIDER.schema).check()
    write(make_writer(database, WIDER.schema, schemaEvolution="widen"), WIDER)
    assert columns_of(database) == [
        ("id", "bigint"),
        ("price", "numeric(12,2)"),
        ("kept", "text"),
        ("Note", "text"),
    ]
    assert database.run("SELECT * FROM orders") == [(2**40, Decimal("123456.78"), "k", "new")]


def test_columns_are_added_without_a_change_of_types(database):
    database.run("CREATE TABLE orders (id integer, price numeric(5,2))")
    make_writer(database, WIDER.schema, schemaEvolution="add").check()
    assert columns_of(database)[:2] == [("id", "integer"), ("price", "numeric(5,2)")]
    assert columns_of(database)[2] == ("Note", "text")


@pytest.mark.parametrize("name", ["a{b}", "{}"])
def test_a_column_is_added_with_braces_in_its_name(database, name):
    database.run("CREATE TABLE orders (id integer)")
    schema = pa.schema([("id", pa.int32()), (name, pa.int32())])
    make_writer(database, schema, schemaEvolution="add").check()
    assert columns_of(database) == [("id", "integer"), (name, "integer")]


def test_a_column_with_a_name_that_is_too_long_is_not_added(database):
    database.run("CREATE TABLE orders (id integer)")
    schema = pa.schema([("id", pa.int32()), ("n" * 64, pa.int32())])
    with pytest.raises(SchemaError, match="cuts names off after 63: shorten it"):
        make_writer(database, schema, schemaEvolution="add").check()
    assert columns_of(database) == [("id", "integer")]


def test_no_check_changes_a_table_whose_other_columns_do_not_fit(database):
    database.run("CREATE TABLE orders (id text, price numeric(5,2))")
    with pytest.raises(SchemaError, match="column 'id' is int64"):
        make_writer(database, WIDER.schema, schemaEvolution="add").check()
    assert len(columns_of(database)) == 2


# --- PgBouncer


@pytest.fixture
def pooled(database):
    """The URL of the database behind PgBouncer, which pools transactions over one connection."""
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("PgBouncer is not installed (Debian: apt-get install pgbouncer)")
    with open_pooled(program, database) as url:
        yield url


def test_transactions_go_through_a_pool_of_one_connection(database, pooled):
    for epoch in range(3):
        write(make_writer(database, ROWS.schema, url=pooled), ROWS, epoch)
    assert ids(database) == sorted([1, 2, 3] * 3)
    rows = changes(("u", 1, "b"), ("d", 2, None))
    given = {**KEYED, "table": "keyed", "url": pooled}
    write(make_writer(database, rows.schema, **given), rows)
    assert database.run("SELECT * FROM keyed") == [(1, "b")]
    settings = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    with psycopg.connect(pooled, password=PASSWORD, prepare_threshold=None) as next_client:
        found = [next_client.execute(f"SHOW {name}").fetchone()[0] for name in settings]
    assert found == ["0", "0", "0"]
