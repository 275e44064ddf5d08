"""Mirrors of several tables in one query of Spark."""

import json

from debezium_events import to_json
from iceberg_life import table_of
from kafka_topics import produce

import krishiv_spark


def describe(**types):
    fields = [{"type": kind, "field": name} for name, kind in types.items()]
    return {"type": "struct", "fields": fields}


def test_one_query_mirrors_two_tables_from_the_schemas_of_their_rows(spark, two_topics, tmp_path):
    schemas = {
        "source": describe(id="int32", name="string"),
        "target": describe(id="int64", price="double"),
    }
    rows = {
        "source": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "c"}],
        "target": [{"id": 7, "price": 0.5}],
    }
    for topic, some in rows.items():
        values = [to_json({"schema": schemas[topic], "payload": row}) for row in some]
        produce(two_topics.bootstrap, topic, values)
    changes = (
        spark.readStream.format("krishiv-kafka")
        .option("kafka.bootstrap.servers", two_topics.bootstrap)
        .options(subscribePattern="source|target", startingOffsets="earliest")
        .load()
    )
    tables = {"customers": "source", "orders": "target"}
    routed = krishiv_spark.routed(
        changes, **{table: f"topic = '{topic}'" for table, topic in tables.items()}
    )
    options = {"checkpointLocation": str(tmp_path / "checkpoint")}
    for table in tables:
        mirror = {
            "format": "krishiv-iceberg",
            "warehouse": str(tmp_path / "warehouse"),
            "table": f"shop.{table}",
            "mode": "upsert",
            "changeFormat": "debezium",
            "keyColumns": "id",
        }
        options |= {f"route.{table}.{name}": text for name, text in mirror.items()}
    writer = routed.writeStream.format("krishiv-fanout").options(**options)
    writer.trigger(availableNow=True).start().awaitTermination()

    def read(table):
        found = table_of(tmp_path / "warehouse", f"shop.{table}").scan().to_arrow().to_pylist()
        return sorted(json.dumps(row) for row in found)

    assert read("customers") == [json.dumps(row) for row in rows["source"]]
    assert read("orders") == ['{"id": 7, "price": 0.5}']
