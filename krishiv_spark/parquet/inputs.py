"""Open Parquet files, of which every row is accounted for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_spark.arrow.compute import Convert, same
from krishiv_spark.errors import SchemaError
from krishiv_spark.parquet.footer_edits import (
    UnsupportedColumn,
    int96_as_bytes,
    metadata_of,
    without_encrypted,
    without_unsupported,
)
from krishiv_spark.parquet.leaves import MAP_ENTRIES, Leaves

__all__ = ["ParquetInput", "open_input"]

# Column chunks are read through a buffer of this size, or a row group of any size would be held
# in memory as a whole.
_BUFFER_BYTES = 2**20

_TAIL_BYTES, _LENGTH_BYTES = 8, 4
"""A file ends with the length of its footer, and a magic."""

_MOST_FOOTER_BYTES = 16 * 2**20
"""Of a footer that is decoded as a whole. Those of files with 10 000 columns have a tenth of it."""

_MAGIC, _ENCRYPTED_FOOTER = b"PAR1", b"PARE"
_INT96 = "INT96"
_SHOWN = 5  # columns in a message


class ParquetInput:
    """A file that is read in little memory, with row groups of any size.

    Attributes:
        metadata: Its footer, without the columns in `unsupported`.
        unsupported: Columns that cannot be read, by name. The others can.

    Args:
        source: The file, as PyArrow reads it.
        footer: The bytes of its footer, if PyArrow cannot use those that are in the file.
        unsupported: As the attribute.

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
        self._file = _opened(source, None if footer is None else metadata_of(footer))
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
        converts = [leaves.of(field.type, field.name) for field in found]
        return pa.schema(
            field if convert is None else field.with_type(convert(pa.nulls(0, field.type)).type)
            for field, convert in zip(found, converts, strict=True)
        )

    @cached_property
    def _exact(self) -> pq.ParquetFile:
        """The file with INT96 as bytes: of some times of it, PyArrow computes other ones."""
        if _INT96 not in self.physical_types:
            return self._file
        # Of any size: only its schema is decoded.
        footer = _footer_of(self._source, None) if self._footer is None else self._footer
        return _opened(self._source, metadata_of(int96_as_bytes(footer)))

    @cached_property
    def _conversions(self) -> dict[str, Convert]:
        if not self._has_maps and _INT96 not in self.physical_types:
            return {}
        leaves = Leaves(_int96_leaf, iter(self.physical_types))
        stored = self._exact.schema_arrow
        found = ((field.name, leaves.of(field.type, field.name)) for field in stored)
        return {name: convert for name, convert in found if convert is not None}

    def batches(self, group: int, rows: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group; holds a page of each column and one batch.

        Args:
            group: Number of the row group.
            rows: Most rows of a batch.
            columns: Names of the columns that are read; those of structs are read whole.

        Raises:
            pa.ArrowNotImplementedError: If a column has a codec that PyArrow lacks.
            pa.ArrowException, OSError: If the file is damaged, or the row group has another number
                of rows than the footer says: PyArrow ends where the shortest column ends.
            SchemaError: If a value does not fit.
        """
        expected, count = self.metadata.row_group(group).num_rows, 0
        for batch in self._stored_batches(group, rows, columns):
            count += batch.num_rows
            if count > expected:
                break
            yield self._converted(batch)
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
            # Spark runs a task for each core: threads of Arrow's would compete with other tasks.
            yield from file.iter_batches(rows, [group], list(columns), use_threads=False)
        except OSError as error:
            if error.errno is None and self._has_lzo(group):
                raise pa.ArrowNotImplementedError(str(error)) from error
            raise

    def _has_lzo(self, group: int) -> bool:
        found = self.metadata.row_group(group)
        return any(found.column(i).compression == "LZO" for i in range(found.num_columns))

    def _converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
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
            raise  # of the disk
        if _tail_of(source)[_LENGTH_BYTES:] == _ENCRYPTED_FOOTER:
            raise pa.ArrowNotImplementedError("it is encrypted") from error
        is_damaged = isinstance(error, OSError) or not _has_footer(source)
        edited = None if is_damaged else without_unsupported(_footer_of(source))
        if edited is None:
            raise
        return ParquetInput(source, *edited)
    # A signature follows a footer that is plain though columns are encrypted, and PyArrow ends the
    # process when it is asked about such a column.
    if int.from_bytes(_tail_of(source)[:_LENGTH_BYTES], "little") != file.metadata.serialized_size:
        encrypted = without_encrypted(_footer_of(source))
        if encrypted is not None:
            return ParquetInput(source, *encrypted)
    return file


def _opened(source: Any, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    return pq.ParquetFile(
        source,
        metadata=metadata,
        pre_buffer=False,
        coerce_int96_timestamp_unit="us",  # nanoseconds end in the year 2262
        buffer_size=_BUFFER_BYTES,
        page_checksum_verification=True,  # where there are any; Spark's files have them
    )


def _tail_of(source: Any) -> bytes:
    size = source.seek(0, os.SEEK_END)
    source.seek(max(0, size - _TAIL_BYTES))
    return bytes(source.read(_TAIL_BYTES))


def _has_footer(source: Any) -> bool:
    """Return True if a file ends as one with a plain footer does, and is as long as it claims."""
    tail = _tail_of(source)
    length = int.from_bytes(tail[:_LENGTH_BYTES], "little")
    least = len(_MAGIC) + length + _TAIL_BYTES
    return tail[_LENGTH_BYTES:] == _MAGIC and least <= source.tell()


def _footer_of(source: Any, most: int | None = _MOST_FOOTER_BYTES) -> bytes:
    length = int.from_bytes(_tail_of(source)[:_LENGTH_BYTES], "little")
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
    """Times of INT96 as Spark computes them (``DateTimeUtils.fromJulianDay``).

    Spark adds its days modulo 2^64 when it writes, so that a late time has a negative day: the same
    is done here, and gives back each time that Spark can have.

    Raises:
        SchemaError: If a day is one that microseconds cannot reach.
    """
    size, offset, (nulls, data) = len(array), array.offset, array.buffers()
    if data is None or not size:
        return pa.nulls(size, _MICROS)
    raw = np.frombuffer(data, _BYTES, size, offset * _BYTES.itemsize)
    found = np.empty(offset + size, np.int64)  # beside the same bits of nulls
    times = found[offset:]
    times[:] = raw["day"]
    if times.min() < _FIRST_DAY or times.max() > _LAST_DAY:
        _check_days(times[array.is_valid().to_numpy(zero_copy_only=False)], path)
    nanos = raw["nanos"].astype(np.int64)
    if nanos.min() < 0:  # Java's division rounds towards zero
        nanos -= np.fmod(nanos, _NS_PER_US)
        nanos //= _NS_PER_US
    else:
        positive = nanos.view(np.uint64)  # which are divided in half the time
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
