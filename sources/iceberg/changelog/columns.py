"""The two columns of a change: what happens to a row, and by how much its number grows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from krishiv_spark.errors import SchemaError
from krishiv_spark.iceberg.options import FORMAT

__all__ = ["CHANGE_COLUMNS", "DELETE", "INSERT", "UPDATE", "as_changes", "with_change_columns"]

OP, WEIGHT = "_op", "_weight"
CHANGE_COLUMNS = (OP, WEIGHT)

# The sink's `opColumn` takes each of them.
INSERT, UPDATE, DELETE = "insert", "update", "delete"

_FIELDS = (pa.field(OP, pa.string(), nullable=False), pa.field(WEIGHT, pa.int32(), nullable=False))


def with_change_columns(columns: pa.Schema) -> pa.Schema:
    """The columns of changes to rows that have these columns. Driver.

    Raises:
        SchemaError: If the table itself has a column of one of the two names.
    """
    for name in CHANGE_COLUMNS:
        if name in columns.names:
            raise SchemaError(
                f"{FORMAT}: the table has a column {name!r}, which 'readChanges' adds to its "
                "rows: exclude it with the option 'columns', or rename it"
            )
    return pa.schema([*columns, *_FIELDS])


def as_changes(rows: pa.RecordBatch, op: str | pa.Array, weight: int) -> pa.RecordBatch:
    """Rows as changes: each comes (1) or goes (-1), for one reason or for one each."""
    ops = pa.repeat(pa.scalar(op), rows.num_rows) if isinstance(op, str) else op
    weights = pa.repeat(pa.scalar(weight, pa.int32()), rows.num_rows)
    arrays: Sequence[pa.Array] = [*rows.columns, ops, weights]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*rows.schema, *_FIELDS]))
