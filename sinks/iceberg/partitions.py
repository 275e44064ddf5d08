"""Cutting rows into the partitions of a table: one sort, whatever the number of partitions."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import (
    PartitionField,
    PartitionKey,
    PartitionSpec,
    partition_record_value,
)
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import Transform
from pyiceberg.typedef import Record

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.uuids import is_uuid
from krishiv_spark.errors import SchemaError
from krishiv_spark.iceberg._pyiceberg import get_parent_ids
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.parquet.partitions import group_starts
from krishiv_spark.sinks.iceberg.sorting import SortKey, sorted_places

__all__ = ["Partitions"]


class _Key(PartitionKey):
    """A partition for PyIceberg's location providers; its own refuses two fields of one column."""

    def __init__(self, values: Record, spec: PartitionSpec, schema: Schema) -> None:
        super().__init__(field_values=[], partition_spec=spec, schema=schema)
        self.__dict__["partition"] = values  # a cached property: this is what it would work out


class Partitions:
    """The partitions and the sort order of a table."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._schema = metadata.schema()
        self._spec = metadata.spec()
        self._order = metadata.sort_order()

    @cached_property
    def is_sorted(self) -> bool:
        """Whether the table has a sort order."""
        return not self._order.is_unsorted

    def split(self, rows: pa.Table) -> Iterator[tuple[Record, pa.Table]]:
        """Cut rows into those of each partition, each sorted as the table's order says.

        Returns:
            Pairs of what the partition's fields are, which is nothing without partitions, and the
            rows.
        """
        keys = [self._key(rows, field) for field in self._spec.fields]
        sorts: list[SortKey] = [(key, "ascending") for key in keys]
        sorts += self.order(rows)
        if sorts:
            places = sorted_places(sorts)
            keys, rows = [key.take(places) for key in keys], rows.take(places)
        yield from self._parts(keys, rows)

    def order(self, rows: pa.Table) -> list[SortKey]:
        """What rows are sorted by within a partition; nothing without a sort order."""
        fields = self._order.fields if self.is_sorted else ()
        return [sort for field in fields for sort in self._sorts(rows, field)]

    def key(self, values: Record) -> PartitionKey | None:
        """The values of a partition for location providers; None without partitions."""
        return _Key(values, self._spec, self._schema) if self._spec.fields else None

    def _parts(
        self, keys: list[pa.ChunkedArray], rows: pa.Table
    ) -> Iterator[tuple[Record, pa.Table]]:
        if not keys:
            yield Record(), rows
            return
        starts = group_starts(pa.table(keys, names=[str(index) for index in range(len(keys))]))
        for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
            yield self._values([key[start].as_py() for key in keys]), rows.slice(start, end - start)

    def _values(self, found: list[Any]) -> Record:
        fields = zip(self._spec.fields, found, strict=True)
        return Record(*(self._value(field, one) for field, one in fields))

    def _value(self, field: PartitionField, one: Any) -> Any:
        """As Iceberg keeps it; numbers of dates and times are that already."""
        if isinstance(one, Decimal):
            self._check_digits(field, one)
        return one if isinstance(one, int) else partition_record_value(field, one, self._schema)

    def _check_digits(self, field: PartitionField, one: Decimal) -> None:
        """Truncating goes down, and the lowest values of a type then have a digit too many."""
        kind: Any = self._schema.find_type(field.source_id)
        if len(one.as_tuple().digits) > kind.precision:
            raise SchemaError(
                f"{FORMAT}: column {self._schema.find_column_name(field.source_id)!r} has a "
                f"value whose {field.transform} is {one}, which is not a {kind}: filter such "
                "rows, or give the column one more digit"
            )

    # --- keys

    def _key(self, rows: pa.Table, field: PartitionField) -> pa.ChunkedArray:
        column = self._transformed(rows, field.source_id, field.transform)
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            raise SchemaError(
                f"{FORMAT}: column {self._schema.find_column_name(field.source_id)!r} has NaN, "
                "which cannot be a partition: filter such rows, or make them null"
            )
        return _plain(column)

    def _transformed(
        self, rows: pa.Table, source: int, transform: Transform[Any, Any]
    ) -> pa.ChunkedArray:
        column = _column(rows, self._schema, source)
        kind = self._schema.find_field(source).field_type
        if str(transform) == "void":
            return pa.chunked_array([pa.nulls(rows.num_rows, pa.int32())])
        return transform.pyarrow_transform(kind)(column)

    def _sorts(self, rows: pa.Table, field: SortField) -> list[SortKey]:
        """Sort keys of one field: Arrow puts all nulls last, so whether it is null goes first."""
        column = _plain(self._transformed(rows, field.source_id, field.transform))
        first = field.null_order is NullOrder.NULLS_FIRST
        descends = field.direction is SortDirection.DESC
        is_null = pc.cast(pc.is_null(column), pa.int8())
        return [
            (is_null, "descending" if first else "ascending"),
            (column, "descending" if descends else "ascending"),
        ]


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates and times as the numbers that Iceberg keeps, which Python can hold in every case.

    UUIDs as their bytes, which Arrow can sort.
    """
    if is_uuid(column.type):
        stored = [chunk.storage for chunk in column.chunks]
        return pa.chunked_array(stored, column.type.storage_type)
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    if pa.types.is_timestamp(column.type) or pa.types.is_time64(column.type):
        return column.cast(pa.int64())
    return column


def _column(rows: pa.Table, schema: Schema, source: int) -> pa.ChunkedArray:
    """A column by the id of its field, also one inside of structs."""
    first, *rest = _path(schema, source)
    column = rows.column(first)
    for name in rest:
        column = pc.struct_field(column, name)
    return column


def _path(schema: Schema, source: int) -> list[str]:
    """Names from the top down; a name may have dots in it."""
    names = [schema.find_field(source).name]
    above = get_parent_ids(schema)
    while source in above:
        source = above[source]
        names.insert(0, schema.find_field(source).name)
    return names
