"""``krishiv-kafka`` as a sink, under the kit: a consumer of committed records reads the topic."""

from dataclasses import replace

import pytest
from kafka_sinks import into_topic
from kafka_topics import Onlooker

from krishiv_spark.formats import KafkaDataSource
from krishiv_spark.testing import (
    Begin,
    Commit,
    Crash,
    SinkConformance,
    Stage,
    Stop,
    Straggler,
    Switch,
    TakeOver,
)
from krishiv_spark.testing.processes.write_roles import in_foreach_batch
from krishiv_spark.testing.suites.base import GOOD_EPOCH, STAGED, SinkPlayer, Suite


@pytest.fixture(scope="class")
def onlooker(cluster):
    onlooker = Onlooker(cluster.bootstrap)
    yield onlooker
    onlooker.close()


class KafkaSink:
    """A sink on a new topic, and how it is looked at."""

    @pytest.fixture(autouse=True)
    def _environment(self, cluster, onlooker):
        self.cluster, self.onlooker = cluster, onlooker

    def look(self, topic):
        """Return the committed rows, including those after open transactions."""
        return self.onlooker.committed(topic)

    def sink(self, folder):
        del folder
        return into_topic(self.cluster.bootstrap, self.look, self.onlooker.waiting)


@pytest.mark.long_cases("test_an_unknown_outcome_is_looked_up")  # tried at every call
@pytest.mark.core_cases
class TestKafkaSink(KafkaSink, SinkConformance):
    random_sequences = 20


@pytest.mark.variant  # the same, but that nobody reads the checkpoint
class TestNamedKafkaSink(TestKafkaSink):
    test_a_rolled_back_checkpoint_is_refused = None  # as for `TestNamedParquetSink`
    test_queries_have_epochs_of_their_own = None
    test_random_sequences = None

    def sink(self, folder):
        found = super().sink(folder)
        named = {"queryId": folder.name, "epochLog": str(folder / "logs")}
        return replace(found, options={**found.options, **named})


@pytest.mark.variant  # the same epochs, as batch jobs with numbers
class TestKafkaSinkInForeachBatch(TestKafkaSink):
    def sink(self, folder):
        return replace(super().sink(folder), source=in_foreach_batch(KafkaDataSource))


class TestReadersOfCommittedRecords(KafkaSink, Suite):
    """An open transaction stops them, so none may be left behind."""

    def look(self, topic):
        """Return the rows that a consumer with ``read_committed`` gets."""
        return self.onlooker.records(topic)

    @pytest.fixture
    def play(self, promise, tmp_path):
        player = SinkPlayer(self.sink, tmp_path, promise)
        yield player
        player.close()

    def test_wait_for_no_failed_attempt(self, play):
        """Open transactions of attempts that failed or died are aborted with the next commit."""
        play(Begin(), Stage(0, "fails"), Stage(0), Stage(1, "dies"), Stage(1), Commit())
        play(*GOOD_EPOCH, Begin(), Stage(0), Stage(1, "dies"), Crash(), *GOOD_EPOCH)
        play(Begin(), Stage(0, "lost"), Stage(0), Stage(1), Commit())

    def test_wait_for_no_straggler(self, play):
        """Nor for an attempt of an earlier generation that goes on late."""
        stopped = (Begin(), Stage(0), Stage(1, "straggles"), Stop(), Begin())
        play(*stopped, Straggler(), Stage(0), Stage(1), Commit())
        play(*stopped, Stage(0), Stage(1), Commit(), Straggler(), *GOOD_EPOCH)

    def test_wait_for_no_stale_driver(self, play):
        """Nor for what a driver had staged that was taken over from."""
        play(*STAGED, TakeOver(), *GOOD_EPOCH, Switch(), Commit(), *GOOD_EPOCH)
