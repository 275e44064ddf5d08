"""``krishiv-iceberg`` as a sink into buckets, under the kit; PyIceberg reads them by boto3.

Nothing here may use obstore or PyArrow's client of S3 before the kit has forked: their threads do
not survive that. So `pytest_collection_modifyitems` has the kit's cases go first.
"""

import pytest
from botocore.exceptions import ConnectionClosedError
from iceberg_places import Onlooker, new_place

from krishiv_spark.errors import StorageError
from krishiv_spark.formats import IcebergDataSource
from krishiv_spark.testing import SinkConformance, SinkUnderTest
from krishiv_spark.testing.processes.outside import SQLITE, Look


def _closed(text: str) -> Exception:
    return ConnectionClosedError(endpoint_url=text)


FILES = {  # PyArrow writes and reads objects inside of C++: by what it is asked to
    "pyiceberg.io.pyarrow:PyArrowFile.create": OSError,
    "pyiceberg.io.pyarrow:PyArrowFile.open": Look(OSError),
    "pyiceberg.io.pyarrow:PyArrowFile.exists": Look(OSError),
    "pyiceberg.io.pyarrow:PyArrowFileIO.delete": OSError,
    "pyarrow.parquet.core:ParquetWriter.close": OSError,
    "krishiv_spark.storage.clients:StoreClient.ask": Look(StorageError),
}
CATALOGS = {"sql": SQLITE, "glue": {"botocore.httpsession:URLLib3Session.send": _closed}}


class _InBucket(SinkConformance):
    server, catalog = "s3", "sql"
    patience = "300 ms"
    random_sequences = 20

    @pytest.fixture(autouse=True)
    def opened(self, servers):
        type(self).store = servers(self.server)

    def sink(self, folder):
        place = new_place(self.catalog, self.store, folder)
        given = {"path": place.name, "warehouse": place.url, "commitTimeout": self.patience}
        return SinkUnderTest(
            source=IcebergDataSource,
            options={**given, **place.options},
            oracle=Onlooker(place).rows,
            leftovers=place.unnamed,
            sweeps=False,  # krishiv-spark iceberg vacuum does, when nobody can need them any more
            most_held=2**27,  # a row group, and parts that are on their way
            outside={**FILES, **CATALOGS[self.catalog]},
        )


@pytest.mark.variant  # the same commits as on a disk
@pytest.mark.xdist_group("s3")
class TestIcebergSinkInS3(_InBucket):
    pass


@pytest.mark.variant  # the same requests, to another implementation
@pytest.mark.xdist_group("versity")
class TestIcebergSinkInVersity(_InBucket):
    server = "versity"


@pytest.mark.variant  # the same sink; what is Glue's own is in test_iceberg_table.py
@pytest.mark.xdist_group("s3")
class TestIcebergSinkByGlue(_InBucket):
    catalog = "glue"
    patience = "1 s"
