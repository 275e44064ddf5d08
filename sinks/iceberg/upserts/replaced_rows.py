"""The rows of a table that an epoch replaces: which files may have them, and at which positions.

An epoch that upserts finds the rows of its keys in two steps: the bounds of the keys in the
manifests select candidate files, then the key columns of these files are read. Both need a table
without equality deletes, and candidates that are Parquet. The planner checks that before an epoch
where it can.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    In,
    LessThanOrEqual,
    Reference,
)
from pyiceberg.expressions.literals import literal
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.snapshots import TOTAL_EQUALITY_DELETES

from krishiv_spark.arrow.compute import pc, sort_distinct
from krishiv_spark.arrow.conform import conform
from krishiv_spark.arrow.partition_files import chunks
from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg.catalogs import explain_catalog_errors
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.planning import (
    DeleteFile,
    PlannedFile,
    UnreadableError,
    check_entry,
    explain_metadata_errors,
    get_format_name,
    to_table_file,
)
from krishiv_spark.iceberg.projection import to_stored_schema, widen_for_planning
from krishiv_spark.iceberg.property_keys import (
    PARENT_KEY,
    SnapshotIndex,
    get_head,
    iterate_ancestors,
)
from krishiv_spark.iceberg.scan_tasks import (
    ScanProjection,
    plan_tasks,
    read_all_deleted,
    read_task,
)
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.iceberg.table_schema import to_arrow_columns
from krishiv_spark.sinks.iceberg.upserts.epoch_changes import to_sortable
from krishiv_spark.sinks.iceberg.upserts.key_index import (
    CachedKeys,
    FileKeys,
    WantedKeys,
    match_keys,
)
from krishiv_spark.sinks.iceberg.upserts.position_deletes import Positions

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = [
    "RowLookup",
    "cache_deleted",
    "check_no_equality_deletes",
    "check_upsertable",
    "forget_files",
    "is_parquet",
    "plan_data_files",
]

_PARQUET = "PARQUET"

_CHECKED: LruCache[tuple[str, frozenset[int]], int] = LruCache(64)
"""The newest snapshot that `check_upsertable` accepted, by the table's UUID and its key ids."""

_REWRITE = (
    "Only Parquet can be read and replaced. Have the engine that wrote it rewrite the table's data "
    "files as Parquet; in Spark: ALTER TABLE … SET TBLPROPERTIES ('write.format.default' = "
    "'parquet'), then CALL …system.rewrite_data_files(table => '…', options => map('rewrite-all', "
    "'true')). Then restart the query"
)

_MAX_VALUES = 200
"""PyIceberg compares no more values than this with the bounds of a file."""

_ROW = "_krishiv_row"
_NO_POSITIONS: Positions = np.empty(0, np.int64)
_CHUNK_ROWS, _CHUNK_BYTES = 2**19, 2**22
"""Limits of the keys of a file that are hashed or compared at once. A hash of texts takes about 40
bytes for each of their bytes."""

_KEYS = CachedKeys()

_PATH_BYTES = 300
"""Bytes of the objects of a path and its positions, beside their content."""

_DELETED: LruCache[str, Mapping[str, Positions]] = LruCache(
    2**26,
    lambda found: 1 + sum(rows.nbytes + len(path) + _PATH_BYTES for path, rows in found.items()),
)
"""The deleted positions that delete files name, by data file; limited by bytes."""


def check_no_equality_deletes(table: Table, options: IcebergSinkOptions) -> None:
    """Refuse a table whose files an epoch could not replace. Planner.

    The delete manifests are read only if the snapshot's summary does not exclude equality deletes.

    Raises:
        UnreadableError: If the table has equality deletes.
        DataLossError: If metadata of its snapshot has been removed.
        CatalogFailedError: If the metadata cannot be read.
    """
    snapshot = get_head(table.metadata)
    if snapshot is None:
        return
    if snapshot.summary is not None and snapshot.summary.get(TOTAL_EQUALITY_DELETES) == "0":
        return
    doing = f"read the deletes of table {options.table_name}"
    with explain_catalog_errors(options, doing), explain_metadata_errors(snapshot):
        for manifest in snapshot.manifests(table.io):
            if manifest.content == ManifestContent.DELETES:
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    check_entry(entry)


def check_upsertable(table: Table, options: IcebergSinkOptions) -> None:
    """Refuse a table in which every upsert would have to read a file that is not Parquet. Planner.

    Such a file has no bounds of the keys (no Avro file has bounds), in a table that is not
    partitioned by a key. A file with bounds is checked by the commit of an epoch that has to read
    it. All manifests are read when a process first plans an upsert of a table, and new ones after
    commits of other programs.

    Raises:
        UnreadableError: If there is such a file.
        DataLossError: If metadata of the table's snapshot has been removed.
        CatalogFailedError: If the metadata cannot be read.
    """
    head = get_head(table.metadata)
    if head is None:
        return
    schema = table.schema()
    fields = (
        schema.find_field(name) for name in options.key_columns if name in schema.column_names
    )
    keys = frozenset(field.field_id for field in fields)
    cache_key = (str(table.metadata.table_uuid), keys)
    later = _later_snapshots(table, _CHECKED.get(cache_key))
    if later is None or any(map(_is_foreign, later)):
        written = None if later is None else {one.snapshot_id for one in later}
        doing = f"read the files of table {options.table_name}"
        with explain_catalog_errors(options, doing), explain_metadata_errors(head):
            _check_bounds(table, head, written, keys)
    _CHECKED.put(cache_key, head.snapshot_id)


def _later_snapshots(table: Table, checked: int | None) -> list[Snapshot] | None:
    """Return the snapshots after the checked one; None if that is not an ancestor."""
    found: list[Snapshot] = []
    index = SnapshotIndex(table.metadata)
    for snapshot in iterate_ancestors(index, table.metadata.current_snapshot_id):
        if snapshot.snapshot_id == checked:
            return found
        found.append(snapshot)
    return None


def _is_foreign(snapshot: Snapshot) -> bool:
    """Return True unless the sink wrote this snapshot on top of another one.

    The sink writes only Parquet files.
    """
    return snapshot.summary is None or PARENT_KEY not in snapshot.summary.additional_properties


def _check_bounds(
    table: Table, head: Snapshot, written: set[int] | None, keys: frozenset[int]
) -> None:
    """Check the manifests of a snapshot that were written for given snapshots; None for all.

    Raises:
        UnreadableError: If every upsert would have to read a file that is not Parquet.
    """
    specs = table.specs()
    for manifest in head.manifests(table.io):
        is_known = written is not None and manifest.added_snapshot_id not in written
        if manifest.content != ManifestContent.DATA or is_known:
            continue
        spec = specs[manifest.partition_spec_id]
        if any(one.source_id in keys and str(one.transform) != "void" for one in spec.fields):
            continue  # an epoch may skip the file by its partition
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            file = entry.data_file
            has_bounds = keys & (file.lower_bounds or {}).keys()
            if get_format_name(file) != _PARQUET and not has_bounds:
                raise UnreadableError(
                    f"{FORMAT}: {file.file_path} is {get_format_name(file)}, without bounds of the "
                    f"key columns, so that every upsert would have to read it. {_REWRITE}"
                )


def is_parquet(file: DataFile) -> bool:
    """Return True if a file has the format that this package reads and writes."""
    return get_format_name(file) == _PARQUET


def _check_parquet(file: DataFile) -> None:
    """Refuse a data file that an epoch has to read and that is not Parquet.

    Raises:
        CommitRejected: If the file has another format.
    """
    if not is_parquet(file):
        raise CommitRejected(
            f"{FORMAT}: {file.file_path} is {get_format_name(file)}, and by its bounds may have "
            f"rows of the epoch's keys. Nothing was committed. {_REWRITE}"
        )


def plan_data_files(
    table: Table, row_filter: BooleanExpression | None = None, snapshot_id: int | None = None
) -> Iterator[FileScanTask]:
    """Return the data files of a table, with their deletes. Driver.

    Args:
        table: The table of one attempt.
        row_filter: Excludes files that cannot have a matching row; None for all files.
        snapshot_id: An earlier snapshot with the table's current schema; None for the current one.

    Raises:
        CommitRejected: If the table got equality deletes after the epoch was planned.
    """
    wanted: BooleanExpression = AlwaysTrue()
    if row_filter is not None:
        specs = table.specs().values()
        wanted = widen_for_planning(row_filter, table.schema(), specs)
    scan = table.scan(row_filter=wanted, snapshot_id=snapshot_id)
    try:
        yield from scan.plan_files()
    except ValueError as error:
        raise CommitRejected(
            f"{FORMAT}: the files that the epoch replaces cannot be determined: {error}. Have "
            "the engine that wrote the deletes rewrite the data files, then restart the query"
        ) from error


class RowLookup:
    """A lookup of the rows of a table that have one of the keys of an epoch. Driver.

    Files are read by the reader of the source: PyIceberg's own turns null lists of structs into
    empty ones, and rows that an epoch does not change must remain the same.

    Args:
        table: The table of one attempt.
        names: The key columns; none to read deletes and whole rows only.
        snapshot_id: An earlier snapshot with the table's current schema; None for the current one.
    """

    def __init__(self, table: Table, names: Sequence[str], snapshot_id: int | None = None) -> None:
        self._table = table
        self._names = list(names)
        self._snapshot_id = snapshot_id

    @cached_property
    def _key_rows(self) -> _RowReader:
        return _RowReader(self._table, self._table.schema().select(*self._names))

    @cached_property
    def _whole_rows(self) -> _RowReader:
        return _RowReader(self._table, self._table.schema())

    def plan_candidates(
        self, keys: pa.Table, condition: BooleanExpression | None = None
    ) -> Iterator[FileScanTask]:
        """Return the data files whose bounds and partitions allow one of the keys.

        Args:
            keys: The keys.
            condition: A further filter of the rows; None for none.

        Raises:
            CommitRejected: As `plan_data_files`.
        """
        if not keys.num_rows:
            return iter(())
        terms = [_key_bounds(name, keys[name]) for name in self._names]
        every: BooleanExpression = AlwaysTrue() if condition is None else condition
        condition = functools.reduce(And, terms, every)
        return plan_data_files(self._table, condition, self._snapshot_id)

    def find(self, task: FileScanTask, keys: pa.Table) -> np.ndarray[Any, Any] | None:
        """Find the rows of a candidate that have one of the keys.

        Returns:
            A flag for each row that `read` returns, in the same order; None if no row matches.

        Raises:
            CommitRejected: If the candidate is not a Parquet file.
        """
        _check_parquet(task.file)
        batches, columns = self._key_rows.read(task), self._key_rows.columns
        rows = to_sortable(pa.Table.from_batches(batches, columns))
        numbered = rows.append_column(_ROW, pa.array(np.arange(rows.num_rows)))
        matches = numbered.join(keys, self._names, join_type="inner")
        if not matches.num_rows:
            return None
        found = np.zeros(rows.num_rows, bool)
        found[matches[_ROW].to_numpy()] = True
        return found

    def find_positions(self, file: DataFile, wanted: WantedKeys) -> Positions:
        """Return the positions of all rows of a candidate that have one of the keys, ascending.

        Rows that are deleted count too: the result depends on the file and the keys only.

        Raises:
            CommitRejected: If the candidate is not a Parquet file.
        """
        _check_parquet(file)
        pieces = chunks(self._key_rows.read(PlannedFile(file)), _CHUNK_ROWS, _CHUNK_BYTES)
        if not _KEYS.admits(file.record_count, file.file_size_in_bytes):
            return _compare_pieces(pieces, wanted.keys)
        metadata = self._table.metadata
        of_table = (metadata.table_uuid, metadata.current_schema_id, *self._names)
        state = (*of_table, file.file_size_in_bytes, file.record_count)
        found = _KEYS.get(file.file_path, state)
        if found is None:
            found = FileKeys.build(pieces)
            _KEYS.put(file.file_path, state, found)
        return found.find(wanted)

    def list_deleted(self, task: FileScanTask) -> Positions:
        """Return the positions of the rows of a data file that its delete files name, ascending."""
        path = task.file.file_path
        named = (self.read_deletes(delete, path) for delete in task.delete_files)
        found = [rows.get(path, _NO_POSITIONS) for rows in named]
        rows = sort_distinct(np.concatenate([_NO_POSITIONS, *found]))
        # Another program may have named rows that the file does not have.
        return rows[(rows >= 0) & (rows < task.file.record_count)]

    def read_deletes(self, delete: DataFile, path: str = "") -> Mapping[str, Positions]:
        """Return the positions that a delete file names, by data file.

        Args:
            delete: The delete file.
            path: A data file. If the delete file is not Parquet, the result has no other one.
        """
        known = _DELETED.get(delete.file_path)
        if known is None:
            given = DeleteFile(delete.file_path, delete.file_format)
            known = read_all_deleted(self._table.io, given, path)
            if is_parquet(delete):
                _DELETED.put(delete.file_path, known)
        return known

    def read(self, task: FileScanTask) -> Iterator[pa.RecordBatch]:
        """Return all columns of the rows of a file, without deleted rows, in a fixed order."""
        return self._whole_rows.read(task)

    def read_columns(self, task: FileScanTask, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Return some columns of the same rows, in the same order.

        Raises:
            CommitRejected: If the file is not a Parquet file.
        """
        _check_parquet(task.file)
        return _RowReader(self._table, self._table.schema().select(*names)).read(task)

    def get_columns(self, names: Sequence[str]) -> pa.Schema:
        """Return the columns of `read_columns`."""
        return to_arrow_columns(self._table.schema().select(*names))


def cache_deleted(file: DataFile, rows: Iterable[tuple[str, Positions]]) -> None:
    """Cache the content of a delete file that this process has written."""
    _DELETED.put(file.file_path, dict(rows))


def forget_files(files: Iterable[DataFile]) -> None:
    """Drop the content of files that a commit has removed from their table.

    It would stay until the caches are full, which takes thousands of epochs.
    """
    paths = [file.file_path for file in files]
    _KEYS.drop(paths)
    _DELETED.drop(paths)


def _compare_pieces(pieces: Iterator[pa.Table], keys: pa.Table) -> Positions:
    """Return the positions of rows with one of the keys, without an index: for huge files."""
    found, first = [_NO_POSITIONS], 0
    for rows in pieces:
        found.append(match_keys(to_sortable(rows), keys) + first)
        first += rows.num_rows
    return np.concatenate(found)


class _RowReader:
    """A reader of some columns of the files of a table, without deleted rows."""

    def __init__(self, table: Table, schema: Schema) -> None:
        wanted = to_stored_schema(schema)
        self.columns = to_arrow_columns(schema)
        self._scan = ScanProjection(
            table.io, wanted, len(wanted.fields), table.name_mapping(), None
        )
        self._specs = table.metadata.specs()

    def read(self, task: FileScanTask | PlannedFile) -> Iterator[pa.RecordBatch]:
        file = to_table_file(task, self._specs)
        for part in plan_tasks([file], self._scan, file.size):
            for batch in read_task(part):
                yield conform(batch, self.columns)


def _key_bounds(name: str, values: pa.ChunkedArray) -> BooleanExpression:
    """Return a filter for files by the bounds of a key column; it may accept too many files."""
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_date32, pa.types.is_boolean)
    if not any(is_a(values.type) for is_a in kinds) or _may_wrap(values):
        return AlwaysTrue()
    few = _find_few_values(values)
    column: Any = Reference(name)
    one_of: Any = In  # type checkers disagree about the names of its parameters
    if few is not None:
        made: BooleanExpression = one_of(column, few)
        return made
    ends = pc.min_max(values).as_py()
    lowest, highest = (literal(ends[end]) for end in ("min", "max"))
    return And(
        GreaterThanOrEqual(term=column, value=lowest), LessThanOrEqual(term=column, value=highest)
    )


def _find_few_values(values: pa.ChunkedArray) -> set[Any] | None:
    """Return the distinct values; None if there are more than `_MAX_VALUES`."""
    found: set[Any] = set()
    for chunk in values.chunks:  # chunk by chunk, since all values together may exceed 2 GB
        distinct = pc.unique(chunk)
        if len(distinct) > _MAX_VALUES:
            return None
        found.update(distinct.to_pylist())
    return found if len(found) <= _MAX_VALUES else None


def _may_wrap(values: pa.ChunkedArray) -> bool:
    """Return True if ``truncate`` may overflow the type of a value.

    The partition values of such rows have wrapped around, but filters on them do not wrap.
    """
    if not pa.types.is_integer(values.type):
        return False
    lowest = -(2 ** (values.type.bit_width - 2))
    return bool(pc.min(values).as_py() < lowest)
