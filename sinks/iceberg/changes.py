"""What an epoch does to the table: adds files, or puts them in the place of all others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg._pyiceberg import get_parent_ids
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.property_keys import PARENT_KEY
from krishiv_spark.sinks.iceberg.expiry import tidy
from krishiv_spark.sinks.iceberg.manifests import EpochSnapshot
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.iceberg.replaceable import files_to_replace
from krishiv_spark.sinks.iceberg.target import StagedDataFiles

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

    from krishiv_spark.sinks.iceberg.transaction import EpochTransaction

__all__ = ["Append", "Replace", "check_fits", "stage_snapshot"]


@dataclass(frozen=True)
class Append:
    """Adds the staged files."""

    options: IcebergSinkOptions
    staged: Sequence[StagedDataFiles]

    def __call__(self, transaction: EpochTransaction, summary: dict[str, str]) -> None:
        """Stage one snapshot that appends. See `Change`."""
        check_fits(self.staged, transaction.table_metadata)
        stage_snapshot(transaction, summary, self.options, added=_files(self.staged))


@dataclass(frozen=True)
class Replace:
    """Puts the staged files in the place of all that is in the table, in one snapshot."""

    options: IcebergSinkOptions
    staged: Sequence[StagedDataFiles]

    def __call__(self, transaction: EpochTransaction, summary: dict[str, str]) -> None:
        """Stage one snapshot that overwrites. See `Change`."""
        check_fits(self.staged, transaction.table_metadata)
        removed = [task.file for task in files_to_replace(transaction.table)]
        added = _files(self.staged)
        stage_snapshot(transaction, summary, self.options, added=added, removed=removed)


def stage_snapshot(
    transaction: EpochTransaction,
    summary: dict[str, str],
    options: IcebergSinkOptions,
    *,
    added: Iterable[DataFile],
    removed: Iterable[DataFile] = (),
) -> None:
    """Stage the snapshot of an epoch, and what the options say about housekeeping."""
    parent = transaction.table_metadata.current_snapshot_id
    lineage = {} if parent is None else {PARENT_KEY: str(parent)}
    producer = EpochSnapshot(
        transaction, {**summary, **lineage}, removed, merge=options.merge_manifests
    )
    for file in added:
        producer.append_data_file(file)
    producer.commit()
    tidy(transaction, options)


def check_fits(staged: Sequence[StagedDataFiles], metadata: TableMetadata) -> None:
    """Refuse files that were written for another table, other partitions, or other columns.

    PyIceberg writes them into a manifest of the table's current spec without a look, and readers
    that prune by partition then do not find their rows.

    Raises:
        CommitRejected: If there is such a file, or one is named twice.
    """
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
    """Refuse a file that two messages of tasks name: its rows would be in the table twice.

    Raises:
        CommitRejected: If there is one.
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
    """Refuse data files that lack what the table needs now, or have what it lacks.

    Their columns are read by the ids of their fields: names may change, as may other columns.

    Raises:
        CommitRejected: If a column was dropped, also if it was made again, or has become required.
    """
    if schema_id in {None, metadata.current_schema_id}:
        return
    older = _schema_of(metadata, schema_id)
    changed = "columns were changed" if older is None else _misfit(older, metadata.schema())
    if changed is not None:
        raise CommitRejected(
            f"{FORMAT}: the table's {changed} while its epoch was written: restart the query, "
            "which writes the epoch again"
        )


def _misfit(older: Schema, now: Schema) -> str | None:
    """What was done to a column, so that files of an older schema do not fit; None if they do."""
    for number in older.field_ids - now.field_ids:
        return f"column {older.find_column_name(number)!r} was dropped (or dropped and recreated)"
    around = get_parent_ids(now)
    for number in now.field_ids:
        # What is inside of a new column that may be null is null with it.
        is_new_inside = number in around and around[number] not in older.field_ids
        if not now.find_field(number).required or is_new_inside:
            continue
        if number not in older.field_ids or not older.find_field(number).required:
            return f"column {now.find_column_name(number)!r} was made required"
    return None


def _schema_of(metadata: TableMetadata, schema_id: int | None) -> Schema | None:
    return next((one for one in metadata.schemas if one.schema_id == schema_id), None)


def _has_columns(metadata: TableMetadata, schema_id: int | None) -> bool:
    """Whether every column of an older schema is there by its name: changes are read by name."""
    older = _schema_of(metadata, schema_id)
    if older is None:
        return False
    now = metadata.schema()
    return all(now.find_column_name(number) == name for number, name in _names(older))


def _names(schema: Schema) -> Iterator[tuple[int, str | None]]:
    return ((number, schema.find_column_name(number)) for number in schema.field_ids)


def _files(staged: Sequence[StagedDataFiles]) -> Iterator[DataFile]:
    return (file for item in staged for file in item.files)
