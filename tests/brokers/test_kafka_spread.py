"""Topics that grow: rows of one key stay in one partition for as long as an epoch lasts."""

import pickle
import uuid

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient
from kafka_topics import LIMITS, Onlooker, make_topic

from krishiv_spark.kafka.client import open_client
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.records.encode import partition_rows
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.writer import KafkaAtLeastOnceWriter, KafkaWriter

pytestmark = pytest.mark.long  # starts a broker

KEYS = [f"key {number}" for number in range(40)]
FEW, MANY = 2, 6


class Bench:
    """A topic with few partitions, that grows."""

    def __init__(self, cluster, folder) -> None:
        self.bootstrap, self.topic = cluster.bootstrap, f"t-{uuid.uuid4().hex}"
        self._folder = folder
        make_topic(self.bootstrap, self.topic, partitions=FEW)

    def grow(self):
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap, **LIMITS)
        admin.create_partitions({self.topic: MANY})
        admin.close()
        client = open_client(self.options().kafka)
        while len(client.get_topic(self.topic, 0).leaders) < MANY:
            pass

    def options(self, **more):
        given = {
            "kafka.bootstrap.servers": self.bootstrap,
            "epochLog": str(self._folder),
            **more,
        }
        return KafkaSinkOptions.parse(given, "krishiv-kafka")

    def read(self):
        """The keys with their partitions."""
        onlooker = Onlooker(self.bootstrap)
        found = {(each.key.decode(), each.partition) for each in onlooker.records(self.topic)}
        onlooker.close()
        return found


class Epochs:
    """A driver whose planner, tasks and commits share a long-lived process."""

    def __init__(self, options, kind=KafkaWriter) -> None:
        self._options, self._kind = options, kind
        self._query = f"batch-{uuid.uuid4()}"
        self._number = -1

    def _epoch(self, generation=None):
        return Epoch(self._query, self._number, generation)

    def plan(self):
        """The writer and the plan, as tasks get them."""
        self._number += 1
        writer = self._kind(self._options, rows(topic=KEYS).schema, OutputMode.APPEND)
        writer.check()
        owns = writer.committer().begin(self._epoch()) if self._kind is KafkaWriter else None
        self._generation = owns and owns.generation
        return pickle.loads(pickle.dumps((writer, writer.plan(owns))))

    def stage(self, planned, task=0, **columns):
        writer, plan = planned
        attempt = Task(self._query, self._number, task, task, self._generation)
        return writer.stage(iter([rows(**columns)]), attempt, plan)

    def commit(self, planned, *staged):
        planned[0].committer().publish(self._epoch(self._generation), staged)


def rows(**columns):
    return pa.record_batch({"key": KEYS, "value": KEYS, **columns})


def spread(count):
    return set(zip(KEYS, partition_rows(pa.array(KEYS), None, count, 0).tolist(), strict=True))


@pytest.fixture(scope="module")
def cluster():
    with open_cluster(ours=True) as found:
        yield found


@pytest.fixture
def bench(cluster, tmp_path):
    return Bench(cluster, tmp_path)


def test_the_next_epoch_writes_to_new_partitions(bench):
    epochs = Epochs(bench.options(topic=bench.topic))
    first = epochs.plan()
    epochs.commit(first, epochs.stage(first))
    bench.grow()
    second = epochs.plan()
    epochs.commit(second, epochs.stage(second))
    assert bench.read() == spread(FEW) | spread(MANY)


def test_all_tasks_of_an_epoch_agree(bench):
    """Also one in a process that meets the topic when it has grown."""
    epochs = Epochs(bench.options(topic=bench.topic))
    planned = epochs.plan()
    staged = [epochs.stage(planned, task=0)]
    bench.grow()
    elsewhere = bench.options(topic=bench.topic, **{"kafka.client.id": "another process"})
    writer, plan = planned
    other = KafkaWriter(elsewhere, writer.schema, writer.mode)
    staged.append(epochs.stage((other, plan), task=1))
    epochs.commit(planned, *staged)
    assert bench.read() == spread(FEW)


def test_at_least_once_too(bench):
    epochs = Epochs(bench.options(topic=bench.topic), KafkaAtLeastOnceWriter)
    writer = epochs.plan()
    bench.grow()
    epochs.stage(writer)
    assert bench.read() == spread(FEW)
    epochs.stage(epochs.plan())
    assert bench.read() == spread(FEW) | spread(MANY)


def test_a_row_may_name_a_new_partition_while_keys_stay_where_they_are(bench):
    epochs = Epochs(bench.options(topic=bench.topic))
    writer = epochs.plan()
    bench.grow()
    named = pa.array([MANY - 1] + [None] * (len(KEYS) - 1), pa.int32())
    epochs.commit(writer, epochs.stage(writer, partition=named))
    assert bench.read() == {(KEYS[0], MANY - 1)} | {
        each for each in spread(FEW) if each[0] != KEYS[0]
    }


@pytest.mark.parametrize(("age_ms", "found"), [("300000", FEW), ("1", MANY)])
def test_topics_that_only_rows_name_are_looked_up_by_tasks(bench, age_ms, found):
    """In a process that has written there before."""
    options = bench.options(**{"kafka.metadata.max.age.ms": age_ms})
    epochs = Epochs(options)
    named = {"topic": [bench.topic] * len(KEYS)}
    first = epochs.plan()
    epochs.commit(first, epochs.stage(first, **named))
    bench.grow()
    second = epochs.plan()
    epochs.commit(second, epochs.stage(second, **named))
    assert bench.read() == spread(FEW) | spread(found)
