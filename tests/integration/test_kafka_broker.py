"""The brokers that all Kafka tests use: real ones, that keep what was acknowledged."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.dev import open_cluster

ONE = TopicPartition("a", 0)
REPLICATED = {"default.replication.factor": "3", "min.insync.replicas": "2"}


@pytest.fixture(scope="module")
def cluster():
    with open_cluster(ours=True) as found:
        yield found


def write(cluster, *values):
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    for value in values:
        producer.send("a", value, partition=0).get(timeout=30)
    producer.close()


def read(cluster, count) -> list[bytes]:
    given = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 30_000}
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, **given)
    consumer.assign([ONE])
    found = [message.value for _, message in zip(range(count), consumer, strict=False)]
    consumer.close()
    return found


def await_end_of(pid, seconds=30):
    until = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until, f"process {pid} lives on"
        time.sleep(0.05)


def test_a_broker_that_is_killed_keeps_what_it_has_acknowledged(cluster):
    write(cluster, b"1", b"2")
    cluster.brokers[0].kill()
    cluster.brokers[0].start()
    cluster.wait()
    write(cluster, b"3")
    assert read(cluster, 3) == [b"1", b"2", b"3"]


def test_three_brokers_survive_the_loss_of_one():
    with open_cluster(3, settings=REPLICATED) as cluster:
        write(cluster, b"1")
        cluster.brokers[2].kill()
        write(cluster, b"2")
        assert read(cluster, 2) == [b"1", b"2"]


def test_a_broker_ends_with_whoever_started_it():
    program = (
        "import os, signal\n"
        "from krishiv_spark.kafka.dev import open_cluster\n"
        "with open_cluster(ours=True) as cluster:\n"
        "    print(cluster.brokers[0].pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    await_end_of(int(died.stdout))


def test_a_cluster_that_runs_already_is_taken(cluster, monkeypatch):
    monkeypatch.setenv("KRISHIV_TEST_KAFKA", cluster.bootstrap)
    with open_cluster() as found:
        assert (found.bootstrap, list(found.brokers)) == (cluster.bootstrap, [])


def test_a_setting_that_kafka_refuses_is_shown():
    refused = open_cluster(settings={"log.segment.bytes": "many"})
    with pytest.raises(KrishivError, match=r"(.|\n)*log\.segment\.bytes"), refused:
        pass
