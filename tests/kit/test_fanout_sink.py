"""``krishiv-fanout`` under the kit: rows go left, right or both ways, each to a real target."""

from functools import partial

import pytest
from fanout_sides import DeltaSide, Files, Table, Topic, make_pair
from kafka_topics import Onlooker
from pg_onlooker import SEEN, RowsOfPostgresql

from krishiv_spark.testing import FILES, SinkConformance


class Pair:
    random_sequences = 10

    def sides(self):
        raise NotImplementedError

    def sink(self, folder):
        return make_pair(self.sides(), folder)


@pytest.mark.variant  # both sides have suites of their own
class TestFilesAndTable(Pair, SinkConformance):
    def sides(self):
        return Files, Table


@pytest.mark.variant
class TestFilesAndDelta(Pair, SinkConformance):
    def sides(self):
        return Files, DeltaSide


@pytest.mark.variant
@pytest.mark.long
class TestDeltaAndTable(Pair, SinkConformance):
    def sides(self):
        return DeltaSide, Table


@pytest.fixture(scope="class")
def topic(cluster):
    onlooker = Onlooker(cluster.bootstrap)
    yield partial(Topic, cluster=cluster, onlooker=onlooker)
    onlooker.close()


class WithTopic(Pair):
    @pytest.fixture(autouse=True)
    def _environment(self, topic):
        self.topic = topic


@pytest.mark.variant  # it is the same log, which calls other participants
class TestFilesAndTopic(WithTopic, SinkConformance):
    def sides(self):
        return Files, self.topic


@pytest.mark.variant
class TestTopicAndTable(WithTopic, SinkConformance):
    def sides(self):
        return self.topic, Table


@pytest.mark.variant  # two that may be lost
class TestTwoTopics(WithTopic, SinkConformance):
    def sides(self):
        return self.topic, self.topic


@pytest.mark.variant  # staging tables outlive their server, and a mark ends repetitions
class TestFilesAndPostgresql(Pair, SinkConformance):
    @pytest.fixture(autouse=True)
    def _environment(self, database):
        self.database = database

    def sides(self):
        return Files, partial(RowsOfPostgresql, database=self.database)

    def sink(self, folder):
        return make_pair(self.sides(), folder, {**FILES, **SEEN})
