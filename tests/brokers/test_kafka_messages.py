"""The messages of an epoch, in order."""

import uuid

import pyarrow as pa
import pytest
from kafka_topics import make_topic

from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.writer import KafkaWriter

pytestmark = pytest.mark.long  # starts a broker

EPOCH = [
    ("check", "Metadata"),
    ("stage", "DescribeTransactions"),
    ("stage", "InitProducerId"),
    ("stage", "Produce"),
    ("publish", "DescribeTransactions"),
    ("publish", "EndTxn"),
    ("publish", "DescribeTransactions"),
]
IDS = 8
"""Of one task."""


@pytest.fixture(scope="module")
def bootstrap():
    with open_cluster(ours=True) as found:
        yield found.bootstrap


class Told:
    """The messages that clients send, with what is done meanwhile."""

    def __init__(self, monkeypatch):
        self.phase, self.sent, self.ids = "", [], []
        ask, submit = KafkaClient.ask, KafkaClient.submit

        def asked(client, messages, within_s=None):
            for _, message in messages:
                self._note(message)
            return ask(client, messages, within_s)

        def submitted(client, message, node):
            self._note(message)
            return submit(client, message, node)

        monkeypatch.setattr(KafkaClient, "ask", asked)
        monkeypatch.setattr(KafkaClient, "submit", submitted)

    def _note(self, message):
        self.sent.append((self.phase, type(message).__name__.removesuffix("Request")))
        self.ids.append(len(getattr(message, "transactional_ids", ())))


def commit(writer, query, number, told):
    told.phase = "check"
    writer.check()
    told.phase = "plan"
    committer = writer.committer()
    owns = committer.begin(Epoch(query, number))
    plan = writer.plan(owns)
    told.phase = "stage"
    rows = pa.record_batch({"value": ["row"]})
    staged = writer.stage(iter([rows]), Task(query, number, 0, 0, owns.generation), plan)
    told.phase = "publish"
    committer.publish(Epoch(query, number, owns.generation), [staged])


def test_the_messages_of_an_epoch(bootstrap, tmp_path, monkeypatch):
    topic, query = f"t-{uuid.uuid4().hex}", str(uuid.uuid4())
    make_topic(bootstrap, topic)
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "epochLog": str(tmp_path)}
    options = KafkaSinkOptions.parse(given, "krishiv-kafka")
    writer = KafkaWriter(options, pa.schema([("value", pa.string())]), OutputMode.APPEND)
    told = Told(monkeypatch)
    for number in range(4):  # the first ones find coordinators
        told.sent.clear()
        told.ids.clear()
        commit(writer, query, number, told)
    assert told.sent[: len(EPOCH)] == EPOCH
    assert told.ids[len(EPOCH) - 1] == IDS
    # As long as the brokers write the markers; then of what is not there yet.
    assert {name for _, name in told.sent[len(EPOCH) :]} <= {"DescribeTransactions"}
    assert set(told.ids[len(EPOCH) :]) <= {1}
