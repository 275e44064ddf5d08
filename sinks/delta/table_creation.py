"""The table that rows are written to: created if it is missing, checked, and adapted to the rows.

Everything that could make a commit fail is checked here, before the first row is written. Planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from krishiv_spark.delta.column_types import (
    digest_layout,
    read_columns,
    to_delta_columns,
    to_schema_json,
)
from krishiv_spark.delta.commit_log import sync_commit
from krishiv_spark.delta.opening import (
    LOG,
    explain_errors,
    find_table,
    open_table,
    store_options,
    table_uri,
)
from krishiv_spark.delta.options import FORMAT
from krishiv_spark.delta.partition_texts import check_partition_type
from krishiv_spark.delta.table_features import check_writable
from krishiv_spark.errors import OptionError, SchemaError, StorageError
from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.sinks.column_policy import SchemaUpdate, check_columns
from krishiv_spark.sinks.delta.options import DeltaSinkOptions
from krishiv_spark.sinks.delta.task_files import TargetTable

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["check_rows", "check_table", "describe_for_tasks", "prepare_table"]

_MAX_RACES = 10


def prepare_table(options: DeltaSinkOptions, rows: pa.Schema, *, replaces: bool) -> DeltaTable:
    """Return the table, adapted to the rows; create it if it is missing.

    Args:
        options: Options of the sink.
        rows: Columns of the rows.
        replaces: True if epochs replace all rows.

    Raises:
        OptionError: If the table is missing and must not be created, or cannot be written.
        SchemaError: If the rows do not fit it.
        StorageError: If the log cannot be read or written.
    """
    table = find_table(options)
    for _ in range(_MAX_RACES):
        if table is None:
            table = _create(options, rows)
        updates = check_rows(options, table, rows, replaces=replaces)
        if not updates:
            return table
        _add_columns(options, table, updates)
        table = open_table(options)
    raise StorageError(
        f"{FORMAT}: other writers repeatedly change the columns of {options.path}: restart the "
        "query"
    )


def check_table(options: DeltaSinkOptions, rows: pa.Schema, *, replaces: bool) -> DeltaTable | None:
    """Refuse what `prepare_table` would refuse, and change nothing.

    Returns:
        The table; None if it is missing and will be created.

    Raises:
        OptionError, SchemaError, StorageError: As `prepare_table`.
    """
    table = find_table(options)
    if table is None:
        _check_new(options, rows)
    else:
        check_rows(options, table, rows, replaces=replaces)
    return table


def check_rows(
    options: DeltaSinkOptions, table: DeltaTable, rows: pa.Schema, *, replaces: bool
) -> list[SchemaUpdate]:
    """Refuse rows that do not fit a table, or a table that cannot be written.

    Returns:
        The columns that the table needs first.

    Raises:
        OptionError, SchemaError: As `prepare_table`.
    """
    check_writable(table, options.path, replaces=replaces)
    partition_by = tuple(table.metadata().partition_columns)
    if options.partition_by not in {(), partition_by}:
        raise OptionError(
            f"{FORMAT}: 'partitionBy' = {','.join(options.partition_by)!r}, and the table "
            f"{options.path} is partitioned by {','.join(partition_by) or 'no column'}: set the "
            "same, or leave the option out"
        )
    misfit = f"{FORMAT}: rows do not fit table {options.path}"
    columns = read_columns(table)
    if len(partition_by) == len(columns):
        raise OptionError(
            f"{FORMAT}: table {options.path} is partitioned by all of its columns, and a file "
            "needs one more: add a column (ALTER TABLE … ADD COLUMNS)"
        )
    updates = check_columns(to_delta_columns(rows), columns, misfit, options.schema_evolution)
    nested = next((update for update in updates if len(update.path) > 1), None)
    if nested is not None:
        raise SchemaError(
            f"{misfit}: column {'.'.join(nested.path)!r} is inside of another one, and "
            "'schemaEvolution' adds whole columns: add it with ALTER TABLE … ADD COLUMNS"
        )
    return updates


def describe_for_tasks(table: DeltaTable) -> TargetTable:
    """Return what tasks need to know of a table."""
    metadata = table.metadata()
    return TargetTable(
        id=str(metadata.id),
        version=table.version(),
        layout=digest_layout(table),
        columns=read_columns(table),
        partition_by=tuple(metadata.partition_columns),
        settings=dict(metadata.configuration),
    )


def _check_new(options: DeltaSinkOptions, rows: pa.Schema) -> pa.Schema:
    """Return the columns of a table that is to be created."""
    if options.create_table == "never":
        raise OptionError(
            f"{FORMAT}: {options.path} is no Delta table, and 'createTable' is 'never': correct "
            "'path', or create the table first"
        )
    columns = to_delta_columns(rows)
    for name in options.partition_by:
        if name not in columns.names:
            hint = did_you_mean(name, columns.names, f"there are {', '.join(columns.names)}")
            raise OptionError(f"{FORMAT}: option 'partitionBy' has {name!r}; {hint}")
        check_partition_type(columns.field(name))
    if len(options.partition_by) == len(columns):
        raise OptionError(
            f"{FORMAT}: 'partitionBy' has all columns of the rows: a file needs one more"
        )
    twins = {name.casefold() for name in columns.names}
    if len(twins) < len(columns):
        raise SchemaError(f"{FORMAT}: two columns of the rows have one name, ignoring case")
    _check_folder(options)
    return columns


def _check_folder(options: DeltaSinkOptions) -> None:
    """Refuse a folder with other files: as a Delta table it would hide them.

    Raises:
        OptionError: If it has some.
    """
    names = options.storage.folder(options.url).names()
    others = sorted(name for name in names if name != LOG)
    if others:
        raise OptionError(
            f"{FORMAT}: {options.path} has files, such as {others[0]!r}, and is no Delta table: "
            "name another folder, or convert it (CONVERT TO DELTA)"
        )


def _create(options: DeltaSinkOptions, rows: pa.Schema) -> DeltaTable:
    """Create the table; if another query is faster, return its table."""
    from deltalake import DeltaTable, Schema

    columns = _check_new(options, rows)
    with explain_errors(options, "create the table"):
        try:
            DeltaTable.create(
                table_uri(options),
                Schema.from_json(to_schema_json(columns)),
                mode="error",
                partition_by=list(options.partition_by),
                configuration=dict(options.table_properties),
                storage_options=store_options(options),
            )
        except Exception:
            found = find_table(options)
            if found is None:
                raise
            return found
    sync_commit(options, 0)
    return open_table(options)


def _add_columns(options: DeltaSinkOptions, table: DeltaTable, updates: list[SchemaUpdate]) -> None:
    """Add columns; if another writer changes the table meanwhile, the caller checks again."""
    from deltalake import Schema
    from deltalake.exceptions import CommitFailedError

    columns = pa.schema([pa.field(update.path[0], update.kind) for update in updates])
    fields = Schema.from_json(to_schema_json(columns)).fields
    with explain_errors(options, "add columns to the table"):
        try:
            table.alter.add_columns(fields)
        except CommitFailedError:
            return
