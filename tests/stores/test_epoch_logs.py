"""Sinks whose epoch log is in a bucket and whose rows go elsewhere, under the kit.

Nothing here may use obstore before the kit has forked: its threads do not survive that. So
`pytest_collection_modifyitems` has the kit's cases go first.
"""

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from fanout_sides import Table, Topic, make_pair
from kafka_sinks import into_topic
from kafka_topics import Onlooker

from krishiv_spark.errors import StorageError
from krishiv_spark.testing import SinkConformance

STORE: dict[str, Callable] = {"krishiv_spark.storage.clients:StoreClient.ask": StorageError}


class _LoggedInBucket(SinkConformance):
    random_sequences = 10

    @pytest.fixture(autouse=True)
    def _environment(self, servers, cluster, onlooker):
        self.store, self.cluster, self.onlooker = servers("s3"), cluster, onlooker

    def in_bucket(self, sink):
        """The same sink, which stops at requests to the bucket too."""
        log = {"epochLog": f"{self.store.url}/{uuid.uuid4().hex}", **self.store.options}
        outside = {**sink.outside, **STORE}
        return replace(sink, options={**sink.options, **log}, outside=outside)


@pytest.mark.variant  # the same epochs as with a log on a disk
@pytest.mark.xdist_group("kafka")
class TestKafkaSinkLoggedInS3(_LoggedInBucket):
    def sink(self, folder):
        del folder
        look = self.onlooker
        return self.in_bucket(into_topic(self.cluster.bootstrap, look.committed, look.waiting))


@pytest.mark.variant  # likewise; an Iceberg table by itself has no log
@pytest.mark.xdist_group("kafka")
class TestFanoutLoggedInS3(_LoggedInBucket):
    def sink(self, folder):
        topic = partial(Topic, cluster=self.cluster, onlooker=self.onlooker)
        return self.in_bucket(make_pair((topic, Table), folder))


@pytest.fixture(scope="module")
def onlooker(cluster):
    found = Onlooker(cluster.bootstrap)
    yield found
    found.close()
