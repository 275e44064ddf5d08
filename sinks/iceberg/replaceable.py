"""Checks before files of a table are replaced.

Files cannot be replaced in a table with equality deletes, nor where they are not Parquet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.snapshots import TOTAL_EQUALITY_DELETES

from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg.catalogs import explain_catalog_errors
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.planning import (
    UnreadableError,
    check_entry,
    explain_metadata_errors,
    get_format_name,
)
from krishiv_spark.iceberg.projection import widen_for_planning
from krishiv_spark.iceberg.property_keys import PARENT_KEY, iterate_ancestors
from krishiv_spark.runtime.lru import LruCache

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = ["check_parquet", "check_replaceable", "check_upsertable", "files_to_replace"]

_PARQUET = "PARQUET"

_CHECKED: LruCache[tuple[str, frozenset[int]], int] = LruCache(64)
"""By a table's UUID and the ids of its keys, the snapshot that `check_upsertable` passed last."""

_REWRITE = (
    "Only Parquet can be read and replaced. Have the engine that wrote it rewrite the table's data "
    "files as Parquet; in Spark: ALTER TABLE … SET TBLPROPERTIES ('write.format.default' = "
    "'parquet'), then CALL …system.rewrite_data_files(table => '…', options => map('rewrite-all', "
    "'true')). Then restart the query"
)


def check_replaceable(table: Table, options: IcebergSinkOptions) -> None:
    """Refuse a table whose files an epoch could not replace, before there is one. Planner.

    A snapshot whose summary counts no equality deletes costs nothing; of others the manifests of
    deletes are read.

    Raises:
        UnreadableError: If it has equality deletes.
        DataLossError: If metadata of its snapshot has been removed.
        CatalogFailedError: If that cannot be read.
    """
    snapshot = table.current_snapshot()
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

    That is a file without bounds of the keys, as every Avro file is, in a table that is not
    partitioned by a key. Whether an epoch meets a file that has bounds is known when it is
    committed. All manifests are read when a process first plans an upsert of a table, and new ones
    after commits of other programs.

    Raises:
        UnreadableError: If there is such a file.
        DataLossError: If metadata of the table's snapshot has been removed.
        CatalogFailedError: If that cannot be read.
    """
    head = table.current_snapshot()
    if head is None:
        return
    schema = table.schema()
    fields = (
        schema.find_field(name) for name in options.key_columns if name in schema.column_names
    )
    keys = frozenset(field.field_id for field in fields)
    known = (str(table.metadata.table_uuid), keys)
    later = _later_snapshots(table, _CHECKED.get(known))
    if later is None or any(map(_is_foreign, later)):
        written = None if later is None else {one.snapshot_id for one in later}
        doing = f"read the files of table {options.table_name}"
        with explain_catalog_errors(options, doing), explain_metadata_errors(head):
            _check_bounds(table, head, written, keys)
    _CHECKED.put(known, head.snapshot_id)


def _later_snapshots(table: Table, checked: int | None) -> list[Snapshot] | None:
    """Return the snapshots after one that was checked; None if it is no ancestor."""
    by_id = {one.snapshot_id: one for one in table.metadata.snapshots}
    found: list[Snapshot] = []
    for snapshot in iterate_ancestors(by_id, table.metadata.current_snapshot_id):
        if snapshot.snapshot_id == checked:
            return found
        found.append(snapshot)
    return None


def _is_foreign(snapshot: Snapshot) -> bool:
    """Return True unless the sink wrote a snapshot that has a parent: it writes Parquet alone."""
    return snapshot.summary is None or PARENT_KEY not in snapshot.summary.additional_properties


def _check_bounds(
    table: Table, head: Snapshot, written: set[int] | None, keys: frozenset[int]
) -> None:
    """Check the manifests of a snapshot that were written for some snapshots, or for any."""
    specs = table.specs()
    for manifest in head.manifests(table.io):
        is_known = written is not None and manifest.added_snapshot_id not in written
        if manifest.content != ManifestContent.DATA or is_known:
            continue
        spec = specs[manifest.partition_spec_id]
        if any(one.source_id in keys and str(one.transform) != "void" for one in spec.fields):
            continue  # a partition may leave the file out
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            file = entry.data_file
            has_bounds = keys & (file.lower_bounds or {}).keys()
            if get_format_name(file) != _PARQUET and not has_bounds:
                raise UnreadableError(
                    f"{FORMAT}: {file.file_path} is {get_format_name(file)}, without bounds of the "
                    f"key columns, so that every upsert would have to read it. {_REWRITE}"
                )


def check_parquet(file: DataFile) -> None:
    """Refuse a data file that an epoch has to read and that is not Parquet. Driver.

    Raises:
        CommitRejected: If it is not.
    """
    if get_format_name(file) != _PARQUET:
        raise CommitRejected(
            f"{FORMAT}: {file.file_path} is {get_format_name(file)}, and by its bounds may have "
            f"rows of the epoch's keys. Nothing was committed. {_REWRITE}"
        )


def files_to_replace(
    table: Table, row_filter: BooleanExpression | None = None
) -> Iterator[FileScanTask]:
    """The data files of a table, with their deletes. Driver.

    Args:
        table: Whose files they are.
        row_filter: Leaves out files that can have no row under it.

    Raises:
        CommitRejected: If it has got equality deletes since the epoch was planned.
    """
    wanted: BooleanExpression = AlwaysTrue()
    if row_filter is not None:
        specs = table.specs().values()
        wanted = widen_for_planning(row_filter, table.schema(), specs)
    scan = table.scan(row_filter=wanted)
    try:
        yield from scan.plan_files()
    except ValueError as error:
        raise CommitRejected(
            f"{FORMAT}: the files that the epoch replaces cannot be determined: {error}. Have "
            "the engine that wrote the deletes rewrite the data files, then restart the query"
        ) from error
