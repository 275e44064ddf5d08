"""A sink with dead letters under the kit: each third row goes to the other target."""

import shutil
import uuid
from functools import partial

import pytest
from kafka_topics import Onlooker
from letter_sides import LettersInFiles, LettersInTopic, sink_with_letters
from parquet_files import staged
from planted_bugs import find_failure

from krishiv_spark.sinks.fanout.dead_letters import DeadLetterWriter
from krishiv_spark.testing import Rule, SinkConformance


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


def test_dead_letters_without_their_epoch_are_found(tmp_path, monkeypatch):
    """The planted bug: a task shows the dead letters that it has staged."""
    stage = DeadLetterWriter.stage

    def show_letters(writer, batches, task, plan):
        found = stage(writer, batches, task, plan)
        for dead in tmp_path.rglob("dead"):
            for path in staged(dead):
                shutil.copy(path, dead / f"{uuid.uuid4().hex}.parquet")
        return found

    monkeypatch.setattr(DeadLetterWriter, "stage", show_letters)
    broken = find_failure(TestLettersInFiles(), "staged_rows_are_invisible", tmp_path, None)
    assert broken.rule is Rule.NOTHING_EARLY
