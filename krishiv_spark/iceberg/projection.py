"""Columns by field id: what a file holds, in the columns that the table has. Executor.

Names and types of a table change, field ids never do (Iceberg spec, "Column Projection").
PyIceberg's own projection turns null lists and maps of structs into empty ones, and is made anew
for every batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, promote
from pyiceberg.types import (
    FixedType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    UUIDType,
)

from krishiv_spark.arrow.nested import list_with, map_with, struct_with
from krishiv_spark.arrow.uuids import uuid_texts
from krishiv_spark.errors import SchemaError

__all__ = ["Projection", "absent_column", "as_stored", "column_type"]


@dataclass(frozen=True)
class Projection:
    """How the batches of one file become batches of the table's columns.

    Attributes:
        wanted: The columns, by the table's schema.
        held: The columns of the file by field id.
        constants: Values by field id of columns that the file may lack, since it is partitioned
            by them; a value may be null.
    """

    wanted: Sequence[NestedField]
    held: Mapping[int, NestedField]
    constants: Mapping[int, Any]

    @classmethod
    def of(
        cls, wanted: Sequence[NestedField], file: Schema, constants: Mapping[int, Any]
    ) -> Projection:
        """The projection of a file with a schema."""
        return cls(wanted, {field.field_id: field for field in file.fields}, constants)

    @property
    def columns(self) -> list[str]:
        """The columns of the file that are needed."""
        fields = (self.held.get(field.field_id) for field in self.wanted)
        return [field.name for field in fields if field is not None]

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One batch of the file.

        Raises:
            SchemaError: If a column has a type that the table's cannot hold, or one that must not
                be null is missing.
        """
        arrays = [self._array(field, batch) for field in self.wanted]
        return pa.RecordBatch.from_arrays(arrays, names=[field.name for field in self.wanted])

    def _array(self, field: NestedField, batch: pa.RecordBatch) -> pa.Array:
        held = self.held.get(field.field_id)
        if held is None:
            return absent_column(field, batch.num_rows, self.constants)
        try:
            return self._fit(batch.column(held.name), held.field_type, field.field_type)
        except (pa.ArrowException, ResolveError) as error:
            raise SchemaError(
                f"column {field.name!r} is {held.field_type} in the file and {field.field_type} "
                f"in the schema that is read: {error}. If the table's schema has changed since "
                "the query began, restart the query"
            ) from error

    def _fit(self, array: pa.Array, held: IcebergType, wanted: IcebergType) -> pa.Array:
        # Newer versions of pyarrow read UUIDs as a type of their own.
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if isinstance(held, UUIDType) or isinstance(wanted, UUIDType):
            return _fit_uuids(array, held, wanted)
        if isinstance(held, PrimitiveType) and held == wanted:
            return array
        if isinstance(held, StructType) and isinstance(wanted, StructType):
            return self._struct(array, held, wanted)
        if isinstance(held, ListType) and isinstance(wanted, ListType):
            pair = held.element_type, wanted.element_type
            return list_with(array, lambda values: self._fit(values, *pair))
        if isinstance(held, MapType) and isinstance(wanted, MapType):
            return map_with(
                array,
                lambda keys: self._fit(keys, held.key_type, wanted.key_type),
                lambda items: self._fit(items, held.value_type, wanted.value_type),
            )
        return array.cast(column_type(promote(held, wanted)))

    def _struct(self, array: pa.Array, held: StructType, wanted: StructType) -> pa.Array:
        places = {field.field_id: place for place, field in enumerate(held.fields)}
        children = []
        for field in wanted.fields:
            place = places.get(field.field_id)
            if place is None:
                children.append(absent_column(field, len(array), self.constants))
            else:
                kind = held.fields[place].field_type
                children.append(self._fit(array.field(place), kind, field.field_type))
        fields = [
            pa.field(field.name, child.type, nullable=field.optional)
            for field, child in zip(wanted.fields, children, strict=True)
        ]
        return struct_with(array, children, fields)


def as_stored(schema: Schema) -> Schema:
    """Return a schema that reads UUIDs as the bytes that are in files, instead of as text."""
    whole = _with_uuids_as(FixedType(_UUID_BYTES), schema.as_struct())
    return Schema(*whole.fields)


def column_type(kind: IcebergType) -> pa.DataType:
    """Return the Arrow type of a projected column: that of the table, with UUIDs as text."""
    return schema_to_pyarrow(_with_uuids_as(StringType(), kind), include_field_ids=False)


def _with_uuids_as(other: PrimitiveType, kind: Any) -> Any:
    if isinstance(kind, StructType):
        fields = (
            field.model_copy(update={"field_type": _with_uuids_as(other, field.field_type)})
            for field in kind.fields
        )
        return StructType(*fields)
    if isinstance(kind, ListType):
        element = _with_uuids_as(other, kind.element_type)
        return ListType(kind.element_id, element, kind.element_required)
    if isinstance(kind, MapType):
        key, value = _with_uuids_as(other, kind.key_type), _with_uuids_as(other, kind.value_type)
        return MapType(kind.key_id, key, kind.value_id, value, kind.value_required)
    return other if isinstance(kind, UUIDType) else kind


_UUID_BYTES = 16


def absent_column(field: NestedField, rows: int, constants: Mapping[int, Any]) -> pa.Array:
    """Return a column that a file lacks, in the form of columns that files have.

    Args:
        field: The column, as it is read.
        rows: Number of rows.
        constants: Values by field id of the file's partition. In the order of the spec ("Column
            Projection") they take precedence over the default, also where they are null.

    Raises:
        SchemaError: If the column must not be null, and no value is known.
    """
    kind = column_type(field.field_type)
    value = constants.get(field.field_id, field.initial_default)
    if isinstance(value, UUID):
        value = value.bytes if isinstance(field.field_type, FixedType) else str(value)
    if value is not None:
        return pa.repeat(pa.scalar(value, kind), rows)
    if field.required:
        raise SchemaError(f"column {field.name!r} must not be null, but the file lacks it")
    return pa.nulls(rows, kind)


def _fit_uuids(array: pa.Array, held: IcebergType, wanted: IcebergType) -> pa.Array:
    if isinstance(wanted, FixedType):
        return array
    if held != wanted:
        promote(held, wanted)  # for its error: sixteen bytes are UUIDs too, other types are not
    return uuid_texts(array)
