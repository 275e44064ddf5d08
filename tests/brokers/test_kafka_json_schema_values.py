"""JSON Schema values beside a real registry and the records of Confluent's own serializer."""

import uuid

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaReference
from confluent_kafka.serialization import MessageField
from registries import registry  # noqa: F401  a fixture

from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.registered_keys import RegisteredKeys, key_field
from krishiv_spark.sources.kafka.registered_values import RegisteredValues, find_schema
from krishiv_spark.sources.kafka.row_schema import KafkaRowSchema

pytestmark = pytest.mark.long  # starts a registry

DRAFT = {"$schema": "http://json-schema.org/draft-07/schema#"}  # Apicurio needs it
ORDER = {
    **DRAFT,
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["id"],
}
TEXT = {**DRAFT, "type": "string"}
NEW_ORDER = {**ORDER, "properties": {**ORDER["properties"], "price": {"type": "number"}}}


@pytest.fixture
def topic():
    return f"orders-{uuid.uuid4().hex[:8]}"


def options(registry, topic, **more):  # noqa: F811
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": topic}
    given |= {"valueFormat": "json-schema", "registry.url": registry.url, **more}
    return KafkaSourceOptions.parse(given, "krishiv-kafka")


def reader_of(registry, topic, **more):  # noqa: F811
    found = options(registry, topic, **more)
    schema = find_schema(found)
    return RegisteredValues(found.registry, schema, schema.fields)


def test_records_of_several_schemas_are_read_with_the_readers(registry, topic):  # noqa: F811
    old = registry.serialize_json(topic, ORDER, {"id": 1, "name": "x"})
    new = registry.serialize_json(topic, NEW_ORDER, {"id": 2, "price": 2.5})
    found = reader_of(registry, topic).parse(pa.array([old[0], None, new[0]], pa.binary()))
    assert list(found.bad) == []
    assert found.objects.to_pylist() == [
        {"id": 1, "name": "x", "price": None},
        None,
        {"id": 2, "name": None, "price": 2.5},
    ]
    older = reader_of(registry, topic, **{"registry.version": "1"})
    assert older.parse(pa.array(new, pa.binary())).objects.to_pylist() == [{"id": 2, "name": None}]


def test_keys_that_are_texts(registry, topic):  # noqa: F811
    keys = registry.serialize_json(topic, TEXT, "a", "b", part=MessageField.KEY)
    found = options(registry, topic, keyFormat="json-schema", valueFormat="raw")
    schema = find_schema(found, "key")
    assert key_field(schema) == pa.field("key", pa.string())
    decoder = RegisteredKeys(found.registry, schema, pa.string(), "fail")
    rows = pa.RecordBatch.from_pydict({"key": pa.array([*keys, None], pa.binary())})
    assert decoder.decode(rows).column("key").to_pylist() == ["a", "b", None]


def test_a_schema_that_refers_to_another(registry, topic):  # noqa: F811
    registry.register(f"{topic}-site", TEXT, "JSON")
    outer = {**ORDER, "properties": {"site": {"$ref": "site.json"}}, "required": []}
    reference = SchemaReference("site.json", f"{topic}-site", 1)
    registry.register(f"{topic}-value", outer, "JSON", references=[reference])
    assert find_schema(options(registry, topic)).fields == (pa.field("site", pa.string()),)


BAD = [
    (b'{"id": 1}', "does not begin as a serializer of a schema registry writes it"),
    (b"\0%s{", "is not valid for its schema: it is not valid JSON"),
    (b'\0%s{"id": "x"}', "it has a string in field 'id', which cannot be read as BIGINT"),
]


@pytest.mark.parametrize(("value", "reason"), BAD)
def test_a_bad_value_says_why_and_spoils_no_other(registry, topic, value, reason):  # noqa: F811
    good = registry.serialize_json(topic, ORDER, {"id": 1})[0]
    value = value.replace(b"%s", good[1:5])
    reader = reader_of(registry, topic)
    found = reader.parse(pa.array([good, value, good], pa.binary()))
    assert list(found.bad) == [1]
    assert [each and each["id"] for each in found.objects.to_pylist()] == [1, None, 1]
    assert reason in reader.explain(value)


def test_a_schema_whose_values_are_no_columns_is_refused(registry, topic):  # noqa: F811
    registry.register(f"{topic}-value", {**DRAFT, "type": "object"}, "JSON")
    with pytest.raises(SchemaError, match="has no 'properties', and any fields are allowed"):
        _ = find_schema(options(registry, topic)).fields


def rows_of(registry, topic, values, **more):  # noqa: F811
    """The rows of values, as a task of the source makes them."""
    found = options(registry, topic, **more)
    rows = KafkaRowSchema.from_options(found, find_schema(found))
    count = len(values)
    columns = {
        "value": pa.array(values, pa.binary()),
        "topic": pa.array([topic] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
    }
    return pa.Table.from_batches(rows.convert(pa.RecordBatch.from_pydict(columns)))


def test_time_zones_units_and_unknown_fields_are_those_of_json(registry, topic):  # noqa: F811
    at = {"type": "string", "format": "date-time"}
    schema = {**DRAFT, "title": "T", "type": "object", "properties": {"at": at}}
    header = b"\0" + registry.register(f"{topic}-value", schema, "JSON").to_bytes(4, "big")
    local = [header + b'{"at": "2024-01-31T10:00:00"}']
    berlin = rows_of(registry, topic, local, timeZone="Europe/Berlin")
    assert berlin["at"].cast(pa.int64()).to_pylist() == [1706691600000000]
    with pytest.raises(SchemaError):
        rows_of(registry, topic, local)
    numbers = [header + b'{"at": 1700000000000, "more": [2]}', header + b'{"at": 1}']
    kept = rows_of(registry, topic, numbers, epochUnit="ms", unknownFields="keep")
    assert kept["at"].cast(pa.int64()).to_pylist() == [1700000000000000, 1000]
    assert kept["_unknown"].to_pylist() == ['{"more": [2]}', None]
    with pytest.raises(SchemaError, match="fields that the schema does not have: 'more'"):
        rows_of(registry, topic, numbers, epochUnit="ms", unknownFields="fail")
    with pytest.raises(OptionError, match="option 'epochUnit' names 'att'"):
        rows_of(registry, topic, numbers, epochUnit='{"att": "ms"}')
