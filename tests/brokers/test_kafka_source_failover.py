"""The Kafka source over three brokers, of which one goes away."""

import uuid

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka_topics import LIMITS

from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.places import Place
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.kafka import KafkaReader, KafkaSourceOptions

REPLICATED = {"default.replication.factor": "3", "min.insync.replicas": "2"}
ROWS = 200_000


@pytest.fixture(scope="module")
def cluster():
    with open_cluster(3, settings=REPLICATED) as found:
        yield found


@pytest.fixture(scope="module")
def topic(cluster):
    name = f"t-{uuid.uuid4().hex}"
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap, **LIMITS)
    admin.create_topics({name: {"num_partitions": 3, "replication_factor": 3}})
    admin.close()
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=50)
    for number in range(ROWS):
        producer.send(name, str(number).encode(), partition=number % 3)
    producer.flush()
    producer.close()
    return name


def test_a_task_goes_on_with_the_new_leaders(cluster, topic):
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "subscribe": topic,
        "columns": "value",
        "maxFetchBytes": "64k",  # many fetches, before and after
        "offsetsTogether": str(2 * ROWS),
    }
    parsed = KafkaSourceOptions.parse(options, "krishiv-kafka")
    reader = KafkaReader(parsed, None, streaming=False)
    start = reader.initial()
    (share,) = reader.plan(start, reader.latest(start, UNLIMITED))
    assert {piece.place for piece in share} == {Place(topic, n) for n in range(3)}
    batches = reader.read(share)
    found = next(batches).column(0).to_pylist()
    cluster.brokers[2].kill()
    for batch in batches:
        found += batch.column(0).to_pylist()
    assert sorted(map(int, found)) == list(range(ROWS))
