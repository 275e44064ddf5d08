"""Asking again and again, until time is up."""

import pytest
from kafka.errors import KafkaConnectionError, KafkaTimeoutError

from krishiv_spark.kafka.client import KafkaClient, KafkaFailedError
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.list_offsets import list_offsets
from krishiv_spark.kafka.requests import send_all
from krishiv_spark.kafka.topic_partition import LATEST, BrokerAddress, Topic, TopicPartition
from krishiv_spark.kafka.transaction_requests import DescribeTransactions


class Refusing(KafkaClient):
    """A client whose brokers refuse every connection, as soon as there is time to try."""

    def __init__(self):
        given = {"bootstrap.servers": "nowhere:1", "default.api.timeout.ms": "5"}
        self.config = KafkaConfig.from_settings(given)
        self.coordinators = {}
        self._tokens = None
        self.is_suspect = False

    def ask(self, messages, within_s=None):
        refused = KafkaConnectionError("refused") if within_s else KafkaTimeoutError("after 0.0 ms")
        return [refused] * len(messages)

    def record_silence(self, since_s):
        del since_s
        self.is_suspect = True

    def list_cached_topics(self):
        return {"t"}

    def get_topic(self, name):
        return Topic(name, "", {0: 1})

    def get_leader(self, tp):
        return self.get_topic(tp.topic).leaders[tp.partition]

    def forget_leaders(self, names):
        del names

    def prune_coordinators(self, ids):
        self.coordinators = {name: BrokerAddress(1, "nowhere", 1) for name in ids}


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.ask_any("find out", object()),
        lambda client: send_all(client, DescribeTransactions(), ["an id"]),
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
