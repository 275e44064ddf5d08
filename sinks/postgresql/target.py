"""The table of the sink: created or checked by the planner, before a row moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from krishiv_spark.arrow.conform import places, twins
from krishiv_spark.errors import CommitRejected, OptionError, SchemaError
from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.postgresql.catalog import Table, TableColumn, find_table, find_unlogged
from krishiv_spark.postgresql.connection import DatabaseTransaction, open_transaction
from krishiv_spark.postgresql.names import TableName, check_length, quote
from krishiv_spark.postgresql.options import FORMAT
from krishiv_spark.postgresql.types import (
    StagedColumn,
    arrow_type,
    column_type,
    fit_column,
    moved_column,
    to_stored,
)
from krishiv_spark.sinks.column_policy import Evolution, grow_columns
from krishiv_spark.sinks.postgresql.change_positions import ChangePositions
from krishiv_spark.sinks.postgresql.marks import Marks
from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions
from krishiv_spark.sinks.postgresql.staging_tables import ROW
from krishiv_spark.sinks.upserts import FURTHER, check_names

__all__ = [
    "Purpose",
    "add_columns",
    "check_before_start",
    "check_lengths",
    "fit_rows",
    "lock_table",
    "prepare_table",
    "read_identity",
    "read_staged",
    "read_table",
    "resolve_name",
    "staging_schema",
]

_TABLES = "rp"
_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table, whose rows and mark no single COMMIT makes visible",
    "S": "a sequence",
    "i": "an index",
}


@dataclass(frozen=True)
class Purpose:
    """The effect of a writer's epochs, as far as a table must allow it.

    Attributes:
        replaces: True if the rows of an epoch replace all others.
        is_sequence: True for epochs of a stream or numbered batches, none of which is repeated
            once it is recorded.
    """

    replaces: bool = False
    is_sequence: bool = True


def read_identity(options: PostgresqlSinkOptions) -> str | None:
    """Return an id of the table that its copies on standbys share; None if it does not exist.

    It consists of the identifier of the cluster, which replication keeps, and of the numbers of
    database and table. Driver.
    """
    with open_transaction(options, f"find table {options.table_name}", reads=True) as transaction:
        (table,) = transaction.first(
            "SELECT pg_catalog.to_regclass(%s)::oid", [options.table_name.sql]
        )
        (is_allowed,) = transaction.first(
            "SELECT pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')"
        )
        if table is None or not is_allowed:
            return None
        cluster, database = transaction.first(
            "SELECT s.system_identifier, d.oid FROM pg_catalog.pg_control_system() s, "
            "pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()"
        )
    return f"PostgreSQL cluster {cluster}, database {database}, table {table}"


def resolve_name(transaction: DatabaseTransaction, options: PostgresqlSinkOptions) -> TableName:
    """Return the name of the table with its schema, whether it exists or not.

    Raises:
        OptionError: If it has no schema, and the search path neither.
    """
    table = find_table(transaction, options.table_name)
    if table is not None:
        return table.name
    schema = options.table_name.schema or transaction.first("SELECT current_schema()")[0]
    if schema is None:
        raise OptionError(
            f"{FORMAT}: 'table' = {options.table!r} has no schema, and the search_path of the user "
            "neither: write 'schema.table'"
        )
    return TableName(schema, options.table_name.name)


def read_table(options: PostgresqlSinkOptions) -> Table | None:
    """Return the table; None if it does not exist. Planner."""
    with open_transaction(options, f"read table {options.table_name}", reads=True) as reading:
        return find_table(reading, resolve_name(reading, options))


def check_before_start(options: PostgresqlSinkOptions, rows: pa.Schema, purpose: Purpose) -> None:
    """Refuse what `prepare_table` and `fit_rows` would refuse, and create nothing. Planner.

    Raises:
        OptionError, SchemaError: As these.
    """
    if options.schema_evolution != "none":
        with open_transaction(options, f"try changes of table {options.table_name}") as trial:
            _fit_given(options, rows, _create_table(trial, options, rows, purpose))
        return  # nothing was committed
    with open_transaction(options, f"read table {options.table_name}", reads=True) as reading:
        name = resolve_name(reading, options)
        table = check_table(find_table(reading, name), options, purpose)
        _check_records(reading, name, purpose)
    if table is not None:
        _fit_given(options, rows, table)
    else:
        _creation(name, options, rows)


def prepare_table(options: PostgresqlSinkOptions, rows: pa.Schema, purpose: Purpose) -> Table:
    """Return the table, after its creation if it is missing. Planner.

    It also creates the table of marks. Nothing is created if the rows do not fit.

    Args:
        options: The options of the sink.
        rows: The columns for the table.
        purpose: The effect of the writer's epochs.

    Raises:
        StorageError: If the server cannot be reached, or refuses the creation.
        OptionError, SchemaError: As `check_table` and `fit_rows`.
    """
    action = f"create or read table {options.table_name}"
    with open_transaction(options, action) as transaction:
        table = _create_table(transaction, options, rows, purpose)
        _fit_given(options, rows, table)
        transaction.commit()
    return table


def _create_table(
    transaction: DatabaseTransaction,
    options: PostgresqlSinkOptions,
    rows: pa.Schema,
    purpose: Purpose,
) -> Table:
    """Return the table, after its creation if it is missing, and create the table of marks.

    Raises:
        OptionError: If the table is missing and must not be created, or is no table.
        SchemaError: If the rows have no column, or one that PostgreSQL has no type for.
    """
    name = resolve_name(transaction, options)
    table = check_table(find_table(transaction, name), options, purpose)
    _check_records(transaction, name, purpose)
    if table is None:
        transaction.run(_creation(name, options, rows))
        table = find_table(transaction, name)
    assert table is not None, name
    table = _evolve(transaction, table, rows, options.schema_evolution)
    marks = Marks(name)
    if not marks.exist(transaction):
        marks.create(transaction)
    if options.change_format is not None:
        ChangePositions(name).create(transaction)
    return table


def add_columns(options: PostgresqlSinkOptions, rows: pa.Schema) -> tuple[StagedColumn, ...]:
    """Return how columns of records are stored, after the table got those that it lacks. Executor.

    The new columns are committed at once, so that the tasks of an epoch see one table: until the
    epoch is committed they are null.

    Args:
        options: The options of the sink.
        rows: The columns of the records.

    Raises:
        SchemaError: If the table was dropped, or a column does not fit it.
        StorageError: If the server cannot be reached, or refuses the columns.
    """
    action = f"add columns to table {options.table_name}"
    with open_transaction(options, action) as transaction:
        table = find_table(transaction, resolve_name(transaction, options))
        if table is None:
            raise SchemaError(f"{FORMAT}: table {options.table_name} was dropped")
        columns = fit_rows(rows, _evolve(transaction, table, rows, "add"), of_records=True)
        transaction.commit()
    return columns


def _evolve(
    transaction: DatabaseTransaction, table: Table, rows: pa.Schema, evolution: Evolution
) -> Table:
    """Return the table, after it got the columns and the wider types that are allowed."""
    if not _list_changes(table, rows, evolution):
        return table
    # Two tasks may need one column, or two names that differ only in case: the second one finds
    # the column of the first.
    transaction.run(f"LOCK TABLE ONLY {table.name.sql} IN SHARE UPDATE EXCLUSIVE MODE")
    locked = _find_again(transaction, table.name)
    changes = _list_changes(locked, rows, evolution)
    if not changes:
        return locked
    transaction.run(f"ALTER TABLE {table.name.sql} {', '.join(changes)}")
    return _find_again(transaction, table.name)


def _find_again(transaction: DatabaseTransaction, name: TableName) -> Table:
    found = find_table(transaction, name)
    assert found is not None, name
    return found


def _list_changes(table: Table, rows: pa.Schema, evolution: Evolution) -> list[str]:
    """Return the actions of ALTER TABLE that the rows need and the evolution allows."""
    if evolution == "none":
        return []
    known = pa.schema([pa.field(each.name, arrow_type(each)) for each in table.columns])
    changes = []
    for field in grow_columns(known, to_stored(rows), evolution):
        place = known.get_field_index(field.name)
        if place < 0:
            check_lengths([field.name])
            changes.append(f"ADD COLUMN {quote(field.name)} {column_type(field)}")
        elif known.field(place).type != field.type:
            changes.append(f"ALTER COLUMN {quote(field.name)} TYPE {column_type(field)}")
    return changes


def check_lengths(names: Iterable[str]) -> None:
    """Refuse names of columns that PostgreSQL would cut off.

    Raises:
        SchemaError: If there is one.
    """
    for name in names:
        try:
            check_length(name)
        except ValueError as error:
            raise SchemaError(f"{FORMAT}: column {error}") from None


def check_table(
    table: Table | None, options: PostgresqlSinkOptions, purpose: Purpose
) -> Table | None:
    """Refuse a table that the sink cannot write.

    Raises:
        OptionError: If it is missing and must not be created, or is no table, or a COMMIT, a crash
            of the server or a unique index would not apply to all of its rows.
    """
    if table is None:
        if options.create_table == "never":
            raise OptionError(
                f"{FORMAT}: table {options.table_name} does not exist, and 'createTable' is "
                "'never': create it, or correct 'table' (letters without quotes are lower case)"
            )
        return None
    if table.kind not in _TABLES:
        kind = _KINDS.get(table.kind, "no table")
        raise OptionError(f"{FORMAT}: {table.name} is {kind}: name a table")
    if table.has_rule:
        raise OptionError(
            f"{FORMAT}: table {table.name} has a rule DO INSTEAD, by which other statements would "
            "run than those that write the rows: drop the rule, or use a trigger"
        )
    if table.foreign_partition is not None:
        raise OptionError(
            f"{FORMAT}: table {table.name} has the partition {table.foreign_partition}, "
            f"{_KINDS['f']}: remove it by DETACH PARTITION, or name another table"
        )
    if table.unlogged_part is not None and purpose.is_sequence:
        raise OptionError(_describe_unlogged(table.unlogged_part))
    if table.child is not None and (options.mode == "upsert" or purpose.replaces):
        raise OptionError(
            f"{FORMAT}: table {table.name} has the child {table.child}, whose rows have no unique "
            "index with those of the table, and would be deleted with them: remove it, as with "
            f"ALTER TABLE {table.child} NO INHERIT {table.name.sql}, or make it a partition"
        )
    if options.mode == "upsert":
        _check_key(table, options)
    return table


def _check_records(transaction: DatabaseTransaction, name: TableName, purpose: Purpose) -> None:
    """Refuse a table of marks or positions that a crash of the server empties.

    Raises:
        OptionError: If one of them is UNLOGGED.
    """
    if purpose.is_sequence:
        records = [Marks(name).name, ChangePositions(name).name]
        if (unlogged := find_unlogged(transaction, records)) is not None:
            raise OptionError(_describe_unlogged(unlogged))


def _describe_unlogged(name: str) -> str:
    return (
        f"{FORMAT}: table {name} is UNLOGGED, so that a crash of the server empties it. Committed "
        f"epochs would be lost or written again: run ALTER TABLE {name} SET LOGGED"
    )


def _check_key(table: Table, options: PostgresqlSinkOptions) -> None:
    names = [column.name for column in table.columns]
    found = dict(zip(options.key_columns, places(options.key_columns, names), strict=True))
    for name, place in found.items():
        if place is None:
            hint = did_you_mean(name, names, f"there are {', '.join(names)}")
            raise OptionError(f"{FORMAT}: 'keyColumns' names {name!r}, which is no column; {hint}")
    keys = [names[place] for place in found.values() if place is not None]
    for column in (table.columns[place] for place in found.values() if place is not None):
        if column.base == "character" or not column.is_exact:
            reason = "a collation" if column.base != "character" else "a type (char)"
            raise OptionError(
                f"{FORMAT}: 'keyColumns' names {column.name!r}, whose column in table {table.name} "
                f"has {reason} that takes different texts for equal, so that two keys of the rows "
                "could be one: change the column to text with a deterministic collation"
            )
    if frozenset(keys) not in table.unique_keys:
        raise OptionError(
            f"{FORMAT}: table {table.name} has no unique index on {', '.join(keys)}, without which "
            "an upsert reads the whole table, and two writers add one key twice: create it, as "
            f"with CREATE UNIQUE INDEX ON {table.name.sql} ({', '.join(map(quote, keys))})"
        )


def _creation(name: TableName, options: PostgresqlSinkOptions, rows: pa.Schema) -> str:
    if not rows.names:
        raise SchemaError(f"{FORMAT}: the rows have no columns: table {name} cannot be created")
    check_lengths(rows.names)
    check_names(rows.names, FORMAT)
    if (same := twins(rows.names)) is not None:
        raise SchemaError(
            f"{FORMAT}: the columns {same[0]!r} and {same[1]!r} differ only in case: rename one"
        )
    columns = [f"{quote(field.name)} {column_type(field)}" for field in rows]
    if options.mode == "upsert":
        found = places(options.key_columns, rows.names)
        keys = [quote(rows.names[place]) for place in found if place is not None]
        columns.append(f"PRIMARY KEY ({', '.join(keys)})")
    return f"CREATE TABLE {name.sql} ({', '.join(columns)})"


def _fit_given(options: PostgresqlSinkOptions, rows: pa.Schema, table: Table) -> None:
    fit_rows(rows, table, of_records=options.change_format is not None)


def fit_rows(
    rows: pa.Schema, table: Table, *, of_records: bool = False
) -> tuple[StagedColumn, ...]:
    """Return how each column of the rows is stored in the table.

    Args:
        rows: The columns of the rows.
        table: The table.
        of_records: True for rows of change data, whose texts may be numbers (`record_columns`).

    Raises:
        SchemaError: If a column is missing, does not fit, or is one that PostgreSQL fills.
        OptionError: If one has a name of the sink's own columns.
    """
    names = [column.name for column in table.columns]
    fitted = []
    for field, place in zip(rows, places(rows.names, names), strict=True):
        if place is None:
            hint = did_you_mean(field.name, names, f"there are {', '.join(names)}")
            raise SchemaError(
                f"{FORMAT}: table {table.name} has no column {field.name!r}; {hint}. Drop it from "
                "the rows, or add it to the table"
            )
        fitted.append(_fit(field, table.columns[place], table, of_records=of_records))
    check_names([column.target for column in fitted], FORMAT)  # staging tables have such columns
    targets = {column.target for column in fitted}
    for column in table.columns:
        if column.is_required and not column.is_generated and column.name not in targets:
            raise SchemaError(
                f"{FORMAT}: the rows have no column {column.name!r}, which is NOT NULL without a "
                f"default in table {table.name}: add it to the rows, or a default to the table"
            )
    return tuple(fitted)


def _fit(field: pa.Field, column: TableColumn, table: Table, *, of_records: bool) -> StagedColumn:
    if column.is_generated:
        raise SchemaError(
            f"{FORMAT}: column {column.name!r} of table {table.name} is GENERATED ALWAYS, so only "
            "PostgreSQL gives it values: drop it from the rows"
        )
    return fit_column(field, column, takes_numbers=of_records)


def lock_table(
    transaction: DatabaseTransaction,
    name: TableName,
    columns: Sequence[StagedColumn],
    *,
    excludes_readers: bool = False,
) -> Table:
    """Return the table once no other can alter it, if it is still as planned. Driver.

    Casts on assignment round and cut off: a column whose type has changed since rows were checked
    would change them without an error.

    Args:
        transaction: The transaction of the epoch, which keeps the lock.
        name: The table.
        columns: The staged columns, with the fingerprints of the columns that they were made for.
        excludes_readers: True to lock it as TRUNCATE does, which would else wait for others that
            wait for this one.

    Raises:
        CommitRejected: If the table was dropped, or it or one of the columns has changed.
    """
    mode = "ACCESS EXCLUSIVE" if excludes_readers else "ROW EXCLUSIVE"
    transaction.run(f"LOCK TABLE ONLY {name.sql} IN {mode} MODE")
    table = find_table(transaction, name)
    if table is None:
        raise CommitRejected(f"{FORMAT}: table {name} was dropped")
    known = {column.name: column for column in table.columns}
    for column in columns:
        found = known.get(column.target)
        if found is None:
            raise CommitRejected(f"{FORMAT}: table {name} has no column {column.target!r} any more")
        if found.fingerprint != column.fingerprint:
            raise CommitRejected(
                f"{FORMAT}: column {column.target!r} of table {name} is {found.shown} now; it was "
                "changed after rows were checked against its former type. Nothing was committed. "
                "The query stages the epoch again when it is restarted; in a fan-out whose intent "
                "is logged, give the column its former type first"
            )
    if table.has_rule:
        raise CommitRejected(f"{FORMAT}: table {name} has got a rule DO INSTEAD: drop it")
    if table.foreign_partition is not None:
        raise CommitRejected(
            f"{FORMAT}: table {name} has got the partition {table.foreign_partition}, a foreign "
            "table: remove it by DETACH PARTITION"
        )
    return table


def read_staged(
    transaction: DatabaseTransaction,
    name: TableName,
    staged: Sequence[tuple[TableName, int, Mapping[str, str]]],
) -> list[tuple[TableName, int, tuple[StagedColumn, ...]]]:
    """Return staging tables with their columns, as the catalog describes them. Driver.

    Args:
        transaction: The transaction that moves their rows.
        name: The table.
        staged: Each staging table, with the number of its task, and the fingerprints of the
            columns that its columns were made for, by name.

    Raises:
        CommitRejected: If a table does not exist, or the table has lost a column.
    """
    target = find_table(transaction, name)
    found = []
    for each, partition, prints in staged:
        table = find_table(transaction, each)
        if table is None or target is None:
            raise CommitRejected(f"{FORMAT}: table {each if table is None else name} was dropped")
        known = {column.name: column for column in target.columns}
        own = [column for column in table.columns if column.name not in {ROW, *FURTHER}]
        if missing := [column.name for column in own if column.name not in known]:
            raise CommitRejected(f"{FORMAT}: table {name} has no column {missing[0]!r} any more")
        columns = (
            moved_column(column, known[column.name], prints.get(column.name, "")) for column in own
        )
        found.append((each, partition, tuple(columns)))
    return found


def staging_schema(options: PostgresqlSinkOptions, table: TableName) -> str:
    """Return the schema of staging tables."""
    if options.staging_schema is None:
        return str(table.schema)
    return TableName.parse(options.staging_schema).name
