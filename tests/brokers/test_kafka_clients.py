"""Clients in processes that live long: Spark uses a worker for many tasks, and many queries."""

import gc
import threading
import time
import uuid
from contextlib import suppress

import psutil
import pyarrow as pa
import pytest
from kafka_topics import make_topic
from patience import PATIENCE, await_that

from krishiv_spark.kafka import client as clients
from krishiv_spark.kafka.client import KafkaFailedError, open_client
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.dev.clusters import free_ports
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.writer import KafkaWriter
from krishiv_spark.spark.checkpoint import BATCH_PREFIX

pytestmark = pytest.mark.long  # starts a broker

JOBS = 12


@pytest.fixture(scope="module")
def cluster():
    with open_cluster(ours=True) as found:
        yield found


def connect(bootstrap, **settings):
    return KafkaConfig.from_settings({"bootstrap.servers": bootstrap, **settings})


def threads():
    """Of clients, one each."""
    return {each for each in threading.enumerate() if each.name.startswith("kafka-io")}


def await_threads(count, others):
    """Until only so many clients are left, beside others; those of a test that failed stay."""
    until = time.monotonic() + PATIENCE
    while len(mine := threads() - others) > count:
        assert time.monotonic() < until, mine
        gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_whose_thread_has_died_is_replaced(cluster, monkeypatch):
    connection = connect(cluster.bootstrap, **{"client.id": "mortal"})
    first = open_client(connection)
    with monkeypatch.context() as patch:
        patch.setattr(first._transport._net._selector, "select", no_files_left)
        with pytest.raises(KafkaFailedError, match="Too many open files"):
            first.fetch_topics([])
    second = open_client(connection)
    assert second is not first
    assert second.fetch_topics([]) == {}
    second.close()


def no_files_left(*_):
    raise OSError(24, "Too many open files")


@pytest.mark.long
def test_brokers_that_come_back_at_other_addresses_are_found():
    with open_cluster(ours=True) as cluster:
        (broker,) = cluster.brokers
        old, (new,) = cluster.bootstrap.split(":")[1], free_ports(1)
        both = f"{cluster.bootstrap},127.0.0.1:{new}"
        connection = connect(both, **{"default.api.timeout.ms": "3000"})
        first = open_client(connection)
        broker.kill()
        broker.properties.write_text(broker.properties.read_text().replace(old, str(new)))
        broker.start()
        with pytest.raises(KafkaFailedError):
            first.fetch_topics([])
        await_that(lambda: answers(connection))


def answers(connection):
    with suppress(KafkaFailedError):
        return open_client(connection).fetch_topics([]) == {}


def test_a_client_that_is_used_goes_on_when_others_push_it_out(cluster):
    others = threads()
    held = open_client(connect(cluster.bootstrap, **{"client.id": "held"}))
    for number in range(clients._MOST_CLIENTS + 4):
        open_client(connect(cluster.bootstrap, **{"client.id": f"other-{number}"}))
    await_threads(clients._MOST_CLIENTS + 1, others)
    assert held.fetch_topics([]) == {}
    del held
    await_threads(clients._MOST_CLIENTS, others)
    for client in list(clients._clients.values()):
        client.close()


def test_nothing_grows_with_the_number_of_batch_jobs(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(clients, "_MOST_COORDINATORS", 20)
    topic = f"t-{uuid.uuid4().hex}"
    make_topic(cluster.bootstrap, topic)
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "topic": topic,
        "epochLog": str(tmp_path),
    }
    options = KafkaSinkOptions.parse(given, "krishiv-kafka")
    sizes, coordinators = zip(*(run_job(options) for _ in range(JOBS)), strict=True)
    # A connection that waits for a coordinator may be opened during any job, and counts as two or
    # three. What each job leaves behind would add JOBS // 2 or more.
    assert max(sizes[JOBS // 2 :]) < max(sizes[: JOBS // 2]) + JOBS // 2
    assert max(coordinators) <= 40  # a job asks for eight; beyond 20, those before it go


def run_job(options):
    """Threads, open files and clients after one more job; and coordinators that are remembered."""
    schema = pa.schema([("value", pa.string())])
    writer = KafkaWriter(options, schema, OutputMode.APPEND, streaming=False)
    query = f"{BATCH_PREFIX}{uuid.uuid4()}"
    committer = writer.committer()
    owns = committer.begin(Epoch(query, 0))
    rows = pa.record_batch({"value": ["row"]})
    task = Task(query, 0, 0, 0, owns.generation)
    staged = writer.stage(iter([rows]), task, writer.plan(owns))
    committer.publish(Epoch(query, 0, owns.generation), [staged])
    client = open_client(options.kafka)
    counted = psutil.Process().num_fds() + threading.active_count()
    return counted + len(client._added) + len(clients._clients), len(client.coordinators)
