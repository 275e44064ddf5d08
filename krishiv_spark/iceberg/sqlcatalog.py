"""PyIceberg's SQL catalog without what it does again and again for the same table.

PyIceberg reads and parses a table's metadata file whenever a table is loaded, twice for a commit,
and copies all of it for the next one. A metadata file never changes, and its name has a UUID: once
the catalog has said where the newest is, a process that has seen it need not read it again. What a
commit is compared with and set by stays PyIceberg's own (`SqlCatalog.commit_table`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import StagedTable, Table
from sqlalchemy import bindparam, select
from typing_extensions import override

from krishiv_spark.iceberg.guarded import GuardedMetastoreCatalog
from krishiv_spark.iceberg.metadata_files import MetadataFiles
from krishiv_spark.lru import LruCache

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import Identifier

__all__ = ["CachingSqlCatalog"]

_MOST = 8
_MOST_NAMES = 20


class CachingSqlCatalog(GuardedMetastoreCatalog, SqlCatalog):
    """A SQL catalog that remembers the metadata files it has read or written last. Driver.

    Its tables share their metadata, which nobody changes: PyIceberg's models are frozen.
    """

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._known: LruCache[str, TableMetadata] = LruCache(_MOST)
        self._files = MetadataFiles()

    @cached_property
    def _row(self) -> Any:
        """The statement that finds a table; to make it takes longer than to execute it."""
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
        """The table as it is now: the catalog is always asked where its metadata is.

        Raises:
            NoSuchTableError: If there is none.
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
        metadata = self._known.get(location)
        if metadata is None:
            file = self._load_file_io(location=location).new_input(location)
            metadata = self._files.read(file, self.file_access.max_metadata_bytes)
            self._known.put(location, metadata)
        identifier = (*Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
        io = self._load_file_io(location=location)
        return self._guarded(Table(identifier, metadata, location, io, self))

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
        # Before the catalog accepts it: if it does not, no row ever names this location.
        self._known.put(staged.metadata_location, staged.metadata)
        return staged

    def names_with(self, identifier: Identifier | None = None) -> list[str]:
        """Return the names of catalogs that have a table in this database.

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
            return sorted(name for (name,) in connection.execute(statement.limit(_MOST_NAMES)))
