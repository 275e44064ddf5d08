"""A table in an embedded catalog that the kit writes, and who looks at it without our code."""

import os
import sqlite3
from contextlib import closing
from itertools import pairwise

import pyarrow as pa
from pyiceberg.table import StaticTable

QUERY, EPOCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"


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
        place = find_metadata_location(self.folder)
        if place != self.place or not all(map(os.path.exists, self.files)):
            self.files = [*self.folder.rglob("*")]
            self.found = [] if place is None else self._read(StaticTable.from_metadata(place))
            self.place = place
        return self.found

    @staticmethod
    def _read(table):
        """The rows, if Iceberg-Java would load the table: it compares the times of the logs.

        An epoch has one snapshot: rows with keys hide that an epoch was committed twice.
        """
        metadata = table.metadata
        for log in (metadata.snapshot_log, metadata.metadata_log):
            times = [*(entry.timestamp_ms for entry in log), metadata.last_updated_ms]
            assert all(b - a >= -60_000 for a, b in pairwise(times)), f"times go back: {times}"
        summaries = [snapshot.summary.additional_properties for snapshot in metadata.snapshots]
        epochs = [(s[QUERY], s[EPOCH]) for s in summaries if EPOCH in s]
        assert len({*epochs}) == len(epochs), f"an epoch has two snapshots: {epochs}"
        return table.scan().to_arrow()

    def unnamed(self):
        """Data files that are not in the table."""
        table = StaticTable.from_metadata(find_metadata_location(self.folder))
        named = table.inspect.files()["file_path"].to_pylist()
        return {str(file) for file in self.folder.rglob("*.parquet")} - {
            n.removeprefix("file://") for n in named
        }


class ChangeOnlooker(Onlooker):
    """The same, for changes of rows, which are staged in files of their own."""

    def unnamed(self):
        """Staged changes, and files of rows and deletes, that are in no snapshot of the table."""
        table = StaticTable.from_metadata(find_metadata_location(self.folder))
        named = {
            name.removeprefix("file://")
            for name in table.inspect.all_files()["file_path"].to_pylist()
        }
        written = {*self.folder.rglob("*.parquet"), *self.folder.rglob("*.changes")}
        return {str(file) for file in written} - named


class UpsertOnlooker(ChangeOnlooker):
    """The same, for rows with an operation, which is not in the table."""

    @staticmethod
    def _read(table):
        rows = Onlooker._read(table)
        return rows.append_column("op", pa.array(["u"] * rows.num_rows, pa.string()))


def find_metadata_location(folder):
    """Return the location of the table's metadata; None while there is no table."""
    if not (folder / "catalog.db").exists():
        return None
    with closing(sqlite3.connect(folder / "catalog.db")) as catalog:
        if not catalog.execute(
            "SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'"
        ).fetchone():
            return None
        found = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    return found[0][0] if found else None
