"""``krishiv-iceberg`` as a sink, under the kit: PyIceberg by itself reads what is in the table."""

from contextlib import contextmanager

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from krishiv_spark.formats.iceberg import IcebergDataSource
from krishiv_spark.testing import SinkConformance, SinkUnderTest


class TestIcebergSink(SinkConformance):
    def sink(self, folder):
        return SinkUnderTest(
            source=IcebergDataSource,
            options=options(folder),
            oracle=lambda: rows(folder),
            leftovers=lambda: unnamed(folder),
            sweeps=False,  # krishiv-spark iceberg vacuum does, when nobody can need them any more
            most_held=2**26,  # a row group
        )


class TestPartitionedIcebergSink(SinkConformance):
    random_sequences = 10

    def sink(self, folder):
        given = {"partitionBy": "day, bucket(2, id)", "sortBy": "id", "keepSnapshots": "1"}
        return SinkUnderTest(
            source=IcebergDataSource,
            options={**options(folder), **given, "keepMetadataFiles": "1"},
            oracle=lambda: rows(folder),
            schema=pa.schema([("id", pa.int64()), ("day", pa.string())]),
            row=lambda number: (number, f"d{number % 2}"),
            leftovers=lambda: unnamed(folder),
            sweeps=False,
        )

    # What these prove does not depend on partitions, and takes a minute.
    test_complete_mode = None
    test_a_stale_driver_cannot_publish = None
    test_an_unknown_outcome_is_looked_up = None


def options(folder):
    """A driver that sleeps inside of a transaction holds SQLite's lock: others give up soon."""
    return {
        "path": "db.rows",
        "warehouse": str(folder),
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{folder}/catalog.db?timeout=0.1",
        "commitTimeout": "1 s",
    }


@contextmanager
def opened(folder):
    catalog = SqlCatalog("krishiv", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder))
    try:
        yield catalog.load_table("db.rows")
    finally:
        catalog.close()


def rows(folder):
    try:
        with opened(folder) as table:
            return table.scan().to_arrow()
    except NoSuchTableError:
        return []


def unnamed(folder):
    """Data files that are not in the table."""
    with opened(folder) as table:
        named = table.inspect.files()["file_path"].to_pylist()
    return {str(file) for file in folder.rglob("*.parquet")} - {
        n.removeprefix("file://") for n in named
    }
