"""Expiring snapshots with a commit, and removing what only they needed afterwards. Driver."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import RemoveSnapshotsUpdate

from krishiv_spark.errors import KrishivError
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.commit_rules import find_named_ids, get_aging_time_ms
from krishiv_spark.iceberg.file_access import redact_errors
from krishiv_spark.iceberg.file_io import get_guarded_io
from krishiv_spark.iceberg.guarded_catalog import GuardedMetastoreCatalog
from krishiv_spark.iceberg.own_files import OwnFiles
from krishiv_spark.iceberg.property_keys import iterate_ancestors
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.sinks.iceberg.lines import has_other_line
from krishiv_spark.sinks.iceberg.retention import (
    Retention,
    is_expired_by_us,
    metadata_properties,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
    from krishiv_spark.sinks.iceberg.transaction import EpochTransaction

__all__ = ["remove_expired", "tidy"]

_log = logging.getLogger(__name__)

_READING_MS = 60 * 60 * 1000
"""Files of a snapshot that is younger may be about to be read: they are left to vacuum."""

# The list of each is read while the query waits; of more, what has expired is left to vacuum.
_MOST_OTHERS = 20


def tidy(transaction: EpochTransaction, options: IcebergSinkOptions) -> None:
    """Stage the expiry of snapshots, and the properties that the options ask for, in the commit."""
    metadata = transaction.table_metadata
    retention = Retention.of(options, metadata.properties)
    if not (transaction.may_expire or options.expires_snapshots):
        retention = None
    expired = [] if retention is None else retention.expired(metadata, get_aging_time_ms(metadata))
    if expired and (gone := _still_unnamed(expired, transaction, options)):
        transaction.stage(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone}))
        transaction.expires = True
    if wanted := metadata_properties(options, metadata.properties):
        transaction.set_properties(wanted)


def _still_unnamed(
    expired: list[int], transaction: EpochTransaction, options: IcebergSinkOptions
) -> list[int]:
    """Snapshots that may go, without those that have got a name since the table was loaded.

    A catalog that keeps names looks by itself. Of any other the table is loaded again: what gets
    its name between that and the commit, a moment later, is lost.
    """
    if isinstance(transaction.table.catalog, GuardedMetastoreCatalog):
        return expired
    try:
        named = set(find_named_ids(open_table(options).metadata))
    except KrishivError:
        return []  # the next commit expires them, and this one says what is wrong
    return [number for number in expired if number not in named]


def remove_expired(table: Table, before: TableMetadata) -> None:
    """Remove files that only snapshots named which a commit has expired; best effort.

    The commit has happened: whatever fails here, or is not tried, is left to vacuum. Only the
    table's own files are deleted, and only if the table leaves its expiry to the sink.

    Args:
        table: As the commit has left it.
        before: As the commit found it.
    """
    try:
        after = table.metadata
        there = {snapshot.snapshot_id for snapshot in after.snapshots}
        gone = [one for one in before.snapshots if one.snapshot_id not in there]
        if gone and is_expired_by_us(after.properties) and not has_other_line(table):
            with redact_errors(table.io, "delete files of expired snapshots"):
                own = OwnFiles.named_by(after, get_guarded_io(table))
                own.delete(set(_unused(table, before, gone)))
    except Exception as error:  # noqa: BLE001  whatever it is, the epoch is true
        shown = scrub(error)
        _log.warning("files of expired snapshots remain for vacuum to remove", exc_info=shown)


def _unused(table: Table, before: TableMetadata, gone: list[Snapshot]) -> Iterator[str]:
    """Files of snapshots that are gone and that no snapshot which is there can name.

    A manifest that a snapshot's list lacks is in no list of its descendants either. So what the
    oldest that is left of the main branch does not list, and what is on no branch or on others
    does not, is not listed anywhere.
    """
    line = _line(table.metadata)
    on_line = {snapshot.snapshot_id for snapshot in line}
    others = [one for one in table.metadata.snapshots if one.snapshot_id not in on_line]
    if not line or len(others) > _MOST_OTHERS:
        return
    listed = {path for one in (line[-1], *others) for path in _paths(one.manifests(table.io))}
    were_on_line = {snapshot.snapshot_id for snapshot in _line(before)}
    latest_ms = get_aging_time_ms(before) - _READING_MS
    for snapshot in gone:
        if snapshot.snapshot_id in were_on_line and snapshot.timestamp_ms <= latest_ms:
            manifests = snapshot.manifests(table.io)
            # On another branch, or for a tag, a file that this one took out may still be there.
            if not others:
                yield from _replaced(table, snapshot, manifests)
            yield from (path for path in _paths(manifests) if path not in listed)
            yield snapshot.manifest_list


def _line(metadata: TableMetadata) -> list[Snapshot]:
    """The snapshots of the main branch, the newest first."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    found = metadata.refs.get(MAIN_BRANCH)
    return list(iterate_ancestors(by_id, None if found is None else found.snapshot_id))


def _replaced(table: Table, snapshot: Snapshot, manifests: list[ManifestFile]) -> Iterator[str]:
    """Data files that a snapshot took out: only its ancestors have them, which are gone too."""
    for manifest in manifests:
        if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.deleted_files_count:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                if entry.status == ManifestEntryStatus.DELETED:
                    yield entry.data_file.file_path


def _paths(manifests: list[ManifestFile]) -> list[str]:
    return [manifest.manifest_path for manifest in manifests]
