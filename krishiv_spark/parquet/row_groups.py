"""The row groups that one task reads: of a part of a large file, or of several small files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_spark.parquet.inputs import ParquetInput

__all__ = ["OPEN_COST", "ByteRange", "pack", "read_all", "read_row_groups", "split_size"]

OPEN_COST = 4 * 2**20
"""Cost of opening a file, as the number of bytes whose reading takes as long
(``spark.sql.files.openCostInBytes``)."""

_BATCH_BYTES = 8 * 2**20
_BATCH_ROWS = 16_384


class ByteRange(Protocol):
    """A part of one file: the row groups whose midpoint is in a range of bytes."""

    @property
    def start(self) -> int:
        """The first byte."""
        ...

    @property
    def end(self) -> int:
        """The byte after the last one."""
        ...


R = TypeVar("R", bound=ByteRange)


def split_size(size: int, most: int) -> list[tuple[int, int]]:
    """Return start and end, exclusive, of ranges of at most `most` bytes that cover a file."""
    if 0 < size <= most:
        return [(0, size)]
    return [(start, min(start + most, size)) for start in range(0, size, most)]


def pack(ranges: Iterable[R], most: int) -> list[tuple[R, ...]]:
    """Pack ranges in their order into tasks of about `most` bytes, with the cost to open a file."""
    parts: list[list[R]] = []
    room = 0
    for piece in ranges:
        cost = piece.end - piece.start + OPEN_COST
        if cost > room or not parts:
            parts.append([])
            room = most + OPEN_COST
        parts[-1].append(piece)
        room -= cost
    return [tuple(part) for part in parts]


def read_row_groups(  # noqa: PLR0913  all but four have defaults
    file: ParquetInput,
    part: ByteRange,
    size: int,
    columns: Sequence[str],
    *,
    only: Collection[int] | None = None,
    expect: Callable[[Sequence[tuple[int, int]]], None] | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of a part of a file. Executor; it needs memory for a page of each column.

    Args:
        file: The whole file.
        part: The row groups whose midpoint is in this range are read.
        size: Bytes of the whole file.
        columns: Names of the columns to read; structs are read whole.
        only: Numbers of the row groups that may have wanted rows; None if any of them may.
        expect: Called with the ranges of bytes of each row group before it is read; see
            `OpenedFile`.

    Yields:
        Batches of moderate size, in the file's order, each with the number of its first row in the
        whole file.
    """
    first = 0
    for index in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(index)
        is_here = group.num_rows and part.start <= _midpoint(group, size) < part.end
        if is_here and (only is None or index in only):
            at, rows = first, _batch_rows(group, columns)
            if expect is not None:
                expect([_span(chunk) for chunk in _chunks(group, columns)])
            for batch in file.batches(index, rows, columns):
                yield at, batch
                at += batch.num_rows
        first += group.num_rows


def read_all(file: ParquetInput, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a file in their order, as `read_row_groups` does."""
    for index in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(index)
        if group.num_rows:
            yield from file.batches(index, _batch_rows(group, columns), columns)


def _midpoint(group: pq.RowGroupMetaData, size: int) -> int:
    """Return the byte by which a range reads a row group (ParquetMetadataConverter's rule)."""
    chunks = [group.column(i) for i in range(group.num_columns)]
    start, _ = _span(chunks[0]) if chunks else (0, 0)  # no column of the file can be read
    middle: int = start + sum(chunk.total_compressed_size for chunk in chunks) // 2
    return min(middle, size - 1)  # the result is in some range, even with a wrong footer


def _batch_rows(group: pq.RowGroupMetaData, columns: Sequence[str]) -> int:
    """Return the number of rows of a batch of moderate size."""
    size = sum(chunk.total_uncompressed_size for chunk in _chunks(group, columns))
    per_row: int = max(1, size // group.num_rows)
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // per_row))


def _chunks(group: pq.RowGroupMetaData, columns: Sequence[str]) -> Iterator[pq.ColumnChunkMetaData]:
    """Yield the column chunks of some columns in a row group; a struct has several."""
    wanted = set(columns)
    for chunk in (group.column(i) for i in range(group.num_columns)):
        # The name of a column may have dots, and the path of a nested column always has some.
        if chunk.path_in_schema.partition(".")[0] in wanted or chunk.path_in_schema in wanted:
            yield chunk


def _span(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the first byte of a column chunk, and the byte after its last one."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size
