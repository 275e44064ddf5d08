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

_MOST_OF_REASON = 500
_AT_ONCE = 10_000
"""Entries of manifests that are in memory together: PyIceberg's take ten times as much as ours."""

# Of PyIceberg's enumerations: to import these for each entry takes as long as to compare them.
_DATA, _EQUALITY_DELETES, _PARQUET = 0, 2, "PARQUET"


class UnreadableError(KrishivError):
    """A table has files or metadata that cannot be read here, or that are damaged."""


class PlannedFile(NamedTuple):
    """A data file to be read; its attributes are those of PyIceberg's ``FileScanTask``."""

    file: DataFile
    delete_files: Sequence[DataFile] = ()


class Filter(NamedTuple):
    """A filter, and the schema that has the columns which it names.

    Attributes:
        expression: The filter.
        schema: The reader's.
    """

    expression: BooleanExpression
    schema: Schema

    def metadata(self, table: Table) -> TableMetadata:
        """A table's metadata, for a planner that looks up names in the current schema."""
        from krishiv_spark.iceberg.projection import to_filter_schema

        schema = to_filter_schema(self.schema)
        return table.metadata.model_copy(
            update={"schemas": [schema], "current_schema_id": schema.schema_id}
        )

    def for_planning(self, table: Table) -> BooleanExpression:
        """Return the filter without conditions that PyIceberg's planner would get wrong."""
        from krishiv_spark.iceberg.projection import widen_for_planning

        specs = table.metadata.specs().values()
        return widen_for_planning(self.expression, self.schema, specs)


def plan_files(
    table: Table, snapshot: Snapshot, *, scan: bool, row_filter: Filter | None
) -> Iterator[FileScanTask | PlannedFile]:
    """The files of a snapshot, in the order of its manifests.

    Args:
        table: Whose snapshot it is.
        snapshot: One that the table's metadata still has.
        scan: All files that are in the table then, with their deletes; otherwise only those that
            the snapshot added.
        row_filter: Leaves out files that can have no row under it.

    Raises:
        UnreadableError: See `check_entry`.
        ValueError: If the table is partitioned by a column that the filter's schema lacks.
    """
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.table import ManifestGroupPlanner

    wanted = _wanted(snapshot, scan=scan)
    manifests = _manifests(table, snapshot, scan=scan)
    if row_filter is None and not _have_deletes(manifests):
        for group in _groups(manifests):
            yield from _all_in(table.io, group, wanted)
        return
    metadata = table.metadata if row_filter is None else row_filter.metadata(table)
    expression = AlwaysTrue() if row_filter is None else row_filter.for_planning(table)
    planner = ManifestGroupPlanner(metadata, table.io, expression)
    for group in _groups(manifests):
        yield from planner.plan_files(group, wanted)


def _all_in(
    io: FileIO, manifests: Sequence[ManifestFile], wanted: Callable[[ManifestEntry], bool]
) -> Iterator[PlannedFile]:
    """The files of data manifests, without what PyIceberg's planner asks of each for a filter.

    Where there is none, that is a fifth of the time. Manifests are read side by side.
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


def _groups(manifests: Sequence[ManifestFile]) -> Iterator[Sequence[ManifestFile]]:
    """Manifests in their order, in groups that are planned one after the other.

    A table of a hundred thousand files has their entries in memory a few at a time. Where rows
    are deleted by position, any manifest may be about any other's files: all are one group.
    """
    if _have_deletes(manifests):
        yield manifests
        return
    group: list[ManifestFile] = []
    entries = 0
    for manifest in manifests:
        count = count_listed_files(manifest)
        if group and entries + count > _AT_ONCE:
            yield group
            group, entries = [], 0
        group.append(manifest)
        entries += count
    if group:
        yield group


@contextmanager
def explain_metadata_errors(snapshot: Snapshot, *, is_filtered: bool = False) -> Iterator[None]:
    """Turn what is missing or damaged of a snapshot's metadata into one of our errors.

    Args:
        snapshot: Whose metadata is read.
        is_filtered: True if a ValueError is that of a filter, which the caller handles.

    Raises:
        DataLossError: If a manifest or their list is not there.
        UnreadableError: If PyIceberg cannot use what they contain.
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
            f"{str(error)[:_MOST_OF_REASON]}. If they are damaged, have the table's owner restore "
            "them, or roll the table back to a snapshot that does not need them"
        ) from error


def _manifests(table: Table, snapshot: Snapshot, *, scan: bool) -> list[ManifestFile]:
    return (
        snapshot.manifests(table.io) if scan else list_data_manifests(table, snapshot, scan=False)
    )


def list_data_manifests(table: Table, snapshot: Snapshot, *, scan: bool) -> list[ManifestFile]:
    """Those that name the data files of a snapshot, in their order.

    Args:
        table: Whose snapshot it is.
        snapshot: One that the table's metadata still has.
        scan: All of them; otherwise only those that the snapshot has written. One that was merged
            has entries of earlier snapshots too.
    """
    from pyiceberg.manifest import ManifestContent

    data = [m for m in snapshot.manifests(table.io) if m.content == ManifestContent.DATA]
    return data if scan else [m for m in data if m.added_snapshot_id == snapshot.snapshot_id]


def list_data_entries(
    table: Table, snapshot: Snapshot, manifest: ManifestFile, *, scan: bool
) -> list[ManifestEntry]:
    """The entries of one of `list_data_manifests` that are read, in their order.

    Raises:
        UnreadableError: See `check_entry`.
    """
    wanted = _wanted(snapshot, scan=scan)
    return [*filter(wanted, manifest.fetch_manifest_entry(table.io, discard_deleted=True))]


def count_listed_files(manifest: ManifestFile) -> int:
    """How many files a manifest lists that were there when it was written, whoever added them."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _wanted(snapshot: Snapshot, *, scan: bool) -> Callable[[ManifestEntry], bool]:
    return check_entry if scan else _added_by(snapshot.snapshot_id)


def check_entry(entry: ManifestEntry) -> bool:
    """True.

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


def _added_by(snapshot_id: int) -> Callable[[ManifestEntry], bool]:
    from pyiceberg.manifest import ManifestEntryStatus

    def wanted(entry: ManifestEntry) -> bool:
        added = entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot_id
        return added and check_entry(entry)

    return wanted


# --- what readers get

_log = logging.getLogger(__name__)

_REMEMBERED = 200_000
"""Files that are remembered, of the snapshots that were asked for last: those of one batch, as a
rule. Each takes half a kilobyte."""

_LARGEST_FILE = 2**40
"""Bytes; a larger one would be read whole too, by fewer tasks."""

_PER_MS = {"timestamp": 1_000, "timestamptz": 1_000}
_PER_MS |= {"timestamp_ns": 1_000_000, "timestamptz_ns": 1_000_000}
_DAY_MS = 86_400_000


class DeleteFile(NamedTuple):
    """A file that names rows of data files that are deleted; its attributes are PyIceberg's."""

    file_path: str
    file_format: Any


@dataclass(frozen=True, slots=True)
class TableFile:
    """What is known of a data file without opening it.

    Attributes:
        path: Location in the table's storage, as its metadata spells it.
        size: Of the whole file, in bytes.
        rows: Number of rows, deleted ones included.
        constants: Values by field id of columns that the file may lack, since it is partitioned
            by them; a value may be null (Iceberg spec, "Column Projection").
        deletes: Files that may name deleted rows of it.
        newest_ms: Newest event time, milliseconds since 1970 UTC; None when there is none or it is
            not known.
        unknown: Why it is not known.
    """

    path: str
    size: int
    rows: int
    constants: tuple[tuple[int, Any], ...] = ()
    deletes: tuple[DeleteFile, ...] = ()
    newest_ms: int | None = None
    unknown: str | None = None

    def paths(self) -> Iterator[str]:
        """Return the files that are opened to read its rows."""
        yield self.path
        yield from (delete.file_path for delete in self.deletes)


class SnapshotFiles:
    """Lists the files of snapshots, and remembers the latest lists.

    Args:
        event_time: Field whose newest value is looked up in the metadata; None for none.
        schema: Has the columns that filters name: those of the reader, whatever names the table
            gives its columns later, or gave them before.
    """

    def __init__(self, event_time: NestedField | None, schema: Schema) -> None:
        self._event_time = event_time
        self._schema = schema
        # Not so many lists: a batch of many snapshots would read each of their manifests twice.
        self._lists: LruCache[tuple[int, bool, bool], tuple[TableFile, ...]] = LruCache(
            _REMEMBERED, lambda files: 1 + len(files)
        )

    def of(
        self,
        table: Table,
        snapshot: Snapshot,
        *,
        scan: bool,
        row_filter: BooleanExpression | None = None,
    ) -> tuple[TableFile, ...]:
        """Files in the order of the snapshot's manifests, which never changes.

        Args:
            table: Whose snapshot it is.
            snapshot: One that the table's metadata still has.
            scan: All files that are in the table then, with their deletes; otherwise only those
                that the snapshot added.
            row_filter: Leaves out files that can have no row under it; always the same one.

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
                found = self._listed(table, snapshot, bound, scan=scan)
            except ValueError as error:
                if bound is None:
                    raise
                # The table is partitioned by a column that is newer than the reader's.
                _log.info("files are not chosen by the filter: %s", error)
                found = self._listed(table, snapshot, None, scan=scan)
            self._lists.put(key, found)
        return found

    def _listed(
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
    """What is known of a file that PyIceberg has planned.

    Args:
        task: Names the file and its deletes.
        specs: Partitions of the table by their ids.
        event_time: Field whose newest value is looked up; None for none.
    """
    file = task.file
    constants = _constants(file, specs[file.spec_id])
    newest, unknown = _newest(file, event_time, dict(constants))
    if newest is not None and task.delete_files:
        newest, unknown = None, f"{file.file_path}: its newest row may have been deleted"
    return TableFile(
        path=file.file_path,
        # With 0, no range of bytes would be read of it; any size makes any number of tasks.
        size=min(max(1, file.file_size_in_bytes), _LARGEST_FILE),
        rows=max(0, file.record_count),
        constants=constants,
        deletes=_deletes(task.delete_files) if task.delete_files else (),
        newest_ms=newest,
        unknown=unknown,
    )


def _deletes(files: Iterable[DataFile]) -> tuple[DeleteFile, ...]:
    # Sorted: a file is the same as another one if its deletes are.
    return tuple(sorted(DeleteFile(file.file_path, file.file_format) for file in files))


def _constants(file: DataFile, spec: Any) -> tuple[tuple[int, Any], ...]:
    # No other transform gives the value back (Iceberg spec, "Column Projection").
    return tuple(
        (field.source_id, file.partition[position])
        for position, field in enumerate(spec.fields)
        if str(field.transform) == "identity"
    )


def _newest(
    file: DataFile, field: NestedField | None, constants: Mapping[int, Any]
) -> tuple[int | None, str | None]:
    """The newest value of a field in milliseconds, or why it is not known.

    A file that lacks the field has no bounds of it, and its partition may have the value.
    """
    if field is None or not file.record_count:
        return None, None
    from pyiceberg.conversions import from_bytes

    bound = (file.upper_bounds or {}).get(field.field_id)
    if bound is not None:
        kind: Any = field.field_type
        return _milliseconds(from_bytes(kind, bound), str(kind)), None
    if field.field_id in constants:
        constant = constants[field.field_id]
        return None if constant is None else _milliseconds(constant, str(field.field_type)), None
    nulls = (file.null_value_counts or {}).get(field.field_id)
    if nulls == file.record_count:
        return None, None
    return None, f"{file.file_path}: no bounds of {field.name} in the metadata"


def _milliseconds(value: Any, kind: str) -> int:
    number = int(value)
    return number * _DAY_MS if kind == "date" else number // _PER_MS[kind]
