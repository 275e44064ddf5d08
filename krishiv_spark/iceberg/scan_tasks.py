"""Tasks that read files of a table as record batches. Executor; drivers plan the tasks."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import Convert, pc, same, sort_distinct
from krishiv_spark.errors import DataLossError, KrishivError, SchemaError
from krishiv_spark.iceberg.file_access import redact_errors
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.planning import DeleteFile, TableFile
from krishiv_spark.parquet.calendars import Calendar, corrected_schema, make_corrections
from krishiv_spark.parquet.footers import (
    BadFileError,
    GoneError,
    check_supported,
    translate_file_errors,
)
from krishiv_spark.parquet.inputs import ParquetInput, open_input
from krishiv_spark.parquet.row_groups import OPEN_COST, pack, read_all, read_row_groups, split_size
from krishiv_spark.runtime.workers import name_rows

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table.name_mapping import NameMapping

__all__ = [
    "FileScanTask",
    "ScanProjection",
    "ScanTaskGroup",
    "choose_task_bytes",
    "plan_tasks",
    "read_all_deleted",
    "read_files",
    "read_task",
    "select_row_groups",
]

_MIN_TASK_BYTES = 16 * 2**20
_PARQUET = "PARQUET"
_DELETE_SCHEMA = pa.schema([("file_path", pa.string()), ("pos", pa.int64())])
"""Of files with deleted positions (Iceberg spec, "Position Delete Files")."""
_DELETE_COLUMNS = tuple(_DELETE_SCHEMA.names)

_Positions: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
_NO_POSITIONS: _Positions = np.empty(0, np.int64)
_TARGET_TASKS = 200
_MAX_RANGES = 200_000
"""Limit of the parts of files in a batch: of 128 MiB each, they are 25 TB."""


@dataclass(frozen=True)
class ScanProjection:
    """The columns of a table that tasks read, and the rows under a filter.

    Attributes:
        io: Opens files; it has no settings of the catalog.
        wanted: The columns to read, with Spark's names; columns that only the filter needs come
            last.
        columns: Number of them that are yielded.
        names: Field ids of files that have none (Iceberg spec, "Column Projection").
        row_filter: Filter of the rows to yield; None for all.
    """

    io: FileIO
    wanted: Schema
    columns: int
    names: NameMapping | None
    row_filter: BooleanExpression | None

    @functools.cached_property
    def bound_filter(self) -> BooleanExpression | None:
        """The filter, bound to the columns."""
        from krishiv_spark.iceberg.projection import bind_filter

        return None if self.row_filter is None else bind_filter(self.row_filter, self.wanted)

    @functools.cached_property
    def condition(self) -> Any:
        """The filter as Arrow's condition on projected columns; None for all rows. Executor."""
        from krishiv_spark.iceberg.projection import to_arrow_condition

        bound = self.bound_filter
        return None if bound is None else to_arrow_condition(bound, self.wanted)


@dataclass(frozen=True, slots=True)
class FileScanTask:
    """A part of one file: the row groups whose midpoint is in a range of bytes.

    Attributes:
        file: The whole file, with its deletes.
        start: First byte, inclusive.
        end: Last byte, exclusive.
    """

    file: TableFile
    start: int
    end: int


@dataclass(frozen=True)
class ScanTaskGroup:
    """The parts of files that one task reads.

    Attributes:
        ranges: Parts of files.
        scan: A `ScanProjection`, pickled once for all tasks of a batch.
    """

    ranges: tuple[FileScanTask, ...]
    scan: bytes


def choose_task_bytes(files: Iterable[TableFile], most: int) -> int:
    """Choose the size of a task, so that there are tasks for many cores but no tiny ones.

    As in Iceberg's connector (``TableScanUtil.adjustSplitSize``), for Spark's default of 200
    shuffle partitions, since the number of cores is unknown here. Unlike there, opening a file
    counts: a hundred thousand small files would otherwise be 25 000 tasks.

    Args:
        files: The files of the batch.
        most: Largest size, in bytes.
    """
    whole = sum(file.size + OPEN_COST for file in files)
    return min(most, max(_MIN_TASK_BYTES, whole // _TARGET_TASKS))


def plan_tasks(files: Iterable[TableFile], scan: ScanProjection, most: int) -> list[ScanTaskGroup]:
    """Divide files into tasks of about `most` bytes each. Driver.

    Tasks are larger if there were more than `_MAX_RANGES`: metadata may give a file any size.
    """
    files = list(files)
    most = max(most, -(-sum(file.size for file in files) // _MAX_RANGES))
    ranges = (
        FileScanTask(file, start, end)
        for file in files
        for start, end in split_size(file.size, most)
    )
    known = pickle.dumps(scan)
    return [ScanTaskGroup(part, known) for part in pack(ranges, most)]


def read_task(part: ScanTaskGroup) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task.

    Has about a page of each column, one batch, and the deletes in memory.

    Raises:
        DataLossError: If a file is missing or damaged.
        SchemaError: If a file's columns do not fit.
    """
    scan = _load_scan(part.scan)
    deletes = _Deletes(scan.io, [piece.file for piece in part.ranges])
    with redact_errors(scan.io, "read files of the table"):
        for piece in part.ranges:
            try:
                chosen = deletes.choose_rows(piece.file)
                if not chosen.is_empty:
                    rows = _read_range(piece, scan, chosen)
                    yield from name_rows(piece.file.path, rows)
            except SchemaError as error:
                raise SchemaError(f"{FORMAT}: {piece.file.path}: {error}") from error


def read_files(files: Iterable[TableFile], scan: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of whole files like `read_task`, always in the same order."""
    return read_task(ScanTaskGroup(tuple(FileScanTask(file, 0, file.size) for file in files), scan))


# A worker that is reused gets the same bytes with each task of a batch.
@functools.lru_cache(maxsize=4)
def _load_scan(pickled: bytes) -> ScanProjection:
    scan: ScanProjection = pickle.loads(pickled)  # noqa: S301  pickled by `plan_tasks`, sent by Spark
    return scan


@dataclass(frozen=True)
class _ChosenRows:
    """The rows of a file that are read.

    Attributes:
        positions: Positions of rows in the file, ascending.
        are_read: True if only these rows are read; False if all others are.
    """

    positions: _Positions
    are_read: bool

    @property
    def is_empty(self) -> bool:
        """True if no row is read."""
        return self.are_read and not len(self.positions)

    def filter(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Return the chosen rows of consecutive rows, of which the first has a given position."""
        low, high = np.searchsorted(self.positions, (first, first + batch.num_rows))
        if low == high:
            return batch.slice(0, 0) if self.are_read else batch
        flags = np.full(batch.num_rows, not self.are_read)
        flags[self.positions[low:high] - first] = self.are_read
        return batch.filter(pa.array(flags))

    def select_groups(
        self, file: ParquetInput, others: frozenset[int] | None
    ) -> frozenset[int] | None:
        """Return those of some row groups that have chosen rows; None for all."""
        if not self.are_read:
            return others
        groups = range(file.metadata.num_row_groups)
        ends = np.cumsum([file.metadata.row_group(group).num_rows for group in groups])
        found = frozenset(sort_distinct(np.searchsorted(ends, self.positions, "right")).tolist())
        return found if others is None else found & others


def _read_range(
    piece: FileScanTask, scan: ScanProjection, chosen: _ChosenRows
) -> Iterator[pa.RecordBatch]:
    from krishiv_spark.iceberg.projection import Projection

    with _open_file(scan.io, piece.file.path) as (source, file):
        _check_rows(file, piece.file)
        stored, fixes = _read_file_schema(file, scan, piece.file.path)
        projection = Projection.from_file(scan.wanted.fields, stored, dict(piece.file.constants))
        groups = select_row_groups(source, stored, piece.file, scan)
        groups = chosen.select_groups(file, groups)
        # If no column is needed, any column gives the number of rows.
        columns = projection.columns or file.schema.names[:1]
        for first, batch in read_row_groups(file, piece, piece.file.size, columns, only=groups):
            rows = _apply_corrections(chosen.filter(batch, first), fixes)
            yield from _filter_rows(projection.fit(rows), scan.condition, scan.columns)


@contextmanager
def _open_file(io: FileIO, path: str) -> Iterator[tuple[Any, ParquetInput]]:
    try:
        with translate_file_errors(path), io.new_input(path).open() as source:
            yield source, open_input(source)
    except GoneError as error:
        raise DataLossError(
            f"{FORMAT}: {path} has been removed, as happens when snapshots expire while they are "
            "read: keep them for longer than a query takes"
        ) from error


def _check_rows(file: ParquetInput, known: TableFile) -> None:
    """Compare a file with the table's metadata.

    Raises:
        BadFileError: If it has another number of rows.
    """
    groups = range(file.metadata.num_row_groups)
    rows = sum(file.metadata.row_group(group).num_rows for group in groups)
    if rows != known.rows:
        raise BadFileError(
            f"{FORMAT}: {known.path} has {rows} rows, and {known.rows} by the metadata of the "
            "table: one of them is damaged, or the file was replaced. Restore the file, or have "
            "the table's owner remove it from the table"
        )


def _read_file_schema(
    file: ParquetInput, scan: ScanProjection, path: str
) -> tuple[Schema, dict[str, Convert]]:
    """Return the columns of a file, and corrections of INT96 in columns that contain instants.

    Spark and Hive wrote INT96; tables get such files by ``add_files`` and ``migrate``. As in
    Iceberg's own readers, the table's type decides whether it is a time with a zone.
    """
    from pyiceberg.schema import Schema

    check_supported(path, file, _list_unsupported(file, scan))
    stored, fixes = _to_schema(file.schema, scan), make_corrections(file, Calendar())
    if not fixes:
        return stored, fixes
    instants = {f.field_id for f in scan.wanted.fields if "timestamptz" in str(f.field_type)}
    other = _to_schema(corrected_schema(file), scan)
    pairs = zip(stored.fields, other.fields, strict=True)
    fields = [new if old.field_id in instants else old for old, new in pairs]
    meant = {field.name for field in fields if field.field_id in instants}
    return Schema(*fields), {name: fix for name, fix in fixes.items() if name in meant}


def _list_unsupported(file: ParquetInput, scan: ScanProjection) -> Iterator[str]:
    """Yield the names of columns that the scan needs and that cannot be read."""
    wanted = {field.field_id for field in scan.wanted.fields}
    ids = {name: field.field_id for field in scan.names or () for name in field.names}
    for name, column in file.unsupported.items():
        if (ids.get(name) if column.field_id is None else column.field_id) in wanted:
            yield name


def _apply_corrections(batch: pa.RecordBatch, fixes: Mapping[str, Convert]) -> pa.RecordBatch:
    if not fixes:
        return batch
    names = batch.schema.names
    columns = [fixes.get(name, same)(batch.column(name)) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _to_schema(found: pa.Schema, scan: ScanProjection) -> Schema:
    """Return the columns of a file with their field ids."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    columns = _drop_unmapped_columns(found, scan.names)
    try:
        return pyarrow_to_schema(columns, scan.names, downcast_ns_timestamp_to_us=True)
    except (TypeError, ValueError) as error:
        raise SchemaError(str(error)) from error


def _drop_unmapped_columns(schema: pa.Schema, names: NameMapping | None) -> pa.Schema:
    """Return a schema without the columns that a name mapping lacks, if the file has no ids."""
    has_ids = any(b"PARQUET:field_id" in (field.metadata or {}) for field in schema)
    if names is None or has_ids:
        return schema
    known = {name for field in names for name in field.names}
    return pa.schema([field for field in schema if field.name in known])


def _filter_rows(batch: pa.RecordBatch, condition: Any, columns: int) -> Iterator[pa.RecordBatch]:
    if condition is None:
        yield batch
    else:
        rows = batch.filter(condition)
        if rows.num_rows:
            yield rows.select(batch.schema.names[:columns])


def select_row_groups(
    source: Any, stored: Schema, file: TableFile, scan: ScanProjection
) -> frozenset[int] | None:
    """Return the indices of the row groups that may have rows under the filter; None for all.

    Args:
        source: The open file.
        stored: The columns of the file.
        file: The file in the table's metadata.
        scan: The projection with the filter.
    """
    import pyarrow.dataset as ds
    from pyiceberg.expressions.visitors import extract_field_ids
    from pyiceberg.io.pyarrow import expression_to_pyarrow

    from krishiv_spark.iceberg.projection import bind_to_file

    bound = scan.bound_filter
    if bound is None:
        return None
    if any(_may_be_nan(scan.wanted, number) for number in extract_field_ids(bound)):
        return None
    try:
        inside = bind_to_file(bound, scan.wanted, stored, dict(file.constants))
        condition = expression_to_pyarrow(inside, stored)
        fragment = ds.ParquetFileFormat().make_fragment(source).subset(filter=condition)
    except (TypeError, ValueError, pa.ArrowException):
        return None  # the file has other types: each of its rows is compared
    return frozenset(group.id for group in fragment.row_groups)


def _may_be_nan(schema: Schema, number: int) -> bool:
    """Return True if statistics may not cover all values of a column: Parquet omits NaN."""
    from pyiceberg.types import DoubleType, FloatType

    return isinstance(schema.find_type(number), (DoubleType, FloatType))


def read_all_deleted(io: FileIO, delete: DeleteFile, path: str) -> Mapping[str, _Positions]:
    """Return the positions that a delete file names, by the paths of data files.

    Args:
        io: The FileIO that reaches the file.
        delete: The delete file.
        path: A data file. If the delete file is not Parquet, the result may have no other one.

    Raises:
        BadFileError: If the delete file cannot be read.
    """
    with translate_file_errors(delete.file_path), _explain_delete_errors(delete.file_path):
        if delete.file_format != _PARQUET:
            return _read_positions(io, delete, [path])
        rows = pa.Table.from_batches(_read_deleted_rows(io, delete), _DELETE_SCHEMA).drop_null()
    if not rows.num_rows:
        return {}
    paths = rows["file_path"].dictionary_encode().chunks  # of one dictionary
    numbers = np.concatenate([chunk.indices.to_numpy() for chunk in paths])
    positions = rows["pos"].to_numpy()
    order = np.lexsort((positions, numbers))
    names = paths[0].dictionary.to_pylist()
    ends = np.searchsorted(numbers[order], np.arange(1, len(names)))
    return dict(zip(names, np.split(positions[order], ends), strict=True))


class _Deletes:
    """The positions of deleted rows; each delete file is read once in a task.

    Args:
        io: The FileIO that reaches the files.
        files: Files that the task reads: only their positions are kept.
    """

    def __init__(self, io: FileIO, files: Iterable[TableFile]) -> None:
        self._io = io
        self._read: dict[DeleteFile, Mapping[str, _Positions]] = {}
        self._wanted: dict[DeleteFile, set[str]] = {}
        for file in files:
            for delete in (*file.deletes, *file.only):
                self._wanted.setdefault(delete, set()).add(file.path)

    def choose_rows(self, file: TableFile) -> _ChosenRows:
        """Return the rows of a file that are read."""
        deleted = self.list_positions(file.path, file.deletes)
        if not file.only:
            return _ChosenRows(deleted, are_read=False)
        named = self.list_positions(file.path, file.only)
        named = named[(named >= 0) & (named < file.rows)]
        return _ChosenRows(np.setdiff1d(named, deleted, assume_unique=True), are_read=True)

    def list_positions(self, path: str, deletes: Iterable[DeleteFile]) -> _Positions:
        """Return the positions of rows of a file that some delete files name, ascending."""
        chunks = [self._read_positions(delete).get(path) for delete in deletes]
        found = [part for part in chunks if part is not None]
        # Two delete files may name the same row.
        return sort_distinct(np.concatenate(found)) if found else _NO_POSITIONS

    def _read_positions(self, delete: DeleteFile) -> Mapping[str, _Positions]:
        if delete not in self._read:
            with translate_file_errors(delete.file_path), _explain_delete_errors(delete.file_path):
                self._read[delete] = _read_positions(self._io, delete, self._wanted[delete])
        return self._read[delete]


@contextmanager
def _explain_delete_errors(path: str) -> Iterator[None]:
    """Name the file in errors of PyIceberg's readers of other formats, which are of any class.

    Raises:
        BadFileError: If it cannot be read.
    """
    try:
        yield
    except (KrishivError, OSError, pa.ArrowException):
        raise
    except Exception as error:
        raise BadFileError(
            f"{path} cannot be read as a file of deletes: {type(error).__name__}: {error}"
        ) from error


def _read_positions(
    io: FileIO, delete: DeleteFile, paths: Collection[str]
) -> Mapping[str, _Positions]:
    """Return the positions that a delete file names, by the paths of some data files."""
    if delete.file_format != _PARQUET:
        from krishiv_spark.iceberg._pyiceberg import read_deleted_positions

        other = read_deleted_positions(io, delete)
        return {path: other[path].to_numpy().astype(np.int64) for path in paths if path in other}
    found: dict[str, list[_Positions]] = {path: [] for path in paths}
    for rows in _read_deleted_rows(io, delete):
        for path, kept in found.items():
            positions = rows.filter(pc.equal(rows["file_path"], path))["pos"]
            kept.append(positions.drop_null().to_numpy())
    return {path: np.concatenate([_NO_POSITIONS, *kept]) for path, kept in found.items()}


def _read_deleted_rows(io: FileIO, delete: DeleteFile) -> Iterator[pa.RecordBatch]:
    """Yield the paths and positions of a delete file in Parquet."""
    with io.new_input(delete.file_path).open() as source:
        file = open_input(source)
        if missing := {*_DELETE_COLUMNS}.difference(file.schema.names):
            raise pa.ArrowInvalid(f"as a delete file, it lacks the columns {sorted(missing)}")
        for batch in read_all(file, _DELETE_COLUMNS):
            yield batch.select(_DELETE_COLUMNS).cast(_DELETE_SCHEMA)
