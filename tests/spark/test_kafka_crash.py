"""A stream from Kafka to Kafka; its driver, its Python workers and the broker are killed."""

from collections import Counter
from pathlib import Path

import pytest
from java_console import console_values
from kafka_topics import Onlooker, fill, make_topic
from killers import Killer, assert_each_once

from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.kafka.reader import KafkaReader, KafkaSourceOptions

ROWS, KILLS = 4_000, 3


@pytest.fixture
def cluster():
    with open_cluster(ours=True) as found:
        yield found


@pytest.fixture
def job(cluster, tmp_path: Path) -> dict[str, object]:
    for topic in ("source", "target"):
        make_topic(cluster.bootstrap, topic, partitions=4)
    return {
        "bootstrap": cluster.bootstrap,
        "source": "source",
        "target": "target",
        "checkpoint": str(tmp_path / "checkpoint"),
    }


def read_by_kafka_python(job) -> list[int]:
    onlooker = Onlooker(job["bootstrap"])
    found = [int(record.value) for record in onlooker.records(job["target"])]
    onlooker.close()
    return found


def read_by_java(job) -> list[int]:
    values = console_values(job["bootstrap"], job["target"], job["copied"])
    return [int(value) for value in values]  # what may follow, the others see


def read_by_ours(job) -> list[int]:
    given = {"kafka.bootstrap.servers": job["bootstrap"], "subscribe": job["target"]}
    reader = KafkaReader(KafkaSourceOptions.parse(given, "krishiv-kafka"), None, streaming=False)
    start = reader.initial()
    shares = reader.plan(start, reader.latest(start, UNLIMITED))
    batches = (batch for share in shares for batch in reader.read(share))
    return [int(value) for batch in batches for value in batch["value"].to_pylist()]


def assert_exact(job, rows: int) -> None:
    for read in (read_by_kafka_python, read_by_java, read_by_ours):
        assert_each_once(Counter(read(job)), range(1, rows + 1), read.__name__)


def restart(cluster) -> None:
    (broker,) = cluster.brokers
    broker.kill()
    broker.start()
    cluster.wait()


@pytest.mark.core
@pytest.mark.crash
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)])  # for longer
def test_kills_of_driver_workers_and_broker_lose_and_repeat_nothing(cluster, job, times):
    torment(cluster, job, times * ROWS, times * KILLS)


@pytest.mark.soak
def test_sixty_kills_lose_and_repeat_nothing(cluster, job):
    torment(cluster, job, 20 * ROWS, 20 * KILLS)


def torment(cluster, job, rows: int, kills: int) -> None:
    fill(job["bootstrap"], job["source"], rows)
    Killer("kafka_copy.py", job, more={"broker": lambda: restart(cluster)}).run(kills)
    assert_exact({**job, "copied": rows}, rows)
