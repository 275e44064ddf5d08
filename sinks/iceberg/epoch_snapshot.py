"""The snapshot of an epoch: its manifests, and the transaction that sends it. Driver.

A commit costs the same however many snapshots and files a table has. PyIceberg merges all small
manifests into one whenever there are a hundred: each merge reads and writes the entries of all
earlier files, so commits become slower. Here only manifests of similar size are merged, as
in a log-structured merge tree: the entry of a file is rewritten once for each power of `_FANOUT`.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.expressions.visitors import manifest_evaluator
from pyiceberg.manifest import (
    UNASSIGNED_SEQ,
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
)
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.snapshots import (
    Operation,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import AssertCurrentSchemaId, AssertTableUUID
from pyiceberg.typedef import KeyDefaultDict

from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg._pyiceberg import (
    MergeAppend,
    commit_once,
    copy_manifest,
    remove_written,
)
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.own_files import create_metadata_uuid
from krishiv_spark.iceberg.planning import count_listed_files
from krishiv_spark.iceberg.property_keys import SnapshotIndex
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.iceberg.manifest_writers import (
    NO_SNAPSHOT,
    WrittenManifests,
    create_manifest_writer,
)
from krishiv_spark.sinks.iceberg.table_schema import get_manifest_schema

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate, UpdatesAndRequirements

    from krishiv_spark.sinks.iceberg.epoch_updates import SnapshotChanges

__all__ = [
    "EpochSnapshot",
    "EpochTransaction",
]

_FANOUT = 8
"""Manifests of one size that are merged; a file's entry is rewritten log8(n) times."""

_NO_PROPERTIES: Mapping[str, str] = {}

_FILES: LruCache[str, Sequence[DataFile]] = LruCache(8 * _FANOUT)
"""The files of manifests that this process has written and not merged yet, by path."""

_LISTS: LruCache[str, list[ManifestFile]] = LruCache(8)
"""The manifests of lists that this process has written, by path of the list."""


class EpochTransaction(Transaction):
    """A transaction that is sent once; `compare_and_set` is the only request of a commit.

    PyIceberg's own transaction computes the resulting table about eighteen times for a commit, with
    a deep copy of every snapshot: nine tenths of the cost of a commit. One snapshot needs only the
    current table.
    """

    may_expire = True
    """True if the table's own properties may expire snapshots with the commit."""
    expires = False
    """True if they do."""
    skipped = 0
    """Number of sequence numbers that the snapshot leaves out. See `LostRaces`."""
    written: WrittenManifests | None = None
    """The manifests of earlier attempts of the commit; None if it has no other attempts."""

    @property
    def table(self) -> Table:
        """The table as it was when the transaction started."""
        return self._table

    @property
    def table_metadata(self) -> TableMetadata:
        """The current metadata, without the staged updates.

        Its last sequence number includes those that the snapshot leaves out.
        """
        metadata = self._table.metadata
        if not self.skipped or metadata.format_version == 1:
            return metadata
        newest = metadata.last_sequence_number + self.skipped
        return metadata.model_copy(update={"last_sequence_number": newest})

    @property
    def producer(self) -> EpochSnapshot:
        """The producer of the staged snapshot, with the paths of the files that it wrote."""
        (producer,) = self._snapshot_producers
        assert isinstance(producer, EpochSnapshot)
        return producer

    def stage(self, update: TableUpdate) -> None:
        """Add an update to the commit."""
        self._stage((update,))

    def require(self, requirement: TableRequirement) -> None:
        """Add a requirement that the catalog checks before it accepts the updates."""
        self._stage((), (requirement,))

    def compare_and_set(self) -> None:
        """Ask the catalog once to accept the updates if the table still meets the requirements.

        Raises:
            CommitFailedException: If it does not: another commit was faster.
        """
        # The branch alone does not detect a recreated table that is as empty as this one was.
        metadata = self._table.metadata
        same_table = AssertTableUUID(uuid=metadata.table_uuid)
        # A column could be dropped and recreated after the files were compared with it.
        same_columns = AssertCurrentSchemaId.model_validate(
            {"current-schema-id": metadata.current_schema_id}
        )
        requirements = (*self._requirements, same_table, same_columns)
        commit_once(self._table, self._updates, requirements)


class EpochSnapshot(MergeAppend):
    """A snapshot that adds data files and delete files, and removes data files.

    Args:
        transaction: The transaction of the commit.
        summary: Entries of the snapshot's summary.
        changes: The files.
        merge: Whether manifests of similar size are merged.
        operation: The operation of the snapshot; None derives it from the changes.
    """

    def __init__(
        self,
        transaction: EpochTransaction,
        summary: dict[str, str],
        changes: SnapshotChanges,
        *,
        merge: bool,
        operation: Operation | None = None,
    ) -> None:
        operation = operation or _choose_operation(changes)
        io = transaction.table.io
        uuid = create_metadata_uuid(transaction.table_metadata.table_uuid)
        super().__init__(operation, transaction, io, commit_uuid=uuid, snapshot_properties=summary)
        self._merge_enabled = merge
        self._is_shared = transaction.written is not None
        self._made = transaction.written or WrittenManifests()
        if self._made.snapshot_id is None:
            self._made.snapshot_id = self._snapshot_id
        self._snapshot_id = self._made.snapshot_id
        self._deletes = changes.deletes
        for file in changes.added:
            self.append_data_file(file)
        for file in changes.removed:
            self.delete_data_file(file)

    @property
    def listed_paths(self) -> list[str]:
        """The paths of the snapshot's list and manifests, once they are written."""
        return [*self._written_manifest_lists, *(one.manifest_path for one in self._listed)]

    @property
    def list_path(self) -> str:
        """The path of the snapshot's list of manifests, once it is written."""
        return self._written_manifest_lists[-1]

    @staticmethod
    def delete_unlisted(attempts: Iterable[EpochSnapshot], keep: Iterable[EpochSnapshot]) -> None:
        """Delete the manifests and lists of attempts, except for those that other attempts name.

        Args:
            attempts: All attempts of a commit.
            keep: The attempts that are in the table, or may be.
        """
        listed = frozenset(path for one in keep for path in one.listed_paths)
        for one in attempts:
            remove_written(one, listed)

    def _get_manifest(
        self, content: tuple[Hashable, ...], write: Callable[[], ManifestFile]
    ) -> ManifestFile:
        """Return a manifest of this or an earlier attempt; see `WrittenManifests.get`."""
        schema_id = self._transaction.table_metadata.current_schema_id
        return self._made.get((schema_id, *content), write)

    def new_manifest_writer(
        self, spec: PartitionSpec, content: ManifestContent = ManifestContent.DATA
    ) -> ManifestWriter:
        """Return PyIceberg's writer of manifests, with a cached schema and header."""
        metadata, output = self._transaction.table_metadata, self.new_manifest_output()
        return create_manifest_writer(metadata, spec, output, self._snapshot_id, content)

    def _summary(self, snapshot_properties: Mapping[str, str] = _NO_PROPERTIES) -> Summary:
        # PyIceberg's own counts no delete files, and takes all added files for those of the newest
        # partition spec: partition values of another one would be counted under wrong names.
        metadata = self._transaction.table_metadata
        specs = metadata.specs()
        schemas: dict[int, Schema] = KeyDefaultDict(
            lambda spec_id: get_manifest_schema(metadata, specs[spec_id])
        )
        limit = metadata.properties.get(TableProperties.WRITE_PARTITION_SUMMARY_LIMIT, "0")
        counts = SnapshotSummaryCollector(partition_summary_limit=int(limit))
        for file in (*self._added_data_files, *self._deletes):
            counts.add_file(file, schemas[file.spec_id], specs[file.spec_id])
        for file in self._deleted_data_files:
            counts.remove_file(file, schemas[file.spec_id], specs[file.spec_id])
        parent = SnapshotIndex(metadata).get(self._parent_snapshot_id or NO_SNAPSHOT)
        before = None if parent is None else parent.summary
        # PyIceberg adds up the totals of an overwrite, and refuses those of a replacement.
        summary = Summary(operation=Operation.OVERWRITE, **counts.build(), **snapshot_properties)
        summary = update_snapshot_summaries(summary, previous_summary=before)
        return summary.model_copy(update={"operation": self._operation})

    def _manifests(self) -> list[ManifestFile]:
        # Without PyIceberg's threads: waiting for them takes longer than their work.
        removed: list[ManifestEntry] = []
        kept = list(self._retained_manifests(removed))
        made = [
            *self._process_manifests([*self._added_manifests(), *kept]),
            *self._deleted_entries_manifests(removed),
        ]
        if not self._is_shared:  # otherwise another attempt may need them
            self._delete_merged({manifest.manifest_path for manifest in made})
        self._listed = [self._with_sequence_number(manifest) for manifest in made]
        return made

    def _commit(self) -> UpdatesAndRequirements:
        made = super()._commit()
        # Cached by its unique path, since another table may claim the same snapshot id. No table
        # names the list of a failed attempt.
        _LISTS.put(self.list_path, self._listed)
        return made

    def _delete_merged(self, listed: set[str]) -> None:
        """Delete manifests that were written for this snapshot and merged before it was listed."""
        for path in [path for path in self._written_manifests if path not in listed]:
            self._written_manifests.remove(path)
            with contextlib.suppress(Exception):  # best effort: vacuum finds it
                self._io.delete(path)

    def _existing_manifests(self) -> list[ManifestFile]:
        """Return the manifests of the parent that have files of the table.

        Manifests of `_deleted_entries_manifests` have none: they describe their own snapshot only.
        """
        index = SnapshotIndex(self._transaction.table_metadata)
        parent = index.get(self._parent_snapshot_id or NO_SNAPSHOT)
        known = None if parent is None else _LISTS.get(parent.manifest_list)
        there = super()._existing_manifests() if known is None else known
        return [one for one in there if one.has_added_files() or one.has_existing_files()]

    def _retained_manifests(self, removed: list[ManifestEntry]) -> Iterator[ManifestFile]:
        """Return the manifests of the parent without the removed files.

        Args:
            removed: Receives the entries of the removed files.

        Raises:
            CommitRejected: If the table does not have a file that is to be removed.
        """
        missing_paths: dict[ManifestContent, set[str]] = defaultdict(set)
        for file in self._deleted_data_files:
            missing_paths[_content_of(file)].add(file.file_path)
        if missing_paths:
            self._build_delete_files_partition_predicate()
        may_have = KeyDefaultDict(self._build_manifest_evaluator)
        for manifest in self._existing_manifests():
            paths = missing_paths[ManifestContent(manifest.content)]
            if paths and may_have[manifest.partition_spec_id](manifest):
                before = len(removed)
                yield from self._rewrite_without(manifest, paths, removed)
                paths -= {entry.data_file.file_path for entry in removed[before:]}
            else:
                yield manifest
        if any(missing_paths.values()):
            missing = ", ".join(sorted(path for paths in missing_paths.values() for path in paths))
            raise CommitRejected(
                f"{FORMAT}: the table does not have the files to be removed: {missing}"
            )

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        """Return a function that returns False for manifests without a removed file."""
        if all(file.spec_id != spec_id for file in self._deleted_data_files):
            return lambda _: False
        spec = self.spec(spec_id)
        schema = get_manifest_schema(self._transaction.table_metadata, spec)
        return manifest_evaluator(spec, schema, self.partition_filters[spec_id])

    def _rewrite_without(
        self, manifest: ManifestFile, paths: set[str], removed: list[ManifestEntry]
    ) -> Iterator[ManifestFile]:
        """Return a manifest without the files of given paths; nothing if it has no other files."""
        entries = self.fetch_manifest_entry(manifest)
        found = [entry for entry in entries if entry.data_file.file_path in paths]
        removed += found
        if not found:
            yield manifest
        elif len(found) < len(entries):
            rest = [entry for entry in entries if entry.data_file.file_path not in paths]
            left_out = frozenset(entry.data_file.file_path for entry in found)
            yield self._get_manifest(
                ("without", manifest.manifest_path, left_out),
                lambda: self._write_rest(manifest, rest),
            )

    def _write_rest(self, manifest: ManifestFile, rest: Sequence[ManifestEntry]) -> ManifestFile:
        spec, content = self.spec(manifest.partition_spec_id), ManifestContent(manifest.content)
        with self.new_manifest_writer(spec, content) as writer:
            for entry in rest:
                writer.existing(entry)
        return writer.to_manifest_file()

    def _deleted_entries_manifests(
        self, removed: Sequence[ManifestEntry]
    ) -> Iterator[ManifestFile]:
        """Write manifests of the removed files, for readers of changes.

        The next snapshot does not list them.
        """
        groups: dict[tuple[int, ManifestContent], list[ManifestEntry]] = defaultdict(list)
        for entry in removed:
            groups[entry.data_file.spec_id, _content_of(entry.data_file)].append(entry)
        for (spec_id, content), entries in groups.items():
            paths = tuple(entry.data_file.file_path for entry in entries)
            yield self._get_manifest(
                ("removed", spec_id, content, paths),
                partial(self._write_removed, spec_id, content, entries),
            )

    def _write_removed(
        self, spec_id: int, content: ManifestContent, entries: Sequence[ManifestEntry]
    ) -> ManifestFile:
        with self.new_manifest_writer(self.spec(spec_id), content) as writer:
            for entry in entries:
                writer.delete(entry)
        return writer.to_manifest_file()

    def _with_sequence_number(self, manifest: ManifestFile) -> ManifestFile:
        """Return the manifest as it will be read from the snapshot's list."""
        if manifest.sequence_number != UNASSIGNED_SEQ:
            return manifest
        numbered = copy_manifest(manifest)
        # The number is right if the catalog accepts the snapshot; otherwise no reader finds it.
        numbered.sequence_number = self._transaction.table_metadata.next_sequence_number()
        if numbered.min_sequence_number == UNASSIGNED_SEQ:
            numbered.min_sequence_number = numbered.sequence_number
        return numbered

    def _added_manifests(self) -> Iterator[ManifestFile]:
        """Write a manifest for each kind and partition spec of the added files.

        There is none if the snapshot only records the epoch.
        """
        groups: dict[tuple[int, ManifestContent], list[DataFile]] = defaultdict(list)
        for file in (*self._added_data_files, *self._deletes):
            groups[file.spec_id, _content_of(file)].append(file)
        for (spec_id, content), files in groups.items():
            yield self._get_manifest(
                ("added", spec_id, content, tuple(file.file_path for file in files)),
                partial(self._write_added, self.spec(spec_id), content, files),
            )

    def _write_added(
        self, spec: PartitionSpec, content: ManifestContent, files: Sequence[DataFile]
    ) -> ManifestFile:
        with self.new_manifest_writer(spec, content) as writer:
            for file in files:
                added = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self._snapshot_id,
                    sequence_number=None,  # readers inherit both from the manifest
                    file_sequence_number=None,
                    data_file=file,
                )
                writer.add(added)
        made = writer.to_manifest_file()
        _FILES.put(made.manifest_path, files)
        return made

    def fetch_manifest_entry(
        self,
        manifest: ManifestFile,
        discard_deleted: bool = True,  # noqa: FBT002  PyIceberg's signature
    ) -> list[ManifestEntry]:
        """Return the entries of a manifest, from the cache if this process has just written it."""
        files = _FILES.get(manifest.manifest_path)
        if files is None:
            return super().fetch_manifest_entry(manifest, discard_deleted)
        for file in files:
            file.spec_id = manifest.partition_spec_id  # as PyIceberg does for entries that it reads
        return [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=manifest.added_snapshot_id,
                sequence_number=manifest.sequence_number,
                file_sequence_number=manifest.sequence_number,
                data_file=file,
            )
            for file in files
        ]

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        if not self._merge_enabled:
            return manifests
        tiers: dict[_Tier, list[ManifestFile]] = defaultdict(list)
        rest: list[ManifestFile] = []
        for manifest in manifests:
            level = self._level(manifest)
            if level is None:
                rest.append(manifest)
            else:
                content = ManifestContent(manifest.content)  # a number in format version 1
                tiers[_Tier(manifest.partition_spec_id, content, level)].append(manifest)
        while full := [key for key, tier in tiers.items() if len(tier) >= _FANOUT]:
            # The lowest first: its merged manifest may fill the next tier.
            self._merge_tier(tiers, min(full, key=lambda key: key.level))
        return [*(manifest for tier in tiers.values() for manifest in tier), *rest]

    def _merge_tier(self, tiers: dict[_Tier, list[ManifestFile]], key: _Tier) -> None:
        """Merge all manifests of a tier into one manifest of the next tier."""
        manifests = tiers.pop(key)
        paths = tuple(one.manifest_path for one in manifests)
        merged = self._get_manifest(("merged", paths), partial(self._merge, manifests, key))
        level = max(key.level + 1, self._level(merged) or 0)
        tiers[key._replace(level=level)].append(merged)

    def _merge(self, manifests: Sequence[ManifestFile], key: _Tier) -> ManifestFile:
        """Write one manifest with the entries of several."""
        with self.new_manifest_writer(self.spec(key.spec_id), key.content) as writer:
            for entry in (each for one in manifests for each in self.fetch_manifest_entry(one)):
                is_new = entry.snapshot_id == self._snapshot_id
                (writer.add if is_new else writer.existing)(entry)
        return writer.to_manifest_file()

    def _level(self, manifest: ManifestFile) -> int | None:
        """Return how often a manifest of this size has been merged; None if it is never merged."""
        if manifest.manifest_length >= self._target_size_bytes:
            return None
        return _floor_log(count_listed_files(manifest))


def _choose_operation(changes: SnapshotChanges) -> Operation:
    """Return the operation that Iceberg-Java gives a snapshot with such changes."""
    removes_data = any(file.content == DataFileContent.DATA for file in changes.removed)
    if changes.deletes and not (changes.added or removes_data):
        return Operation.DELETE
    return Operation.OVERWRITE if changes.deletes or changes.removed else Operation.APPEND


def _content_of(file: DataFile) -> ManifestContent:
    is_data = file.content == DataFileContent.DATA
    return ManifestContent.DATA if is_data else ManifestContent.DELETES


class _Tier(NamedTuple):
    """The common properties of manifests that are merged."""

    spec_id: int
    content: ManifestContent
    level: int


def _floor_log(number: int) -> int:
    """Return the logarithm to the base of the fan-out, rounded down; 0 for smaller numbers."""
    power = 0
    while number >= _FANOUT:
        number //= _FANOUT
        power += 1
    return power
