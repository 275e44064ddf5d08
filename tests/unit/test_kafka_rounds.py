"""Asking again and again, until time is up."""

from kafka.errors import KafkaConnectionError, KafkaTimeoutError

from krishiv_spark.kafka.exchanges import Features
from krishiv_spark.kafka.rounds import collect


class Refusing:
    """A client whose brokers refuse every connection, as soon as there is time to try."""

    def ask(self, messages, within_s):
        refused = KafkaConnectionError("refused") if within_s else KafkaTimeoutError("after 0.0 ms")
        return [refused] * len(messages)


def test_what_is_said_when_time_is_up_is_why_there_was_no_answer():
    for _ in range(20):
        found, missing, why = collect(Refusing(), Features(), ["features"], 0.005)
        assert (found, missing) == ({}, ["features"])
        assert "refused" in str(why)
