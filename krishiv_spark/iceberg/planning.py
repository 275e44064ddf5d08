"""Which entries of a snapshot's manifests are read, in an order that never changes. Driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from krishiv_spark.errors import DataLossError, KrishivError
from krishiv_spark.iceberg.options import FORMAT

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = [
    "Filter",
    "PlannedFile",
    "UnreadableError",
    "check_entry",
    "data_entries",
    "data_manifests",
    "format_name",
    "listed_files",
    "metadata_errors",
    "planned_files",
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
        from krishiv_spark.iceberg.conditions import filter_schema

        schema = filter_schema(self.schema)
        return table.metadata.model_copy(
            update={"schemas": [schema], "current_schema_id": schema.schema_id}
        )

    def for_planning(self, table: Table) -> BooleanExpression:
        """Return the filter without conditions that PyIceberg's planner would get wrong."""
        from krishiv_spark.iceberg.conditions import filter_for_planning

        specs = table.metadata.specs().values()
        return filter_for_planning(self.expression, self.schema, specs)


def planned_files(
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
        count = listed_files(manifest)
        if group and entries + count > _AT_ONCE:
            yield group
            group, entries = [], 0
        group.append(manifest)
        entries += count
    if group:
        yield group


@contextmanager
def metadata_errors(snapshot: Snapshot, *, is_filtered: bool = False) -> Iterator[None]:
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
    return snapshot.manifests(table.io) if scan else data_manifests(table, snapshot, scan=False)


def data_manifests(table: Table, snapshot: Snapshot, *, scan: bool) -> list[ManifestFile]:
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


def data_entries(
    table: Table, snapshot: Snapshot, manifest: ManifestFile, *, scan: bool
) -> list[ManifestEntry]:
    """The entries of one of `data_manifests` that are read, in their order.

    Raises:
        UnreadableError: See `check_entry`.
    """
    wanted = _wanted(snapshot, scan=scan)
    return [*filter(wanted, manifest.fetch_manifest_entry(table.io, discard_deleted=True))]


def listed_files(manifest: ManifestFile) -> int:
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
            f"{FORMAT}: {file.file_path} is {format_name(file)}; only Parquet is supported"
        )
    return True


def format_name(file: DataFile) -> str:
    """Return the name of a data file's format, such as ``ORC``."""
    return str(getattr(file.file_format, "value", file.file_format))


def _added_by(snapshot_id: int) -> Callable[[ManifestEntry], bool]:
    from pyiceberg.manifest import ManifestEntryStatus

    def wanted(entry: ManifestEntry) -> bool:
        added = entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot_id
        return added and check_entry(entry)

    return wanted
