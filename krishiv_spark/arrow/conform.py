"""Batches made to fit a schema: decided once for two schemas, and then done for each batch.

Columns, and fields inside of structs, are found by name, if need be in any case, as Spark's readers
do. A type becomes another only where that loses nothing (`krishiv_spark.arrow.widening`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from krishiv_spark.arrow.column_names import places
from krishiv_spark.arrow.conversions import Conversions
from krishiv_spark.arrow.nested import Convert
from krishiv_spark.errors import SchemaError

__all__ = ["conform"]


def conform(
    batch: pa.RecordBatch, schema: pa.Schema, *, fill: bool = False, zone: str | None = None
) -> pa.RecordBatch:
    """Make a batch fit a schema: columns by name (see `places`), wider where types differ.

    Nothing overflows, is cut off or rounded. A field that a struct lacks is null; a struct stays
    one if it has none of the fields, as Spark 4.3 reads it.

    Args:
        batch: The rows. If they have the schema already, they are returned as they are.
        schema: What they shall fit.
        fill: Whether a missing column becomes one of nulls, if the schema allows nulls in it.
        zone: Zone of times without one, where the schema has instants; None if that is an error.

    Raises:
        SchemaError: If a column is missing or ambiguous, has nulls that the schema does not allow,
            or has a type or a value that does not fit.
    """
    if batch.schema.equals(schema):
        return batch
    return _fit(batch.schema, schema, (fill, zone)).of(batch)


@dataclass(frozen=True)
class _Column:
    """How one column comes about.

    Attributes:
        place: Of the column that it is made from; None for one of nulls.
        field: What it becomes.
        convert: Makes its values; None where they are as wanted.
    """

    place: int | None
    field: pa.Field
    convert: Convert | None

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        if self.place is None:
            return pa.nulls(batch.num_rows, self.field.type)
        column = batch.column(self.place)
        if not self.field.nullable and column.null_count:
            raise SchemaError(f"column {self.field.name!r} has nulls, but is NOT NULL")
        return column if self.convert is None else self.convert(column)


_Rules = tuple[bool, str | None]
"""The arguments `fill` and `zone` of `conform`."""


@dataclass(frozen=True)
class _Fit:
    """How batches of one schema become batches of another."""

    held: pa.Schema
    wanted: pa.Schema
    rules: _Rules
    columns: tuple[_Column, ...]

    @classmethod
    def between(cls, held: pa.Schema, wanted: pa.Schema, rules: _Rules) -> _Fit:
        found = zip(wanted, places(wanted.names, held.names), strict=True)
        columns = (_column(held, place, field, rules) for field, place in found)
        return cls(held, wanted, rules, tuple(columns))

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [column.of(batch) for column in self.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.wanted)


_RECENT = 16
_recent: tuple[_Fit, ...] = ()


def _fit(held: pa.Schema, wanted: pa.Schema, rules: _Rules) -> _Fit:
    """The fit between two schemas, made once: comparing schemas costs less than hashing them."""
    global _recent  # noqa: PLW0603  replaced as a whole, so that threads need no lock
    for fit in _recent:
        if fit.held.equals(held) and fit.wanted.equals(wanted) and fit.rules == rules:
            return fit
    made = _Fit.between(held, wanted, rules)
    _recent = (made, *_recent[: _RECENT - 1])
    return made


def _column(held: pa.Schema, place: int | None, field: pa.Field, rules: _Rules) -> _Column:
    fill, zone = rules
    if place is not None:
        kind = held.field(place).type
        return _Column(place, field, Conversions(zone).between(kind, field.type, field.name))
    if fill and field.nullable:
        return _Column(None, field, None)
    raise SchemaError(_missing(field, held.names, fill=fill))


def _missing(field: pa.Field, names: Sequence[str], *, fill: bool) -> str:
    reason = ", and it is NOT NULL" if fill else ""
    return f"no column {field.name!r} among {', '.join(names)}{reason}"
