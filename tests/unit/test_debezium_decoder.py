"""Records of Debezium, decoded to changes of a table."""

import base64
import datetime as dt
import hashlib
import json
import os
import re
import uuid
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from debezium_events import (
    PLACEHOLDER,
    micros,
    to_json,
    wrap,
    write_event,
    write_scaled,
    write_unscaled,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from krishiv_spark.changes.debezium import DebeziumDecoder, DebeziumRules
from krishiv_spark.changes.options import ValueRules
from krishiv_spark.errors import SchemaError

ID = pa.field("id", pa.int32())
SMALL = pa.schema([ID, ("name", pa.string())])
CORPUS = os.environ.get("KRISHIV_DEBEZIUM_CORPUS")


def decode(columns, *values, keys=None, of=("id",), **rules):
    """The changes of records as tuples: delete or not, the row, the kept columns."""
    decoder = DebeziumDecoder(columns, of, DebeziumRules(**rules))
    return decode_with(decoder, *values, keys=keys)


def decode_with(decoder, *values, keys=None):
    found = decoder.decode(
        pa.array(list(values), pa.binary()),
        pa.array(keys or [None] * len(values), pa.binary()),
        lambda row: f"t-0 at offset {row}",
    )
    rows = found.rows.to_pylist(maps_as_pydicts="strict")
    return [
        (deletes, row, kept)
        for deletes, row, kept in zip(
            found.deletes.to_pylist(), rows, found.kept.to_pylist(), strict=True
        )
    ]


def decode_good(columns, *values, keys=None, of=("id",), **rules):
    """The changes of the good records, and the reasons of the bad ones by their numbers."""
    return DebeziumDecoder(columns, of, DebeziumRules(**rules)).decode_good(
        pa.array(list(values), pa.binary()),
        pa.array(keys or [None] * len(values), pa.binary()),
        lambda row: f"t-0 at offset {row}",
    )


def value_of(kind, value, **rules):
    columns = pa.schema([ID, pa.field("x", kind)])
    event = write_event("c", None, {"id": 1, "x": value})
    ((_, row, kept),) = decode(columns, event, values=ValueRules(**rules))
    return "kept" if kept == ["x"] else row["x"]


DAY, TIME = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 23, 59, 59, 123456)  # noqa: DTZ001
LONG_AGO = dt.datetime(1, 1, 1)  # noqa: DTZ001
MICROS = pa.timestamp("us")
LONG_NUMBER = "12345678901234567890.123456789"
EACH_FORM = [
    (pa.int32(), 7, {}, 7),
    (pa.int64(), -(2**63), {}, -(2**63)),
    (pa.bool_(), True, {}, True),
    (pa.float64(), 0.1, {}, 0.1),
    (pa.float64(), "Infinity", {}, float("inf")),
    (pa.string(), 'ü"\\', {}, 'ü"\\'),
    (pa.binary(), "AP8=", {}, b"\x00\xff"),
    (pa.decimal128(12, 2), "fQ==", {}, Decimal("1.25")),
    (pa.decimal128(12, 2), "gw==", {}, Decimal("-1.25")),
    (
        pa.decimal128(12, 2),
        {"scale": 4, "value": write_unscaled(Decimal("1.2500"), 4)},
        {},
        Decimal("1.25"),
    ),
    (pa.decimal128(12, 2), "1234", {"decimals": "string"}, Decimal(1234)),
    (pa.decimal128(12, 2), 1.5, {}, Decimal("1.5")),
    (
        pa.string(),
        write_scaled(Decimal("12345678901234567890.123456789")),
        {},
        "12345678901234567890.123456789",
    ),
    (pa.date32(), 19782, {}, DAY),
    (pa.date32(), "2024-02-29", {}, DAY),
    (pa.date32(), "2024-02-29Z", {}, DAY),
    (pa.binary(), "00Ff", {"binaries": "hex"}, b"\x00\xff"),
    (pa.string(), write_scaled(Decimal(10**45)), {}, str(10**45)),
    (pa.string(), write_scaled(Decimal("-1e-50")), {}, f"-0.{'0' * 49}1"),
    (pa.string(), {"scale": -2, "value": "DA=="}, {}, "1200"),
    (pa.string(), {"scale": 20, "value": "AA=="}, {}, f"0.{'0' * 20}"),
    (MICROS, micros(TIME), {}, TIME),
    (MICROS, micros(LONG_AGO), {}, LONG_AGO),
    (MICROS, micros(TIME) // 1000, {"units": {"x": "ms"}}, TIME.replace(microsecond=123000)),
    (MICROS, -1, {"units": {"": "ns"}}, dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),  # noqa: DTZ001
    (MICROS, "2024-02-29T23:59:59.123456Z", {}, TIME),
    (pa.timestamp("us", "UTC"), "2024-02-29T23:59:59.123456Z", {}, TIME.replace(tzinfo=dt.UTC)),
    (pa.time64("us"), 86_399_999_999, {}, dt.time(23, 59, 59, 999999)),
    (pa.time64("us"), "10:00:00Z", {}, dt.time(10)),
    (pa.list_(pa.string()), ["a", None], {}, ["a", None]),
    (pa.list_(pa.decimal128(5, 1)), ["Ag==", None], {}, [Decimal("0.2"), None]),
    (pa.list_(pa.float64()), [1.5, None, 2], {}, [1.5, None, 2.0]),
    (pa.list_(pa.float64()), ["Infinity"], {}, [float("inf")]),
    (pa.list_(pa.float64()), [1.5, "Infinity", -2e-7], {}, [1.5, float("inf"), -2e-7]),
    (pa.list_(pa.float32()), [None, 3, "-Infinity"], {}, [None, 3.0, -float("inf")]),
    (pa.map_(pa.string(), pa.string()), {"a": "b"}, {}, {"a": "b"}),
    (pa.struct([("x", pa.float64())]), {"x": "Infinity"}, {}, {"x": float("inf")}),
    (
        pa.struct([("d", pa.decimal128(9, 2))]),
        {"d": write_scaled(Decimal("1.25"))},
        {},
        {"d": Decimal("1.25")},
    ),
    (
        pa.struct([("x", pa.float64()), ("y", pa.float64())]),
        {"x": 1.5, "y": 2},
        {},
        {"x": 1.5, "y": 2},
    ),
    (pa.uuid(), "98da4487-72cf-44ba-a36f-2fe8b6d69b5f", {}, "98da4487-72cf-44ba-a36f-2fe8b6d69b5f"),
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "given", "rules", "wanted"), EACH_FORM, ids=str)
def test_each_form_of_a_value_becomes_the_value_of_its_column(kind, given, rules, wanted):
    assert value_of(kind, given, **rules) == wanted
    assert value_of(kind, None, **rules) is None


def write_digits(digits, scale):
    """A number of this many nines, as Debezium writes it."""
    number = 10**digits - 1
    data = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
    return {"scale": scale, "value": base64.b64encode(data).decode()}


@pytest.mark.parametrize("digits", [5000, 131_072])  # the most of PostgreSQL before the point
def test_a_text_has_all_digits_of_a_number_however_many(digits):
    nines = "9" * digits
    assert value_of(pa.string(), write_digits(digits, 0)) == nines
    assert value_of(pa.string(), write_digits(digits, -2)) == f"{nines}00"
    assert value_of(pa.string(), write_digits(digits, 3)) == f"{nines[3:]}.999"
    assert value_of(pa.string(), write_digits(5, 16_383)) == f"0.{'0' * 16_378}99999"


TINY = [
    "1e-100000000",
    "1e-195",
    "1E-40",
    f"0.{'0' * 195}1",
    f"0.{'0' * 50}1e-30",
    "1e-" + "9" * 99,
]


@pytest.mark.parametrize("text", TINY, ids=lambda text: text[:12])
def test_a_text_with_digits_that_no_decimal_has_is_bad(text):
    """Arrow looks its power of ten up behind the end of a table, and the process ends."""
    columns = pa.schema([ID, ("x", pa.decimal128(12, 2))])
    good, bad = (write_event("c", None, {"id": 1, "x": each}) for each in ("1.25", text))
    rules = {"values": ValueRules(decimals="string")}
    reason = r"has a value in column 'x' that cannot be read as decimal128\(12, 2\)"
    with pytest.raises(SchemaError, match=f"t-0 at offset 1: the value {reason}"):
        decode(columns, good, bad, **rules)
    changes, reasons = decode_good(columns, good, bad, **rules)
    assert changes.rows["x"].to_pylist() == [Decimal("1.25")]
    assert [*reasons] == [1]
    assert re.fullmatch(reason, reasons[1])


@pytest.mark.parametrize("text", ["0E-40", "0.000000e-60", "125e-2", f"1.25{'0' * 60}", "1e-0002"])
def test_a_text_with_as_many_digits_as_a_decimal_is_read(text):
    rules = {"decimals": "string"}
    assert value_of(pa.decimal128(12, 2), text, **rules) == Decimal(text)


def test_arrays_with_nan_are_read_beside_others_and_texts_that_look_like_them():
    columns = pa.schema([ID, ("x", pa.list_(pa.float64())), ("note", pa.string())])
    note = '"x":[1,"NaN"]'
    events = [
        write_event("c", None, {"id": n, "x": x, "note": note})
        for n, x in enumerate([[1.0, 2], [1, "NaN", 0.1], None, ["NaN"], [0.1]])
    ]
    found = decode(columns, *events)
    shown = [row["x"] if row["x"] is None else [*map(str, row["x"])] for _, row, _ in found]
    assert shown == [["1.0", "2.0"], ["1.0", "nan", "0.1"], None, ["nan"], ["0.1"]]
    assert {row["note"] for _, row, _ in found} == {note}


RAW = PLACEHOLDER.encode()
PLACEHOLDERS = [
    (pa.string(), PLACEHOLDER),
    (pa.binary(), base64.b64encode(RAW).decode()),
    (pa.decimal128(12, 2), PLACEHOLDER),
    (pa.list_(pa.string()), [PLACEHOLDER]),
    (pa.list_(pa.binary()), [base64.b64encode(RAW).decode()]),
    (pa.list_(pa.int32()), list(RAW)),
    (pa.list_(pa.int64()), list(RAW)),
    (pa.list_(pa.string()), [str(uuid.UUID(bytes=hashlib.md5(RAW).digest(), version=3))]),
    (pa.map_(pa.string(), pa.string()), {PLACEHOLDER: PLACEHOLDER}),
    (pa.string(), f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}'),  # an hstore, by default
    (pa.string(), base64.b64encode(RAW).decode()),
]


@pytest.mark.parametrize(("kind", "given"), PLACEHOLDERS, ids=str)
def test_each_form_of_the_placeholder_keeps_the_value(kind, given):
    """The forms are those of Debezium's class UnchangedToastedPlaceholder."""
    assert value_of(kind, given) == "kept"


def test_another_placeholder_keeps_the_value_and_the_usual_one_is_a_value():
    assert value_of(pa.string(), "?", placeholder="?") == "kept"
    assert value_of(pa.string(), PLACEHOLDER, placeholder="?") == PLACEHOLDER


WRONG = [
    (pa.int32(), 2**40, "cannot be read as int32"),
    (pa.int32(), "7", "'x' has a text, which is no INT"),
    (pa.string(), 7, "'x' has a number, which is no STRING"),
    (pa.decimal128(4, 2), "BfXhAA==", "cannot be read as decimal"),
    (pa.decimal128(12, 2), write_scaled(Decimal("1.255")), "cannot be read as decimal"),
    (pa.decimal128(12, 2), "", "cannot be read as decimal"),
    (pa.binary(), "?", "cannot be read as binary"),
    (pa.float32(), 1e300, "cannot be read as float"),
    # PostgreSQL's infinity, and a day after the year 9999.
    (MICROS, 9223371331200000000, "cannot be read as timestamp"),
    (pa.date32(), 2_932_897, "cannot be read as date32"),
]


@pytest.mark.parametrize(("kind", "value", "reason"), WRONG, ids=str)
def test_a_value_that_does_not_fit_names_its_record_and_column(kind, value, reason):
    columns = pa.schema([ID, pa.field("x", kind)])
    good = write_event("c", None, {"id": 1, "x": None})
    bad = write_event("c", None, {"id": 2, "x": value})
    with pytest.raises(SchemaError, match=reason) as caught:
        decode(columns, good, good, bad, good)
    assert str(caught.value).startswith("t-0 at offset ")


def test_operations_are_upserts_and_deletes_in_their_order():
    row = {"id": 1, "name": "a"}
    found = decode(
        SMALL,
        write_event("r", None, row),
        write_event("u", None, {**row, "name": "b"}),
        write_event("d", row, None),
        None,
        write_event("c", None, {**row, "name": "c"}),
        keys=[b'{"id":1}'] * 5,
    )
    assert [(deletes, row["name"]) for deletes, row, _ in found] == [
        (False, "a"),
        (False, "b"),
        (True, None),
        (True, None),
        (False, "c"),
    ]


def test_a_tombstone_deletes_the_key_of_its_record():
    found = decode(SMALL, None, None, None, keys=[b'{"id":5}', b"text", None])
    assert found == [(True, {"id": 5, "name": None}, None)]


def test_a_tombstone_with_a_wrapped_key_deletes_too():
    assert decode(SMALL, None, keys=[wrap({"type": "struct"}, {"id": 5})])[0][1]["id"] == 5


def test_a_delete_without_its_row_takes_the_key_of_the_record():
    event = write_event("d", None, None)
    assert decode(SMALL, event, keys=[b'{"id":5}']) == [(True, {"id": 5, "name": None}, None)]
    with pytest.raises(SchemaError, match="no key of the table"):
        decode(SMALL, event)


def test_an_update_with_another_key_before_deletes_the_old_one():
    event = write_event("u", {"id": 1, "name": "a"}, {"id": 2, "name": "a"})
    same = write_event("u", {"id": 2, "name": "a"}, {"id": 2, "name": "b"})
    found = decode(SMALL, event, same)
    assert [(deletes, row["id"]) for deletes, row, _ in found] == [
        (True, 1),
        (False, 2),
        (False, 2),
    ]


def test_a_delete_whose_record_has_another_key_is_refused():
    """Its row before has other values than the database in columns that are not of the key."""
    columns = pa.schema([ID, ("tenant", pa.int32()), ("name", pa.string())])
    event = write_event("d", {"id": 1, "tenant": 0, "name": None}, None)
    with pytest.raises(SchemaError, match="set 'keyColumns' to the key of the database's table"):
        decode(columns, event, keys=[b'{"id":1}'], of=("id", "tenant"))


def test_rows_alone_are_upserts_unless_they_say_that_they_are_deleted():
    found = decode(
        SMALL,
        to_json({"id": 1, "name": "a"}),
        to_json({"id": 2, "name": "b", "__deleted": "false", "__op": "c", "__lsn": 7}),
        to_json({"id": 1, "name": None, "__deleted": "true"}),
        to_json({"id": 2, "name": None, "__op": "d"}),
        to_json({"id": 3, "name": None, "__deleted": True}),
    )
    assert [(deletes, row["id"]) for deletes, row, _ in found] == [
        (False, 1),
        (False, 2),
        (True, 1),
        (True, 2),
        (True, 3),
    ]


def test_a_first_delete_among_rows_is_not_taken_for_an_upsert():
    decoder = DebeziumDecoder(SMALL, ["id"], DebeziumRules())
    decode_with(decoder, to_json({"id": 1, "name": "a"}))
    found = decode_with(decoder, to_json({"id": 1, "name": None, "__deleted": "true"}))
    assert found == [(True, {"id": 1, "name": None}, None)]


SCHEMA = {
    "type": "struct",
    "fields": [
        {
            "type": "struct",
            "field": "after",
            "fields": [
                {"type": "int32", "field": "id"},
                {
                    "type": "bytes",
                    "name": "org.apache.kafka.connect.data.Decimal",
                    "parameters": {"scale": "4"},
                    "field": "price",
                },
                {"type": "int64", "name": "io.debezium.time.Timestamp", "field": "at"},
                {"type": "string", "field": "text"},
            ],
        }
    ],
}
PRICED = pa.schema(
    [ID, ("price", pa.decimal128(12, 6)), ("at", MICROS), ("text", pa.decimal128(9, 1))]
)


def test_the_schema_of_a_record_gives_the_scale_and_the_unit():
    row = {"id": 1, "price": write_unscaled(Decimal("1.5"), 4), "at": 1500, "text": "12.5"}
    event = wrap(SCHEMA, json.loads(write_event("c", None, row)))
    ((_, found, _),) = decode(PRICED, event)
    assert found["price"] == Decimal("1.5")
    assert found["at"] == dt.datetime(1970, 1, 1, 0, 0, 1, 500000)  # noqa: DTZ001
    assert found["text"] == Decimal("12.5")


def test_records_of_all_forms_and_several_schemas_can_be_in_one_batch():
    columns = pa.schema([ID, ("price", pa.decimal128(12, 2))])
    others = json.loads(json.dumps(SCHEMA).replace('"4"', '"1"'))

    def priced(number, scale):
        row = {"id": number, "price": write_unscaled(Decimal(number), scale)}
        return json.loads(write_event("c", None, row))

    spaced = json.dumps({"payload": priced(6, 1), "schema": others}, indent=1).encode()
    found = decode(
        columns,
        to_json(priced(1, 2)),
        wrap(SCHEMA, priced(2, 4)),
        wrap(others, priced(3, 1)),
        to_json({"id": 4, "price": {"scale": 0, "value": "BA=="}}),
        wrap(SCHEMA, priced(5, 4)),
        spaced,
    )
    assert [(row["id"], row["price"]) for _, row, _ in found] == [(n, n) for n in range(1, 7)]


def test_records_that_change_no_row_are_skipped():
    found = decode(
        SMALL,
        to_json({"ts_ms": 1}),
        to_json({"status": "BEGIN", "id": "571", "event_count": None, "ts_ms": 1}),
        to_json({"source": {}, "databaseName": "shop", "ddl": "CREATE TABLE t", "ts_ms": 1}),
        write_event("m", None, None),
        write_event("c", None, {"id": 1, "name": "a"}),
    )
    assert [row["id"] for _, row, _ in found] == [1]


def write_lean(op, **fields) -> bytes:
    """Return an envelope with only some of its fields."""
    return to_json({"op": op, "source": {"connector": "postgresql", "lsn": 1}, **fields})


MESSAGE = write_lean("m", message={"prefix": "p", "content": "AA=="})
LEAN_DELETE = write_lean("d", before={"id": 1})
GOOD = write_event("c", None, {"id": 2, "name": "b"})
ADDED = (False, {"id": 2, "name": "b"}, None)


@pytest.mark.parametrize("before", [(), (GOOD,)], ids=["alone", "after a good one"])
@pytest.mark.parametrize(
    ("event", "wanted"),
    [(MESSAGE, []), (LEAN_DELETE, [(True, {"id": 1, "name": None}, None)])],
    ids=["message", "delete"],
)
def test_an_envelope_may_lack_the_row_that_its_operation_does_not_have(event, wanted, before):
    assert decode(SMALL, *before, event) == [ADDED] * len(before) + wanted


@pytest.mark.parametrize("before", [(), (GOOD,)], ids=["alone", "after a good one"])
@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (write_lean("x"), "has an unknown operation in 'op'"),
        (write_lean("c", before=None), "has the operation 'c', and no row"),
        (write_lean("d"), "is a delete, and the record has no key"),
    ],
    ids=["unknown", "create", "delete"],
)
def test_an_envelope_that_lacks_its_row_is_bad(event, reason, before):
    at = f"t-0 at offset {len(before)}: the value {reason}"
    with pytest.raises(SchemaError, match=re.escape(at)):
        decode(SMALL, *before, event)
    changes, bad = decode_good(SMALL, *before, event)
    assert len(changes.rows) == len(before)
    assert [*bad] == [len(before)]
    assert bad[len(before)].startswith(reason)


def test_a_truncate_may_lack_both_rows():
    with pytest.raises(SchemaError, match="t-0 at offset 0: the value is the event of a TRUNCATE"):
        decode(SMALL, write_lean("t"))
    assert decode(SMALL, write_lean("t"), truncate="ignore") == []


MESSAGE_TYPE = {
    "type": "struct",
    "name": "io.debezium.connector.postgresql.MessageValue",
    "fields": [
        {"type": "string", "field": "op"},
        {"type": "struct", "field": "source", "fields": []},
        {"type": "struct", "field": "message", "fields": [{"type": "string", "field": "prefix"}]},
    ],
}


def test_the_schema_of_a_message_describes_no_columns():
    """A column of the table may have the name of one of its fields, and another type."""
    event = wrap(MESSAGE_TYPE, json.loads(MESSAGE))
    columns = pa.schema([ID, ("name", pa.string()), ("message", pa.int64())])
    assert decode(columns, event) == []
    decoder = DebeziumDecoder(pa.schema([]), ["id"], DebeziumRules())
    assert decoder.find_columns(pa.array([event], pa.binary())).schemas == [pa.schema([])]


@pytest.mark.parametrize("neighbours", [(), ("OPEN",), ("NaN",), ("OPEN", "NaN")])
@pytest.mark.parametrize("status", ["BEGIN", "END", "OPEN"])
def test_a_row_with_the_columns_of_a_boundary_is_a_row(status, neighbours):
    """The plan of its neighbours reads it, or it is examined alone."""
    names = ["id", "status", "event_count", "ddl", "databaseName", "source"]
    columns = pa.schema([(name, pa.string()) for name in names]).set(
        2, pa.field("event_count", pa.float64())
    )
    decoder = DebeziumDecoder(columns, ["id"], DebeziumRules())
    counts = {"NaN": "NaN"}
    rows = [
        {**dict.fromkeys(names, "x"), "id": str(n), "status": each, "__deleted": "false"}
        | {"event_count": counts.get(each, 1.5)}
        for n, each in enumerate([*neighbours, status])
    ]
    found = decode_with(decoder, *map(to_json, rows))
    assert [row["id"] for _, row, _ in found] == [row["id"] for row in rows]


def test_a_truncate_is_an_error_unless_it_is_to_be_ignored(caplog):
    event = write_event("t", None, None)
    with pytest.raises(SchemaError, match="TRUNCATE"):
        decode(SMALL, event)
    assert decode(SMALL, event, truncate="ignore") == []
    assert "1 events of a TRUNCATE delete nothing" in caplog.text


@pytest.mark.parametrize("last", [9, "x"], ids=["one type", "two types"])
def test_a_column_that_the_table_lacks_is_an_error_unless_it_is_to_be_ignored(last):
    first = write_event("c", None, {"id": 1, "name": "a", "extra": 9})
    events = first, write_event("c", None, {"id": 2, "name": "b", "extra": last})
    with pytest.raises(SchemaError, match="'extra'"):
        decode(SMALL, *events)
    assert len(decode(SMALL, *events, unknown="ignore")) == 2


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "not valid JSON"),
        (b"7", "not a JSON object"),
        (b'{"a":1}', "neither an event of Debezium"),
        (b"\xff", "not valid JSON"),
        (write_event("x", None, {"id": 1}), "unknown operation"),
        (write_event("c", None, None), "no row"),
        (write_event("c", None, {"id": None, "name": "a"}), "key column 'id'"),
    ],
)
def test_a_value_that_is_no_event_is_named_with_its_position(value, reason):
    good = write_event("c", None, {"id": 1, "name": "a"})
    with pytest.raises(SchemaError, match=reason) as caught:
        decode(SMALL, good, value)
    assert str(caught.value).startswith("t-0 at offset 1: ")


@pytest.mark.parametrize(
    ("kind", "given", "wanted"),
    [
        (pa.decimal128(9, 0), write_scaled(Decimal(7)), Decimal(7)),
        (pa.decimal128(9, 0), 7, Decimal(7)),
        (MICROS, "1970-01-01T00:00:01", dt.datetime(1970, 1, 1, 0, 0, 1)),  # noqa: DTZ001
        (pa.string(), write_scaled(Decimal(7)), "7"),
    ],
    ids=str,
)
def test_the_first_events_of_a_task_may_be_deletes_with_keys_of_any_form(kind, given, wanted):
    columns = pa.schema([("id", kind), ("name", pa.string())])
    event = write_event("d", {"id": given, "name": None}, None)
    assert decode(columns, event) == [(True, {"id": wanted, "name": None}, None)]


def test_a_plan_for_numbers_does_not_read_texts_as_numbers():
    columns = pa.schema([ID, ("x", pa.decimal128(12, 2))])
    decoder = DebeziumDecoder(columns, ["id"], DebeziumRules())
    decode_with(decoder, write_event("c", None, {"id": 1, "x": 5}))
    text = write_event("c", None, {"id": 1, "x": "1234"})
    ((_, row, _),) = decode_with(decoder, text)
    assert row["x"] == Decimal(int.from_bytes(base64.b64decode("1234"), "big", signed=True)) / 100


def test_a_plan_for_rows_does_not_read_other_records_as_rows():
    columns = pa.schema([("id", pa.string()), ("name", pa.string())])
    decoder = DebeziumDecoder(columns, ["id"], DebeziumRules(unknown="ignore"))
    decode_with(decoder, to_json({"id": "1", "name": "a"}))
    marker = to_json({"status": "BEGIN", "id": "571:1", "event_count": None, "ts_ms": 1})
    bare = to_json({"id": "2", "name": None})
    assert [row["id"] for _, row, _ in decode_with(decoder, marker, bare)] == ["2"]


def describe(name, logical, **more):
    after = {"type": "struct", "field": "after"}
    return {"fields": [after | {"fields": [{"field": name, "name": logical, **more}]}]}


def test_the_schema_gives_a_text_column_the_digits_of_a_decimal():
    columns = pa.schema([ID, ("x", pa.string())])
    schema = describe("x", "org.apache.kafka.connect.data.Decimal", parameters={"scale": "2"})
    event = json.loads(write_event("c", None, {"id": 1, "x": "gw=="}))
    assert decode(columns, wrap(schema, event))[0][1]["x"] == "-1.25"


@pytest.mark.parametrize(
    ("kind", "logical"),
    [
        (MICROS, "io.debezium.time.Date"),
        (pa.date32(), "io.debezium.time.Year"),
        (MICROS, "io.debezium.time.MicroTime"),
        (pa.time64("us"), "io.debezium.time.MicroTimestamp"),
        (pa.int64(), "org.apache.kafka.connect.data.Decimal"),
    ],
    ids=str,
)
def test_a_schema_that_contradicts_the_column_is_an_error(kind, logical):
    columns = pa.schema([ID, ("x", kind)])
    event = json.loads(write_event("c", None, {"id": 1, "x": 5}))
    with pytest.raises(SchemaError, match=f"{logical} in its schema in column 'x'"):
        decode(columns, wrap(describe("x", logical), event))


@pytest.mark.parametrize("schema", [{"fields": ["x"]}, {"fields": 7}])
def test_a_schema_that_is_none_is_named_with_its_position(schema):
    event = json.loads(write_event("c", None, {"id": 1, "name": "a"}))
    with pytest.raises(SchemaError, match=r"t-0 at offset 0: .*its schema cannot be read"):
        decode(SMALL, wrap(schema, event))


DECIMAL = "org.apache.kafka.connect.data.Decimal"
MALFORMED = [
    {"type": "struct", "fields": [{"type": "int32"}]},
    {"type": "struct", "fields": [{"type": "int32", "field": 7}]},
    {"type": "struct", "fields": [7]},
    {"type": "struct", "fields": "a"},
    {"type": "array"},
    {"type": "array", "items": "int32"},
    {"type": "array", "items": {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "x"}}},
    {"type": "map", "keys": {"type": "string"}},
    {"type": "map", "values": {"type": "string"}},
    {"type": "bytes", "name": DECIMAL, "parameters": None},
    {"type": "bytes", "name": DECIMAL, "parameters": {"connect.decimal.precision": []}},
]


@pytest.mark.parametrize("form", ["envelope", "row"])
@pytest.mark.parametrize("kind", MALFORMED, ids=to_json)
def test_a_malformed_part_of_a_schema_makes_its_records_bad(kind, form):
    columns = pa.schema([ID, ("x", pa.struct([("a", pa.int32())]))])
    fields = [{"type": "int32", "field": "id"}, {**kind, "field": "x"}]
    row = {"type": "struct", "fields": fields}
    parts = [{**row, "field": "after"}, {"type": "string", "field": "op"}]
    parts.append({"type": "struct", "field": "source", "fields": []})
    event = json.loads(write_event("c", None, {"id": 1, "x": {"a": 1}}))
    record = wrap(row, event["after"])
    if form == "envelope":
        record = wrap({"type": "struct", "fields": parts}, event)
    with pytest.raises(SchemaError, match=r"t-0 at offset 0: .*its schema cannot be read"):
        decode(columns, record)
    changes, bad = decode_good(columns, record, write_event("c", None, {"id": 2, "x": None}))
    assert changes.rows["id"].to_pylist() == [2]
    assert [*bad] == [0]
    decoder = DebeziumDecoder(pa.schema([]), ["id"], DebeziumRules())
    assert decoder.find_columns(pa.array([record], pa.binary())).schemas == [pa.schema([])]


def test_a_schema_of_any_depth_makes_its_record_bad():
    kind = {"type": "int32"}
    for _ in range(400):
        kind = {"type": "array", "items": kind}
    text = to_json({"type": "struct", "fields": [{**kind, "field": "id"}]})
    deep = text.replace(
        b'"int32"', b'"struct","fields":[' + b'{"a":' * 10**5 + b"1" + b"}" * 10**5 + b"]"
    )
    record = b'{"schema":' + deep + b',"payload":{"id":1}}'
    with pytest.raises(SchemaError, match="t-0 at offset 0"):
        decode(SMALL, record)


def test_a_schema_that_is_null_is_no_schema():
    event = json.loads(write_event("c", None, {"id": 1, "name": "a"}))
    assert decode(SMALL, wrap(None, event)) == [(False, {"id": 1, "name": "a"}, None)]
    assert decode(SMALL, None, keys=[wrap(None, {"id": 1})])[0][0]


def test_a_payload_that_is_null_is_a_tombstone():
    found = decode(SMALL, wrap({"type": "struct"}, None), keys=[b'{"id":1}'])
    assert found == [(True, {"id": 1, "name": None}, None)]


def test_a_row_may_have_columns_called_schema_and_payload():
    columns = pa.schema([("schema", pa.string()), ID, ("payload", pa.string())])
    row = {"schema": "public", "id": 1, "payload": "x"}
    assert decode(columns, to_json(row)) == [(False, row, None)]


def test_a_tombstone_without_the_key_is_an_error_among_rows():
    row = to_json({"id": 1, "name": "a"})
    with pytest.raises(SchemaError, match="offset 1: the value is a delete"):
        decode(SMALL, row, None, keys=[b'{"nr":1}'] * 2)


@pytest.mark.parametrize("tombstones", [1, 3])
def test_a_tombstone_without_the_key_is_named_if_the_form_of_records_is_unknown(tombstones, caplog):
    """Another task may have read the rows of the topic: this one has read nothing else."""
    event, row = write_event("c", None, {"id": 1, "name": "a"}), to_json({"id": 1, "name": "a"})
    decoder = DebeziumDecoder(SMALL, ["id"], DebeziumRules())
    given = {"keys": [b'{"nr":1}'] * tombstones}
    assert decode_with(decoder, *[None] * tombstones, **given) == []
    (warned,) = caplog.messages
    assert warned.startswith(
        f"t-0 at offset 0: the record, one of {tombstones} like it, has no value"
    )
    caplog.clear()
    decode_with(decoder, event)
    assert decode_with(decoder, *[None] * tombstones, **given) == []
    assert caplog.messages == []
    decode_with(decoder, row)
    with pytest.raises(SchemaError, match="offset 0: the value is a delete"):
        decode_with(decoder, *[None] * tombstones, **given)


def test_a_tombstone_with_the_key_needs_no_warning(caplog):
    assert decode(SMALL, None, keys=[b'{"id":1}']) == [(True, {"id": 1, "name": None}, None)]
    assert caplog.messages == []


NUMBERS = st.decimals(-(10**9), 10**9, places=2, allow_nan=False)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"))
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 5),
        "number": st.none() | NUMBERS,
        "text": st.none() | TEXTS,
        "data": st.none() | st.binary(),
        "at": st.none() | st.datetimes(dt.datetime(1, 1, 1)),  # noqa: DTZ001
        "tags": st.none() | st.lists(st.none() | TEXTS, max_size=3),
    }
)
WIDE = pa.schema(
    [
        ID,
        ("number", pa.decimal128(12, 2)),
        ("text", pa.string()),
        ("data", pa.binary()),
        ("at", MICROS),
        ("tags", pa.list_(pa.string())),
    ]
)


FORMS = ["event", "row", "wrapped", "scaled"]


def write_row(row, form):
    number = row["number"]
    if number is not None:
        number = write_unscaled(number, 2) if form != "scaled" else write_scaled(number)
    data = row["data"] if row["data"] is None else base64.b64encode(row["data"]).decode()
    at = row["at"] if row["at"] is None else micros(row["at"])
    return {**row, "number": number, "data": data, "at": at}


@settings(deadline=None)
@given(
    st.lists(st.tuples(ROWS, st.sampled_from(["event", "row", "wrapped", "scaled"])), max_size=8)
)
def test_any_mix_of_records_is_decoded_to_its_rows(records):
    values = []
    for row, form in records:
        written = write_row(row, form)
        event = json.loads(write_event("c", None, written))
        if form == "row":
            values.append(to_json(written))
        elif form == "wrapped":
            kind = {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
            after = {"type": "struct", "field": "after", "fields": [{"field": "number", **kind}]}
            values.append(wrap({"type": "struct", "fields": [after]}, event))
        else:
            values.append(to_json(event))
    assert [row for _, row, _ in decode(WIDE, *values)] == [row for row, _ in records]


# --- real messages, with the final state of the database beside them

needs_corpus = pytest.mark.skipif(CORPUS is None, reason="KRISHIV_DEBEZIUM_CORPUS is not set")
PLAIN = {
    "id": pa.int32(),
    "customer": pa.string(),
    "amount": pa.decimal128(12, 2),
    "qty": pa.int64(),
    "ratio": pa.float64(),
    "ok": pa.bool_(),
    "day": pa.date32(),
    "at": MICROS,
    "clock": pa.time64("us"),
    "tags": pa.list_(pa.string()),
    "uid": pa.string(),
    "ip": pa.string(),
    "note": pa.string(),
}


def read_corpus(name):
    lines = (Path(CORPUS or "") / f"{name}.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return tuple(
        [None if row[side] is None else row[side].encode() for row in rows]
        for side in ("value", "key")
    )


def fold(found, *keys):
    state = {}
    for deletes, row, kept in found:
        key = tuple(row[name] for name in keys)
        if deletes:
            state.pop(key, None)
        else:
            state[key] = row | {name: state[key][name] for name in kept or ()}
    return state


def plain(value):
    return value.isoformat() if isinstance(value, (dt.date, dt.time)) else value


@needs_corpus
def test_the_orders_of_the_corpus_become_the_state_of_the_database():
    values, keys = read_corpus("plain-orders")
    found = decode(pa.schema(PLAIN), *values, keys=keys, unknown="ignore")
    state = {key: row for (key,), row in fold(found, "id").items()}
    expected = json.loads((Path(CORPUS) / "orders.expected.json").read_text())
    assert len(state) == len(expected) == 174
    for wanted in expected:
        row = state[wanted["id"]]
        for name in PLAIN.keys() & wanted.keys() - {"amount"}:
            assert plain(row[name]) == wanted[name], (wanted["id"], name)
        amount = wanted["amount"]
        assert row["amount"] == (None if amount is None else Decimal(str(amount)))


@needs_corpus
def test_the_events_of_the_corpus_end_with_the_rows_that_debezium_knows():
    """By default Debezium sends no event of a TRUNCATE, so two rows more than in the database."""
    values, keys = read_corpus("plain-events")
    columns = pa.schema([("k1", pa.int32()), ("k2", pa.string()), ("v", pa.int32())])
    found = fold(decode(columns, *values, keys=keys, of=("k1", "k2")), "k1", "k2")
    assert [tuple(row.values()) for row in found.values()] == [
        (1, "a", 10),
        (2, "z", 30),
        (9, "z", 9),
    ]


@needs_corpus
@pytest.mark.parametrize(
    ("name", "decimals"), [("with-schema-small", "precise"), ("flattened-small", "string")]
)
def test_the_small_files_of_the_corpus_become_the_state_of_the_database(name, decimals):
    values, keys = read_corpus(name)
    columns = pa.schema(
        [
            ID,
            ("name", pa.string()),
            ("price", pa.decimal128(10, 4)),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )
    found = decode(columns, *values, keys=keys, values=ValueRules(decimals=decimals))
    rows = [
        {**row, "price": str(row["price"]), "at": row["at"].isoformat()}
        for row in fold(found, "id").values()
    ]
    wanted = json.loads(
        (Path(CORPUS) / "small.expected.json").read_text(), parse_float=lambda text: text
    )
    assert rows == wanted
