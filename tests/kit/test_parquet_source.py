"""``krishiv-parquet`` as a source, under the kit: files of another program appear in a folder."""

import datetime as dt
import os
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_reading import ForgetfulDataSource

from krishiv_spark.formats import ParquetDataSource
from krishiv_spark.testing import ROW_SCHEMA, SourceConformance, SourceUnderTest
from krishiv_spark.testing.subjects import default_row

TIMED = pa.schema([*ROW_SCHEMA, ("at", pa.timestamp("us", "UTC"))])
NEW_YEAR = dt.datetime(2013, 1, 1, tzinfo=dt.timezone.utc)


class TestParquetSource(SourceConformance):
    def source(self, folder):
        return SourceUnderTest(
            source=ParquetDataSource,
            options={"path": str(folder)},
            add=lambda rows: drop_file(folder, rows, TIMED),
            schema=TIMED,
            row=lambda n: (*default_row(n), NEW_YEAR + dt.timedelta(minutes=n)),
            any_value=("text",),
            event_time="at",
            small_tasks={"maxPartitionBytes": "1k"},
            latest={"startingOffsets": "latest"},
        )


@pytest.mark.long  # what is in state is tried without it in offsets
class TestForgetfulParquetSource(SourceConformance):
    """With every offset in files of state, so that it is tried to die at each call for them."""

    random_sequences = 20

    def source(self, folder):
        return SourceUnderTest(
            source=ForgetfulDataSource,
            options={"path": str(folder)},
            add=lambda rows: drop_file(folder, rows, ROW_SCHEMA),
            small_tasks={"maxPartitionBytes": "1k"},
            latest={"startingOffsets": "latest"},
        )


def drop_file(folder, rows, schema):
    """Write a file aside and move it in, as the source asks of other programs."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    aside = folder / f".{uuid.uuid4()}"
    pq.write_table(pa.table(columns, schema=schema), aside)
    os.rename(aside, folder / f"{uuid.uuid4()}.parquet")
