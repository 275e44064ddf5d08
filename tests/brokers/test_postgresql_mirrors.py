"""Mirrors in PostgreSQL: events of Debezium change a table, which then equals the database."""

import random
from decimal import Decimal

import duckdb
import numpy as np
import pytest
from database_life import COLUMNS, RECORDS, Database, to_rows
from debezium_events import PLACEHOLDER, to_json, write_event, write_scaled, write_unscaled
from letter_life import LetterLife
from pg_mirror import FORMAT, Mirror
from pg_onlooker import Onlooker
from pg_server import open_killable
from postgres import require_programs
from truncated_table import TruncatedTable

from krishiv_spark.errors import CommitRejected, OptionError, SchemaError
from krishiv_spark.sinks.postgresql import mirrored_changes

pytestmark = pytest.mark.long  # a server; the kit has mirrors in PostgreSQL


@pytest.fixture(scope="module")
def database():
    with open_killable(require_programs()) as server:
        yield server.database


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


def live_in_pieces(database, folder, seed):
    """Compare the mirror after epochs that end anywhere, also between the halves of a move."""
    life, dice = Database(seed, moves=True, renames=True), random.Random(seed)
    for _ in range(60):
        life.step()
    mirror, rows, done = Mirror(database, folder), {}, 0
    while done < len(life.records):
        size = dice.choice([1, 2, 3, 20])
        mirror.apply(*life.records[done : done + size])
        for effect in life.effects[done : done + size]:
            rows |= effect
        done += size
        assert mirror.rows() == values({k: row for k, row in rows.items() if isinstance(row, dict)})


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 3))])
def test_the_mirror_equals_the_database_after_each_epoch(database, tmp_path, seed):
    mirror = live(database, tmp_path, seed)
    assert mirror.left() == ['My "Table', "krishiv_changes", "krishiv_epochs"]


def live_often(database, folder):
    for seed in range(10):
        live(database, folder / str(seed), seed)
        live_in_pieces(database, folder / f"{seed} in pieces", seed)


SEEDS = pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 6))]
)


@pytest.mark.long
@SEEDS
def test_a_changed_key_takes_the_kept_values_along_from_earlier_epochs(database, tmp_path, seed):
    live_in_pieces(database, tmp_path, seed)


BUGS = {
    "a changed key leaves its values behind": ("follow_moves", lambda _, before: before),
    "a kept value is that of the table": (
        "find_rows_before",
        lambda found, _: mirrored_changes.in_table(found.groups),
    ),
    "a row that an earlier epoch has deleted is forgotten": (
        "find_moved_inserts",
        lambda *_: np.empty(0, np.int64),
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


@pytest.mark.parametrize("name", ["place", "cut", "place_of_key"])
def test_a_column_may_have_any_name_that_does_not_start_as_those_of_changes(
    database, tmp_path, name
):
    mirror = Mirror(database, tmp_path, tableSchema="", truncateEvents="apply")
    mirror.create(f"id int PRIMARY KEY, {name} text")
    truncated = (None, write_event("t", None, None, 2))
    mirror.apply(event(1, 1, **{name: "a"}), truncated, event(2, 3, **{name: "b"}))
    assert mirror.rows("id", name) == [(2, "b")]
    mirror.apply(event(3, 5, **{name: "new"}), event(3, 4, **{name: "old"}), partitions=(0, 1))
    assert mirror.rows("id", name) == [(2, "b"), (3, "new")]


def test_a_key_with_braces_in_its_name_finds_kept_values(database, tmp_path):
    mirror = Mirror(database, tmp_path, tableSchema="", keyColumns="{id}")
    mirror.create('"{id}" int PRIMARY KEY, n int, text text')
    for lsn, (n, text) in enumerate([(1, "old"), (2, PLACEHOLDER)], 1):
        after = {"{id}": 1, "n": n, "text": text}
        mirror.apply((to_json({"{id}": 1}), write_event("u", None, after, lsn)))
    assert mirror.rows("{id}", "n", "text") == [(1, 2, "old")]


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


def leave(key, lsn):
    return to_json({"id": key}), write_event("d", {"id": key}, None, lsn)


def arrive(key, lsn):
    return event(key, lsn, "c", n=0, text=PLACEHOLDER)


@pytest.mark.long
@pytest.mark.parametrize("between", [[], ["tombstone"], ["other partition"]])
def test_a_changed_key_takes_the_values_of_the_row_along_that_an_earlier_epoch_has_deleted(
    database, tmp_path, between
):
    mirror = Mirror(database, tmp_path)
    mirror.apply(event(1, 1, "c", n=1, text="old"), event(5, 2, "c", n=5, text="five"))
    # The epoch has changed the row before, partly.
    mirror.apply(event(1, 5, n=1, text="new"), event(1, 6, n=2, text=PLACEHOLDER), leave(1, 7))
    if "tombstone" in between:
        mirror.apply((to_json({"id": 1}), None))
    if "other partition" in between:
        mirror.apply(event(4, 9, "c", n=4, text="four"), leave(5, 10), partitions=(1,))
    mirror.apply(arrive(2, 7))
    assert (2, 0, "new") in mirror.rows()
    mirror.apply(event(2, 11, n=3, text=PLACEHOLDER))
    assert (2, 3, "new") in mirror.rows()


@pytest.mark.parametrize("apart", [False, True])
def test_repeated_events_between_a_delete_and_its_insert_keep_the_values(database, tmp_path, apart):
    """The repeated events end with a delete, too: the insert needs the first one's row."""
    mirror = Mirror(database, tmp_path)
    five = event(5, 3, "c", n=5, text="five")
    mirror.apply(event(1, 1, "c", n=1, text="one"), five, leave(5, 4))
    mirror.apply(leave(1, 7))
    mirror.apply(five, leave(5, 4))
    if apart:
        mirror.apply(leave(1, 7))
        mirror.apply(arrive(2, 7))
    else:
        mirror.apply(leave(1, 7), arrive(2, 7))
    assert mirror.rows() == [(2, 0, "one")]


def test_a_row_whose_delete_an_epoch_repeats_is_recorded(database, tmp_path):
    mirror = Mirror(database, tmp_path)
    mirror.apply(event(1, 1, "c", n=1, text="one"))
    mirror.apply(leave(1, 7), event(5, 3, "c", n=5, text="five"), leave(5, 4), leave(1, 7))
    mirror.apply(arrive(2, 7))
    assert mirror.rows() == [(2, 0, "one")]


@pytest.mark.parametrize("apart", [False, True])
def test_a_key_that_changes_twice_takes_the_values_along(database, tmp_path, apart):
    mirror = Mirror(database, tmp_path)
    mirror.apply(event(1, 1, "c", n=1, text="one"))
    mirror.apply(leave(1, 7))
    if apart:
        mirror.apply(arrive(2, 7), leave(2, 8))
        mirror.apply(arrive(3, 8))
    else:
        mirror.apply(arrive(2, 7), leave(2, 8), arrive(3, 8))
    assert mirror.rows() == [(3, 0, "one")]


@pytest.mark.parametrize(("partition", "lsn"), [(1, 7), (0, 8)])
def test_an_insert_that_does_not_belong_to_the_last_delete_is_refused(
    database, tmp_path, partition, lsn
):
    mirror = Mirror(database, tmp_path)
    mirror.apply(event(1, 1, "c", n=1, text="one"))
    mirror.apply(leave(1, 7))
    with pytest.raises(CommitRejected, match="came in another epoch"):
        mirror.apply(arrive(2, lsn), partitions=(partition,))


def test_a_deleted_row_is_recorded_until_a_later_event(database, tmp_path):
    mirror = Mirror(database, tmp_path)
    mirror.apply(event(1, 1, "c", n=1, text="one"), event(2, 2, "c", n=2, text="two"))
    for records, recorded in [
        ([leave(1, 7)], {"id": "1", "n": "1", "text": "one"}),
        ([(to_json({"id": 1}), None)], {"id": "1", "n": "1", "text": "one"}),
        ([event(2, 8, n=3, text=PLACEHOLDER)], None),
    ]:
        mirror.apply(*records)
        ((found,),) = database.run(
            f"SELECT deleted_row FROM {mirror.onlooker.schema}.krishiv_changes"
        )
        assert found == recorded


def test_the_table_of_positions_of_an_earlier_version_gets_the_columns_that_it_lacks(
    database, tmp_path
):
    mirror = Mirror(database, tmp_path)
    changes = f"{mirror.onlooker.schema}.krishiv_changes"
    mirror.apply(event(1, 10, "c", n=1, text="x"))
    dropped = ", ".join(
        f"DROP COLUMN {name}" for name in ("newest_time", "deleted_at", "deleted_row")
    )
    database.run(f"ALTER TABLE {changes} {dropped}")
    mirror.apply(
        (to_json({"id": 1}), write_event("u", None, {"id": 1, "n": 2, "text": "y"}, 11, ts_ms=5))
    )
    mirror.apply(leave(1, 12))
    assert mirror.rows() == []
    found = database.run(f"SELECT position, newest_time, deleted_row ->> 'text' FROM {changes}")
    assert [*found] == [(12, [5_000, 11], "y")]


def test_a_delete_of_another_server_replaces_the_recorded_one(database, tmp_path):
    """Positions start again there, and times are newer."""
    mirror = Mirror(database, tmp_path)

    def apply(op, lsn, ms, before=None, after=None):
        row = after or before
        mirror.apply((to_json({"id": row["id"]}), write_event(op, before, after, lsn, ts_ms=ms)))

    apply("c", 900, 5, after={"id": 1, "n": 1, "text": "one"})
    apply("d", 901, 5, before={"id": 1})
    apply("c", 3, 9, after={"id": 5, "n": 5, "text": "five"})
    apply("d", 4, 9, before={"id": 5})
    apply("c", 4, 9, after={"id": 6, "n": 6, "text": PLACEHOLDER})
    assert mirror.rows() == [(6, 6, "five")]


def test_a_value_that_the_recorded_row_lacks_is_not_guessed(database, tmp_path):
    mirror = Mirror(database, tmp_path, tableSchema="")
    mirror.create("id int PRIMARY KEY, n bigint, text text")
    mirror.apply(event(1, 1, "c", n=1, text="one"))
    mirror.apply(leave(1, 7))
    database.run(f"ALTER TABLE {mirror.onlooker.table} ADD COLUMN more text")
    with pytest.raises(CommitRejected, match="came in another epoch"):
        mirror.apply(event(2, 7, "c", n=0, text=PLACEHOLDER, more=PLACEHOLDER))
    mirror.apply(event(2, 7, "c", n=0, text=PLACEHOLDER, more="given"))
    assert mirror.rows("id", "n", "text", "more") == [(2, 0, "one", "given")]


def test_the_later_offset_wins_also_from_another_server(database, tmp_path):
    """Positions start again there."""
    mirror = Mirror(database, tmp_path)
    mirror.apply(event(1, 900, "c", n=1, text="x"), event(1, 5, n=2, text=PLACEHOLDER))
    assert mirror.rows() == [(1, 2, "x")]


@pytest.mark.parametrize("other", ["c", "r"])
def test_the_higher_position_wins_of_a_key_in_two_partitions(database, tmp_path, other):
    """Also beside a row that a snapshot has read, which has no position."""
    mirror = Mirror(database, tmp_path)
    newer, older = event(1, 9, n=2, text=PLACEHOLDER), event(1, 5, "c", n=1, text="x")
    mirror.apply(newer, older, event(2, 3, other, n=3, text="y"), partitions=(0, 1))
    assert mirror.rows() == [(1, 2, "x"), (2, 3, "y")]


def test_changed_keys_that_are_repeated_keep_the_values_of_the_end(database, tmp_path):
    """The table has the rows of the end, so the row of the old key is another row by then."""
    mirror = Mirror(database, tmp_path)
    mirror.apply(event(1, 1, "c", n=1, text="A"), event(2, 2, "c", n=2, text="B"))
    exchange = [leave(1, 10), arrive(9, 10), leave(2, 20), arrive(1, 20), leave(9, 30)]
    window = [*exchange, arrive(2, 30), event(3, 40, "c", n=3, text="C")]
    for _ in range(2):
        mirror.apply(*window)
        assert mirror.rows() == [(1, 0, "B"), (2, 0, "A"), (3, 3, "C")]


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
    schema = mirror.onlooker.schema
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
        "f": 0.1259765625,
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
    found = read_types(mirror)
    assert found[1:6] == (
        Decimal("12.50"),
        Decimal("-1234567890123456789012345678901234567890.123"),
        '{"a": [2], "b": 1}',
        '{"b": 1,  "b": 2}',
        "new",
    )
    assert found[7:] == (
        "2024-02-29 01:02:03.456",
        "2024-02-29",
        "01:02:03.000004",
        ["a", None, 'q"'],
        -7,
        0.12597656,
        b"\0\1\2",
    )
    mirror.given["libpq.options"] = "-c extra_float_digits=-3 -c datestyle=SQL,DMY"
    mirror.apply((to_json({"id": key}), write_event("d", {"id": key}, None, 3)))
    recorded = f"SELECT deleted_row ->> 'f', deleted_row ->> 'day' FROM {schema}.krishiv_changes"
    assert database.run(recorded) == [("0.12597656", "2024-02-29")]
    other = key.replace("1", "2")
    every = {**row, **kept, "id": other}
    mirror.apply((to_json({"id": other}), write_event("c", None, every, 3)))
    assert read_types(mirror)[2:5] + read_types(mirror)[6:] == found[2:5] + found[6:]


def read_types(mirror):
    (found,) = mirror.onlooker.database.run(
        f'SELECT id, price, "any", doc::text, plain::text, mood, at::text, local::text, day::text, '
        f"clock::text, tags, small, f, raw FROM {mirror.onlooker.table}"
    )
    return found


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
