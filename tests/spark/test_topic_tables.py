"""Topics of a pattern, each into a table of Iceberg, in one query of Spark."""

import json
import uuid
from collections import Counter

import pytest
from iceberg_life import table_of
from kafka import KafkaProducer
from kafka_topics import LIMITS, make_topic
from killers import Killer, assert_each_once
from topic_tables_life import event

from krishiv_spark import jobs
from krishiv_spark.kafka.dev import open_cluster

MIRROR = {"mode": "upsert", "changeFormat": "debezium", "schemaEvolution": "add"}


@pytest.fixture
def shop():
    """A broker, and a prefix of topics."""
    with open_cluster(ours=True) as cluster:
        yield cluster.bootstrap, f"shop{uuid.uuid4().hex[:8]}"


def send(bootstrap, topic, *events):
    producer = KafkaProducer(bootstrap_servers=bootstrap, **LIMITS)
    for key, value in events:
        producer.send(topic, key=key, value=value)
    producer.close()


def read(warehouse, name):
    found = table_of(warehouse, name).scan().to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in found)


def test_a_topic_that_is_created_while_the_query_runs_gets_its_table(spark, shop, tmp_path):
    bootstrap, prefix = shop
    for name in ("customers", "lines"):
        make_topic(bootstrap, f"{prefix}.public.{name}", partitions=2)
    keys = ("order", "line")
    send(bootstrap, f"{prefix}.public.customers", event({"id": 1, "name": "a"}, 1))
    send(bootstrap, f"{prefix}.public.lines", event({"order": 7, "line": 1}, 2, keys=keys))
    changes = (
        spark.readStream.format("krishiv-kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(subscribePattern=rf"{prefix}\.public\..*", startingOffsets="earliest")
        .option("kafka.metadata.max.age.ms", "200")
        .load()
    )
    query = (
        changes.writeStream.format("krishiv-iceberg")
        .options(warehouse=str(tmp_path / "warehouse"), **MIRROR)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start("lake.${topic.last}")
    )
    try:
        query.processAllAvailable()
        make_topic(bootstrap, f"{prefix}.public.orders", partitions=1)
        send(bootstrap, f"{prefix}.public.orders", event({"id": 7}, 3), event({"id": 8}, 4))
        send(bootstrap, f"{prefix}.public.customers", event({"id": 1, "name": "b"}, 5, "u"))
        query.processAllAvailable()
    finally:
        query.stop()
    assert read(tmp_path / "warehouse", "lake.customers") == [(1, "b")]
    assert read(tmp_path / "warehouse", "lake.lines") == [(7, 1)]
    assert read(tmp_path / "warehouse", "lake.orders") == [(7,), (8,)]


JOB = """
inputs:
  - name: changes
    format: krishiv-kafka
    isStream: true
    options:
      kafka.bootstrap.servers: ${BROKERS}
      subscribePattern: ${PREFIX}\\..*
      startingOffsets: earliest
outputs:
  - name: changes
    format: krishiv-iceberg
    options:
      table: lake_$${topic}.${topic.last}
      warehouse: ${FOLDER}/warehouse
      mode: upsert
      changeFormat: debezium
streaming: {checkpointLocation: "${FOLDER}/checkpoint", triggerMode: availableNow}
"""


def test_a_job_file_names_tables_by_topic(spark, shop, tmp_path):
    bootstrap, prefix = shop
    for name in ("a", "b"):
        make_topic(bootstrap, f"{prefix}.{name}")
        send(bootstrap, f"{prefix}.{name}", event({"id": 1, "name": name}, 1))
    (tmp_path / "job.yaml").write_text(JOB)
    given = {"BROKERS": bootstrap, "PREFIX": prefix, "FOLDER": str(tmp_path)}
    for _ in range(2):  # the second start checks the log and the record of the target
        jobs.JobRunner(spark, print).run(jobs.load(tmp_path / "job.yaml", variables=given))
    for name in ("a", "b"):
        assert read(tmp_path / "warehouse", f"lake_{prefix}_{name}.{name}") == [(1, name)]


TOPICS, PER_TOPIC, KILLS = 4, 300, 6


@pytest.mark.crash
@pytest.mark.timeout(2400)
@pytest.mark.long  # a fan-out that is killed as that of listed routes
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_kills_leave_each_row_once_in_the_table_of_its_topic(shop, tmp_path, mode):
    bootstrap, prefix = shop
    warehouse = tmp_path / "warehouse"
    for n in range(TOPICS):
        make_topic(bootstrap, f"{prefix}.t{n}", partitions=2)
        events = [event({"id": row, "n": row}, row) for row in range(PER_TOPIC)]
        send(bootstrap, f"{prefix}.t{n}", *events)
    job = {
        "bootstrap": bootstrap,
        "pattern": rf"{prefix}\..*",
        "rows": 120,
        "checkpoint": str(tmp_path / "checkpoint"),
        "sink": {
            "warehouse": str(warehouse),
            "table": "lake.${topic.last}",
            **(MIRROR if mode == "upsert" else {}),
        },
    }
    Killer("topics_copy.py", job).run(KILLS)
    for n in range(TOPICS):
        rows = table_of(warehouse, f"lake.t{n}").scan().to_arrow()
        if mode == "append":
            events = map(json.loads, rows["value"].to_pylist())
            ids = [each["payload"]["after"]["id"] for each in events]
        else:
            ids = rows["id"].to_pylist()
        assert_each_once(Counter(ids), range(PER_TOPIC), f"lake.t{n}")
