"""Faults of tasks and drivers, into a topic."""

import json
import os

import pytest
from drivers import SUPPORT
from fault_cases import TOTAL, Cases, DriverFaults, TaskFaults, run
from kafka_topics import Onlooker, make_topic
from patience import await_none

from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import open_client
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import open_cluster

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
TIMEOUT_MS = 40_000
"""Longer than a batch takes on a busy machine."""


@pytest.fixture(scope="module")
def cluster():
    with open_cluster(ours=True, settings=SETTINGS) as found:
        yield found


class Topic(Cases):
    @pytest.fixture
    def sink(self, cluster, tmp_path):
        topic = tmp_path.name
        make_topic(cluster.bootstrap, topic, partitions=2)
        return {
            "format": "krishiv-kafka",
            "options": {"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic},
            "columns": ["to_json(struct(*)) AS value"],
        }

    @pytest.fixture(autouse=True)
    def _onlooker(self, cluster):
        self.onlooker = Onlooker(cluster.bootstrap)
        yield
        self.onlooker.close()

    def ids(self, job):
        records = self.onlooker.committed(job["options"]["topic"])
        return [json.loads(record.value)["id"] for record in records]

    def assert_exact(self, job):
        """Nothing is left open either: whoever reads committed records is given all of them."""
        super().assert_exact(job)
        found = self.onlooker.records(job["options"]["topic"])
        assert len(found) == len(self.ids(job))


@pytest.mark.long  # in every run with a table
@pytest.mark.once
class TestTasks(Topic, TaskFaults):
    pass


@pytest.mark.once
class TestDrivers(Topic, DriverFaults):
    def assert_fenced(self, said):
        """The stale driver's task or its commit meets the successor, whichever comes first."""
        assert "Fenced" in said or "the producer was fenced" in said, said

    # --- the driver dies between two commits, and stays away for longer than the time-out

    @pytest.fixture
    def lost(self, cluster, job, tmp_path, monkeypatch):
        """A job whose first epoch is committed in part; brokers have aborted the rest."""
        monkeypatch.setenv("KRISHIV_TEST_DIE", str(tmp_path / "die"))
        monkeypatch.setenv("PYTHONPATH", str(SUPPORT / "dying"), prepend=os.pathsep)
        (tmp_path / "die").touch()
        options = {**job["options"], "kafka.transaction.timeout.ms": TIMEOUT_MS}
        run(job, "FAILED", options=options)
        assert not (tmp_path / "die").exists()
        self.await_aborts(cluster)
        return {**job, "options": options}

    def await_aborts(self, cluster):
        client = open_client(KafkaConfig.from_settings({"bootstrap.servers": cluster.bootstrap}))
        await_none(lambda: transactions.list_open_transactions(client, "krishiv."), "still open")

    @pytest.mark.long  # it waits; tests/brokers/test_kafka_windows.py does so without Spark
    def test_lost_transactions_are_an_error_if_asked_for_and_else_repaired(self, lost):
        seen = sorted(self.ids(lost))
        assert 0 < len(seen) < TOTAL
        strict = {**lost["options"], "onLostTransactions": "error"}
        driver = run(lost, "FAILED", options=strict)
        assert "the rows of the tasks" in driver.lines[-1]
        assert sorted(self.ids(lost)) == seen
        run(lost)
        self.assert_exact(lost)
