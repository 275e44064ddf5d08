"""Protobuf topics on Spark: a new version of the schema, values and keys, and bad records."""

import uuid

import pytest
from kafka_topics import make_topic, produce
from registries import registry  # noqa: F401  a fixture

from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.schemas.protobuf.protobuf_files import (
    compile_proto,
    find_message,
    message_class,
)
from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

ORDER = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
message Order {
  int64 id = 1;
  optional string name = 2;
  uint64 most = 3;
  google.protobuf.Timestamp at = 4;
  google.protobuf.Duration took = 5;
  google.protobuf.Int32Value count = 6;
  enum State { NEW = 0; PAID = 1; }
  repeated State states = 7;
  map<string, Line> lines = 8;
  message Line { double price = 1; }
  oneof way { string mail = 9; Line line = 10; }
}
message Key { string site = 1; }
"""
KINDS = (
    "struct<id:bigint,name:string,most:decimal(20,0),at:timestamp,"
    "took:interval day to second,count:int,states:array<string>,"
    "lines:map<string,struct<price:double>>,mail:string,line:struct<price:double>>"
)


@pytest.fixture(scope="module")
def bootstrap():
    with open_cluster() as cluster:
        yield cluster.bootstrap


class Orders:
    """A topic of orders, whose values are written by Google's own classes."""

    def __init__(self, spark, registry, bootstrap, topic, folder):  # noqa: F811
        self.spark, self.registry, self.bootstrap = spark, registry, bootstrap
        self.topic, self.folder = topic, folder
        make_topic(bootstrap, topic, 1)

    def encode(self, text, message="Order", part="value", header=b"\0", **fields):
        schema_id = self.registry.register(f"{self.topic}-{part}", text, "PROTOBUF")
        file = compile_proto(RegisteredSchema(schema_id, "protobuf", text))
        made = message_class(find_message(file, message))(**fields)
        return b"\0" + schema_id.to_bytes(4, "big") + header + made.SerializeToString()

    def send(self, *values, key=None):
        produce(self.bootstrap, self.topic, list(values), key=key)

    def read(self, **more):
        return self._options(self.spark.read, **more).load()

    def _options(self, reader, **more):
        given = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "valueFormat": "protobuf",
            "registry.url": self.registry.url,
            **more,
        }
        return reader.format("krishiv-kafka").options(**given)

    def copy(self, **more):
        query = (
            self._options(self.spark.readStream, **more)
            .load()
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


@pytest.fixture
def orders(spark, registry, bootstrap, tmp_path):  # noqa: F811
    return Orders(spark, registry, bootstrap, f"orders-{uuid.uuid4().hex[:8]}", tmp_path)


def test_values_have_the_types_of_the_table(orders):
    whole = {
        "id": -1,
        "name": "é",
        "most": 2**64 - 1,
        "at": {"seconds": 1_700_000_000, "nanos": 123_456_789},
        "took": {"seconds": -1, "nanos": -500_000_000},
        "count": {"value": 0},
        "states": [1, 0, 7],
        "lines": {"a": {"price": 0.5}},
        "line": {"price": 2.5},
    }
    orders.send(orders.encode(ORDER, **whole), orders.encode(ORDER))
    frame = orders.read()
    assert frame.schema.simpleString() == KINDS
    shown = frame.selectExpr(
        "id", "name", "string(most) most", "unix_micros(at) at", "string(took) took", "count",
        "states", "lines['a'].price price", "mail", "line.price line",
    )  # fmt: skip
    assert [tuple(row) for row in shown.orderBy("id").collect()] == [
        (-1, "é", str(2**64 - 1), 1_700_000_000_123_456, "INTERVAL '-0 00:00:01.5' DAY TO SECOND",
         0, ["PAID", "NEW", "7"], 0.5, None, 2.5),
        (0, None, "0", None, None, None, [], None, None, None),
    ]  # fmt: skip


def test_a_query_stays_with_its_schema_until_the_user_decides(orders):
    orders.send(orders.encode(ORDER, id=1))
    orders.copy()
    newer = ORDER.replace("int64 id = 1;", "int64 id = 1;\n  double price = 99;")
    orders.send(orders.encode(newer, id=2, price=0.5))
    with pytest.raises(
        Exception, match="with version 1 of its schema, and the newest is version 2"
    ):
        orders.copy()
    orders.copy(**{"registry.version": "1"})
    orders.send(orders.encode(newer, id=3))
    orders.copy(**{"registry.version": "2"})
    assert orders.copied() == [1, 2, 3]


def test_keys_bad_records_and_other_messages(orders):
    key = orders.encode(ORDER, "Key", "key", b"\x02\x02", site="x")
    orders.send(orders.encode(ORDER, id=1), None, key=key)
    orders.send(b'{"id": 2}', orders.encode(ORDER, "Key", header=b"\x02\x02"), key=b"no key")
    given = {"keyFormat": "protobuf", "registry.key.message": "Key", "badRecords": "divert"}
    frame = orders.read(columns="id,key,_raw,_raw_key,_error,offset", **given)
    good, empty, text, other = frame.orderBy("offset").collect()
    assert (good["id"], good["key"]["site"], good["_error"]) == (1, "x", None)
    assert (empty["id"], empty["key"]["site"]) == (None, "x")
    assert (bytes(text["_raw"]), bytes(text["_raw_key"])) == (b'{"id": 2}', b"no key")
    assert text["_error"].startswith("the Protobuf value does not begin as a serializer")
    assert "it is another message than Order" in other["_error"]
    with pytest.raises(Exception, match=f"{orders.topic}-0 at offset 2: the Protobuf value does"):
        orders.read(nullValues="keep").collect()
