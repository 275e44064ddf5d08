"""Whether the files of a table can be replaced: not where rows are deleted by their values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.snapshots import TOTAL_EQUALITY_DELETES

from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg.catalogs import catalog_errors
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.planning import check_entry, metadata_errors

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = ["check_replaceable", "files_to_replace"]


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
    with catalog_errors(options, doing), metadata_errors(snapshot):
        for manifest in snapshot.manifests(table.io):
            if manifest.content == ManifestContent.DELETES:
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    check_entry(entry)


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
    scan = table.scan(row_filter=AlwaysTrue() if row_filter is None else row_filter)
    try:
        yield from scan.plan_files()
    except ValueError as error:
        raise CommitRejected(
            f"{FORMAT}: the files that the epoch replaces cannot be told: {error}. Let the engine "
            "that wrote the deletes rewrite the data files, then restart the query"
        ) from error
