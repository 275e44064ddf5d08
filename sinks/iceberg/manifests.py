"""The snapshot of an epoch, with a bounded number of manifests, at the same cost for every commit.

PyIceberg merges all small manifests into one whenever there are a hundred: each of these merges
reads and writes every file that was added before, and so commits grow slower. Here only manifests
of like size are merged, as in a log-structured merge tree: a file's entry is rewritten once for
each power of `_FANOUT`.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyiceberg.manifest import (
    UNASSIGNED_SEQ,
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
)
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import KeyDefaultDict

from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg._pyiceberg import MergeAppend, copy_manifest, merge_manifests
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.own_files import create_metadata_uuid
from krishiv_spark.iceberg.planning import count_listed_files
from krishiv_spark.runtime.lru import LruCache
from krishiv_spark.sinks.iceberg.avro import manifest_writer

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table.update import UpdatesAndRequirements

    from krishiv_spark.sinks.iceberg.transaction import EpochTransaction

__all__ = ["EpochSnapshot"]

_FANOUT = 8


class EpochSnapshot(MergeAppend):
    """A snapshot that adds files, and takes others out.

    Args:
        transaction: What it belongs to.
        summary: For its snapshot.
        removed: Files that are in the table and go.
        merge: Whether manifests of like size are merged.
    """

    def __init__(
        self,
        transaction: EpochTransaction,
        summary: dict[str, str],
        removed: Iterable[DataFile] = (),
        *,
        merge: bool,
    ) -> None:
        gone = list(removed)
        operation = Operation.OVERWRITE if gone else Operation.APPEND
        io = transaction.table.io
        uuid = create_metadata_uuid(transaction.table_metadata.table_uuid)
        super().__init__(operation, transaction, io, commit_uuid=uuid, snapshot_properties=summary)
        self._merge_enabled = merge
        for file in gone:
            self.delete_data_file(file)

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        """PyIceberg's, with what it needs made once for all manifests of a table."""
        metadata, output = self._transaction.table_metadata, self.new_manifest_output()
        return manifest_writer(metadata, spec, output, self._snapshot_id, self._compression)

    def _manifests(self) -> list[ManifestFile]:
        # Without PyIceberg's threads: to wait for them takes longer than what they do.
        removed: list[ManifestEntry] = []
        kept = list(self._kept(removed))
        made = [*self._process_manifests([*self._added(), *kept]), *self._removing(removed)]
        self._remove_merged({manifest.manifest_path for manifest in made})
        self._listed = [self._numbered(manifest) for manifest in made]
        return made

    def _commit(self) -> UpdatesAndRequirements:
        made = super()._commit()
        # By the path, which only this list has: another table may claim the id of a snapshot. Of an
        # attempt that fails, no table names it.
        _LISTS.put(self._written_manifest_lists[-1], self._listed)
        return made

    def _remove_merged(self, listed: set[str]) -> None:
        """Remove manifests that were written for this snapshot, and merged before it lists them."""
        for path in [path for path in self._written_manifests if path not in listed]:
            self._written_manifests.remove(path)
            with contextlib.suppress(Exception):  # best effort: vacuum finds it
                self._io.delete(path)

    def _existing_manifests(self) -> list[ManifestFile]:
        """Those of the parent that name files which are in the table.

        What others name, as `_removing` has written it, tells what their own snapshot did.
        """
        snapshots = reversed(self._transaction.table_metadata.snapshots)  # it is nearly the newest
        parent = (one for one in snapshots if one.snapshot_id == self._parent_snapshot_id)
        known = next((_LISTS.get(one.manifest_list) for one in parent), None)
        there = super()._existing_manifests() if known is None else known
        return [one for one in there if one.has_added_files() or one.has_existing_files()]

    def _kept(self, removed: list[ManifestEntry]) -> Iterator[ManifestFile]:
        """The manifests of the parent without the files that go, whose entries are collected."""
        paths = {file.file_path for file in self._deleted_data_files}
        if paths:
            self._build_delete_files_partition_predicate()
        may_have = KeyDefaultDict(self._build_manifest_evaluator)
        for manifest in self._existing_manifests():
            is_data = manifest.content is ManifestContent.DATA
            if (
                len(removed) < len(paths)
                and is_data
                and may_have[manifest.partition_spec_id](manifest)
            ):
                yield from self._without(manifest, paths, removed)
            else:
                yield manifest
        if len(removed) < len(paths):
            gone = ", ".join(sorted(paths - {entry.data_file.file_path for entry in removed}))
            raise CommitRejected(
                f"{FORMAT}: the table does not have the files to be removed: {gone}"
            )

    def _without(
        self, manifest: ManifestFile, paths: set[str], removed: list[ManifestEntry]
    ) -> Iterator[ManifestFile]:
        """A manifest without the files of some paths; nothing if it has no others."""
        entries = self.fetch_manifest_entry(manifest)
        gone = [entry for entry in entries if entry.data_file.file_path in paths]
        removed += gone
        if not gone:
            yield manifest
        elif len(gone) < len(entries):
            with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
                for entry in entries:
                    if entry.data_file.file_path not in paths:
                        writer.existing(entry)
            yield writer.to_manifest_file()

    def _removing(self, removed: Sequence[ManifestEntry]) -> Iterator[ManifestFile]:
        """What tells readers of changes which files went; the next snapshot lists it no more."""
        by_spec: dict[int, list[ManifestEntry]] = defaultdict(list)
        for entry in removed:
            by_spec[entry.data_file.spec_id].append(entry)
        for spec_id, entries in by_spec.items():
            with self.new_manifest_writer(self.spec(spec_id)) as writer:
                for entry in entries:
                    writer.delete(entry)
            yield writer.to_manifest_file()

    def _numbered(self, manifest: ManifestFile) -> ManifestFile:
        """The manifest as it will be read from the snapshot's list."""
        if manifest.sequence_number != UNASSIGNED_SEQ:
            return manifest
        numbered = copy_manifest(manifest)
        # If the catalog takes the snapshot, it is that; otherwise nobody reads this.
        numbered.sequence_number = self._transaction.table_metadata.next_sequence_number()
        if numbered.min_sequence_number == UNASSIGNED_SEQ:
            numbered.min_sequence_number = numbered.sequence_number
        return numbered

    def _added(self) -> Iterator[ManifestFile]:
        if not self._added_data_files:  # only the epoch's mark
            return
        with self.new_manifest_writer(spec=self._transaction.table_metadata.spec()) as writer:
            for file in self._added_data_files:
                added = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self._snapshot_id,
                    sequence_number=None,  # readers inherit both from the manifest's own
                    file_sequence_number=None,
                    data_file=file,
                )
                writer.add(added)
        made = writer.to_manifest_file()
        _FILES.put(made.manifest_path, self._added_data_files)
        yield made

    def fetch_manifest_entry(
        self,
        manifest: ManifestFile,
        discard_deleted: bool = True,  # noqa: FBT002  PyIceberg's signature
    ) -> list[ManifestEntry]:
        """The entries of a manifest; without reading it again, if this process wrote it lately."""
        files = _FILES.get(manifest.manifest_path)
        if files is None:
            return super().fetch_manifest_entry(manifest, discard_deleted)
        for file in files:
            file.spec_id = manifest.partition_spec_id  # as PyIceberg does for those that it reads
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
        tiers: dict[tuple[int, int], list[ManifestFile]] = defaultdict(list)
        rest: list[ManifestFile] = []
        for manifest in manifests:
            tier = self._tier(manifest)
            (rest if tier is None else tiers[manifest.partition_spec_id, tier]).append(manifest)
        while full := [key for key, tier in tiers.items() if len(tier) >= _FANOUT]:
            # The lowest first: what comes of it may fill the next one.
            self._promote(tiers, min(full, key=lambda key: key[1]))
        return [*(manifest for tier in tiers.values() for manifest in tier), *rest]

    def _promote(
        self, tiers: dict[tuple[int, int], list[ManifestFile]], key: tuple[int, int]
    ) -> None:
        """Merge a whole tier into one manifest of the next."""
        merged = self._merged(tiers.pop(key))
        spec_id, tier = key
        tiers[spec_id, max(tier + 1, self._tier(merged) or 0)].append(merged)

    def _merged(self, manifests: Sequence[ManifestFile]) -> ManifestFile:
        return merge_manifests(self, manifests, self._target_size_bytes)

    def _tier(self, manifest: ManifestFile) -> int | None:
        """How often a manifest of its size has been merged; None if it is left as it is."""
        if manifest.content is not ManifestContent.DATA:
            return None
        if manifest.manifest_length >= self._target_size_bytes:
            return None
        return _whole_log(count_listed_files(manifest))


_FILES: LruCache[str, Sequence[DataFile]] = LruCache(8 * _FANOUT)
"""By path, the files of manifests of this process that no merge has taken yet."""

_LISTS: LruCache[str, list[ManifestFile]] = LruCache(8)
"""By the path of a list of manifests, those that this process has put into it."""


def _whole_log(number: int) -> int:
    """The whole part of a logarithm to the base of the fan-out; 0 for numbers below it."""
    power = 0
    while number >= _FANOUT:
        number //= _FANOUT
        power += 1
    return power
