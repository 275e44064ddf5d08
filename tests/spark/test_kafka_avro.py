"""Avro topics on Spark: a new version of the schema, bad records, and a registry that is away."""

import json
import threading
import time
import uuid

import pytest
from confluent_kafka.serialization import MessageField
from kafka_topics import make_topic, produce
from patience import PATIENCE
from registries import Registry, registry  # noqa: F401  a fixture

from krishiv_spark.kafka.dev import open_cluster

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

ID = {"name": "id", "type": "long"}
AT = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}
PRICE = {"name": "price", "type": ["null", "double"], "default": None}


def record(*fields):
    return {"type": "record", "name": "Order", "fields": [*fields]}


@pytest.fixture(scope="module")
def bootstrap():
    with open_cluster() as cluster:
        yield cluster.bootstrap


class Orders:
    """A topic of orders, and a query that copies it into a folder."""

    def __init__(self, spark, registry, bootstrap, topic, folder):  # noqa: F811
        self.spark, self.registry, self.bootstrap = spark, registry, bootstrap
        self.topic, self.folder = topic, folder
        make_topic(bootstrap, topic, 1)

    def send(self, schema, *values):
        produce(self.bootstrap, self.topic, self.registry.serialize(self.topic, schema, *values))

    def options(self, **more):
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "valueFormat": "avro",
            "registry.url": self.registry.url,
            **more,
        }

    def read(self, **more):
        return self.spark.read.format("krishiv-kafka").options(**self.options(**more)).load()

    def copy(self, **more):
        stream = self.spark.readStream.format("krishiv-kafka").options(**self.options(**more))
        query = (
            stream.load()
            .select("id")
            .writeStream.format("krishiv-parquet")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.folder / "rows"))
        )
        query.awaitTermination()

    def copied(self):
        rows = self.spark.read.format("krishiv-parquet").load(str(self.folder / "rows"))
        return sorted(row["id"] for row in rows.collect())

    def newest_offset(self):
        newest = max(
            (self.folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda p: int(p.name)
        )
        return json.loads(newest.read_text().splitlines()[-1])


@pytest.fixture
def orders(spark, registry, bootstrap, tmp_path):  # noqa: F811
    return Orders(spark, registry, bootstrap, f"orders-{uuid.uuid4().hex[:8]}", tmp_path)


def test_a_query_stays_with_its_schema_until_the_user_decides(orders):
    orders.send(record(ID, AT), {"id": 1, "at": 1_700_000_000_123})
    frame = orders.read()
    assert frame.schema.simpleString() == "struct<id:bigint,at:timestamp>"
    shown = frame.selectExpr("id", "date_format(at, 'yyyy-MM-dd HH:mm:ss.SSS') at").collect()
    assert [row["id"] for row in shown] == [1]
    assert shown[0]["at"].endswith(".123")
    orders.copy()
    pinned = orders.newest_offset()["value_schema"]
    assert (pinned["subject"], pinned["version"]) == (f"{orders.topic}-value", 1)
    orders.send(record(ID, AT, PRICE), {"id": 2, "at": 0, "price": 0.5})
    with pytest.raises(
        Exception, match="with version 1 of its schema, and the newest is version 2"
    ):
        orders.copy()
    assert orders.copied() == [1]
    orders.copy(**{"registry.version": "1"})
    assert orders.copied() == [1, 2]
    assert orders.newest_offset()["value_schema"]["version"] == 1
    orders.send(record(ID, AT, PRICE), {"id": 3, "at": 0, "price": 1.5})
    orders.copy(**{"registry.version": "2"})
    assert orders.copied() == [1, 2, 3]
    assert orders.newest_offset()["value_schema"]["version"] == 2
    orders.copy()  # the newest is the query's own by now


def test_bad_records_are_diverted_with_their_reason(orders):
    orders.send(record(ID), {"id": 1})
    produce(orders.bootstrap, orders.topic, [b'{"id": 2}', b"\0\x7f\xff\xff\xff\x02"])
    columns = {"columns": "id, _raw, _error, offset"}
    found = orders.read(badRecords="divert", **columns).orderBy("offset").collect()
    assert [row["id"] for row in found] == [1, None, None]
    assert bytes(found[1]["_raw"]) == b'{"id": 2}'
    assert "does not begin as a serializer of a schema registry" in found[1]["_error"]
    assert "has the schema 2147483647" in found[2]["_error"]
    with pytest.raises(
        Exception, match=f"{orders.topic}-0 at offset 1: the Avro value does not begin"
    ):
        orders.read().collect()


def test_chosen_columns_are_decoded_with_those_of_kafka(orders):
    orders.send(record(ID, AT, PRICE), {"id": 1, "at": 0, "price": 2.5})
    produce(orders.bootstrap, orders.topic, [None], key=b"k")
    found = orders.read(columns="price, offset", nullValues="drop").collect()
    assert [tuple(row) for row in found] == [(2.5, 0)]


def test_keys_are_structs_that_are_pinned_and_whose_faults_are_diverted(orders):
    key = {"type": "record", "name": "Key", "fields": [ID, {"name": "site", "type": "string"}]}
    values = orders.registry.serialize(orders.topic, record(ID, PRICE), {"id": 1, "price": 0.5})
    keys = orders.registry.serialize(
        orders.topic, key, {"id": 7, "site": "x"}, {"id": 8, "site": "y"}, part=MessageField.KEY
    )
    produce(orders.bootstrap, orders.topic, values, key=keys[0])
    produce(orders.bootstrap, orders.topic, [None], key=keys[1])
    frame = orders.read(keyFormat="avro", nullValues="keep")
    shown = "struct<id:bigint,price:double,key:struct<id:bigint,site:string>>"
    assert frame.schema.simpleString() == shown
    found = frame.select("key.*", "price").orderBy("id").collect()
    assert [tuple(row) for row in found] == [(7, "x", 0.5), (8, "y", None)]
    orders.copy(keyFormat="avro", nullValues="drop")
    pinned = orders.newest_offset()["key_schema"]
    assert (pinned["subject"], pinned["version"]) == (f"{orders.topic}-key", 1)
    produce(orders.bootstrap, orders.topic, values, key=b"no avro")
    diverted = orders.read(
        keyFormat="avro",
        badRecords="divert",
        nullValues="drop",
        columns="id,key,_raw,_raw_key,_error",
    )
    good, bad = diverted.orderBy("_error").collect()
    assert (good["key"]["site"], good["_raw_key"], good["_error"]) == ("x", None, None)
    assert (bad["id"], bad["key"], bytes(bad["_raw_key"])) == (1, None, b"no avro")
    assert bad["_error"].startswith("the Avro key does not begin as a serializer")
    with pytest.raises(Exception, match=f"{orders.topic}-0 at offset 2: the Avro key does not"):
        orders.read(keyFormat="avro", nullValues="keep").collect()
    raw = orders.read(valueFormat="raw", keyFormat="avro", badRecords="null")
    sites = raw.select("key.site", "value").orderBy("site").collect()
    assert [(row["site"], bytes(row["value"] or b"")) for row in sites] == [
        (None, values[0]),
        ("x", values[0]),
        ("y", b""),
    ]
    orders.registry.register(f"{orders.topic}-key", {**key, "doc": "new"})
    with pytest.raises(Exception, match=r"set 'registry\.key\.version' = '1' to continue"):
        orders.copy(keyFormat="avro", nullValues="drop", badRecords="null")
    chosen = {"registry.key.version": "1", "badRecords": "null"}
    orders.copy(keyFormat="avro", nullValues="drop", **chosen)
    assert orders.copied() == [1, 1]


def test_a_stream_of_avro_is_written_as_avro_exactly_once(orders):
    """From topic to topic, keys too, over a restart; bad rows and types are errors by name."""
    target = f"{orders.topic[:40]}-copy"
    make_topic(orders.bootstrap, target, 1)
    key = {"type": "record", "name": "Key", "fields": [{"name": "site", "type": "string"}]}
    (one,) = orders.registry.serialize(orders.topic, key, {"site": "x"}, part=MessageField.KEY)

    def send(*values):
        schema = record(ID, AT, PRICE)
        encoded = orders.registry.serialize(orders.topic, schema, *values)
        produce(orders.bootstrap, orders.topic, encoded, key=one)

    def copy(**more):
        frame = orders.spark.readStream.format("krishiv-kafka")
        frame = frame.options(**orders.options(keyFormat="avro")).load()
        avro = {"valueFormat": "avro", "keyFormat": "avro", "registry.url": orders.registry.url}
        query = (
            frame.writeStream.format("krishiv-kafka")
            .options(**{"kafka.bootstrap.servers": orders.bootstrap, "topic": target}, **avro)
            .options(**more)
            .option("checkpointLocation", str(orders.folder / "copy"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    send({"id": 1, "at": 1_700_000_000_123, "price": 0.5})
    copy()
    send({"id": 2, "at": -1, "price": None})
    copy()
    back = orders.read(subscribe=target, keyFormat="avro")
    assert back.schema.simpleString() == (
        "struct<id:bigint,at:timestamp,price:double,key:struct<site:string>>"
    )
    found = back.selectExpr("id", "unix_micros(at) AS at", "price", "key.site").orderBy("id")
    assert [tuple(row) for row in found.collect()] == [
        (1, 1_700_000_000_123_000, 0.5, "x"),
        (2, -1000, None, "x"),
    ]
    assert orders.registry.client.get_versions(f"{target}-value") == [1]
    send({"id": 3, "at": 0, "price": None})
    other = json.dumps(record({"name": "id", "type": "string"}, AT, PRICE))
    with pytest.raises(Exception, match="column 'id' is int64, which the Avro type string"):
        copy(valueSchema=other)
    strict = {"name": "price", "type": "double"}
    named = {**record(ID, AT, strict), "name": f"{target}_value".replace("-", "_")}
    with pytest.raises(Exception, match="column 'price': a row has null, and the Avro schema"):
        copy(valueSchema=json.dumps(named), **{"registry.subject": f"{target}-strict"})
    assert back.count() == 2


def test_values_and_keys_of_json_schemas(orders):
    """They take the way of Avro, with the parser of JSON values."""
    draft = {"$schema": "http://json-schema.org/draft-07/schema#"}
    whole = {"type": "integer"}
    time_of_day = {"type": "string", "format": "date-time"}
    schema = {**draft, "type": "object", "properties": {"id": whole, "at": time_of_day}}
    values = orders.registry.serialize_json(orders.topic, schema, {"id": 1}, {"id": 2})
    (key,) = orders.registry.serialize_json(
        orders.topic, {**draft, "type": "string"}, "k", part=MessageField.KEY
    )
    produce(orders.bootstrap, orders.topic, [*values, b"{}"], key=key)
    given = {"valueFormat": "json-schema", "keyFormat": "json-schema", "badRecords": "divert"}
    frame = orders.read(**given, columns="id,at,key,_raw,_raw_key,_error,offset")
    assert frame.select("id", "at", "key").schema.simpleString() == (
        "struct<id:bigint,at:timestamp,key:string>"
    )
    found = frame.orderBy("offset").collect()
    assert [(row["id"], row["key"]) for row in found] == [(1, "k"), (2, "k"), (None, "k")]
    assert found[2]["_error"].startswith("the JSON value does not begin as a serializer")
    orders.copy(valueFormat="json-schema", badRecords="null")
    assert orders.newest_offset()["value_schema"]["version"] == 1


def test_a_query_waits_for_its_registry(orders):
    """The registry stops before the query starts, and returns while it waits."""
    orders.send(record(ID), {"id": 1})
    subject = f"{orders.topic}-value"
    schema_id = orders.registry.register(subject, record(ID))
    orders.registry.server.kill()
    failed = []

    def copy():
        try:
            orders.copy(**{"registry.timeout": "10m"})
        except Exception as error:  # noqa: BLE001  for the test's own thread
            failed.append(str(error))

    waiting = threading.Thread(target=copy)
    waiting.start()
    time.sleep(3)
    assert waiting.is_alive()
    orders.registry.server.start()
    waiting.join(PATIENCE)
    # It answered; and it has lost its schemas, since it keeps them in memory.
    assert "does not have version latest of the subject" in failed[0]
    # By a new client, since a client does not register again what it has registered. The record
    # names an id, which depends on the tests before.
    again = Registry(orders.registry.url, orders.registry.server)
    for number in range(1, schema_id):
        again.register(f"other-{number}", record({"name": f"f{number}", "type": "long"}))
    assert again.register(subject, record(ID)) == schema_id
    orders.copy()
    assert orders.copied() == [1]
