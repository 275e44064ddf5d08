"""The table that rows are written to: created if it is missing, checked, and adapted to the rows.

Everything that could make a commit fail is checked here, before the first row is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os.path import isfile
from typing import TYPE_CHECKING

import pyarrow as pa

from krishiv_spark.errors import CommitRejected, OptionError, SchemaError
from krishiv_spark.iceberg.catalogs import (
    CatalogFailedError,
    explain_catalog_errors,
    load_table,
    open_catalog,
    open_table,
)
from krishiv_spark.iceberg.embedded import (
    check_locks,
    check_not_relocated,
    check_present,
    record_catalog,
)
from krishiv_spark.iceberg.metadata_files import METADATA_CODEC
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.property_keys import MERGE_MODE
from krishiv_spark.sinks.column_policy import grow_columns
from krishiv_spark.sinks.iceberg.epoch_properties import is_refusal
from krishiv_spark.sinks.iceberg.maintenance.expiry import (
    make_default_properties,
    warn_of_refused_properties,
)
from krishiv_spark.sinks.iceberg.table_copies import check_own_warehouse, open_own_table
from krishiv_spark.sinks.iceberg.table_layout import (
    check_existing_table_matches,
    parse_partition_spec,
    parse_sort_order,
    warn_of_dropped_properties,
)
from krishiv_spark.sinks.iceberg.table_schema import (
    SchemaUpdate,
    check_columns,
    to_arrow_columns,
    to_iceberg_columns,
)
from krishiv_spark.spark.checkpoint import SparkCheckpoint

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from krishiv_spark.sinks.column_policy import Evolution
    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
    from krishiv_spark.sinks.iceberg.task_table import StagedDataFiles

__all__ = [
    "CachedTable",
    "adapt_to_changes",
    "check_table",
    "check_version",
    "find_table",
    "prepare_catalog",
    "prepare_table",
]

_NEWEST_VERSION = 2
_MAX_RACES = 10

_CANNOT_COMMIT = {
    "DynamoDbCatalog": "PyIceberg cannot commit to DynamoDB",
    "BigQueryMetastoreCatalog": "PyIceberg cannot commit to BigQuery's metastore",
    "InMemoryCatalog": "the other processes of Spark cannot access a catalog in memory",
}


class CachedTable:
    """The table as this process has loaded it last, which saves a request of the next caller.

    It is not sent to other processes with its writer: they load the table themselves.
    """

    def __init__(self) -> None:
        self._table: Table | None = None

    def set(self, table: Table) -> Table:
        """Cache a table that was just loaded, and return it."""
        self._table = table
        return table

    def get(self, options: IcebergSinkOptions) -> Table:
        """Return the cached table, or load it."""
        return self._table or self.set(open_own_table(options))

    def peek(self) -> Table | None:
        """Return the cached table; None if there is none."""
        return self._table

    def clear(self) -> None:
        """Empty the cache: the table was changed by another object."""
        self._table = None

    def take(self, options: IcebergSinkOptions) -> Table:
        """Return the cached table, or load it, for a caller that changes it; empty the cache."""
        table, self._table = self._table, None
        return table or open_own_table(options)


def prepare_table(
    options: IcebergSinkOptions,
    rows: pa.Schema,
    accept: Callable[[Table], object] | None = None,
    loaded: Table | None = None,
) -> Table:
    """Load the table, adapted to the rows; create it if it is missing. Planner.

    Args:
        options: Options of the sink.
        rows: Columns of the rows.
        accept: Called with the table before it is compared or changed; its errors are raised.
        loaded: The table, if the caller has just loaded it.

    Raises:
        OptionError: If the table is missing and must not be created, or this sink cannot write it;
            or if the query's SQLite catalog is missing.
        SchemaError: If the rows do not fit its columns.
        CatalogFailedError: If the catalog cannot be reached.
    """
    _check_new_properties(options)
    check_locks(options)
    checkpoint = SparkCheckpoint.of(options)
    check_present(options, checkpoint)
    if loaded is None:
        catalog = _open_catalog(options, create=options.create_table == "ifMissing")
        table = _open_or_create(options, catalog, rows)
    else:
        table = loaded
        check_existing_table_matches(options, table)
    check_own_warehouse(table, options)
    check_version(table, options)
    _check_location(table)
    if accept is not None:
        accept(table)
    fitting = _adapt_columns(options, table, rows)
    record_catalog(options, checkpoint)
    return fitting


def prepare_catalog(options: IcebergSinkOptions, *, creates: bool) -> None:
    """Open the catalog of tables that are not known yet. Planner.

    Args:
        options: Options of the sink.
        creates: True to create and record an embedded catalog; otherwise nothing changes.

    Raises:
        OptionError: If the sink cannot write tables of this catalog, or it is missing.
        CatalogFailedError: If the catalog cannot be reached.
    """
    _check_new_properties(options)
    checkpoint = SparkCheckpoint.of(options)
    check_present(options, checkpoint)
    if creates:
        check_locks(options)
        _open_catalog(options, create=options.create_table == "ifMissing")
        record_catalog(options, checkpoint)


def check_table(
    options: IcebergSinkOptions,
    rows: pa.Schema,
    accept: Callable[[Table], object] | None = None,
    loaded: Table | None = None,
) -> Table | None:
    """Load the table and refuse it as `prepare_table` would, without a change. Planner.

    Args:
        options: Options of the sink.
        rows: Columns of the rows.
        accept: As of `prepare_table`.
        loaded: As of `prepare_table`.

    Returns:
        None if the table is missing and will be created.

    Raises:
        OptionError, SchemaError, CatalogFailedError: As `prepare_table`.
    """
    _check_new_properties(options)
    check_present(options, SparkCheckpoint.of(options))
    table = loaded or find_table(options)
    if table is None:
        schema = _new_schema(rows)
        parse_partition_spec(options.partition_by, schema)
        parse_sort_order(options.sort_by, schema)
        return None
    check_existing_table_matches(options, table)
    check_own_warehouse(table, options)
    check_version(table, options)
    _check_location(table)
    if accept is not None:
        accept(table)
    columns = to_arrow_columns(table.schema())
    check_columns(rows, columns, options.table_name, _get_evolution(options, columns))
    return table


def find_table(options: IcebergSinkOptions) -> Table | None:
    """Load the table without a change. Driver, and programs that inspect it.

    Returns:
        None if the table is missing and will be created.

    Raises:
        OptionError: If the table is missing and must not be created, or as `open_catalog`.
        CatalogFailedError: If the catalog cannot be reached, or the metadata cannot be read.
    """
    if options.create_table == "never":
        return open_table(options)
    if options.is_embedded and not isfile(options.embedded_file):
        check_not_relocated(options.embedded_file)
        return None
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    catalog = _open_catalog(options, create=False)
    with explain_catalog_errors(options, f"load table {options.table_name}"):
        try:
            return load_table(catalog, options)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None


def _open_catalog(options: IcebergSinkOptions, *, create: bool) -> Catalog:
    catalog = open_catalog(options, create=create)
    kind = type(catalog).__name__
    if kind in _CANNOT_COMMIT:
        raise OptionError(f"{FORMAT}: {_CANNOT_COMMIT[kind]}: use another catalog")
    return catalog


def _check_new_properties(options: IcebergSinkOptions) -> None:
    if options.table_properties.get("format-version", "2") not in {"1", "2"}:
        raise OptionError(
            f"{FORMAT}: PyIceberg writes tables of format version 1 and {_NEWEST_VERSION} only, "
            "not that of 'tableProperty.format-version'"
        )
    codec = options.table_properties.get(METADATA_CODEC, "none")
    if codec.strip().lower() not in {"none", "gzip"}:
        raise OptionError(
            f"{FORMAT}: 'tableProperty.{METADATA_CODEC}' is {codec!r}: it must be 'gzip' or 'none'"
        )


def _adapt_columns(options: IcebergSinkOptions, table: Table, rows: pa.Schema) -> Table:
    """Add or widen columns until the rows fit the table."""
    for _ in range(_MAX_RACES):
        columns = to_arrow_columns(table.schema())
        evolution = _get_evolution(options, columns)
        updates = check_columns(rows, columns, options.table_name, evolution)
        if not updates:
            return table
        with explain_catalog_errors(options, f"change the columns of table {options.table_name}"):
            _update_schema(table, updates)
    raise CatalogFailedError(
        f"{FORMAT}: other writers repeatedly change the columns of table {options.table_name}: "
        "restart the query"
    )


def _get_evolution(options: IcebergSinkOptions, columns: pa.Schema) -> Evolution:
    """Return the allowed changes: a table without columns is one that has none yet."""
    return options.schema_evolution if len(columns) else "add"


def adapt_to_changes(
    options: IcebergSinkOptions, table: Table, staged: Sequence[StagedDataFiles]
) -> Table:
    """Add or widen columns for the changes that tasks have staged. Committer.

    Tasks find new columns in the schemas of records, and cannot change the table. The columns of an
    epoch that fails afterwards remain: its repetition has them too.

    Raises:
        CommitRejected: If the changes do not fit the table.
        CatalogFailedError: If the catalog cannot be reached.
    """
    given = [pa.ipc.read_schema(pa.py_buffer(item.columns)) for item in staged if item.columns]
    if not given:
        return table
    needed = given[0]
    for columns in given[1:]:
        needed = grow_columns(needed, columns, "widen")
    known = to_arrow_columns(table.schema())
    if grow_columns(known, needed, _get_evolution(options, known)) is known:
        return table
    try:
        return _adapt_columns(options, table, needed)
    except SchemaError as error:
        raise CommitRejected(str(error)) from error


def _update_schema(table: Table, updates: Sequence[SchemaUpdate]) -> None:
    """Add and widen columns; if another writer changes them meanwhile, only load the table."""
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

    try:
        with table.update_schema() as update:
            for path, kind, is_new in updates:
                change = update.add_column if is_new else update.update_column
                # PyIceberg only converts whole schemas, so the type is wrapped in one.
                change(
                    path, _to_iceberg_schema(pa.schema([pa.field("x", kind)])).fields[0].field_type
                )
    except (CommitFailedException, CommitStateUnknownException):
        table.refresh()


def _open_or_create(options: IcebergSinkOptions, catalog: Catalog, rows: pa.Schema) -> Table:
    if options.create_table == "never":
        found = open_table(options)
        check_existing_table_matches(options, found)
        return found
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError

    with explain_catalog_errors(options, f"open or make table {options.table_name}"):
        try:
            found = load_table(catalog, options)
        except (NoSuchTableError, NoSuchNamespaceError):
            try:
                return _create_with_defaults(options, catalog, rows)
            except TableAlreadyExistsError:  # another query was faster
                found = load_table(catalog, options)
        check_existing_table_matches(options, found)
        return found


def _create_with_defaults(options: IcebergSinkOptions, catalog: Catalog, rows: pa.Schema) -> Table:
    _create_namespace(catalog, options.identifier[:-1])
    defaults = make_default_properties(options)
    refused: Exception | None = None
    # The bounds of the table's history are not given up for the mode of upserts.
    bounds = {key: text for key, text in defaults.items() if key != MERGE_MODE}
    attempts: list[Mapping[str, str]] = [defaults, bounds, {}]
    while True:
        kept = attempts.pop(0)
        try:
            table = _create(options, catalog, rows, kept)
            break
        except Exception as error:
            # If the last one is refused too, the error is about the user's own properties, or none.
            if not kept or not is_refusal(error):
                raise
            refused = error
    if refused is not None:
        warn_of_refused_properties(table, options, sorted(defaults.keys() - kept), refused)
    return table


def _create(
    options: IcebergSinkOptions, catalog: Catalog, rows: pa.Schema, defaults: Mapping[str, str]
) -> Table:
    schema = _new_schema(rows)
    table = catalog.create_table(
        options.identifier,
        schema,
        location=options.location,
        partition_spec=parse_partition_spec(options.partition_by, schema),
        sort_order=parse_sort_order(options.sort_by, schema),
        properties={**defaults, **options.table_properties},
    )
    warn_of_dropped_properties(options, table)
    return table


def _create_namespace(catalog: Catalog, namespace: tuple[str, ...]) -> None:
    try:
        catalog.create_namespace_if_not_exists(namespace)
    except (
        Exception
    ):  # PyIceberg's SQL catalog raises the database's error if another query was faster
        if not catalog.namespace_exists(namespace):
            raise


def _new_schema(rows: pa.Schema) -> Schema:
    """Return the schema of a new table with field ids; the catalog may assign other ids."""
    from pyiceberg.schema import assign_fresh_schema_ids

    return assign_fresh_schema_ids(_to_iceberg_schema(to_iceberg_columns(rows)))


def _to_iceberg_schema(columns: pa.Schema) -> Schema:
    from krishiv_spark.iceberg._pyiceberg import to_schema_without_ids

    return to_schema_without_ids(columns)


def check_version(table: Table, options: IcebergSinkOptions) -> None:
    """Refuse a table whose format version this package does not write. Driver, operator.

    Raises:
        OptionError: If its version is newer.
    """
    if table.format_version > _NEWEST_VERSION:
        raise OptionError(
            f"{FORMAT}: table {options.table_name} has format version {table.format_version}, "
            f"which PyIceberg cannot write: versions 1 and {_NEWEST_VERSION} can be written"
        )


def _check_location(table: Table) -> None:
    """Refuse a location with ``?`` or ``#``.

    PyIceberg reads paths with a scheme as URLs, so that all paths with a ``#`` would be one file.

    Raises:
        OptionError: If the location has such a character.
    """
    location = table.location()
    if "://" in location and set("?#") & set(location):
        raise OptionError(
            f"{FORMAT}: the table's location {location!r} must not contain '?' or '#': its files "
            "would overwrite one another"
        )
