"""The statements that move staged rows into the table, inside the transaction of their epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from krishiv_spark.errors import CommitRejected
from krishiv_spark.postgresql.catalog import Table
from krishiv_spark.postgresql.connection import DatabaseTransaction
from krishiv_spark.postgresql.names import TableName, quote
from krishiv_spark.postgresql.options import FORMAT
from krishiv_spark.sinks.postgresql.change_queries import ChangeQueries, Effect, LastChanges
from krishiv_spark.sinks.postgresql.mirrored_changes import find_mirrored_changes
from krishiv_spark.sinks.postgresql.staging_tables import StagedTable
from krishiv_spark.sinks.postgresql.target import lock_table
from krishiv_spark.sinks.upserts import DELETES

__all__ = ["move_rows"]

_TABLES_AT_ONCE = 100


def move_rows(
    transaction: DatabaseTransaction,
    table: TableName,
    staged: Sequence[StagedTable],
    effect: Effect,
    query: str,
) -> None:
    """Move the rows of an epoch. Driver, in its transaction.

    Args:
        transaction: The transaction, which the caller commits.
        table: The table.
        staged: The rows of each task.
        effect: Their effect on earlier rows.
        query: Id of the query.

    Raises:
        CommitRejected: If a staging table has lost its rows, or the table was altered.
    """
    _check_filled(transaction, staged)
    staged = _level_columns(staged)
    columns = {(each.target, each.fingerprint): each for one in staged for each in one.columns}
    empties = effect.replaces and effect.truncates
    found = lock_table(transaction, table, list(columns.values()), excludes_readers=empties)
    if effect.replaces:
        transaction.run(f"{'TRUNCATE' if effect.truncates else 'DELETE FROM'} {table.sql}")
    if effect.keys:
        if staged:
            _change_rows(transaction, effect, found, staged, query)
        return
    for each in sorted(staged, key=lambda one: one.partition):
        names = ", ".join(quote(column.target) for column in each.columns)
        values = ", ".join(column.value for column in each.columns)
        transaction.run(
            f"INSERT INTO {table.sql} ({names}) SELECT {values} FROM {each.name.sql}"  # noqa: S608
        )


def _level_columns(staged: Sequence[StagedTable]) -> Sequence[StagedTable]:
    """Return the staging tables with the columns of all: a task may have met new ones."""
    every = {
        column.target: replace(column, is_absent=True) for each in staged for column in each.columns
    }
    own = ({column.target: column for column in each.columns} for each in staged)
    return [
        replace(each, columns=tuple({**every, **columns}.values()))
        for each, columns in zip(staged, own, strict=True)
    ]


def _change_rows(
    transaction: DatabaseTransaction,
    effect: Effect,
    table: Table,
    staged: Sequence[StagedTable],
    query: str,
) -> None:
    """Apply the last change of each key.

    Rows are deleted first, so that a new row may take a unique value of a deleted one. If rows of
    the table refer to others of it, both happen in one statement instead, at whose end foreign keys
    are checked: a row may be deleted that others referred to before the epoch.
    """
    last = _find_last_changes(transaction, ChangeQueries(effect, staged), table, query)
    keys = list(map(quote, effect.keys))
    same = " AND ".join(f"t.{key} = c.{key}" for key in keys)
    delete = f"DELETE FROM {table.name.sql} t USING changes c WHERE c.{quote(DELETES)} AND {same}"  # noqa: S608
    changes = f"WITH changes AS MATERIALIZED ({last.query})"
    upsert = _upsert(table.name, [quote(column.target) for column in staged[0].columns], keys)
    if table.refers_to_itself:
        transaction.run(f"{changes}, deleted AS ({delete}) {upsert}")
    else:
        if last.has_deletes:
            transaction.run(f"{changes} {delete}")
        names = {column.target for column in staged[0].columns}
        is_whole = not table.is_referred_to and all(each.name in names for each in table.columns)
        _upsert_rows(transaction, f"{changes} {upsert}", changes, same, table if is_whole else None)
    if last.completed is not None:
        transaction.run(f"DROP TABLE {last.completed.sql}")


def _find_last_changes(
    transaction: DatabaseTransaction, queries: ChangeQueries, table: Table, query: str
) -> LastChanges:
    if queries.effect.are_records:
        return find_mirrored_changes(transaction, queries, table, query)
    has_deletes = any(_has_deletes(transaction, each) for each in queries.staged)
    return LastChanges(
        queries.select_last(queries.select_all(), queries.list_orders()), has_deletes
    )


def _has_deletes(transaction: DatabaseTransaction, staged: StagedTable) -> bool:
    query = f"SELECT 1 FROM {staged.name.sql} WHERE {quote(DELETES)} LIMIT 1"  # noqa: S608
    return transaction.first(query) is not None


def _upsert_rows(
    transaction: DatabaseTransaction, upsert: str, changes: str, same: str, whole: Table | None
) -> None:
    """Upsert the changes; if they exchange values of another unique column, replace their rows.

    PostgreSQL checks a unique index at each row, so that the first of two rows that exchange their
    values is refused.

    Args:
        transaction: The transaction of the epoch.
        upsert: The statement that inserts or updates.
        changes: The clause that names the changes.
        same: The condition that a row of the table has the key of a change.
        whole: The table; None if deleting a row and inserting it again would lose something: a
            column that the changes lack, or rows of other tables that refer to it.
    """
    import psycopg

    transaction.run("SAVEPOINT krishiv_upsert")
    try:
        transaction.run(upsert)
    except psycopg.errors.UniqueViolation:
        if whole is None:
            raise
        transaction.run("ROLLBACK TO SAVEPOINT krishiv_upsert")
        delete = f"DELETE FROM {whole.name.sql} t USING changes c WHERE {same}"  # noqa: S608
        transaction.run(f"{changes} {delete}")
        transaction.run(upsert)


def _upsert(table: TableName, names: Sequence[str], keys: Sequence[str]) -> str:
    """Return the statement that inserts rows of ``changes``, or replaces those with their keys."""
    others = [name for name in names if name not in keys]
    action = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
    return (
        f"INSERT INTO {table.sql} ({', '.join(names)}) SELECT {', '.join(names)} FROM changes "  # noqa: S608
        f"WHERE NOT {quote(DELETES)} ON CONFLICT ({', '.join(keys)}) "
        f"DO {f'UPDATE SET {action}' if action else 'NOTHING'}"
    )


def _check_filled(transaction: DatabaseTransaction, staged: Sequence[StagedTable]) -> None:
    """Refuse tables that a crash of the server has emptied: they are UNLOGGED, and staged once."""
    for first in range(0, len(staged), _TABLES_AT_ONCE):
        some = staged[first : first + _TABLES_AT_ONCE]
        tests = (
            f"SELECT 1 WHERE NOT EXISTS (SELECT FROM {each.name.sql})"  # noqa: S608
            for each in some
        )
        if transaction.first(" UNION ALL ".join(tests)) is not None:
            raise CommitRejected(
                f"{FORMAT}: the server has restarted after a crash or a failover since rows were "
                "staged, which emptied staging tables. Nothing was committed; the query stages "
                "this epoch again when it is restarted"
            )
