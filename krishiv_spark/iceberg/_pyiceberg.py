"""What is used of PyIceberg besides its public names. Here, and nowhere else, they are touched.

Subclasses override private methods too, which cannot be done from here: the catalogs (`sqlcatalog`,
`rest`), and in `sinks.iceberg` the snapshot of an epoch (`epoch_snapshot`).
``tests/unit/test_pyiceberg.py`` names all that is relied on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import _ENV_CONFIG, Catalog
from pyiceberg.manifest import ManifestFile, _ManifestCache
from pyiceberg.table.update import (
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)
from pyiceberg.table.update.snapshot import (
    _ManifestMergeManager,
    _MergeAppendFiles,
    _SnapshotProducer,
)

from krishiv_spark.iceberg.commit_rules import order_times, raise_times, repair_times, warn_of_clock

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.avro.file import AvroOutputFile
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from krishiv_spark.iceberg.planning import DeleteFile

__all__ = [
    "ExactManifestCache",
    "MergeAppend",
    "SnapshotProducer",
    "apply_updates",
    "commit_once",
    "copy_manifest",
    "count_written_bytes",
    "get_parent_ids",
    "merge_manifests",
    "read_configured_settings",
    "read_deleted_positions",
    "remove_written",
    "to_schema_without_ids",
    "write_header",
]

# ruff: noqa: SLF001

MergeAppend = _MergeAppendFiles
"""The producer of snapshots that ``Table.append`` uses where manifests are merged."""

SnapshotProducer = _SnapshotProducer


def read_configured_settings(catalog: str) -> dict[str, Any]:
    """Settings of a catalog from PyIceberg's configuration file and its environment variables."""
    return dict(_ENV_CONFIG.get_catalog_config(catalog) or {})


class ExactManifestCache(_ManifestCache):
    """PyIceberg's cache of manifests by their paths, in which tables cannot change one another.

    The list of another table may name the same path with other counts, or as another kind.
    """

    def get_or_cache(self, manifest_file: ManifestFile) -> ManifestFile:
        """Return an object for all lists that say the same of a manifest."""
        found = super().get_or_cache(manifest_file)
        return found if found._data == manifest_file._data else manifest_file


def commit_once(
    table: Table, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...]
) -> None:
    """Ask the catalog to take updates, if the table meets requirements: no second attempt.

    A snapshot gets at least the time of the table's newest commit, see `commit_times`.
    """
    warn_of_clock(".".join(table.name()), table.metadata)
    table._do_commit(raise_times(table.metadata, updates), requirements)


def remove_written(producer: SnapshotProducer[Any]) -> None:
    """Remove the manifests and lists that were written for a snapshot which is in no table."""
    producer._clean_all_uncommitted()


def merge_manifests(
    producer: SnapshotProducer[Any], manifests: Sequence[ManifestFile], target_bytes: int
) -> ManifestFile:
    """One manifest with the entries of several, all of one partition spec.

    Args:
        producer: Of the snapshot that the new one is made for.
        manifests: The old ones; at least two.
        target_bytes: What PyIceberg's manager of merges is told of the size of manifests.
    """
    manager = _ManifestMergeManager(
        target_bytes, len(manifests), merge_enabled=True, snapshot_producer=producer
    )
    return manager._create_manifest(manifests[0].partition_spec_id, list(manifests))


def copy_manifest(manifest: ManifestFile) -> ManifestFile:
    """A manifest whose fields can be set; ``copy`` would share what is in it."""
    return ManifestFile(*manifest._data)


def write_header(file: AvroOutputFile[Any]) -> None:
    """Write what an Avro file begins with, to its encoder."""
    file._write_header()


def get_parent_ids(schema: Schema) -> dict[int, int]:
    """By the id of a field inside of a struct, list or map, the id of the field around it."""
    return schema._lazy_id_to_parent


def to_schema_without_ids(columns: pa.Schema) -> Schema:
    """Arrow's columns as PyIceberg takes them for a new table: the ids mean nothing yet."""
    return Catalog._convert_schema_if_needed(columns)


def read_deleted_positions(io: FileIO, delete: DeleteFile) -> dict[str, pa.ChunkedArray]:
    """The positions that a delete file names, by the path of their data file."""
    from pyiceberg.io.pyarrow import _read_deletes

    return _read_deletes(io, delete)  # type: ignore[arg-type]  # it has the two fields that are read


def count_written_bytes(writer: Any) -> int:
    """How much a writer of Parquet has given to its file so far; 0 before its first batch."""
    stream = writer._fos
    return 0 if stream is None else int(stream.tell())


def apply_updates(table: Table, updates: tuple[TableUpdate, ...]) -> TableMetadata:
    """PyIceberg's ``update_table_metadata`` without the deep copy of the result.

    Every update makes models and lists of its own, so that the table's metadata stays as it is.
    Times do not go back, see `commit_times`: another commit may have come since the updates were
    made.
    """
    context = _TableMetadataUpdateContext()
    before = metadata = repair_times(".".join(table.name()), table.metadata)
    for update in raise_times(before, updates):
        metadata = _apply_table_update(update, metadata, context)
    if context.has_changes():
        last_ms = before.last_updated_ms
        metadata = _update_table_metadata_log(metadata, table.metadata_location, last_ms)
        metadata = order_times(before, metadata)
    metadata.spec().check_compatible(metadata.schema())
    metadata.sort_order().check_compatible(metadata.schema())
    return metadata
