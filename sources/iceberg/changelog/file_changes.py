"""Files that snapshots remove from a table and add to it. Driver.

Upserts of this package, and other programs that overwrite or delete rows, replace files by others:
the manifests that such a snapshot has written name both. Delete files change rows of files that
stay; if there are any, the files of the parent snapshot are listed as well, each with its deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from krishiv_spark.errors import DataLossError
from krishiv_spark.iceberg.file_access import redact_errors
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.planning import (
    SnapshotFiles,
    TableFile,
    check_entry,
    explain_metadata_errors,
    to_table_file,
)
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.sources.iceberg.history import read_count

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["NetChanges", "list_changes"]


@dataclass(frozen=True)
class FileChanges:
    """The files that one snapshot removes and adds.

    Attributes:
        removed: Removed files, as the table had them before.
        added: Added files.
    """

    removed: tuple[TableFile, ...] = ()
    added: tuple[TableFile, ...] = ()

    @property
    def files(self) -> tuple[TableFile, ...]:
        """All of these files; of a file with other deletes, the rows by which they differ."""
        removed, added = _compare_deletes(self.removed, self.added)
        return (*removed, *added)


@dataclass
class NetChanges:
    """The net changes of consecutive snapshots: a file that is added and removed again is none.

    Attributes:
        removed: Files that the table had before.
        moved: Files that the table has afterwards and that may have rows of removed files.
        appended: Files that the table has afterwards and that have new rows only.
    """

    removed: dict[TableFile, None] = field(default_factory=dict)
    moved: dict[TableFile, None] = field(default_factory=dict)
    appended: dict[TableFile, None] = field(default_factory=dict)

    def list_compared(self) -> tuple[list[TableFile], list[TableFile]]:
        """Return the removed and the moved files, as they are read to find changed rows."""
        return _compare_deletes(self.removed, self.moved)

    def append(self, files: Iterable[TableFile]) -> None:
        """Add files with new rows."""
        self.appended.update(dict.fromkeys(files))

    def copy(self, find: Callable[[], FileChanges]) -> None:
        """Add a compaction; ignore it unless it copies rows of files that were added here."""
        added = self.moved.keys() | self.appended.keys()
        if added and not added.isdisjoint((changes := find()).removed):
            self.rewrite(changes)

    def rewrite(self, changes: FileChanges) -> None:
        """Add a snapshot that removes rows."""
        for file in changes.removed:
            if file in self.moved or file in self.appended:
                self.moved.pop(file, None)
                self.appended.pop(file, None)
            else:
                self.removed[file] = None
        for file in changes.added:
            if file in self.removed:
                del self.removed[file]
            else:
                self.moved[file] = None


def _compare_deletes(
    removed: Iterable[TableFile], added: Iterable[TableFile]
) -> tuple[list[TableFile], list[TableFile]]:
    """Return removed and added files that are read to find changed rows.

    A file that is among both, with other deletes, has changed rows only where these differ: the
    rows that delete files name which the file had not before are removed, and the reverse.
    """
    removed, added = list(removed), list(added)
    before, after = ({file.path: file for file in files} for files in (removed, added))
    return [*_find_named(removed, after)], [*_find_named(added, before)]


def _find_named(files: Iterable[TableFile], others: Mapping[str, TableFile]) -> Iterator[TableFile]:
    """Yield files, each with only the rows that the deletes of the other one of its path name."""
    for file in files:
        other = others.get(file.path)
        if other is None:
            yield file
        elif only := tuple(one for one in other.deletes if one not in file.deletes):
            yield replace(file, only=only)


def list_changes(files: SnapshotFiles, table: Table, snapshot: Snapshot) -> FileChanges:
    """Return the files that a snapshot removes and adds.

    Args:
        files: Lists the files of snapshots.
        table: The table of the snapshot.
        snapshot: A snapshot that overwrites or deletes rows.

    Raises:
        UnreadableError: If there are equality deletes, or files that are not Parquet.
        DataLossError: If the snapshot's metadata has been removed, or its parent is needed and
            has expired.
    """
    parent = snapshot.parent_snapshot_id
    before = None if parent is None else table.metadata.snapshot_by_id(parent)
    doing = f"list the changes of snapshot {snapshot.snapshot_id}"
    with redact_errors(table.io, doing), explain_metadata_errors(snapshot):
        changes = _read_own_manifests(table, [snapshot] if before is None else [snapshot, before])
    if changes is not None:
        return changes
    if before is None:
        raise DataLossError(
            f"{FORMAT}: snapshot {snapshot.snapshot_id} has delete files, or does not name the "
            "files that it removed, and the snapshot before has expired, so the deleted rows "
            "cannot be determined. Keep snapshots for longer than the query may be stopped, "
            f"and start with {NEW_CHECKPOINT}"
        )
    return _compare_scans(
        files.list_files(table, before, scan=True), files.list_files(table, snapshot, scan=True)
    )


def _read_own_manifests(table: Table, known: Sequence[Snapshot]) -> FileChanges | None:
    """Return the changes that the manifests of a snapshot name; None if these may be incomplete.

    Args:
        table: The table of the snapshots.
        known: The snapshot, and its parent unless that has expired.
    """
    snapshot = known[0]
    if any(_has_deletes(table, one) for one in known):
        return None
    changes = _list_named_files(table, snapshot)
    count = read_count(snapshot, "deleted-data-files", len(changes.removed))
    return changes if len(changes.removed) == count else None  # old writers omit some


def _has_deletes(table: Table, snapshot: Snapshot) -> bool:
    from pyiceberg.manifest import ManifestContent

    manifests = snapshot.manifests(table.io)
    return any(manifest.content != ManifestContent.DATA for manifest in manifests)


def _list_named_files(table: Table, snapshot: Snapshot) -> FileChanges:
    """Return the files that the snapshot's own manifests name."""
    from pyiceberg.manifest import ManifestEntryStatus

    entries = [
        entry
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        if entry.snapshot_id == snapshot.snapshot_id and check_entry(entry)
    ]
    return FileChanges(
        removed=_to_table_files(
            table, (e for e in entries if e.status == ManifestEntryStatus.DELETED)
        ),
        added=_to_table_files(table, (e for e in entries if e.status == ManifestEntryStatus.ADDED)),
    )


def _to_table_files(table: Table, entries: Iterable[ManifestEntry]) -> tuple[TableFile, ...]:
    from pyiceberg.table import FileScanTask

    from krishiv_spark.iceberg.file_io import get_access

    specs = table.metadata.specs()
    found = tuple(to_table_file(FileScanTask(entry.data_file), specs) for entry in entries)
    get_access(table).check_all(file.path for file in found)
    return found


def _compare_scans(before: Sequence[TableFile], after: Sequence[TableFile]) -> FileChanges:
    """Compare the files of two snapshots; a file with other deletes is another file."""
    old, new = set(before), set(after)
    return FileChanges(
        removed=tuple(file for file in before if file not in new),
        added=tuple(file for file in after if file not in old),
    )
