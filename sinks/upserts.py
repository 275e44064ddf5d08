"""Upserts: the columns by which rows of an epoch insert, replace or delete others.

Each sink of upserts uses it, so that keys, operations and the order of changes mean the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import OptionError, SchemaError

__all__ = [
    "CLOCK",
    "DELETES",
    "FURTHER",
    "KEPT",
    "ORDER",
    "PARTITION",
    "PLACE",
    "POSITION",
    "READ",
    "TIME",
    "ChangeColumns",
    "check_names",
    "describe_values",
    "drop_further",
    "format_row",
]

DELETES = "_krishiv_delete"
"""Name of the column of staged changes that marks deletes."""

KEPT, POSITION = "_krishiv_kept", "_krishiv_position"
PARTITION, ORDER = "_krishiv_partition", "_krishiv_order"
"""Further columns of staged change data: the names of the columns whose values remain, the position
in the database's log, and the partition and the offset of the record."""

CLOCK = "_krishiv_clock"
"""A further column of the changes of a mirror: their time in the database, in microseconds since
1970 UTC; null if the event does not have it."""

PLACE, TIME, READ = "_krishiv_place", "_krishiv_time", "_krishiv_read"
"""Further columns of staged changes of a history: the position of the change as a text, its time,
and whether a snapshot has read the row."""

FURTHER = (DELETES, KEPT, POSITION, PARTITION, ORDER, CLOCK, PLACE, TIME, READ)

_PREFIX = "_krishiv_"
_MAX_TEXT = 60
_MAX_COLUMNS = 5


_DELETE_OPS = pa.array(["d", "delete", "-"])

_UPSERT_OPS = pa.array(
    ["c", "create", "i", "insert", "u", "update", "upsert", "r", "read", "+", "", None], pa.string()
)


@dataclass(frozen=True)
class ChangeColumns:
    """The columns by which rows change a table.

    Attributes:
        keys: Columns that identify a row.
        op: Column of operations; None if every row is an upsert.
        order: Column whose highest value wins within an epoch; None for the last row.
        format_name: The name of the sink, for messages.
    """

    keys: tuple[str, ...]
    op: str | None
    order: str | None

    format_name: ClassVar[str]

    def check(self, rows: pa.Schema) -> None:
        """Refuse rows that lack a column, or have a key column of a type without equality.

        Raises:
            OptionError: If a column is missing, its type cannot be a key, or its name is taken.
        """
        for option, name in self._iter_columns():
            if name not in rows.names and name != ORDER:
                known = ", ".join(rows.names)
                raise OptionError(
                    f"{self.format_name}: {option!r} names {name!r}, but the columns are {known}"
                )
        check_names(rows.names, self.format_name)
        for name in self.keys:
            kind = rows.field(name).type
            # Iceberg's own rule for identifier fields (spec, "Identifier Field IDs").
            if pa.types.is_nested(kind) or pa.types.is_floating(kind):
                raise OptionError(
                    f"{self.format_name}: 'keyColumns' names {name!r}: {kind} cannot be a key"
                )

    def _iter_columns(self) -> Iterator[tuple[str, str]]:
        yield from (("keyColumns", name) for name in self.keys)
        if self.op is not None:
            yield "opColumn", self.op
        if self.order is not None:
            yield "orderColumn", self.order

    def without_op(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns for the table."""
        return pa.schema([field for field in rows if field.name != self.op])

    def find_deletes(self, batch: pa.RecordBatch) -> pa.Array:
        """Return a flag for each row: whether it deletes.

        Raises:
            SchemaError: If an operation is unknown, or a key is null.
        """
        for name in self.keys:
            if batch.column(name).null_count:
                raise SchemaError(_describe_null_key(batch, name, self.format_name))
        if self.op is None:
            return pa.repeat(pa.scalar(value=False), batch.num_rows)
        # Lower case of ASCII only: other letters, such as U+0130, would become ASCII letters too.
        ops = pc.ascii_lower(batch.column(self.op).cast(pa.string()))
        deletes = pc.is_in(ops, _DELETE_OPS)
        strange = pc.invert(pc.or_(deletes, pc.is_in(ops, _UPSERT_OPS)))
        if pc.any(strange).as_py():
            raise SchemaError(self._describe_unknown_op(batch.filter(strange), self.op))
        return deletes

    def _describe_unknown_op(self, rows: pa.RecordBatch, op: str) -> str:
        found = ", ".join(repr(one) for one in pc.unique(rows.column(op)).to_pylist()[:5])
        return (
            f"{self.format_name}: column {op!r} has {found}, in {rows.num_rows} rows; the first is "
            f"the row with {format_row(rows, self.keys)}. Deletes are d, delete and -; upserts are "
            "c, i, r, u, +, create, insert, read, update, upsert and null. Filter other values "
            "(Debezium's t and m change no row), as with where, and write only the rest. The query "
            "repeats this batch until then; it may continue with its checkpoint"
        )


def check_names(names: Iterable[str], format_name: str) -> None:
    """Refuse columns with the names of further columns.

    Raises:
        OptionError: If there is one.
    """
    if taken := [name for name in names if name.startswith(_PREFIX)]:
        raise OptionError(
            f"{format_name}: column {taken[0]!r} has a name of the sink's own columns, which begin "
            f"with {_PREFIX!r}: rename it"
        )


def drop_further(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return changes without the further columns."""
    return rows.select([name for name in rows.schema.names if name not in FURTHER])


def _describe_null_key(batch: pa.RecordBatch, name: str, format_name: str) -> str:
    rows = batch.filter(pc.is_null(batch.column(name)))
    others = [other for other in batch.schema.names if other != name]
    return (
        f"{format_name}: key column {name!r} has nulls, in {rows.num_rows} of {batch.num_rows} "
        f"rows; the first is the row with {format_row(rows, others)}. A row without its key cannot "
        f'replace another row: filter such rows, as with where("{name} is not null"). The query '
        "repeats this batch until then; it may continue with its checkpoint"
    )


def format_row(rows: pa.RecordBatch, names: Sequence[str]) -> str:
    """Return some columns of the first row, so that users can find it."""
    shown = names[:_MAX_COLUMNS]
    return describe_values(shown, (rows.column(name)[0] for name in shown)) or "no other column"


def describe_values(names: Iterable[str], values: Iterable[object]) -> str:
    """Return some columns of a row, such as its key, for messages."""
    pairs = zip(names, values, strict=True)
    return ", ".join(f"{name} = {str(value)[:_MAX_TEXT]!r}" for name, value in pairs)
