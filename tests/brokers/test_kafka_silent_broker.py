"""A broker that the cluster names, but that does not answer, and has no part in what is written.

It costs neither commits nor restarts nor new queries the time that is given to what is needed.
"""

import time
import uuid

import kafka_topics
import pyarrow as pa
import pytest
from kafka_topics import make_topic

from krishiv_spark.formats import KafkaDataSource
from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.list_offsets import list_offsets
from krishiv_spark.kafka.topic_partition import LATEST, TopicPartition
from krishiv_spark.testing import Crash, SinkUnderTest
from krishiv_spark.testing.suites.base import GOOD_EPOCH, STAGED, SinkPlayer

SETTINGS = {
    "broker.session.timeout.ms": "3600000",  # the cluster goes on to name a broker that is dead
    "transaction.state.log.num.partitions": "1",  # one broker coordinates all
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
PATIENCE_S = 600
TOPICS = 4


class Onlooker(kafka_topics.Onlooker):
    """Asks one broker only, which leads the topics and coordinates the transactions."""

    def __init__(self, bootstrap, node, client) -> None:
        super().__init__(bootstrap, node)
        self._client = client

    def _partitions(self, topic):
        del topic
        return [0]

    def _await_markers(self):
        while (
            transactions.COMMITTING
            in transactions.list_open_transactions(self._client, "krishiv.").values()
        ):
            pass


class Bench:
    """A cluster of three; one of them has no part in what is written."""

    def __init__(self, cluster) -> None:
        self.cluster = cluster
        self.client = KafkaClient(
            KafkaConfig.from_settings({"bootstrap.servers": cluster.bootstrap})
        )
        transactions.list_transactions(self.client, "krishiv.")
        (node,) = {broker.node for broker in self.client.coordinators.values()}
        self.topics = [self._make_topic(node) for _ in range(TOPICS)]
        self.unneeded = next(each for each in cluster.brokers if each.number != node)
        self.onlooker = Onlooker(cluster.bootstrap.split(",")[node - 1], node, self.client)

    def _make_topic(self, node) -> str:
        """One that this broker leads."""
        while True:
            name = f"t-{uuid.uuid4().hex}"
            make_topic(self.cluster.bootstrap, name)
            tp = TopicPartition(name, 0)
            list_offsets(self.client, {tp: LATEST})  # once all know of it
            if self.client.get_leader(tp) == node:
                return name

    def sink(self, topic):
        given = {
            "kafka.bootstrap.servers": self.cluster.bootstrap,
            "kafka.default.api.timeout.ms": str(PATIENCE_S * 1000),
            "topic": topic,
        }
        return SinkUnderTest(
            source=KafkaDataSource,
            options=given,
            schema=pa.schema([("value", pa.string())]),
            row=lambda n: (f"row {n}",),
            oracle=lambda: [(each.value.decode(),) for each in self.onlooker.committed(topic)],
            whole_epochs=False,
        )


@pytest.fixture(scope="module")
def bench():
    with open_cluster(3, settings=SETTINGS) as cluster:
        bench = Bench(cluster)
        yield bench
        bench.onlooker.close()


@pytest.fixture
def play(bench, tmp_path):
    player = SinkPlayer(lambda _: bench.sink(bench.topics.pop()), tmp_path, "exactly once")
    yield player.driver
    player.close()


@pytest.mark.long  # half a minute; test_kafka_sink_failover.py has one stand still, too
@pytest.mark.parametrize("silence", ["pause", pytest.param("kill", marks=pytest.mark.long)])
def test_it_is_not_waited_for(bench, play, silence):
    with play() as driver:
        driver.run(GOOD_EPOCH)
        getattr(bench.unneeded, silence)()
        begun = time.monotonic()
        driver.run((*GOOD_EPOCH, *STAGED, Crash(), *GOOD_EPOCH))
        driver.settle()
    with play() as driver:
        driver.run(GOOD_EPOCH)  # of another query
        driver.settle()
    assert time.monotonic() - begun < PATIENCE_S
    if silence == "pause":
        bench.unneeded.resume()
