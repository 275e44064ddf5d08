"""Which files snapshots take out of a table and put into it. Driver.

Our upserts, and whoever else overwrites or deletes rows, put files in the place of others: the
manifests that such a snapshot has written name both. Delete files change rows of files that stay;
where there are any, the files of the snapshot before are looked at as well, each with its deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from krishiv_spark.errors import DataLossError
from krishiv_spark.iceberg.files import SnapshotFiles, TableFile, table_file
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.planning import check_entry, metadata_errors
from krishiv_spark.iceberg.redacting import redact_errors
from krishiv_spark.messages.advice import NEW_CHECKPOINT
from krishiv_spark.sources.iceberg.history import number_of

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["FileChanges", "NetChanges", "changes_of"]


@dataclass(frozen=True)
class FileChanges:
    """What one snapshot does.

    Attributes:
        removed: Files that it takes out, as the table had them before.
        added: Files that it puts in.
    """

    removed: tuple[TableFile, ...] = ()
    added: tuple[TableFile, ...] = ()

    @property
    def files(self) -> tuple[TableFile, ...]:
        """All of them."""
        return self.removed + self.added


@dataclass
class NetChanges:
    """What consecutive snapshots do together: a file that comes and goes again is none.

    Attributes:
        removed: Files that were there before.
        moved: Files that are there afterwards and may have rows of those that were removed.
        appended: Files that are there afterwards and have new rows only.
    """

    removed: dict[TableFile, None] = field(default_factory=dict)
    moved: dict[TableFile, None] = field(default_factory=dict)
    appended: dict[TableFile, None] = field(default_factory=dict)

    def append(self, files: Iterable[TableFile]) -> None:
        """Note files with new rows."""
        self.appended.update(dict.fromkeys(files))

    def copy(self, find: Callable[[], FileChanges]) -> None:
        """Note a compaction; it is nothing, unless it copies rows that are among these."""
        ours = self.moved.keys() | self.appended.keys()
        if ours and not ours.isdisjoint((changes := find()).removed):
            self.rewrite(changes)

    def rewrite(self, changes: FileChanges) -> None:
        """Note what a snapshot does that takes rows out."""
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


def changes_of(files: SnapshotFiles, table: Table, snapshot: Snapshot) -> FileChanges:
    """The files that a snapshot takes out and puts in.

    Args:
        files: Lists the files of snapshots.
        table: Whose snapshot it is.
        snapshot: One that overwrites or deletes rows.

    Raises:
        UnreadableError: If there are equality deletes, or files that are not Parquet.
        DataLossError: If the snapshot's metadata has been removed, or the snapshot before is
            needed and has expired.
    """
    parent = snapshot.parent_snapshot_id
    before = None if parent is None else table.metadata.snapshot_by_id(parent)
    doing = f"list the changes of snapshot {snapshot.snapshot_id}"
    with redact_errors(table.io, doing), metadata_errors(snapshot):
        told = _told(table, [snapshot] if before is None else [snapshot, before])
    if told is not None:
        return told
    if before is None:
        raise DataLossError(
            f"{FORMAT}: snapshot {snapshot.snapshot_id} has delete files, or does not name the "
            "files that it took out, and the snapshot before has expired, so that it cannot be "
            "told which rows went. Keep snapshots for longer than the query may stand still, and "
            f"start with {NEW_CHECKPOINT}"
        )
    return _compared(files.of(table, before, scan=True), files.of(table, snapshot, scan=True))


def _told(table: Table, known: Sequence[Snapshot]) -> FileChanges | None:
    """What the manifests of a snapshot say; None if that is not all.

    Args:
        table: Whose snapshots they are.
        known: The snapshot, and the one before, if it is still there.
    """
    snapshot = known[0]
    if any(_has_deletes(table, one) for one in known):
        return None
    changes = _named(table, snapshot)
    count = number_of(snapshot, "deleted-data-files", len(changes.removed))
    return changes if len(changes.removed) == count else None  # old writers do not name them all


def _has_deletes(table: Table, snapshot: Snapshot) -> bool:
    from pyiceberg.manifest import ManifestContent

    manifests = snapshot.manifests(table.io)
    return any(manifest.content != ManifestContent.DATA for manifest in manifests)


def _named(table: Table, snapshot: Snapshot) -> FileChanges:
    """The files that the snapshot's own manifests name."""
    from pyiceberg.manifest import ManifestEntryStatus

    entries = [
        entry
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        if entry.snapshot_id == snapshot.snapshot_id and check_entry(entry)
    ]
    return FileChanges(
        removed=_files(table, (e for e in entries if e.status == ManifestEntryStatus.DELETED)),
        added=_files(table, (e for e in entries if e.status == ManifestEntryStatus.ADDED)),
    )


def _files(table: Table, entries: Iterable[ManifestEntry]) -> tuple[TableFile, ...]:
    from pyiceberg.table import FileScanTask

    from krishiv_spark.iceberg.file_access import access_of

    specs = table.metadata.specs()
    found = tuple(table_file(FileScanTask(entry.data_file), specs) for entry in entries)
    access_of(table).check_all(file.path for file in found)
    return found


def _compared(before: Sequence[TableFile], after: Sequence[TableFile]) -> FileChanges:
    """By the files of both snapshots: those with other deletes are other files."""
    there, here = set(before), set(after)
    return FileChanges(
        removed=tuple(file for file in before if file not in here),
        added=tuple(file for file in after if file not in there),
    )
