"""The locations in which Spark's streams store their state."""

from collections.abc import Iterator

import pytest
from java_iceberg import JavaTables, open_java
from kafka_topics import make_topic
from store_or_skip import open_when_possible

from krishiv_spark.kafka.dev import open_cluster
from servers.stores import Store


@pytest.fixture
def store(request, tmp_path) -> Store:
    """The store that a test names by its kind; its server is the test's own, to be killed."""
    (tmp_path / "store").mkdir()
    with open_when_possible(request.param, tmp_path / "store") as store:
        yield store


@pytest.fixture
def two_topics():
    """A cluster with what `three_targets` copies: the topics "source" and "target", both empty."""
    with open_cluster(ours=True) as cluster:
        for topic in ("source", "target"):
            make_topic(cluster.bootstrap, topic, partitions=2)
        yield cluster


@pytest.fixture(scope="session")
def java() -> Iterator[JavaTables]:
    """Iceberg's own library, in one JVM for all tests."""
    with open_java() as tables:
        yield tables
