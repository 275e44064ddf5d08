"""Mirrors in PostgreSQL: events of Debezium change a table, which then equals the database."""

import random
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from database_life import COLUMNS, RECORDS, Database, to_rows
from debezium_events import PLACEHOLDER, to_json, write_event, write_scaled, write_unscaled
from letter_life import LetterLife
from pg_onlooker import Onlooker
from pg_server import open_killable
from postgres import require_programs
from truncated_table import TruncatedTable

from krishiv_spark.errors import CommitRejected, OptionError, SchemaError
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.postgresql import mirrored_changes
from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions
from krishiv_spark.sinks.postgresql.writer import PostgresqlWriter

QUERY = "8503b910-b624-45a4-85db-fcb79eac7740"
FORMAT = "krishiv-postgresql"


@pytest.fixture(scope="module")
def database():
    with open_killable(require_programs()) as server:
        yield server.database


class Mirror:
    """A query that writes the events of a topic, epoch by epoch."""

    def __init__(self, database, folder, **options):
        self.onlooker = Onlooker.of(database, folder)
        usual = {"mode": "upsert", "changeFormat": "debezium", "keyColumns": "id"}
        if "tableSchema" not in options:
            usual["tableSchema"] = COLUMNS
        given = {**self.onlooker.options(), **usual, **options}
        self.given = {name: text for name, text in given.items() if text}
        self.next = self.first = 0

    def create(self, columns):
        self.onlooker.database.run(f"CREATE TABLE {self.onlooker.table} ({columns})")

    def writer(self):
        options = PostgresqlSinkOptions.parse(self.given, FORMAT)
        return PostgresqlWriter(options, RECORDS, OutputMode.APPEND)

    def apply(self, *records, partitions=(0,), tasks=1):
        rows = to_rows(records, self.first)
        numbers = [partitions[n % len(partitions)] for n in range(len(records))]
        rows = rows.set_column(3, RECORDS.field(3), pa.array(numbers, pa.int32()))
        writer = self.writer()
        writer.check()
        plan, staged = writer.plan(None), []
        size = -(-len(records) // tasks)
        for task in range(tasks):
            some = rows.slice(task * size, size).to_batches()
            staged.append(writer.stage(iter(some), Task(QUERY, self.next, task, 0), plan))
        epoch = Epoch(QUERY, self.next)
        writer.committer().publish(epoch, [each for each in staged if each is not None])
        self.next, self.first = self.next + 1, self.first + len(records)

    def rows(self, *names):
        names = names or ("id", "n", "text")
        return sorted((tuple(row[name] for name in names) for row in self.onlooker.rows()), key=str)

    def left(self):
        found = self.onlooker.database.run(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'",
            [self.onlooker.schema],
        )
        return sorted(name for (name,) in found)


def values(rows):
    return sorted(((row["id"], row["n"], row["text"]) for row in rows.values()), key=str)


def live(database, folder, seed):
    """Compare the mirror with a life of a database after each epoch."""
    life, dice = Database(seed, moves=True, renames=True), random.Random(seed)
    mirror = Mirror(database, folder)
    for _ in range(8):
        before = len(life.records)
        for _ in range(dice.randrange(1, 25)):
            life.step()
        mirror.apply(*life.records[before:], tasks=dice.choice([1, 3]))
        assert mirror.rows() == values(life.rows)
    return mirror


def live_often(database, folder):
    for seed in range(10):
        live(database, folder / str(seed), seed)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 3))])
def test_the_mirror_equals_the_database_after_each_epoch(database, tmp_path, seed):
    mirror = live(database, tmp_path, seed)
    assert mirror.left() == ['My "Table', "krishiv_changes", "krishiv_epochs"]


BUGS = {
    "a changed key leaves its values behind": ("follow_moves", lambda _, before: before),
    "a kept value is that of the table": (
        "find_rows_before",
        lambda found: mirrored_changes.in_table(found.groups),
    ),
    "the table has no row": (
        "locate_values",
        lambda source, *_: np.where(source < -1, -1, source),
    ),
}


@pytest.mark.long  # lives until one differs
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(database, tmp_path, monkeypatch, bug):
    monkeypatch.setattr(mirrored_changes, *BUGS[bug])
    with pytest.raises((AssertionError, CommitRejected)):
        live_often(database, tmp_path)


@pytest.mark.parametrize("with_positions", [pytest.param(True, marks=pytest.mark.long), False])
def test_truncates_delete_all_rows_at_their_place(database, tmp_path, with_positions):
    dice, table = random.Random(3), TruncatedTable(with_positions=with_positions)
    mirror = Mirror(database, tmp_path, truncateEvents="apply")
    for _ in range(6):
        for _ in range(dice.randrange(1, 25)):
            key = dice.randrange(8)
            if dice.random() < 0.1:
                table.truncate()
            elif key not in table.rows:
                table.put(key, dice.randrange(100), f"text {dice.random()}")
            elif dice.random() < 0.2:
                table.delete(key)
            else:
                table.put(key, dice.randrange(100), None if dice.random() < 0.6 else "new")
        mirror.apply(*table.take())
        assert mirror.rows() == table.state()


def test_a_truncate_fails_the_query_or_is_ignored(database, tmp_path):
    table = TruncatedTable()
    table.put(1, 1, "x")
    table.truncate()
    events = table.take()
    with pytest.raises(SchemaError, match="is the event of a TRUNCATE"):
        Mirror(database, tmp_path / "fail").apply(*events)
    mirror = Mirror(database, tmp_path / "ignore", truncateEvents="ignore")
    mirror.apply(*events)
    assert mirror.rows() == [(1, 1, "x")]
    mirror = Mirror(database, tmp_path / "apply", truncateEvents="apply")
    with pytest.raises(CommitRejected, match="events of the partitions t-0, t-1"):
        mirror.apply(*events, partitions=(0, 1))


def event(key, lsn, op="u", **values):
    return to_json({"id": key}), write_event(op, None, {"id": key, **values}, lsn)


def test_an_unchanged_value_that_is_not_known_is_refused_or_null(database, tmp_path):
    late = event(7, 5, n=1, text=PLACEHOLDER)
    mirror = Mirror(database, tmp_path)
    with pytest.raises(CommitRejected, match=r"row with id = '7' leaves out .* column 'text'"):
        mirror.apply(late)
    assert mirror.rows() == []
    other = Mirror(database, tmp_path / "null", missingValues="null")
    other.apply(late)
    assert other.rows() == [(7, 1, None)]


def test_a_repeated_event_of_a_deleted_row_changes_nothing(database, tmp_path, caplog):
    mirror = Mirror(database, tmp_path)
    create, update = event(1, 1, "c", n=1, text="x"), event(1, 2, n=2, text=PLACEHOLDER)
    delete = (to_json({"id": 1}), write_event("d", {"id": 1}, None, 3))
    mirror.apply(create, update, delete, event(2, 4, "c", n=2, text="y"))
    mirror.apply(update, event(3, 5, "c", n=3, text="z"))  # Debezium started again
    assert mirror.rows() == [(2, 2, "y"), (3, 3, "z")]
    assert "1 events that leave out values change nothing, the first of the row with id = '1'" in (
        caplog.text
    )


@pytest.mark.parametrize(("ms", "is_repeated"), [(5, True), (6, False)])
def test_a_lower_position_is_repeated_only_if_its_time_is_not_newer(
    database, tmp_path, ms, is_repeated
):
    """Positions start again on another server: there, a row that is not known is an error."""
    mirror = Mirror(database, tmp_path)
    last = {"id": 2, "n": 2, "text": "y"}
    mirror.apply((to_json({"id": 2}), write_event("c", None, last, 900, ts_ms=5)))
    kept = {"id": 1, "n": 2, "text": PLACEHOLDER}
    late = (to_json({"id": 1}), write_event("u", None, kept, 7, ts_ms=ms))
    if is_repeated:
        mirror.apply(late)
    else:
        with pytest.raises(CommitRejected, match="leaves out the unchanged value"):
            mirror.apply(late)
    assert mirror.rows() == [(2, 2, "y")]


def test_the_later_offset_wins_also_from_another_server(database, tmp_path):
    """Positions start again there."""
    mirror = Mirror(database, tmp_path)
    mirror.apply(event(1, 900, "c", n=1, text="x"), event(1, 5, n=2, text=PLACEHOLDER))
    assert mirror.rows() == [(1, 2, "x")]


def test_the_higher_position_wins_of_a_key_in_two_partitions(database, tmp_path):
    mirror = Mirror(database, tmp_path)
    newer, older = event(1, 9, n=2, text=PLACEHOLDER), event(1, 5, "c", n=1, text="x")
    mirror.apply(newer, older, event(2, 3, "c", n=3, text="y"), partitions=(0, 1))
    assert mirror.rows() == [(1, 2, "x"), (2, 3, "y")]


def test_a_stored_value_that_another_writer_changes_is_kept(database, tmp_path):
    mirror = Mirror(database, tmp_path)
    mirror.apply(event(1, 1, "c", n=1, text="x"))
    mirror.onlooker.database.run(f"UPDATE {mirror.onlooker.table} SET text = 'of another'")
    mirror.apply(event(1, 2, n=2, text=PLACEHOLDER))
    assert mirror.rows() == [(1, 2, "of another")]


TYPES = """id uuid PRIMARY KEY, price numeric(12, 2), any numeric, huge numeric(50, 3), doc jsonb,
plain json, mood text, at timestamptz, local timestamp(3), day date, clock time, tags text[],
small smallint, f real, raw bytea, only_here int DEFAULT 7"""


def test_values_have_the_types_of_the_table(database, tmp_path):
    mirror = Mirror(database, tmp_path, tableSchema="", timeUnits='{"local": "ms"}')
    mirror.create(TYPES.replace("any numeric", '"any" numeric'))
    # A column with a default in the table only; rows of events do not have it.
    database.run(f"ALTER TABLE {mirror.onlooker.table} DROP COLUMN only_here, DROP COLUMN huge")
    key = "6f1c2a30-0000-4000-8000-000000000001"
    row = {
        "id": key,
        "price": write_unscaled(Decimal("12.50"), 2),
        "any": write_scaled(Decimal("-1234567890123456789012345678901234567890.123")),
        "doc": '{"b": 1, "a": [2]}',
        "plain": '{"b": 1,  "b": 2}',
        "mood": "ok",
        "at": "2024-02-29T01:02:03.456789Z",
        "local": 1_709_168_523_456,
        "day": 19_782,
        "clock": 3_723_000_004,
        "tags": ["a", None, 'q"'],
        "small": -7,
        "f": 0.5,
        "raw": "AAEC",
    }
    mirror.apply((to_json({"id": key}), write_event("c", None, row, 1)))
    kept = {
        "doc": PLACEHOLDER,
        "plain": PLACEHOLDER,
        "raw": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
    }
    kept |= {"tags": [PLACEHOLDER]}
    mirror.apply((to_json({"id": key}), write_event("u", None, {**row, **kept, "mood": "new"}, 2)))
    ((found),) = database.run(
        f'SELECT price, "any", doc::text, plain::text, mood, at::text, local::text, day::text, '
        f"clock::text, tags, small, f, raw FROM {mirror.onlooker.table}"
    )
    assert found[:5] == (
        Decimal("12.50"),
        Decimal("-1234567890123456789012345678901234567890.123"),
        '{"a": [2], "b": 1}',
        '{"b": 1,  "b": 2}',
        "new",
    )
    assert found[6:] == (
        "2024-02-29 01:02:03.456",
        "2024-02-29",
        "01:02:03.000004",
        ["a", None, 'q"'],
        -7,
        0.5,
        b"\0\1\2",
    )


def test_a_text_in_a_number_of_any_length_is_not_guessed(database, tmp_path):
    """Four digits are base64 of three bytes, too."""
    event = (to_json({"id": 1}), write_event("c", None, {"id": 1, "v": "1234"}, 1))
    mirror = Mirror(database, tmp_path, tableSchema="")
    mirror.create("id int PRIMARY KEY, v numeric")
    nulls = [(to_json({"id": n}), write_event("d", {"id": n}, None, n)) for n in (1, 2)]
    nulls.append((to_json({"id": 3}), write_event("c", None, {"id": 3, "v": None}, 3)))
    mirror.apply(*nulls)
    assert mirror.rows("id", "v") == [(3, None)]
    for records in ([event], [*nulls, event]):
        with pytest.raises(SchemaError, match="may be the number or base64"):
            mirror.apply(*records)
    other = Mirror(database, tmp_path, tableSchema="", decimalFormat="string")
    other.create("id int PRIMARY KEY, v numeric")
    other.apply(event)
    assert other.rows("id", "v") == [(1, 1234)]


REFUSED = {
    "no table": ("", {"tableSchema": ""}, "does not exist: create it, as by pg_dump"),
    "an interval": ("id int PRIMARY KEY, i interval", {"tableSchema": ""}, "is interval, whose"),
    "bits": ("id int PRIMARY KEY, b bit(3)", {"tableSchema": ""}, "is bit.3., which events have"),
    "no key": ("id int PRIMARY KEY", {"tableSchema": "", "keyColumns": "x"}, "names 'x', but"),
    "append": (
        "",
        {"mode": "append", "keyColumns": ""},
        "'changeFormat' requires 'mode' = 'upsert'",
    ),
    "an operation": ("", {"opColumn": "op"}, "contradict 'changeFormat'"),
    "a unit": ("", {"timeUnits": '{"x": "ms"}'}, "'timeUnits' names 'x'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_before_an_event_moves(database, tmp_path, case):
    columns, options, text = REFUSED[case]
    mirror = Mirror(database, tmp_path, **options)
    if columns:
        mirror.create(columns)
    with pytest.raises((OptionError, SchemaError), match=text):
        mirror.writer().check()


def test_a_column_that_the_table_lacks_stops_the_query_until_it_is_declared(database, tmp_path):
    mirror = Mirror(database, tmp_path)
    mirror.apply(event(1, 1, "c", n=1, text="x"))
    more = event(2, 2, "c", n=1, text="x", new=4)
    with pytest.raises(SchemaError, match="has columns that the table does not have: 'new'"):
        mirror.apply(more)
    mirror.given |= {"tableSchema": f"{COLUMNS}, new INT", "schemaEvolution": "add"}
    mirror.apply(more)
    assert mirror.rows("id", "new") == [(1, None), (2, 4)]


def test_bad_events_are_dead_letters(database, tmp_path):
    onlooker = Onlooker.of(database, tmp_path)
    given = {
        **onlooker.options(),
        "mode": "upsert",
        "changeFormat": "debezium",
        "keyColumns": "id",
        "tableSchema": COLUMNS,
        "deadLetters.format": "krishiv-parquet",
        "deadLetters.path": str(tmp_path / "dead"),
    }
    life = LetterLife(tmp_path, FORMAT, RECORDS, **given)
    good = event(1, 1, "c", n=1, text="x")
    bad = (to_json({"id": 2}), b"{")
    unfit = event(3, 2, "c", n=1, text="a\0b")
    life.run(0, *to_rows([good, bad, unfit]).to_batches())
    assert [row["id"] for row in onlooker.rows()] == [1]
    later = event(1, 3, n=2, text=PLACEHOLDER)
    life.run(1, *to_rows([later], 3).to_batches())
    assert [(row["n"], row["text"]) for row in onlooker.rows()] == [(2, "x")]
    letters = duckdb.sql(f"SELECT reason FROM read_parquet('{tmp_path}/dead/*.parquet')").fetchall()
    assert len(letters) == 2
