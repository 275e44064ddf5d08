"""The columns of a table that records of change data fill, and how tasks decode records. Executor.

The types of the table decide how a value is read. A ``numeric`` without limits, or with more than
38 digits, is read as the text of the number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from krishiv_spark.errors import SchemaError
from krishiv_spark.postgresql.catalog import Table, TableColumn
from krishiv_spark.postgresql.options import FORMAT
from krishiv_spark.postgresql.types import (
    WIRE_OF,
    StagedColumn,
    arrow_type,
    fit_new_column,
    to_stored,
)
from krishiv_spark.sinks.change_records import ChangeRecords
from krishiv_spark.sinks.column_policy import Evolution
from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions
from krishiv_spark.sinks.postgresql.staging_tables import StagingPlan, convert_rows
from krishiv_spark.sinks.postgresql.target import add_columns, check_lengths
from krishiv_spark.sinks.upserts import drop_further

__all__ = [
    "PostgresqlRecords",
    "decode_records",
    "follow_columns",
    "list_record_columns",
    "open_records",
]

_MOST_DIGITS = 38

_TIMES = {
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
    "time without time zone": pa.time64("us"),
}

_WITHOUT_FORM = {
    "interval": "whose months events do not have: make it bigint or text",
    "bit": "which events have as bytes in another order: make it bytea or text",
    "bit varying": "which events have as bytes in another order: make it bytea or text",
    "oid": "which events have as a number: make it bigint",
}


def list_record_columns(table: Table) -> pa.Schema:
    """Return the columns that events fill, with the types in which their values are read.

    Raises:
        SchemaError: If the values of a column have no exact form in events.
    """
    return pa.schema(
        [
            pa.field(column.name, _find_type(column, table))
            for column in table.columns
            if not column.is_generated
        ]
    )


def _find_type(column: TableColumn, table: Table) -> pa.DataType:
    reason = _WITHOUT_FORM.get(column.base)
    if reason is not None:
        raise SchemaError(
            f"{FORMAT}: column {column.name!r} of table {table.name} is {column.shown}, {reason}"
        )
    kind = _find_scalar(column)
    return pa.list_(kind) if column.is_array else kind


def _find_scalar(column: TableColumn) -> pa.DataType:
    if column.base == "numeric":
        return _find_decimal(column)
    if column.base in _TIMES:
        return _TIMES[column.base]
    plain = TableColumn(column.name, column.base, column.base, column.base)
    return arrow_type(plain) if column.base in WIRE_OF else pa.string()


def _find_decimal(column: TableColumn) -> pa.DataType:
    if column.limit < 0 or (column.limit - 4) >> 16 > _MOST_DIGITS:
        return pa.string()
    one = TableColumn(column.name, "numeric", "numeric", "numeric", limit=column.limit)
    kind = arrow_type(one)
    return pa.string() if pa.types.is_null(kind) else kind


class PostgresqlRecords:
    """A table of PostgreSQL, as the decoder of its records knows it; see `RecordTarget`. Executor.

    Args:
        plan: The columns of the staging tables.
        options: The options of the sink.
    """

    format_name = FORMAT
    with_origins = False
    most_evolution: Evolution = "add"  # a wider type would rewrite the table

    def __init__(self, plan: StagingPlan, options: PostgresqlSinkOptions) -> None:
        self.shown = str(options.table_name)
        self._generated = {name.lower() for name in plan.generated}
        self._columns = {each.source: each for each in plan.columns}
        self.numbers = frozenset(each.source for each in plan.columns if _is_number(each))

    def to_columns(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns with the types of new columns, without those that no row can fill.

        These are columns that only PostgreSQL fills, or has no type for: for the decoder they are
        unknown, so that ``unknownFields`` decides.
        """
        return pa.schema([field for field in to_stored(rows) if self._find_column(field)])

    def _find_column(self, field: pa.Field) -> StagedColumn | None:
        if field.name not in self._columns:
            if field.name.lower() in self._generated:
                return None
            with contextlib.suppress(SchemaError):
                self._columns[field.name] = fit_new_column(field)
        return self._columns.get(field.name)

    def check_columns(self, columns: pa.Schema) -> None:
        """Refuse names that PostgreSQL would cut off."""
        check_lengths(columns.names)

    def check_values(self, changes: pa.RecordBatch, columns: pa.Schema) -> None:
        """Refuse changes with a value that does not fit its column."""
        known = [self._columns[name] for name in columns.names]
        convert_rows(drop_further(changes).select(columns.names), known)


def _is_number(column: StagedColumn) -> bool:
    return column.wire == "text" and (column.cast or "").removesuffix("[]") == "numeric"


def decode_records(
    options: PostgresqlSinkOptions, plan: StagingPlan, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.Schema, pa.RecordBatch]]:
    """Yield the changes of records, with the columns that the records so far need. Executor.

    Args:
        options: The options of the sink.
        plan: The columns of the table, as the planner found them.
        batches: The records.

    Raises:
        SchemaError: If a record cannot be decoded.
    """
    records = open_records(options, plan)
    assert records is not None, plan
    for batch in batches:
        changes = records.decode(batch)
        yield records.columns, changes


def follow_columns(
    options: PostgresqlSinkOptions, plan: StagingPlan, columns: pa.Schema | None
) -> StagingPlan:
    """Return the plan for changes, after the table got the columns that it lacks. Executor.

    Args:
        options: The options of the sink.
        plan: The plan for the changes before these.
        columns: The columns of the changes: those of the plan, and perhaps more.

    Raises:
        SchemaError: If a new column does not fit the table.
        StorageError: If the server cannot be reached, or refuses the new column.
    """
    if columns is None or columns == plan.records:
        return plan
    # The others keep the fingerprints for which rows were staged: the commit compares them.
    new = add_columns(options, columns)[len(plan.columns) :]
    return replace(plan, columns=(*plan.columns, *new), records=columns)


def open_records(options: PostgresqlSinkOptions, plan: StagingPlan) -> ChangeRecords | None:
    """Return the decoder of a task's records; None for rows. Executor."""
    if plan.records is None:
        return None
    return ChangeRecords(options, PostgresqlRecords(plan, options), plan.records)
