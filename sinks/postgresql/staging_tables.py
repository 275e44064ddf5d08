"""Staging tables: one for each attempt at a task, filled by COPY. Executor, and their sweep.

They are UNLOGGED, so that rows are written to the log of the server once. A crash of the server
empties them, which the commit notices, and a task before it adds rows: both refuse an empty one.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa

from krishiv_spark.errors import SchemaError, StorageError
from krishiv_spark.postgresql.connection import DatabaseTransaction, open_transaction
from krishiv_spark.postgresql.copy_encoding import HEADER, TRAILER, encode_batches
from krishiv_spark.postgresql.names import MOST_BYTES, TableName, quote
from krishiv_spark.postgresql.options import FORMAT, ConnectionOptions
from krishiv_spark.postgresql.types import StagedColumn, UnfitValue, convert_column
from krishiv_spark.sinks.base import Task
from krishiv_spark.sinks.upserts import (
    CLOCK,
    DELETES,
    KEPT,
    ORDER,
    PARTITION,
    POSITION,
    ChangeColumns,
    format_row,
)

__all__ = [
    "ROW",
    "PostgresqlChanges",
    "StagedTable",
    "StagingPlan",
    "convert_rows",
    "drop_tables",
    "find_abandoned",
    "find_of_query",
    "stage_rows",
]

_PREFIX, _LOGGED_PREFIX = "krishiv_s_", "krishiv_l_"

ROW = "_krishiv_row"
"""A further column of staged changes: the place of the row in its task."""


@dataclass(frozen=True)
class PostgresqlChanges(ChangeColumns):
    """The columns by which rows change a table of PostgreSQL."""

    format_name = FORMAT


_OF_CHANGES = (
    StagedColumn(ROW, ROW, "bigint", is_array=False),
    StagedColumn(DELETES, DELETES, "boolean", is_array=False),
)

_OF_RECORDS = (
    *_OF_CHANGES,
    StagedColumn(KEPT, KEPT, "text", is_array=True),
    StagedColumn(POSITION, POSITION, "bigint", is_array=False),
    StagedColumn(PARTITION, PARTITION, "text", is_array=False),
    StagedColumn(ORDER, ORDER, "bigint", is_array=False),
    StagedColumn(CLOCK, CLOCK, "bigint", is_array=False),
)

_NONCE_DIGITS, _TIME_DIGITS = 10, 8
"""Digits in the name of a staging table, which has no room for the number of the task."""

_MOST_DROPPED = 100
"""Tables that one transaction drops: each takes several of the server's locks."""


@dataclass(frozen=True)
class StagedTable:
    """The staged rows of a task.

    Attributes:
        name: The staging table.
        rows: Number of its rows.
        partition: Number of the task.
        columns: Its columns.
    """

    name: TableName
    rows: int
    partition: int
    columns: tuple[StagedColumn, ...]


@dataclass(frozen=True)
class StagingPlan:
    """The columns of the table, for its tasks.

    Attributes:
        schema: The schema of staging tables.
        table: The table that rows are for.
        columns: The columns.
        upsert: How rows change others; None if they are added, or are records of change data.
        records: The columns that records of change data fill; None for rows.
        is_logged: True if staged rows must survive a crash of the server.
        generated: Names of the columns that only PostgreSQL fills.
    """

    schema: str
    table: str
    columns: tuple[StagedColumn, ...]
    upsert: ChangeColumns | None = None
    records: pa.Schema | None = None
    is_logged: bool = False
    generated: frozenset[str] = frozenset()

    @property
    def staged_columns(self) -> tuple[StagedColumn, ...]:
        """The columns of the staging tables, with those of changes."""
        if self.records is not None:
            return (*self.columns, *_OF_RECORDS)
        return self.columns if self.upsert is None else (*self.columns, *_OF_CHANGES)


def _digest(query: str, table: str) -> str:
    return hashlib.sha256(f"{query} {table}".encode()).hexdigest()[:12]


def _name_table(plan: StagingPlan, task: Task) -> TableName:
    prefix = _LOGGED_PREFIX if plan.is_logged else _PREFIX
    number = task.epoch if task.generation is None else task.generation
    # A number has up to 19 digits. The sweep reads it, and the time at the end.
    parts = [_digest(task.query, plan.table), number, task.nonce[:_NONCE_DIGITS]]
    name = f"{prefix}{'_'.join(map(str, parts))}_{int(time.time()):0{_TIME_DIGITS}x}"
    assert len(name) <= MOST_BYTES, name  # a living table without its time would be swept
    return TableName(plan.schema, name)


def stage_rows(
    options: ConnectionOptions,
    plan: StagingPlan,
    rows: Iterable[tuple[pa.Schema | None, pa.RecordBatch]],
    task: Task,
    follow: Callable[[StagingPlan, pa.Schema | None], StagingPlan],
) -> StagedTable | None:
    """Write the rows of a task into a separate table. Executor.

    It takes one transaction, and another one for each batch with new columns: they are added to the
    table over the only connection that a task has at a time. A pool may have no second one.

    Args:
        options: The connection.
        plan: The columns of the table, as the planner found them.
        rows: The rows, each batch with the columns of records: those of the batch before it, and
            perhaps more; None for rows that are no records.
        task: The attempt.
        follow: Returns the plan for the columns of records, after it added them to the table.

    Returns:
        None if there are no rows.

    Raises:
        SchemaError: If a value does not fit its column.
        StorageError: If the server refuses the rows, or cannot be reached.
    """
    filled = (each for each in rows if each[1].num_rows)
    name, count = _name_table(plan, task), 0
    for columns, some in groupby(filled, itemgetter(0)):
        grown = follow(plan, columns)
        with open_transaction(options, f"stage rows for table {plan.table}") as transaction:
            if count:
                _extend_staging_table(transaction, name, grown.columns[len(plan.columns) :])
            else:
                _create_staging_table(transaction, name, grown)
            plan = grown
            count = _copy(transaction, name, plan, (batch for _, batch in some), count)
            transaction.commit()
    return StagedTable(name, count, task.partition, plan.columns) if count else None


def _create_staging_table(
    transaction: DatabaseTransaction, name: TableName, plan: StagingPlan
) -> None:
    kind = "" if plan.is_logged else "UNLOGGED "
    columns = ", ".join(column.declaration for column in plan.staged_columns)
    # Autovacuum would only analyze rows that are moved seconds later.
    transaction.run(f"CREATE {kind}TABLE {name.sql} ({columns}) WITH (autovacuum_enabled=off)")


def _extend_staging_table(
    transaction: DatabaseTransaction, name: TableName, columns: Sequence[StagedColumn]
) -> None:
    """Add columns to a staging table with rows, which a crash of the server may have emptied."""
    added = ", ".join(f"ADD COLUMN {column.declaration}" for column in columns)
    transaction.run(f"ALTER TABLE {name.sql} {added}")
    if transaction.first(f"SELECT 1 FROM {name.sql} LIMIT 1") is None:  # noqa: S608  quoted
        raise StorageError(
            f"{FORMAT}: the server has restarted after a crash or a failover while a task staged "
            f"rows, which emptied its staging table {name}. Nothing was committed, and Spark "
            "repeats the task; restart the query if it stops"
        )


def _copy(
    transaction: DatabaseTransaction,
    name: TableName,
    plan: StagingPlan,
    batches: Iterator[pa.RecordBatch],
    count: int,
) -> int:
    """Copy batches after so many rows, and return the number of all."""
    columns = plan.staged_columns

    def converted() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in batches:
            yield convert_rows(_to_changes(batch, plan, count), columns)
            count += batch.num_rows

    names = ", ".join(quote(column.target) for column in columns)
    statement = f"COPY {name.sql} ({names}) FROM STDIN (FORMAT binary)"
    with transaction.connection.cursor().copy(statement.encode()) as copy:
        copy.write(HEADER)
        for rows in encode_batches(converted(), [column.known_wire for column in columns]):
            copy.write(memoryview(rows))
        copy.write(TRAILER)
    return count


def _to_changes(batch: pa.RecordBatch, plan: StagingPlan, before: int) -> pa.RecordBatch:
    """Return changes with their place in the task, and a flag for those that delete."""
    if plan.upsert is not None:
        batch = batch.append_column(DELETES, plan.upsert.find_deletes(batch))
    elif plan.records is None:
        return batch
    return batch.append_column(ROW, pa.array(np.arange(before, before + batch.num_rows)))


def convert_rows(batch: pa.RecordBatch, columns: Sequence[StagedColumn]) -> pa.RecordBatch:
    """Return rows in the types in which they are staged. Executor.

    Raises:
        SchemaError: If a value does not fit its column.
    """
    arrays = []
    for column in columns:
        try:
            arrays.append(convert_column(batch.column(column.source), column))
        except UnfitValue as error:
            raise SchemaError(_describe_unfit(batch, column, error)) from None
    return pa.RecordBatch.from_arrays(arrays, [column.target for column in columns])


def _describe_unfit(batch: pa.RecordBatch, column: StagedColumn, error: UnfitValue) -> str:
    place = ""
    if error.row >= 0 and not column.is_array:
        others = [name for name in batch.schema.names if name != column.source]
        place = f", in the row with {format_row(batch.slice(error.row, 1), others)}"
    return (
        f"{FORMAT}: column {column.source!r} does not fit {column.target!r}{place}: {error}. The "
        "query repeats this batch until its rows fit; it may continue with its checkpoint"
    )


# --- sweep


def _find(transaction: DatabaseTransaction, schema: str, prefix: str) -> list[TableName]:
    found = transaction.run(
        "SELECT c.relname FROM pg_catalog.pg_class c WHERE c.relkind = 'r' "
        "AND c.relnamespace = pg_catalog.to_regnamespace(%s) AND starts_with(c.relname, %s) "
        "AND c.relname >= %s ORDER BY c.relname",
        [quote(schema), prefix, prefix],
    )
    return [TableName(schema, row[0]) for row in found]


def find_of_query(
    transaction: DatabaseTransaction, schema: str, query: str, table: TableName, *, logged: bool
) -> list[tuple[int, TableName]]:
    """Return the staging tables of a query, with the number of the epoch of each.

    Logged ones have the generation instead.
    """
    prefix = f"{_LOGGED_PREFIX if logged else _PREFIX}{_digest(query, str(table))}_"
    tables = _find(transaction, schema, prefix)
    return [(_number_of(each.name[len(prefix) :]), each) for each in tables]


def _number_of(rest: str) -> int:
    number = rest.partition("_")[0]
    return int(number) if number.isdigit() else -1


def find_abandoned(transaction: DatabaseTransaction, schema: str, age_ms: int) -> list[TableName]:
    """Return staging tables older than an age; those that an intent may name are not among them."""
    before = time.time() - age_ms / 1000
    tables = _find(transaction, schema, _PREFIX)
    return [each for each in tables if _time_of(each.name) < before]


def _time_of(name: str) -> float:
    """Return the time in a name; infinity if it has none, so that the table stays."""
    digits = name.rpartition("_")[2]
    if len(digits) < _TIME_DIGITS:  # PostgreSQL has cut off a name of an earlier version
        return float("inf")
    try:
        return int(digits, 16)
    except ValueError:  # another program's table
        return float("inf")


def drop_tables(options: ConnectionOptions, tables: Sequence[TableName]) -> None:
    """Drop staging tables, a limited number in each transaction. Anywhere.

    Raises:
        StorageError: If the server cannot be reached, or a table is in use.
    """
    for first in range(0, len(tables), _MOST_DROPPED):
        names = ", ".join(each.sql for each in tables[first : first + _MOST_DROPPED])
        with open_transaction(options, "drop staging tables") as transaction:
            transaction.run(f"SET LOCAL lock_timeout = '1s'; DROP TABLE IF EXISTS {names}")
            transaction.commit()
