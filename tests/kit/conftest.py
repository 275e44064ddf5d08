"""Fixtures: one broker for all suites of Kafka, and a producer for each."""

from pathlib import Path

import pytest
from kafka import KafkaProducer
from pg_onlooker import Database
from postgres import open_postgres, require_programs

from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.records import warm_up

FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before tests/conftest.py looks for the marker
def pytest_collection_modifyitems(items):
    """The guide shows the suites of its examples as they are: the marker cannot stand there."""
    for item in items:
        if item.path.parent == FOLDER and item.path.stem.endswith(
            "_example"
        ):  # spark/test_authors_guide.py runs each case
            item.add_marker(pytest.mark.variant)


@pytest.fixture(scope="session")
def cluster():
    """The broker of the whole run, or one for this process: see tests/support/shared_broker.py."""
    warm_up()  # here, so that no process of the kit loads compiled code, nor counts it as cached
    with open_cluster() as found:
        yield found


@pytest.fixture(scope="class")
def producer(cluster):
    # What is sent at once is one batch of records, which appears as a whole.
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=20, batch_size=2**20
    )
    yield producer
    producer.close()


@pytest.fixture(scope="session")
def database():
    """A server of PostgreSQL for this process."""
    with open_postgres(require_programs()) as uri:
        yield Database(int(uri.rpartition(":")[2].partition("/")[0]))
