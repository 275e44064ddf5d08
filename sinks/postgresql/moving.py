"""The statements that move staged rows into the table, inside the transaction of their epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from krishiv_spark.errors import CommitRejected
from krishiv_spark.postgresql.catalog import Table
from krishiv_spark.postgresql.connection import DatabaseTransaction
from krishiv_spark.postgresql.names import TableName, quote
from krishiv_spark.postgresql.options import FORMAT
from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions
from krishiv_spark.sinks.postgresql.staging_tables import DELETES, ROW, StagedTable
from krishiv_spark.sinks.postgresql.target import lock_table

__all__ = ["Effect", "move_rows"]

_TABLES_AT_ONCE = 100
_PARTITION = '"_krishiv_partition"'


@dataclass(frozen=True)
class Effect:
    """The effect of an epoch on earlier rows.

    Attributes:
        replaces: True if its rows replace all others.
        truncates: True if it then empties the table by TRUNCATE.
        keys: The columns of the table that identify a changed row; empty if rows are added.
        order: Column of the table whose highest value wins; None for the last change of a key.
    """

    replaces: bool = False
    truncates: bool = False
    keys: tuple[str, ...] = ()
    order: str | None = None

    @classmethod
    def of(
        cls, options: PostgresqlSinkOptions, staged: Sequence[StagedTable], *, replaces: bool
    ) -> Effect:
        """Return the effect that the options specify, with the names that the table has."""
        if options.mode == "append" or not staged:
            return cls(replaces, options.truncate)
        names = {column.source: column.target for column in staged[0].columns}
        order = None if options.order_column is None else names[options.order_column]
        return cls(keys=tuple(names[key] for key in options.key_columns), order=order)


def move_rows(
    transaction: DatabaseTransaction,
    table: TableName,
    staged: Sequence[StagedTable],
    effect: Effect,
) -> None:
    """Move the rows of an epoch. Driver, in its transaction.

    Args:
        transaction: The transaction, which the caller commits.
        table: The table.
        staged: The rows of each task.
        effect: Their effect on earlier rows.

    Raises:
        CommitRejected: If a staging table has lost its rows, or the table was altered.
    """
    _check_filled(transaction, staged)
    columns = {(each.target, each.fingerprint): each for one in staged for each in one.columns}
    empties = effect.replaces and effect.truncates
    found = lock_table(transaction, table, list(columns.values()), excludes_readers=empties)
    if effect.replaces:
        transaction.run(f"{'TRUNCATE' if effect.truncates else 'DELETE FROM'} {table.sql}")
    if effect.keys:
        if staged:
            _change_rows(transaction, effect, found, staged)
        return
    for each in sorted(staged, key=lambda one: one.partition):
        names = ", ".join(quote(column.target) for column in each.columns)
        values = ", ".join(column.value for column in each.columns)
        transaction.run(
            f"INSERT INTO {table.sql} ({names}) SELECT {values} FROM {each.name.sql}"  # noqa: S608
        )


def _change_rows(
    transaction: DatabaseTransaction, effect: Effect, table: Table, staged: Sequence[StagedTable]
) -> None:
    """Apply the last change of each key.

    Rows are deleted first, so that a new row may take a unique value of a deleted one. If rows of
    the table refer to others of it, both happen in one statement instead, at whose end foreign keys
    are checked: a row may be deleted that others referred to before the epoch.
    """
    keys = list(map(quote, effect.keys))
    last = _last_changes(effect, staged, keys)
    same = " AND ".join(f"t.{key} = c.{key}" for key in keys)
    delete = f"DELETE FROM {table.name.sql} t USING changes c WHERE c.{quote(DELETES)} AND {same}"  # noqa: S608
    changes = f"WITH changes AS MATERIALIZED ({last})"
    upsert = _upsert(table.name, [quote(column.target) for column in staged[0].columns], keys)
    if table.refers_to_itself:
        transaction.run(f"{changes}, deleted AS ({delete}) {upsert}")
        return
    if any(_has_deletes(transaction, each) for each in staged):
        transaction.run(f"{changes} {delete}")
    names = {column.target for column in staged[0].columns}
    is_whole = not table.is_referred_to and all(each.name in names for each in table.columns)
    _upsert_rows(transaction, f"{changes} {upsert}", changes, same, table if is_whole else None)


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


def _has_deletes(transaction: DatabaseTransaction, staged: StagedTable) -> bool:
    query = f"SELECT 1 FROM {staged.name.sql} WHERE {quote(DELETES)} LIMIT 1"  # noqa: S608
    return transaction.first(query) is not None


def _upsert(table: TableName, names: Sequence[str], keys: Sequence[str]) -> str:
    """Return the statement that inserts rows of ``changes``, or replaces those with their keys."""
    others = [name for name in names if name not in keys]
    action = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
    return (
        f"INSERT INTO {table.sql} ({', '.join(names)}) SELECT {', '.join(names)} FROM changes "  # noqa: S608
        f"WHERE NOT {quote(DELETES)} ON CONFLICT ({', '.join(keys)}) "
        f"DO {f'UPDATE SET {action}' if action else 'NOTHING'}"
    )


def _last_changes(effect: Effect, staged: Sequence[StagedTable], keys: Sequence[str]) -> str:
    """Return the query of the last change of each key: by the order column, then in Spark's order.

    Texts are ordered by their bytes, as in the other sinks, not by the collation of the table.
    """
    order = [*keys]
    for column in staged[0].columns:
        if column.target == effect.order:
            is_text = column.wire == "text" and column.cast is None
            collation = ' COLLATE "C"' if is_text else ""
            order.append(f"{quote(column.target)}{collation} DESC NULLS LAST")
    order += [f"{_PARTITION} DESC", f"{quote(ROW)} DESC"]
    parts = []
    for each in staged:
        values = ", ".join(f"{column.value} AS {quote(column.target)}" for column in each.columns)
        parts.append(
            f"SELECT {each.partition} AS {_PARTITION}, {quote(ROW)}, {quote(DELETES)}, {values} "  # noqa: S608
            f"FROM {each.name.sql}"
        )
    every = " UNION ALL ".join(parts)
    return (
        f"SELECT DISTINCT ON ({', '.join(keys)}) * FROM ({every}) every_change "  # noqa: S608
        f"ORDER BY {', '.join(order)}"
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
