"""Debezium's events in Avro, decoded to changes of a table."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from debezium_events import PLACEHOLDER, micros, to_json, write_event
from registered_events import (
    decimal,
    make_envelope,
    make_event,
    make_row,
    named,
    optional,
    running_schema_server,
)

from krishiv_spark.changes.debezium import DebeziumDecoder, DebeziumRules
from krishiv_spark.changes.options import ValueRules
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

MICROS, SECOND = pa.timestamp("us"), dt.datetime(1970, 1, 1, 0, 0, 1)  # noqa: DTZ001
ID = pa.field("id", pa.int32())
SMALL = pa.schema([ID, ("name", pa.string())])
NAMED = {"id": "int", "name": optional("string")}
TIME = dt.datetime(2024, 2, 29, 23, 59, 59, 123456)  # noqa: DTZ001


def shorten(value):
    return str(value)[:30]


@pytest.fixture(scope="module")
def registry():
    with running_schema_server() as server:
        yield server


def decode(registry, columns, *values, keys=None, of=("id",), **rules):
    decoder = DebeziumDecoder(columns, of, DebeziumRules(**rules, registry=registry.settings))
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


def value_of(registry, kind, avro, value, **rules):
    schema = registry.register(make_envelope({"id": "int", "x": optional(avro)}))
    event = registry.write(schema, make_event("c", None, {"id": 1, "x": value}))
    columns = pa.schema([ID, pa.field("x", kind)])
    ((_, row, kept),) = decode(registry, columns, event, values=ValueRules(**rules))
    return "kept" if kept == ["x"] else row["x"]


SCALED = make_row({"scale": "int", "value": "bytes"}, "VariableScaleDecimal") | {
    "connect.name": "io.debezium.data.VariableScaleDecimal"
}
DEBEZIUM, TEXTS = "io.debezium.time", pa.map_(pa.string(), pa.string())


def array_of(kind):
    return {"type": "array", "items": optional(kind)}


EACH_FORM = [
    (pa.int32(), {"type": "int", "connect.type": "int16"}, 7, 7),
    (pa.int64(), "int", 7, 7),
    (pa.bool_(), "boolean", True, True),
    (pa.float32(), "float", 0.5, 0.5),
    (pa.float64(), "double", float("inf"), float("inf")),
    (pa.float64(), "float", 0.5, 0.5),
    (pa.string(), "string", "ü", "ü"),
    (pa.string(), named("string", "io.debezium.data.Json"), "{}", "{}"),
    (pa.binary(), "bytes", b"\0\xff", b"\0\xff"),
    (pa.decimal128(12, 2), decimal(2), Decimal("-1.25"), Decimal("-1.25")),
    (pa.decimal128(12, 4), decimal(2, 9), Decimal("1.25"), Decimal("1.25")),
    (pa.string(), decimal(2), Decimal("-1.25"), "-1.25"),
    (pa.decimal128(12, 2), SCALED, {"scale": 1, "value": b"\x0d"}, Decimal("1.3")),
    (pa.string(), SCALED, {"scale": 1, "value": b"\x0d"}, "1.3"),
    (pa.decimal128(12, 2), "string", "1.25", Decimal("1.25")),
    (pa.decimal128(12, 2), "double", 1.25, Decimal("1.25")),
    (pa.date32(), named("int", f"{DEBEZIUM}.Date"), 19782, dt.date(2024, 2, 29)),
    (pa.date32(), {"type": "int", "logicalType": "date"}, dt.date(2024, 2, 29), TIME.date()),
    (MICROS, named("long", f"{DEBEZIUM}.MicroTimestamp"), micros(TIME), TIME),
    (
        MICROS,
        named("long", f"{DEBEZIUM}.Timestamp"),
        1000,
        SECOND,
    ),
    (MICROS, named("long", f"{DEBEZIUM}.NanoTimestamp"), micros(TIME) * 1000 + 999, TIME),
    (
        MICROS,
        {"type": "long", "logicalType": "timestamp-millis"},
        1000,
        SECOND,
    ),
    (
        pa.timestamp("us", "UTC"),
        named("string", f"{DEBEZIUM}.ZonedTimestamp"),
        "2024-02-29T23:59:59.123456Z",
        TIME.replace(tzinfo=dt.UTC),
    ),
    (pa.time64("us"), named("int", f"{DEBEZIUM}.Time"), 1000, dt.time(0, 0, 1)),
    (pa.time64("us"), named("long", f"{DEBEZIUM}.MicroTime"), 1000, dt.time(0, 0, 0, 1000)),
    (
        pa.list_(pa.string()),
        {"type": "array", "items": optional("string")},
        ["a", None],
        ["a", None],
    ),
    (
        pa.list_(pa.decimal128(5, 1)),
        array_of(decimal(1)),
        [Decimal("0.2"), None],
        [Decimal("0.2"), None],
    ),
    (
        pa.list_(pa.float64()),
        {"type": "array", "items": "double"},
        [1.5, float("inf")],
        [1.5, float("inf")],
    ),
    (
        pa.map_(pa.string(), pa.string()),
        {"type": "map", "values": optional("string")},
        {"a": "b"},
        {"a": "b"},
    ),
    (
        pa.struct([("y", pa.float64()), ("d", pa.decimal128(9, 2))]),
        make_row({"d": decimal(2), "x": "string", "y": "double"}, "Point"),
        {"x": "left out", "y": 2.5, "d": Decimal("1.25")},
        {"y": 2.5, "d": Decimal("1.25")},
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "avro", "given", "wanted"), EACH_FORM, ids=shorten)
def test_each_form_of_a_value_becomes_the_value_of_its_column(registry, kind, avro, given, wanted):
    assert value_of(registry, kind, avro, given) == wanted
    assert value_of(registry, kind, avro, None) is None


def test_a_scale_that_is_none_makes_the_records_of_its_schema_bad(registry):
    strange = named("bytes", "org.apache.kafka.connect.data.Decimal", scale="x")
    with pytest.raises(SchemaError, match=r"t-0 at offset 0: .*its schema cannot be read"):
        value_of(registry, pa.decimal128(9, 2), strange, b"\1")


def test_a_number_without_a_unit_needs_the_option(registry):
    with pytest.raises(SchemaError, match="'timeUnits'"):
        value_of(registry, MICROS, "long", micros(TIME))
    assert value_of(registry, MICROS, "long", micros(TIME), units={"x": "us"}) == TIME


RAW = PLACEHOLDER.encode()
PLACEHOLDERS = [
    (pa.string(), "string", PLACEHOLDER),
    (pa.binary(), "bytes", RAW),
    (pa.list_(pa.string()), {"type": "array", "items": "string"}, [PLACEHOLDER]),
    (pa.list_(pa.int32()), {"type": "array", "items": "int"}, list(RAW)),
    (
        pa.map_(pa.string(), pa.string()),
        {"type": "map", "values": "string"},
        {PLACEHOLDER: PLACEHOLDER},
    ),
]


@pytest.mark.parametrize(("kind", "avro", "given"), PLACEHOLDERS, ids=shorten)
def test_each_form_of_the_placeholder_keeps_the_value(registry, kind, avro, given):
    assert value_of(registry, kind, avro, given) == "kept"


WRONG = [
    (pa.int32(), "long", 2**40, "cannot be read as int32"),
    (pa.int64(), "double", 1.5, "cannot be read as int64"),
    (pa.int32(), "string", "7", "'x' has a text, which is no INT"),
    (pa.string(), "int", 7, "'x' has a number, which is no STRING"),
    (pa.decimal128(4, 2), decimal(2), Decimal("1234567.89"), "cannot be read as decimal"),
    (pa.decimal128(4, 2), "bytes", b"\1", "'x' has bytes, which is no DECIMAL"),
    (pa.date32(), named("int", f"{DEBEZIUM}.Year"), 2024, "Year in its schema in column 'x'"),
    (MICROS, named("long", f"{DEBEZIUM}.MicroTimestamp"), 2**62, "cannot be read as timestamp"),
]


@pytest.mark.parametrize(("kind", "avro", "value", "reason"), WRONG, ids=shorten)
def test_a_value_that_does_not_fit_names_its_record_and_column(registry, kind, avro, value, reason):
    columns = pa.schema([ID, pa.field("x", kind)])
    schema = registry.register(make_envelope({"id": "int", "x": optional(avro)}))
    good, bad = (
        registry.write(schema, make_event("c", None, {"id": n, "x": each}))
        for n, each in enumerate([None, value])
    )
    with pytest.raises(SchemaError, match=reason) as caught:
        decode(registry, columns, good, good, bad, good)
    assert str(caught.value).startswith("t-0 at offset ")


@pytest.mark.parametrize("value", [1e-195, 1e-300, 1e-40])
def test_a_number_near_zero_is_no_decimal(registry, value):
    """Arrow looks its power of ten up behind the end of a table, and the process ends."""
    with pytest.raises(SchemaError, match="column 'x' that cannot be read as decimal128"):
        value_of(registry, pa.decimal128(12, 2), "double", value)


def test_operations_keys_and_tombstones(registry):
    schema = registry.register(make_envelope(NAMED))
    key_schema = registry.register(make_row({"id": "int"}, "Key"))
    row = {"id": 1, "name": "a"}
    moved = {"id": 2, "name": "b"}
    events = [
        registry.write(schema, each)
        for each in (
            make_event("r", None, row),
            make_event("u", row, moved),
            make_event("d", {"id": 2, "name": None}, None),
            make_event("d", None, None),
            make_event("m", None, None),
        )
    ]
    keys = [registry.write(key_schema, {"id": number}) for number in (1, 2, 2, 3, 4, 5)]
    found = decode(registry, SMALL, *events, None, keys=keys)
    assert [(deletes, row["id"], row["name"]) for deletes, row, _ in found] == [
        (False, 1, "a"),
        (True, 1, None),
        (False, 2, "b"),
        (True, 2, None),
        (True, 3, None),
        (True, 5, None),
    ]


def test_a_delete_whose_record_has_another_key_is_refused(registry):
    columns = pa.schema([ID, ("tenant", pa.int32())])
    schema = registry.register(make_envelope({"id": "int", "tenant": optional("int")}))
    key = registry.write(registry.register(make_row({"id": "int"}, "Key")), {"id": 1})
    event = registry.write(schema, make_event("d", {"id": 1, "tenant": 0}, None))
    with pytest.raises(SchemaError, match="set 'keyColumns' to the key of the database's table"):
        decode(registry, columns, event, keys=[key], of=("id", "tenant"))


def test_rows_alone_are_upserts_unless_they_are_marked_as_deleted(registry):
    flags = {"__deleted": optional("string"), "__op": optional("string"), "__lsn": optional("long")}
    schema = registry.register(make_row({**NAMED, **flags}))
    rows = [
        {"id": 1, "name": "a", "__deleted": "false", "__op": "c", "__lsn": 1},
        {"id": 2, "name": "b", "__deleted": None, "__op": None, "__lsn": None},
        {"id": 1, "name": None, "__deleted": "true", "__op": "d", "__lsn": 2},
    ]
    found = decode(registry, SMALL, *(registry.write(schema, row) for row in rows))
    assert [(deletes, row["id"]) for deletes, row, _ in found] == [
        (False, 1),
        (False, 2),
        (True, 1),
    ]


def test_schemas_of_several_versions_and_json_may_be_in_one_batch(registry):
    """A later schema has another scale, and a column more."""
    columns = pa.schema([ID, ("price", pa.decimal128(12, 4)), ("note", pa.string())])
    first = registry.register(make_envelope({"id": "int", "price": decimal(2)}))
    later = registry.register(
        make_envelope({"id": "int", "price": decimal(4), "note": optional("string")})
    )
    found = decode(
        registry,
        columns,
        registry.write(first, make_event("c", None, {"id": 1, "price": Decimal("1.25")})),
        registry.write(
            later, make_event("c", None, {"id": 2, "price": Decimal("1.2345"), "note": "x"})
        ),
        write_event("c", None, {"id": 3, "price": 5}),
        registry.write(first, make_event("c", None, {"id": 4, "price": Decimal("0.01")})),
    )
    assert [(row["id"], row["price"], row["note"]) for _, row, _ in found] == [
        (1, Decimal("1.25"), None),
        (2, Decimal("1.2345"), "x"),
        (3, 5, None),
        (4, Decimal("0.01"), None),
    ]


def test_a_column_that_the_table_lacks_is_an_error_unless_it_is_to_be_ignored(registry):
    schema = registry.register(make_envelope({**NAMED, "extra": optional("long")}))
    event = registry.write(schema, make_event("c", None, {"id": 1, "name": "a", "extra": None}))
    with pytest.raises(SchemaError, match="'extra'"):
        decode(registry, SMALL, event)
    assert len(decode(registry, SMALL, event, unknown="ignore")) == 1


def test_records_about_something_else_change_no_row(registry):
    beat = make_row({"ts_ms": "long"}, "Heartbeat")
    marker = {"status": "string", "id": "string", "event_count": optional("long")}
    name = "io.debezium.connector.common.TransactionMetadataValue"
    transaction = make_row(marker, "TransactionMetadataValue") | {"connect.name": name}
    values = [
        registry.write(registry.register(beat), {"ts_ms": 1}),
        registry.write(
            registry.register(transaction), {"status": "BEGIN", "id": "5", "event_count": None}
        ),
    ]
    assert decode(registry, SMALL, *values) == []


def make_lean_envelope(**sides):
    """Return the schema of an envelope with only some of its fields."""
    whole = make_envelope(NAMED)
    fields = [each for each in whole["fields"] if each["name"] in ("source", "op")]
    more = [{"name": name, "type": kind} for name, kind in sides.items()]
    return {**whole, "fields": [*more, *fields]}


def make_lean_event(op, **fields):
    return {"op": op, "source": {"version": "3", "lsn": 1}, **fields}


PREFIX = make_row({"prefix": "string"}, "Message")


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "after a good one"])
def test_the_schema_of_a_message_describes_no_columns(registry, is_alone):
    """Debezium's message of a transaction has neither the row before nor the one after."""
    of = registry.register(make_lean_envelope(message=PREFIX))
    message = registry.write(of, make_lean_event("m", message={"prefix": "p"}))
    schema = registry.register(make_envelope(NAMED))
    good = registry.write(schema, make_event("c", None, {"id": 1, "name": "a"}))
    before = [] if is_alone else [good]
    found = decode(registry, SMALL, *before, message)
    assert found == [(False, {"id": 1, "name": "a"}, None)] * len(before)
    decoder = DebeziumDecoder(pa.schema([]), ["id"], DebeziumRules(registry=registry.settings))
    assert decoder.find_columns(pa.array([message], pa.binary())).schemas == [pa.schema([])]


def test_an_envelope_whose_schema_lacks_a_row_is_read_or_bad(registry):
    before = registry.register(make_lean_envelope(before=make_row({"id": "int"})))
    delete = registry.write(before, make_lean_event("d", before={"id": 1}))
    create = registry.write(before, make_lean_event("c", before={"id": 1}))
    unknown = registry.write(before, make_lean_event("x", before={"id": 1}))
    assert decode(registry, SMALL, delete) == [(True, {"id": 1, "name": None}, None)]
    decoder = DebeziumDecoder(SMALL, ["id"], DebeziumRules(registry=registry.settings))
    values = pa.array([create, delete, unknown], pa.binary())
    changes, bad = decoder.decode_good(values, pa.nulls(3, pa.binary()), str)
    assert changes.rows.to_pylist() == [{"id": 1, "name": None}]
    assert bad == {
        0: "has the operation 'c', and no row",
        2: "has an unknown operation in 'op'",
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\0\0", "not with the id of a schema"),
        (b"\0\0\x7f\0\0\0", "does not have the schema"),
        (b"\0%s\xff", "is not valid for its schema"),
    ],
)
def test_a_value_that_is_no_event_is_named_with_its_position(registry, value, reason):
    schema = registry.register(make_envelope(NAMED))
    good = registry.write(schema, make_event("c", None, {"id": 1, "name": "a"}))
    with pytest.raises(SchemaError, match=reason) as caught:
        decode(registry, SMALL, good, value.replace(b"%s", good[1:5]))
    assert str(caught.value).startswith("t-0 at offset 1: ")


def test_an_event_in_avro_names_the_option_that_it_needs():
    decoder = DebeziumDecoder(SMALL, ["id"], DebeziumRules())
    with pytest.raises(SchemaError, match=r"set 'registry\.url'"):
        decoder.decode(pa.array([b"\0\0\0\0\1\2"], pa.binary()), pa.array([None], pa.binary()), str)


def test_a_row_may_have_columns_that_are_read_as_json_in_its_table(registry):
    event = write_event("c", None, {"id": 1, "name": "a"})
    assert decode(registry, SMALL, event, to_json({"id": 2, "name": "b"}))[1][1]["id"] == 2


MIRROR = {
    "path": "db.t",
    "warehouse": "/w",
    "mode": "upsert",
    "changeFormat": "debezium",
    "keyColumns": "id",
}


def test_passwords_of_the_registry_are_secrets_of_the_sink():
    given = {"registry.url": "http://me:hidden@h", "registry.basic.auth.user.info": "me:secret"}
    kind = IcebergSinkOptions
    assert kind.secret_keys({**MIRROR, **given}) == given.keys()
    assert {"hidden", "secret"} <= kind.parse({**MIRROR, **given}, "krishiv-iceberg").secrets()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"registry.subject": "t-value"}, "'registry.subject' has no effect"),
        ({"registry.key.version": "2"}, "'registry.key.version' has no effect"),
        ({"registry.timeot": "1 s"}, "unknown option 'registry.timeot'"),
        ({"changeFormat": None, "mode": "append", "keyColumns": None}, "requires 'changeFormat'"),
    ],
)
def test_options_of_the_registry_that_cannot_work_are_refused(given, reason):
    every = {**MIRROR, "registry.url": "http://h:1", **given}
    options = {name: text for name, text in every.items() if text is not None}
    with pytest.raises(OptionError, match=reason):
        IcebergSinkOptions.parse(options, "krishiv-iceberg")
