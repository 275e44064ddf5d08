"""The expiry of snapshots and of their files, within the commits of epochs. Driver.

Options or the properties of the table decide which snapshots and metadata files remain. A table
that the sink creates has these properties, so that every query respects them and other programs may
change them. A table of another program is not changed, unless options require it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import RemoveSnapshotsUpdate

from krishiv_spark.errors import KrishivError, OptionError
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.commit_rules import find_named_ids, get_aging_time_ms
from krishiv_spark.iceberg.file_access import redact_errors
from krishiv_spark.iceberg.file_io import get_guarded_io
from krishiv_spark.iceberg.guarded_catalog import GuardedMetastoreCatalog
from krishiv_spark.iceberg.metadata_lists import is_extension
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.own_files import OwnFiles
from krishiv_spark.iceberg.property_keys import MERGE_MODE, iterate_ancestors, parse_count
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.messages.redaction import excerpt
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.sinks.iceberg.table_copies import has_other_history

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from krishiv_spark.sinks.iceberg.epoch_snapshot import EpochTransaction
    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = [
    "Retention",
    "delete_expired_files",
    "expire_with_commit",
    "make_default_properties",
    "warn_of_growth",
    "warn_of_refused_properties",
]

_log = logging.getLogger(__name__)
_AGE_MS = "history.expire.max-snapshot-age-ms"
_LEAST = "history.expire.min-snapshots-to-keep"

_MOST = "krishiv.history.expire.max-snapshots-to-keep"
"""Iceberg has no such property. The sink expires only tables that have it, by their own rules."""

# With five days alone, Iceberg's default, an epoch per second would keep 432 000 snapshots. The
# minimum lets a reader fall behind by so many epochs, at any rate.
_SNAPSHOTS = {_AGE_MS: str(5 * 24 * 60 * 60 * 1000), _LEAST: "1000", _MOST: "10000"}

# Upserts replace rows, so each snapshot keeps files that the newest one does not have: with copy on
# write, up to a whole copy of the table.
_OF_UPSERTS = {
    "merge-on-read": {_AGE_MS: str(24 * 60 * 60 * 1000), _LEAST: "100"},
    "copy-on-write": {_AGE_MS: str(2 * 60 * 60 * 1000), _LEAST: "50"},
}

_DELETES = "write.metadata.delete-after-commit.enabled"
_VERSIONS = "write.metadata.previous-versions-max"
_FILES = {_DELETES: "true", _VERSIONS: "20"}

_MAX_AT_ONCE = 100
"""Most snapshots that one commit expires: the next commits expire the others."""

_LUMP = 20
"""Fewest snapshots that expire together by a table's own rules: finding them takes as long as a
small commit."""

_log = logging.getLogger(__name__)

_READING_MS = 60 * 60 * 1000
"""A reader may need the files of a younger snapshot: they are left to vacuum."""

# The manifest list of each is read while the query waits; with more, files are left to vacuum.
_MAX_OTHERS = 20


@dataclass(frozen=True)
class Retention:
    """The rule by which snapshots expire.

    Attributes:
        least: Number of newest snapshots that remain, however old they are.
        most: Maximum number that remains, however young they are; None for no maximum.
        age_ms: Between these numbers, older snapshots expire.
        lump: Minimum number that expires together.
    """

    least: int
    most: int | None
    age_ms: int
    lump: int = 1

    @classmethod
    def of(cls, options: IcebergSinkOptions, properties: Mapping[str, str]) -> Retention | None:
        """Return the rule of the options, or else of the table; None if no snapshot expires.

        Raises:
            OptionError: If a property of the table is no number.
        """
        keep, older = options.keep_snapshots, options.expire_older_than
        if keep == "all":
            return None
        if keep is not None or older is not None:
            return cls(keep or 1, None, older or 0)
        if not is_expired_by_sink(properties):
            return None
        found = {**_SNAPSHOTS, **properties}
        least, most, age_ms = (_parse_number(found, name) for name in (_LEAST, _MOST, _AGE_MS))
        return cls(least, most, age_ms, _LUMP)

    def find_expired(self, metadata: TableMetadata, now_ms: int) -> list[int]:
        """Return the ids of the snapshots that the next commit expires: the oldest, at most 100.

        Other branches keep their whole history, and tags their snapshot. A snapshot expires by age
        only after all that were committed before it: the clocks of writers differ, and a history
        without one in its middle would end there.

        Args:
            metadata: Metadata of the table, before the commit.
            now_ms: The time at which ages are measured, see `get_aging_time_ms`.
        """
        protected, limit_ms = set(find_named_ids(metadata)), now_ms - self.age_ms
        others = (one for one in metadata.snapshots if one.snapshot_id not in protected)
        count = len(metadata.snapshots) - len(protected) + 1  # this commit adds the newest
        over = 0 if self.most is None else count - self.most
        # Metadata list snapshots in the order of commits.
        is_old = any(one.timestamp_ms <= limit_ms for one in islice(others, 1))
        if count - self.least < self.lump or (over < self.lump and not is_old):
            return []  # the usual case, without a look at each snapshot
        there = [one for one in metadata.snapshots if one.snapshot_id not in protected]
        old = sum(one.timestamp_ms <= limit_ms for one in there)
        if max(over, old) < self.lump:
            return []
        candidates = enumerate(sorted(there, key=_commit_order)[: count - self.least])
        expired = takewhile(
            lambda pair: pair[0] < over or pair[1].timestamp_ms <= limit_ms, candidates
        )
        return [one.snapshot_id for _, one in islice(expired, _MAX_AT_ONCE)]


def is_expired_by_sink(properties: Mapping[str, str]) -> bool:
    """Return True if the sink expires the snapshots of a table by its properties."""
    return _MOST in properties and properties.get("gc.enabled", "true").lower() != "false"


def make_default_properties(options: IcebergSinkOptions) -> dict[str, str]:
    """Return the sink's own properties of a new table: those that the user did not give."""
    has_deletes = options.table_properties.get("format-version", "2") != "1"
    upserts = options.upsert_mode or ("merge-on-read" if has_deletes else "copy-on-write")
    snapshots = dict(_SNAPSHOTS)
    if options.mode != "append":
        snapshots |= _OF_UPSERTS[upserts]
    if options.keep_snapshots == "all":
        snapshots.clear()
    files = {} if options.keep_metadata_files == "all" else _FILES
    # The property says how upserts change rows; tables of format version 1 have no delete files.
    mode = {MERGE_MODE: upserts} if has_deletes else {}
    own = {**snapshots, **files, **mode}
    return {key: text for key, text in own.items() if key not in options.table_properties}


def find_metadata_properties(
    options: IcebergSinkOptions, properties: Mapping[str, str]
) -> dict[str, str]:
    """Return the properties that `keepMetadataFiles` changes on a table."""
    keep = options.keep_metadata_files
    wanted = {} if keep is None else {_DELETES: "true", _VERSIONS: str(keep)}
    if keep == "all":
        wanted = {_DELETES: "false"} if _is_bounded(properties) else {}
    return {} if wanted.items() <= properties.items() else wanted


def _is_bounded(properties: Mapping[str, str]) -> bool:
    """Return True if commits delete older metadata files."""
    return properties.get(_DELETES, "false").lower() == "true"


def warn_of_growth(table: Table, options: IcebergSinkOptions) -> None:
    """Warn once in a process if the metadata of a table grows without limit. Planner.

    Raises:
        OptionError: If a property of the table is no number.
    """
    found = table.metadata.properties
    properties = {**found, **find_metadata_properties(options, found)}
    growing = []
    if Retention.of(options, properties) is None and options.keep_snapshots != "all":
        growing.append("snapshots: set 'keepSnapshots' or 'expireOlderThan'")
    if not _is_bounded(properties) and options.keep_metadata_files != "all":
        growing.append("metadata files: set 'keepMetadataFiles'")
    uuid = str(table.metadata.table_uuid)
    if growing:
        warn_once(
            _log,
            uuid,
            "%s: with each epoch, table %s permanently keeps more of its %s; 'all' keeps them "
            "without this warning",
            FORMAT,
            options.table_name,
            ", and of its ".join(growing),
        )


def warn_of_refused_properties(
    table: Table, options: IcebergSinkOptions, omitted: Sequence[str], error: Exception
) -> None:
    """Warn that a new table was created without some of the sink's own properties. Planner.

    Args:
        table: The new table. No warning of growth follows in this process.
        options: Options of the sink.
        omitted: The properties that it does not have.
        error: The refusal of the catalog.
    """
    is_bounded = Retention.of(options, table.metadata.properties) is not None
    advice = (
        "Set 'upsertMode' to choose how upserts change rows"
        if is_bounded
        else "Unless the catalog expires snapshots and old metadata files, set 'keepSnapshots' or "
        "'expireOlderThan'"
    )
    why = excerpt(str(error), options.secrets())
    warn_once(
        _log,
        str(table.metadata.table_uuid),
        "%s: the catalog refuses properties that the sink gives a new table, so table %s was "
        "created without them (%s): %s. %s",
        FORMAT,
        options.table_name,
        ", ".join(omitted),
        why,
        advice,
    )


def _commit_order(snapshot: Snapshot) -> int:
    # Version 1 has no sequence numbers: its metadata lists snapshots in the order of commits.
    return snapshot.sequence_number or 0


def _parse_number(properties: Mapping[str, str], name: str) -> int:
    number = parse_count(properties[name])
    if number is None:
        raise OptionError(
            f"{FORMAT}: table property {name!r} is {properties[name]!r}: it must be a number"
        )
    return number


def expire_with_commit(transaction: EpochTransaction, options: IcebergSinkOptions) -> None:
    """Add the expiry of snapshots, and the properties of the options, to a commit."""
    metadata = transaction.table_metadata
    retention = Retention.of(options, metadata.properties)
    if not (transaction.may_expire or options.expires_snapshots):
        retention = None
    expired = (
        [] if retention is None else retention.find_expired(metadata, get_aging_time_ms(metadata))
    )
    if expired and (expired := _exclude_named(expired, transaction, options)):
        transaction.stage(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": expired}))
        transaction.expires = True
    if wanted := find_metadata_properties(options, metadata.properties):
        transaction.set_properties(wanted)


def _exclude_named(
    expired: list[int], transaction: EpochTransaction, options: IcebergSinkOptions
) -> list[int]:
    """Return the snapshots that got no branch or tag since the table was loaded.

    A catalog that protects names checks them itself. With any other, the table is loaded again: a
    snapshot that gets its name between that and the commit, a moment later, is lost.
    """
    if isinstance(transaction.table.catalog, GuardedMetastoreCatalog):
        return expired
    try:
        named = set(find_named_ids(open_table(options).metadata))
    except KrishivError:
        return []  # the next commit expires them, and this one reports the error
    return [number for number in expired if number not in named]


def delete_expired_files(table: Table, before: TableMetadata) -> None:
    """Delete files that only expired snapshots named; best effort, the rest is for vacuum.

    Only the table's own files are deleted, and only if the sink expires the table.

    Args:
        table: The table after the commit.
        before: Its metadata before the commit.
    """
    try:
        after = table.metadata
        if is_extension(after.snapshots, before.snapshots):
            return  # the usual case, of catalogs whose client writes the metadata
        there = {snapshot.snapshot_id for snapshot in after.snapshots}
        expired = [one for one in before.snapshots if one.snapshot_id not in there]
        if expired and is_expired_by_sink(after.properties) and not has_other_history(table):
            with redact_errors(table.io, "delete files of expired snapshots"):
                own = OwnFiles.from_metadata(after, get_guarded_io(table))
                own.delete(set(_find_unused_files(table, before, expired)))
    except Exception as error:  # noqa: BLE001  the epoch is committed, whatever fails here
        shown = scrub(error)
        _log.warning("files of expired snapshots remain for vacuum to remove", exc_info=shown)


def _find_unused_files(
    table: Table, before: TableMetadata, expired: list[Snapshot]
) -> Iterator[str]:
    """Return the files of expired snapshots that no remaining snapshot can name.

    A manifest that a snapshot does not list is in no list of its descendants. So a manifest is
    unused if neither the oldest remaining snapshot of the main branch lists it, nor any snapshot
    outside that branch.
    """
    line = _get_main_branch(table.metadata)
    on_line = {snapshot.snapshot_id for snapshot in line}
    others = [one for one in table.metadata.snapshots if one.snapshot_id not in on_line]
    if not line or len(others) > _MAX_OTHERS:
        return
    listed = {path for one in (line[-1], *others) for path in _paths(one.manifests(table.io))}
    were_on_line = {snapshot.snapshot_id for snapshot in _get_main_branch(before)}
    latest_ms = get_aging_time_ms(before) - _READING_MS
    for snapshot in expired:
        if snapshot.snapshot_id in were_on_line and snapshot.timestamp_ms <= latest_ms:
            manifests = snapshot.manifests(table.io)
            # Another branch, or a tag, may still have a file that this snapshot removed.
            if not others:
                yield from _find_removed_files(table, snapshot, manifests)
            yield from (path for path in _paths(manifests) if path not in listed)
            yield snapshot.manifest_list


def _get_main_branch(metadata: TableMetadata) -> list[Snapshot]:
    """Return the snapshots of the main branch, newest first."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    found = metadata.refs.get(MAIN_BRANCH)
    return list(iterate_ancestors(by_id, None if found is None else found.snapshot_id))


def _find_removed_files(
    table: Table, snapshot: Snapshot, manifests: list[ManifestFile]
) -> Iterator[str]:
    """Return the data files that a snapshot removed: only its ancestors have them, also expired."""
    for manifest in manifests:
        if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.deleted_files_count:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                if entry.status == ManifestEntryStatus.DELETED:
                    yield entry.data_file.file_path


def _paths(manifests: list[ManifestFile]) -> list[str]:
    return [manifest.manifest_path for manifest in manifests]
