"""Streams that a client in Scala starts, watches and stops; the server finds the formats itself."""

import uuid

import pytest
from connect_server import connect_server
from kafka_topics import Onlooker, fill, make_topic
from scala_client import compiled, copy

from krishiv_spark.kafka.dev import open_cluster

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with connect_server(tmp_path_factory.mktemp("connect") / "server") as address:
        yield address


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("classes"))


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
def topics(cluster):
    names = [f"t-{uuid.uuid4().hex}" for _ in range(2)]
    for name in names:
        make_topic(cluster.bootstrap, name, partitions=3)
    return names


def test_a_stream_that_is_stopped_and_started_again_writes_each_row_once(
    server, classes, cluster, onlooker, topics, checkpoint
):
    source, target = topics
    job = (server, cluster.bootstrap, source, target, checkpoint)

    def numbers() -> list[int]:
        return sorted(int(record.value) for record in onlooker.records(target))

    fill(cluster.bootstrap, source, 4000)
    first = copy(classes, *job, "1000")
    assert 1000 <= first.rows < 4000
    assert not first.active
    assert len(set(numbers())) == len(numbers()) >= 1000

    fill(cluster.bootstrap, source, 500, first=4000)
    second = copy(classes, *job)
    assert (second.query, second.active) == (first.query, False)
    assert numbers() == list(range(4500))

    third = copy(classes, *job)
    assert (third.query, third.rows) == (first.query, 0)
    assert numbers() == list(range(4500))
