"""Writing one task's rows into data files, in bounded memory. Executor."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.typedef import Record

from krishiv_spark.arrow.partition_files import OpenFiles, chunks
from krishiv_spark.arrow.schemas import conform
from krishiv_spark.errors import SchemaError
from krishiv_spark.iceberg._pyiceberg import count_written_bytes
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.sinks.base import Task
from krishiv_spark.sinks.iceberg.columns import table_columns
from krishiv_spark.sinks.iceberg.partitions import Partitions
from krishiv_spark.sinks.iceberg.sorting import merged
from krishiv_spark.sinks.iceberg.target import StagedDataFiles, Target, staged_for, stem_of

__all__ = ["write_files"]


def write_files(
    target: Target, batches: Iterator[pa.RecordBatch], task: Task
) -> StagedDataFiles | None:
    """Write the rows of one task; in bounded memory, with a bounded number of open files.

    Returns:
        What was written, or None if there were no rows.

    Raises:
        SchemaError: If a value does not fit its column.
    """
    columns = table_columns(target.metadata.schema())
    fitting = (conform(batch, columns, fill=True) for batch in batches)
    with _years_that_can_be_written(columns), TaskDataFiles(target, task) as files:
        for rows in chunks(fitting):
            files.write(rows)
            del rows  # or the next row group is gathered beside it
        written = files.close()
    return staged_for(target, *written) if written else None


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
        return cls(in_file, table_columns(in_file))


class _OpenDataFile:
    """One data file while it grows."""

    def __init__(self, target: Target, columns: _Columns, path: str, partition: Record) -> None:
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

    def __init__(self, target: Target, task: Task) -> None:
        super().__init__()
        metadata = target.metadata
        self._target = target
        self._columns = _Columns.of(metadata.schema())
        self._partitions = Partitions(metadata)
        self._places = target.locations
        self._names = (
            f"{stem_of(target, task)}-{count:05d}.parquet" for count in itertools.count()
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
        return merged(pieces, self._partitions.order)

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


# Of a name, in the usual file systems.
_MOST_BYTES = 255


def _remove(target: Target, path: str) -> None:
    with contextlib.suppress(Exception):  # best effort
        target.io.delete(path)
