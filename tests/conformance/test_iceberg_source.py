"""``krishiv-iceberg`` as a source, under the kit: PyIceberg appends to a table."""

import datetime as dt
import errno

import pyarrow as pa
from iceberg_tables import append, make_table

from krishiv_spark.formats import IcebergDataSource
from krishiv_spark.testing import ROW_SCHEMA, SourceConformance, SourceUnderTest
from krishiv_spark.testing.processes.outside import OUTSIDE
from krishiv_spark.testing.subjects import columns

TIMED = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
# Files of the table are read by Arrow, which the kit does not see.
SEEN = {
    **OUTSIDE,
    "pyiceberg.io.pyarrow:PyArrowFile.open": lambda text: OSError(errno.EIO, text),
}


def appending(folder, schema):
    make_table(folder, schema)
    return lambda rows: append(folder, pa.table(columns(schema, rows), schema=schema))


class TestIcebergSource(SourceConformance):
    random_sequences = 30

    def source(self, folder):
        return SourceUnderTest(
            source=IcebergDataSource,
            options={"warehouse": str(folder), "table": "db.t"},
            add=appending(folder, ROW_SCHEMA),
            latest={"startingOffsets": "latest"},
            outside=SEEN,
        )


class TestTimedIcebergSource(SourceConformance):
    random_sequences = 10

    def source(self, folder):
        return SourceUnderTest(
            source=IcebergDataSource,
            options={"warehouse": str(folder), "table": "db.t"},
            add=appending(folder, TIMED),
            schema=TIMED,
            row=lambda n: (
                n,
                dt.datetime(2013, 1, 1, n // 60 % 24, n % 60, tzinfo=dt.timezone.utc),
            ),
            event_time="at",
            outside=SEEN,
        )
