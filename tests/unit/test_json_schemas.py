"""JSON Schemas of a registry as columns, and records decoded by them."""

import datetime as dt
import json
import re

import numpy as np
import pyarrow as pa
import pytest

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.json_schema.json_schema_types import parse_json_schema
from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema
from krishiv_spark.sources.kafka.json_schemas import JsonSchema


def of(**properties):
    return {"type": "object", "properties": properties}


KINDS = [
    ({"type": "integer"}, pa.int64()),
    ({"type": "number"}, pa.float64()),
    ({"type": ["integer", "number"]}, pa.float64()),
    ({"type": "boolean"}, pa.bool_()),
    ({"type": "string"}, pa.string()),
    ({"enum": ["a", "b"]}, pa.string()),
    ({"const": "a"}, pa.string()),
    ({"type": "string", "format": "date-time"}, pa.timestamp("us", "UTC")),
    ({"type": "string", "format": "date"}, pa.date32()),
    ({"type": "string", "format": "email"}, pa.string()),
    ({"type": "string", "contentEncoding": "base64"}, pa.binary()),
    ({"type": ["null", "string"]}, pa.string()),
    ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, pa.int64()),
    ({"anyOf": [{"type": "integer"}]}, pa.int64()),
    ({"allOf": [{"type": "integer"}]}, pa.int64()),
    ({"type": "array", "items": {"type": "integer"}}, pa.list_(pa.int64())),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, None),
    (of(x={"type": "integer"}), pa.struct([("x", pa.int64())])),
    ({"properties": {"x": {"type": "integer"}}}, pa.struct([("x", pa.int64())])),
    ({"$ref": "#/$defs/point"}, pa.struct([("y", pa.float64())])),
    ({"$ref": "other.json"}, pa.struct([("z", pa.bool_())])),
    ({"$ref": "other.json#/properties/z"}, pa.bool_()),
]
OTHER = ("other.json", json.dumps(of(z={"type": "boolean"})))


@pytest.mark.parametrize(("schema", "kind"), KINDS)
def test_types(schema, kind):
    whole = {**of(f=schema), "$defs": {"point": of(y={"type": "number"})}}
    found = parse_json_schema(json.dumps(whole), [OTHER])
    assert found.type.field("f").nullable
    if kind is None:
        assert pa.types.is_map(found.type.field("f").type)
    elif pa.types.is_list(kind):
        assert found.type.field("f").type.value_type == kind.value_type
    else:
        assert found.type.field("f").type == kind


def test_required_fields_are_not_null_unless_null_is_a_type():
    schema = {**of(a={"type": "integer"}, b={"type": ["null", "string"]}), "required": ["a", "b"]}
    found = parse_json_schema(json.dumps(schema))
    assert [each.nullable for each in found.type] == [False, True]


REF = {"$ref": "#/definitions/Base"}
SAME_AS_REF = [
    ({"type": "object", "allOf": [REF], "title": "x", "additionalProperties": False}, "id"),
    ({"oneOf": [{"type": "null"}, REF], "description": "x"}, "id"),
    ({**REF, "title": "x", "definitions": {}}, "id"),
    ({"allOf": [REF], "required": ["name"]}, "name"),
    ({"allOf": [{"anyOf": [REF]}], "required": ["name"]}, "name"),
    ({**REF, "required": ["name"]}, "name"),
]


def read_beside_base(schema, **more):
    base = {**of(id={"type": "integer"}, name={"type": "string"}), "required": ["id"]}
    return parse_json_schema(json.dumps({**schema, "definitions": {"Base": base}, **more}))


@pytest.mark.parametrize(("schema", "required"), SAME_AS_REF)
def test_words_beside_a_reference_that_change_no_type(schema, required):
    found = read_beside_base(schema).type
    assert [(each.name, each.nullable) for each in found] == [
        ("id", False),
        ("name", required != "name"),
    ]


OTHERS = [of(extra={"type": "string"}), {"items": {}}, {"additionalProperties": {"type": "null"}}]
ALONE = [{"allOf": [REF]}, {"anyOf": [REF]}, {"oneOf": [{"type": "null"}, REF]}, REF]


@pytest.mark.parametrize("other", [*OTHERS, {"patternProperties": {"x": {}}}])
@pytest.mark.parametrize("alone", ALONE, ids=json.dumps)
def test_words_beside_a_reference_that_change_the_type_are_refused_by_name(alone, other):
    word, reference = next(word for word in other if word != "type"), next(iter(alone))
    message = re.escape(f"it has '{word}' beside '{reference}'")
    with pytest.raises(SchemaError, match=f"the value of .* {message}"):
        read_beside_base({**alone, **other})


def test_two_lists_of_schemas_are_refused_by_name():
    with pytest.raises(SchemaError, match="it has 'anyOf' beside 'allOf'"):
        read_beside_base({"allOf": [REF], "anyOf": [of(extra={"type": "string"})]})


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07"])
def test_older_drafts_ignore_the_words_beside_a_reference(draft):
    dialect = f"http://json-schema.org/{draft}/schema#"
    found = read_beside_base({**REF, **OTHERS[0], "required": ["name"], "$schema": dialect}).type
    assert [(each.name, each.nullable) for each in found] == [("id", False), ("name", True)]


REFUSED = [
    ({}, "the field f of the JSON Schema cannot be a column: any value is allowed"),
    (True, "any value is allowed"),
    ({"type": ["integer", "string"]}, r"it has several types \(integer, string\)"),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "'oneOf' has several schemas"),
    ({"type": "object"}, "it has no 'properties', and any fields are allowed"),
    ({"type": "array"}, r"its elements have no single type \('items'\)"),
    ({"type": "array", "items": [{"type": "integer"}]}, "its elements have no single type"),
    ({"type": "text"}, "'text' is no type of JSON"),
    ({"$ref": "#"}, "it contains itself by the reference '#'"),
    ({"$ref": "#/$defs/node"}, r"the field f\.next .* it contains itself by the reference"),
    ({"$ref": "#/$defs/none"}, "the reference '#/\\$defs/none' leads to no schema"),
    ({"$ref": "none.json"}, "the reference 'none.json' leads to no schema"),
    ({"type": "array", "items": {}}, r"the field f\.\[\] of"),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED)
def test_a_type_that_is_no_column_is_named(schema, message):
    node = of(next={"$ref": "#/$defs/node"})
    with pytest.raises(SchemaError, match=message):
        parse_json_schema(json.dumps({**of(f=schema), "$defs": {"node": node}}))


def test_a_text_that_is_no_json_is_named():
    with pytest.raises(SchemaError, match="not a valid JSON Schema"):
        parse_json_schema("{")


def decode(schema, *values, names=None):
    reader = JsonSchema(RegisteredSchema(1, "json-schema", json.dumps(schema)))
    fields = [each.name for each in reader.fields] if names is None else names
    decoder = reader.make_decoder(reader.registered, fields)
    framed = [b"\0\0\0\0\1" + each for each in values]
    ends = np.cumsum([len(each) for each in framed])
    starts = ends - [len(each) - 5 for each in framed]
    return decoder.decode(np.frombuffer(b"".join(framed), np.uint8), starts, ends)


def test_records_are_decoded():
    schema = {
        **of(
            id={"type": "integer"},
            at={"type": "string", "format": "date-time"},
            more={"type": "object", "additionalProperties": {"type": "number"}},
        ),
        "required": ["id"],
    }
    good = b'{"id": 1, "at": "2026-01-02T03:04:05.6Z", "more": {"x": 1.5}, "other": [1]}'
    found = decode(schema, good, b'{"id": "x"}', b'{"id": 2}', b"{")
    assert sorted(found.errors) == [1, 3]
    assert found.errors[1] == ("it has a string in field 'id', which cannot be read as BIGINT")
    assert found.errors[3].startswith("it is not valid JSON")
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 600_000, dt.timezone.utc)
    rows = found.values.to_pylist()
    assert rows[0] == {"id": 1, "at": at, "more": [("x", 1.5)]}
    assert rows[2] == {"id": 2, "at": None, "more": None}
    assert decode(schema, good, names=["at"]).values.to_pylist() == [{"at": at}]


def test_values_that_are_no_objects():
    """Text after a value, which would be another field of an object, makes it bad."""
    found = decode({"type": "integer"}, b"7", b" 8 ", b'9, "more": 1', b'9, "value": 1', b'"x"')
    assert sorted(found.errors) == [2, 3, 4]
    assert found.values.to_pylist()[:2] == [7, 8]
    found = decode({"type": "array", "items": {"type": "string"}}, b'["a", "b"]', b"[1]")
    assert (found.values[0].as_py(), sorted(found.errors)) == (["a", "b"], [1])
