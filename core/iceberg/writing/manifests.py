"""Appending with a bounded number of manifests, at the same cost for every commit.

PyIceberg merges all small manifests into one whenever there are a hundred: each of these merges
reads and writes every file that was added before, and so commits grow slower. Here only manifests
of like size are merged, as in a log-structured merge tree: a file's entry is rewritten once for
each power of `_FANOUT`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
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
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _MergeAppendFiles

from krishiv_spark.iceberg.writing.avro import manifest_writer
from krishiv_spark.recent import Recent

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec

    from krishiv_spark.iceberg.writing.commits import EpochTransaction

__all__ = ["TieredAppend"]

_FANOUT = 8


class TieredAppend(_MergeAppendFiles):
    """An append that merges manifests of like size.

    Args:
        transaction: What it belongs to.
        summary: For its snapshot.
        merge: Whether to merge at all.
    """

    def __init__(
        self, transaction: EpochTransaction, summary: dict[str, str], *, merge: bool
    ) -> None:
        io = transaction._table.io  # noqa: SLF001
        super().__init__(Operation.APPEND, transaction, io, snapshot_properties=summary)
        self._merge_enabled = merge

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        """PyIceberg's, with what it needs made once for all manifests of a table."""
        metadata, output = self._transaction.table_metadata, self.new_manifest_output()
        return manifest_writer(metadata, spec, output, self._snapshot_id, self._compression)

    def _manifests(self) -> list[ManifestFile]:
        # Without PyIceberg's threads: to wait for them takes longer than what they do.
        made = self._process_manifests([*self._added(), *self._existing_manifests()])
        _LISTS.put(self._snapshot_id, [self._numbered(manifest) for manifest in made])
        return made

    def _existing_manifests(self) -> list[ManifestFile]:
        known = None if self._parent_snapshot_id is None else _LISTS.get(self._parent_snapshot_id)
        return super()._existing_manifests() if known is None else known

    def _numbered(self, manifest: ManifestFile) -> ManifestFile:
        """The manifest as it will be read from the snapshot's list."""
        if manifest.sequence_number != UNASSIGNED_SEQ:
            return manifest
        numbered = ManifestFile(*manifest._data)  # noqa: SLF001  copy() would share what is in it
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
        discard_deleted: bool = True,  # noqa: FBT002
    ) -> list[ManifestEntry]:
        """The entries of a manifest; without reading it again, if this process wrote it lately."""
        files = _FILES.get(manifest.manifest_path)
        if files is None:
            return super().fetch_manifest_entry(manifest, discard_deleted)
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
        manager = _ManifestMergeManager(
            self._target_size_bytes, _FANOUT, merge_enabled=True, snapshot_producer=self
        )
        return manager._create_manifest(manifests[0].partition_spec_id, list(manifests))  # noqa: SLF001

    def _tier(self, manifest: ManifestFile) -> int | None:
        """How often a manifest of its size has been merged; None if it is left as it is."""
        if manifest.content is not ManifestContent.DATA:
            return None
        if manifest.manifest_length >= self._target_size_bytes:
            return None
        files = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
        return _whole_log(files)


_FILES: Recent[str, Sequence[DataFile]] = Recent(8 * _FANOUT)
"""By path, the files of manifests of this process that no merge has taken yet."""

_LISTS: Recent[int, list[ManifestFile]] = Recent(8)
"""By snapshot, the manifests that this process has put into its list."""


def _whole_log(number: int) -> int:
    """The whole part of a logarithm to the base of the fan-out; 0 for numbers below it."""
    power = 0
    while number >= _FANOUT:
        number //= _FANOUT
        power += 1
    return power
