"""``krishiv-kafka`` with the forms of a schema registry, under the kit.

A real registry and Confluent's serializers, or readers that do not use the package, are on the
other side. Rows that are added have two schemas in turn, so that batches have records of both.
"""

import io
import json
import uuid
from dataclasses import replace
from itertools import count

import fastavro
import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka_sinks import into_topic
from kafka_topics import Onlooker, make_topic
from planted_bugs import find_failure
from registries import registry  # noqa: F401  a fixture
from timed_rows import REQUESTS, TIMED, timed_row

from krishiv_spark.formats import KafkaDataSource
from krishiv_spark.kafka.schemas.protobuf.protobuf_files import (
    compile_proto,
    find_message,
    message_class,
)
from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema
from krishiv_spark.sources.kafka.registered_values import RegisteredValues
from krishiv_spark.testing import (
    FILES,
    ROW_SCHEMA,
    Rule,
    SinkConformance,
    SourceConformance,
    SourceUnderTest,
)
from krishiv_spark.testing.subjects import default_row

pytestmark = pytest.mark.long  # the same source and sink as without a form, and a registry

OF_REGISTRY = {
    f"confluent_kafka.schema_registry:SchemaRegistryClient.{name}": ConnectionError
    for name in ("get_schema", "get_version", "register_schema", "lookup_schema")
}
"""Requests to the registry: an error is tried again."""

ID, TEXT = {"name": "id", "type": "long"}, {"name": "text", "type": ["null", "string"]}
MORE = {"name": "more", "type": "int", "default": 0}
AVRO = [
    {"type": "record", "name": "Row", "fields": fields} for fields in ([ID, TEXT], [TEXT, MORE, ID])
]
NULLABLE = {"type": ["string", "null"]}
OBJECTS = [
    {
        "type": "object",
        "title": "Row",
        "properties": {"id": {"type": "integer"}, "text": NULLABLE, **more},
    }
    for more in ({}, {"more": {"type": "integer"}})
]
PROTO = 'syntax = "proto3";\nmessage Row { int64 id = 1; optional string text = 2;%s }\n'
PROTOS = [PROTO % more for more in ("", " int32 more = 3;")]


def keep_cases(suite):
    """Leave out the cases that do not depend on the form: Avro runs all of them."""
    for name in dir(suite):
        if name.startswith("test_") and name not in CASES:
            setattr(suite, name, None)
    return suite


CASES = {
    "test_a_replay_has_the_same_rows",
    "test_a_restart_at_each_point",
    "test_death_at_any_call",
    "test_every_row_is_read_once",
    "test_random_sequences",
    "test_values_are_kept",
}


class AvroForm:
    """Records of Avro, by Confluent's serializer and fastavro."""

    form = "avro"

    def serialize(self, registry, topic, number, rows):  # noqa: F811
        return registry.serialize(topic, AVRO[number], *({"more": 1, **row} for row in rows))

    def parse(self, registry, value):  # noqa: F811
        schema = registry.client.get_schema(int.from_bytes(value[1:5], "big")).schema_str
        return fastavro.schemaless_reader(io.BytesIO(value[5:]), json.loads(schema))


class JsonForm:
    """Objects with a schema, by Confluent's serializer and Python's parser."""

    form = "json-schema"

    def serialize(self, registry, topic, number, rows):  # noqa: F811
        return registry.serialize_json(topic, OBJECTS[number], *rows)

    def parse(self, registry, value):  # noqa: F811
        del registry
        return {"text": None, **json.loads(value[5:])}


class ProtobufForm:
    """Messages, by Confluent's serializer and Google's parser."""

    form = "protobuf"

    def serialize(self, registry, topic, number, rows):  # noqa: F811
        make = _message(PROTOS[number])
        write = ProtobufSerializer(make, registry.client, {})
        context = SerializationContext(topic, MessageField.VALUE)
        given = ({name: each for name, each in row.items() if each is not None} for row in rows)
        return [write(make(**row), context) for row in given]

    def parse(self, registry, value):  # noqa: F811
        text = registry.client.get_schema(int.from_bytes(value[1:5], "big")).schema_str
        found = _message(text).FromString(value[6:])
        return {"id": found.id, "text": found.text if found.HasField("text") else None}


def _message(text):
    return message_class(find_message(compile_proto(RegisteredSchema(0, "protobuf", text)), None))


class RegisteredSource(SourceConformance):
    random_sequences = 5
    test_the_schema_is_that_of_the_rows = None  # the newest version has a field that rows lack

    @pytest.fixture(autouse=True)
    def _environment(self, cluster, producer, registry):  # noqa: F811
        self.cluster, self.producer, self.registry = cluster, producer, registry

    def source(self, folder):
        del folder
        topic, turns = f"t-{uuid.uuid4().hex}", count()
        make_topic(self.cluster.bootstrap, topic)
        for number in (0, 1):  # registers both, so that no new version appears later
            self.serialize(self.registry, topic, number, [{"id": 0, "text": ""}])

        def add(rows):
            named = [dict(zip(("id", "text"), row[:2], strict=True)) for row in rows]
            values = self.serialize(self.registry, topic, next(turns) % 2, named)
            for (*_, at), value in zip(rows, values, strict=True):
                self.producer.send(topic, value, timestamp_ms=int(at.timestamp() * 1000))
            self.producer.flush()

        return SourceUnderTest(
            source=KafkaDataSource,
            options={
                "kafka.bootstrap.servers": self.cluster.bootstrap,
                "subscribe": topic,
                "startingOffsets": "earliest",
                "valueFormat": self.form,
                "registry.url": self.registry.url,
                "maxFetchBytes": "1m",
            },
            add=add,
            schema=TIMED,
            row=timed_row,
            any_value=("text",),
            event_time="timestamp",
            latest={"startingOffsets": "latest"},
            two_rows={"maxOffsetsPerTrigger": "2"},
            small_tasks={"maxRecordsPerPartition": "1"},
            outside={**FILES, **REQUESTS, **OF_REGISTRY},
        )


class TestAvroSource(AvroForm, RegisteredSource):
    pass


@keep_cases
class TestJsonSchemaSource(JsonForm, RegisteredSource):
    pass


@keep_cases
class TestProtobufSource(ProtobufForm, RegisteredSource):
    pass


def test_records_that_are_read_with_the_schema_of_others_are_found(
    cluster,
    producer,
    registry,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    """The planted bug: a task reads all records with the first writer's schema that it meets."""
    find = RegisteredValues._decoder

    def find_first(values, schema_id):
        return next(iter(values._decoders.values()), None) or find(values, schema_id)

    monkeypatch.setattr(RegisteredValues, "_decoder", find_first)
    suite = TestAvroSource()
    suite.cluster, suite.producer, suite.registry = cluster, producer, registry
    broken = find_failure(suite, "every_row_is_read_once", tmp_path, None)
    assert broken.rule in {Rule.VALUES_KEPT, Rule.EVERY_ROW_ONCE, Rule.WORKS}, str(broken)


class RegisteredSink(SinkConformance):
    random_sequences = 5

    @pytest.fixture(autouse=True)
    def _environment(self, cluster, onlooker, registry):  # noqa: F811
        self.cluster, self.onlooker, self.registry = cluster, onlooker, registry

    def sink(self, folder):
        del folder
        found = into_topic(self.cluster.bootstrap, self.onlooker.committed, self.onlooker.waiting)
        own = {"valueFormat": self.form, "registry.url": self.registry.url}

        def oracle():
            for each in self.onlooker.committed(found.options["topic"]):
                row = self.parse(self.registry, each.value)
                yield row["id"], row["text"]

        return replace(
            found,
            options={**found.options, **own},
            schema=ROW_SCHEMA,
            row=default_row,
            any_value=("text",),
            oracle=oracle,
            outside={**found.outside, **OF_REGISTRY},
        )


@pytest.fixture(scope="class")
def onlooker(cluster):
    onlooker = Onlooker(cluster.bootstrap)
    yield onlooker
    onlooker.close()


class TestAvroSink(AvroForm, RegisteredSink):
    pass


@keep_cases
class TestJsonSchemaSink(JsonForm, RegisteredSink):
    pass


@keep_cases
class TestProtobufSink(ProtobufForm, RegisteredSink):
    pass
