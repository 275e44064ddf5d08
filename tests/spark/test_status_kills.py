"""The output of ``krishiv-spark status`` after each kill agrees with the content of the target."""

import uuid
from collections import Counter
from pathlib import Path

import pytest
from iceberg_life import TABLE
from kafka_topics import fill, make_topic
from killers import Killer
from status_targets import IcebergTarget, KafkaTarget, ParquetTarget
from status_witness import Witness
from tables import make_input

from krishiv_spark.kafka.dev import open_cluster

RECORDS, FILES, ROWS = 1_000, 50, 20  # brought at once: as many rows in files
KILLS = [4, pytest.param(30, marks=pytest.mark.long)]  # the same, for longer
pytestmark = [pytest.mark.crash, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def bootstrap():
    with open_cluster() as cluster:
        yield cluster.bootstrap


@pytest.fixture
def job(tmp_path: Path) -> dict[str, object]:
    return {
        "checkpoint": str(tmp_path / "checkpoint"),
        "conf": {"spark.master": "local[2,8]"},  # a task whose worker was killed is tried again
        "tasks": 2,
    }


@pytest.fixture
def kafka_job(job, bootstrap):
    source = f"source-{uuid.uuid4().hex}"
    make_topic(bootstrap, source, partitions=2)
    return {**job, "bootstrap": bootstrap, "source": source, "rows": 100}


def records_until(offset) -> int:
    """Return the number of records that a source has read of a topic with records only."""
    return sum(next_one for each in offset.get("topics", {}).values() for next_one in each.values())


def rows_in(offset) -> int:
    """Return the number of rows in the files of an epoch."""
    return ROWS * len(offset.get("files", ()))


def torment(script: str, job, target, witness: Witness, kills: int, feed) -> None:
    """Kill so often, and let there always be something to do until then."""
    fed = 0

    def look(driver) -> bool:
        nonlocal fed
        before = fed
        witness.look(driver)
        while killer.kills.total() < kills and fed * RECORDS < witness.planned + RECORDS:
            feed(fed)
            fed += 1
        return fed > before

    feed(fed)
    fed += 1
    strike = target.strike
    killer = Killer(script, job, pauses=(0.0, 2.0), look=look, strike=strike)
    killer.run(kills)
    found = f"{witness.between} between, {witness.staged} with something staged"
    print(f"{witness.looks} looks, {found}, kept: {Counter(witness.kept)}")
    assert killer.kills.total() == kills
    assert witness.looks > kills
    assert len(witness.kept) >= killer.kills["driver"] - 1  # but for one that had nothing left


@pytest.mark.long  # in every run with files
@pytest.mark.parametrize("kills", KILLS)
def test_of_kafka(kafka_job, bootstrap, kills):
    topic = f"target-{kafka_job['source']}"
    make_topic(bootstrap, topic, partitions=2)
    target = KafkaTarget(kafka_job["checkpoint"], bootstrap, topic)
    witness = Witness(kafka_job["checkpoint"], target, records_until, adds_up=False)
    torment(
        "kafka_copy.py", {**kafka_job, "target": topic}, target, witness, kills, feeding(kafka_job)
    )
    target.close()


@pytest.mark.long  # likewise
@pytest.mark.parametrize("kills", KILLS)
def test_of_iceberg(kafka_job, tmp_path, kills):
    warehouse = tmp_path / "warehouse"
    sink = {"path": TABLE, "warehouse": str(warehouse)}
    target = IcebergTarget(kafka_job["checkpoint"], warehouse)
    witness = Witness(kafka_job["checkpoint"], target, records_until, adds_up=False)
    job = {**kafka_job, "format": "krishiv-iceberg", "sink": sink}
    torment("kafka_copy.py", job, target, witness, kills, feeding(kafka_job))


def feeding(job):
    def feed(number: int) -> None:
        fill(job["bootstrap"], job["source"], RECORDS, number * RECORDS)

    return feed


@pytest.mark.parametrize("kills", KILLS)
def test_of_parquet(job, tmp_path, kills):
    def feed(number: int) -> None:
        make_input(tmp_path / "in", FILES, ROWS, number * FILES)

    job |= {"source": str(tmp_path / "in"), "table": str(tmp_path / "out")}
    target = ParquetTarget(job["checkpoint"], tmp_path / "out")
    witness = Witness(job["checkpoint"], target, rows_in, adds_up=True)
    torment("stream_copy.py", job, target, witness, kills, feed)
