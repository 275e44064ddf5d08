"""Mirrors in PostgreSQL that get columns from the schemas of events."""

import datetime as dt
import threading
from decimal import Decimal

import duckdb
import pytest
from database_life import RECORDS, GrowingDatabase, to_rows, to_state
from debezium_events import (
    INT,
    LONG,
    PLACEHOLDER,
    TEXT,
    make_decimal,
    micros,
    to_json,
    write_typed,
    write_unscaled,
)
from letter_life import LetterLife
from patience import await_that
from pg_mirror import FORMAT, QUERY, Mirror
from pg_onlooker import Onlooker

from krishiv_spark.errors import CommitRejected, SchemaError, StorageError
from krishiv_spark.sinks.base import Epoch, Task
from krishiv_spark.sinks.postgresql import record_columns

pytestmark = pytest.mark.long  # a server

SMALL = {"id": INT, "text": TEXT}
MORE = {**SMALL, "n": INT}
TIME = dt.datetime(2024, 2, 29, 23, 59, 59, 123456)  # noqa: DTZ001
QUARTER = write_unscaled(Decimal("1.25"), 2)


@pytest.fixture
def database(server):
    return server.database


@pytest.fixture
def mirror(database, tmp_path):
    return make_mirror(database, tmp_path)


def make_mirror(database, folder, **more):
    return Mirror(database, folder, **{"tableSchema": "", "schemaEvolution": "add", **more})


class Events:
    """Events with rising positions."""

    def __init__(self):
        self.lsn = 0

    def __call__(self, columns, op="c", **row):
        self.lsn += 1
        return to_json({"id": row["id"]}), write_typed(columns, row, self.lsn, op)


@pytest.fixture
def event():
    return Events()


def read_types(mirror):
    return dict(
        mirror.onlooker.database.run(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0",
            [mirror.onlooker.table],
        )
    )


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 6))]
)
def test_the_mirror_equals_a_database_that_gets_columns(database, tmp_path, seed):
    """Epochs end anywhere, also within a change of a key; some have an attempt that dies."""
    source = GrowingDatabase(seed)
    dice, done = source.random, 0
    mirror = make_mirror(database, tmp_path, tableSchema="id INT, text STRING" if seed % 2 else "")
    if not seed % 2:
        mirror.create("id int PRIMARY KEY, text text")
    for _ in range(4):
        for _ in range(dice.randrange(2, 25)):
            source.step()
        new, done = source.records[done:], len(source.records)
        cut = dice.randrange(1, len(new))
        if dice.random() < 0.5:
            writer = mirror.writer()
            rows = to_rows(new, mirror.first).to_batches()
            writer.stage(iter(rows), Task(QUERY, mirror.next, 0, 0), writer.plan(None))
        for some in (new[:cut], new[cut:]):
            mirror.apply(*some, tasks=dice.choice([1, 2, 3]), batches=dice.choice([1, 2, 5]))
        assert to_state(mirror.onlooker.rows()) == source.state()
    assert mirror.left() == ['My "Table', "krishiv_changes", "krishiv_epochs"]


@pytest.mark.long
@pytest.mark.parametrize(("tasks", "batches"), [(1, 1), (1, 4), (2, 2), (4, 1)])
def test_columns_are_added_in_the_middle_of_an_epoch(mirror, event, tasks, batches):
    mirror.create("id int PRIMARY KEY, text text")
    priced = {**MORE, "price": make_decimal(2, 9)}
    mirror.apply(
        event(SMALL, id=1, text="a"),
        event(MORE, id=2, text="b", n=2),
        event(priced, id=3, text="c", n=3, price=QUARTER),
        event(SMALL, id=4, text="d"),
        tasks=tasks,
        batches=batches,
    )
    names = ("id", "text", "n", "price")
    first = [(1, "a", None, None), (2, "b", 2, None), (3, "c", 3, Decimal("1.25"))]
    assert mirror.rows(*names) == [*first, (4, "d", None, None)]
    assert read_types(mirror)["price"] == "numeric(9,2)"
    mirror.apply(event(MORE, "u", id=4, text="e", n=4), tasks=tasks)
    assert mirror.rows(*names) == [*first, (4, "e", 4, None)]


def test_a_kept_value_is_found_in_changes_with_fewer_columns(mirror, event):
    mirror.create("id int PRIMARY KEY, text text")
    mirror.apply(event(SMALL, id=1, text="large"))
    mirror.apply(
        event(SMALL, id=2, text="also large"),
        event(MORE, "u", id=2, text=PLACEHOLDER, n=2),
        event(MORE, "u", id=1, text=PLACEHOLDER, n=1),
        batches=3,
    )
    assert mirror.rows("id", "text", "n") == [(1, "large", 1), (2, "also large", 2)]
    noted = {**MORE, "note": TEXT}
    mirror.apply(event(noted, id=3, text="", n=3, note="x" * 30))
    mirror.apply(
        event(noted, "u", id=3, text="y", n=4, note=PLACEHOLDER), event(SMALL, id=4, text="z")
    )
    assert mirror.rows("id", "text", "n", "note")[2:] == [
        (3, "y", 4, "x" * 30),
        (4, "z", None, None),
    ]


KINDS = {
    "small": ({"type": "int16"}, 2, "integer", 2),
    "tiny": ({"type": "int8"}, 2, "integer", 2),
    "big": (LONG, 2**40, "bigint", 2**40),
    "ratio": ({"type": "float"}, 0.5, "real", 0.5),
    "part": ({"type": "double"}, 0.1, "double precision", 0.1),
    "is_open": ({"type": "boolean"}, True, "boolean", True),
    "day": ({**INT, "name": "io.debezium.time.Date"}, 19782, "date", TIME.date()),
    "at": (
        {**LONG, "name": "io.debezium.time.MicroTimestamp"},
        micros(TIME),
        "timestamp without time zone",
        TIME,
    ),
    "zoned": (
        {**TEXT, "name": "io.debezium.time.ZonedTimestamp"},
        "2024-02-29T23:59:59.123456Z",
        "timestamp with time zone",
        TIME.replace(tzinfo=dt.timezone.utc),
    ),
    "scan": ({"type": "bytes"}, "AP8=", "bytea", b"\0\xff"),
    "tags": ({"type": "array", "items": TEXT}, ["x", None], "text[]", ["x", None]),
    "uid": (
        {**TEXT, "name": "io.debezium.data.Uuid"},
        "98da4487-72cf-44ba-a36f-2fe8b6d69b5f",
        "text",
        "98da4487-72cf-44ba-a36f-2fe8b6d69b5f",
    ),
    "huge": (
        make_decimal(2, 60), write_unscaled(Decimal("1.5"), 2), "text", "1.50"
    ),
}  # fmt: skip


def test_new_columns_have_the_types_of_the_events(mirror, event):
    mirror.create("id int PRIMARY KEY, text text")
    columns = {**SMALL, **{name: case[0] for name, case in KINDS.items()}}
    given = {name: case[1] for name, case in KINDS.items()}
    mirror.apply(event(columns, id=1, text="a", **given))
    types = read_types(mirror)
    assert {name: types[name] for name in KINDS} == {name: case[2] for name, case in KINDS.items()}
    assert mirror.rows(*KINDS) == [tuple(case[3] for case in KINDS.values())]
    mirror.apply(event(columns, "u", id=1, text="b", **given))  # read as the table has them
    assert mirror.rows(*KINDS) == [tuple(case[3] for case in KINDS.values())]


def test_a_column_that_no_row_can_fill_is_unknown(database, tmp_path, event):
    columns = {
        **MORE,
        "made": INT,
        "place": {"type": "struct", "fields": [{**INT, "field": "x"}]},
    }
    row = {"id": 1, "text": "a", "n": 2, "made": 3, "place": {"x": 4}}
    fails = make_mirror(database, tmp_path / "fails")
    table = "id int PRIMARY KEY, text text, made int GENERATED ALWAYS AS (id * 3) STORED"
    fails.create(table)
    with pytest.raises(SchemaError, match="that the table does not have: 'made', 'place'"):
        fails.apply(event(columns, **row))
    ignores = make_mirror(database, tmp_path / "ignores", unknownFields="ignore")
    ignores.create(table)
    ignores.apply(event(columns, **row), event(columns, **{**row, "id": 2}), batches=2)
    upper = {**SMALL, "MADE": INT}  # as Oracle writes names
    ignores.apply(event(upper, id=3, text="a", MADE=9))
    found = [(1, "a", 2, 3), (2, "a", 2, 6), (3, "a", None, 9)]
    assert ignores.rows("id", "text", "n", "made") == found


def test_a_wider_type_does_not_change_the_table(database, tmp_path, event):
    mirror = make_mirror(database, tmp_path, schemaEvolution="widen")
    mirror.create("id int PRIMARY KEY, text text, n int")
    wide = {**SMALL, "n": LONG, "more": INT}
    mirror.apply(event(wide, id=1, text="a", n=5, more=6))
    assert mirror.rows("id", "n", "more") == [(1, 5, 6)]
    with pytest.raises(SchemaError, match="'n'"):
        mirror.apply(event(wide, id=2, text="b", n=2**40, more=6))


def test_a_name_that_postgresql_would_cut_off_is_refused(mirror, event):
    mirror.create("id int PRIMARY KEY, text text")
    with pytest.raises(SchemaError, match="cuts names off after 63: shorten it"):
        mirror.apply(event({**SMALL, "n" * 64: INT}, id=1, text="a", **{"n" * 64: 1}))
    assert mirror.rows("id") == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["{}", "a{b}", "{{x}}", 'a"b', "it's", "%s", "select", "é" * 31])
def test_a_column_has_its_name_whatever_its_letters_are(mirror, event, name):
    mirror.create("id int PRIMARY KEY, text text")
    columns = {**SMALL, name: TEXT}
    mirror.apply(
        event(SMALL, id=1, text="a"),
        event(columns, id=2, text="b", **{name: "v"}),
        event(columns, "u", id=2, text="c", **{name: PLACEHOLDER}),
        batches=3,
    )
    assert mirror.rows("id", "text", name) == [(1, "a", None), (2, "c", "v")]


@pytest.mark.parametrize("name", ["_krishiv_delete", "_krishiv_row", "_krishiv_time"])
def test_a_name_of_a_staged_column_is_refused_before_the_table_is_changed(mirror, event, name):
    mirror.create("id int PRIMARY KEY, text text")
    with pytest.raises(SchemaError, match=f"'{name}' has a name of the sink's own columns"):
        mirror.apply(event({**SMALL, name: TEXT}, id=1, text="a", **{name: "v"}))
    mirror.apply(event(SMALL, id=2, text="b"))  # the query is not stopped for other events
    assert mirror.onlooker.rows() == [{"id": 2, "text": "b"}]


def test_columns_declared_and_those_of_events_are_both_followed(database, tmp_path, event):
    mirror = make_mirror(database, tmp_path, tableSchema="id INT, text STRING")
    for n in range(3):  # the new column is not declared
        mirror.apply(event(MORE, id=n, text="a", n=n))
    assert mirror.rows("id", "n") == [(n, n) for n in range(3)]


def test_a_type_that_another_program_changes_meanwhile_stops_the_epoch(mirror, event, monkeypatch):
    """The INSERT would round a time that was staged before."""
    mirror.create("id int PRIMARY KEY, at timestamp")
    real = record_columns.add_columns

    def add_after_change(options, rows):
        table = mirror.onlooker.table
        mirror.onlooker.database.run(f"ALTER TABLE {table} ALTER COLUMN at TYPE timestamp(0)")
        return real(options, rows)

    monkeypatch.setattr(record_columns, "add_columns", add_after_change)
    columns = {"id": INT, "at": {**LONG, "name": "io.debezium.time.MicroTimestamp"}}
    whole = micros(TIME.replace(microsecond=0))
    records = [
        event(columns, id=1, at=micros(TIME)),
        event({**columns, "n": INT}, id=2, at=whole, n=1),
    ]
    with pytest.raises(CommitRejected, match=r"'at' .* is timestamp\(0\)"):
        mirror.apply(*records, batches=2)
    assert mirror.rows("id") == []


def test_tasks_that_need_one_column_at_once_add_it_once(mirror, event):
    mirror.create("id int PRIMARY KEY, text text")
    writer = mirror.writer()
    writer.check()
    plan, count = writer.plan(None), 6
    records = [
        event({**MORE, f"c{n % 2}": INT}, id=n, text="", n=n, **{f"c{n % 2}": n})
        for n in range(count)
    ]
    staged, barrier = [None] * count, threading.Barrier(count)

    def stage(task):
        barrier.wait()
        rows = to_rows([records[task]], task).to_batches()
        staged[task] = mirror.writer().stage(iter(rows), Task(QUERY, 0, task, 0), plan)

    threads = [threading.Thread(target=stage, args=(task,)) for task in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.committer().publish(Epoch(QUERY, 0), staged)
    assert mirror.rows("id", "n", "c0", "c1") == [
        (n, n, *((n, None) if n % 2 == 0 else (None, n))) for n in range(count)
    ]


def test_names_that_differ_only_in_case_become_one_column_if_tasks_add_them_at_once(mirror, event):
    """Otherwise the values of one column would be in two, as in no other order of the tasks."""
    mirror.create("id int PRIMARY KEY, text text")
    mirror.given["lockTimeout"] = "30 s"
    writer = mirror.writer()
    writer.check()
    plan, staged = writer.plan(None), [None, None]
    names = enumerate(("size", "Size"))
    records = [event({**SMALL, name: INT}, id=n, text="", **{name: n}) for n, name in names]

    def stage(task):
        rows = to_rows([records[task]], task).to_batches()
        staged[task] = mirror.writer().stage(iter(rows), Task(QUERY, 0, task, 0), plan)

    threads = [threading.Thread(target=stage, args=(task,)) for task in range(2)]
    with mirror.onlooker.database.connect(autocommit=False) as reader:
        reader.execute(f"LOCK TABLE {mirror.onlooker.table} IN ACCESS SHARE MODE")
        for thread in threads:
            thread.start()
        await_sessions(mirror, "wait_event_type = 'Lock'", 2)  # both have read the columns
    for thread in threads:
        thread.join()
    writer.committer().publish(Epoch(QUERY, 0), staged)
    found = [{name.lower(): value for name, value in row.items()} for row in mirror.onlooker.rows()]
    assert sorted(found, key=str) == [
        {"id": 0, "text": "", "size": 0},
        {"id": 1, "text": "", "size": 1},
    ]


def await_sessions(mirror, condition, count):
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' "
        f"AND pid <> pg_backend_pid() AND {condition}"
    )
    await_that(lambda: mirror.onlooker.database.run(query) == [(count,)], condition, seconds=20)


def test_a_task_has_one_connection_at_a_time(mirror, event, monkeypatch):
    """A pool whose connections all tasks use would have none for the new columns."""
    mirror.create("id int PRIMARY KEY, text text")
    real, calls = record_columns.add_columns, []

    def add_alone(options, rows):
        await_sessions(mirror, "true", 0)
        calls.append(rows.names)
        return real(options, rows)

    monkeypatch.setattr(record_columns, "add_columns", add_alone)
    mirror.apply(event(SMALL, id=1, text="a"), event(MORE, id=2, text="b", n=2), batches=2)
    assert calls == [["id", "text", "n"]]
    assert mirror.rows("id", "n") == [(1, None), (2, 2)]


def test_rows_that_a_crash_of_the_server_takes_are_staged_again(server, mirror, event, monkeypatch):
    mirror.create("id int PRIMARY KEY, text text")
    records = [event(SMALL, id=1, text="a"), event(MORE, id=2, text="b", n=2)]
    real = record_columns.add_columns

    def add_after_crash(options, rows):
        server.restart()
        return real(options, rows)

    with monkeypatch.context() as patch:
        patch.setattr(record_columns, "add_columns", add_after_crash)
        with pytest.raises(StorageError, match="emptied its staging table"):
            mirror.apply(*records, batches=2)
    mirror.apply(*records, batches=2)
    assert mirror.rows("id", "n") == [(1, None), (2, 2)]
    assert mirror.left() == ['My "Table', "krishiv_changes", "krishiv_epochs"]


def test_a_changed_key_keeps_its_values_if_columns_are_new_in_the_epoch_of_its_insert(
    mirror, event
):
    mirror.create("id int PRIMARY KEY, text text")
    mirror.apply(event(SMALL, id=1, text="large"))
    mirror.apply(event(SMALL, "d", id=1, text=None))
    event.lsn -= 1  # the delete and the insert are one change
    mirror.apply(event(SMALL, id=2, text=PLACEHOLDER), event(MORE, id=3, text="b", n=3))
    assert mirror.rows("id", "text", "n") == [(2, "large", None), (3, "b", 3)]


def test_the_columns_of_an_epoch_that_was_not_committed_are_null(mirror, event):
    mirror.create("id int PRIMARY KEY, text text")
    mirror.apply(event(SMALL, id=1, text="a"))
    writer = mirror.writer()
    records = [event(MORE, id=2, text="b", n=2)]
    plan = writer.plan(None)
    rows = to_rows(records, 1).to_batches()
    assert writer.stage(iter(rows), Task(QUERY, 1, 0, 0), plan) is not None
    assert mirror.rows("id", "n") == [(1, None)]  # the driver has died before the commit
    mirror.apply(*records)
    assert mirror.rows("id", "n") == [(1, None), (2, 2)]
    assert mirror.left() == ['My "Table', "krishiv_changes", "krishiv_epochs"]


def test_columns_are_added_beside_dead_letters(database, tmp_path, event):
    onlooker = Onlooker.of(database, tmp_path)
    given = {
        **onlooker.options(),
        "mode": "upsert",
        "changeFormat": "debezium",
        "keyColumns": "id",
        "schemaEvolution": "add",
        "deadLetters.format": "krishiv-parquet",
        "deadLetters.path": str(tmp_path / "dead"),
    }
    onlooker.database.run(f"CREATE TABLE {onlooker.table} (id int PRIMARY KEY, text text)")
    life = LetterLife(tmp_path, FORMAT, RECORDS, **given)
    noted = {**MORE, "note": TEXT}
    records = [
        event(SMALL, id=1, text="a"),
        event(noted, id=2, text="b", n=2, note="ok"),
        event(noted, id=3, text="c", n=3, note="a\0b"),
        (to_json({"id": 4}), b"{"),
    ]
    life.run(0, *to_rows(records).to_batches(max_chunksize=1))
    found = sorted((row["id"], row["n"], row["note"]) for row in onlooker.rows())
    assert found == [(1, None, None), (2, 2, "ok")]
    letters = duckdb.sql(f"SELECT reason FROM read_parquet('{tmp_path}/dead/*.parquet')").fetchall()
    assert len(letters) == 2
