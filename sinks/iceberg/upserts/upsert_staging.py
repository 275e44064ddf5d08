"""The changes of an epoch of upserts, as tasks stage them. Executor.

A change is a row of the table with a flag for deletes, which comes from the column `opColumn` in
the notation of Krishiv and Debezium. Tasks stage changes in files that are not data files of the
table. The driver writes data files of them (`UpsertUpdate`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.conform import conform
from krishiv_spark.arrow.partition_files import chunks
from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.sinks.base import Task
from krishiv_spark.sinks.column_policy import Evolution
from krishiv_spark.sinks.iceberg.table_schema import to_arrow_columns, to_iceberg_columns
from krishiv_spark.sinks.iceberg.task_table import (
    StagedDataFiles,
    TaskTableSpec,
    file_name_prefix,
    to_staged,
)
from krishiv_spark.sinks.upserts import DELETES, FURTHER, KEPT, ORDER, ChangeColumns

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = ["ChangeDecoder", "IcebergRecords", "UpsertSpec", "fit_changes", "stage_changes"]


@dataclass(frozen=True)
class UpsertSpec(ChangeColumns):
    """The columns that determine how rows change a table.

    Attributes:
        compares_stored: Whether the highest value of `order` wins among the rows of the table, too.
    """

    compares_stored: bool = field(default=False, kw_only=True)

    format_name = FORMAT

    @classmethod
    def of(cls, options: IcebergSinkOptions) -> UpsertSpec:
        """Return the columns of the options, which `check` compares with rows.

        Raises:
            OptionError: If the options name no keys.
        """
        if not options.key_columns:
            raise OptionError(f"{FORMAT}: 'mode' = 'upsert' needs the option 'keyColumns'")
        if options.change_format is not None:
            return cls(options.key_columns, None, ORDER)
        given = (options.key_columns, options.op_column, options.order_column)
        return cls(*given, compares_stored=options.order_scope == "table")

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify a row of the table."""
        return self.keys

    @property
    def is_history(self) -> bool:
        """True if changes become versions of a `HistorySpec`."""
        return bool(self.to_texts())

    def to_texts(self) -> tuple[str, ...]:
        """Return the columns that a history adds, as in intents; none for upserts."""
        return ()

    def list_generated(self) -> Sequence[str]:
        """Return the columns of the table that rows do not have."""
        return ()

    def check_records(self, records: pa.Schema) -> None:
        """Refuse records of change data that lack a column."""

    def without_added(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of rows, given those of the table."""
        generated = self.list_generated()
        return pa.schema([field for field in columns if field.name not in generated])

    def add_columns(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns of the table, for these columns of rows."""
        return rows

    def check_table(self, table: Table, options: IcebergSinkOptions) -> None:
        """Refuse a table that epochs cannot change in this way."""

    def mark(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the further columns of their changes, except that of deletes."""
        return batch


class IcebergRecords:
    """An Iceberg table, as the decoder of its records knows it; see `RecordTarget`. Executor.

    Args:
        shown: Name of the table.
        upsert_spec: How changes become rows of it.
    """

    format_name = FORMAT
    most_evolution: Evolution = "widen"
    numbers = frozenset[str]()

    def __init__(self, shown: str, upsert_spec: UpsertSpec) -> None:
        self.shown, self._upsert_spec = shown, upsert_spec
        self.with_origins = upsert_spec.is_history

    def to_columns(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns of rows with Iceberg's types."""
        return to_iceberg_columns(rows)

    def check_columns(self, columns: pa.Schema) -> None:
        """Refuse names that a history uses itself."""
        self._upsert_spec.add_columns(columns)

    def check_values(self, changes: pa.RecordBatch, columns: pa.Schema) -> None:
        """Refuse changes that the table does not accept."""
        fit_changes(changes, columns)


class ChangeDecoder(Protocol):
    """A decoder of records of change data, which knows the columns that they need."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, with those that it needs for the records so far."""
        ...

    @property
    def may_grow(self) -> bool:
        """True if records may add columns to those of the table."""
        ...

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the changes of records: `columns`, and further columns."""
        ...


def stage_changes(
    target: TaskTableSpec,
    batches: Iterator[pa.RecordBatch],
    task: Task,
    upsert_spec: UpsertSpec,
    records: ChangeDecoder | None = None,
) -> StagedDataFiles | None:
    """Stage the changes of one task, in bounded memory. Executor.

    Args:
        target: The table.
        batches: The rows.
        task: The attempt.
        upsert_spec: How rows change others.
        records: The decoder of rows that are records of change data.

    Returns:
        The staged files, one for all changes with the same columns; None if there are none.

    Raises:
        SchemaError: If a value does not fit its column, a key is null or an operation unknown.
    """
    columns = upsert_spec.without_added(to_arrow_columns(target.metadata.schema()))
    if records is None:
        checked = (_to_changes(batch, columns, upsert_spec) for batch in batches)
    else:
        decoded = (records.decode(batch) for batch in batches)
        checked = (fit_changes(batch, records.columns) for batch in decoded if batch.num_rows)
    paths: list[str] = []
    try:
        for schema, some in itertools.groupby(checked, lambda batch: batch.schema):
            # The nonce of another attempt makes another name.
            again = Task(task.query, task.epoch, task.partition, task.attempt)
            prefix = file_name_prefix(target, again if paths else task)
            paths.append(f"{target.locations.data_path}/{prefix}.changes")
            _write_changes(target.io, paths[-1], schema, some)
    except BaseException:
        for path in paths:
            with contextlib.suppress(Exception):  # best effort: vacuum finds it
                target.io.delete(path)
        raise
    if not paths:
        return None
    found = replace(to_staged(target), changes=tuple(paths))
    if records is None or not records.may_grow:
        return found
    return replace(found, columns=records.columns.remove_metadata().serialize().to_pybytes())


def _write_changes(
    io: FileIO, path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> None:
    with (
        io.new_output(path).create() as stream,
        pq.ParquetWriter(stream, schema, compression="zstd") as writer,
    ):
        for rows in chunks(batches):
            writer.write_table(rows)


def _to_changes(
    batch: pa.RecordBatch, columns: pa.Schema, upsert_spec: UpsertSpec
) -> pa.RecordBatch:
    """Convert a batch to the columns of the table, with a column of deletes."""
    deletes = upsert_spec.find_deletes(batch)
    return fit_changes(upsert_spec.mark(batch).append_column(DELETES, deletes), columns)


def fit_changes(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Convert changes to the columns of the table; further columns remain.

    Raises:
        SchemaError: If a value does not fit its column.
    """
    whole = pc.invert(batch.column(DELETES))
    if KEPT in batch.schema.names:
        whole = pc.and_(whole, batch.column(KEPT).is_null())
    if not all(field.nullable for field in columns):
        # Only for its errors: a row that deletes may have nulls outside its key.
        conform(batch.filter(whole), columns, fill=True)
    optional = pa.schema([field.with_nullable(nullable=True) for field in columns])
    fitting = conform(batch, optional, fill=True)
    for name in FURTHER:
        if name in batch.schema.names:
            fitting = fitting.append_column(name, batch.column(name))
    return fitting
