"""Rows as Avro records beside a real broker and registry, read by Confluent's deserializer."""

import io
import json
import uuid

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka_topics import Onlooker, make_topic
from registries import registry  # noqa: F401  a fixture

from krishiv_spark.errors import KrishivError, OptionError, SchemaError, SinkError
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.schemas.registry import RegistrySettings, SchemaRegistry, open_registry
from krishiv_spark.sinks.base import OutputMode, Ownership, Salvaged, Task
from krishiv_spark.sinks.kafka import registered_rows, writer
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.writer import KafkaAtLeastOnceWriter, KafkaPlan, KafkaWriter
from krishiv_spark.sources.kafka.registered_values import RegisteredValues, make_reader_schema

pytestmark = pytest.mark.long  # starts a registry and a broker

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("key", pa.struct([pa.field("site", pa.string())])),
        pa.field("partition", pa.int32()),
    ]
)
ROWS = [
    {"id": n, "price": None, "tags": ["a", None], "key": {"site": "x"}, "partition": 0}
    for n in range(3)
]


@pytest.fixture(scope="module")
def cluster():
    with open_cluster() as found:
        yield found


@pytest.fixture(scope="module")
def onlooker(cluster):
    onlooker = Onlooker(cluster.bootstrap)
    yield onlooker
    onlooker.close()


@pytest.fixture(autouse=True)
def new_process():
    """Each test starts with what a new process knows."""
    open_registry.cache_clear()
    registered_rows._find_version.cache_clear()


class Bench:
    def __init__(self, cluster, onlooker, registry, folder):  # noqa: F811
        self.onlooker, self.registry, self._folder = onlooker, registry, folder
        self._bootstrap = cluster.bootstrap
        self.topic = self.make_topic()

    def make_topic(self):
        name = f"t-{uuid.uuid4().hex}"
        make_topic(self._bootstrap, name, partitions=1)
        return name

    @property
    def subject(self):
        return f"{self.topic}-value"

    def options(self, **given):
        usual = {
            "kafka.bootstrap.servers": self._bootstrap,
            "topic": self.topic,
            "valueFormat": "avro",
            "registry.url": self.registry.url,
            "epochLog": str(self._folder),
        }
        merged = {**usual, **given}
        kept = {name: text for name, text in merged.items() if text is not None}
        return KafkaSinkOptions.parse(kept, "krishiv-kafka")

    def writer(self, schema=SCHEMA, kind=KafkaAtLeastOnceWriter, **given):
        return kind(self.options(**given), schema, OutputMode.APPEND)

    def write(self, rows=ROWS, schema=SCHEMA, **given):
        """As a planner and a task do."""
        one = self.writer(schema, **given)
        one.check()
        plan = one.plan(None)
        batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        one.stage(iter([batch]), Task("query", 0, 0, 0), plan)
        return plan

    def register(self, schema, subject=None):
        return self.registry.register(subject or self.subject, schema)

    def versions(self, subject=None):
        subjects = self.registry.client.get_subjects()
        name = subject or self.subject
        return self.registry.client.get_versions(name) if name in subjects else []

    def values(self):
        return [each.value for each in self.onlooker.records(self.topic)]


@pytest.fixture
def bench(cluster, onlooker, registry, tmp_path):  # noqa: F811
    return Bench(cluster, onlooker, registry, tmp_path)


def record(*fields, name="Order", **more):
    return {"type": "record", "name": name, "fields": [*fields], **more}


ID = {"name": "id", "type": "long"}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
ONLY_ID = pa.schema([pa.field("id", pa.int64(), nullable=False)])
IDS = [{"id": n} for n in range(3)]


# --- oracles


def test_confluents_deserializer_fastavro_and_our_source_read_what_was_written(bench):
    keys = {"keyFormat": "avro"}
    plan = bench.write(**keys)
    records = bench.onlooker.records(bench.topic)
    want = [{"id": n, "price": None, "tags": ["a", None]} for n in range(3)]
    read = AvroDeserializer(bench.registry.client)
    context = SerializationContext(bench.topic, MessageField.VALUE)
    assert [read(each.value, context) for each in records] == want
    of_key = SerializationContext(bench.topic, MessageField.KEY)
    assert [read(each.key, of_key) for each in records] == [{"site": "x"}] * 3
    parsed = fastavro.parse_schema(json.loads(plan.schemas["value"].text))
    for each, value in zip(records, want, strict=True):
        assert each.value[:5] == b"\0" + plan.schemas["value"].id.to_bytes(4, "big")
        assert fastavro.schemaless_reader(io.BytesIO(each.value[5:]), parsed) == value
    settings = RegistrySettings.from_options({"registry.url": bench.registry.url})
    schema = make_reader_schema(plan.schemas["value"], settings, "value")
    reader = RegisteredValues(settings, schema, schema.fields)
    found = reader.parse(pa.array([each.value for each in records], pa.binary()))
    assert (found.objects.to_pylist(), list(found.bad)) == (want, [])
    assert bench.versions() == bench.versions(f"{bench.topic}-key") == [1]


def test_a_struct_value_and_tombstones(bench):
    schema = pa.schema([("key", pa.string()), ("value", pa.struct([("timestamp", pa.int64())]))])
    bench.write([{"key": "a", "value": {"timestamp": 1}}, {"key": "b", "value": None}], schema)
    records = bench.onlooker.records(bench.topic)
    assert [each.value and each.value[5:] for each in records] == [b"\x02\x02", None]
    assert [each.key for each in records] == [b"a", b"b"]


# --- schemas and subjects


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("topic", "{topic}-value"),
        ("record", "shop.Order{number}"),
        ("topic-record", "{topic}-shop.Order{number}"),
        ("io.confluent.kafka.serializers.subject.RecordNameStrategy", "shop.Order{number}"),
    ],
)
def test_the_subject_is_named_by_the_strategy(bench, strategy, subject):
    number = uuid.uuid4().hex
    schema = record(ID, name=f"Order{number}", namespace="shop")
    named = {"registry.subject.name.strategy": strategy, "valueSchema": json.dumps(schema)}
    bench.write(IDS, ONLY_ID, **named)
    assert bench.versions(subject.format(topic=bench.topic, number=number)) == [1]


def test_a_subject_that_the_options_do_not_determine_is_refused(bench):
    schema = pa.schema([*ONLY_ID, pa.field("topic", pa.string())])
    with pytest.raises(OptionError, match=r"name it by 'registry\.subject'"):
        bench.writer(schema, topic=None).plan(None)
    bench.writer(schema, topic=None, **{"registry.subject": bench.subject}).plan(None)
    assert bench.versions() == [1]


def test_a_check_registers_nothing_and_a_plan_does_once(bench):
    one = bench.writer(keyFormat="avro")
    one.check()
    assert bench.versions() == []
    first = one.plan(None)
    bench.registry.server.kill()
    try:
        assert one.plan(None).schemas == first.schemas, "cached in this process"
        batch = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)
        one.stage(iter([batch]), Task("query", 0, 0, 0), first)  # a task asks no registry
        assert len(bench.values()) == 3
    finally:
        bench.registry.server.start()


def test_without_auto_register_the_subject_must_have_the_schema(bench):
    never = {"registry.auto.register": "false", "valueSchema": json.dumps(record(ID))}
    with pytest.raises(SchemaError, match=r"does not have the schema of the rows .*auto\.register"):
        bench.writer(ONLY_ID, **never).check()
    assert bench.versions() == []
    known = bench.register(record(ID))
    assert bench.write(IDS, ONLY_ID, **never).schemas["value"].id == known
    assert bench.versions() == [1]


def test_a_version_of_the_subject_is_written_with_its_defaults(bench):
    bench.register(record(ID))
    newest = bench.register(record(ID, NOTE))
    plan = bench.write(IDS, ONLY_ID, **{"registry.version": "latest"})
    assert plan.schemas["value"].id == newest
    assert bench.values()[2] == b"\0" + newest.to_bytes(4, "big") + b"\x04\x00"
    schema = pa.schema([*ONLY_ID, pa.field("note", pa.string())])
    with pytest.raises(SchemaError, match="column 'note' is no field of the Avro record Order"):
        bench.writer(schema, **{"registry.version": "1"}).check()


def test_a_schema_that_the_registry_refuses_is_an_error_before_a_row(bench):
    bench.register(record(ID))
    bench.registry.client.set_compatibility(bench.subject, "FULL")
    other = json.dumps(record({"name": "id", "type": "string"}))
    text = pa.schema([("id", pa.string())])
    one = bench.writer(text, valueSchema=other)
    with pytest.raises(SchemaError, match="is not compatible with the subject's versions"):
        one.plan(None)
    assert bench.versions() == [1]
    assert bench.values() == []


def test_columns_that_do_not_fit_are_errors_before_a_row(bench):
    with pytest.raises(SchemaError, match=r"column 'id' is int64.*cast it to STRING"):
        bench.writer(
            ONLY_ID, valueSchema=json.dumps(record({"name": "id", "type": "string"}))
        ).check()
    kind = pa.struct([pa.field("b", pa.duration("us"))])
    with pytest.raises(SchemaError, match=r"column 'a\.b' is duration\[us\]"):
        bench.writer(pa.schema([("a", kind)])).check()
    with pytest.raises(SchemaError, match="'keyFormat' = 'avro' needs a column 'key'"):
        bench.writer(ONLY_ID, keyFormat="avro").check()


def test_a_null_where_the_schema_allows_none_names_the_column(bench):
    schema = pa.schema([pa.field("id", pa.int64())])
    with pytest.raises(SchemaError, match="column 'id': a row has null"):
        bench.write([{"id": None}], schema, valueSchema=json.dumps(record(ID)))
    assert bench.values() == []


def test_a_registry_that_is_away_is_an_error_of_the_planner(bench):
    bench.registry.server.kill()
    try:
        with pytest.raises(KrishivError, match="in vain"):
            bench.writer(**{"registry.timeout": "300ms"}).plan(None)
    finally:
        bench.registry.server.start()


# --- an id of another subject


def register_in_two_subjects(bench):
    """The same rows into two topics: consumers look a schema up in the subject of their topic."""
    first = bench.write(IDS, ONLY_ID, valueSchema=json.dumps(record(ID)))
    before, bench.topic = bench.topic, bench.make_topic()
    second = bench.write(IDS, ONLY_ID, valueSchema=json.dumps(record(ID)))
    assert second.schemas["value"].text == first.schemas["value"].text
    assert (bench.versions(f"{before}-value"), bench.versions()) == ([1], [1])


def test_the_same_schema_is_registered_in_each_subject(bench):
    register_in_two_subjects(bench)


def test_planted_an_id_taken_from_another_subject_is_found(bench, monkeypatch):
    original = SchemaRegistry._place

    def place(self, subject, text, *more):
        known = {given: found for (_, given, _), found in self._by_text.items()}
        return known.get(text) or original(self, subject, text, *more)

    monkeypatch.setattr(SchemaRegistry, "_place", place)
    with pytest.raises(AssertionError):
        register_in_two_subjects(bench)


def test_an_id_that_stands_for_another_schema_is_refused(bench, monkeypatch):
    other = bench.register(record(ID, NOTE, name="Other"), f"{bench.topic}-other")
    settings = bench.options().registry.registry
    client = open_registry(settings)._client
    monkeypatch.setattr(client, "register_schema", lambda *_: other)
    with pytest.raises(SchemaError, match="but returns another schema for this id"):
        bench.writer().plan(None)


# --- a schema that changes under a replay


def replay_with_a_newer_schema(bench):
    """Task 0 is visible, task 1 is lost; the subject gets a version, and the epoch is completed."""
    old = bench.register(record(ID))
    one = bench.writer(ONLY_ID, KafkaWriter, **{"registry.version": "latest"})
    batches = [pa.RecordBatch.from_pylist(IDS[n:], schema=ONLY_ID) for n in range(2)]

    def stage(number, plan):
        return one.stage(iter([batches[number]]), Task("query", 7, number, 0, 1), plan)

    first = one.plan(Ownership(1, 1))
    staged = [stage(number, first) for number in range(2)]
    assert dict(staged[0].schemas) == {"value": old}
    before = sorted(bench.onlooker.waiting(bench.topic), key=lambda each: each.value)
    newest = bench.register(record(ID, NOTE))
    registered_rows._find_version.cache_clear()  # the planner is a new process
    open_registry.cache_clear()
    plan = one.plan(Ownership(2, 2, Salvaged(7, [staged[0]])))
    assert plan.schemas["value"].id == newest, "the next epoch takes the newest"
    assert stage(0, plan) == staged[0]
    again = stage(1, plan)
    assert again.checksum == staged[1].checksum
    assert dict(again.schemas) == {"value": old}
    return before


def test_an_epoch_is_completed_with_the_schemas_that_it_began_with(bench):
    replay_with_a_newer_schema(bench)
    written = {each.value for each in bench.onlooker.waiting(bench.topic)}
    assert len(written) == 3, "the bytes of both attempts are the same"


def test_planted_a_schema_that_changed_under_a_replay_is_found(bench, monkeypatch):
    monkeypatch.setattr(KafkaPlan, "find_schemas", lambda self, _: self.schemas)
    with pytest.raises(SinkError, match="before the driver died are different"):
        replay_with_a_newer_schema(bench)


def test_an_epoch_is_not_completed_in_another_form(bench):
    one = bench.writer(ONLY_ID, KafkaWriter)
    batch = pa.RecordBatch.from_pylist(IDS, schema=ONLY_ID)
    staged = one.stage(iter([batch]), Task("query", 7, 0, 0, 1), one.plan(Ownership(1, 1)))
    with_key = pa.schema([*ONLY_ID, pa.field("key", pa.string())])
    other = bench.writer(with_key, KafkaWriter, keyFormat="avro")
    with pytest.raises(OptionError, match="was written with schemas for value: continue with"):
        other.plan(Ownership(2, 2, Salvaged(7, [staged])))


def test_a_plan_travels_to_tasks(bench):
    plan = bench.writer(ONLY_ID, KafkaWriter).plan(Ownership(1, 1))
    import pickle

    assert pickle.loads(pickle.dumps(plan)) == plan
    assert writer.KafkaPlan(None).schemas == {}
