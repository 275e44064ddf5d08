"""The sizes and the history of a table, and advice that would make it smaller. Operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from krishiv_spark.iceberg.property_keys import EPOCH_KEY, find_query_id, iterate_ancestors
from krishiv_spark.runtime.epoch_times import format_time
from krishiv_spark.sinks.iceberg.maintenance.compaction import CompactionRequest, read_loads
from krishiv_spark.sinks.iceberg.maintenance.compaction_groups import format_megabytes

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = ["SnapshotLine", "TableReport", "list_snapshots"]

_MANY_SNAPSHOTS = 2_000
"""Each snapshot adds a third of a kilobyte to the metadata that each commit writes and each reader
loads."""

_LARGE_METADATA = 2**20


@dataclass(frozen=True)
class TableReport:
    """The size of a table's newest snapshot, and of its history.

    Attributes:
        table: Name of the table, with its namespace.
        format_version: Iceberg's format version.
        snapshots: Number of snapshots.
        oldest_ms: Time of the oldest snapshot in epoch milliseconds; None without one.
        files: Number of Parquet data files of the newest snapshot.
        size: Their bytes.
        rows: Their rows, without deleted ones.
        partitions: Number of partitions that have such files.
        deletes: Number of delete files that apply to them.
        deleted_rows: Number of their rows that are deleted.
        manifests: Number of manifests of the newest snapshot.
        metadata_size: Bytes of the newest metadata file.
        compactable: Number of files that `krishiv-spark iceberg compact` would rewrite.
    """

    table: str
    format_version: int
    snapshots: int
    oldest_ms: int | None
    files: int
    size: int
    rows: int
    partitions: int
    deletes: int
    deleted_rows: int
    manifests: int
    metadata_size: int
    compactable: int

    @classmethod
    def read(cls, table: Table, options: IcebergSinkOptions) -> TableReport:
        """Read the metadata of a table, and its delete files. Operator.

        Raises:
            CommitRejected: If the table has equality deletes, which this package does not read.
            CatalogFailedError, OSError: If the metadata cannot be read.
        """
        metadata, loads = table.metadata, read_loads(table)
        groups = CompactionRequest().choose(loads, table, options)
        head = table.current_snapshot()
        return cls(
            table=options.table_name,
            format_version=metadata.format_version,
            snapshots=len(metadata.snapshots),
            oldest_ms=min((one.timestamp_ms for one in metadata.snapshots), default=None),
            files=len(loads),
            size=sum(load.size for load in loads),
            rows=sum(load.task.file.record_count - load.deleted for load in loads),
            partitions=len({(load.task.file.spec_id, load.task.file.partition) for load in loads}),
            deletes=len({file.file_path for load in loads for file in load.task.delete_files}),
            deleted_rows=sum(load.deleted for load in loads),
            manifests=0 if head is None else len(head.manifests(table.io)),
            metadata_size=len(table.io.new_input(table.metadata_location)),
            compactable=sum(map(len, groups)),
        )

    def lines(self) -> Iterator[str]:
        """Return the report as text, with advice at the end."""
        yield f"table {self.table}, format version {self.format_version}"
        yield (
            f"newest snapshot: {self.rows} rows in {self.files} data files of {self.partitions} "
            f"partitions, {format_megabytes(self.size)}"
        )
        yield f"deletes: {self.deleted_rows} rows by {self.deletes} delete files"
        oldest = "-" if self.oldest_ms is None else format_time(self.oldest_ms)
        yield (
            f"metadata: {self.manifests} manifests; {self.snapshots} snapshots since "
            f"{oldest}; metadata file {self.metadata_size / 2**10:.0f} kB"
        )
        yield from self.advice() or ["nothing to do"]

    def advice(self) -> list[str]:
        """Return advice that makes the table smaller or faster to read; empty for none."""
        found = []
        if self.compactable:
            found.append(
                f"advice: 'krishiv-spark iceberg compact {self.table}' would rewrite "
                f"{self.compactable} files, or the stream with 'compact' = 'auto'"
            )
        if self.snapshots > _MANY_SNAPSHOTS or self.metadata_size > _LARGE_METADATA:
            found.append(
                "advice: keep fewer snapshots, with 'keepSnapshots' or 'expireOlderThan': each "
                "commit writes the metadata of all of them"
            )
        return found


@dataclass(frozen=True)
class SnapshotLine:
    """One snapshot of a table's history.

    Attributes:
        id: The snapshot id of the Iceberg metadata.
        at_ms: Its time in epoch milliseconds.
        operation: ``append``, ``overwrite``, ``replace`` or ``delete``; None in version 1 tables.
        writer: The query and epoch, or the engine, as its summary names it; None if it does not.
        changes: The counts of its summary that are not 0, by their names in Iceberg's spec.
    """

    id: int
    at_ms: int
    operation: str | None
    writer: str | None
    changes: dict[str, int]

    def __str__(self) -> str:
        changes = ", ".join(f"{name} {count}" for name, count in self.changes.items())
        by = f" by {self.writer}" if self.writer else ""
        return f"{self.id} {format_time(self.at_ms)} {self.operation}{by}: {changes or 'no files'}"


def list_snapshots(table: Table, most: int) -> Iterator[SnapshotLine]:
    """Return the newest snapshots of the main branch, newest first.

    Args:
        table: The table.
        most: The maximum number.
    """
    by_id = {one.snapshot_id: one for one in table.metadata.snapshots}
    line = iterate_ancestors(by_id, table.metadata.current_snapshot_id)
    for snapshot in islice(line, most):
        yield _describe(snapshot)


_COUNTS = (
    "added-data-files",
    "deleted-data-files",
    "added-records",
    "deleted-records",
    "added-position-deletes",
    "removed-position-deletes",
    "total-data-files",
    "total-delete-files",
)


def _describe(snapshot: Snapshot) -> SnapshotLine:
    summary = snapshot.summary
    found = {} if summary is None else summary.additional_properties
    query = find_query_id(snapshot)
    writer = (
        found.get("engine-name") if query is None else f"query {query} epoch {found.get(EPOCH_KEY)}"
    )
    counts = {name: int(text) for name in _COUNTS if (text := found.get(name, "0")).isdecimal()}
    return SnapshotLine(
        snapshot.snapshot_id,
        snapshot.timestamp_ms,
        None if summary is None else summary.operation.value,
        writer,
        {name: count for name, count in counts.items() if count},
    )
