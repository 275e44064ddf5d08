"""What puts the dates and times of a file right, column by column.

INT96 is an instant, though Arrow reads it as a time without a zone; and old ones may be counted in
another calendar. Only columns that need it are touched.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_spark.nested import (
    Convert,
    children,
    is_list,
    list_with,
    map_with,
    same,
    struct_with,
)
from krishiv_spark.parquet.calendars import INSTANT, Calendar

__all__ = ["corrections", "stored_schema"]


def stored_schema(file: pq.ParquetFile) -> pa.Schema:
    """The columns of a file as `corrections` leaves them: INT96 is an instant."""
    physical = _physical_types(file)
    return pa.schema([_stored(field, physical) for field in file.schema_arrow])


def _physical_types(file: pq.ParquetFile) -> Iterator[str]:
    """Of the leaf columns, in their order in the file."""
    columns = (file.schema.column(index) for index in range(len(file.schema)))
    return (column.physical_type for column in columns)


def _stored(field: pa.Field, physical: Iterator[str]) -> pa.Field:
    return field.with_type(_stored_type(field.type, physical))


def _stored_type(kind: Any, physical: Iterator[str]) -> pa.DataType:
    """A type with instants for INT96; takes as many leaves as the type has."""
    if isinstance(kind, pa.BaseExtensionType):
        # Only to pass over its leaves.
        _stored_type(kind.storage_type, physical)
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([_stored(field, physical) for field in children(kind)])
    if pa.types.is_map(kind):
        key = _stored(kind.key_field, physical)
        return pa.map_(key, _stored(kind.item_field, physical))
    if is_list(kind):
        element = _stored(kind.value_field, physical)
        return kind if element.equals(kind.value_field) else pa.list_(element)
    return INSTANT if next(physical) == "INT96" else kind


def corrections(file: pq.ParquetFile, calendar: Calendar) -> dict[str, Convert]:
    """What puts the times of each column right; only for columns that need it.

    Each makes an array with instants for INT96, and with all dates and instants in our calendar. It
    raises a `SchemaError` for values that are refused.
    """
    leaves = _Leaves(calendar, _physical_types(file))
    found = ((field.name, leaves.of(field.type, field.name)) for field in file.schema_arrow)
    return {name: convert for name, convert in found if convert is not None}


@dataclass(frozen=True)
class _Leaves:
    """The leaf columns of a file, one after the other.

    Attributes:
        calendar: Of the file.
        physical: Physical types of the leaves that are left.
    """

    calendar: Calendar
    physical: Iterator[str]

    def of(self, kind: Any, path: str) -> Convert | None:
        """What puts values of a type right; takes as many leaves as the type has."""
        if isinstance(kind, pa.BaseExtensionType):
            return _after(lambda array: array.storage, self.of(kind.storage_type, path))
        if pa.types.is_struct(kind):
            return self._struct(kind, path)
        if pa.types.is_map(kind):
            key = self.of(kind.key_type, f"{path}.key")
            item = self.of(kind.item_type, f"{path}.value")
            both = {"keys": key or same, "items": item or same}
            return functools.partial(map_with, **both) if key or item else None
        if is_list(kind):
            element = self.of(kind.value_type, f"{path}.element")
            return functools.partial(list_with, convert=element) if element else None
        return self._leaf(kind, next(self.physical), path)

    def _struct(self, kind: pa.DataType, path: str) -> Convert | None:
        parts = [self.of(field.type, f"{path}.{field.name}") for field in children(kind)]
        return functools.partial(_struct_of, parts=parts) if any(parts) else None

    def _leaf(self, kind: Any, physical: str, path: str) -> Convert | None:
        if pa.types.is_dictionary(kind):
            decoded = self._leaf(kind.value_type, physical, path)
            return _after(lambda array: array.dictionary_decode(), decoded)
        if physical == "INT96":
            return lambda array: self.calendar.corrected(array.cast(INSTANT), path, int96=True)
        counts = pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None)
        if counts and self.calendar.dates != "CORRECTED":
            return functools.partial(self.calendar.corrected, path=path)
        return None


def _after(first: Convert, second: Convert | None) -> Convert | None:
    return None if second is None else lambda array: second(first(array))


def _struct_of(array: pa.StructArray, parts: Sequence[Convert | None]) -> pa.StructArray:
    values = [
        value if convert is None else convert(value)
        for value, convert in zip(array.flatten(), parts, strict=True)
    ]
    pairs = zip(children(array.type), values, strict=True)
    return struct_with(array, values, [field.with_type(value.type) for field, value in pairs])
