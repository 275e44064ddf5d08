"""Columns of the Kafka source: Kafka's own, and fields of JSON values."""

import datetime as dt
import decimal
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.arrow.column_text import parse_fields
from krishiv_spark.arrow.json_parsing import JsonParser
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.kafka.records.scanner import SCHEMA
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.row_schema import KafkaRowSchema
from krishiv_spark.sources.kafka.values import POSITION_COLUMNS

SPARKS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def options(**given):
    base = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t"}
    return KafkaSourceOptions.parse({**base, **given}, "krishiv-kafka")


def inferred(**given):
    return KafkaRowSchema.from_options(options(**given)).schema.names


def test_spark_columns():
    assert inferred() == SPARKS
    assert inferred(includeHeaders="true") == [*SPARKS, "headers"]
    assert inferred(columns="value,key") == ["value", "key"]
    with pytest.raises(OptionError, match="'columns' has 'offsets'; did you mean 'offset'"):
        inferred(columns="offsets")


def test_fields_of_json_values():
    json_of = {"valueFormat": "json", "valueSchema": "id BIGINT, timestamp STRING"}
    assert inferred(**json_of) == ["id", "timestamp"]
    assert inferred(**json_of, badRecords="divert") == ["id", "timestamp", "_raw", "_error"]
    assert inferred(**json_of, unknownFields="keep") == ["id", "timestamp", "_unknown"]
    assert inferred(**json_of, columns="offset,id") == ["offset", "id"]
    shape = KafkaRowSchema.from_options(options(**json_of, columns="timestamp,offset"))
    assert [field.name for field in shape.fields] == ["timestamp"]
    assert shape.kafka_columns == {"value", *POSITION_COLUMNS}
    with pytest.raises(OptionError, match="must be given"):
        inferred(valueFormat="json")


def test_a_given_schema_rules():
    schema = pa.schema([("offset", pa.int64()), ("id", pa.int32())])
    shape = KafkaRowSchema.from_schema(options(valueFormat="json"), schema)
    assert [f.name for f in shape.fields] == ["id"]
    assert shape.kafka_columns == {"value", *POSITION_COLUMNS}
    with pytest.raises(SchemaError, match="needs a column _raw"):
        KafkaRowSchema.from_schema(options(valueFormat="json", badRecords="divert"), schema)
    with pytest.raises(SchemaError, match="column 'id', which Kafka does not have"):
        KafkaRowSchema.from_schema(options(), schema)


def test_the_position_of_each_record_is_one_column():
    json_of = {"valueFormat": "json", "badRecords": "divert"}
    named = {**json_of, "valueSchema": "id BIGINT", "columns": "id, _error, _source, _raw"}
    shape = KafkaRowSchema.from_options(options(**named))
    parts = ["topic", "partition", "offset", "timestamp", "key"]
    assert shape.kafka_columns == {"value", *parts}
    batch = pa.RecordBatch.from_pylist(
        [
            {"key": b"k", "value": text, "topic": "t", "partition": 3, "offset": n, "timestamp": n}
            for n, text in enumerate([b'{"id": 1}', b"oops"])
        ],
        pa.schema([SCHEMA.field(name) for name in ("value", *parts)]),
    )
    for options_given in (named, {**json_of}):  # as inferred, and as Spark gives it back
        again = KafkaRowSchema.from_schema(options(**options_given), shape.schema)
        assert [each.name for each in again.fields] == ["id"]
        (found,) = again.convert(batch)
        assert [list(row.values())[:4] for row in found.column("_source").to_pylist()] == [
            [
                "t",
                3,
                n,
                dt.datetime.fromtimestamp(0, dt.timezone.utc) + dt.timedelta(microseconds=n),
            ]
            for n in range(2)
        ]
        assert found.column("_raw").to_pylist() == [None, b"oops"]


def test_values_may_have_a_field_with_the_name_of_the_position():
    json_of = {"valueFormat": "json", "badRecords": "divert", "valueSchema": "_source STRING"}
    shape = KafkaRowSchema.from_options(options(**json_of))
    assert shape.schema.names == ["_source", "_raw", "_error"]
    assert shape.kafka_columns == {"value", *POSITION_COLUMNS}
    schema = pa.schema([("_source", pa.string()), ("_raw", pa.binary())])
    assert rows([b'{"_source": "a"}'], schema, badRecords="divert") == [("a", None)]


def rows(batch_of, schema, **given):
    shape = KafkaRowSchema.from_schema(options(valueFormat="json", **given), schema)
    values = pa.array(batch_of, pa.binary())
    offsets = pa.array(range(len(batch_of)), pa.int64())
    place = {"topic": ["events"] * len(batch_of), "partition": [3] * len(batch_of)}
    found = shape.convert(pa.record_batch({"value": values, "offset": offsets, **place}))
    return [tuple(row.values()) for batch in found for row in batch.to_pylist()]


FIELDS = pa.schema([("id", pa.int64()), ("name", pa.string())])
GOOD = [b'{"id": 1, "name": "a\\u00e9"}', b'{"name": "b", "other": [1, {}]}', None, b'{"id": null}']


def parse_values(values, kind):
    found = JsonParser(kind).parse(values)
    return found.objects, list(found.bad)


def test_values_are_read_by_name():
    assert rows(GOOD, FIELDS) == [(1, "aé"), (None, "b"), (None, None), (None, None)]


BAD_VALUES = {
    b"": "is not valid JSON: Expecting value, at character 0",
    b" ": "is not valid JSON",
    b"{": "is not valid JSON",
    b'{"id": 1}{"id": 2}': "is not valid JSON: Extra data, at character 9",
    b'{"id": 1}}\n{"n":1,"v":{"id": 2}': "is not valid JSON: Extra data, at character 9",
    b'{"id": "hunter2"}': "has a string in field 'id', which cannot be read as BIGINT",
    b'{"id": 1.5}': "has a number with a fraction or an exponent in field 'id'",
    b'{"id": 99999999999999999999}': "has a whole number in field 'id'",
    b"[1]": "is an array instead of an object",
    b"7": "is a whole number instead of",
    b'"{}"': "is a string instead of",
    b'{"name": "\xff"}': "is not valid UTF-8 from byte 10 on",
    b'{"name": "a': "is not valid JSON",
    b'{"name": 5}': "has a whole number in field 'name', which cannot be read as STRING",
    b'{"id": 1, "id": 2}': "has a field twice in an object",
    b"null": "is null instead of an object",
    b"{}": r"has none of the schema's fields \(id, name\)",
    b'{"schema": {}, "payload": {"id": 1}}': "has none of the schema's fields, but 'schema' and",
    b'{"ID": 7}': "has none of the schema's fields, but 'id' in another case",
    b'{"id": 1, "x": 1e400}': "has a number that is too large for a DOUBLE",
    b'\xef\xbb\xbf{"id": 1}': "is not valid JSON",
}


@pytest.mark.parametrize(("bad", "said"), BAD_VALUES.items())
def test_bad_values_by_policy(bad, said, caplog):
    values = [GOOD[0], bad, GOOD[1]]
    where = "events-3 at offset 1: the JSON value "
    with pytest.raises(SchemaError, match=f"{where}{said}.*; 1 of the 3 .*badRecords") as error:
        rows(values, FIELDS)
    assert "hunter2" not in f"{error.value}{caplog.text}", "data of a record"
    assert rows(values, FIELDS, badRecords="null") == [(1, "aé"), (None, None), (None, "b")]
    diverted = rows(values, FIELDS.append(pa.field("_raw", pa.binary())), badRecords="divert")
    assert diverted == [(1, "aé", None), (None, None, bad), (None, "b", None)]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"s": {"list": [{"x": 1}, {"x": "y"}]}}, r"a string in field 's\.list\[1\]\.x', .* INT"),
        ({"s": {"list": 5}}, r"a whole number in field 's\.list', .* ARRAY<STRUCT<X: ?INT>>"),
        ({"s": [1]}, r"an array in field 's',"),
        ({"day": "tomorrow"}, "a string in field 'day', .* DATE"),
        ({"day": True}, "true or false in field 'day'"),
    ],
)
def test_the_part_that_does_not_fit_is_named(value, said):
    fields = pa.schema(parse_fields("s STRUCT<list: ARRAY<STRUCT<x: INT>>>, day DATE"))
    with pytest.raises(SchemaError, match=said):
        rows([json.dumps(value).encode()], fields)


def test_half_an_object_is_not_joined_with_the_next():
    found = rows([b'{"id": 1', b', "name": "a"}', b'{"id": 1}{"id": 2}'], FIELDS, badRecords="null")
    assert found == [(None, None)] * 3


AFTER = [
    ',"x":2', ',"x":{"b":2}', ',"x":[2]', ',"id":2', ',"n":0', "]", "}", '}\n{"n":1', " 5", "/**/",
    "\\",
    '{"id":2}', '\n{"id":2}', ',"v":{"id":2}', '],"x":[2', ',"id":1,"x":{}', "null", "\0", ",",
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("value", ['{"id":1}', "{}", "null", '{"id":1,"o":{"p":[{}]}}'])
def test_text_after_a_document_makes_the_value_bad(value, after):
    values = [b'{"id":7}', f"{value}{after}".encode(), b'{"id":8}']
    with pytest.raises(SchemaError, match="is not valid JSON"):
        rows(values, FIELDS)
    assert rows(values, FIELDS, badRecords="null") == [(7, None), (None, None), (8, None)]


BLANKS = st.text(" \t\r\n", max_size=2)
WHOLE = st.sampled_from(['{"id":1}', "{}", "{ }", "{\n}", '{ "id" :1}', '{"q":{},"id":1}'])


@given(st.lists(st.tuples(BLANKS, WHOLE, BLANKS).map("".join), min_size=1))
def test_blanks_around_and_in_a_document_mean_nothing(texts):
    found, bad = parse_values(
        pa.array(texts, pa.string()).cast(pa.binary()), pa.struct(list(FIELDS))
    )
    assert bad == []
    expected = [json.loads(text) for text in texts]
    assert found.field("id").to_pylist() == [one.get("id") for one in expected]


PARTS = st.sampled_from([
    '{"id":1}', "{", "}", "[", "]", ",", ":", '"x"', '"id"', "2", "{}", "null", " ", "\n", '{"q":[',
    "]}",
])  # fmt: skip


@given(st.lists(st.lists(PARTS, max_size=7).map("".join), min_size=1, max_size=4))
def test_a_text_is_a_value_only_if_python_reads_it_as_one(texts):
    found, bad = parse_values(
        pa.array(texts, pa.string()).cast(pa.binary()), pa.struct(list(FIELDS))
    )
    for number, (text, one) in enumerate(zip(texts, found.to_pylist(), strict=True)):
        assert number in bad or one == {
            "id": json.loads(text).get("id"), "name": None
        }  # fmt: skip
        assert number not in bad or _is_bad(text)


def _is_bad(text):
    """Return True if Python reads no object, or one with a field twice or of another type."""

    def once(pairs):
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=once)
    except (ValueError, AssertionError):
        return True
    return not isinstance(value, dict) or not isinstance(value.get("id", 1), int | None)


def test_columns_of_kafka_beside_fields():
    schema = pa.schema([("offset", pa.int64()), ("id", pa.int64())])
    assert rows([b'{"id": 5}', b'{"id": 6}'], schema) == [(0, 5), (1, 6)]


def test_no_rows():
    assert rows([], FIELDS) == []


objects = st.fixed_dictionaries(
    {}, optional={"id": st.integers(-(2**63), 2**63 - 1), "name": st.none() | st.text()}
)


@pytest.mark.long
@given(st.lists(objects.map(lambda o: json.dumps(o).encode()) | st.binary(max_size=8), max_size=20))
def test_parsed_values_are_those_that_python_reads(texts):
    found, bad = parse_values(pa.array(texts, pa.binary()), pa.struct(list(FIELDS)))
    assert len(found) == len(texts)
    for number, (text, value) in enumerate(zip(texts, found.to_pylist(), strict=True)):
        if text.startswith(b'{"') and number not in bad:
            assert value == {"id": None, "name": None, **json.loads(text)}


def test_types_of_json():
    schema = pa.schema(list(parse_fields(
        "b BOOLEAN, d DOUBLE, t TIMESTAMP, day DATE, n DECIMAL(5, 2), "
        "list ARRAY<INT>, s STRUCT<x: INT, y: STRING>"
    )))  # fmt: skip
    text = {
        "b": True, "d": 1.5, "t": "2013-01-01 10:00:00Z", "day": "2013-01-01", "n": "1.25",
        "list": [1, None], "s": {"x": 1},
    }  # fmt: skip
    assert rows([json.dumps(text).encode()], schema) == [
        (
            True,
            1.5,
            dt.datetime(2013, 1, 1, 10, tzinfo=dt.timezone.utc),
            dt.date(2013, 1, 1),
            decimal.Decimal("1.25"),
            [1, None],
            {"x": 1, "y": None},
        )
    ]


def test_dates():
    schema = pa.schema([("day", pa.date32())])
    values = [b'{"day": "2013-01-31"}', b'{"day": "2013-02-30"}']
    expected = [(dt.date(2013, 1, 31),), (None,)]
    assert rows(values, schema, badRecords="null") == expected


def test_types_without_json_are_refused_before_any_batch():
    with pytest.raises(SchemaError, match=r"field 'a.m' is a MAP with keys of type int32"):
        inferred(valueFormat="json", valueSchema="a ARRAY<STRUCT<m: MAP<INT, INT>>>")
    schema = pa.schema([("d", pa.duration("us"))])
    with pytest.raises(SchemaError, match=r"field 'd' has a type that cannot be .*duration"):
        KafkaRowSchema.from_schema(options(valueFormat="json"), schema)


def test_ddl():
    found = parse_fields(
        "id BIGINT NOT NULL COMMENT 'the id', `a b` map<string,array<int>>, x: int"
    )
    assert found == (
        pa.field("id", pa.int64(), nullable=False),
        pa.field("a b", pa.map_(pa.string(), pa.list_(pa.int32()))),
        pa.field("x", pa.int32()),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the name of a column"),
        ("id", "a type"),
        ("id BIGNUM", "a type"),
        ("id INT,", "the name of a column"),
        ("id ARRAY<INT", "'>'"),
        ("id MAP<STRING>", "','"),
        ("id DECIMAL(x)", "a whole number"),
        ("id INT name STRING", "',' or the end"),
        ("id INT, id STRING", "a column twice"),
        ("id INT; name STRING", "a name or type"),
    ],
)
def test_bad_ddl_says_what_was_expected(text, said):
    with pytest.raises(ValueError, match=said):
        parse_fields(text)
    with pytest.raises(OptionError, match="option 'valueSchema'"):
        KafkaRowSchema.from_options(options(valueFormat="json", valueSchema=text))
