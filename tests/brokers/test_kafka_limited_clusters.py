"""Clusters without topic ids, leader epochs or transactions: what works, and what is refused.

A proxy lowers the versions that a real broker offers (`limited_cluster`). So these tests show the
requests and messages of the package, and not the guarantees of another service.
"""

import logging
import uuid

import pyarrow as pa
import pytest
from kafka import KafkaProducer
from kafka_reading import read_on, reader
from kafka_topics import LIMITS, make_topic
from limited_cluster import NO_IDS, NO_LEADER_EPOCHS, NO_TRANSACTIONS, LimitedCluster

from krishiv_spark.kafka.client import KafkaFailedError
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.participant import KafkaParticipant
from krishiv_spark.sinks.kafka.writer import KafkaAtLeastOnceWriter, KafkaWriter

pytestmark = [pytest.mark.once, pytest.mark.long]  # starts a broker

NOT_IDS = "has no topic ids"
NOT_EPOCHS = "has no leader epochs"
QUICK = {"kafka.default.api.timeout.ms": "10000"}


@pytest.fixture(scope="module")
def broker():
    with open_cluster(ours=True) as cluster:
        yield cluster


@pytest.fixture
def topic(broker):
    name = f"t-{uuid.uuid4().hex[:12]}"
    make_topic(broker.bootstrap, name, 2)
    send(broker, name, *range(8))
    return name


def send(broker, topic, *numbers):
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, **LIMITS)
    for number in numbers:
        producer.send(topic, b"%d" % number, partition=number % 2)
    producer.close()


def limited(broker, newest):
    return LimitedCluster(int(broker.bootstrap.rpartition(":")[2]), newest)


def writer_of(kind, cluster, topic, tmp_path, **options):
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "topic": topic,
        "checkpointLocation": str(tmp_path),
        **QUICK,
        **options,
    }
    schema = pa.schema([("value", pa.binary())])
    made = KafkaSinkOptions.parse(given, "krishiv-kafka")
    return kind(made, schema, OutputMode.APPEND, streaming=True)


def stage(writer, query, *numbers):
    writer.check()
    rows = pa.record_batch({"value": pa.array([b"%d" % number for number in numbers])})
    task = Task(query, epoch=0, partition=0, attempt=0, generation=1)
    return writer.stage(iter([rows]), task, writer.plan(None))


@pytest.mark.parametrize(
    ("newest", "limits"),
    [
        ({}, []),
        (NO_IDS, [NOT_IDS]),
        (NO_LEADER_EPOCHS, [NOT_IDS, NOT_EPOCHS]),
        (NO_TRANSACTIONS, []),
    ],
    ids=["all", "no ids", "no leader epochs", "no transactions"],
)
def test_a_source_reads_and_names_what_it_cannot_notice(broker, topic, newest, limits, caplog):
    with limited(broker, newest) as cluster, caplog.at_level(logging.WARNING):
        source = reader(cluster.bootstrap, topic, **QUICK)
        found, end = read_on(source)
        send(broker, topic, 8, 9)
        more, _ = read_on(source, end)
        assert sorted(found + more) == [*range(10)]
        batch = reader(cluster.bootstrap, topic, streaming=False, startingTimestamp="1", **QUICK)
        assert sorted(read_on(batch)[0]) == [*range(10)]
    warned = [each.getMessage() for each in caplog.records if "has no" in each.getMessage()]
    assert len(warned) == len(limits)
    assert all(limit in text for limit, text in zip(limits, warned, strict=True))


def test_leader_epochs_without_their_ends_do_not_stop_a_query(broker, topic):
    """The broker starts again, and each partition gets a new leader epoch."""
    with limited(broker, {23: None}) as cluster:
        found, end = read_on(reader(cluster.bootstrap, topic, **QUICK))
        broker.brokers[0].kill()
        broker.brokers[0].start()
        broker.wait()
        send(broker, topic, 8, 9)
        age = {"kafka.metadata.max.age.ms": "299999"}  # of another client
        more, after = read_on(reader(cluster.bootstrap, topic, **QUICK, **age), end)
    assert sorted(found + more) == [*range(10)]
    before, now = (position.epochs[topic] for position in (end, after))
    assert all(now[partition] > before[partition] for partition in before)


def test_event_times_need_a_newer_cluster(broker, topic):
    event_time = {"eventTime": "timestamp", "watermarkDelay": "1s"}
    with (
        limited(broker, NO_LEADER_EPOCHS) as cluster,
        pytest.raises(KafkaFailedError, match="leave out 'eventTime'"),
    ):
        read_on(reader(cluster.bootstrap, topic, **event_time, **QUICK))


@pytest.mark.parametrize("newest", [NO_IDS, NO_LEADER_EPOCHS], ids=["ids", "leader epochs"])
def test_exactly_once_needs_neither_ids_nor_leader_epochs(broker, topic, newest, tmp_path):
    with limited(broker, newest) as cluster:
        writer = writer_of(KafkaWriter, cluster, topic, tmp_path)
        query = uuid.uuid4().hex
        staged = stage(writer, query, 8, 9)
        assert sorted(read_on(reader(broker.bootstrap, topic))[0]) == [*range(8)]
        KafkaParticipant(writer.options, lambda: True, streaming=True).finish(
            Epoch(query, 0), [staged]
        )
    assert sorted(read_on(reader(broker.bootstrap, topic, streaming=False))[0]) == [*range(10)]


@pytest.mark.parametrize(
    ("newest", "names"),
    [
        (NO_TRANSACTIONS, "AddPartitionsToTxn, EndTxn, DescribeTransactions, ListTransactions"),
        ({65: None, 66: None}, "DescribeTransactions, ListTransactions"),
        ({10: 3}, "FindCoordinator"),
    ],
    ids=["none", "before 3.0", "coordinators before 3.0"],
)
def test_a_cluster_without_transactions_is_refused_before_a_row(
    broker, topic, newest, names, tmp_path
):
    with limited(broker, newest) as cluster:
        writer = writer_of(KafkaWriter, cluster, topic, tmp_path)
        with pytest.raises(KafkaFailedError, match="cannot write exactly once") as caught:
            writer.check()
        text = str(caught.value)
        assert f"the cluster does not have {names} of Kafka 3.0" in text
        assert "set 'delivery' = 'at-least-once'" in text
        other = writer_of(
            KafkaAtLeastOnceWriter, cluster, topic, tmp_path, delivery="at-least-once"
        )
        assert stage(other, uuid.uuid4().hex, 8, 9) is None
    assert sorted(read_on(reader(broker.bootstrap, topic, streaming=False))[0]) == [*range(10)]


def test_a_cluster_without_idempotent_producers_takes_no_row(broker, topic, tmp_path):
    with limited(broker, {**NO_TRANSACTIONS, 22: None}) as cluster:
        writer = writer_of(
            KafkaAtLeastOnceWriter, cluster, topic, tmp_path, delivery="at-least-once"
        )
        with pytest.raises(KafkaFailedError, match="the sink needs idempotent producers"):
            stage(writer, uuid.uuid4().hex, 8)
