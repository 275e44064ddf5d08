"""The database of an embedded catalog that is relocated. Operator."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.relocation.path_map import PathMap

__all__ = ["CatalogRow", "create_database", "open_database", "read_rows"]

_PATIENCE_S = 10.0
_KEY = "catalog_name, table_namespace, table_name"


class CatalogRow(NamedTuple):
    """A table or a view.

    Attributes:
        catalog: Name of the catalog.
        namespace: Its levels, with dots between them.
        table: The name.
        metadata: Location of its metadata file.
        is_view: True for a view.
    """

    catalog: str
    namespace: str
    table: str
    metadata: str
    is_view: bool

    @property
    def name(self) -> str:
        """The full name, for messages."""
        return f"{self.namespace}.{self.table}"

    @property
    def key(self) -> str:
        """The same for one table of a database, and for no other one."""
        return f"{self.catalog} {self.name}"


@contextlib.contextmanager
def open_database(file: Path, *, lock: bool) -> Iterator[sqlite3.Connection]:
    """Open a database for reading.

    Args:
        file: Of the database.
        lock: True to keep all other processes from writing to it until the end.

    Raises:
        OptionError: If it is not there, is no catalog, or is used by another process.
    """
    if not file.is_file():
        raise OptionError(f"{FORMAT}: there is no catalog {file}")
    with contextlib.closing(
        sqlite3.connect(file, isolation_level=None, timeout=_PATIENCE_S)
    ) as connection:
        try:
            if lock:
                # A write-ahead log beside the file would be taken for that of the next one.
                connection.execute("PRAGMA journal_mode = DELETE")
                connection.execute("BEGIN IMMEDIATE")
            connection.execute("SELECT 1 FROM iceberg_tables").fetchone()
        except sqlite3.Error as error:
            raise OptionError(
                f"{FORMAT}: the catalog {file} cannot be used: {error}. Stop the queries that "
                "write to it, and run the command again"
            ) from error
        yield connection


def read_rows(connection: sqlite3.Connection) -> list[CatalogRow]:
    """Return the tables and views of all catalogs of a database."""
    columns = {row[1] for row in connection.execute("PRAGMA table_info(iceberg_tables)")}
    kind = "iceberg_type" if "iceberg_type" in columns else "NULL"
    found = connection.execute(
        f"SELECT {_KEY}, metadata_location, {kind} FROM iceberg_tables ORDER BY {_KEY}"  # noqa: S608
    )
    return [
        CatalogRow(catalog, namespace, table, metadata or "", kind == "VIEW")
        for catalog, namespace, table, metadata, kind in found
    ]


def create_database(
    source: Path,
    file: Path,
    locations: Mapping[CatalogRow, str],
    paths: PathMap,
) -> None:
    """Create a copy of a database with other locations; it is on the disk when this returns.

    Args:
        source: The old one. If it is not locked, what was added to it after `locations` were read
            is left out: that names the old folder.
        file: The new one; one that is there is removed first.
        locations: By row, the new location of its metadata file. Others are left out.
        paths: Translates the locations of namespaces.

    Raises:
        OptionError: If a table was renamed or dropped meanwhile.
    """
    file.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(file)) as target:
        # By a connection of its own: one that has begun a transaction would wait for itself.
        with contextlib.closing(sqlite3.connect(source, timeout=_PATIENCE_S)) as reader:
            reader.backup(target)
        known = {(row.catalog, row.namespace, row.table) for row in locations}
        where = "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
        for key in target.execute(f"SELECT {_KEY} FROM iceberg_tables").fetchall():  # noqa: S608
            if key not in known:
                target.execute(f"DELETE FROM iceberg_tables {where}", key)  # noqa: S608
        for row, location in locations.items():
            if location == row.metadata:
                continue  # it stays as it is
            key = (row.catalog, row.namespace, row.table)
            update = "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location"
            previous = paths.translate(row.metadata)
            done = target.execute(f"{update} = ? {where}", (location, previous, *key))
            if done.rowcount == 0:
                raise OptionError(
                    f"{FORMAT}: table {row.name} was renamed or dropped meanwhile. Nothing was "
                    "switched: run the command again"
                )
        found = target.execute(
            "SELECT rowid, property_value FROM iceberg_namespace_properties "
            "WHERE property_key = 'location'"
        ).fetchall()
        for rowid, place in found:
            target.execute(
                "UPDATE iceberg_namespace_properties SET property_value = ? WHERE rowid = ?",
                (paths.translate(place), rowid),
            )
        target.commit()
    os.sync()
