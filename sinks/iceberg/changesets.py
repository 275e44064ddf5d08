"""Rows that change others: checked and written aside by tasks. Executor.

A change is a row of the table and whether it deletes: by the column `opColumn`, as Krishiv and
Debezium write it. What is staged is no data file: the driver turns it into some (`upserts`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.partition_files import chunks
from krishiv_spark.arrow.schemas import conform
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.sinks.base import Task
from krishiv_spark.sinks.iceberg.columns import table_columns
from krishiv_spark.sinks.iceberg.target import StagedDataFiles, Target, staged_for, stem_of

if TYPE_CHECKING:
    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = ["DELETES", "UpsertSpec", "write_changes"]

_DELETE_OPS = pa.array(["d", "delete", "-"])
_UPSERT_OPS = pa.array(
    ["c", "create", "i", "insert", "u", "update", "upsert", "r", "read", "+", "", None], pa.string()
)
DELETES = "_krishiv_delete"
"""Name of the column that says of each change that is written aside whether it deletes."""


@dataclass(frozen=True)
class UpsertSpec:
    """How rows change a table.

    Attributes:
        keys: Columns that say which row.
        op: Column that says what happens to it; None if every row is an upsert.
        order: Column whose highest value wins within an epoch; None for the last row.
    """

    keys: tuple[str, ...]
    op: str | None
    order: str | None

    @classmethod
    def of(cls, options: IcebergSinkOptions) -> UpsertSpec:
        """What the options say; whether rows have these columns, `check` looks.

        Raises:
            OptionError: If they name no keys.
        """
        if not options.key_columns:
            raise OptionError(f"{FORMAT}: 'mode' = 'upsert' needs the option 'keyColumns'")
        return cls(options.key_columns, options.op_column, options.order_column)

    def check(self, rows: pa.Schema) -> None:
        """Refuse rows that lack a column, or whose keys cannot be keys.

        Raises:
            OptionError: If they do.
        """
        for option, name in self._named():
            if name not in rows.names:
                known = ", ".join(rows.names)
                raise OptionError(f"{FORMAT}: {option!r} names {name!r}, but there are {known}")
        for name in self.keys:
            kind = rows.field(name).type
            # Iceberg's own rule for identifier fields (spec, "Identifier Field IDs").
            if pa.types.is_nested(kind) or pa.types.is_floating(kind):
                raise OptionError(f"{FORMAT}: 'keyColumns' names {name!r}: {kind} cannot be a key")

    def _named(self) -> Iterator[tuple[str, str]]:
        yield from (("keyColumns", name) for name in self.keys)
        if self.op is not None:
            yield "opColumn", self.op
        if self.order is not None:
            yield "orderColumn", self.order

    def without_op(self, rows: pa.Schema) -> pa.Schema:
        """The columns that the table has."""
        return pa.schema([field for field in rows if field.name != self.op])

    def flags(self, batch: pa.RecordBatch) -> pa.Array:
        """Whether each row deletes.

        Raises:
            SchemaError: If an operation is not known, or a key is null.
        """
        for name in self.keys:
            if batch.column(name).null_count:
                raise SchemaError(_without_key(batch, name))
        if self.op is None:
            return pa.repeat(pa.scalar(value=False), batch.num_rows)
        # ASCII's lower case alone: other letters, as U+0130, would become ASCII's too.
        ops = pc.ascii_lower(batch.column(self.op).cast(pa.string()))
        deletes = pc.is_in(ops, _DELETE_OPS)
        strange = pc.invert(pc.or_(deletes, pc.is_in(ops, _UPSERT_OPS)))
        if pc.any(strange).as_py():
            raise SchemaError(_unknown_op(batch.filter(strange), self.op, self.keys))
        return deletes


def _without_key(batch: pa.RecordBatch, name: str) -> str:
    rows = batch.filter(pc.is_null(batch.column(name)))
    others = [other for other in batch.schema.names if other != name]
    return (
        f"{FORMAT}: key column {name!r} has nulls, in {rows.num_rows} of {batch.num_rows} rows; "
        f"the first is that with {_shown(rows, others)}. A row without its key can take no other's "
        f'place: leave such rows out, as with where("{name} is not null"). The query repeats this '
        "batch until then; it may go on with its checkpoint"
    )


def _unknown_op(rows: pa.RecordBatch, op: str, keys: Sequence[str]) -> str:
    found = ", ".join(repr(one) for one in pc.unique(rows.column(op)).to_pylist()[:5])
    return (
        f"{FORMAT}: column {op!r} has {found}, in {rows.num_rows} rows; the first is that with "
        f"{_shown(rows, keys)}. Deletes are d, delete and -; upserts are c, i, r, u, +, create, "
        "insert, read, update, upsert and null. What is neither (Debezium's t and m change no row) "
        "must be left out, as with where, and the rest be written so. The query repeats this batch "
        "until then; it may go on with its checkpoint"
    )


def _shown(rows: pa.RecordBatch, names: Sequence[str]) -> str:
    """Some columns of the first row, by which it is found."""
    texts = (f"{name} = {str(rows.column(name)[0])[:_LONGEST]!r}" for name in names[:_MOST_SHOWN])
    return ", ".join(texts) or "no other column"


_LONGEST = 60
_MOST_SHOWN = 5


def write_changes(
    target: Target, batches: Iterator[pa.RecordBatch], task: Task, upsert_spec: UpsertSpec
) -> StagedDataFiles | None:
    """Write the changes of one task aside. Executor; in bounded memory.

    Raises:
        SchemaError: If a value does not fit its column, a key is null or an operation unknown.
    """
    path = f"{target.locations.data_path}/{stem_of(target, task)}.changes"
    columns = table_columns(target.metadata.schema())
    checked = (_checked(batch, columns, upsert_spec) for batch in batches)
    pieces = chunks(checked)
    first = next(pieces, None)
    if first is None:
        return None
    try:
        with (
            target.io.new_output(path).create() as stream,
            pq.ParquetWriter(stream, first.schema, compression="zstd") as writer,
        ):
            for rows in itertools.chain([first], pieces):
                writer.write_table(rows)
    except BaseException:
        with contextlib.suppress(Exception):  # best effort: vacuum finds it
            target.io.delete(path)
        raise
    return replace(staged_for(target), changes=(path,))


def _checked(batch: pa.RecordBatch, columns: pa.Schema, upsert_spec: UpsertSpec) -> pa.RecordBatch:
    """A batch as the table has its columns, with a flag for deletes."""
    deletes = upsert_spec.flags(batch)
    if not all(field.nullable for field in columns):
        # For its errors: a row that deletes may have nothing but its key.
        conform(batch.filter(pc.invert(deletes)), columns, fill=True)
    optional = pa.schema([field.with_nullable(nullable=True) for field in columns])
    fitting = conform(batch, optional, fill=True)
    return fitting.append_column(DELETES, deletes)
