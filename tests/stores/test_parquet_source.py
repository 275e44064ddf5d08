"""``krishiv-parquet`` as a source in each store, under the kit."""

import datetime as dt
import uuid

import pyarrow as pa
import pytest
from parquet_reading import ForgetfulDataSource
from store_objects import Objects

from krishiv_spark.errors import StorageError
from krishiv_spark.formats import ParquetDataSource
from krishiv_spark.testing import (
    ROW_SCHEMA,
    Add,
    Fault,
    Sequence,
    SourceConformance,
    SourceUnderTest,
    Trigger,
)
from krishiv_spark.testing.subjects import default_row

TIMED = pa.schema([*ROW_SCHEMA, ("at", pa.timestamp("us", "UTC"))])
NEW_YEAR = dt.datetime(2013, 1, 1, tzinfo=dt.timezone.utc)
REQUESTS = {
    "krishiv_spark.storage.clients:StoreClient.ask": StorageError,
    "krishiv_spark.storage.webhdfs:WebHdfs._ask": StorageError,
}


class OnStore(SourceConformance):
    __test__ = False

    @pytest.fixture(autouse=True)
    def _environment(self, store):
        self.store = store

    def tried(self, folder, source, schema, **more):
        objects = Objects(self.store, f"{folder.name}-{uuid.uuid4().hex}")
        return SourceUnderTest(
            source=source,
            options={"path": objects.url, **objects.options},
            add=lambda rows: objects.put_table(f"{uuid.uuid4()}.parquet", table_of(rows, schema)),
            schema=schema,
            small_tasks={"maxPartitionBytes": "1k"},
            latest={"startingOffsets": "latest"},
            outside=REQUESTS,
            **more,
        )


class TestParquetSource(OnStore):
    __test__ = True
    random_sequences = 10
    sequences = (  # an object that could not be asked was taken for one that is being written
        Sequence(
            *(Add(), Trigger(trap=Fault(call=3)), Trigger(), Add(), Trigger()),
            options={"startingOffsets": "latest"},
            skipped=3,
        ),
    )

    def source(self, folder):
        return self.tried(
            folder,
            ParquetDataSource,
            TIMED,
            row=lambda n: (*default_row(n), NEW_YEAR + dt.timedelta(minutes=n)),
            any_value=("text",),
            event_time="at",
        )


@pytest.mark.long  # what is in state is tried without it in offsets
class TestForgetfulParquetSource(OnStore):
    """With every offset in files of state, which are in the store too."""

    __test__ = True
    random_sequences = 10

    def source(self, folder):
        return self.tried(folder, ForgetfulDataSource, ROW_SCHEMA)


def table_of(rows, schema):
    columns = [list(column) for column in zip(*rows, strict=True)]
    return pa.table(columns, schema=schema)
