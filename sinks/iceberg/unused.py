"""Removing data files that were staged, when it is certain that no snapshot names them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.file_access import redact_errors

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
    from krishiv_spark.sinks.iceberg.target import StagedDataFiles

__all__ = ["manifests_of", "named_files", "remove_unnamed", "remove_unused"]


def remove_unused(options: IcebergSinkOptions, staged: Sequence[StagedDataFiles]) -> None:
    """Remove files, but those that a snapshot names: a commit may have happened after all.

    Raises:
        OptionError, CatalogFailedError: If the table cannot be asked; then nothing is removed.
    """
    remove_unnamed(options, {path for item in staged for path in item.paths}, staged)


def remove_unnamed(
    options: IcebergSinkOptions, wanted: set[str], staged: Sequence[StagedDataFiles]
) -> None:
    """Remove files, but those that a snapshot names.

    Args:
        options: Which table.
        wanted: Paths of the files; written after the tasks were planned.
        staged: What tasks staged for the epoch, which tells when that was.

    Raises:
        OptionError, CatalogFailedError: If the table cannot be asked; then nothing is removed.
    """
    if not wanted:
        return
    table = open_table(options)
    after = min((item.after for item in staged), default=0)
    with redact_errors(table.io, "remove staged files"):
        for path in wanted - {path for path in named_files(table, after) if path in wanted}:
            with contextlib.suppress(OSError):  # it is gone already
                table.io.delete(path)


def named_files(table: Table, after: int = 0) -> Iterator[str]:
    """Every data and delete file that snapshots of a table name. See `manifests_of`."""
    for manifest in manifests_of(table, after):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file.file_path


def manifests_of(table: Table, after: int = 0) -> Iterator[ManifestFile]:
    """Every manifest of every snapshot, each once.

    Args:
        table: Whose they are.
        after: If it is not 0, only those that were written for snapshots of a higher sequence
            number: what is added to a table is in one of these, wherever they are listed.
    """
    seen: set[str] = set()
    for snapshot in reversed(table.metadata.snapshots):
        if after and (snapshot.sequence_number or 0) <= after:
            continue
        for manifest in snapshot.manifests(table.io):
            is_later = not after or (manifest.sequence_number or 0) > after
            if is_later and manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest
