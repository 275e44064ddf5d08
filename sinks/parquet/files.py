"""Writing one task's rows into staged Parquet files, in bounded memory. Executor."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_spark.arrow.compute import children
from krishiv_spark.arrow.partition_files import OpenFiles
from krishiv_spark.arrow.schemas import conform
from krishiv_spark.parquet.names import DataFile
from krishiv_spark.parquet.partitions import split
from krishiv_spark.sinks.parquet.staging import Staging, StagingFile

__all__ = ["FileLayout", "TaskFiles"]

StagedT = TypeVar("StagedT")

# A column whose values hardly repeat gives up its dictionary at this size: pyarrow's default, 1 MB,
# costs a fifth of the encoding for nothing.
_DICTIONARY_BYTES = 64 * 2**10


@dataclass(frozen=True)
class FileLayout:
    """How rows are cut into files.

    Attributes:
        partition_by: Columns that become folders.
        compression: Name of the codec, as pyarrow knows it.
        max_rows: Most rows in a file, None for no limit.
        target_bytes: A file is closed when it has grown to this size, None for no limit.
    """

    partition_by: tuple[str, ...]
    compression: str
    max_rows: int | None
    target_bytes: int | None


class _OpenFile(Generic[StagedT]):
    """One staged file while it grows."""

    def __init__(self, file: StagingFile[StagedT], schema: pa.Schema, layout: FileLayout) -> None:
        self.rows = 0
        self._file = file
        self._layout = layout
        self._writer = pq.ParquetWriter(
            file.sink,
            schema,
            compression=layout.compression,
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
        )

    @property
    def room(self) -> int | None:
        most_rows, most_bytes = self._layout.max_rows, self._layout.target_bytes
        # With a row at least: below a target that is smaller than the file's own head, none would
        # ever fit.
        if self.rows and most_bytes is not None and self._file.sink.tell() >= most_bytes:
            return 0
        return None if most_rows is None else most_rows - self.rows

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self.rows += rows.num_rows
        self._file.start_writing_back()

    def close(self) -> StagedT:
        self._writer.close()
        return self._file.close(self.rows)

    def drop(self) -> None:
        with contextlib.suppress(Exception):  # or it is tried when the writer is collected
            self._writer.close()
        self._file.drop()


class TaskFiles(OpenFiles[str, _OpenFile[StagedT], StagedT]):
    """The files of one attempt of a task, by partition folder.

    Args:
        staging: Where they are staged.
        name: Name of the attempt's first file; later ones count up its index.
        layout: How rows are cut into files.
    """

    def __init__(self, staging: Staging[StagedT], name: DataFile, layout: FileLayout) -> None:
        super().__init__()
        self.most_open = staging.most_open
        self._staging = staging
        self._layout = layout
        self._names = (str(name.numbered(count)) for count in itertools.count())

    def write(self, rows: pa.Table) -> None:
        """Append the rows of one chunk to the files of their partitions.

        Raises:
            SchemaError: If a partition's value cannot be the name of a folder.
        """
        self.add(split(_as_stored(rows), self._layout.partition_by))

    def make(self, key: str, schema: pa.Schema) -> _OpenFile[StagedT]:
        """Open a new file for a partition's folder."""
        file = self._staging.open(next(self._names), key)
        return _OpenFile(file, schema, self._layout)

    def remove(self, closed: StagedT) -> None:
        """Remove a staged file."""
        self._staging.remove(closed)


def _as_stored(rows: pa.Table) -> pa.Table:
    """Rows with times of day in microseconds, which Spark has, and which all of its versions read.

    Arrow carries them in nanoseconds, and Spark 4.1 refuses files with those.
    """
    schema = pa.schema([field.with_type(_stored_type(field.type)) for field in rows.schema])
    if schema == rows.schema:
        return rows
    return pa.Table.from_batches([conform(batch, schema) for batch in rows.to_batches()], schema)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_struct(kind):
        fields = children(kind)
        return pa.struct([field.with_type(_stored_type(field.type)) for field in fields])
    if pa.types.is_map(kind):
        item = kind.item_field.with_type(_stored_type(kind.item_type))
        return pa.map_(_stored_type(kind.key_type), item)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_stored_type(kind.value_type)))
    return kind
