"""PyIceberg's SQL catalog, with a cache of metadata and a check of SQLite's file. Driver.

PyIceberg reads and parses a table's metadata file whenever a table is loaded, twice for a commit,
and copies all of it for the next one. A metadata file never changes, and its name contains a UUID:
once the catalog has named the newest one, a process that has read it need not read it again. The
comparison and the update of a commit stay PyIceberg's own (`SqlCatalog.commit_table`).

A catalog in SQLite is used only while its path leads to the file that was opened: each transaction
checks that when it starts, and again right before its COMMIT.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import StagedTable, Table
from sqlalchemy import bindparam, event, select
from typing_extensions import override

from krishiv_spark.iceberg.embedded import CatalogFile, parse_sqlite_uri
from krishiv_spark.iceberg.guarded_catalog import GuardedMetastoreCatalog
from krishiv_spark.runtime.caches import LruCache

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import Identifier
    from sqlalchemy import Connection
    from sqlalchemy.engine.interfaces import DBAPIConnection

__all__ = ["CachingSqlCatalog"]

_CACHED_FILES = 8
_MAX_NAMES = 20
_MAX_ATTEMPTS = 5

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Part of a metadata file's name. A name without it, as ``v3.metadata.json``, may be reused."""


class CachingSqlCatalog(GuardedMetastoreCatalog, SqlCatalog):  # pyright: ignore[reportIncompatibleMethodOverride]  # see there
    """A SQL catalog that caches the metadata files it has read or written last. Driver.

    Its tables share their metadata, which never change: PyIceberg's models are frozen.
    """

    def __init__(self, name: str, **properties: str) -> None:
        try:
            self._open(name, properties)
        except BaseException:
            self.close()  # no caller has it, and a traceback would keep its connections open
            raise
        self._metadata: LruCache[str, TableMetadata] = LruCache(_CACHED_FILES)

    def _open(self, name: str, properties: Mapping[str, str]) -> None:
        """Connect, and again if the catalog's path leads to another file afterwards."""
        path = parse_sqlite_uri(properties.get("uri", ""))
        for _ in range(_MAX_ATTEMPTS):
            before = None if path is None else CatalogFile.at(path)
            super().__init__(name, **properties)  # SQLite creates the file if there is none
            self.catalog_file = None if path is None else CatalogFile.at(path)
            if self.catalog_file == before:
                break
            self.close()
        for moment in ("begin", "commit"):
            event.listen(self.engine, moment, self._check_file)
        # By identity, since not every client's connections can be hashed.
        self._connections: dict[int, DBAPIConnection] = {}
        event.listen(self.engine, "checkout", self._record_connection)
        event.listen(self.engine, "close", self._close_connection)

    def _record_connection(self, connection: DBAPIConnection, *_: object) -> None:
        self._connections[id(connection)] = connection

    def _close_connection(self, connection: DBAPIConnection, *_: object) -> None:
        """Close a connection before the pool does, which forgets it even if that fails."""
        with contextlib.suppress(Exception):  # then it remains for `close`
            connection.close()
            self._connections.pop(id(connection), None)

    @override
    def close(self) -> None:
        """Close all connections, also those in use, and with them SQLite's lock.

        If a commit and its rollback have failed, SQLAlchemy keeps the connection in use as long as
        anything refers to the error.
        """
        try:
            super().close()
        finally:
            for connection in [*getattr(self, "_connections", {}).values()]:
                self._close_connection(connection)

    def _check_file(self, connection: Connection) -> None:
        """Refuse a transaction in a file that the catalog's path no longer leads to.

        A refused transaction is rolled back here. SQLAlchemy takes a transaction for completed
        when its commit has raised: without that, the next statement of the connection would read
        the changes that were not committed, and an epoch would count as committed by them.

        Raises:
            CatalogReplacedError: If it leads to another file.
        """
        if self.catalog_file is not None:
            try:
                self.catalog_file.check()
            except BaseException:
                connection.connection.rollback()
                raise

    @cached_property
    def _row(self) -> Any:
        """The statement that finds a table; building it takes longer than executing it."""
        columns = (IcebergTables.table_namespace, IcebergTables.table_name)
        statement = select(*columns, IcebergTables.metadata_location).where(
            IcebergTables.catalog_name == self.name,
            IcebergTables.table_namespace == bindparam("namespace"),
            IcebergTables.table_name == bindparam("table"),
        )
        kind = self._iceberg_type_filter()
        return statement if kind is None else statement.where(kind)

    @override
    def load_table(self, identifier: str | Identifier) -> Table:
        """Load a table; the location of its metadata is always read from the database.

        Raises:
            NoSuchTableError: If it is missing.
        """
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
        name = Catalog.table_name_from(identifier)
        wanted = {"namespace": namespace, "table": name}
        with self.engine.connect() as connection:  # a session takes three times as long
            row: Any = connection.execute(self._row, wanted).first()
        if row is None:
            raise NoSuchTableError(f"Table does not exist: {namespace}.{name}")
        return self._convert_orm_to_iceberg(row)

    @override
    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        location = orm_table.metadata_location
        if not location:
            return super()._convert_orm_to_iceberg(orm_table)  # for its error
        metadata = self._metadata.get(location)
        if metadata is None:
            file = self._load_file_io(location=location).new_input(location)
            try:
                metadata = self.metadata_files.read(file, self.file_access.max_metadata_bytes)
            except FileNotFoundError as error:
                error.filename = location
                raise
            if _UUID.search(location.rpartition("/")[2]):
                self._metadata.put(location, metadata)
        identifier = (*Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
        io = self._load_file_io(location=location)
        return self._guard(Table(identifier, metadata, location, io, self))

    @override
    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        staged = super()._update_and_stage_table(
            current_table, table_identifier, requirements, updates
        )
        # Cached before the catalog accepts it: if it does not, no row ever names this location.
        self._metadata.put(staged.metadata_location, staged.metadata)
        return staged

    def list_catalog_names(self, identifier: Identifier | None = None) -> list[str]:
        """Return the names of catalogs that have a table in this database, sorted.

        Args:
            identifier: The table; None for any table.
        """
        statement = select(IcebergTables.catalog_name).distinct()
        if identifier is not None:
            namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
            statement = statement.where(
                IcebergTables.table_namespace == namespace,
                IcebergTables.table_name == Catalog.table_name_from(identifier),
            )
        with self.engine.connect() as connection:
            return sorted(name for (name,) in connection.execute(statement.limit(_MAX_NAMES)))
