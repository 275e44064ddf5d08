"""The data files of a task: rows split by partition, sorted, written in bounded memory. Executor.

One sort splits a chunk of rows into partitions, whatever their number. In a table with a sort
order, each file is sorted as a whole, by a merge of sorted chunks.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import (
    PartitionField,
    PartitionKey,
    PartitionSpec,
    partition_record_value,
)
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import Transform
from pyiceberg.typedef import Record

from krishiv_spark.arrow.cast import is_uuid
from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.conform import conform
from krishiv_spark.arrow.partition_files import CHUNK_BYTES, CHUNK_ROWS, OpenFiles, chunks
from krishiv_spark.errors import SchemaError
from krishiv_spark.iceberg._pyiceberg import count_written_bytes, get_parent_ids
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.parquet.partition_folders import group_starts
from krishiv_spark.sinks.base import Task
from krishiv_spark.sinks.iceberg.table_schema import to_arrow_columns
from krishiv_spark.sinks.iceberg.task_table import (
    StagedDataFiles,
    TaskTableSpec,
    file_name_prefix,
    to_staged,
)

__all__ = ["merge_sorted", "sort_indices", "write_files"]

# Limit of a name in the usual file systems.
_MAX_NAME_BYTES = 255

SortKey: TypeAlias = "tuple[pa.ChunkedArray | pa.Array, str]"
"""Values to sort by, and the direction in Arrow's notation."""

Keys: TypeAlias = "Callable[[pa.Table], Sequence[SortKey]]"
"""Returns the sort keys of the rows of a table."""


def write_files(
    target: TaskTableSpec, batches: Iterator[pa.RecordBatch], task: Task
) -> StagedDataFiles | None:
    """Write the rows of one task, with bounded memory and a bounded number of open files.

    Returns:
        The written files, or None if there were no rows.

    Raises:
        SchemaError: If a value does not fit its column.
    """
    columns = to_arrow_columns(target.metadata.schema())
    fitting = (conform(batch, columns, fill=True) for batch in batches)
    with _explain_year_errors(columns), TaskDataFiles(target, task) as files:
        for rows in chunks(fitting):
            files.write(rows)
            del rows  # or the next row group is gathered beside it
        written = files.close()
    return to_staged(target, *written) if written else None


@contextlib.contextmanager
def _explain_year_errors(columns: pa.Schema) -> Iterator[None]:
    """Convert the overflow of years into an error that names the columns.

    PyIceberg converts bounds and partitions to dates of Python, which have the years 1 to 9999.

    Raises:
        SchemaError: If a date is outside these years.
    """
    try:
        yield
    except OverflowError as error:
        kinds = (pa.types.is_date, pa.types.is_timestamp)
        names = [field.name for field in columns if any(is_a(field.type) for is_a in kinds)]
        raise SchemaError(
            f"{FORMAT}: a date or time before year 1 or after year 9999 cannot be written; it "
            f"is in one of the columns {', '.join(names) or 'inside structs'}: filter such "
            "rows, or make them null"
        ) from error


class _Columns(NamedTuple):
    """The columns of a data file, with the names that Avro allows, and with field ids."""

    in_file: Schema
    of_arrow: pa.Schema

    @classmethod
    def of(cls, schema: Schema) -> _Columns:
        in_file = sanitize_column_names(schema)
        return cls(in_file, to_arrow_columns(in_file))


class _OpenDataFile:
    """A data file that is being written."""

    def __init__(
        self, target: TaskTableSpec, columns: _Columns, path: str, partition: Record
    ) -> None:
        self.path = path
        self._target = target
        self._partition = partition
        self._columns = columns.of_arrow
        self._output = target.io.new_output(path)
        model = FileFormatFactory.get(FileFormat.PARQUET)
        properties = target.metadata.properties
        self._writer = model.create_writer(self._output, columns.in_file, properties)

    @property
    def room(self) -> int | None:
        size = count_written_bytes(self._writer)
        return None if size < self._target.file_size else 0

    def write(self, rows: pa.Table) -> None:
        self._writer.write(_rename_columns(rows, self._columns))

    def close(self) -> DataFile:
        statistics = self._writer.close()
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=self._partition,
            file_size_in_bytes=len(self._output),
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        file.spec_id = self._target.metadata.default_spec_id  # no argument of `from_args`
        return file

    def drop(self) -> None:
        with contextlib.suppress(Exception):  # it was being written when something else failed
            self._writer.close()
        _delete(self._target, self.path)


def _rename_columns(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return rows with the column names of files, and with field ids."""
    pairs = zip(rows.columns, columns.types, strict=True)
    same = [
        # Only names and ids of inner fields differ: the values remain the same.
        column if column.type == kind else column.combine_chunks().view(kind)
        for column, kind in pairs
    ]
    return pa.Table.from_arrays(same, schema=columns)


class TaskDataFiles(OpenFiles[Record, _OpenDataFile, DataFile]):
    """The open files of one attempt of a task, by partition.

    Args:
        target: The table's spec, order, format and locations.
        task: Identifies the attempt in the names of its files, so that no two attempts share one.
    """

    def __init__(self, target: TaskTableSpec, task: Task) -> None:
        super().__init__()
        metadata = target.metadata
        self._target = target
        self._columns = _Columns.of(metadata.schema())
        self._partitions = Partitions(metadata)
        self._locations = target.locations
        self._names = (
            f"{file_name_prefix(target, task)}-{count:05d}.parquet" for count in itertools.count()
        )

    def write(self, rows: pa.Table) -> None:
        """Append the rows of one chunk to the files of their partitions."""
        self.add(self._partitions.split(rows))

    @property
    def may_write_early(self) -> bool:
        """False for a table with a sort order: each file is sorted as a whole."""
        return not self._partitions.is_sorted

    def arrange(self, pieces: Sequence[pa.Table]) -> Iterator[pa.Table]:
        """Return the rows of a partition, in the table's order if it has one."""
        if not self._partitions.is_sorted:
            return super().arrange(pieces)
        return merge_sorted(pieces, self._partitions.order)

    def make(self, key: Record, schema: pa.Schema) -> _OpenDataFile:
        """Open a new file for the values of a partition."""
        del schema  # in files, columns have other names
        partition = self._partitions.key(key)
        folder = partition if _has_folder(partition) else None
        path = self._locations.new_data_location(next(self._names), folder)
        return _OpenDataFile(self._target, self._columns, path, key)

    def remove(self, closed: DataFile) -> None:
        """Delete a data file; best effort, vacuum finds the rest."""
        _delete(self._target, closed.file_path)


def _has_folder(key: PartitionKey | None) -> bool:
    """Return True if file systems accept the folder names of a partition.

    Without a folder, the files are in the data folder: Iceberg needs none.
    """
    names = [] if key is None else key.to_path().split("/")
    return all(len(name.encode()) <= _MAX_NAME_BYTES for name in names)


def _delete(target: TaskTableSpec, path: str) -> None:
    with contextlib.suppress(Exception):  # best effort
        target.io.delete(path)


class _Key(PartitionKey):
    """A partition for location providers; PyIceberg's own refuses two fields of one column."""

    def __init__(self, values: Record, spec: PartitionSpec, schema: Schema) -> None:
        super().__init__(field_values=[], partition_spec=spec, schema=schema)
        self.__dict__["partition"] = values  # the value of a cached property


class Partitions:
    """The partitions and the sort order of a table."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._schema = metadata.schema()
        self._spec = metadata.spec()
        self._order = metadata.sort_order()

    @cached_property
    def is_sorted(self) -> bool:
        """True if the table has a sort order."""
        return not self._order.is_unsorted

    def split(self, rows: pa.Table) -> Iterator[tuple[Record, pa.Table]]:
        """Split rows by partition, each part in the table's sort order.

        Returns:
            Pairs of the values of the partition fields (none without partitions) and the rows.
        """
        keys = [self._key(rows, field) for field in self._spec.fields]
        sorts: list[SortKey] = [(key, "ascending") for key in keys]
        sorts += self.order(rows)
        if sorts:
            indices = sort_indices(sorts)
            keys, rows = [key.take(indices) for key in keys], rows.take(indices)
        yield from self._parts(keys, rows)

    def order(self, rows: pa.Table) -> list[SortKey]:
        """Return the sort keys of rows within a partition; none without a sort order."""
        fields = self._order.fields if self.is_sorted else ()
        return [sort for field in fields for sort in self._sort_keys(rows, field)]

    def key(self, values: Record) -> PartitionKey | None:
        """Return a partition for location providers; None without partitions."""
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
        """Convert a partition value to Iceberg's form, which dates and times already have."""
        if isinstance(one, Decimal):
            self._check_digits(field, one)
        if one is None or isinstance(one, int):
            return one
        return partition_record_value(field, one, self._schema)

    def _check_digits(self, field: PartitionField, one: Decimal) -> None:
        """Refuse a truncated decimal with too many digits.

        Truncation rounds down, so that the lowest values of a type get one more digit.

        Raises:
            SchemaError: If there is such a value.
        """
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
        return _to_sortable_values(column)

    def _transformed(
        self, rows: pa.Table, source: int, transform: Transform[Any, Any]
    ) -> pa.ChunkedArray:
        if str(transform) == "void":  # the table may not have its column any more
            return pa.chunked_array([pa.nulls(rows.num_rows, pa.int32())])
        column = _get_column(rows, self._schema, source)
        kind = self._schema.find_field(source).field_type
        return transform.pyarrow_transform(kind)(column)

    def _sort_keys(self, rows: pa.Table, field: SortField) -> list[SortKey]:
        """Return the sort keys of one field.

        Arrow puts all nulls last, so the first key is whether the value is null.
        """
        column = _to_sortable_values(self._transformed(rows, field.source_id, field.transform))
        first = field.null_order is NullOrder.NULLS_FIRST
        descends = field.direction is SortDirection.DESC
        is_null = pc.cast(pc.is_null(column), pa.int8())
        return [
            (is_null, "descending" if first else "ascending"),
            (column, "descending" if descends else "ascending"),
        ]


def _to_sortable_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert dates and times to Iceberg's numbers, which Python represents in every case.

    UUIDs become bytes, which Arrow can sort.
    """
    if is_uuid(column.type):
        stored = [chunk.storage for chunk in column.chunks]
        return pa.chunked_array(stored, column.type.storage_type)
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    if pa.types.is_timestamp(column.type) or pa.types.is_time64(column.type):
        return column.cast(pa.int64())
    return column


def _get_column(rows: pa.Table, schema: Schema, source: int) -> pa.ChunkedArray:
    """Return a column by its field id, also one inside structs."""
    first, *rest = _get_path(schema, source)
    column = rows.column(first)
    for name in rest:
        column = pc.struct_field(column, name)
    return column


def _get_path(schema: Schema, source: int) -> list[str]:
    """Return the names of a column from the top down; a name may contain dots."""
    names = [schema.find_field(source).name]
    above = get_parent_ids(schema)
    while source in above:
        source = above[source]
        names.insert(0, schema.find_field(source).name)
    return names


def sort_indices(sorts: Sequence[SortKey]) -> pa.Array:
    """Return the indices of rows in the order of their sort keys; nulls last."""
    names = [str(index) for index in range(len(sorts))]
    keys = pa.table([column for column, _ in sorts], names=names)
    directions = (direction for _, direction in sorts)
    return pc.sort_indices(keys, list(zip(names, directions, strict=True)))


def merge_sorted(
    runs: Sequence[pa.Table],
    keys: Keys,
    most_rows: int = CHUNK_ROWS,
    most_bytes: int = CHUNK_BYTES,
) -> Iterator[pa.Table]:
    """Merge sorted tables into tables of bounded size.

    Args:
        runs: Tables, each sorted by the keys; mapped files are read sequentially.
        keys: Returns the sort keys of rows.
        most_rows: About how many rows are in memory at a time.
        most_bytes: About how many bytes.
    """
    rows, size = sum(run.num_rows for run in runs), sum(run.nbytes for run in runs)
    parts = max(rows / most_rows, size / most_bytes, 1)
    windows = [_Window(run, max(1, int(run.num_rows / parts))) for run in runs]
    while windows := [window for window in windows if window.rows.num_rows]:
        yield _take_next_rows(windows, keys)


@dataclass
class _Window:
    """The next rows of a run.

    Attributes:
        run: The remaining rows of the run.
        size: The number of rows in the window.
    """

    run: pa.Table
    size: int

    @property
    def rows(self) -> pa.Table:
        return self.run.slice(0, self.size)

    @property
    def is_last(self) -> bool:
        """True if the run has no rows after these."""
        return bool(self.run.num_rows <= self.size)

    def advance(self, rows: int) -> None:
        self.run = self.run.slice(rows)


def _take_next_rows(windows: Sequence[_Window], keys: Keys) -> pa.Table:
    """Return the sorted rows that precede all rows outside the windows, and remove them."""
    windows = _select_windows(windows, keys)
    if len(windows) == 1:
        rows = windows[0].rows
        windows[0].advance(rows.num_rows)
        return rows
    shown = [window.rows for window in windows]
    rows = pa.concat_tables(shown)
    ends = np.cumsum([table.num_rows for table in shown])
    indices = np.asarray(_stable_indices(rows, keys))
    # The rows after a window, if it is not at the end of its run, are unknown: rows that are sorted
    # after the last row of the window may have to follow them.
    stops = [end - 1 for end, window in zip(ends, windows, strict=True) if not window.is_last]
    stopped = np.flatnonzero(np.isin(indices, stops))
    indices = indices[: stopped[0] + 1] if len(stopped) else indices
    taken = np.bincount(np.searchsorted(ends, indices, side="right"), minlength=len(windows))
    for window, count in zip(windows, taken, strict=True):
        window.advance(int(count))
    return rows.take(pa.array(indices))


def _select_windows(windows: Sequence[_Window], keys: Keys) -> list[_Window]:
    """Return the windows that start before the first end of a window with rows after it."""
    firsts = [window.rows.slice(0, 1) for window in windows]
    lasts = [window.rows.slice(window.rows.num_rows - 1) for window in windows]
    indices = np.asarray(_stable_indices(pa.concat_tables([*firsts, *lasts]), keys))
    stops = [len(windows) + n for n, window in enumerate(windows) if not window.is_last]
    stopped = np.flatnonzero(np.isin(indices, stops))
    before = indices[: stopped[0]] if len(stopped) else indices
    return [windows[index] for index in sorted(before) if index < len(windows)]


def _stable_indices(rows: pa.Table, keys: Keys) -> pa.Array:
    """Return the indices of rows in the order of the keys; equal rows keep their order."""
    numbers = pa.array(np.arange(rows.num_rows))
    return sort_indices([*keys(rows), (numbers, "ascending")])
