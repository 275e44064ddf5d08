"""A stream from Kafka to Kafka; its driver, its Python workers and the broker are killed."""

import contextlib
import random
from collections import Counter
from pathlib import Path

import psutil
import pytest
from drivers import Driver
from java_console import console_values
from kafka import KafkaProducer
from kafka_topics import LIMITS, Onlooker, make_topic

from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.kafka import KafkaReader, KafkaSourceOptions

ROWS, KILLS = 8_000, 6


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


def fill(job, rows: int) -> None:
    producer = KafkaProducer(bootstrap_servers=job["bootstrap"], linger_ms=20, **LIMITS)
    for number in range(rows):
        producer.send(job["source"], b"%d" % number, key=b"%d" % (number % 97))
    producer.flush()
    producer.close()


def read_by_kafka_python(job) -> list[int]:
    onlooker = Onlooker(job["bootstrap"])
    found = [int(record.value) for record in onlooker.records(job["target"])]
    onlooker.close()
    return found


def read_by_java(job) -> list[int]:
    return [int(value) for value in console_values(job["bootstrap"], job["target"])]


def read_by_ours(job) -> list[int]:
    given = {"kafka.bootstrap.servers": job["bootstrap"], "subscribe": job["target"]}
    reader = KafkaReader(KafkaSourceOptions.parse(given, "krishiv-kafka"), None, streaming=False)
    start = reader.initial()
    shares = reader.plan(start, reader.latest(start, UNLIMITED))
    batches = (batch for share in shares for batch in reader.read(share))
    return [int(value) for batch in batches for value in batch["value"].to_pylist()]


def assert_exact(job, rows: int) -> None:
    for read in (read_by_kafka_python, read_by_java, read_by_ours):
        assert_each_once(Counter(read(job)), rows, read.__name__)


def assert_each_once(found: Counter[int], rows: int, what: str) -> None:
    missing = [number for number in range(1, rows + 1) if number not in found]
    twice = [number for number, times in found.items() if times > 1]
    assert not missing, f"{what}: {len(missing)} rows are missing: {missing[:5]}"
    assert not twice, f"{what}: {len(twice)} rows are there more than once: {twice[:5]}"
    assert len(found) == rows


def is_python_of_spark(process: psutil.Process) -> bool:
    try:
        return "pyspark" in " ".join(process.cmdline())
    except psutil.Error:  # it is ending
        return False


class Killer:
    """Kills something at a random moment, and lets it come back."""

    def __init__(self, cluster, job, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self._cluster, self._job = cluster, job
        self._random = random.Random(seed)

    def run(self, kills: int) -> None:
        """Start drivers until so many things were killed, the last one to the end."""
        while self.kills.total() < kills:
            with Driver("kafka_copy.py", self._job) as driver:
                driver.wait_for("EPOCH", timeout=120)
                self._torment(driver, kills)
        with Driver("kafka_copy.py", self._job) as driver:
            driver.wait_for("DONE", timeout=900)

    def _torment(self, driver: Driver, kills: int) -> None:
        while driver.outlives(self._random.uniform(0.2, 2.0)) and self.kills.total() < kills:
            victim = self._random.choice(("driver", "worker", "broker"))
            self.kills[victim] += 1
            if victim == "driver":
                return
            if victim == "worker":
                self._kill_worker(driver)
            else:
                self._kill_broker()

    def _kill_worker(self, driver: Driver) -> None:
        family = psutil.Process(driver._process.pid).children(recursive=True)
        workers = [each for each in family if is_python_of_spark(each)]
        with contextlib.suppress(psutil.Error):  # it has just ended by itself
            self._random.choice(workers).kill()

    def _kill_broker(self) -> None:
        broker = self._cluster.brokers[0]
        broker.kill()
        broker.start()
        self._cluster.wait()


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_kills_of_driver_workers_and_broker_lose_and_repeat_nothing(cluster, job):
    torment(cluster, job, ROWS, KILLS)


@pytest.mark.soak
def test_sixty_kills_lose_and_repeat_nothing(cluster, job):
    torment(cluster, job, 10 * ROWS, 10 * KILLS)


def torment(cluster, job, rows: int, kills: int) -> None:
    seed = random.randrange(2**32)
    fill(job, rows)
    killer = Killer(cluster, job, seed)
    killer.run(kills)
    print(f"seed {seed}, killed: {dict(killer.kills)}")
    assert_exact(job, rows)
