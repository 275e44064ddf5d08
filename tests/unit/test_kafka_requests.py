"""Asking again and again, until time is up."""

import pytest
from kafka.errors import KafkaConnectionError, KafkaTimeoutError

from krishiv_spark.kafka.client import KafkaFailedError
from krishiv_spark.kafka.connection import Connection
from krishiv_spark.kafka.connections import Connections
from krishiv_spark.kafka.coordinators import DescribeTransactions
from krishiv_spark.kafka.offset_lookups import list_offsets
from krishiv_spark.kafka.requests import exchange
from krishiv_spark.kafka.topic_partition import LATEST, BrokerAddress, Topic, TopicPartition


class Refusing(Connections):
    """A client whose brokers refuse every connection, as soon as there is time to try."""

    def __init__(self):
        given = {"bootstrap.servers": "nowhere:1", "default.api.timeout.ms": "5"}
        self.connection = Connection.of(given)
        self.coordinators = {}
        self.is_suspect = False

    def ask(self, messages, within_s=None):
        refused = KafkaConnectionError("refused") if within_s else KafkaTimeoutError("after 0.0 ms")
        return [refused] * len(messages)

    def note_silence(self, since_s):
        del since_s
        self.is_suspect = True

    def known(self):
        return {"t"}

    def topic_of(self, name):
        return Topic(name, "", {0: 1})

    def leader(self, tp):
        return self.topic_of(tp.topic).leaders[tp.partition]

    def forget_leaders(self, names):
        del names

    def keep_coordinators(self, ids):
        self.coordinators = {name: BrokerAddress(1, "nowhere", 1) for name in ids}


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.ask_any("find out", object()),
        lambda client: exchange(client, DescribeTransactions(), ["an id"]),
        lambda client: list_offsets(client, {TopicPartition("t", 0): LATEST}),
    ],
    ids=["any broker", "many items", "many offsets at once"],
)
def test_what_is_said_when_time_is_up_is_why_there_was_no_answer(ask):
    for _ in range(20):
        client = Refusing()
        with pytest.raises(KafkaFailedError, match=r"refused.*time is up"):
            ask(client)
        assert client.is_suspect
