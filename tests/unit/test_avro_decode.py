"""Avro records as Arrow columns, compared with fastavro over generated schemas and values."""

import datetime as dt
import io
import json
import struct
from decimal import Decimal

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from avro_cases import encode, of, record, schemas, values_of
from hypothesis import given, reject
from hypothesis import strategies as st

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.avro.avro_decode import AvroDecoder
from krishiv_spark.kafka.schemas.avro.avro_types import parse_avro_schema


def decode(writer, records, reader=None):
    """Decode records, None among them, as a batch of Kafka has them: one after the other."""
    types = [parse_avro_schema(json.dumps(each)) for each in (writer, reader or writer)]
    sizes = [len(each or b"") for each in records]
    ends = np.cumsum(np.array(sizes, np.int64)) if records else np.zeros(0, np.int64)
    starts = np.array(
        [
            -1 if each is None else end - size
            for each, end, size in zip(records, ends, sizes, strict=True)
        ],
        np.int64,
    )
    data = np.frombuffer(b"".join(each or b"" for each in records) or b"\0", np.uint8)
    decoded = AvroDecoder(*types).decode(data, starts, ends.astype(np.int64))
    decoded.values.validate(full=True)
    return decoded


@pytest.mark.long
@given(st.data())
def test_values_are_those_that_were_written(data):
    schema = data.draw(schemas())
    pairs = data.draw(st.lists(values_of(schema), max_size=4))
    with_null = [*encode(schema, *(value for value, _ in pairs)), None]
    decoded = decode(schema, with_null)
    assert decoded.errors == {}
    assert decoded.values.to_pylist() == [*(expected for _, expected in pairs), None]


@given(st.data())
def test_a_field_that_the_reader_does_not_have_is_skipped(data):
    schema = data.draw(schemas())
    kept = [each for each in schema["fields"] if data.draw(st.booleans())]
    reader = {**schema, "fields": kept}
    try:
        parse_avro_schema(json.dumps(reader))
    except SchemaError:  # a type that was named in a field that is left out
        reject()
    pairs = data.draw(st.lists(values_of(schema), max_size=3))
    decoded = decode(schema, encode(schema, *(value for value, _ in pairs)), reader)
    names = [each["name"] for each in kept]
    assert decoded.values.to_pylist() == [{n: e[n] for n in names} for _, e in pairs]


@given(st.data())
def test_damaged_records_are_errors_or_other_values(data):
    """Never a crash, a wrong neighbour or memory beyond the record's own size."""
    schema = data.draw(schemas())
    (value, expected) = data.draw(values_of(schema))
    good = encode(schema, value)[0]
    bad = bytearray(good)
    if bad and data.draw(st.booleans()):
        bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        bad = bad[: data.draw(st.integers(0, len(bad)))] + data.draw(st.binary(max_size=3))
    decoded = decode(schema, [good, bytes(bad), good])
    assert [decoded.values[row].as_py() for row in (0, 2)] == [expected, expected]
    assert set(decoded.errors) <= {1}
    assert (1 in decoded.errors) == (not decoded.values[1].is_valid)


# --- schema resolution, beside fastavro

PROMOTIONS = [
    ("int", "long", 7), ("int", "float", 7), ("int", "double", -7), ("long", "float", 2**40),
    ("long", "double", 2**62), ("float", "double", 0.5), ("string", "bytes", "ä"),
    ("bytes", "string", b"abc"),
]  # fmt: skip


@pytest.mark.parametrize(("writer", "reader", "value"), PROMOTIONS)
@pytest.mark.parametrize("is_union", [False, True])
def test_promotions_are_those_of_fastavro(writer, reader, value, is_union):
    one = record(of("a", writer))
    other = record(of("a", ["null", reader] if is_union else reader))
    encoded = encode(one, {"a": value})
    expected = fastavro.schemaless_reader(io.BytesIO(encoded[0]), one, other)
    assert decode(one, encoded, other).values.to_pylist() == [expected]


BOTH_TRUE = (True, True)  # the default, and the value
DEFAULTS = [
    ("null", None, None),
    ("boolean", *BOTH_TRUE),
    ("int", -5, -5),
    ("long", 2**60, 2**60),
    ("float", 0.25, 0.25),
    ("double", 1e300, 1e300),
    ("string", "ä", "ä"),
    ("bytes", "\u00ff", b"\xff"),
    ({"type": "fixed", "name": "F", "size": 2}, "\u0000\u00ff", b"\0\xff"),
    ({"type": "enum", "name": "E", "symbols": ["X", "Y"]}, "Y", "Y"),
    ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
    ({"type": "array", "items": "int"}, [], []),
    ({"type": "map", "values": "string"}, {"k": "v"}, [("k", "v")]),
    (["null", "int"], None, None),
    (["int", "null"], 5, 5),
    (
        record(of("x", "int"), of("y", "string", default="d"), name="S"),
        {"x": 1},
        {"x": 1, "y": "d"},
    ),
    ({"type": "int", "logicalType": "date"}, 0, dt.date(1970, 1, 1)),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        "\u0001\u0000",
        Decimal("2.56"),
    ),
]


@pytest.mark.parametrize(("kind", "default", "expected"), DEFAULTS)
def test_a_field_that_the_writer_does_not_have_has_its_default(kind, default, expected):
    writer = record(of("a", "int"))
    reader = record(of("new", kind, default=default), of("a", "int"))
    assert decode(writer, encode(writer, {"a": 1}), reader).values.to_pylist() == [
        {"new": expected, "a": 1}
    ]


def test_a_missing_field_without_default_is_an_error_before_any_record():
    with pytest.raises(SchemaError, match=r"no field b, and the reader's has no default"):
        decode(record(of("a", "int")), [], record(of("a", "int"), of("b", "int")))


INSTANT = dt.datetime(1969, 12, 31, 23, 59, 59, 123000)  # noqa: DTZ001  a wall time, below 0
STORED = {"millis": -877, "micros": -877_000, "nanos": -877_000_000}


def time_of(logical, kind="long"):
    """The type of a time; `read_times` writes its numbers."""
    return {"type": kind, "logicalType": logical}


def read_times(written, read, *numbers):
    plain = record(of("a", "long"))
    return decode(
        record(of("a", written)), encode(plain, *({"a": n} for n in numbers)), record(of("a", read))
    )


@pytest.mark.parametrize("local", ["", "local-"])
@pytest.mark.parametrize("read", STORED)
@pytest.mark.parametrize("written", STORED)
def test_a_time_of_another_unit_is_the_same_time(written, read, local):
    """The column of nanoseconds is a number: it has the unit of the reader's schema."""
    units = [time_of(f"{local}timestamp-{unit}") for unit in (written, read)]
    wanted = STORED[read] if read == "nanos" else INSTANT.replace(tzinfo=None if local else dt.UTC)
    assert read_times(*units, STORED[written]).values.to_pylist() == [{"a": wanted}]
    assert read_times(units[0], [units[1], "null"], STORED[written]).values.to_pylist() == [
        {"a": wanted}
    ]


def test_a_time_of_another_unit_is_cut_off_or_out_of_range():
    millis, micros, nanos = (time_of(f"timestamp-{unit}") for unit in STORED)
    found = read_times(nanos, micros, -1, 2**63 - 1).values.field("a").cast(pa.int64())
    assert found.to_pylist() == [-1, (2**63 - 1) // 1000]
    for writer, most in ((millis, (2**63 - 1) // 10**6), (micros, (2**63 - 1) // 1000)):
        found = read_times(writer, nanos, most, most + 1, -most, -most - 1)
        reason = "field a: a time is out of range"
        assert found.errors == {1: reason, 3: reason}


def test_a_time_of_day_of_another_unit_is_the_same_time():
    millis, micros = time_of("time-millis", "int"), time_of("time-micros")
    assert read_times(millis, micros, 7).values.to_pylist() == [{"a": 7000}]


def test_a_number_without_a_unit_has_that_of_the_reader():
    millis, instant = time_of("timestamp-millis"), INSTANT.replace(tzinfo=dt.UTC)
    assert read_times("long", millis, -877).values.to_pylist() == [{"a": instant}]
    assert read_times(millis, "long", -877).values.to_pylist() == [{"a": -877}]


def test_an_alias_finds_the_writers_field():
    writer = record(of("old", "int"))
    reader = record(of("new", "long", aliases=["old"]))
    assert decode(writer, encode(writer, {"old": 3}), reader).values.to_pylist() == [{"new": 3}]


def test_types_that_do_not_resolve_are_named():
    with pytest.raises(
        SchemaError, match=r"of the field a\.b is string, which cannot be read as int"
    ):
        decode(
            record(of("a", record(of("b", "string"), name="S"))),
            [],
            record(of("a", record(of("b", "int"), name="S"))),
        )


@pytest.mark.parametrize("kind", [{"type": "enum", "symbols": ["A"]}, {"type": "fixed", "size": 1}])
def test_an_enum_or_fixed_type_of_another_name_is_not_read(kind):
    """As Avro specifies; a name in another namespace and an alias are the same type."""

    def schema(name, **more):
        return record(of("a", {**kind, "name": name, **more}))

    value = "A" if kind["type"] == "enum" else b"A"
    encoded = encode(schema("E"), {"a": value})
    for same in (schema("some.E"), schema("F", aliases=["E"])):
        assert decode(schema("E"), encoded, same).values.to_pylist() == [{"a": value}]
    with pytest.raises(
        SchemaError, match=r"of the field a is \w+ E.*, which cannot be read as .*F"
    ):
        decode(schema("E"), encoded, schema("F"))


def test_symbols_that_the_reader_does_not_have():
    def enum(*symbols, **more):
        return record(of("e", {"type": "enum", "name": "E", "symbols": [*symbols], **more}))

    writer = enum("A", "B", "C")
    encoded = encode(writer, {"e": "A"}, {"e": "C"})
    assert decode(writer, encoded, enum("B", "A", default="B")).values.to_pylist() == [
        {"e": "A"},
        {"e": "B"},
    ]
    decoded = decode(writer, encoded, enum("B", "A"))
    assert decoded.errors == {1: "field e: it has a symbol that the reader's enum does not have"}
    assert decoded.values.to_pylist() == [{"e": "A"}, None]


def test_a_branch_that_the_reader_does_not_have_is_an_error_of_its_records():
    writer = record(of("a", ["null", "int", "string"]))
    encoded = encode(writer, {"a": 1}, {"a": "x"}, {"a": None})
    decoded = decode(writer, encoded, record(of("a", ["null", "long"])))
    assert decoded.values.to_pylist() == [{"a": 1}, None, {"a": None}]
    assert "branch of its union that the reader's schema does not have" in decoded.errors[1]


def test_records_in_a_union_are_found_by_their_names():
    def union(*names):
        return record(of("u", [record(of(f"x{n}", "int", default=0), name=n) for n in names]))

    writer, reader = union("A", "B"), union("B", "A")
    encoded = encode(writer, {"u": ("A", {"xA": 1})}, {"u": ("B", {"xB": 2})})
    assert decode(writer, encoded, reader).values.to_pylist() == [
        {"u": {"member0": None, "member1": {"xA": 1}}},
        {"u": {"member0": {"xB": 2}, "member1": None}},
    ]


# --- forms that no library writes here


def test_blocks_with_their_size_and_several_blocks_are_read():
    schema = record(of("a", {"type": "array", "items": "int"}))
    two_blocks = b"\x03\x04\x02\x04" + b"\x02\x06" + b"\0"  # -2 items in 2 bytes, then one item
    assert decode(schema, [two_blocks]).values.to_pylist() == [{"a": [1, 2, 3]}]


def test_a_top_level_value_need_not_be_a_record():
    assert decode("string", encode("string", "x")).values.to_pylist() == ["x"]
    union = ["null", record(of("a", "int"))]
    encoded = encode(union, None, {"a": 1})
    assert decode(union, encoded).values.to_pylist() == [None, {"a": 1}]


def test_references_are_other_schemas():
    text = json.dumps(record(of("a", "other.S"), name="R"))
    parsed = parse_avro_schema(text, {"s": json.dumps(record(of("x", "int"), name="other.S"))})
    assert parsed.arrow == pa.struct(
        [pa.field("a", pa.struct([pa.field("x", pa.int32(), nullable=False)]), nullable=False)]
    )


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (record(of("next", ["null", "R"])), r"contains itself \(R > R\)|R contains itself"),
        (
            record(of("d", {"type": "bytes", "logicalType": "decimal", "precision": 39})),
            "39 digits",
        ),
        ({"type": "strange"}, "not a valid Avro schema"),
    ],
)
def test_schemas_that_no_column_can_hold_are_refused(schema, message):
    with pytest.raises(SchemaError, match=message):
        parse_avro_schema(json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "data", "message"),
    [
        (record(of("a", "string")), b"\x06ab", "field a: it ends too early"),
        (record(of("a", "string")), b"\x02\xff", "field a: a text is not UTF-8"),
        (record(of("a", "string")), b"\x06\xed\xa0\x80", "not UTF-8"),
        (record(of("a", "int")), b"\xff\xff\xff\xff\xff\x01", "a number has too many bits"),
        (record(of("a", "long")), b"\xff" * 10 + b"\x01", "it ends too early"),
        (record(of("a", "int")), b"\x02\x02", "bytes are left after its end"),
        (record(of("a", "boolean")), b"\x02", "a boolean is neither 0 nor 1"),
        (record(of("a", ["null", "int"])), b"\x04", "a branch that its union does not have"),
        (record(of("a", "bytes")), b"\x01", "a length is negative"),
        (
            record(of("a", {"type": "array", "items": "null"})),
            b"\xfe\xff\xff\xff\x7f",
            "too many elements",
        ),
        (
            record(of("a", {"type": "long", "logicalType": "timestamp-millis"})),
            b"\xfe" + b"\xff" * 8 + b"\x01",
            "out of range",
        ),
        (
            record(of("a", {"type": "bytes", "logicalType": "decimal", "precision": 2})),
            b"\x02\x64",
            "more digits",
        ),
    ],
)
def test_records_that_are_not_valid_say_why(schema, data, message):
    decoded = decode(schema, [data])
    assert message in decoded.errors[0]
    assert decoded.values.to_pylist() == [None]


def test_a_decimal_may_repeat_its_sign():
    schema = record(
        of("a", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0})
    )
    for value in (1, -1, 10**38 - 1, -(10**38) + 1):
        data = value.to_bytes(30, "big", signed=True)
        assert decode(schema, [struct.pack("b", 60) + data]).values.to_pylist() == [
            {"a": Decimal(value)}
        ]
