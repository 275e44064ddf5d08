"""Arrow columns as JSON, read by Python's parser, and JSON Schemas derived from columns."""

import base64
import datetime as dt
import json
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.arrow.json_writing import write_json
from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.json_schema.json_schema_encode import (
    DERIVED_JSON_TYPES,
    JsonSchemaEncoder,
    derive_json_schema,
)
from krishiv_spark.kafka.schemas.json_schema.json_schema_types import parse_json_schema
from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema

SCALARS = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False, allow_infinity=False),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False),
    pa.string(): st.text(),
    pa.binary(): st.binary(),
    pa.decimal128(20, 4): st.decimals(-(10**15), 10**15, places=4),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(dt.timezone.utc)),
}


def kinds(level=2):
    scalars = st.sampled_from(list(SCALARS))
    if not level:
        return scalars
    inner = kinds(level - 1)
    names = st.lists(st.text(min_size=1), unique=True, max_size=3)
    structs = names.flatmap(
        lambda found: st.tuples(*[inner] * len(found)).map(
            lambda types: pa.struct(list(zip(found, types, strict=True)))
        )
    )
    maps = inner.map(lambda kind: pa.map_(pa.string(), kind))
    return st.one_of(scalars, structs, structs, inner.map(pa.list_), maps)


def values(kind):
    if kind in SCALARS:
        return st.none() | SCALARS[kind]
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({each.name: values(each.type) for each in kind})
    if pa.types.is_map(kind):
        pairs = st.dictionaries(st.text(), values(kind.item_type), max_size=3)
        return st.none() | pairs.map(lambda found: list(found.items()))
    return st.none() | st.lists(values(kind.value_type), max_size=3)


def to_plain(value, kind):
    """The value as a parser of JSON returns it."""
    if pa.types.is_struct(kind) and value is not None:
        found = {each.name: to_plain(value[each.name], each.type) for each in kind}
        return {name: each for name, each in found.items() if each is not None}
    if pa.types.is_map(kind) and value is not None:
        return {key: to_plain(each, kind.item_type) for key, each in value}
    if pa.types.is_list(kind) and value is not None:
        return [to_plain(each, kind.value_type) for each in value]
    return to_plain_scalar(value)


def to_plain_scalar(value):
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
    return value.isoformat() if isinstance(value, dt.date) else value


def parse(text):
    return None if text is None else json.loads(text, parse_float=Decimal)


def are_equal(found, wanted):
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(
            are_equal(found[name], wanted[name]) for name in wanted
        )
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(are_equal, found, wanted))
    if isinstance(wanted, float):
        return math.isclose(float(found), wanted, rel_tol=1e-7)
    return found == wanted


@given(st.data())
def test_values_are_those_of_pythons_parser(data):
    kind = data.draw(kinds())
    rows = data.draw(st.lists(values(kind), max_size=4))
    column = pa.array(rows, kind)
    for part in (column, column.slice(1)):
        found = write_json(part, kind)
        found.validate(full=True)
        for text, value in zip(found.to_pylist(), part.to_pylist(), strict=True):
            assert are_equal(parse(text), to_plain(value, kind)), (text, value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_refused(number):
    column = pa.array([{"x": 1.5}, {"x": number}], pa.struct([("x", pa.float64())]))
    with pytest.raises(SchemaError, match="column 'x': a row has NaN or an infinite number"):
        write_json(column, column.type)


# --- schemas


def encode(schema, rows, kind):
    registered = RegisteredSchema(7, "json-schema", schema)
    found = JsonSchemaEncoder(registered, kind, b"\0\0\0\0\7", "").encode(pa.array(rows, kind))
    return [each and json.loads(each.removeprefix(b"\0\0\0\0\7")) for each in found.to_pylist()]


ROWS = pa.struct(
    [
        *(pa.field(name.lower().replace(" ", "_"), kind) for name, kind, _ in DERIVED_JSON_TYPES),
        pa.field("number", pa.decimal128(9, 2), nullable=False),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("by_name", pa.map_(pa.string(), pa.struct([("a", pa.int64())]))),
    ]
)


def test_our_source_reads_a_derived_schema_with_the_types_of_the_columns():
    text = derive_json_schema(ROWS, "orders_value")
    assert json.loads(text)["title"] == "orders_value"
    found = parse_json_schema(text).type
    wider = {
        pa.int8(): pa.int64(),
        pa.int16(): pa.int64(),
        pa.int32(): pa.int64(),
        pa.float32(): pa.float64(),
        pa.decimal128(9, 2): pa.float64(),
    }
    for each in ROWS:
        assert found.field(each.name).type == wider.get(each.type, each.type), each
        assert found.field(each.name).nullable == each.nullable
    assert encode(text, [{"number": Decimal("1.50")}, None], ROWS) == [{"number": 1.5}, None]


REQUIRED = json.dumps(
    {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "note": {"type": ["string", "null"]}},
        "required": ["id", "note"],
    }
)
PAIR = pa.struct([("id", pa.int32()), ("note", pa.string())])


def test_a_required_field_that_may_be_null_is_written_as_null():
    assert encode(REQUIRED, [{"id": 1, "note": None}], PAIR) == [{"id": 1, "note": None}]


def test_null_in_a_required_field_names_the_column():
    with pytest.raises(SchemaError, match="column 'id': a row has null, and the schema requires"):
        encode(REQUIRED, [{"id": 1}, {"id": None}], PAIR)


MISFITS = {
    "type": ([("id", pa.string()), ("note", pa.string())], "column 'id' is string, and the JSON"),
    "field": ([*PAIR, ("nots", pa.string())], "column 'nots' is no field .*did you mean 'note'"),
    "missing": ([("id", pa.int64())], "there is no column 'note', and the JSON Schema requires"),
    "twice": ([*PAIR, ("id", pa.int64())], "column 'id' is there several times"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_columns_that_do_not_fit_are_refused_before_a_row(case):
    fields, reason = MISFITS[case]
    with pytest.raises(SchemaError, match=reason):
        encode(REQUIRED, [], pa.struct(fields))


@pytest.mark.parametrize(
    "kind", [pa.duration("us"), pa.timestamp("us"), pa.map_(pa.int32(), pa.bool_())]
)
def test_types_without_a_json_schema_are_refused(kind):
    with pytest.raises(SchemaError, match=r"column 'x' is .*JSON Schema has no type: cast it"):
        derive_json_schema(pa.struct([("x", kind)]), "r")


@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
@pytest.mark.parametrize(
    ("unit", "moment", "text"),
    [
        ("s", 0, "1970-01-01T00:00:00"),
        ("ms", -1, "1969-12-31T23:59:59.999"),
        ("us", -62_135_596_800_000_000, "0001-01-01T00:00:00.000000"),
        ("us", 253_402_300_800_000_000, "10000-01-01T00:00:00.000000"),
    ],
)
def test_a_time_with_a_zone_is_written_in_utc(zone, unit, moment, text):
    written = write_json(
        pa.array([moment, None], pa.timestamp(unit, zone)), pa.timestamp(unit, zone)
    )
    assert written.to_pylist() == [f'"{text}{"Z" if zone else ""}"', None]
