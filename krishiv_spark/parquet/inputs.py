"""An open Parquet file, read in little memory, with a check that no row is missing."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_spark.arrow.compute import (
    Convert,
    children,
    is_list,
    list_with,
    map_with,
    same,
    struct_with,
)
from krishiv_spark.errors import SchemaError
from krishiv_spark.parquet.footer_edits import (
    MAP_ENTRIES,
    UnsupportedColumn,
    int96_as_bytes,
    parse_footer,
    without_encrypted,
    without_unsupported,
)

__all__ = ["Leaf", "Leaves", "ParquetInput", "open_input"]

# Column chunks are read through a buffer of this size. Without it, PyArrow reads a whole row group
# into memory.
_BUFFER_BYTES = 2**20

_TAIL_BYTES, _LENGTH_BYTES = 8, 4
"""A file ends with the length of its footer, and a magic."""

_MOST_FOOTER_BYTES = 16 * 2**20
"""Maximum size of a footer that is decoded. The footer of 10 000 columns has a tenth of it."""

_MAGIC, _ENCRYPTED_FOOTER = b"PAR1", b"PARE"
_INT96 = "INT96"
_SHOWN = 5  # columns in a message


class ParquetInput:
    """A file with row groups of any size that is read in little memory.

    Attributes:
        metadata: Its footer, without the columns in `unsupported`.
        unsupported: Columns that cannot be read, by name. The others can.

    Args:
        source: The file, as PyArrow reads it.
        footer: The bytes of an edited footer, if PyArrow cannot use that of the file.
        unsupported: The value of the attribute.

    Raises:
        pa.ArrowException, OSError: If it is damaged.
    """

    def __init__(
        self,
        source: Any,
        footer: bytes | None = None,
        unsupported: Mapping[str, UnsupportedColumn] | None = None,
    ) -> None:
        self._source = source
        self._footer = footer
        self._has_maps = footer is not None and MAP_ENTRIES.encode() in footer
        self._file = _open(source, None if footer is None else parse_footer(footer))
        self.metadata: pq.FileMetaData = self._file.metadata
        self.unsupported = dict(unsupported or {})

    @cached_property
    def physical_types(self) -> tuple[str, ...]:
        """The physical types of the leaf columns, in their order in the file."""
        schema = self.metadata.schema
        return tuple(schema.column(index).physical_type for index in range(len(schema)))

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that can be read; INT96 is a timestamp in microseconds without a zone."""
        found, leaves = self._file.schema_arrow, Leaves(_no_conversion, iter(self.physical_types))
        if not self._has_maps:
            return found
        converts = [leaves.make_conversion(field.type, field.name) for field in found]
        return pa.schema(
            field if convert is None else field.with_type(convert(pa.nulls(0, field.type)).type)
            for field, convert in zip(found, converts, strict=True)
        )

    @cached_property
    def _exact(self) -> pq.ParquetFile:
        """The file with INT96 as bytes, since PyArrow computes some of its times wrongly."""
        if _INT96 not in self.physical_types:
            return self._file
        # A footer of any size, since only its schema is decoded.
        footer = _read_footer(self._source, None) if self._footer is None else self._footer
        return _open(self._source, parse_footer(int96_as_bytes(footer)))

    @cached_property
    def _conversions(self) -> dict[str, Convert]:
        if not self._has_maps and _INT96 not in self.physical_types:
            return {}
        leaves = Leaves(_int96_leaf, iter(self.physical_types))
        stored = self._exact.schema_arrow
        found = ((field.name, leaves.make_conversion(field.type, field.name)) for field in stored)
        return {name: convert for name, convert in found if convert is not None}

    def batches(self, group: int, rows: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group; needs memory for a page of each column and one batch.

        Args:
            group: Number of the row group.
            rows: Maximum number of rows of a batch.
            columns: Names of the columns to read; structs are read whole.

        Raises:
            pa.ArrowNotImplementedError: If a column has a codec that PyArrow lacks.
            pa.ArrowException, OSError: If the file is damaged, or the row group has another number
                of rows than the footer states: PyArrow ends where the shortest column ends.
            SchemaError: If a value does not fit.
        """
        expected, count = self.metadata.row_group(group).num_rows, 0
        for batch in self._stored_batches(group, rows, columns):
            count += batch.num_rows
            if count > expected:
                break
            yield self._convert(batch)
        if count != expected:
            more = ", ..." if len(columns) > _SHOWN else ""
            raise pa.ArrowInvalid(
                f"row group {group} has {expected} rows by the footer, and {count} in the columns "
                f"{', '.join(columns[:_SHOWN])}{more}"
            )

    def _stored_batches(
        self, group: int, rows: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        file = self._exact if self._conversions.keys() & set(columns) else self._file
        try:
            # Spark runs a task for each core: Arrow's threads would compete with other tasks.
            yield from file.iter_batches(rows, [group], list(columns), use_threads=False)
        except OSError as error:
            if error.errno is None and self._has_lzo(group):
                raise pa.ArrowNotImplementedError(str(error)) from error
            raise

    def _has_lzo(self, group: int) -> bool:
        found = self.metadata.row_group(group)
        return any(found.column(i).compression == "LZO" for i in range(found.num_columns))

    def _convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._conversions.keys() & set(batch.schema.names):
            return batch
        pairs = zip(batch.schema.names, batch.columns, strict=True)
        arrays = [self._conversions.get(name, same)(array) for name, array in pairs]
        kinds = zip(batch.schema, arrays, strict=True)
        fields = [field.with_type(array.type) for field, array in kinds]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def open_input(source: Any) -> ParquetInput:
    """Open a file for reading in little memory.

    A file of which PyArrow refuses some columns is opened with the others.

    Raises:
        pa.ArrowNotImplementedError: If its footer is encrypted.
        pa.ArrowException, OSError: If it is damaged.
    """
    try:
        file = ParquetInput(source)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk
        if _read_tail(source)[_LENGTH_BYTES:] == _ENCRYPTED_FOOTER:
            raise pa.ArrowNotImplementedError("it is encrypted") from error
        is_damaged = isinstance(error, OSError) or not _has_footer(source)
        edited = None if is_damaged else without_unsupported(_read_footer(source))
        if edited is None:
            raise
        return ParquetInput(source, *edited)
    # If columns are encrypted and the footer is plain, a signature follows the footer. PyArrow ends
    # the process when it is asked about such a column.
    if (
        int.from_bytes(_read_tail(source)[:_LENGTH_BYTES], "little")
        != file.metadata.serialized_size
    ):
        encrypted = without_encrypted(_read_footer(source))
        if encrypted is not None:
            return ParquetInput(source, *encrypted)
    return file


def _open(source: Any, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    return pq.ParquetFile(
        source,
        metadata=metadata,
        pre_buffer=False,
        coerce_int96_timestamp_unit="us",  # nanoseconds end in the year 2262
        buffer_size=_BUFFER_BYTES,
        page_checksum_verification=True,  # Spark's files have checksums
    )


def _read_tail(source: Any) -> bytes:
    size = source.seek(0, os.SEEK_END)
    source.seek(max(0, size - _TAIL_BYTES))
    return bytes(source.read(_TAIL_BYTES))


def _has_footer(source: Any) -> bool:
    """Return True if a file ends with a plain footer and is at least as long as that implies."""
    tail = _read_tail(source)
    length = int.from_bytes(tail[:_LENGTH_BYTES], "little")
    least = len(_MAGIC) + length + _TAIL_BYTES
    return tail[_LENGTH_BYTES:] == _MAGIC and least <= source.tell()


def _read_footer(source: Any, most: int | None = _MOST_FOOTER_BYTES) -> bytes:
    length = int.from_bytes(_read_tail(source)[:_LENGTH_BYTES], "little")
    if most is not None and length > most:
        raise pa.ArrowNotImplementedError(f"its footer has {length} bytes, and is of unusual form")
    source.seek(max(0, source.tell() - _TAIL_BYTES - length))
    return bytes(source.read(length))


# --- INT96

_MICROS = pa.timestamp("us")
_BYTES = np.dtype([("nanos", "<i8"), ("day", "<i4")])
_EPOCH_DAY = 2_440_588
"""The Julian day of 1970-01-01."""
_DAY_US = 86_400_000_000
_NS_PER_US = 1_000
_FIRST_DAY, _LAST_DAY = -106_751_992, 106_751_991
"""Days that 64 bits of microseconds reach, counted from the Julian day 0 as Spark counts them."""


def _no_conversion(kind: pa.DataType, physical: str, path: str) -> Convert | None:
    del kind, physical, path
    return None


def _int96_leaf(kind: pa.DataType, physical: str, path: str) -> Convert | None:
    del kind
    return (lambda array: _int96_times(array, path)) if physical == _INT96 else None


def _int96_times(array: pa.FixedSizeBinaryArray, path: str) -> pa.TimestampArray:
    """Return times of INT96 as Spark computes them (``DateTimeUtils.fromJulianDay``).

    Spark adds its days modulo 2^64 when it writes, so that a late time has a negative day. The same
    arithmetic here restores each time that Spark can have.

    Raises:
        SchemaError: If 64 bits of microseconds cannot represent a day.
    """
    size, offset, (nulls, data) = len(array), array.offset, array.buffers()
    if data is None or not size:
        return pa.nulls(size, _MICROS)
    raw = np.frombuffer(data, _BYTES, size, offset * _BYTES.itemsize)
    found = np.empty(offset + size, np.int64)  # with the same offset as the bits of nulls
    times = found[offset:]
    times[:] = raw["day"]
    if times.min() < _FIRST_DAY or times.max() > _LAST_DAY:
        _check_days(times[array.is_valid().to_numpy(zero_copy_only=False)], path)
    nanos = raw["nanos"].astype(np.int64)
    if nanos.min() < 0:  # Java's division rounds towards zero
        nanos -= np.fmod(nanos, _NS_PER_US)
        nanos //= _NS_PER_US
    else:
        positive = nanos.view(np.uint64)  # unsigned division takes half the time
        positive //= np.uint64(_NS_PER_US)
    times -= _EPOCH_DAY
    times *= _DAY_US
    times += nanos
    return pa.Array.from_buffers(_MICROS, size, [nulls, pa.py_buffer(found)], offset=offset)


def _check_days(days: np.ndarray[Any, np.dtype[np.int64]], path: str) -> None:
    wrong = days[(days < _FIRST_DAY) | (days > _LAST_DAY)]
    if wrong.size:
        raise SchemaError(
            f"column {path!r} has a time of INT96 that is out of range: the Julian day {wrong[0]}"
        )


# --- conversions of columns, made of conversions of their leaves

Leaf: TypeAlias = Callable[[Any, str, str], "Convert | None"]
"""A function that returns the conversion of a leaf, from its Arrow type, its physical type and its
path; None if its values are right already."""


@dataclass(frozen=True)
class Leaves:
    """The leaf columns of a file, in their order.

    Attributes:
        leaf: Returns the conversion of a leaf.
        physical: Physical types of the leaves that follow.
    """

    leaf: Leaf
    physical: Iterator[str]

    def make_conversion(self, kind: Any, path: str) -> Convert | None:
        """Return the conversion of values of a type; consumes as many leaves as the type has."""
        if isinstance(kind, pa.BaseExtensionType):
            return _after(
                lambda array: array.storage, self.make_conversion(kind.storage_type, path)
            )
        if pa.types.is_struct(kind):
            return self._struct(kind, path)
        if pa.types.is_map(kind):
            key = self.make_conversion(kind.key_type, f"{path}.key")
            item = self.make_conversion(kind.item_type, f"{path}.value")
            both = {"keys": key or same, "items": item or same}
            return functools.partial(_convert_map, **both) if key or item else None
        if is_list(kind):
            return self._list(kind, path)
        return self._leaf(kind, next(self.physical), path)

    def _struct(self, kind: pa.DataType, path: str) -> Convert | None:
        parts = [
            self.make_conversion(field.type, f"{path}.{field.name}") for field in children(kind)
        ]
        return functools.partial(_convert_struct, parts=parts) if any(parts) else None

    def _list(self, kind: Any, path: str) -> Convert | None:
        element = self.make_conversion(kind.value_type, f"{path}.element")
        if kind.value_field.name == MAP_ENTRIES:
            return functools.partial(_convert_entries_to_map, element=element or same, path=path)
        return functools.partial(_convert_list, element=element) if element else None

    def _leaf(self, kind: Any, physical: str, path: str) -> Convert | None:
        if pa.types.is_dictionary(kind):
            decoded = self._leaf(kind.value_type, physical, path)
            return _after(lambda array: array.dictionary_decode(), decoded)
        return self.leaf(kind, physical, path)


def _after(first: Convert, second: Convert | None) -> Convert | None:
    return None if second is None else lambda array: second(first(array))


def _convert_struct(array: pa.StructArray, parts: Sequence[Convert | None]) -> pa.StructArray:
    values = [
        value if convert is None else convert(value)
        for value, convert in zip(array.flatten(), parts, strict=True)
    ]
    pairs = zip(children(array.type), values, strict=True)
    return struct_with(array, values, [field.with_type(value.type) for field, value in pairs])


# The types of fields follow from their values, since a conversion may return values unchanged; the
# fields keep their names and their ids.


def _convert_list(array: pa.ListArray, element: Convert) -> pa.ListArray:
    kind: Any = array.type
    values = element(array.flatten())
    field = kind.value_field.with_type(values.type)
    return list_with(array, lambda _: values, pa.list_(field))


def _convert_map(array: pa.MapArray, keys: Convert, items: Convert) -> pa.MapArray:
    kind: Any = array.type
    first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    key = keys(array.keys.slice(first, end - first))
    item = items(array.items.slice(first, end - first))
    fields = kind.key_field.with_type(key.type), kind.item_field.with_type(item.type)
    return map_with(array, lambda _: key, lambda _: item, pa.map_(*fields))


def _convert_entries_to_map(array: pa.ListArray, element: Convert, path: str) -> pa.MapArray:
    lists = list_with(array, element)
    entries: Any = lists.values
    keys, items = entries.flatten()
    if keys.null_count:
        raise SchemaError(f"column {path!r} has a map with a null as a key")
    key, item = children(entries.type)
    return pa.MapArray.from_arrays(
        lists.offsets,
        keys,
        items,
        type=pa.map_(key.with_nullable(nullable=False), item),
        mask=lists.is_null() if lists.null_count else None,
    )
