"""Epochs of change data: a random life of a database table, and its mirror after each epoch."""

import random

import pyarrow as pa
import pytest
from debezium_events import PLACEHOLDER, to_json, write_event
from iceberg_life import IcebergLife, at_next_commit, table_of

from krishiv_spark.errors import CommitRejected, OptionError, SchemaError

NAME = "db.mirror"
RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
MODES = pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])


class Database:
    """A table with a large column, which writes the events of its changes to a topic.

    An update of the other columns leaves the large one out, as PostgreSQL does.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.rows, self.records, self.lsn = {}, [], 0

    def emit(self, key, value):
        self.records.append((to_json({"id": key}), value))

    def event(self, op, before, after):
        self.lsn += 1
        key = (after or before)["id"]
        self.emit(key, write_event(op, before, after, self.lsn))
        if op == "d":
            self.emit(key, None)

    def insert(self, key):
        text = self.random.choice([None, "", "x" * self.random.randrange(30)])
        self.rows[key] = {"id": key, "n": self.random.randrange(100), "text": text}
        self.event("c", None, self.rows[key])

    def update(self, key):
        row = self.rows[key]
        if self.random.random() < 0.6 and row["text"] is not None:
            self.rows[key] = row | {"n": self.random.randrange(100)}
            self.event("u", None, self.rows[key] | {"text": PLACEHOLDER})
        else:
            self.rows[key] = row | {"text": f"new {self.random.random()}"}
            self.event("u", None, self.rows[key])

    def delete(self, key):
        row = self.rows.pop(key)
        self.event("d", {"id": row["id"], "n": None, "text": None}, None)

    def step(self):
        key = self.random.randrange(8)
        if key not in self.rows:
            self.insert(key)
        elif self.random.random() < 0.25:
            self.delete(key)
        else:
            self.update(key)


def to_rows(records, first=0):
    keys, values = zip(*records, strict=True)
    count = len(records)
    offsets = range(first, first + count)
    columns = [keys, values, ["t"] * count, [0] * count, offsets]
    return pa.table(
        [pa.array(list(column), kind) for column, kind in zip(columns, RECORDS.types, strict=True)],
        schema=RECORDS,
    )


class Mirror(IcebergLife):
    def __init__(self, folder, **more):
        given = {
            "path": NAME,
            "mode": "upsert",
            "changeFormat": "debezium",
            "keyColumns": "id",
            "tableSchema": "id INT, n BIGINT, text STRING",
        }
        super().__init__(folder, **{**given, **more})
        self.folder, self.next = folder, 0

    def apply(self, records, first=0):
        self.epoch(self.next, to_rows(records, first))
        self.next += 1

    def rows(self):
        return sorted(
            table_of(self.folder, NAME).scan().to_arrow().to_pylist(), key=lambda row: row["id"]
        )


@MODES
@pytest.mark.parametrize("seed", range(4))
def test_the_mirror_equals_the_database_after_each_epoch(tmp_path, mode, seed):
    database = Database(seed)
    mirror = Mirror(tmp_path, upsertMode=mode)
    done = 0
    for _ in range(6):
        for _ in range(database.random.randrange(1, 25)):
            database.step()
        new = database.records[done:]
        mirror.apply(new, done)
        done += len(new)
        assert mirror.rows() == sorted(database.rows.values(), key=lambda row: row["id"])


@MODES
@pytest.mark.parametrize("seed", range(4))
def test_repeated_events_end_in_the_same_rows(tmp_path, mode, seed):
    """After a restart, Debezium sends again what it had sent since its last offset."""
    database = Database(seed)
    mirror = Mirror(tmp_path, upsertMode=mode)
    for _ in range(60):
        database.step()
    sent = []
    for record in database.records:
        sent.append(record)
        if database.random.random() < 0.15:
            sent.extend(sent[-database.random.randrange(1, 12) :])
    at = 0
    while at < len(sent):
        size = database.random.randrange(1, 12)
        mirror.apply(sent[at : at + size], at)
        at += size
    assert mirror.rows() == sorted(database.rows.values(), key=lambda row: row["id"])


def insert(key, **row):
    return to_json({"id": key}), write_event("c", None, {"id": key, "n": 0, "text": None} | row)


def update(key, **row):
    return to_json({"id": key}), write_event(
        "u", None, {"id": key, "n": 0, "text": PLACEHOLDER} | row
    )


def test_a_value_is_kept_that_another_writer_changes_before_the_commit(tmp_path, monkeypatch):
    mirror = Mirror(tmp_path)
    mirror.apply([insert(1, text="old"), insert(2, text="two")])
    other = Mirror(tmp_path, query="query-2")

    def interfere(commit):
        other.apply([insert(1, text="newer")], 100)
        return commit()

    at_next_commit(monkeypatch, interfere)
    mirror.apply([update(1, n=5)], 2)
    assert mirror.rows() == [
        {"id": 1, "n": 5, "text": "newer"},
        {"id": 2, "n": 0, "text": "two"},
    ]


def test_an_update_of_an_unknown_row_without_a_value_changes_nothing(tmp_path, caplog):
    mirror = Mirror(tmp_path)
    mirror.apply([insert(1, text="one"), update(7, n=1)])
    assert [row["id"] for row in mirror.rows()] == [1]
    assert "1 updates without some values are of rows that the table does not have" in caplog.text


def test_a_new_row_without_a_value_is_refused_or_gets_null(tmp_path):
    half = to_json({"id": 2}), write_event("c", None, {"id": 2, "n": 1, "text": PLACEHOLDER})
    mirror = Mirror(tmp_path)
    mirror.apply([insert(1, text="one")])
    with pytest.raises(CommitRejected, match="REPLICA IDENTITY FULL"):
        mirror.apply([half], 1)
    assert [row["id"] for row in mirror.rows()] == [1]
    lenient = Mirror(tmp_path, missingValues="null")
    lenient.next = 1
    lenient.apply([half], 1)
    assert mirror.rows()[-1] == {"id": 2, "n": 1, "text": None}


def test_the_later_offset_wins_whatever_the_order_of_the_rows(tmp_path):
    mirror = Mirror(tmp_path)
    rows = to_rows([insert(1, n=1), update(1, n=2, text="b"), update(1, n=3, text="c")])
    mirror.epoch(0, rows.take([2, 0, 1]))
    assert mirror.rows() == [{"id": 1, "n": 3, "text": "c"}]


def test_the_columns_of_an_existing_table_need_no_declaration(tmp_path):
    Mirror(tmp_path).apply([insert(1, text="a")])
    bare = Mirror(tmp_path, tableSchema="")
    bare.next = 1
    bare.apply([insert(2, text="b")], 1)
    assert [row["text"] for row in bare.rows()] == ["a", "b"]


def test_a_declared_column_is_added_to_the_table(tmp_path):
    Mirror(tmp_path).apply([insert(1, text="a")])
    wider = Mirror(
        tmp_path, tableSchema="id INT, n BIGINT, text STRING, more INT", schemaEvolution="add"
    )
    wider.next = 1
    wider.apply([insert(2, more=7)], 1)
    assert [row["more"] for row in wider.rows()] == [None, 7]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"tableSchema": ""}, "does not exist, and events have no types"),
        ({"keyColumns": "nr"}, "'keyColumns' names 'nr', but the columns are id, n, text"),
        ({"tableSchema": "id FLOAT"}, "cannot be a key"),
    ],
)
def test_options_that_cannot_work_are_refused_before_a_row_is_read(tmp_path, given, reason):
    mirror = Mirror(tmp_path, **given)
    with pytest.raises(OptionError, match=reason):
        mirror.apply([insert(1)])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"mode": "append", "keyColumns": ""}, "'changeFormat' requires 'mode' = 'upsert'"),
        ({"opColumn": "op"}, "'opColumn' contradicts 'changeFormat'"),
        ({"changeFormat": ""}, "changeFormat"),
        ({"timeUnits": "hours"}, "write ms, us or ns"),
        ({"tableSchema": "id NUMBER"}, "a type"),
        ({"decimalFormat": "double"}, "decimalFormat"),
    ],
)
def test_wrong_options_are_named(tmp_path, given, reason):
    with pytest.raises(OptionError, match=reason):
        Mirror(tmp_path, **given).apply([insert(1)])


def test_rows_that_are_no_records_are_refused(tmp_path):
    mirror = Mirror(tmp_path)
    with pytest.raises(OptionError, match="column 'key' is missing"):
        mirror.epoch(0, pa.table({"value": pa.array([b"{}"])}))
    with pytest.raises(OptionError, match="column 'value' is int64"):
        mirror.epoch(0, pa.table({"key": pa.array([b"{}"]), "value": [1]}))


def test_a_bad_event_names_its_offset_and_writes_nothing(tmp_path):
    mirror = Mirror(tmp_path)
    mirror.apply([insert(1)])
    with pytest.raises(SchemaError, match="t-0 at offset 2: the value"):
        mirror.apply([insert(2), (None, b"{}")], 1)
    assert [row["id"] for row in mirror.rows()] == [1]
