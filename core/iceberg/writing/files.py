"""Writing one task's rows into data files, in bounded memory. Executor."""

from __future__ import annotations

import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Iterator
from types import TracebackType

import pyarrow as pa
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import sanitize_column_names
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record
from typing_extensions import Self

from krishiv_spark.arrow import conform
from krishiv_spark.errors import SchemaError
from krishiv_spark.iceberg.catalogs import FORMAT
from krishiv_spark.iceberg.writing.columns import table_columns
from krishiv_spark.iceberg.writing.partitions import Part, Partitions
from krishiv_spark.iceberg.writing.target import StagedFiles, Target, stem_of
from krishiv_spark.parquet.files import chunks
from krishiv_spark.sinks.base import Task

__all__ = ["write_files"]

_OPEN_FILES = 64


def write_files(
    target: Target, batches: Iterator[pa.RecordBatch], task: Task
) -> StagedFiles | None:
    """Write the rows of one task; in bounded memory, with a bounded number of open files.

    Returns:
        What was written, or None if there were no rows.

    Raises:
        SchemaError: If a value does not fit its column.
    """
    columns = table_columns(target.metadata.schema())
    fitting = (conform(batch, columns, fill=True) for batch in batches)
    with _years_that_can_be_written(columns), TaskFiles(target, task) as files:
        for rows in chunks(fitting):
            files.write(rows)
        written = files.close()
    if not written:
        return None
    metadata = target.metadata
    return StagedFiles(str(metadata.table_uuid), metadata.default_spec_id, written)


@contextlib.contextmanager
def _years_that_can_be_written(columns: pa.Schema) -> Iterator[None]:
    """PyIceberg makes Python's dates of bounds and partitions, which have the years 1 to 9999."""
    try:
        yield
    except OverflowError as error:
        kinds = (pa.types.is_date, pa.types.is_timestamp)
        names = [field.name for field in columns if any(is_a(field.type) for is_a in kinds)]
        raise SchemaError(
            f"{FORMAT}: a date or time before year 1 or after year 9999 cannot be written; it is "
            f"in one of the columns {', '.join(names) or 'inside of structs'}: filter such rows, "
            "or make them null"
        ) from error


class _OpenFile:
    """One data file while it grows."""

    def __init__(self, target: Target, path: str, partition: Record) -> None:
        schema = sanitize_column_names(target.metadata.schema())
        self.path = path
        self._target = target
        self._partition = partition
        self._columns = table_columns(schema)
        self._output = target.io.new_output(path)
        model = FileFormatFactory.get(FileFormat.PARQUET)
        self._writer = model.create_writer(self._output, schema, target.metadata.properties)
        self.size = 0

    def write(self, rows: pa.Table) -> None:
        self._writer.write(_renamed(rows, self._columns))
        self.size = self._position()

    def _position(self) -> int:
        stream = getattr(self._writer, "_fos", None)
        return stream.tell() if stream is not None else 0

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


def _renamed(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Rows with the names that columns have in files, and with the ids of their fields."""
    pairs = zip(rows.columns, columns.types, strict=True)
    same = [
        column if column.type == kind else column.combine_chunks().view(kind)
        for column, kind in pairs
    ]
    return pa.Table.from_arrays(same, schema=columns)


class TaskFiles:
    """The files of one attempt of a task. As a context, it removes them when the task fails.

    Args:
        target: The table.
        task: Its names are in the names of the files: no two attempts share one.
    """

    def __init__(self, target: Target, task: Task) -> None:
        metadata = target.metadata
        self._target = target
        self._partitions = Partitions(metadata)
        self._places = load_location_provider(metadata.location, metadata.properties)
        self._stem = stem_of(task)
        self._numbers = itertools.count()
        self._open: OrderedDict[Record, _OpenFile] = OrderedDict()
        self._closed: list[DataFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._drop()

    def write(self, rows: pa.Table) -> None:
        """Append rows to the files of their partitions."""
        for part in self._partitions.split(rows):
            self._append(part)
        if self._partitions.is_sorted:  # a file is sorted as a whole, or not at all
            self._close_all()

    def close(self) -> tuple[DataFile, ...]:
        """Close what is open. Empty when there were no rows."""
        self._close_all()
        return tuple(self._closed)

    def _append(self, part: Part) -> None:
        file = self._file(part)
        file.write(part.rows)
        if file.size >= self._target.file_size:
            self._close(part.values)

    def _file(self, part: Part) -> _OpenFile:
        if part.values not in self._open:
            if len(self._open) >= _OPEN_FILES:
                self._close(next(iter(self._open)))
            name = f"{self._stem}-{next(self._numbers):05d}.parquet"
            path = self._places.new_data_location(name, part.key)
            self._open[part.values] = _OpenFile(self._target, path, part.values)
        self._open.move_to_end(part.values)
        return self._open[part.values]

    def _close_all(self) -> None:
        for values in list(self._open):
            self._close(values)

    def _close(self, values: Record) -> None:
        self._closed.append(self._open[values].close())
        del self._open[values]

    def _drop(self) -> None:
        for file in self._open.values():
            file.drop()
        written = [file.path for file in self._open.values()]
        for path in [*written, *(file.file_path for file in self._closed)]:
            with contextlib.suppress(Exception):  # best effort: vacuum finds it
                self._target.io.delete(path)
