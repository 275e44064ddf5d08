"""Tasks that read files of a table as record batches. Executor; drivers plan the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import Convert, same
from krishiv_spark.arrow.conform import conform, places
from krishiv_spark.delta.options import FORMAT
from krishiv_spark.errors import DataLossError, SchemaError
from krishiv_spark.parquet.calendars import Calendar, TimeRules, make_corrections
from krishiv_spark.parquet.footers import BadFileError, GoneError, open_file
from krishiv_spark.parquet.inputs import ParquetInput
from krishiv_spark.parquet.row_groups import pack, read_row_groups, split_size
from krishiv_spark.runtime.workers import name_rows
from krishiv_spark.sources.delta.table_files import DeltaFile
from krishiv_spark.storage import Files, StoreUrl

__all__ = ["DeltaFileRange", "DeltaTask", "plan_tasks", "read_task"]


@dataclass(frozen=True)
class DeltaFileRange:
    """A part of one file: the row groups whose midpoint is in a range of bytes.

    Attributes:
        file: The whole file.
        start: First byte, inclusive.
        end: Last byte, exclusive.
    """

    file: DeltaFile
    start: int
    end: int


DeltaTask = tuple[DeltaFileRange, ...]
"""The parts of files that one task reads."""


def plan_tasks(files: Iterable[DeltaFile], most: int) -> list[DeltaTask]:
    """Divide files into tasks of about `most` bytes each. Driver."""
    ranges = (
        DeltaFileRange(file, start, end)
        for file in files
        for start, end in split_size(file.size, most)
    )
    return pack(ranges, most)


def read_task(
    task: DeltaTask, url: StoreUrl, files: Files, columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task; has about a page of each column and one batch in memory.

    Args:
        task: The parts of files.
        url: Location of the table.
        files: Files of its store.
        columns: Columns of the rows.

    Raises:
        DataLossError: If a file is missing or damaged.
        SchemaError: If a file's columns do not fit.
    """
    for piece in task:
        path = str(url / piece.file.path)
        try:
            yield from name_rows(path, _read_range(piece, path, files, columns))
        except GoneError as error:
            raise DataLossError(
                f"{FORMAT}: {path} was deleted, as VACUUM does with files that no version within "
                "its retention names: keep them for longer than a query takes"
            ) from error
        except SchemaError as error:
            raise SchemaError(f"{FORMAT}: {path}: {error}") from error


def _read_range(
    piece: DeltaFileRange, path: str, files: Files, columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    with open_file(path, None, files) as opened:
        projection = _DeltaProjection.of(opened.parquet, piece.file, columns)
        _check_rows(opened.parquet, piece.file, path)
        choice = _RowChoice.of(piece.file)
        # If no column is needed, any column gives the number of rows.
        names = sorted({*projection.stored.values()}) or opened.parquet.schema.names[:1]
        size = piece.file.size
        for first, batch in read_row_groups(
            opened.parquet, piece, size, names, expect=opened.expect
        ):
            yield projection.fit(batch if choice is None else choice.select(batch, first))


@dataclass(frozen=True)
class _DeltaProjection:
    """A projection of the batches of one file onto the columns of the reader.

    Attributes:
        columns: Columns of the reader.
        stored: Names of the file's columns, by those of the reader.
        constants: Values of partition columns, by the names of the reader.
        corrections: Functions that correct the times of the file's columns.
    """

    columns: pa.Schema
    stored: Mapping[str, str]
    constants: Mapping[str, pa.Scalar]
    corrections: Mapping[str, Convert]

    @classmethod
    def of(cls, file: ParquetInput, known: DeltaFile, columns: pa.Schema) -> _DeltaProjection:
        values = dict(known.constants)
        constants = _match_columns(columns.names, list(values))
        wanted = [name for name in columns.names if name not in constants]
        stored = _match_columns(wanted, file.schema.names)
        corrections = make_corrections(file, Calendar.of(file.metadata, TimeRules()))
        given = {name: values[other] for name, other in constants.items()}
        return cls(columns, stored, given, corrections)

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch of the file to the reader's columns."""
        arrays = {}
        for name, stored in self.stored.items():
            correction = self.corrections.get(stored, same)
            arrays[name] = correction(batch.column(stored))
        for name, value in self.constants.items():
            arrays[name] = pa.repeat(value, batch.num_rows)
        rows = pa.RecordBatch.from_pydict(arrays) if arrays else batch
        return conform(rows, self.columns, fill=True)


def _match_columns(wanted: Sequence[str], given: Sequence[str]) -> dict[str, str]:
    """Return the given name for each wanted name that has one."""
    pairs = zip(wanted, places(wanted, given), strict=True)
    return {name: given[index] for name, index in pairs if index is not None}


@dataclass(frozen=True)
class _RowChoice:
    """The rows of a file that are read, by their positions in it.

    Attributes:
        positions: Positions, ascending.
        keeps: True if only these rows are read; False if all others are.
    """

    positions: np.ndarray[tuple[int], np.dtype[np.int64]]
    keeps: bool

    @classmethod
    def of(cls, file: DeltaFile) -> _RowChoice | None:
        """Return the choice for a file; None if all its rows are read."""
        given = file.deleted if file.only is None else file.only
        if given is None:
            return None
        return cls(np.frombuffer(given, np.int64), keeps=file.only is not None)

    def select(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Return the chosen ones of consecutive rows, of which the first has a given position."""
        low, high = np.searchsorted(self.positions, (first, first + batch.num_rows))
        if low == high and not self.keeps:
            return batch
        flags = np.full(batch.num_rows, not self.keeps)
        flags[self.positions[low:high] - first] = self.keeps
        return batch.filter(pa.array(flags))


def _check_rows(file: ParquetInput, known: DeltaFile, path: str) -> None:
    """Compare a file with the log.

    Raises:
        BadFileError: If it has another number of rows.
    """
    groups: Sequence[int] = range(file.metadata.num_row_groups)
    rows = sum(file.metadata.row_group(group).num_rows for group in groups)
    if known.rows is not None and rows != known.rows:
        raise BadFileError(
            f"{FORMAT}: {path} has {rows} rows, and {known.rows} by the log of the table: one of "
            "them is damaged, or the file was replaced. Restore the file"
        )
