"""Drivers that are stopped (SIGSTOP) in the middle of an epoch, and wake up after a successor."""

from collections import Counter

import pytest
from fan_queries import routes_below
from iceberg_tables import table_in
from kafka_topics import Onlooker, make_topic
from patience import await_none
from replays import count_range, forget, table_rows
from sleeping_driver import STREAMS, SleepingDriver
from spark_starts import make_checkpoint

from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import open_client
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import open_cluster

pytestmark = pytest.mark.long  # waits for time-outs of transactions

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
INTEND = "krishiv_spark.offsets.epoch_log:EpochLog.intend"
"""All rows are staged, and nothing is decided."""

COMMIT_TABLE = "pyiceberg.catalog.sql:SqlCatalog.commit_table"
"""The catalog's compare-and-set."""

FINISH = "krishiv_spark.sinks.parquet.disk_table:DiskParticipant.finish"
"""The intent is in the log."""

REFUSED = ("Fenced", "CheckpointMismatch", "CommitRejected")


@pytest.fixture(scope="module")
def cluster():
    with open_cluster(ours=True, settings=SETTINGS) as cluster:
        yield cluster


class Table:
    sink = "krishiv-iceberg"

    def __init__(self, place):
        self.place = place
        self.options = {"warehouse": f"{place}/w", "path": "db.t"}

    def rows(self):
        forget()
        return Counter(table_in(self.place / "w").scan().to_arrow()["id"].to_pylist())


class FanOut(Table):
    sink = "krishiv-fanout"

    def __init__(self, place):
        super().__init__(place)
        self.options = routes_below(place)

    def rows(self):
        found = table_rows(self.place / "t")
        assert found == super().rows()
        return found


class Query:
    """A query whose driver is this process; others sleep."""

    def __init__(self, checkpoint, target):
        self._job = {
            "checkpoint": str(checkpoint),
            "sink": target.sink,
            "options": target.options,
        }
        self._stream = STREAMS[target.sink](checkpoint, target.options)
        self._target = target
        self.sleepers = []

    def run(self, *epochs):
        """Run epochs here."""
        forget()
        for epoch in epochs:
            self._stream.run(epoch)

    def fall_asleep(self, *epochs, before):
        """Return a driver that has stopped before a call."""
        sleeper = SleepingDriver(**self._job, epochs=epochs, before=before)
        self.sleepers.append(sleeper)
        sleeper.await_sleep()
        return sleeper

    def wake(self, sleeper, endings=REFUSED):
        """Wake a driver of epoch 2 up, which its successor has run: the rows stay as they are."""
        assert self._target.rows() == count_range(30)
        last = sleeper.wake()[-1]
        assert self._target.rows() == count_range(30)
        assert any(name in last for name in endings), last
        self.run(3, 4)
        assert self._target.rows() == count_range(50)


@pytest.fixture
def query(tmp_path):
    begun = []

    def begin(target):
        begun.append(Query(make_checkpoint(tmp_path / "c", -1), target))
        return begun[-1]

    yield begin
    for each in begun:
        for sleeper in each.sleepers:
            sleeper.kill()


@pytest.mark.parametrize(
    ("target", "before"),
    [
        pytest.param(Table, COMMIT_TABLE, id="iceberg-at its commit"),
        pytest.param(FanOut, INTEND, id="fanout-staged"),
    ],
)
def test_a_driver_that_wakes_up_after_its_successor_changes_nothing(
    query, tmp_path, target, before
):
    driver = query(target(tmp_path))
    driver.run(0, 1)
    sleeper = driver.fall_asleep(2, before=before)
    driver.run(2)
    driver.wake(sleeper)


def test_a_driver_that_wakes_up_behind_its_intent_finds_its_epoch_finished(query, tmp_path):
    driver = query(FanOut(tmp_path))
    driver.run(0, 1)
    sleeper = driver.fall_asleep(2, before=FINISH)
    driver.run(2)
    driver.wake(sleeper, ("DONE", *REFUSED))


class Topic:
    sink = "krishiv-kafka"

    def __init__(self, cluster, name):
        self.bootstrap, self.name = cluster.bootstrap, name
        make_topic(cluster.bootstrap, name)
        self.options = {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "topic": name,
            "kafka.transaction.timeout.ms": "4000",
        }

    def rows(self):
        onlooker = Onlooker(self.bootstrap)
        try:
            return Counter(int(each.value) for each in onlooker.records(self.name))
        finally:
            onlooker.close()

    def await_time_out(self):
        """Until the broker has aborted all that is open."""
        client = open_client(KafkaConfig.from_settings({"bootstrap.servers": self.bootstrap}))
        await_none(lambda: transactions.list_open_transactions(client, "krishiv."), "still open")


def test_a_driver_that_sleeps_beyond_the_timeout_of_its_transactions_changes_nothing(
    query, tmp_path, cluster
):
    target = Topic(cluster, tmp_path.name)
    driver = query(target)
    driver.run(0, 1)
    sleeper = driver.fall_asleep(2, before=INTEND)
    target.await_time_out()
    driver.run(2)
    driver.wake(sleeper)
