"""The change that one epoch makes to the files of a table. Driver.

An `EpochUpdate` is created once for an epoch, from the files that its tasks have staged. Each
attempt to commit the epoch asks it for the `SnapshotChanges` against the table of that attempt,
so that an update is rebased on the commits of other writers. `EpochCommit` commits the result.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg._pyiceberg import get_parent_ids
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.runtime.retry import map_in_parallel
from krishiv_spark.sinks.iceberg.task_table import StagedDataFiles
from krishiv_spark.storage.paths import url_scheme

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from krishiv_spark.sinks.iceberg.upserts.upsert_staging import UpsertSpec

__all__ = [
    "Append",
    "EpochMode",
    "EpochUpdate",
    "Replace",
    "SnapshotChanges",
    "check_fits",
    "check_staged_exist",
    "list_files",
]

_DISK = {None, "file"}
"""Schemes of paths that may be a different folder on each machine."""

_NEWEST_VERSION = 2

_OLD_S = 600.0
"""Age from which staged files in a store are checked before a commit. A vacuum deletes only files
older than its guard age, and no sensible guard age is shorter."""


@dataclass(frozen=True)
class EpochMode:
    """The effect of a query's epochs on existing rows; by default, epochs only add rows.

    Attributes:
        upsert_spec: How rows replace and delete others; None if they do not.
        replaces: Whether each epoch replaces all rows of the table.
    """

    upsert_spec: UpsertSpec | None = None
    replaces: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row of the table; empty if epochs only add or replace."""
        return () if self.upsert_spec is None else self.upsert_spec.identity


@dataclass(frozen=True)
class SnapshotChanges:
    """The files that one snapshot adds to a table, and those that it removes from it.

    Attributes:
        added: Data files, durable and in no manifest of the table.
        removed: Data files and delete files of the table.
        deletes: Files that delete rows of data files by their positions, durable and in no manifest
            of the table; each has the partition spec of its data files.
        summary: Further entries of the snapshot's summary.
    """

    added: Sequence[DataFile]
    removed: Sequence[DataFile] = ()
    deletes: Sequence[DataFile] = ()
    summary: Mapping[str, str] = field(default_factory=dict)


class EpochUpdate(ABC):
    """The change of one epoch, used for all attempts to commit it.

    Args:
        staged: The files that tasks have staged.
    """

    def __init__(self, staged: Sequence[StagedDataFiles]) -> None:
        self.staged = staged

    @abstractmethod
    def plan(self, table: Table) -> SnapshotChanges:
        """Return the file changes against the table of one attempt.

        Called for each attempt. Work of earlier attempts may be reused where the table has not
        changed since.

        Raises:
            CommitRejected: If the epoch does not fit this table.
        """

    def delete_written(self, *, is_committed: bool) -> None:
        """Delete files that `plan` wrote and that are not in the table; staged files remain.

        Args:
            is_committed: Whether the last planned changes are in the table: their files remain.
        """
        del is_committed  # by default, `plan` writes no files

    def delete_staged(self, io: FileIO) -> None:
        """Delete staged files that the table does not need after the commit."""
        del io  # by default, the table contains all of them


class Append(EpochUpdate):
    """An epoch that adds the staged files."""

    def plan(self, table: Table) -> SnapshotChanges:
        """Return the staged files as added ones."""
        check_fits(self.staged, table.metadata)
        return SnapshotChanges(_data_files(self.staged))


class Replace(EpochUpdate):
    """An epoch that replaces all files of the table by the staged ones."""

    def plan(self, table: Table) -> SnapshotChanges:
        """Return the staged files as added ones, and those of the table as removed ones."""
        check_fits(self.staged, table.metadata)
        return SnapshotChanges(_data_files(self.staged), list_files(table))


def list_files(table: Table) -> list[DataFile]:
    """Return all data files and delete files of a table."""
    from krishiv_spark.sinks.iceberg.upserts.replaced_rows import plan_data_files

    found = (file for task in plan_data_files(table) for file in (task.file, *task.delete_files))
    return list(dict.fromkeys(found))


def check_fits(staged: Sequence[StagedDataFiles], metadata: TableMetadata) -> None:
    """Refuse files that were written for another table, other partitions, or other columns.

    PyIceberg writes them into a manifest of the table's current spec without a check, and readers
    that prune by partition then do not find their rows.

    Raises:
        CommitRejected: If there is such a file, or one is named twice; or the table was upgraded
            to a format version whose delete files and manifests this sink does not write.
    """
    if metadata.format_version > _NEWEST_VERSION:
        raise CommitRejected(
            f"{FORMAT}: the table was upgraded to format version {metadata.format_version} while "
            f"its epoch was written, and PyIceberg writes versions 1 and {_NEWEST_VERSION} only. "
            "Nothing of the epoch is visible. Continue with an engine that writes this version, or "
            "with a new table of an older one"
        )
    _check_distinct(staged)
    for item in staged:
        if item.table != str(metadata.table_uuid):
            raise CommitRejected(
                f"{FORMAT}: the table was recreated while its epoch was written (UUID "
                f"{metadata.table_uuid}, was {item.table}): restart the query, which writes the "
                "epoch into the new table"
            )
        if item.spec_id != metadata.default_spec_id:
            raise CommitRejected(
                f"{FORMAT}: the table's partitions were changed while its epoch was written (spec "
                f"{metadata.default_spec_id}, was {item.spec_id}): restart the query, which "
                "writes the epoch again"
            )
        if item.changes and not _has_columns(metadata, item.schema_id):
            raise CommitRejected(
                f"{FORMAT}: columns of the table were renamed or dropped while its epoch was "
                "written: restart the query, which writes the epoch again"
            )
        if item.files:
            _check_columns(metadata, item.schema_id)


def _check_distinct(staged: Sequence[StagedDataFiles]) -> None:
    """Refuse a file that two task messages name: its rows would be in the table twice.

    Raises:
        CommitRejected: If there is such a file.
    """
    seen: set[str] = set()
    for path in (path for item in staged for path in item.paths):
        if path in seen:
            raise CommitRejected(
                f"{FORMAT}: {path} was reported twice as a task's output, and its rows would be in "
                "the table twice. Nothing was committed: restart the query, which writes the epoch "
                "again"
            )
        seen.add(path)


def _check_columns(metadata: TableMetadata, schema_id: int | None) -> None:
    """Refuse data files that lack a required column of the table, or have a dropped one.

    Readers find columns by their field ids, so a column may be renamed, and others may be added.

    Raises:
        CommitRejected: If a column was dropped (even if it was recreated) or became required.
    """
    if schema_id in {None, metadata.current_schema_id}:
        return
    older = _schema_of(metadata, schema_id)
    changed = "columns were changed" if older is None else _find_misfit(older, metadata.schema())
    if changed is not None:
        raise CommitRejected(
            f"{FORMAT}: the table's {changed} while its epoch was written: restart the query, "
            "which writes the epoch again"
        )


def _find_misfit(older: Schema, now: Schema) -> str | None:
    """Describe the column change by which files of an older schema do not fit, or return None."""
    for number in older.field_ids - now.field_ids:
        return f"column {older.find_column_name(number)!r} was dropped (or dropped and recreated)"
    around = get_parent_ids(now)
    for number in now.field_ids:
        # A field inside a new optional column is null together with that column.
        is_new_inside = number in around and around[number] not in older.field_ids
        if not now.find_field(number).required or is_new_inside:
            continue
        if number not in older.field_ids or not older.find_field(number).required:
            return f"column {now.find_column_name(number)!r} was made required"
    return None


def _schema_of(metadata: TableMetadata, schema_id: int | None) -> Schema | None:
    return next((one for one in metadata.schemas if one.schema_id == schema_id), None)


def _has_columns(metadata: TableMetadata, schema_id: int | None) -> bool:
    """Return True if every column of an older schema still has its name.

    Staged changes of upserts are read by column names, not by field ids.
    """
    older = _schema_of(metadata, schema_id)
    if older is None:
        return False
    now = metadata.schema()
    ids = older.field_ids
    return all(now.find_column_name(one) == older.find_column_name(one) for one in ids)


def _data_files(staged: Sequence[StagedDataFiles]) -> list[DataFile]:
    return [file for item in staged for file in item.files]


def check_staged_exist(
    io: FileIO, staged: Sequence[StagedDataFiles], *, has_intent: bool = False
) -> None:
    """Check that the driver can access the staged files.

    Files that tasks wrote to a disk may be on another machine. In a store, only files that were
    staged long ago are checked: during a long epoch or a pause of the driver, a vacuum may have
    deleted them.

    Args:
        io: Accesses the files.
        staged: The files.
        has_intent: True if an intent in an epoch log names the files.

    Raises:
        CommitRejected: If a file does not exist: the snapshot would name a file that no reader
            finds.
    """
    paths = [(path, item) for item in staged for path in item.paths]
    on_disk = (path for path, _ in paths if url_scheme(path) in _DISK)
    old = [path for path, item in paths if url_scheme(path) not in _DISK and _is_old(item)]

    def exists(path: str) -> bool:
        return bool(io.new_input(path).exists())

    missing = next((path for path in on_disk if not exists(path)), None)
    if missing is None:
        found = map_in_parallel(exists, old)
        missing = next((path for path, there in zip(old, found, strict=True) if not there), None)
    if missing is not None:
        raise CommitRejected(_describe_missing(missing, has_intent=has_intent))


def _describe_missing(path: str, *, has_intent: bool) -> str:
    if has_intent:
        return (
            f"the driver cannot find {path}, which the intent names, so the table was not "
            "changed. Put the file back; if it is lost, 'krishiv-spark log resolve --assume "
            "aborted' writes the epoch again"
        )
    return (
        f"{FORMAT}: the driver cannot find {path}, which a task has written. Nothing of "
        "the epoch is visible. 'warehouse' must be a folder that all machines share, or in "
        "a store. If 'krishiv-spark iceberg vacuum' ran meanwhile, its --older-than was "
        "shorter than the epoch: restart the query, which writes the epoch again"
    )


def _is_old(item: StagedDataFiles) -> bool:
    """Return True if a vacuum may have deleted the files as orphans."""
    return time.time() - item.at_s > _OLD_S
