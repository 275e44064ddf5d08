"""The Kafka source over three brokers, of which one goes away."""

import time
import uuid
from contextlib import closing, suppress

import kafka_reading
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError
from kafka_reading import HASTE, find_batch_end, read_on, rows
from kafka_topics import LIMITS, produce
from patience import PATIENCE

from krishiv_spark.errors import DataLossError
from krishiv_spark.kafka.client import KafkaFailedError
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.kafka.reader import KafkaReader, KafkaSourceOptions

REPLICATED = {"default.replication.factor": "3", "min.insync.replicas": "2"}
ROWS = 60_000
LENIENT = {"failOnDataLoss": "false"}


@pytest.fixture(scope="module")
def cluster():
    with open_cluster(3, settings=REPLICATED) as found:
        yield found


@pytest.fixture(scope="module")
def topic(cluster):
    name = f"t-{uuid.uuid4().hex}"
    asked(cluster, "create_topics", {name: {"num_partitions": 3, "replication_factor": 3}})
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=50)
    for number in range(ROWS):
        producer.send(name, str(number).encode(), partition=number % 3)
    producer.flush()
    producer.close()
    return name


@pytest.mark.long  # three brokers
def test_a_task_goes_on_with_the_new_leaders(cluster, topic):
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "subscribe": topic,
        "columns": "value",
        "maxFetchBytes": "16k",  # many fetches, before and after
        "offsetsTogether": str(2 * ROWS),
    }
    parsed = KafkaSourceOptions.parse(options, "krishiv-kafka")
    reader = KafkaReader(parsed, None, streaming=False)
    start = reader.initial()
    (share,) = reader.plan(start, reader.latest(start, UNLIMITED))
    assert {each.tp for each in share} == {TopicPartition(topic, n) for n in range(3)}
    batches = reader.read(share)
    found = next(batches).column(0).to_pylist()
    cluster.brokers[2].kill()
    for batch in batches:
        found += batch.column(0).to_pylist()
    assert sorted(map(int, found)) == list(range(ROWS))


# --- what is gone, and what is only away


def everybody(cluster):
    """Starts the brokers that are down."""
    for broker in cluster.brokers:
        if not broker.is_alive():
            broker.start()
    cluster.wait()


def placed(cluster, *nodes, **configs):
    """A topic of one partition, whose replicas lie on these brokers; the first one leads."""
    everybody(cluster)
    name = f"t-{uuid.uuid4().hex[:12]}"
    given = {"assignments": {0: list(nodes)}, "configs": configs}
    asked(cluster, "create_topics", {name: given})
    await_partition(cluster, name, lambda found: found["leader_id"] == nodes[0])
    return name


def asked(cluster, what, *args):
    """Return the answer of any live broker; kafka-python does not search for one."""
    for _ in range(100):
        with suppress(KafkaError), closing(admin_of(cluster)) as admin:
            return getattr(admin, what)(*args)
        time.sleep(0.1)
    raise AssertionError(f"no broker responds {what}")


def admin_of(cluster):
    return KafkaAdminClient(bootstrap_servers=awake(cluster), **LIMITS)


def awake(cluster):
    """The first two brokers: no test puts them to sleep, and kafka-python waits for one that is."""
    return cluster.bootstrap.rsplit(",", 1)[0]


def await_partition(cluster, topic, fact):
    until = time.monotonic() + PATIENCE
    while True:
        (found,) = asked(cluster, "describe_topics", [topic])
        if found["partitions"] and fact(found["partitions"][0]):
            return
        assert time.monotonic() < until, found
        time.sleep(0.1)


def send(cluster, topic, *numbers):
    produce(awake(cluster), topic, [b"%d" % number for number in numbers])


@pytest.mark.long
def test_a_partition_without_a_leader_is_waited_for_and_not_lost(cluster):
    topic = placed(cluster, 3)
    send(cluster, topic, *range(10))
    hasty = kafka_reading.reader(cluster.bootstrap, topic, **HASTE, **LENIENT)
    start, end = hasty.initial(), find_batch_end(hasty)
    cluster.brokers[2].kill()
    await_partition(cluster, topic, lambda found: found["leader_id"] < 0)
    with pytest.raises(KafkaFailedError, match=f"{topic}-0 has no leader, and the time is up"):
        rows(hasty, start, end)
    cluster.brokers[2].start()  # it takes a while
    assert rows(kafka_reading.reader(cluster.bootstrap, topic), start, end) == [*range(10)]


@pytest.mark.long
def test_what_an_unclean_election_has_lost_is_noticed(cluster):
    topic = placed(
        cluster, 3, 2,
        **{"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
    )  # fmt: skip
    older, newer = cluster.brokers[1:]
    send(cluster, topic, *range(10))
    older.kill()
    await_partition(cluster, topic, lambda found: found["isr_nodes"] == [3])
    send(cluster, topic, *range(10, 20))
    seen, end = read_on(kafka_reading.reader(cluster.bootstrap, topic))
    newer.kill()
    older.start()
    await_partition(cluster, topic, lambda found: found["leader_id"] == 2)
    send(cluster, topic, *range(100, 115))
    everybody(cluster)
    said = "is at offset 20, but .* before offset 10 of"
    with pytest.raises(DataLossError, match=said):
        find_batch_end(kafka_reading.reader(cluster.bootstrap, topic), end)
    lenient = kafka_reading.reader(cluster.bootstrap, topic, **LENIENT)
    assert (seen, read_on(lenient, end)[0]) == ([*range(20)], [*range(100, 115)])


@pytest.mark.long
def test_a_leader_that_was_asleep_takes_no_query_back(cluster):
    topic = placed(cluster, 3, 2, 1)
    send(cluster, topic, *range(10))
    stale = kafka_reading.reader(cluster.bootstrap, topic, **{"kafka.client.id": "stale"})
    first = find_batch_end(stale)
    cluster.brokers[2].pause()
    try:
        await_partition(cluster, topic, lambda found: found["leader_id"] != 3)
        send(cluster, topic, *range(10, 20))
        end = find_batch_end(kafka_reading.reader(cluster.bootstrap, topic), first)
    finally:
        cluster.brokers[2].resume()
    until = time.monotonic() + 5
    while time.monotonic() < until:
        assert find_batch_end(stale, end) == end
