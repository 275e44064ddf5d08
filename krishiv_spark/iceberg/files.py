"""The data files of a snapshot, in an order that never changes. Driver."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from krishiv_spark.iceberg.planning import Filter, PlannedFile, metadata_errors, planned_files
from krishiv_spark.iceberg.redacting import redact_errors
from krishiv_spark.runtime.lru import LruCache

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.types import NestedField

__all__ = [
    "DeleteFile",
    "SnapshotFiles",
    "TableFile",
    "table_file",
]

_log = logging.getLogger(__name__)

_REMEMBERED = 200_000
"""Files that are remembered, of the snapshots that were asked for last: those of one batch, as a
rule. Each takes half a kilobyte."""

_LARGEST_FILE = 2**40
"""Bytes; a larger one would be read whole too, by fewer tasks."""

_PER_MS = {"timestamp": 1_000, "timestamptz": 1_000}
_PER_MS |= {"timestamp_ns": 1_000_000, "timestamptz_ns": 1_000_000}
_DAY_MS = 86_400_000


class DeleteFile(NamedTuple):
    """A file that names rows of data files that are deleted; its attributes are PyIceberg's."""

    file_path: str
    file_format: Any


@dataclass(frozen=True, slots=True)
class TableFile:
    """What is known of a data file without opening it.

    Attributes:
        path: Location in the table's storage, as its metadata spells it.
        size: Of the whole file, in bytes.
        rows: Number of rows, deleted ones included.
        constants: Values by field id of columns that the file may lack, since it is partitioned
            by them; a value may be null (Iceberg spec, "Column Projection").
        deletes: Files that may name deleted rows of it.
        newest_ms: Newest event time, milliseconds since 1970 UTC; None when there is none or it is
            not known.
        unknown: Why it is not known.
    """

    path: str
    size: int
    rows: int
    constants: tuple[tuple[int, Any], ...] = ()
    deletes: tuple[DeleteFile, ...] = ()
    newest_ms: int | None = None
    unknown: str | None = None

    def paths(self) -> Iterator[str]:
        """Return the files that are opened to read its rows."""
        yield self.path
        yield from (delete.file_path for delete in self.deletes)


class SnapshotFiles:
    """Lists the files of snapshots, and remembers the latest lists.

    Args:
        event_time: Field whose newest value is looked up in the metadata; None for none.
        schema: Has the columns that filters name: those of the reader, whatever names the table
            gives its columns later, or gave them before.
    """

    def __init__(self, event_time: NestedField | None, schema: Schema) -> None:
        self._event_time = event_time
        self._schema = schema
        # Not so many lists: a batch of many snapshots would read each of their manifests twice.
        self._lists: LruCache[tuple[int, bool, bool], tuple[TableFile, ...]] = LruCache(
            _REMEMBERED, lambda files: 1 + len(files)
        )

    def of(
        self,
        table: Table,
        snapshot: Snapshot,
        *,
        scan: bool,
        row_filter: BooleanExpression | None = None,
    ) -> tuple[TableFile, ...]:
        """Files in the order of the snapshot's manifests, which never changes.

        Args:
            table: Whose snapshot it is.
            snapshot: One that the table's metadata still has.
            scan: All files that are in the table then, with their deletes; otherwise only those
                that the snapshot added.
            row_filter: Leaves out files that can have no row under it; always the same one.

        Raises:
            UnreadableError: If there are equality deletes, or files that are not Parquet.
            DataLossError: If the snapshot's metadata has been removed.
            OptionError: If the snapshot names files outside of what the options allow.
        """
        key = (snapshot.snapshot_id, scan, row_filter is not None)
        found = self._lists.get(key)
        if found is None:
            bound = None if row_filter is None else Filter(row_filter, self._schema)
            try:
                found = self._listed(table, snapshot, bound, scan=scan)
            except ValueError as error:
                if bound is None:
                    raise
                # The table is partitioned by a column that is newer than the reader's.
                _log.info("files are not chosen by the filter: %s", error)
                found = self._listed(table, snapshot, None, scan=scan)
            self._lists.put(key, found)
        return found

    def _listed(
        self, table: Table, snapshot: Snapshot, row_filter: Filter | None, *, scan: bool
    ) -> tuple[TableFile, ...]:
        from krishiv_spark.iceberg.file_access import access_of

        specs = table.metadata.specs()
        doing = f"list the files of snapshot {snapshot.snapshot_id}"
        with (
            redact_errors(table.io, doing),
            metadata_errors(snapshot, is_filtered=row_filter is not None),
        ):
            tasks = planned_files(table, snapshot, scan=scan, row_filter=row_filter)
            found = tuple(table_file(task, specs, self._event_time) for task in tasks)
        access_of(table).check_all(file.path for file in found)
        access_of(table).check_all(path for file in found if file.deletes for path in file.paths())
        return found


def table_file(
    task: FileScanTask | PlannedFile,
    specs: Mapping[int, PartitionSpec],
    event_time: NestedField | None = None,
) -> TableFile:
    """What is known of a file that PyIceberg has planned.

    Args:
        task: Names the file and its deletes.
        specs: Partitions of the table by their ids.
        event_time: Field whose newest value is looked up; None for none.
    """
    file = task.file
    constants = _constants(file, specs[file.spec_id])
    newest, unknown = _newest(file, event_time, dict(constants))
    if newest is not None and task.delete_files:
        newest, unknown = None, f"{file.file_path}: its newest row may have been deleted"
    return TableFile(
        path=file.file_path,
        # With 0, no range of bytes would be read of it; any size makes any number of tasks.
        size=min(max(1, file.file_size_in_bytes), _LARGEST_FILE),
        rows=max(0, file.record_count),
        constants=constants,
        deletes=_deletes(task.delete_files) if task.delete_files else (),
        newest_ms=newest,
        unknown=unknown,
    )


def _deletes(files: Iterable[DataFile]) -> tuple[DeleteFile, ...]:
    # Sorted: a file is the same as another one if its deletes are.
    return tuple(sorted(DeleteFile(file.file_path, file.file_format) for file in files))


def _constants(file: DataFile, spec: Any) -> tuple[tuple[int, Any], ...]:
    # No other transform gives the value back (Iceberg spec, "Column Projection").
    return tuple(
        (field.source_id, file.partition[position])
        for position, field in enumerate(spec.fields)
        if str(field.transform) == "identity"
    )


def _newest(
    file: DataFile, field: NestedField | None, constants: Mapping[int, Any]
) -> tuple[int | None, str | None]:
    """The newest value of a field in milliseconds, or why it is not known.

    A file that lacks the field has no bounds of it, and its partition may have the value.
    """
    if field is None or not file.record_count:
        return None, None
    from pyiceberg.conversions import from_bytes

    bound = (file.upper_bounds or {}).get(field.field_id)
    if bound is not None:
        kind: Any = field.field_type
        return _milliseconds(from_bytes(kind, bound), str(kind)), None
    if field.field_id in constants:
        constant = constants[field.field_id]
        return None if constant is None else _milliseconds(constant, str(field.field_type)), None
    nulls = (file.null_value_counts or {}).get(field.field_id)
    if nulls == file.record_count:
        return None, None
    return None, f"{file.file_path}: no bounds of {field.name} in the metadata"


def _milliseconds(value: Any, kind: str) -> int:
    number = int(value)
    return number * _DAY_MS if kind == "date" else number // _PER_MS[kind]
