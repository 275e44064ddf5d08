"""Protobuf values beside a real registry and the records of Confluent's own serializer."""

import uuid

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaReference
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from registries import registry  # noqa: F401  a fixture

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.protobuf.protobuf_files import (
    compile_proto,
    find_message,
    message_class,
)
from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.registered_keys import key_field
from krishiv_spark.sources.kafka.registered_values import RegisteredValues, find_schema

pytestmark = pytest.mark.long  # starts a registry

ORDER = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  optional string name = 2;
  map<string, int32> counts = 3;
  message Line { string sku = 1; }
  repeated Line lines = 4;
  google.protobuf.Timestamp at = 5;
}
message Refund { int64 id = 1; }
"""
NEW_ORDER = ORDER.replace("repeated Line", "double price = 9;\n  repeated Line")


@pytest.fixture
def topic():
    return f"orders-{uuid.uuid4().hex[:8]}"


def serialize(registry, topic, text, name, *values):  # noqa: F811
    """Values as Confluent's serializer writes them; it registers the schema, in Base64."""
    descriptor = find_message(compile_proto(RegisteredSchema(1, "protobuf", text)), name)
    make = message_class(descriptor)
    write = ProtobufSerializer(make, registry.client, {})
    context = SerializationContext(topic, MessageField.VALUE)
    return [write(make(**each), context) for each in values]


def options(registry, topic, **more):  # noqa: F811
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": topic}
    given |= {"valueFormat": "protobuf", "registry.url": registry.url, **more}
    return KafkaSourceOptions.parse(given, "krishiv-kafka")


def reader_of(registry, topic, **more):  # noqa: F811
    found = options(registry, topic, **more)
    schema = find_schema(found)
    return RegisteredValues(found.registry, schema, schema.fields)


def test_records_of_several_schemas_and_messages(registry, topic):  # noqa: F811
    old = serialize(registry, topic, ORDER, "Order", {"id": 1, "counts": {"a": 2}})
    new = serialize(registry, topic, NEW_ORDER, "Order", {"id": 3, "name": "x", "price": 2.5})
    other = serialize(registry, topic, NEW_ORDER, "Refund", {"id": 4})
    line = serialize(registry, topic, NEW_ORDER, "Order.Line", {"sku": "s"})
    reader = reader_of(registry, topic)
    found = reader.parse(pa.array([old[0], new[0], None, other[0], line[0]], pa.binary()))
    assert list(found.bad) == [3, 4]
    assert found.objects.to_pylist() == [
        {"id": 1, "name": None, "counts": [("a", 2)], "price": 0.0, "lines": [], "at": None},
        {"id": 3, "name": "x", "counts": [], "price": 2.5, "lines": [], "at": None},
        None,
        None,
        None,
    ]
    assert "is another message than shop.Order" in reader.explain(other[0])
    refunds = reader_of(registry, topic, **{"registry.message": "Refund"})
    assert refunds.parse(pa.array(other, pa.binary())).objects.to_pylist() == [{"id": 4}]
    lines = reader_of(registry, topic, **{"registry.message": "shop.Order.Line"})
    assert lines.parse(pa.array(line, pa.binary())).objects.to_pylist() == [{"sku": "s"}]


def test_a_registered_text_reads_the_same_records(registry, topic):  # noqa: F811
    """Clients in Java register a text, and the one in Python an encoded file."""
    value = serialize(registry, topic, ORDER, "Order.Line", {"sku": "s"})[0]
    schema_id = registry.register(f"{topic}-text", ORDER, "PROTOBUF")
    assert value[1:5] != schema_id.to_bytes(4, "big")
    by_java = b"\0" + schema_id.to_bytes(4, "big") + b"\x04\0\0" + value[8:]
    chosen = {"registry.message": "Order.Line", "registry.subject": f"{topic}-text"}
    reader = reader_of(registry, topic, **chosen)
    found = reader.parse(pa.array([value, by_java], pa.binary()))
    assert found.objects.to_pylist() == [{"sku": "s"}, {"sku": "s"}]


def test_a_schema_that_imports_another(registry, topic):  # noqa: F811
    registry.register(
        f"{topic}-money", 'syntax = "proto3"; message Money { int64 units = 1; }', "PROTOBUF"
    )
    text = 'syntax = "proto3"; import "money.proto"; message Sale { Money total = 1; }'
    reference = SchemaReference("money.proto", f"{topic}-money", 1)
    registry.register(f"{topic}-value", text, "PROTOBUF", references=[reference])
    schema = find_schema(options(registry, topic))
    assert schema.fields[0].type == pa.struct([("units", pa.int64())])
    value = b"\0" + schema.registered.id.to_bytes(4, "big") + b"\0\x0a\x02\x08\x07"
    reader = reader_of(registry, topic)
    found = reader.parse(pa.array([value], pa.binary())).objects
    assert found.to_pylist() == [{"total": {"units": 7}}]


def test_keys_have_a_struct(registry, topic):  # noqa: F811
    registry.register(f"{topic}-key", ORDER, "PROTOBUF")
    given = {"keyFormat": "protobuf", "valueFormat": "raw", "registry.key.message": "Refund"}
    found = key_field(find_schema(options(registry, topic, **given), "key"))
    assert found.type == pa.struct([("id", pa.int64())])


BAD = [
    (b"", "does not begin as a serializer of a schema registry writes it"),
    (b"\0%s", "(its message number is in the bytes of which there are none; its schema has"),
    (b"\0%s\x7f", "it is another message than shop.Order"),
    (b"\0%s\0\x08", "is not valid for its schema: at field id: it ends too early"),
]


@pytest.mark.parametrize(("value", "reason"), BAD)
def test_a_bad_value_says_why_and_spoils_no_other(registry, topic, value, reason):  # noqa: F811
    good = serialize(registry, topic, ORDER, "Order", {"id": 1})[0]
    value = value.replace(b"%s", good[1:5])
    reader = reader_of(registry, topic)
    found = reader.parse(pa.array([good, value, good], pa.binary()))
    assert list(found.bad) == [1]
    assert [each and each["id"] for each in found.objects.to_pylist()] == [1, None, 1]
    assert reason in reader.explain(value)


def test_a_writer_whose_field_has_another_type_is_a_bad_value(registry, topic):  # noqa: F811
    registry.register(f"{topic}-value", ORDER, "PROTOBUF")
    other = serialize(
        registry, f"{topic}-other", ORDER.replace("int64 id", "string id"), "Order", {"id": "x"}
    )
    reader = reader_of(registry, topic)
    assert list(reader.parse(pa.array(other, pa.binary())).bad) == [0]
    assert (
        "field id (number 1) is string in the writer's schema, which cannot be read as int64"
        in reader.explain(other[0])
    )


REFUSED = [
    ("message Node { Node next = 1; }", "Node contains itself (Node > Node)"),
    ("enum E { A = 0; }", "the Protobuf schema has no message"),
    ("message Empty {}", "the Protobuf message Empty has no field"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_schemas_without_columns_are_refused_by_name(registry, topic, text, reason):  # noqa: F811
    registry.register(f"{topic}-value", f'syntax = "proto3";\n{text}', "PROTOBUF")
    with pytest.raises(SchemaError) as caught:
        _ = find_schema(options(registry, topic)).fields
    assert reason in str(caught.value)


def test_a_message_that_does_not_exist_is_named(registry, topic):  # noqa: F811
    registry.register(f"{topic}-value", ORDER, "PROTOBUF")
    with pytest.raises(SchemaError, match=r"no message 'shop\.Ordr'; did you mean 'shop\.Order'"):
        _ = find_schema(options(registry, topic, **{"registry.message": "shop.Ordr"})).fields
