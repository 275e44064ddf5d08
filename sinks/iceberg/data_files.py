"""Writing one task's rows into data files, in bounded memory. Executor.

Cutting rows into the partitions of a table: one sort, whatever the number of partitions.

Sorting rows, and merging sorted rows that are too many to be in memory.
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

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.partition_files import CHUNK_BYTES, CHUNK_ROWS, OpenFiles, chunks
from krishiv_spark.arrow.schemas import conform
from krishiv_spark.arrow.uuids import is_uuid
from krishiv_spark.errors import SchemaError
from krishiv_spark.iceberg._pyiceberg import count_written_bytes, get_parent_ids
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.parquet.partitions import group_starts
from krishiv_spark.sinks.iceberg.table_schema import to_arrow_columns
from krishiv_spark.sinks.iceberg.task_table import (
    StagedDataFiles,
    TaskTableSpec,
    file_name_prefix,
    to_staged,
)
from krishiv_spark.sinks.values import Task

__all__ = ["merge_sorted", "sort_indices", "write_files"]

# Of a name, in the usual file systems.
_MOST_BYTES = 255

SortKey: TypeAlias = "tuple[pa.ChunkedArray | pa.Array, str]"
"""What rows are sorted by, and the direction as Arrow writes it."""

Keys: TypeAlias = "Callable[[pa.Table], Sequence[SortKey]]"
"""What rows of a table are sorted by."""


def write_files(
    target: TaskTableSpec, batches: Iterator[pa.RecordBatch], task: Task
) -> StagedDataFiles | None:
    """Write the rows of one task; in bounded memory, with a bounded number of open files.

    Returns:
        What was written, or None if there were no rows.

    Raises:
        SchemaError: If a value does not fit its column.
    """
    columns = to_arrow_columns(target.metadata.schema())
    fitting = (conform(batch, columns, fill=True) for batch in batches)
    with _years_that_can_be_written(columns), TaskDataFiles(target, task) as files:
        for rows in chunks(fitting):
            files.write(rows)
            del rows  # or the next row group is gathered beside it
        written = files.close()
    return to_staged(target, *written) if written else None


@contextlib.contextmanager
def _years_that_can_be_written(columns: pa.Schema) -> Iterator[None]:
    """PyIceberg makes Python's dates of bounds and partitions, which have the years 1 to 9999."""
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
    """The columns of a data file, with the names that Avro allows and the ids of their fields."""

    in_file: Schema
    of_arrow: pa.Schema

    @classmethod
    def of(cls, schema: Schema) -> _Columns:
        in_file = sanitize_column_names(schema)
        return cls(in_file, to_arrow_columns(in_file))


class _OpenDataFile:
    """One data file while it grows."""

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
        self._writer.write(_renamed(rows, self._columns))

    def close(self) -> DataFile:
        statistics = self._writer.close()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=self._partition,
            file_size_in_bytes=len(self._output),
            sort_order_id=None,
            spec_id=self._target.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def drop(self) -> None:
        with contextlib.suppress(Exception):  # it was being written when something else failed
            self._writer.close()
        _remove(self._target, self.path)


def _renamed(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Rows with the names that columns have in files, and with the ids of their fields."""
    pairs = zip(rows.columns, columns.types, strict=True)
    same = [
        # Only names and ids of fields inside differ: the values are taken as they are.
        column if column.type == kind else column.combine_chunks().view(kind)
        for column, kind in pairs
    ]
    return pa.Table.from_arrays(same, schema=columns)


class TaskDataFiles(OpenFiles[Record, _OpenDataFile, DataFile]):
    """The files of one attempt of a task, by the values of their partition.

    Args:
        target: What the planner has seen of the table: spec, order, format and places of its files.
        task: Its names are in the names of the files: no two attempts share one.
    """

    def __init__(self, target: TaskTableSpec, task: Task) -> None:
        super().__init__()
        metadata = target.metadata
        self._target = target
        self._columns = _Columns.of(metadata.schema())
        self._partitions = Partitions(metadata)
        self._places = target.locations
        self._names = (
            f"{file_name_prefix(target, task)}-{count:05d}.parquet" for count in itertools.count()
        )

    def write(self, rows: pa.Table) -> None:
        """Append the rows of one chunk to the files of their partitions."""
        self.add(self._partitions.split(rows))

    @property
    def may_write_early(self) -> bool:
        """Not into the files of a table with a sort order: each is sorted as a whole."""
        return not self._partitions.is_sorted

    def arranged(self, pieces: Sequence[pa.Table]) -> Iterator[pa.Table]:
        """Rows of a partition, in the table's order if it has one."""
        if not self._partitions.is_sorted:
            return super().arranged(pieces)
        return merge_sorted(pieces, self._partitions.order)

    def make(self, key: Record, schema: pa.Schema) -> _OpenDataFile:
        """Open a new file for the values of a partition."""
        del schema  # in files, columns have other names
        place = self._partitions.key(key)
        folder = place if _has_folder(place) else None
        path = self._places.new_data_location(next(self._names), folder)
        return _OpenDataFile(self._target, self._columns, path, key)

    def remove(self, closed: DataFile) -> None:
        """Remove a data file, if that is possible; otherwise vacuum finds it."""
        _remove(self._target, closed.file_path)


def _has_folder(key: PartitionKey | None) -> bool:
    """Whether file systems take the names of a partition's folders; Iceberg needs none."""
    names = [] if key is None else key.to_path().split("/")
    return all(len(name.encode()) <= _MOST_BYTES for name in names)


def _remove(target: TaskTableSpec, path: str) -> None:
    with contextlib.suppress(Exception):  # best effort
        target.io.delete(path)


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
            places = sort_indices(sorts)
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


def sort_indices(sorts: Sequence[SortKey]) -> pa.Array:
    """The places of rows in the order of their sort keys; nulls last."""
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
    """The rows of sorted tables in one order, in tables of bounded size.

    Args:
        runs: Tables, each sorted by the keys; they may be mapped files, and are read in order.
        keys: What they are sorted by.
        most_rows: About how many rows are in memory at a time.
        most_bytes: About how many bytes.
    """
    rows, size = sum(run.num_rows for run in runs), sum(run.nbytes for run in runs)
    parts = max(rows / most_rows, size / most_bytes, 1)
    windows = [_Window(run, max(1, int(run.num_rows / parts))) for run in runs]
    while windows := [window for window in windows if window.rows.num_rows]:
        yield _next_rows(windows, keys)


@dataclass
class _Window:
    """The next rows of a run.

    Attributes:
        run: What is left of the run.
        size: How many of its rows are looked at together.
    """

    run: pa.Table
    size: int

    @property
    def rows(self) -> pa.Table:
        return self.run.slice(0, self.size)

    @property
    def is_last(self) -> bool:
        """Whether the run has no rows after these."""
        return bool(self.run.num_rows <= self.size)

    def advance(self, rows: int) -> None:
        self.run = self.run.slice(rows)


def _next_rows(windows: Sequence[_Window], keys: Keys) -> pa.Table:
    """The rows that come before all that no window shows, sorted; they leave their windows."""
    windows = _reached(windows, keys)
    if len(windows) == 1:
        rows = windows[0].rows
        windows[0].advance(rows.num_rows)
        return rows
    shown = [window.rows for window in windows]
    rows = pa.concat_tables(shown)
    ends = np.cumsum([table.num_rows for table in shown])
    places = np.asarray(_stable_places(rows, keys))
    # A window hides what follows its last row in the run, if it is not the run's end: what is
    # sorted after that row may have to wait for it.
    stops = [end - 1 for end, window in zip(ends, windows, strict=True) if not window.is_last]
    stopped = np.flatnonzero(np.isin(places, stops))
    places = places[: stopped[0] + 1] if len(stopped) else places
    taken = np.bincount(np.searchsorted(ends, places, side="right"), minlength=len(windows))
    for window, count in zip(windows, taken, strict=True):
        window.advance(int(count))
    return rows.take(pa.array(places))


def _reached(windows: Sequence[_Window], keys: Keys) -> list[_Window]:
    """The windows that begin before the first of them ends that is not the last of its run."""
    firsts = [window.rows.slice(0, 1) for window in windows]
    lasts = [window.rows.slice(window.rows.num_rows - 1) for window in windows]
    places = np.asarray(_stable_places(pa.concat_tables([*firsts, *lasts]), keys))
    stops = [len(windows) + n for n, window in enumerate(windows) if not window.is_last]
    stopped = np.flatnonzero(np.isin(places, stops))
    before = places[: stopped[0]] if len(stopped) else places
    return [windows[place] for place in sorted(before) if place < len(windows)]


def _stable_places(rows: pa.Table, keys: Keys) -> pa.Array:
    """Places of rows in the order of the keys, those of equal ones in their own."""
    numbers = pa.array(np.arange(rows.num_rows))
    return sort_indices([*keys(rows), (numbers, "ascending")])
