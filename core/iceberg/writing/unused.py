"""Removing data files that were staged, when it is certain that no snapshot names them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from krishiv_spark.iceberg.catalogs import open_table

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

    from krishiv_spark.iceberg.writing.options import IcebergSinkOptions

__all__ = ["manifests_of", "named_files", "remove_unused"]


def remove_unused(options: IcebergSinkOptions, paths: Sequence[str]) -> None:
    """Remove files, but those that a snapshot names: a commit may have happened after all.

    Raises:
        OptionError, CatalogFailedError: If the table cannot be asked; then nothing is removed.
    """
    if not paths:
        return
    table = open_table(options)
    wanted = set(paths)
    for path in wanted - {path for path in named_files(table) if path in wanted}:
        with contextlib.suppress(OSError):  # it is gone already
            table.io.delete(path)


def named_files(table: Table) -> Iterator[str]:
    """Every data and delete file that any snapshot of a table names."""
    for manifest in manifests_of(table):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file.file_path


def manifests_of(table: Table) -> Iterator[ManifestFile]:
    """Every manifest of every snapshot, each once."""
    seen: set[str] = set()
    for snapshot in reversed(table.metadata.snapshots):
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest
