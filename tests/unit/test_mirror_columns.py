"""Mirrors whose tables get their columns from the schemas of events."""

import datetime as dt
import json
import os
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from debezium_events import (
    INT,
    LONG,
    PLACEHOLDER,
    TEXT,
    make_decimal,
    micros,
    to_json,
    wrap,
    write_event,
    write_typed,
    write_unscaled,
)
from iceberg_life import IcebergLife, at_next_commit, table_of
from registered_events import (
    decimal,
    make_envelope,
    make_event,
    named,
    optional,
    running_schema_server,
)

from krishiv_spark.errors import CommitRejected, KrishivError, OptionError, SchemaError

NAME = "db.mirror"
CORPUS = os.environ.get("KRISHIV_DEBEZIUM_CORPUS")
RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
TIME = dt.datetime(2024, 2, 29, 23, 59, 59, 123456)  # noqa: DTZ001
CONNECT, DEBEZIUM = "org.apache.kafka.connect.data", "io.debezium.time"


def to_rows(records, first):
    keys, values = zip(*records, strict=True)
    count = len(records)
    columns = [keys, values, ["t"] * count, [0] * count, range(first, first + count)]
    arrays = [pa.array(list(one), kind) for one, kind in zip(columns, RECORDS.types, strict=True)]
    return pa.table(arrays, schema=RECORDS)


class Mirror(IcebergLife):
    def __init__(self, folder, **more):
        given = {"path": NAME, "mode": "upsert", "changeFormat": "debezium", "keyColumns": "id"}
        super().__init__(folder, **{**given, **more})
        self.folder, self.next, self.first = folder, 0, 0

    def apply(self, *values, tasks=1):
        records = [value if isinstance(value, tuple) else (None, value) for value in values]
        self.epoch(self.next, to_rows(records, self.first), tasks=tasks)
        self.next, self.first = self.next + 1, self.first + len(values)

    def types(self):
        fields = table_of(self.folder, NAME).schema().fields
        return {field.name: str(field.field_type) for field in fields}

    def rows(self):
        found = table_of(self.folder, NAME).scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: row["id"])


def event(columns, row, op="c"):
    event.lsn += 1
    return write_typed(columns, row, event.lsn, op)


event.lsn = 0
SMALL = {"id": INT, "name": TEXT}
WIDER = {"id": LONG, "name": TEXT, "price": make_decimal(2, 9)}


def test_a_table_is_created_with_the_types_of_the_events(tmp_path):
    columns = {
        **SMALL,
        "small": {"type": "int16"},
        "big": LONG,
        "ratio": {"type": "float"},
        "part": {"type": "double"},
        "is_open": {"type": "boolean"},
        "price": make_decimal(2, 9),
        "huge": make_decimal(2, 60),
        "free": {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "fields": []},
        "day": {**INT, "name": f"{DEBEZIUM}.Date"},
        "at": {**LONG, "name": f"{DEBEZIUM}.MicroTimestamp"},
        "ms": {**LONG, "name": f"{DEBEZIUM}.Timestamp"},
        "zoned": {**TEXT, "name": f"{DEBEZIUM}.ZonedTimestamp"},
        "clock": {**LONG, "name": f"{DEBEZIUM}.MicroTime"},
        "scan": {"type": "bytes"},
        "tags": {"type": "array", "items": TEXT},
        "store": {"type": "map", "keys": TEXT, "values": TEXT},
        "uid": {**TEXT, "name": "io.debezium.data.Uuid"},
    }
    row = {
        "id": 1, "name": "a", "small": 2, "big": 3, "ratio": 0.5, "part": 0.1, "is_open": True,
        "price": write_unscaled(Decimal("1.25"), 2), "huge": write_unscaled(Decimal("1.5"), 2),
        "free": {"scale": 1, "value": "DQ=="}, "day": 19782, "at": micros(TIME), "ms": 1000,
        "zoned": "2024-02-29T23:59:59.123456Z", "clock": 5, "scan": "AP8=", "tags": ["x"],
        "store": {"k": "v"}, "uid": "98da4487-72cf-44ba-a36f-2fe8b6d69b5f",
    }  # fmt: skip
    mirror = Mirror(tmp_path)
    mirror.apply(event(columns, row))
    assert mirror.types() == {
        "id": "int", "name": "string", "small": "int", "big": "long", "ratio": "float",
        "part": "double", "is_open": "boolean", "price": "decimal(9, 2)", "huge": "string",
        "free": "string",
        "day": "date", "at": "timestamp", "ms": "timestamp", "zoned": "timestamptz",
        "clock": "long", "scan": "binary", "tags": "list<string>", "store": "map<string, string>",
        "uid": "string",
    }  # fmt: skip
    (found,) = mirror.rows()
    assert (found["price"], found["huge"], found["free"]) == (Decimal("1.25"), "1.50", "1.3")
    assert (found["at"], found["day"]) == (TIME, TIME.date())
    assert found["zoned"] == TIME.replace(tzinfo=dt.UTC)


def test_a_table_is_created_from_events_in_avro(tmp_path):
    columns = {
        "id": "int",
        "price": optional(decimal(2, 9)),
        "at": named("long", f"{DEBEZIUM}.MicroTimestamp"),
    }
    with running_schema_server() as registry:
        first = registry.register(make_envelope(columns))
        more = registry.register(make_envelope({**columns, "note": optional("string")}))
        row = {"id": 1, "price": Decimal("1.25"), "at": micros(TIME)}
        given = {"registry.url": registry.url, "schemaEvolution": "add"}
        mirror = Mirror(tmp_path, **given)
        mirror.apply(registry.write(first, make_event("c", None, row)))
        assert mirror.types() == {"id": "int", "price": "decimal(9, 2)", "at": "timestamp"}
        noted = row | {"id": 2, "note": "x"}
        mirror.apply(registry.write(more, make_event("c", None, noted, 2)))
    wanted = row | {"at": TIME}
    assert mirror.rows() == [wanted | {"note": None}, wanted | {"id": 2, "note": "x"}]


@pytest.mark.parametrize("tasks", [1, 2, 4])
def test_columns_are_added_and_widened_in_the_middle_of_an_epoch(tmp_path, tasks):
    mirror = Mirror(tmp_path, schemaEvolution="widen")
    mirror.apply(event(SMALL, {"id": 1, "name": "a"}))
    price = write_unscaled(Decimal("1.25"), 2)
    later = {**WIDER, "price": make_decimal(2, 12)}
    mirror.apply(
        event(SMALL, {"id": 2, "name": "b"}),
        event(WIDER, {"id": 2**40, "name": "c", "price": price}),
        event(SMALL, {"id": 3, "name": "d"}),
        event(later, {"id": 1, "name": "e", "price": price}, "u"),
        tasks=tasks,
    )
    assert mirror.types() == {"id": "long", "name": "string", "price": "decimal(12, 2)"}
    found = {row["id"]: (row["name"], row["price"]) for row in mirror.rows()}
    quarter = Decimal("1.25")
    assert found == {1: ("e", quarter), 2: ("b", None), 3: ("d", None), 2**40: ("c", quarter)}


def test_a_kept_value_is_found_in_changes_with_fewer_columns(tmp_path):
    mirror = Mirror(tmp_path, schemaEvolution="add")
    mirror.apply(event(SMALL, {"id": 1, "name": "large"}))
    both = {**SMALL, "n": INT}
    mirror.apply(
        event(SMALL, {"id": 2, "name": "also large"}),
        event(both, {"id": 2, "name": PLACEHOLDER, "n": 2}, "u"),
        event(both, {"id": 1, "name": PLACEHOLDER, "n": 1}, "u"),
    )
    assert mirror.rows() == [
        {"id": 1, "name": "large", "n": 1},
        {"id": 2, "name": "also large", "n": 2},
    ]


def test_an_epoch_that_fails_after_its_columns_were_added_is_repeated(tmp_path, monkeypatch):
    mirror = Mirror(tmp_path, schemaEvolution="add")
    mirror.apply(event(SMALL, {"id": 1, "name": "a"}))
    values = [event({**SMALL, "n": INT}, {"id": 2, "name": "b", "n": 5})]

    def refuse(_):
        raise KrishivError("the process ends here")

    def fail(commit):
        commit()  # that of the columns
        at_next_commit(monkeypatch, refuse)

    at_next_commit(monkeypatch, fail)
    with pytest.raises(KrishivError):
        mirror.apply(*values)
    assert "n" in mirror.types()
    assert [row["id"] for row in mirror.rows()] == [1]
    monkeypatch.undo()
    mirror.apply(*values)
    assert mirror.rows() == [{"id": 1, "name": "a", "n": None}, {"id": 2, "name": "b", "n": 5}]


def test_a_new_column_fails_unless_the_option_allows_it(tmp_path):
    mirror = Mirror(tmp_path)
    mirror.apply(event(SMALL, {"id": 1, "name": "a"}))
    with pytest.raises(SchemaError, match="columns that the table does not have: 'n'"):
        mirror.apply(event({**SMALL, "n": INT}, {"id": 2, "name": "b", "n": 5}))


def test_a_first_epoch_without_a_row_leaves_the_table_without_columns(tmp_path):
    mirror = Mirror(tmp_path)
    heartbeat = wrap({"type": "struct", "fields": [{**LONG, "field": "ts_ms"}]}, {"ts_ms": 1})
    mirror.apply((to_json({"id": 1}), None), heartbeat)
    assert mirror.types() == {}
    mirror.apply((to_json({"id": 1}), None), event(SMALL, {"id": 1, "name": "a"}))
    assert mirror.rows() == [{"id": 1, "name": "a"}]


def test_events_without_a_schema_need_the_declared_columns(tmp_path):
    plain = write_event("c", None, {"id": 1, "name": "a"})
    with pytest.raises(SchemaError, match="has no columns yet, and an event has no schema"):
        Mirror(tmp_path).apply(plain)
    mirror = Mirror(tmp_path, tableSchema="id BIGINT, name STRING")
    mirror.apply(plain)
    assert mirror.rows() == [{"id": 1, "name": "a"}]


def test_key_columns_that_the_events_do_not_have_are_refused(tmp_path):
    with pytest.raises(
        SchemaError, match="'keyColumns' names 'nr', and the events have the columns id, name"
    ):
        Mirror(tmp_path, keyColumns="nr").apply(event(SMALL, {"id": 1, "name": "a"}))


def test_partitions_need_the_declared_columns(tmp_path):
    with pytest.raises(OptionError, match="declare them with 'tableSchema'"):
        Mirror(tmp_path, partitionBy="bucket(4, id)").apply(event(SMALL, {"id": 1, "name": "a"}))


@pytest.mark.parametrize("name", ["_krishiv_delete", "_krishiv_time", "_krishiv_any"])
def test_a_name_of_a_staged_column_is_refused_before_the_table_is_changed(tmp_path, name):
    mirror = Mirror(tmp_path, schemaEvolution="add")
    mirror.apply(event(SMALL, {"id": 1, "name": "a"}))
    row = {"id": 2, "name": "b", name: "v"}
    with pytest.raises(SchemaError, match=f"'{name}' has a name of the sink's own columns"):
        mirror.epoch(1, to_rows([(None, event({**SMALL, name: TEXT}, row))], 1))
    mirror.apply(event(SMALL, {"id": 3, "name": "c"}))
    assert mirror.rows() == [{"id": 1, "name": "a"}, {"id": 3, "name": "c"}]


def test_columns_that_differ_only_by_case_are_refused(tmp_path):
    mirror = Mirror(tmp_path, schemaEvolution="add")
    mirror.apply(event(SMALL, {"id": 1, "name": "a"}))
    with pytest.raises((SchemaError, CommitRejected), match="'NAME'"):
        mirror.apply(event({**SMALL, "NAME": TEXT}, {"id": 1, "name": "a", "NAME": "b"}))


def test_the_columns_of_a_row_alone_leave_out_the_flags(tmp_path):
    fields = [
        {**kind, "field": name} for name, kind in {**SMALL, "__deleted": TEXT, "__op": TEXT}.items()
    ]
    row = {"id": 1, "name": "a", "__deleted": "false", "__op": "c"}
    mirror = Mirror(tmp_path)
    key = wrap({"type": "struct"}, {"id": 1})
    mirror.apply((key, wrap({"type": "struct", "fields": fields}, row)))
    assert mirror.types() == {"id": "int", "name": "string"}


def test_a_history_gets_the_columns_of_later_events(tmp_path):
    declared = {"mode": "scd2", "tableSchema": "id INT, name STRING", "schemaEvolution": "add"}
    mirror = Mirror(tmp_path, **declared)
    values = [
        event(SMALL, {"id": 1, "name": "a"}),
        event({**SMALL, "n": INT}, {"id": 1, "name": "b", "n": 5}, "u"),
    ]
    for epoch, value in enumerate(values):
        rows = to_rows([(None, value)], epoch)
        times = pa.array([epoch * 1_000_000], pa.timestamp("us", "UTC"))
        mirror.epoch(epoch, rows.append_column("timestamp", times))
    found = {row["is_current"]: (row["name"], row["n"]) for row in mirror.rows()}
    assert found == {False: ("a", None), True: ("b", 5)}
    with pytest.raises(OptionError, match="declare them with 'tableSchema'"):
        Mirror(tmp_path, path="db.other", mode="scd2").epoch(
            0, rows.append_column("timestamp", times)
        )


@pytest.mark.skipif(CORPUS is None, reason="KRISHIV_DEBEZIUM_CORPUS is not set")
def test_recorded_messages_make_the_table_of_the_database(tmp_path):
    folder = Path(CORPUS or "")
    lines = map(json.loads, (folder / "with-schema-small.jsonl").read_text().splitlines())
    sides = ((line["key"], line["value"]) for line in lines)
    records = [tuple(text if text is None else text.encode() for text in pair) for pair in sides]
    mirror = Mirror(tmp_path)
    mirror.apply(*records)
    assert mirror.types()["price"].startswith("decimal(")
    found = [
        {**row, "price": str(row["price"]), "at": row["at"].isoformat()} for row in mirror.rows()
    ]
    wanted = json.loads((folder / "small.expected.json").read_text(), parse_float=lambda text: text)
    assert found == wanted
