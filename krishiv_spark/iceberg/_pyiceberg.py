"""The private names of PyIceberg that this package uses. No other module imports them.

Subclasses override private methods too, which cannot be done from here: the catalogs
(`guarded_catalog`, `sql_catalog`, `rest_catalog`, `glue_catalog`), and in `sinks.iceberg` the
snapshot of an epoch (`epoch_snapshot`). ``tests/unit/test_pyiceberg.py`` names all
that is relied on.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from pyiceberg.catalog import _ENV_CONFIG, Catalog, MetastoreCatalog
from pyiceberg.manifest import ManifestFile, _ManifestCache
from pyiceberg.table.metadata import TableMetadataCommonFields
from pyiceberg.table.update import (
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _SnapshotProducer

from krishiv_spark.iceberg.commit_rules import order_times, raise_times, repair_times, warn_of_clock
from krishiv_spark.iceberg.metadata_lists import ListIntegers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.avro.file import AvroOutputFile
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
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
    "read_configured_settings",
    "read_deleted_positions",
    "remove_written",
    "search_snapshots_quickly",
    "to_schema_without_ids",
    "write_header",
    "write_metadata",
]

# ruff: noqa: SLF001

MergeAppend = _MergeAppendFiles
"""The producer of snapshots that ``Table.append`` uses where manifests are merged."""

SnapshotProducer = _SnapshotProducer

write_metadata = MetastoreCatalog._write_metadata
"""The writer of metadata files that PyIceberg's catalogs share."""


def read_configured_settings(catalog: str) -> dict[str, Any]:
    """Return a catalog's settings in PyIceberg's configuration file and environment variables."""
    return dict(_ENV_CONFIG.get_catalog_config(catalog) or {})


class ExactManifestCache(_ManifestCache):
    """A cache of manifests by path in which tables cannot change each other's manifests.

    The manifest list of another table may name the same path with other counts, or as another kind.
    """

    def get_or_cache(self, manifest_file: ManifestFile) -> ManifestFile:
        """Return one object for all lists that have the same entry for a manifest."""
        found = super().get_or_cache(manifest_file)
        return found if found._data == manifest_file._data else manifest_file


_ids = ListIntegers(attrgetter("snapshot_id"))


def search_snapshots_quickly() -> None:
    """Make PyIceberg find a snapshot by id among thousands without a look at each. Driver.

    A commit searches nine times: seven times for the newest snapshot or its parent, and twice for
    its own id, which no snapshot may have yet.
    """
    TableMetadataCommonFields.snapshot_by_id = _find_snapshot  # type: ignore[method-assign]


def _find_snapshot(self: TableMetadataCommonFields, snapshot_id: int) -> Snapshot | None:
    for newest in self.snapshots[:-3:-1]:
        if newest.snapshot_id == snapshot_id:
            return newest
    found = np.flatnonzero(_ids.get(self.location, self.snapshots) == snapshot_id)
    return self.snapshots[found[-1]] if len(found) else None


def commit_once(
    table: Table, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...]
) -> None:
    """Send one commit to the catalog, without a second attempt.

    A snapshot gets at least the time of the table's newest commit (`raise_times`).

    Args:
        table: The table, as it was loaded for these updates.
        updates: The updates.
        requirements: Conditions that the table must meet for the commit.

    Raises:
        CommitFailedException: PyIceberg's, if a requirement is not met.
    """
    warn_of_clock(".".join(table.name()), table.metadata)
    table._do_commit(raise_times(table.metadata, updates), requirements)


def remove_written(producer: SnapshotProducer[Any], listed: frozenset[str] = frozenset()) -> None:
    """Delete the manifests and lists that were written for a snapshot.

    Args:
        producer: The producer of the snapshot.
        listed: Paths that remain, since a snapshot of a table names them.
    """
    written = (producer._uncommitted_manifests, producer._written_manifests)
    for paths in (*written, producer._written_manifest_lists):
        paths[:] = [path for path in paths if path not in listed]
    producer._clean_all_uncommitted()


def copy_manifest(manifest: ManifestFile) -> ManifestFile:
    """Return a copy of a manifest whose fields can be set; ``copy`` would share its record."""
    return ManifestFile(*manifest._data)


def write_header(file: AvroOutputFile[Any]) -> None:
    """Write the header of an Avro file to its encoder."""
    file._write_header()


def get_parent_ids(schema: Schema) -> dict[int, int]:
    """Return the id of the enclosing field, by the id of each field in a struct, list or map."""
    return schema._lazy_id_to_parent


def to_schema_without_ids(columns: pa.Schema) -> Schema:
    """Convert Arrow's columns to the schema of a new table, whose field ids are placeholders."""
    return Catalog._convert_schema_if_needed(columns)


def read_deleted_positions(io: FileIO, delete: DeleteFile) -> dict[str, pa.ChunkedArray]:
    """Return the positions that a delete file names, by the path of their data file."""
    from pyiceberg.io.pyarrow import _read_deletes

    return _read_deletes(io, delete)  # type: ignore[arg-type]  # it has the two fields that are read


def count_written_bytes(writer: Any) -> int:
    """Return the bytes that a writer of Parquet has written so far; 0 before its first batch."""
    stream = writer._fos
    return 0 if stream is None else int(stream.tell())


def apply_updates(table: Table, updates: tuple[TableUpdate, ...]) -> TableMetadata:
    """Return the metadata of a table with updates, as PyIceberg's ``update_table_metadata`` does.

    The result is not a deep copy: every update creates new models and lists, so that the table's
    metadata stays unchanged. Times do not go back (`raise_times`, `order_times`): another commit
    may have come since the updates were created.
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
