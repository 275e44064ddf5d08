"""Catalogs whose tables choose neither code nor hosts. Driver.

PyIceberg creates FileIOs and location providers in each of its catalogs, from the properties of
the table. These classes follow the rules of `file_access` instead. `catalogs.guard` applies them to
a catalog of any class.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, cast

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.table import StagedTable, Table
from pyiceberg.typedef import EMPTY_DICT
from typing_extensions import override

from krishiv_spark.errors import SchemaError
from krishiv_spark.iceberg._pyiceberg import apply_updates, write_metadata
from krishiv_spark.iceberg.commit_rules import check_expiry, check_sequence_number
from krishiv_spark.iceberg.embedded import CatalogFile
from krishiv_spark.iceberg.file_access import FileAccess, warn_of_ignored
from krishiv_spark.iceberg.file_io import GuardedFileIO, get_access
from krishiv_spark.iceberg.metadata_files import MetadataFiles, choose_suffix
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.own_files import create_metadata_uuid, delete_old_metadata

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table.locations import LocationProvider
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import Identifier, Properties

__all__ = [
    "GuardedCatalog",
    "GuardedMetastoreCatalog",
    "GuardedTable",
]


class GuardedTable(Table):
    """A table whose files and their names follow the user's options: its `io` is guarded."""

    @override
    def location_provider(self) -> LocationProvider:
        """Return the provider of names for new files.

        Raises:
            OptionError: If a property of the table names a folder that the user did not allow, or
                the class that the user names cannot be created.
        """
        return get_access(self).location_provider(self.metadata)


class GuardedCatalog(Catalog):
    """A catalog that takes no settings from its tables."""

    file_access = FileAccess()
    catalog_file: CatalogFile | None = None
    """The file of a catalog in SQLite; None of other catalogs."""

    @override
    def load_table(self, identifier: str | Identifier) -> Table:
        """Load a table.

        Raises:
            NoSuchTableError: If it is missing.
        """
        return self._guard(super().load_table(identifier))  # type: ignore[safe-super]  # a mixin

    @override
    def create_table(self, *args: Any, **given: Any) -> Table:
        """Create a table; the arguments are those of PyIceberg.

        Raises:
            TableAlreadyExistsError: If it exists.
        """
        return self._guard(super().create_table(*args, **given))  # type: ignore[safe-super]

    @override
    def _load_file_io(
        self, properties: Properties = EMPTY_DICT, location: str | None = None
    ) -> FileIO:
        del properties  # of the table, which must not choose settings
        return super()._load_file_io(location=location)

    @staticmethod
    @override
    def _delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        delete_old_metadata(cast("GuardedFileIO", io), base, metadata)

    def _guard(self, table: Table) -> Table:
        """Return the table with guarded files; a table that is guarded already is unchanged."""
        if isinstance(table, GuardedTable):
            return table
        _check_current(table)
        settings, location = {**self.properties, **table.config}, table.metadata_location or ""
        access = self.file_access.for_table(table.metadata, location, settings)
        warn_of_ignored(".".join(table.name()), table.metadata, self.file_access)
        table.io = GuardedFileIO(table.io, access)
        table.catalog = table.catalog if isinstance(table.catalog, GuardedCatalog) else self
        kind: Any = type(table)
        table.__class__ = _get_guarded_class(kind)
        return table


def _check_current(table: Table) -> None:
    """Refuse metadata without its own current schema: PyIceberg raises StopIteration for it.

    Raises:
        SchemaError: If the current schema, partition spec or sort order is missing.
    """
    metadata = table.metadata
    try:
        _ = metadata.schema(), metadata.spec(), metadata.sort_order()
    except StopIteration:
        raise SchemaError(
            f"{FORMAT}: the metadata of table {'.'.join(table.name())} "
            f"({table.metadata_location}) do not have their own current schema, partition spec or "
            "sort order: they are damaged. Have the table's owner restore them"
        ) from None


class GuardedMetastoreCatalog(GuardedCatalog, MetastoreCatalog):
    """A catalog whose client writes the metadata files: SQL, Glue, Hive."""

    @cached_property
    def metadata_files(self) -> MetadataFiles:
        """The reader and writer of metadata files."""
        return MetadataFiles()

    # A static method there, which knows nothing of earlier files.
    @override
    def _write_metadata(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, metadata: TableMetadata, io: FileIO, metadata_path: str
    ) -> None:
        write = super()._write_metadata
        if write is write_metadata:
            self.metadata_files.write(metadata, io.new_output(metadata_path))
        else:  # a class of the user's own
            write(metadata, io, metadata_path)

    @override
    def _load_file_io(
        self, properties: Properties = EMPTY_DICT, location: str | None = None
    ) -> FileIO:
        if location is not None:
            self.file_access.check_metadata_file(location, self.properties)
        return super()._load_file_io(properties, location)

    @override
    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        if current_table is None:
            return super()._update_and_stage_table(None, table_identifier, requirements, updates)
        current_table = self._guard(current_table)  # some catalogs load it by another method
        for requirement in requirements:
            requirement.validate(current_table.metadata)
        check_expiry(current_table.metadata, updates)
        check_sequence_number(current_table.metadata, updates)
        metadata = apply_updates(current_table, updates)
        version = self._parse_metadata_version(current_table.metadata_location) + 1
        # PyIceberg's name, with the table's own id, and the suffix of Iceberg-Java.
        suffix = choose_suffix(metadata.properties)
        name = f"{version:05d}-{create_metadata_uuid(metadata.table_uuid)}{suffix}"
        provider = get_access(current_table).location_provider(metadata)
        location = provider.new_metadata_location(name)
        return StagedTable(table_identifier, metadata, location, current_table.io, self)


@lru_cache(maxsize=16)
def _get_guarded_class(kind: type[Table]) -> type[Table]:
    return GuardedTable if kind is Table else type(kind.__name__, (GuardedTable, kind), {})
