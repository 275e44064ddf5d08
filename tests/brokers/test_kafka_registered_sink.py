"""Rows as Protobuf and JSON Schema, with a real broker and registry, read by foreign clients."""

import uuid

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka_topics import Onlooker, make_topic
from registries import registry  # noqa: F401  a fixture

from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.schemas.protobuf.protobuf_files import (
    compile_proto,
    find_message,
    message_class,
)
from krishiv_spark.kafka.schemas.registry import open_registry
from krishiv_spark.sinks.base import OutputMode, Task
from krishiv_spark.sinks.kafka import registered_rows
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.writer import KafkaAtLeastOnceWriter
from krishiv_spark.sources.kafka.registered_values import RegisteredValues, make_reader_schema

pytestmark = pytest.mark.long  # starts a registry and a broker

FORMS = pytest.mark.parametrize("form", ["protobuf", "json-schema"])
KEY = pa.field("key", pa.struct([("site", pa.string())]))
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("note", pa.string()),
        pa.field("sizes", pa.list_(pa.field("element", pa.float64(), nullable=False))),
    ]
)
ROWS = [{"id": n, "note": None, "sizes": [0.5, n]} for n in range(3)]


@pytest.fixture(scope="module")
def cluster():
    with open_cluster() as found:
        yield found


@pytest.fixture(autouse=True)
def new_process():
    """Each test starts with what a new process knows."""
    open_registry.cache_clear()
    registered_rows._find_version.cache_clear()


class Bench:
    def __init__(self, cluster, registry, form):  # noqa: F811
        self.bootstrap, self.registry, self.form = cluster.bootstrap, registry, form
        self.topic = f"t-{uuid.uuid4().hex}"
        make_topic(self.bootstrap, self.topic, partitions=1)

    def writer(self, schema=SCHEMA, **given):
        usual = {
            "kafka.bootstrap.servers": self.bootstrap,
            "topic": self.topic,
            "valueFormat": self.form,
            "registry.url": self.registry.url,
        }
        options = KafkaSinkOptions.parse({**usual, **given}, "krishiv-kafka")
        return KafkaAtLeastOnceWriter(options, schema, OutputMode.APPEND)

    def write(self, rows=ROWS, schema=SCHEMA, **given):
        """As a planner and a task do."""
        one = self.writer(schema, **given)
        one.check()
        plan = one.plan(None)
        batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        one.stage(iter([batch]), Task("query", 0, 0, 0), plan)
        return plan

    def records(self):
        onlooker = Onlooker(self.bootstrap)
        try:
            return onlooker.records(self.topic)
        finally:
            onlooker.close()

    def read_by_client(self, registered, field):
        """Return what Confluent's deserializer reads, and of Protobuf what Google's parser does.

        Confluent's reads Protobuf only with its own registry, which returns schemas in Base64.
        """
        data = [each.key if field == MessageField.KEY else each.value for each in self.records()]
        if self.form == "json-schema":
            read = JSONDeserializer(None, schema_registry_client=self.registry.client)
            context = SerializationContext(self.topic, field)
            return [read(each, context) for each in data]
        kind = message_class(find_message(compile_proto(registered), None))
        header = b"\0" + registered.id.to_bytes(4, "big") + b"\0"
        assert all(each.startswith(header) for each in data)
        return [kind.FromString(each.removeprefix(header)) for each in data]


@pytest.fixture
def bench(cluster, registry, form):  # noqa: F811
    return Bench(cluster, registry, form)


def to_plain(value):
    """The fields of a message or an object; a JSON object leaves out null."""
    if isinstance(value, dict):
        return {"note": None, **value}
    found = {each.name: getattr(value, each.name) for each in value.DESCRIPTOR.fields}
    note = value.note if value.HasField("note") else None
    return {**found, "sizes": list(value.sizes), "note": note}


@FORMS
def test_foreign_clients_and_our_source_read_what_was_written(bench, form):
    rows = [{**row, "key": {"site": "x"}} for row in ROWS]
    plan = bench.write(rows, SCHEMA.append(KEY), keyFormat=form)
    values = bench.read_by_client(plan.schemas["value"], MessageField.VALUE)
    assert [to_plain(each) for each in values] == ROWS
    keys = bench.read_by_client(plan.schemas["key"], MessageField.KEY)
    assert [each["site"] if isinstance(each, dict) else each.site for each in keys] == ["x"] * 3
    writer = bench.writer()
    schema = make_reader_schema(plan.schemas["value"], writer.options.registry.registry, "value")
    reader = RegisteredValues(writer.options.registry.registry, schema, schema.fields)
    ours = reader.parse(pa.array([each.value for each in bench.records()], pa.binary()))
    assert ours.objects.to_pylist() == ROWS


@FORMS
def test_a_new_column_is_a_new_version_of_which_old_records_are_read(bench):
    first = bench.write()
    open_registry.cache_clear()
    wider = SCHEMA.insert(0, pa.field("added", pa.string()))
    second = bench.write([{"added": "new", **ROWS[0]}], wider)
    assert second.schemas["value"].id != first.schemas["value"].id
    writer = bench.writer()
    schema = make_reader_schema(second.schemas["value"], writer.options.registry.registry, "value")
    reader = RegisteredValues(writer.options.registry.registry, schema, schema.fields)
    found = reader.parse(pa.array([each.value for each in bench.records()], pa.binary()))
    assert [each["added"] for each in found.objects.to_pylist()] == [None] * 3 + ["new"]
    assert [each["id"] for each in found.objects.to_pylist()] == [0, 1, 2, 0]


@FORMS
def test_the_same_columns_register_nothing_new(bench):
    first = bench.write()
    open_registry.cache_clear()
    assert bench.write().schemas == first.schemas
    assert len(bench.registry.client.get_versions(f"{bench.topic}-value")) == 1
    assert bench.write(**{"registry.version": "1"}).schemas["value"].id == first.schemas["value"].id
    off = {"registry.auto.register": "false"}
    assert bench.write(**off).schemas["value"].id == first.schemas["value"].id
    with pytest.raises(SchemaError, match=r"does not have the schema of the rows"):
        bench.write(ROWS, SCHEMA.append(pa.field("added", pa.string())), **off)


@pytest.mark.parametrize("form", ["protobuf"])
def test_a_schema_and_message_of_the_user(bench):
    text = 'syntax = "proto3"; package shop; message Other {} message Order { sint64 id = 5; }'
    ids = pa.schema([SCHEMA.field("id")])
    given = {"valueSchema": text, "registry.message": "Order"}
    given |= {"registry.subject.name.strategy": "record"}
    plan = bench.write([{"id": -1}], ids, **given)
    assert bench.records()[0].value[5:] == b"\x02\x02\x28\x01"
    assert plan.schemas["value"].id
    assert "shop.Order" in bench.registry.client.get_subjects()
    with pytest.raises(SchemaError, match=r"column 'ids' is no field .* shop\.Order; did you mean"):
        bench.write([], pa.schema([pa.field("ids", pa.int64())]), **given)


@FORMS
def test_another_form_of_the_subject_is_refused(bench, form):
    bench.write()
    other = "avro" if form == "protobuf" else "protobuf"
    with pytest.raises(SchemaError, match=f"has the form {form}, and 'valueFormat' is '{other}'"):
        bench.writer(valueFormat=other, **{"registry.version": "latest"}).check()
    with pytest.raises(OptionError, match=r"'registry\.message' needs .* 'protobuf'"):
        bench.writer(valueFormat="avro", **{"registry.message": "X"})
