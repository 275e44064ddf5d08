"""The data files of a snapshot, in an order that never changes. Driver.

The order is that of the snapshot's manifests and their entries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from krishiv_spark.errors import DataLossError, KrishivError
from krishiv_spark.iceberg.file_access import redact_errors
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.runtime.caches import LruCache

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.types import NestedField

__all__ = [
    "DeleteFile",
    "Filter",
    "PlannedFile",
    "SnapshotFiles",
    "TableFile",
    "UnreadableError",
    "check_entry",
    "count_listed_files",
    "explain_metadata_errors",
    "get_format_name",
    "list_data_entries",
    "list_data_manifests",
    "plan_files",
    "to_table_file",
]

_MAX_REASON = 500
_ENTRIES_AT_ONCE = 10_000
"""Entries of manifests that are in memory together: PyIceberg's take ten times the memory of a
`TableFile`."""

# Values of PyIceberg's enumerations: importing these for each entry takes as long as comparing.
_DATA, _EQUALITY_DELETES, _PARQUET = 0, 2, "PARQUET"


class UnreadableError(KrishivError):
    """A table has files or metadata that are damaged, or that this package cannot read."""


class PlannedFile(NamedTuple):
    """A data file to be read, with the attributes of PyIceberg's ``FileScanTask``."""

    file: DataFile
    delete_files: Sequence[DataFile] = ()


class Filter(NamedTuple):
    """A filter, and the schema with the columns that it names.

    Attributes:
        expression: The filter.
        schema: The reader's schema.
    """

    expression: BooleanExpression
    schema: Schema

    def adapt_metadata(self, table: Table) -> TableMetadata:
        """Return a table's metadata with the filter's schema, where the planner finds names."""
        from krishiv_spark.iceberg.projection import to_filter_schema

        schema = to_filter_schema(self.schema)
        return table.metadata.model_copy(
            update={"schemas": [schema], "current_schema_id": schema.schema_id}
        )

    def widen(self, table: Table) -> BooleanExpression:
        """Return the filter without conditions that PyIceberg's planner would get wrong."""
        from krishiv_spark.iceberg.projection import widen_for_planning

        specs = table.metadata.specs().values()
        return widen_for_planning(self.expression, self.schema, specs)


def plan_files(
    table: Table, snapshot: Snapshot, *, scan: bool, row_filter: Filter | None
) -> Iterator[FileScanTask | PlannedFile]:
    """Yield the files of a snapshot, in the order of its manifests.

    Args:
        table: The table of the snapshot.
        snapshot: A snapshot that the table's metadata still has.
        scan: True for all files that the table has at the snapshot, with their deletes; False for
            those that the snapshot added.
        row_filter: Excludes files that cannot have a row under it; None for all files.

    Raises:
        UnreadableError: If an entry names equality deletes, or a file that is not Parquet.
        ValueError: If the table is partitioned by a column that the filter's schema lacks.
    """
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.table import ManifestGroupPlanner

    wanted = _get_predicate(snapshot, scan=scan)
    manifests = _list_manifests(table, snapshot, scan=scan)
    if row_filter is None and not _have_deletes(manifests):
        for group in _group_manifests(manifests):
            yield from _read_manifests(table.io, group, wanted)
        return
    metadata = table.metadata if row_filter is None else row_filter.adapt_metadata(table)
    expression = AlwaysTrue() if row_filter is None else row_filter.widen(table)
    planner = ManifestGroupPlanner(metadata, table.io, expression)
    for group in _group_manifests(manifests):
        yield from planner.plan_files(group, wanted)


def _read_manifests(
    io: FileIO, manifests: Sequence[ManifestFile], wanted: Callable[[ManifestEntry], bool]
) -> Iterator[PlannedFile]:
    """Yield the files of data manifests without the comparisons of PyIceberg's planner.

    Without a filter these are needless, and take a fifth of the time. Manifests are read in
    parallel.
    """
    from pyiceberg.utils.concurrent import ExecutorFactory

    def entries(manifest: ManifestFile) -> list[ManifestEntry]:
        return manifest.fetch_manifest_entry(io, discard_deleted=True)

    for found in ExecutorFactory.get_or_create().map(entries, manifests):
        for entry in found:
            if wanted(entry):
                yield PlannedFile(entry.data_file)


def _have_deletes(manifests: Sequence[ManifestFile]) -> bool:
    from pyiceberg.manifest import ManifestContent

    return any(manifest.content == ManifestContent.DELETES for manifest in manifests)


def _group_manifests(manifests: Sequence[ManifestFile]) -> Iterator[Sequence[ManifestFile]]:
    """Yield manifests in their order, in groups that are planned one after the other.

    Of a table of a hundred thousand files, only the entries of one group are in memory. If rows are
    deleted by position, any delete manifest may concern any data file: all are one group.
    """
    if _have_deletes(manifests):
        yield manifests
        return
    group: list[ManifestFile] = []
    entries = 0
    for manifest in manifests:
        count = count_listed_files(manifest)
        if group and entries + count > _ENTRIES_AT_ONCE:
            yield group
            group, entries = [], 0
        group.append(manifest)
        entries += count
    if group:
        yield group


@contextmanager
def explain_metadata_errors(snapshot: Snapshot, *, is_filtered: bool = False) -> Iterator[None]:
    """Convert errors of a snapshot's missing or damaged metadata.

    Args:
        snapshot: The snapshot whose metadata is read.
        is_filtered: True if a ValueError comes from a filter; the caller handles it.

    Raises:
        DataLossError: If a manifest or the list of manifests is missing.
        UnreadableError: If PyIceberg cannot use their content.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise DataLossError(
            f"{FORMAT}: metadata of snapshot {snapshot.snapshot_id} has been removed: {error}"
        ) from error
    except (KrishivError, OSError):
        raise
    except Exception as error:
        if is_filtered and isinstance(error, ValueError):
            raise
        raise UnreadableError(
            f"{FORMAT}: the manifests of snapshot {snapshot.snapshot_id}, which are listed in "
            f"{snapshot.manifest_list}, cannot be used: {type(error).__name__}: "
            f"{str(error)[:_MAX_REASON]}. If they are damaged, have the table's owner restore "
            "them, or roll the table back to a snapshot that does not need them"
        ) from error


def _list_manifests(table: Table, snapshot: Snapshot, *, scan: bool) -> list[ManifestFile]:
    return (
        snapshot.manifests(table.io) if scan else list_data_manifests(table, snapshot, scan=False)
    )


def list_data_manifests(table: Table, snapshot: Snapshot, *, scan: bool) -> list[ManifestFile]:
    """Return the manifests that name the data files of a snapshot, in their order.

    Args:
        table: The table of the snapshot.
        snapshot: A snapshot that the table's metadata still has.
        scan: True for all of them; False for those that the snapshot has written. A merged
            manifest has entries of earlier snapshots too.
    """
    from pyiceberg.manifest import ManifestContent

    data = [m for m in snapshot.manifests(table.io) if m.content == ManifestContent.DATA]
    return data if scan else [m for m in data if m.added_snapshot_id == snapshot.snapshot_id]


def list_data_entries(
    table: Table, snapshot: Snapshot, manifest: ManifestFile, *, scan: bool
) -> list[ManifestEntry]:
    """Return the entries of one of `list_data_manifests` that are read, in their order.

    Raises:
        UnreadableError: If an entry names equality deletes, or a file that is not Parquet.
    """
    wanted = _get_predicate(snapshot, scan=scan)
    return [*filter(wanted, manifest.fetch_manifest_entry(table.io, discard_deleted=True))]


def count_listed_files(manifest: ManifestFile) -> int:
    """Return the number of files in a manifest that were in the table when it was written."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _get_predicate(snapshot: Snapshot, *, scan: bool) -> Callable[[ManifestEntry], bool]:
    return check_entry if scan else _create_added_check(snapshot.snapshot_id)


def check_entry(entry: ManifestEntry) -> bool:
    """Return True for an entry whose file can be read.

    Raises:
        UnreadableError: If an entry names equality deletes, or a file that is not Parquet.
    """
    file = entry.data_file
    content = file.content
    if content == _EQUALITY_DELETES:
        raise UnreadableError(
            f"{FORMAT}: the table has equality deletes ({file.file_path}), which are not "
            "supported: let the engine that wrote them rewrite the data files, then read again"
        )
    if content == _DATA and file.file_format != _PARQUET:
        raise UnreadableError(
            f"{FORMAT}: {file.file_path} is {get_format_name(file)}; only Parquet is supported"
        )
    return True


def get_format_name(file: DataFile) -> str:
    """Return the name of a data file's format, such as ``ORC``."""
    return str(getattr(file.file_format, "value", file.file_format))


def _create_added_check(snapshot_id: int) -> Callable[[ManifestEntry], bool]:
    from pyiceberg.manifest import ManifestEntryStatus

    def wanted(entry: ManifestEntry) -> bool:
        added = entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot_id
        return added and check_entry(entry)

    return wanted


# --- files for readers

_log = logging.getLogger(__name__)

_CACHED_FILES = 200_000
"""Files in the cache, of the latest snapshots: usually those of one batch. A file takes half a
kilobyte."""

_LARGEST_FILE = 2**40
"""In bytes. A larger file is read whole too, by fewer tasks."""

_PER_MS = {"timestamp": 1_000, "timestamptz": 1_000}
_PER_MS |= {"timestamp_ns": 1_000_000, "timestamptz_ns": 1_000_000}
_DAY_MS = 86_400_000


class DeleteFile(NamedTuple):
    """A file that names deleted rows of data files, with the names of PyIceberg's attributes."""

    file_path: str
    file_format: Any
    record_count: int = 0


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file, by the table's metadata.

    Attributes:
        path: Location in the table's storage, as its metadata contains it.
        size: Size of the whole file, in bytes.
        rows: Number of rows, including deleted ones.
        constants: Values by field id of columns that the file may lack, since it is partitioned
            by them; a value may be null (Iceberg spec, "Column Projection").
        deletes: Files that may name deleted rows of it.
        only: If not empty, files that may name rows of it: no other rows are read.
        newest_ms: Newest event time, milliseconds since 1970 UTC; None if there is none, or if it
            is unknown.
        unknown: Reason why it is unknown.
    """

    path: str
    size: int
    rows: int
    constants: tuple[tuple[int, Any], ...] = ()
    deletes: tuple[DeleteFile, ...] = ()
    only: tuple[DeleteFile, ...] = ()
    newest_ms: int | None = None
    unknown: str | None = None

    def paths(self) -> Iterator[str]:
        """Yield the files that are opened to read its rows."""
        yield self.path
        yield from (delete.file_path for delete in (*self.deletes, *self.only))

    @property
    def read_rows(self) -> int:
        """The maximum number of rows that are read, without a look at deletes."""
        named = sum(delete.record_count for delete in self.only)
        return min(self.rows, named) if self.only else self.rows

    @property
    def read_size(self) -> int:
        """The approximate number of bytes that are read."""
        return max(1, self.size * self.read_rows // self.rows) if self.rows else self.size


class SnapshotFiles:
    """The files of snapshots, with a cache of the latest lists.

    Args:
        event_time: Field whose newest value is read from the metadata; None for none.
        schema: The reader's columns, which filters name. The table may have had other names for
            them before, or may rename them later.
    """

    def __init__(self, event_time: NestedField | None, schema: Schema) -> None:
        self._event_time = event_time
        self._schema = schema
        # Limited by files, not by lists: a batch of many snapshots would read each manifest twice.
        self._lists: LruCache[tuple[int, bool, bool], tuple[TableFile, ...]] = LruCache(
            _CACHED_FILES, lambda files: 1 + len(files)
        )

    def list_files(
        self,
        table: Table,
        snapshot: Snapshot,
        *,
        scan: bool,
        row_filter: BooleanExpression | None = None,
    ) -> tuple[TableFile, ...]:
        """Return files in the order of the snapshot's manifests, which never changes.

        Args:
            table: The table of the snapshot.
            snapshot: A snapshot that the table's metadata still has.
            scan: True for all files that the table has at the snapshot, with their deletes; False
                for those that the snapshot added.
            row_filter: Excludes files that cannot have a row under it; None, or the same filter
                in each call.

        Raises:
            UnreadableError: If there are equality deletes, or files that are not Parquet.
            DataLossError: If the snapshot's metadata has been removed.
            OptionError: If the snapshot names files outside of what the options allow.
        """
        key = (snapshot.snapshot_id, scan, row_filter is not None)
        found = self._lists.get(key)
        if found is None:
            bound = None if row_filter is None else Filter(row_filter, self._schema)
            try:
                found = self._plan(table, snapshot, bound, scan=scan)
            except ValueError as error:
                if bound is None:
                    raise
                # The table is partitioned by a column that is newer than the reader's.
                _log.info("files are not chosen by the filter: %s", error)
                found = self._plan(table, snapshot, None, scan=scan)
            self._lists.put(key, found)
        return found

    def _plan(
        self, table: Table, snapshot: Snapshot, row_filter: Filter | None, *, scan: bool
    ) -> tuple[TableFile, ...]:
        from krishiv_spark.iceberg.file_io import get_access

        specs = table.metadata.specs()
        doing = f"list the files of snapshot {snapshot.snapshot_id}"
        with (
            redact_errors(table.io, doing),
            explain_metadata_errors(snapshot, is_filtered=row_filter is not None),
        ):
            tasks = plan_files(table, snapshot, scan=scan, row_filter=row_filter)
            found = tuple(to_table_file(task, specs, self._event_time) for task in tasks)
        get_access(table).check_all(file.path for file in found)
        get_access(table).check_all(path for file in found if file.deletes for path in file.paths())
        return found


def to_table_file(
    task: FileScanTask | PlannedFile,
    specs: Mapping[int, PartitionSpec],
    event_time: NestedField | None = None,
) -> TableFile:
    """Convert a file that PyIceberg has planned.

    Args:
        task: The file and its deletes.
        specs: Partition specs of the table by their ids.
        event_time: Field whose newest value is read from the bounds; None for none.
    """
    file = task.file
    constants = _get_constants(file, specs[file.spec_id])
    newest, unknown = _find_newest(file, event_time, dict(constants))
    if newest is not None and task.delete_files:
        newest, unknown = _find_oldest(file, event_time, task.delete_files, newest)
    return TableFile(
        path=file.file_path,
        # With size 0 no range of bytes would be read, and a huge size would make too many tasks.
        size=min(max(1, file.file_size_in_bytes), _LARGEST_FILE),
        rows=max(0, file.record_count),
        constants=constants,
        deletes=_to_delete_files(task.delete_files) if task.delete_files else (),
        newest_ms=newest,
        unknown=unknown,
    )


def _to_delete_files(files: Iterable[DataFile]) -> tuple[DeleteFile, ...]:
    found = (DeleteFile(one.file_path, one.file_format, max(0, one.record_count)) for one in files)
    return tuple(sorted(found))  # so that two files with the same deletes are equal


def _get_constants(file: DataFile, spec: Any) -> tuple[tuple[int, Any], ...]:
    # Only identity keeps the value (Iceberg spec, "Column Projection").
    return tuple(
        (field.source_id, file.partition[position])
        for position, field in enumerate(spec.fields)
        if str(field.transform) == "identity"
    )


def _find_newest(
    file: DataFile, field: NestedField | None, constants: Mapping[int, Any]
) -> tuple[int | None, str | None]:
    """Return the newest value of a field in milliseconds, or the reason why it is unknown.

    A file that lacks the field has no bounds for it, and its partition may have the value.
    """
    if field is None or not file.record_count:
        return None, None
    from pyiceberg.conversions import from_bytes

    bound = (file.upper_bounds or {}).get(field.field_id)
    if bound is not None:
        kind: Any = field.field_type
        return _to_milliseconds(from_bytes(kind, bound), str(kind)), None
    if field.field_id in constants:
        constant = constants[field.field_id]
        return None if constant is None else _to_milliseconds(constant, str(field.field_type)), None
    nulls = (file.null_value_counts or {}).get(field.field_id)
    if nulls == file.record_count:
        return None, None
    return None, f"{file.file_path}: no bounds of {field.name} in the metadata"


def _find_oldest(
    file: DataFile, field: NestedField | None, deletes: Iterable[DataFile], newest: int
) -> tuple[int | None, str | None]:
    """Return a time that the newest remaining row has at least, or the reason why none is known.

    The newest row may have been deleted. Some row remains if fewer are deleted than have a time,
    and that row is not older than the lowest bound.

    Args:
        file: A data file with deletes.
        field: The field of the event time.
        deletes: The delete files that may name its rows.
        newest: The newest value of the field without the deletes.
    """
    from pyiceberg.conversions import from_bytes

    if field is None:
        return None, None
    bound = (file.lower_bounds or {}).get(field.field_id)
    nulls = (file.null_value_counts or {}).get(field.field_id, 0 if field.required else None)
    deleted = sum(max(0, one.record_count) for one in deletes)
    if bound is None or nulls is None or deleted >= file.record_count - nulls:
        return None, f"{file.file_path}: all rows with a time may have been deleted"
    kind: Any = field.field_type
    return min(_to_milliseconds(from_bytes(kind, bound), str(kind)), newest), None


def _to_milliseconds(value: Any, kind: str) -> int:
    number = int(value)
    return number * _DAY_MS if kind == "date" else number // _PER_MS[kind]
