"""A sink with dead letters under the kit: each third row goes to the other target."""

from functools import partial

import pytest
from kafka_topics import Onlooker
from letter_sides import LettersInFiles, LettersInTopic, sink_with_letters

from krishiv_spark.testing import SinkConformance


@pytest.mark.variant  # it is the log of any fan-out
class TestLettersInFiles(SinkConformance):
    random_sequences = 10

    def sink(self, folder):
        return sink_with_letters(LettersInFiles, folder)


@pytest.fixture(scope="class")
def topic(cluster):
    onlooker = Onlooker(cluster.bootstrap)
    yield partial(LettersInTopic, cluster=cluster, onlooker=onlooker)
    onlooker.close()


@pytest.mark.variant  # it is the same log, with a participant that may lose its part
class TestLettersInTopic(SinkConformance):
    random_sequences = 10

    @pytest.fixture(autouse=True)
    def _environment(self, topic):
        self.topic = topic

    def sink(self, folder):
        return sink_with_letters(self.topic, folder)
