"""JSON values as columns: the forms of each type, and values that are not as expected.

The forms are those of docs/kafka-json.md; tests/spark/test_kafka_json.py compares generated values
with the JVM's from_json.
"""

import base64
import datetime as dt
import json
import logging
import math
import shutil
import subprocess
import sys
import zoneinfo
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.arrow.column_text import parse_fields
from krishiv_spark.arrow.json_parsing import JsonParser, find_unknown
from krishiv_spark.arrow.json_types import JsonRules
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.row_schema import KafkaRowSchema

BAD = "bad"
UTC = dt.timezone.utc


def options(**given):
    base = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t", "valueFormat": "json"}
    return KafkaSourceOptions.parse({**base, **given}, "krishiv-kafka")


def batch_of(values):
    values = [value.encode() if isinstance(value, str) else value for value in values]
    place = {"topic": ["t"] * len(values), "partition": [0] * len(values)}
    offsets = pa.array(range(len(values)), pa.int64())
    return pa.record_batch({"value": pa.array(values, pa.binary()), "offset": offsets, **place})


def read(values, fields, **given):
    """Return the rows of values as dictionaries."""
    shape = KafkaRowSchema.from_options(options(valueSchema=fields, **given))
    shaped = list(shape.convert(batch_of(values)))
    found = [row for batch in shaped for row in batch.to_pylist()]
    shape.report()
    return found


def one(text, kind, **given):
    """Return the value of a field from its JSON; `BAD` for a bad record."""
    (row,) = read([f'{{"v":{text}}}'], f"v {kind}", badRecords="divert", **given)
    assert (row["_raw"] is None) == (row["_error"] is None)
    return row["v"] if row["_raw"] is None else BAD


def micros(text, kind, **given):
    """Return a time as microseconds since 1970, since Python has none before year 1."""
    found = one(text, kind, **given)
    if found in (None, BAD):
        return found
    epoch = dt.datetime(1970, 1, 1, tzinfo=found.tzinfo and UTC)
    return (found - epoch) // dt.timedelta(microseconds=1)


TIMES = {  # text: (DATE, TIMESTAMP, TIMESTAMP_NTZ) in a zone of none
    "2024-01-01T23:59:59-05:00": (BAD, 1704171599000000, BAD),
    "2024-01-01T00:00:00Z": (dt.date(2024, 1, 1), 1704067200000000, BAD),
    "2024-01-01 00:00:00.000+00:00": (dt.date(2024, 1, 1), 1704067200000000, BAD),
    "2024-01-01 23:00:00+00:00": (BAD, 1704150000000000, BAD),
    "2024-01-01T00:00:00+05:30": (dt.date(2024, 1, 1), 1704047400000000, BAD),
    "2024-01-01T00:00:00+0530": (dt.date(2024, 1, 1), 1704047400000000, BAD),
    "2024-01-01T00:00:00.1234567Z": (BAD, 1704067200123456, BAD),
    "2024-01-01T00:00:00.123456789Z": (BAD, 1704067200123456, BAD),
    "2024-01-01T00:00:00.120000000Z": (BAD, 1704067200120000, BAD),
    "2024-01-01T00:00:00.1234567": (BAD, BAD, 1704067200123456),
    "2024-01-01T00:00:00.120000000": (BAD, BAD, 1704067200120000),
    "2024-01-01T00:00:00": (dt.date(2024, 1, 1), BAD, 1704067200000000),
    "2024-01-01T00:00": (dt.date(2024, 1, 1), BAD, 1704067200000000),
    "2024-01-01": (dt.date(2024, 1, 1), BAD, 1704067200000000),
    "2024-01-01T00:00Z": (dt.date(2024, 1, 1), BAD, BAD),
    "1969-12-31T23:59:59.9999999Z": (BAD, -1, BAD),
    "2024-01-01T00:00:00+18:30": (BAD, BAD, BAD),
    "2024-01-01T00:00:00 UTC": (BAD, BAD, BAD),
    "2024-01-01T23:59:60Z": (BAD, BAD, BAD),
    "2024-02-30": (BAD, BAD, BAD),
    "": (BAD, BAD, BAD),
}


@pytest.mark.parametrize("text", TIMES)
def test_times_as_texts(text):
    found = (
        one(f'"{text}"', "DATE"),
        micros(f'"{text}"', "TIMESTAMP"),
        micros(f'"{text}"', "TIMESTAMP_NTZ"),
    )
    assert found == TIMES[text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-01T00:00:00", 1704085200000000),
        ("2024-01-01", 1704085200000000),
        ("2026-07-01T12:00:00", 1782921600000000),
        ("2024-01-01T00:00:00Z", 1704067200000000),
        ("2024-03-10T02:30:00", 1710055800000000),  # in a gap: an hour later
        ("2024-11-03T01:30:00", 1730611800000000),  # twice: the first
        ("2500-07-01T00:00:00", 16740878400000000),  # after the years that Arrow knows: summer time
        ("2040-03-11T02:30:00", 2215063800000000),
        ("9999-06-19", 253385380800000000),
    ],
)
def test_a_text_without_a_zone_is_in_the_zone_of_the_option(text, expected):
    assert micros(f'"{text}"', "TIMESTAMP", timeZone="America/New_York") == expected


def test_texts_with_and_without_a_zone_are_read_together():
    values = ['{"v":"2024-01-01T00:00:00"}', '{"v":"2024-01-01T00:00:00Z"}', '{"v":null}']
    found = read(values, "v TIMESTAMP", timeZone="Asia/Tokyo")
    hours = [row["v"] and row["v"].astimezone(UTC).hour for row in found]
    assert hours == [15, 0, None]


@pytest.mark.parametrize(
    ("unit", "number", "expected"),
    [
        ("s", "1704067200", 1704067200000000),
        ("s", "1704067200.1234567", 1704067200123456),
        ("s", "-0.5", -500000),
        ("ms", "1704067200123", 1704067200123000),
        ("us", "1704067200123456", 1704067200123456),
        ("ns", "1704067200123456789", 1704067200123456),
        ("ns", "-1", -1),
        ("ms", "99999999999999999999", BAD),
        ("ms", "true", BAD),
        ("ms", '"2024-01-01T00:00:00Z"', BAD),
    ],
)
@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMP_NTZ"])
def test_numbers_are_times_of_the_declared_unit(unit, number, expected, kind):
    assert micros(number, kind, epochUnit=unit) == expected


def test_without_a_unit_a_number_is_no_time():
    for kind in ("TIMESTAMP", "TIMESTAMP_NTZ", "DATE"):
        assert one("1704067200000", kind) == BAD


def test_units_of_single_fields():
    fields = "at TIMESTAMP, o STRUCT<day: DATE, l: ARRAY<TIMESTAMP_NTZ>>, text TIMESTAMP"
    value = '{"at":1000,"o":{"day":1,"l":[1]},"text":"1970-01-01T00:00:03Z"}'
    units = {"at": "ms", "o.day": "d", "o.l": "s"}
    (row,) = read([value], fields, epochUnit=json.dumps(units))
    second = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert row["at"] == second
    assert row["o"] == {"day": dt.date(1970, 1, 2), "l": [second.replace(tzinfo=None)]}
    assert row["text"] == dt.datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        ("d", "the unit of days is for a DATE"),
        ("minutes", "write one of s, ms, us, ns, or JSON"),
        ('{"at": "x"}', "write one of s"),
        ('{"day": "ms"}', "'day' is a DATE; its unit must be 'd'"),
        ('{"at": "d"}', "'at' is a time; its unit must be"),
        ('{"att": "ms"}', "names 'att'; did you mean 'at'"),
    ],
)
def test_a_unit_that_fits_no_field_is_refused(unit, message):
    with pytest.raises(OptionError, match=message):
        read([], "at TIMESTAMP, day DATE", epochUnit=unit)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AQI=", b"\1\2"), ("", b""), ("aGk=", b"hi"), ("AQID", b"\1\2\3"), ("AQ==", b"\1"),
        ("BAg=", b"\4\x08"), ("AcnDgA==", b"\1\xc9\xc3\x80"),
        ("hello!", BAD), ("AQI", BAD), ("A-_=", BAD), ("AQ==AQ==", BAD), ("=", BAD),
        ("AQI=\\n", BAD),
    ],
)  # fmt: skip
def test_binary_is_base64(text, expected):
    assert one(f'"{text}"', "BINARY") == expected


@given(st.lists(st.none() | st.binary(max_size=7), max_size=9))
def test_base64_of_many_rows(values):
    texts = [None if each is None else base64.b64encode(each).decode() for each in values]
    rows = [json.dumps({"l": texts, "v": each}) for each in texts] or ['{"l":[]}']
    found = read(rows, "v BINARY, l ARRAY<BINARY>")
    assert [row["v"] for row in found] == (values or [None])
    assert found[0]["l"] == values


NUMBERS = [
    ("DOUBLE", "1e400", BAD), ("DOUBLE", "Infinity", math.inf), ("DOUBLE", "-Infinity", -math.inf),
    ("DOUBLE", "Inf", BAD), ("DOUBLE", '"NaN"', BAD), ("DOUBLE", '"1.5"', BAD),
    ("DOUBLE", '"Infinity"', BAD),
    ("FLOAT", "1.00000005960464477539062500001", 1.00000011920928955), ("BIGINT", "true", BAD),
    ("BIGINT", "1.0", BAD), ("BIGINT", "1e3", BAD), ("BIGINT", '"12"', BAD),
    ("BIGINT", "9223372036854775808", BAD), ("TINYINT", "128", BAD), ("BOOLEAN", '"true"', BAD),
    ("DECIMAL(5,2)", "1.005", BAD), ("DECIMAL(5,2)", "12345.6", BAD), ("STRING", "1", BAD),
    ("STRING", '{"a":1}', BAD), ("STRING", '"\\ud800"', BAD), ("STRING", "true", BAD),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "expected"), NUMBERS)
def test_forms_of_other_types(kind, text, expected):
    assert one(text, kind) == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("DECIMAL(5, 2)", "1234.5"), ("DECIMAL(5, 2)", "127e2"), ("DECIMAL(5, 2)", '"1234.5"'),
        ("DECIMAL(38, 18)", "1e20"), ("DECIMAL(38, 18)", "1000000000000000000000"),
        ("DECIMAL(38, 18)", '"99999999999999999999999999999999999999"'),
    ],
)  # fmt: skip
def test_a_decimal_that_is_too_large_for_its_type_is_bad(kind, text):
    assert one(text, kind) == BAD


def test_nan_and_decimals():
    assert math.isnan(one("NaN", "DOUBLE"))
    texts = ("1.0500", '"1.05"', "1e2", "123.45000")
    found = [str(one(text, "DECIMAL(5,2)")) for text in texts]
    assert found == ["1.05", "1.05", "100.00", "123.45"]


@pytest.mark.parametrize("other", ['{"id":1,"x":Inf}', '{"id":1,"x":[-Inf]}'])
def test_a_number_that_only_arrow_knows_is_bad_in_an_unknown_field_too(other):
    text = '{"id":2,"x":"a: Inf, b"}'
    found = read([other, text], "id INT", badRecords="null")
    assert [row["id"] for row in found] == [None, 2]


# --- maps


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", []), ('{"a":1}', [("a", 1)]), (' { "a" : 1 , "b":null } ', [("a", 1), ("b", None)]),
        ("null", None), ('{"":1}', [("", 1)]), ('{"key":1,"value":2}', [("key", 1), ("value", 2)]),
        (r'{"a\"}{,:":1}', [('a"}{,:', 1)]), (r'{"a\\":1,"b":2}', [("a\\", 1), ("b", 2)]),
        ('{"a":1,"a":2}', BAD), ('{"a":"x"}', BAD), ('{"a"}', BAD), ('{"a":1,}', BAD),
        ("{1:2}", BAD),
        ("[]", BAD), ('[{"key":"a","value":1}]', BAD), ("5", BAD), ('{"a":{}}', BAD),
    ],
)  # fmt: skip
def test_maps(text, expected):
    assert one(text, "MAP<STRING, INT>") == expected


def test_maps_at_any_depth():
    fields = "l ARRAY<STRUCT<m: MAP<STRING, MAP<STRING, ARRAY<MAP<STRING, DATE>>>>>>, t STRING"
    values = [
        '{"l":[{"m":{"a":{"b":[{"c":"2024-01-01"},{}]}}},{},null,{"m":null}],"t":"{\\"m\\":1"}',
        '{"m":{"x":1},"l":[{"m":{"a":{},"z":null},"m2":{"q":[]}}]}',
    ]
    first, second = read(values, fields)
    assert first["l"] == [
        {"m": [("a", [("b", [[("c", dt.date(2024, 1, 1))], []])])]}, {"m": None}, None, {"m": None},
    ]  # fmt: skip
    assert (first["t"], second["l"]) == ('{"m":1', [{"m": [("a", []), ("z", None)]}])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text('a"\\{}[],: \u00e9', max_size=5),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text('ab"\\}', max_size=3), each),
    max_leaves=8,
)
OBJECTS = st.fixed_dictionaries(
    {"id": st.integers(0, 9)},
    optional={
        "m": st.none()
        | st.dictionaries(st.text('ab"\\{', max_size=3), st.none() | st.integers(0, 9)),
        "s": st.fixed_dictionaries({}, optional={"x": st.integers(0, 9), "y": JSON}),
        "l": st.lists(
            st.none() | st.fixed_dictionaries({}, optional={"x": st.booleans(), "z": JSON})
        ),
        "other": JSON,
    },
)
KNOWN = pa.struct(
    list(parse_fields("id INT, m MAP<STRING, INT>, s STRUCT<x: INT>, l ARRAY<STRUCT<x: BOOLEAN>>"))
)


@pytest.mark.long
@given(st.lists(OBJECTS, min_size=1, max_size=5), st.sampled_from([None, 1]), st.booleans())
def test_maps_and_unknown_fields_are_those_that_python_finds(objects, indent, ascii_only):
    texts = [json.dumps(each, indent=indent, ensure_ascii=ascii_only) for each in objects]
    found = read(texts, "id INT, m MAP<STRING, INT>", unknownFields="keep")
    for row, value in zip(found, objects, strict=True):
        assert row["m"] == (list(value["m"].items()) if value.get("m") is not None else None)
        rest = {name: each for name, each in value.items() if name not in ("id", "m")}
        assert json.loads(row["_unknown"] or "{}") == rest
    names = find_unknown(pa.array([text.encode() for text in texts]), KNOWN).names.to_pylist()
    expected = [name for value in objects for name in unknown_names(value)]
    assert sorted(names) == sorted(expected)


def unknown_names(value):
    yield from ["other"] * ("other" in value)
    yield from ["s.y"] * ("y" in value.get("s", {}))
    yield from ("l.z" for each in value.get("l", []) if each is not None and "z" in each)


# --- values that are not as expected

FIELDS = "id BIGINT, name STRING"
STRANGE = ["null", "{}", '{"ID":7}', '{"schema":{},"payload":{"id":1}}']


@pytest.mark.parametrize("value", STRANGE)
def test_a_value_without_any_wanted_field_is_bad(value):
    with pytest.raises(SchemaError, match="t-0 at offset 1: the JSON value"):
        read(['{"id":null}', value], FIELDS)
    diverted = read(['{"id":null}', value, '{"name":null}'], FIELDS, badRecords="divert")
    assert [row["_raw"] for row in diverted] == [None, value.encode(), None]


def test_a_declared_field_counts_also_if_it_is_not_chosen():
    assert read(['{"name":"a"}'], FIELDS, columns="id") == [{"id": None}]
    assert read(['{"name":"a"}'], FIELDS, columns="offset") == [{"offset": 0}]
    with pytest.raises(SchemaError, match="none of the schema's fields"):
        read(['{"nam":"a"}'], FIELDS, columns="offset")


def test_each_diverted_value_has_its_reason():
    values = ["oops", '{"id":"x"}', '{"id":1}', '{"at":"2024-01-01T00:00:00"}', '{"at":5}', "{}"]
    found = read(values, "id BIGINT, at TIMESTAMP", badRecords="divert")
    unit = "'epochUnit' declares the unit of such numbers)"
    no_time = "field 'at', which cannot be read as TIMESTAMP (the option"
    assert [row["_error"] for row in found] == [
        "the JSON value is not valid JSON: Expecting value, at character 0",
        "the JSON value has a string in field 'id', which cannot be read as BIGINT",
        None,
        f"the JSON value has a string in {no_time} 'timeZone' is the zone of texts without one)",
        f"the JSON value has a whole number in {no_time} {unit}",
        "the JSON value has none of the schema's fields (id, at)",
    ]


def test_a_field_named_as_a_companion_stays_a_field():
    assert read(['{"_error":"x"}'], "_error STRING", badRecords="divert") == [
        {"_error": "x", "_raw": None}
    ]
    with pytest.raises(SchemaError, match="'_raw' is among the fields"):
        read([], "_raw BINARY", badRecords="divert")


def test_tombstones_are_kept_dropped_or_bad(caplog):
    values = [None, '{"id":1}', None]
    nulls = {"id": None, "name": None}
    assert read(values, FIELDS) == [nulls, {"id": 1, "name": None}, nulls]
    assert "2 of 3 records have no value (tombstones)" in caplog.text
    caplog.clear()
    assert len(read(values, FIELDS, nullValues="keep", badRecords="divert")) == 3
    assert read(values, FIELDS, nullValues="drop") == [{"id": 1, "name": None}]
    assert caplog.text == ""
    found = read(values, FIELDS, nullValues="bad", badRecords="divert")
    error = "the JSON value is missing (a tombstone)"
    assert [row["_error"] for row in found] == [error, None, error]
    with pytest.raises(SchemaError, match="is missing"):
        read(values, FIELDS, nullValues="bad")


@pytest.mark.parametrize("given", [{}, {"nullValues": "keep"}])
def test_a_tombstone_is_named_where_a_field_is_not_null(given):
    """Its row has nulls, which are not for such a column: it is not said of which record."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    shape = KafkaRowSchema.from_schema(options(**given), schema)
    with pytest.raises(SchemaError, match=r"t-0 at offset 1: .*tombstone.*'id' is NOT NULL"):
        list(shape.convert(batch_of(['{"id":1}', None])))
    kept = read(['{"id":1}', None], "id BIGINT NOT NULL", nullValues="keep")
    assert kept == [{"id": 1}, {"id": None}]
    shape = KafkaRowSchema.from_options(
        options(valueSchema="id BIGINT NOT NULL", nullValues="keep")
    )
    assert shape.schema.field("id").nullable


def test_a_bad_value_is_named_where_a_given_column_is_not_null():
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    shape = KafkaRowSchema.from_schema(options(badRecords="null"), schema)
    with pytest.raises(SchemaError, match=r"t-0 at offset 0: .*'id' is NOT NULL in the schema"):
        list(shape.convert(batch_of(['{"id":"x"}'])))


def test_a_field_that_is_not_null_must_be_there():
    fields, values = "id BIGINT NOT NULL, name STRING", ['{"name":"a"}', '{"id":1}', '{"id":null}']
    with pytest.raises(SchemaError, match="has no value in field 'id', which is NOT NULL"):
        read(values, fields)
    found = read(values, fields, badRecords="divert")
    assert [row["_raw"] is None for row in found] == [False, True, False]
    shape = KafkaRowSchema.from_options(options(valueSchema=fields, badRecords="divert"))
    assert shape.schema.field("id").nullable  # as bad values have nulls
    given_back = KafkaRowSchema.from_schema(shape.options, shape.schema)
    assert not given_back.fields[0].nullable


def test_nested_values_that_are_not_null_must_be_there():
    fields = "s STRUCT<x: INT NOT NULL, d: DATE>"
    values = ['{"s":{"x":1}}', '{"s":{}}', '{"s":null}', '{"s":{"x":null}}']
    found = read(values, fields, badRecords="divert")
    assert [row["_raw"] is None for row in found] == [True, False, True, False]
    assert found[0]["s"] == {"x": 1, "d": None}
    assert found[1]["_error"] == "the JSON value has no value in field 's.x', which is NOT NULL"
    kind = pa.list_(pa.field("element", pa.int32(), nullable=False))
    pairs = pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))
    schema = pa.schema([("l", kind), ("m", pairs)])
    shape = KafkaRowSchema.from_schema(options(badRecords="null"), schema)
    values = ['{"l":[1],"m":{"a":1}}', '{"l":[null]}', '{"m":{"a":null}}', '{"l":null,"m":{}}']
    (batch,) = shape.convert(batch_of(values))
    assert batch.column("l").to_pylist() == [[1], None, None, None]
    assert batch.column("m").to_pylist() == [[("a", 1)], None, None, []]
    assert [each.type for each in batch.schema] == [kind, pairs]


def test_unknown_fields_are_counted_kept_or_an_error(caplog):
    values = ['{"id":1,"remark":"x"}', '{"id":2}', '{"id":3,"remark":1,"b":[]}', "oops"]
    caplog.set_level(logging.WARNING)
    assert [row["id"] for row in read(values[:3], "id INT")] == [1, 2, 3]
    assert caplog.text == ""
    read(values[:3], "id INT", unknownFields="count")
    assert "of 3 values, 0 were bad, and these fields unknown: 'remark' (2), 'b' (1)" in caplog.text
    found = read(values, "id INT", unknownFields="keep", badRecords="null")
    assert [row["_unknown"] for row in found] == [
        '{"remark":"x"}',
        None,
        '{"remark":1,"b":[]}',
        None,
    ]
    with pytest.raises(
        SchemaError, match=r"t-0 at offset 0: .* does not have: 'remark', 'b'\. Add"
    ):
        read(values[:3], "id INT", unknownFields="fail")


def test_a_known_field_with_an_unknown_one_inside_is_kept_whole():
    value = '{"id":1,"s":{"x":1,"y":{"z":[2]}}}'
    (row,) = read([value], "id INT, s STRUCT<x: INT>", unknownFields="keep")
    assert (row["s"], row["_unknown"]) == ({"x": 1}, '{"s":{"x":1,"y":{"z":[2]}}}')


# --- values that end a process, or a query


TINY = """
import test_kafka_json as t

fields = "v DECIMAL(38, 2), at TIMESTAMP, d DOUBLE, m MAP<STRING, DECIMAL(9, 2)>, l ARRAY<DECIMAL>"
values = [
    '{"v":5e-1000000000}',
    '{"v":"5E-1000000000"}',
    '{"v":1,"at":1e-2000000000}',
    '{"m":{"a":1e-2000000000}}',
    '{"l":[0,1e-2000000000]}',
    '{"v":5e-77}',
    '{"v":0e-38,"d":1e-50,"x":1e-2000000000}',
]
found = t.read(values, fields, badRecords="divert", epochUnit="s")
print([each["_error"] is None for each in found], found[-1]["v"], found[-1]["d"])
"""


@pytest.mark.long
def test_a_number_with_an_exponent_far_below_zero_is_bad():
    """Arrow looks its power of ten up behind the end of a table, and the process ends."""
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", TINY], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == f"{[False] * 6 + [True]} 0.00 1e-50", done.stderr


def test_a_text_with_inf_in_it_is_a_text_however_deep_its_value_is():
    deep = "[" * 20_000 + "]" * 20_000
    digits = "1" * 5_000
    values = [f'{{"id":1,"s":"\\"Inf}}","x":{x}}}' for x in (deep, digits)]
    assert read([*values, '{"id":Inf}'], "id INT, s STRING", badRecords="null") == [
        {"id": 1, "s": '"Inf}'},
        {"id": 1, "s": '"Inf}'},
        {"id": None, "s": None},
    ]


def test_a_zone_that_only_python_knows_is_refused(tmp_path):
    """Arrow has another database. Without an error each time without a zone would be bad."""
    place = next(Path(folder, "UTC") for folder in zoneinfo.TZPATH if Path(folder, "UTC").exists())
    shutil.copy(place, tmp_path / "Own")
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath([str(tmp_path)])
    try:
        assert zoneinfo.ZoneInfo("Own").key == "Own"
        with pytest.raises(OptionError, match="'Own' is not in the time zone database"):
            options(timeZone="Own")
    finally:
        zoneinfo.reset_tzpath(before)
    # On a machine of another kind than the driver.
    rules = JsonRules("Own")
    with pytest.raises(SchemaError, match="'Own' is not in the time zone database"):
        JsonParser(pa.struct([("t", pa.timestamp("us", "UTC"))]), rules).parse(
            pa.array([b'{"t":"2024-01-01T00:00:00"}'])
        )


def test_the_options_of_values_need_json():
    given = {"nullValues": "drop", "unknownFields": "count", "timeZone": "UTC", "epochUnit": "ms"}
    for name, value in given.items():
        with pytest.raises(OptionError, match=f"'{name}' needs the option 'valueFormat' = 'json'"):
            options(valueFormat="raw", **{name: value})


def test_a_given_schema_needs_the_columns_that_options_fill():
    schema = pa.schema([("id", pa.int32())])
    with pytest.raises(
        SchemaError, match="'unknownFields' = 'keep' needs a column _unknown STRING"
    ):
        KafkaRowSchema.from_schema(options(unknownFields="keep"), schema)
    named = pa.schema([("id", pa.int32()), ("_raw", pa.binary()), ("_error", pa.string())])
    assert KafkaRowSchema.from_schema(options(badRecords="divert"), named).fields == (
        schema.field(0),
    )
