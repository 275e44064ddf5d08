"""``krishiv-parquet`` as a sink in a bucket, under the kit: whoever lists it reads whole files.

Nothing here may use obstore before the kit has forked: its threads do not survive that. So
`pytest_collection_modifyitems` has the kit's cases go first, and the oracle asks by boto3.
"""

import uuid
from dataclasses import replace

import pytest
from store_tables import make_onlooker

from krishiv_spark.errors import StorageError
from krishiv_spark.formats import ParquetDataSource
from krishiv_spark.sinks.parquet import store_table as store_sink
from krishiv_spark.storage import s3
from krishiv_spark.testing import SinkConformance, SinkUnderTest

STORE = {  # by what storage is asked: each request may fail, or its answer be lost
    "krishiv_spark.storage.clients:StoreClient.ask": StorageError,
    "krishiv_spark.storage.webhdfs:WebHdfs._ask": StorageError,
    "krishiv_spark.storage.webhdfs:WebHdfs.stream": StorageError,
}


@pytest.fixture(autouse=True)
def soon_settled(monkeypatch):
    monkeypatch.setattr(s3, "_SETTLED_S", 0.2)


class _InStore(SinkConformance):
    kind: str
    random_sequences = 20

    @pytest.fixture(autouse=True)
    def opened(self, servers):
        type(self).store = servers(self.kind)

    def sink(self, folder):
        url = f"{self.store.url}/{folder.name}-{uuid.uuid4().hex}"
        reader = make_onlooker(url, self.store.options)
        return SinkUnderTest(
            source=ParquetDataSource,
            options={"path": url, **self.store.options},
            oracle=reader.rows,
            leftovers=reader.pending,
            most_held=2**27,  # a row group, and parts that are on their way
            whole_epochs=False,  # files appear one by one while an epoch is being committed
            outside=STORE,
        )


@pytest.mark.xdist_group("s3")
class TestParquetSinkInS3(_InStore):
    kind = "s3"


@pytest.mark.variant  # the same requests, to another implementation
@pytest.mark.xdist_group("versity")
class TestParquetSinkInVersity(_InStore):
    kind = "versity"


@pytest.mark.variant  # the same sink, by blocks
@pytest.mark.xdist_group("azure")
class TestParquetSinkInAzure(_InStore):
    kind = "azure"

    def sink(self, folder):
        return replace(super().sink(folder), leftovers=list)  # what is left, Azure removes


@pytest.mark.variant  # the same sink, by files aside and copies
@pytest.mark.xdist_group("gcs")
class TestParquetSinkInGoogles(_InStore):
    kind = "gcs"


@pytest.mark.variant  # the same sink, by files aside and renames
@pytest.mark.xdist_group("hdfs")
class TestParquetSinkInHdfs(_InStore):
    kind = "hdfs"


@pytest.mark.xdist_group("s3")
class TestUploadsThatExpire(_InStore):
    """As if each upload were older than a day: then rules of the bucket may abort it."""

    kind = "s3"

    @pytest.fixture(autouse=True)
    def old(self, monkeypatch):
        monkeypatch.setattr(store_sink, "_CHECKED_AFTER_MS", -1)
        monkeypatch.setattr(store_sink, "_EXPIRES_AFTER_MS", -1)

    def sink(self, folder):
        found = super().sink(folder)
        reader = make_onlooker(found.options["path"], self.store.options)

        def expire():
            if not list(reader.keys()):  # an epoch that is visible in part is for the operator
                reader.expire()

        return replace(found, expire=expire)


@pytest.mark.xdist_group("azure")
class TestBlocksThatExpire(TestUploadsThatExpire):
    """As Azure removes them after a week."""

    kind = "azure"


for name in dir(SinkConformance):  # the rest is what the suite before tries
    if name.startswith("test_") and name != "test_expired_staging_is_not_published":
        setattr(TestUploadsThatExpire, name, None)
