"""``krishiv-iceberg`` as a source, under the kit: PyIceberg appends to a table."""

import datetime as dt
import errno
from itertools import count

import pyarrow as pa
import pytest
from iceberg_life import IcebergLife
from iceberg_tables import append, make_table

from krishiv_spark.formats import IcebergDataSource
from krishiv_spark.testing import ROW_SCHEMA, SourceConformance, SourceUnderTest
from krishiv_spark.testing.processes.outside import OUTSIDE
from krishiv_spark.testing.rows import columns
from krishiv_spark.testing.subjects import default_row

TIMED = pa.schema([*ROW_SCHEMA, ("at", pa.timestamp("us", "UTC"))])
NEW_YEAR = dt.datetime(2013, 1, 1, tzinfo=dt.timezone.utc)
# Files of the table are read by Arrow, which the kit does not see.
SEEN = {
    **OUTSIDE,
    "pyiceberg.io.pyarrow:PyArrowFile.open": lambda text: OSError(errno.EIO, text),
}


def appending(folder, schema):
    make_table(folder, schema)
    return lambda rows: append(folder, pa.table(columns(schema, rows), schema=schema))


@pytest.mark.core_cases
class TestIcebergSource(SourceConformance):
    random_sequences = 30

    def source(self, folder):
        return SourceUnderTest(
            source=IcebergDataSource,
            options={"warehouse": str(folder), "table": "db.t"},
            add=appending(folder, TIMED),
            schema=TIMED,
            row=lambda n: (*default_row(n), NEW_YEAR + dt.timedelta(minutes=n)),
            any_value=("text",),
            event_time="at",
            latest={"startingOffsets": "latest"},
            outside=SEEN,
        )


LABELLED = pa.schema([*ROW_SCHEMA, ("_op", pa.string()), ("_weight", pa.int32())])


def upserting(folder):
    """Make each unit one snapshot of the sink, which also copies earlier rows."""
    life, epochs = IcebergLife(folder, path="db.t", mode="upsert", keyColumns="id"), count()
    make_table(folder, ROW_SCHEMA)
    added = []

    def add(rows):
        again = [] if not added else [added[len(added) // 2]]
        plain = [row[:2] for row in rows]
        life.epoch(next(epochs), pa.table(columns(ROW_SCHEMA, [*plain, *again]), schema=ROW_SCHEMA))
        added.extend(plain)

    return add


@pytest.mark.variant  # changes of all kinds are tried in tests/unit/test_iceberg_changes.py
@pytest.mark.core_cases
class TestIcebergChanges(SourceConformance):
    """Upserts as changes: new rows have weight 1, and rows that were only moved are none."""

    random_sequences = 10

    def source(self, folder):
        return SourceUnderTest(
            source=IcebergDataSource,
            options={"warehouse": str(folder), "table": "db.t", "readChanges": "true"},
            add=upserting(folder),
            schema=LABELLED,
            row=lambda n: (*default_row(n), "insert", 1),
            latest={"startingOffsets": "latest"},
            outside=SEEN,
        )
