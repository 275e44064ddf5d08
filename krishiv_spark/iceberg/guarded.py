"""Catalogs whose tables choose neither code nor hosts. Driver.

PyIceberg creates FileIOs and location providers in each of its catalogs, from the properties of
the table. `guard` gives a catalog of any class these rules instead; see `file_access`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import AUTH_MANAGER
from pyiceberg.table import StagedTable, Table
from pyiceberg.typedef import EMPTY_DICT
from typing_extensions import override

from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.iceberg.avro_files import bound_avro_files
from krishiv_spark.iceberg.file_access import (
    FileAccess,
    GuardedFileIO,
    access_of,
    create_file_io,
    keep_users_choices,
    merge_vended,
    warn_of_ignored,
)
from krishiv_spark.iceberg.internals import updated_metadata
from krishiv_spark.iceberg.named_snapshots import check_expiry
from krishiv_spark.iceberg.naming import marked_uuid
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.own_files import delete_old_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog.rest import TableResponse
    from pyiceberg.io import FileIO
    from pyiceberg.table.locations import LocationProvider
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import Identifier, Properties

__all__ = [
    "GuardedCatalog",
    "GuardedMetastoreCatalog",
    "GuardedRestCatalog",
    "GuardedTable",
    "guard",
]


class GuardedTable(Table):
    """A table whose files and their names follow the user's options: its `io` is guarded."""

    @override
    def location_provider(self) -> LocationProvider:
        """Return the names of new files.

        Raises:
            OptionError: See `TableAccess.location_provider`.
        """
        return access_of(self).location_provider(self.metadata)


class GuardedCatalog(Catalog):
    """A catalog that takes no settings from its tables."""

    file_access = FileAccess()

    @override
    def load_table(self, identifier: str | Identifier) -> Table:
        """Load a table.

        Raises:
            NoSuchTableError: If there is none.
        """
        return self._guarded(super().load_table(identifier))  # type: ignore[safe-super]  # a mixin

    @override
    def create_table(self, *args: Any, **given: Any) -> Table:
        """Create a table; the arguments are those of PyIceberg.

        Raises:
            TableAlreadyExistsError: If there is one.
        """
        return self._guarded(super().create_table(*args, **given))  # type: ignore[safe-super]

    @override
    def _load_file_io(
        self, properties: Properties = EMPTY_DICT, location: str | None = None
    ) -> FileIO:
        del properties  # of the table
        return super()._load_file_io(location=location)

    @staticmethod
    @override
    def _delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        delete_old_metadata(cast("GuardedFileIO", io), base, metadata)

    def _guarded(self, table: Table) -> Table:
        """Return the table with guarded files, whatever created it."""
        if isinstance(table, GuardedTable):
            return table
        _check_current(table)
        settings, place = {**self.properties, **table.config}, table.metadata_location or ""
        access = self.file_access.for_table(table.metadata, place, settings)
        warn_of_ignored(".".join(table.name()), table.metadata, self.file_access)
        table.io = GuardedFileIO(table.io, access)
        table.catalog = table.catalog if isinstance(table.catalog, GuardedCatalog) else self
        kind: Any = type(table)
        table.__class__ = _guarded_table_class(kind)
        return table


def _check_current(table: Table) -> None:
    """Refuse metadata that lack what they say is current: PyIceberg raises StopIteration then.

    Raises:
        SchemaError: If they do.
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
        current_table = self._guarded(current_table)  # some catalogs load it by another method
        for requirement in requirements:
            requirement.validate(current_table.metadata)
        check_expiry(current_table.metadata, updates)
        metadata = updated_metadata(current_table, updates)
        version = self._parse_metadata_version(current_table.metadata_location) + 1
        # PyIceberg's name, with the table's own id.
        name = f"{version:05d}-{marked_uuid(metadata.table_uuid)}.metadata.json"
        provider = access_of(current_table).location_provider(metadata)
        location = provider.new_metadata_location(name)
        return StagedTable(table_identifier, metadata, location, current_table.io, self)


class GuardedRestCatalog(GuardedCatalog, RestCatalog):
    """A client of REST catalogs; the catalog may set hosts and credentials, but no classes."""

    user_settings: Mapping[str, Any] = EMPTY_DICT

    @override
    def _fetch_config(self) -> None:
        self.user_settings = self.properties
        super()._fetch_config()
        self.properties = keep_users_choices(self.properties, self.user_settings)

    @override
    def _response_to_table(
        self, identifier_tuple: tuple[str, ...], table_response: TableResponse
    ) -> Table:
        metadata, place = table_response.metadata, table_response.metadata_location or ""
        io, config = self._vended_io(table_response, place), table_response.config
        return self._guarded(Table(identifier_tuple, metadata, place, io, self, config))

    @override
    def _response_to_staged_table(
        self, identifier_tuple: tuple[str, ...], table_response: TableResponse
    ) -> StagedTable:
        metadata, place = table_response.metadata, table_response.metadata_location or ""
        io = self._vended_io(table_response, place)
        return StagedTable(identifier_tuple, metadata, place, io, self)

    def _vended_io(self, response: TableResponse, location: str) -> FileIO:
        credentials = self._resolve_storage_credentials(response.storage_credentials, location)
        vended = {**response.config, **credentials}
        settings = merge_vended(self.properties, vended, self.user_settings)
        if self._auth_manager is not None:
            settings[AUTH_MANAGER] = self._auth_manager
        return create_file_io(settings, location)


_MIXINS: tuple[tuple[type[Catalog], type[GuardedCatalog]], ...] = (
    (RestCatalog, GuardedRestCatalog),
    (MetastoreCatalog, GuardedMetastoreCatalog),
    (Catalog, GuardedCatalog),
)


def guard(catalog: Catalog, access: FileAccess, given: Mapping[str, Any]) -> Catalog:
    """Have a catalog take no settings from its tables, whatever its class. Driver.

    Catalogs that it has as attributes, as one that adds a cache to another, are guarded too.

    Args:
        catalog: As PyIceberg has created it.
        access: The user's options.
        given: The user's settings of the catalog, before a server added its own.

    Returns:
        The same catalog.

    Raises:
        OptionError: If it is no catalog of PyIceberg.
    """
    bound_avro_files()
    if not isinstance(catalog, Catalog):
        raise OptionError(
            f"{FORMAT}: 'catalog.py-catalog-impl' names {type(catalog).__name__}, which is no "
            "subclass of pyiceberg.catalog.Catalog"
        )
    if not isinstance(catalog, GuardedCatalog):
        catalog.__class__ = _guarded_class(type(catalog))
        for inner in [one for one in vars(catalog).values() if isinstance(one, Catalog)]:
            guard(inner, access, given)
        if isinstance(catalog, GuardedRestCatalog):
            catalog.user_settings = given
            catalog.properties = keep_users_choices(catalog.properties, given)
    guarded = cast("GuardedCatalog", catalog)
    guarded.file_access = access
    return guarded


@lru_cache(maxsize=16)
def _guarded_class(kind: type[Catalog]) -> type[Catalog]:
    mixin = next(mixin for base, mixin in _MIXINS if issubclass(kind, base))
    return type(kind.__name__, (mixin, kind), {})


@lru_cache(maxsize=16)
def _guarded_table_class(kind: type[Table]) -> type[Table]:
    return GuardedTable if kind is Table else type(kind.__name__, (GuardedTable, kind), {})
