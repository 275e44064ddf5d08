"""Streams that a client in Scala starts, watches and stops; the server finds the formats itself."""

import uuid

import pytest
from connect_server import connect_server
from kafka_topics import Onlooker, fill, make_topic
from patience import await_that
from scala_client import compile_client, run_client, start_client

from krishiv_spark.kafka.dev import open_cluster

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with connect_server(tmp_path_factory.mktemp("connect") / "server") as address:
        yield address


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    return compile_client(tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def cluster():
    with open_cluster(ours=True) as found:
        yield found


@pytest.fixture
def onlooker(cluster):
    onlooker = Onlooker(cluster.bootstrap)
    yield onlooker
    onlooker.close()


@pytest.fixture
def job(server, cluster, checkpoint):
    """Arguments of the client, after the classes: from one new topic to another."""
    topics = [f"t-{uuid.uuid4().hex}" for _ in range(2)]
    for name in topics:
        make_topic(cluster.bootstrap, name, partitions=3)
    return (server, cluster.bootstrap, *topics, checkpoint)


@pytest.fixture
def feed(cluster, job):
    return lambda numbers: fill(cluster.bootstrap, job[2], len(numbers), first=numbers.start)


@pytest.fixture
def copied(onlooker, job):
    return lambda: sorted(int(record.value) for record in onlooker.records(job[3]))


def test_a_stream_that_is_stopped_and_started_again_writes_each_row_once(
    classes, job, feed, copied
):
    feed(range(4000))
    first = run_client(classes, *job, "1000")
    assert 1000 <= first.rows < 4000
    assert not first.active
    assert len(set(copied())) == len(copied()) >= 1000
    feed(range(4000, 4500))
    second = run_client(classes, *job)
    assert (second.query, second.active) == (first.query, False)
    assert copied() == list(range(4500))
    third = run_client(classes, *job)
    assert (third.query, third.rows) == (first.query, 0)
    assert copied() == list(range(4500))


def test_a_stream_outlives_its_client_and_the_next_client_takes_it_over(classes, job, feed, copied):
    feed(range(1000))
    with start_client(classes, *job, "1000000") as client:
        await_that(lambda: len(copied()) == 1000)
        client.kill()
    feed(range(1000, 1500))
    await_that(lambda: copied() == list(range(1500)))
    feed(range(1500, 2000))
    run_client(classes, *job)
    assert copied() == list(range(2000))
