"""``krishiv-iceberg`` as a sink, under the kit: PyIceberg by itself reads what is in the table."""

import os
import sqlite3
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest
from in_foreach_batch import in_foreach_batch
from pyiceberg.table import StaticTable

from krishiv_spark.formats.iceberg import IcebergDataSource
from krishiv_spark.testing import SinkConformance, SinkUnderTest


class TestIcebergSink(SinkConformance):
    def sink(self, folder):
        onlooker = Onlooker(folder)
        return SinkUnderTest(
            source=IcebergDataSource,
            options=options(folder),
            oracle=onlooker.rows,
            leftovers=onlooker.unnamed,
            sweeps=False,  # krishiv-spark iceberg vacuum does, when nobody can need them any more
            most_held=2**26,  # a row group
        )


@pytest.mark.variant  # the same epochs, as batch jobs with numbers
class TestIcebergSinkInForeachBatch(TestIcebergSink):
    random_sequences = 10

    def sink(self, folder):
        return replace(super().sink(folder), source=in_foreach_batch(IcebergDataSource))


@pytest.mark.variant  # who commits what, and when, is the same with partitions
class TestPartitionedIcebergSink(SinkConformance):
    random_sequences = 10

    def sink(self, folder):
        onlooker = Onlooker(folder)
        given = {"partitionBy": "day, bucket(2, id)", "sortBy": "id", "keepSnapshots": "1"}
        return SinkUnderTest(
            source=IcebergDataSource,
            options={**options(folder), **given, "keepMetadataFiles": "1"},
            oracle=onlooker.rows,
            schema=pa.schema([("id", pa.int64()), ("day", pa.string())]),
            row=lambda number: (number, f"d{number % 2}"),
            leftovers=onlooker.unnamed,
            sweeps=False,
        )

    # What these prove does not depend on partitions, and takes a minute.
    test_complete_mode = None
    test_a_stale_driver_cannot_publish = None
    test_an_unknown_outcome_is_looked_up = None


def options(folder):
    """A driver that sleeps inside of a transaction holds SQLite's lock, and an outage lasts: others
    give up soon."""
    return {
        "path": "db.rows",
        "warehouse": str(folder),
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{folder}/catalog.db?timeout=0.1",
        "commitTimeout": "300 ms",
    }


class Onlooker:
    """PyIceberg by itself, at the place that the catalog names.

    What is there never changes, so it is read again only if a file has gone since.
    """

    def __init__(self, folder):
        self.folder, self.place, self.files, self.found = folder, None, [], []

    def rows(self):
        place = named_in_catalog(self.folder)
        if place != self.place or not all(map(os.path.exists, self.files)):
            self.files = [*self.folder.rglob("*")]
            self.found = [] if place is None else StaticTable.from_metadata(place).scan().to_arrow()
            self.place = place
        return self.found

    def unnamed(self):
        """Data files that are not in the table."""
        table = StaticTable.from_metadata(named_in_catalog(self.folder))
        named = table.inspect.files()["file_path"].to_pylist()
        return {str(file) for file in self.folder.rglob("*.parquet")} - {
            n.removeprefix("file://") for n in named
        }


def named_in_catalog(folder):
    """Where the table's metadata is; None while there is no table."""
    if not (folder / "catalog.db").exists():
        return None
    with closing(sqlite3.connect(folder / "catalog.db")) as catalog:
        if not catalog.execute(
            "SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'"
        ).fetchone():
            return None
        found = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    return found[0][0] if found else None
