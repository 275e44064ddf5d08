"""What puts the dates and times of a file right, column by column.

INT96 is an instant, though Arrow reads it as a time without a zone; and old ones may be counted in
another calendar. Only columns that need it are touched.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from krishiv_spark.arrow.compute import Convert, children, is_list
from krishiv_spark.parquet.calendars import INSTANT, Calendar
from krishiv_spark.parquet.inputs import ParquetInput
from krishiv_spark.parquet.leaves import Leaves

__all__ = ["corrections", "stored_schema"]


def stored_schema(file: ParquetInput) -> pa.Schema:
    """The columns of a file as `corrections` leaves them: INT96 is an instant.

    A column that has only nulls, of Arrow's null type, has the type in which it is stored, as for
    Spark: nulls are read as any type.
    """
    physical = iter(file.physical_types)
    return pa.schema([_stored(field, physical) for field in file.schema])


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
    stored = next(physical)
    is_stored = stored == "INT96" or pa.types.is_null(kind)
    return _PHYSICAL.get(stored, pa.binary()) if is_stored else kind


_PHYSICAL = {
    "BOOLEAN": pa.bool_(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "INT96": INSTANT,
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
}


def corrections(file: ParquetInput, calendar: Calendar) -> dict[str, Convert]:
    """What puts the times of each column right; only for columns that need it.

    Each makes an array with instants for INT96, and with all dates and instants in our calendar. It
    raises a `SchemaError` for values that are refused.
    """
    leaves = Leaves(functools.partial(_leaf, calendar), iter(file.physical_types))
    found = ((field.name, leaves.of(field.type, field.name)) for field in file.schema)
    return {name: convert for name, convert in found if convert is not None}


def _leaf(calendar: Calendar, kind: Any, physical: str, path: str) -> Convert | None:
    if physical == "INT96":
        return lambda array: calendar.corrected(array.cast(INSTANT), path, int96=True)
    counts = pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None)
    if counts and calendar.dates != "CORRECTED":
        return functools.partial(calendar.corrected, path=path)
    return None
