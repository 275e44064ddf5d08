"""Records that name their schema in a header, or by eight bytes, beside a real registry."""

import json
import urllib.request
import uuid
from io import BytesIO

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from guid_registry import running_guid_registry
from registries import registry  # noqa: F401  a fixture

from krishiv_spark.kafka.schemas.protobuf.protobuf_files import (
    compile_proto,
    find_message,
    message_class,
)
from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.registered_values import find_schema
from krishiv_spark.sources.kafka.row_schema import SCHEMA, KafkaRowSchema

pytestmark = pytest.mark.long  # starts a registry

ID = {"name": "id", "type": "long"}
NAME = {"name": "name", "type": ["null", "string"], "default": None}
PROTO = """syntax = "proto3";
message Other { int32 n = 1; }
message Order { int64 id = 1; string name = 2; }
"""


def record(*fields):
    return json.dumps({"type": "record", "name": "Order", "fields": [*fields]})


@pytest.fixture(scope="module")
def with_guids(registry):  # noqa: F811
    with running_guid_registry(registry.url) as url:
        yield url


@pytest.fixture
def topic():
    return f"orders-{uuid.uuid4().hex[:8]}"


def rows_of(url, topic, values, headers=None, keys=None, **options):
    """The rows of records, as a task of the source makes them."""
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": topic, "registry.url": url}
    given |= {"valueFormat": "avro", **options}
    found = KafkaSourceOptions.parse(given, "krishiv-kafka")
    schemas = [
        find_schema(found, part) if part in found.registered_parts else None
        for part in ("value", "key")
    ]
    made = KafkaRowSchema.from_options(found, *schemas)
    count = len(values)
    columns = {
        "key": keys or [None] * count,
        "value": values,
        "topic": [topic] * count,
        "partition": [0] * count,
        "offset": [*range(count)],
        "headers": [
            None if some is None else [{"key": key, "value": value} for key, value in some]
            for some in headers or [None] * count
        ],
    }
    fields = [each for each in SCHEMA if each.name in columns]
    arrays = [pa.array(columns[each.name], each.type) for each in fields]
    batch = pa.RecordBatch.from_arrays(arrays, names=[each.name for each in fields])
    return [row for part in made.convert(batch) for row in part.to_pylist()]


def serialize(url, topic, schema, value, part=MessageField.VALUE, **conf):
    """A value and its headers, as Confluent's serializer writes them."""
    headers = [("other", b"1")]
    write = AvroSerializer(SchemaRegistryClient({"url": url}), schema, conf=conf or None)
    return write(value, SerializationContext(topic, part, headers)), headers


BY_HEADER = {"schema.id.serializer": header_schema_id_serializer}
HEADERS = {"registry.wire.format": "headers"}


def test_headers_with_guids_and_bytes_with_ids_in_one_batch(with_guids, topic):
    made = [
        serialize(with_guids, topic, record(ID), {"id": 1}, **BY_HEADER),
        serialize(with_guids, topic, record(ID), {"id": 2}),
        serialize(with_guids, topic, record(ID, NAME), {"id": 3, "name": "x"}, **BY_HEADER),
        (None, []),
        serialize(with_guids, topic, record(ID), {"id": 4}, **BY_HEADER),
    ]
    values, headers = zip(*made, strict=True)
    assert not values[0].startswith(b"\0")
    assert rows_of(with_guids, topic, values, headers, nullValues="keep", **HEADERS) == [
        {"id": 1, "name": None},
        {"id": 2, "name": None},
        {"id": 3, "name": "x"},
        {"id": None, "name": None},
        {"id": 4, "name": None},
    ]
    alone = rows_of(with_guids, topic, values[1:2], badRecords="fail")
    assert alone == [{"id": 2, "name": None}]


def test_keys_and_values_have_headers_of_their_own(with_guids, topic):
    value, of_value = serialize(with_guids, topic, record(ID), {"id": 1}, **BY_HEADER)
    key, of_key = serialize(
        with_guids, topic, record(NAME), {"name": "x"}, MessageField.KEY, **BY_HEADER
    )
    headers = [[*of_key, *of_value]]
    more = {"keyFormat": "avro", "columns": "key, id", **HEADERS}
    found = rows_of(with_guids, topic, [value], headers, [key], **more)
    assert found == [{"key": {"name": "x"}, "id": 1}]


def test_the_header_of_protobuf_names_the_message(with_guids, topic):
    descriptor = find_message(compile_proto(RegisteredSchema(1, "protobuf", PROTO)), "Order")
    message = message_class(descriptor)
    conf = {"use.deprecated.format": False, **BY_HEADER}
    headers = []
    write = ProtobufSerializer(message, SchemaRegistryClient({"url": with_guids}), conf)
    context = SerializationContext(topic, MessageField.VALUE, headers)
    value = write(message(id=7, name="x"), context)
    assert value == message(id=7, name="x").SerializeToString()
    options = {"valueFormat": "protobuf", "registry.message": "Order", **HEADERS}
    assert rows_of(with_guids, topic, [value], [headers], **options) == [{"id": 7, "name": "x"}]


def test_faults_of_headers_are_bad_values_with_their_bytes(with_guids, topic):
    good, named = serialize(with_guids, topic, record(ID), {"id": 1}, **BY_HEADER)
    unknown = [("__value_schema_id", b"\1" + uuid.UUID(int=5).bytes)]
    short = [("__value_schema_id", b"\1abc")]
    headers = [named, unknown, short, None]
    more = {"badRecords": "divert", **HEADERS}
    found = rows_of(with_guids, topic, [good] * 4, headers, **more)
    assert [row["id"] for row in found] == [1, None, None, None]
    assert [row["_raw"] for row in found] == [None, good, good, good]
    reasons = [row["_error"] for row in found[1:]]
    assert f"does not have the schema with the GUID {uuid.UUID(int=5)}" in reasons[0]
    assert all("no header names it" in each for each in reasons[1:])


def test_ids_of_eight_bytes_are_those_of_apicurio(registry, topic):  # noqa: F811
    """The id of the content, as Apicurio's own interface returns it."""
    text = record(ID)
    core = registry.url.replace("/apis/ccompat/v7", "/apis/registry/v2")
    request = urllib.request.Request(
        f"{core}/groups/default/artifacts",
        text.encode(),
        {
            "Content-Type": "application/json",
            "X-Registry-ArtifactId": f"{topic}-value",
            "X-Registry-ArtifactType": "AVRO",
        },
    )
    with urllib.request.urlopen(request) as answer:
        number = json.loads(answer.read())["contentId"]
    out = BytesIO()
    fastavro.schemaless_writer(out, json.loads(text), {"id": 5})
    value = b"\0" + number.to_bytes(8, "big") + out.getvalue()
    apicurio = {"registry.wire.format": "apicurio"}
    assert rows_of(registry.url, topic, [value], **apicurio) == [{"id": 5}]
    found = rows_of(registry.url, topic, [b"\0\0\0\0\1"], badRecords="divert", **apicurio)
    assert "the schema's id in eight bytes" in found[0]["_error"]


def test_other_forms_are_refused_by_name():
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "valueFormat": "avro"}
    given |= {"registry.url": "http://127.0.0.1:1", "registry.wire.format": "header"}
    with pytest.raises(ValueError, match="did you mean 'headers'"):
        KafkaSourceOptions.parse(given, "krishiv-kafka")
