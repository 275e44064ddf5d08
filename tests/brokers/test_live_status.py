"""``krishiv-spark status`` asks the cluster: lag, and transactions of the query that are open."""

import json

import pytest
from click.testing import CliRunner
from kafka import KafkaProducer
from kafka_topics import make_topic, produce

from krishiv_spark.cli import main
from krishiv_spark.kafka.client import open_client
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.offsets import Claim, PlannedOffsets, open_log

pytestmark = pytest.mark.once

QUERY = "live-status"


@pytest.fixture(scope="module")
def bootstrap():
    with open_cluster() as cluster:
        make_topic(cluster.bootstrap, "orders", partitions=2)
        produce(cluster.bootstrap, "orders", [b"x"] * 10, partition=0)
        produce(cluster.bootstrap, "orders", [b"x"] * 5, partition=1)
        yield cluster.bootstrap


@pytest.fixture
def checkpoint(tmp_path):
    """Of a query with a source of ours and one of Spark's, at 7 and 5, and at 10 and 2."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    ours = json.dumps({"kind": "kafka", "topics": {"orders": {"0": 7, "1": 5}}, "v": 2})
    theirs = json.dumps({"orders": {"0": 10, "1": 2}})
    (tmp_path / "offsets" / "0").write_text(f"v1\n{{}}\n{ours}\n{theirs}")
    return tmp_path


def status(checkpoint, bootstrap, *more):
    words = ["status", str(checkpoint), "-o", f"kafka.bootstrap.servers={bootstrap}", *more]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return done.output


def claim_of(checkpoint, target):
    log = open_log(str(checkpoint / "krishiv"))
    log.begin(Claim(query=QUERY, offsets=PlannedOffsets.of(0, {}, {}), target=target))


def test_the_lag_of_our_source_and_of_sparks(checkpoint, bootstrap):
    said = status(checkpoint, bootstrap, "-o", "subscribe=orders")
    for source in (0, 1):
        lag = f"lag         of source {source}: 3 offsets after the newest epoch, topic orders, 2 "
        assert lag in said
    assert "open  " not in said
    (first, second) = json.loads(status(checkpoint, bootstrap, "--json"))["live"]["lags"]
    assert (first["waiting"], second["waiting"]) == (3, 3)


def test_a_reference_says_where_the_cluster_is(checkpoint, bootstrap, monkeypatch):
    monkeypatch.setenv("KRISHIV_TEST_BROKERS", bootstrap)
    assert "of source 0: 3 offsets" in status(checkpoint, "${env:KRISHIV_TEST_BROKERS}")


def test_the_lag_of_the_only_source_has_no_number_before_it(checkpoint, bootstrap):
    entry = checkpoint / "offsets" / "0"
    entry.write_text(entry.read_text().rpartition("\n")[0])
    said = status(checkpoint, bootstrap, "-o", "subscribe=orders")
    assert "\nlag         3 offsets after the newest epoch" in said


def test_transactions_of_the_query_that_are_open(checkpoint, bootstrap):
    cluster = open_client(
        KafkaConfig.from_settings({"bootstrap.servers": bootstrap})
    ).fetch_cluster_id()
    claim_of(checkpoint, f"Kafka cluster {cluster}")
    assert "open        no transaction" in status(checkpoint, bootstrap)
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"krishiv.{QUERY}.0.0")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"y", partition=0)
    producer.flush()
    assert f"open        krishiv.{QUERY}.0.0  Ongoing" in status(checkpoint, bootstrap)
    other = status(checkpoint, bootstrap, "-o", "kafka.transactional.id=mine")
    assert "open        no transaction" in other
    producer.abort_transaction()
    producer.close()


def test_transactions_are_not_looked_for_in_a_cluster_that_is_not_the_target(checkpoint, bootstrap):
    claim_of(checkpoint, "Kafka cluster of-somebody-else")
    assert "open  " not in status(checkpoint, bootstrap)


def test_what_an_open_transaction_holds_back_is_said(checkpoint, bootstrap):
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id="somebody")
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(4):
        producer.send("orders", b"x", partition=1)
    producer.flush()
    try:
        said = status(checkpoint, bootstrap)
        # As a source of Spark's does by itself.
        all_seen = status(checkpoint, bootstrap, "-o", "kafka.isolation.level=read_uncommitted")
    finally:
        producer.abort_transaction()
        producer.close()
    assert "partitions; 4 more are blocked by open transactions" in said
    assert "blocked" not in all_seen
