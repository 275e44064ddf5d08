"""The two ways in which an epoch of upserts changes the files of a table. Driver.

Merge on read leaves the data files of replaced rows unchanged, and adds files that delete these
rows by their positions. Copy on write replaces each such data file by files of its other rows. The
table's property `write.merge.mode` decides, as in Iceberg's own engines, or the option
`upsertMode`. Both ways add data files with the epoch's last upsert of each key. Work of one attempt
to commit is used by the next one where the table has not changed.
"""

from __future__ import annotations

import contextlib
import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from krishiv_spark.errors import CommitRejected, OptionError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.property_keys import MERGE_MODE
from krishiv_spark.sinks.base import Epoch, Task
from krishiv_spark.sinks.iceberg.data_files import write_files
from krishiv_spark.sinks.iceberg.epoch_updates import (
    EpochUpdate,
    SnapshotChanges,
    check_fits,
    list_files,
)
from krishiv_spark.sinks.iceberg.maintenance.orphans import delete_unnamed
from krishiv_spark.sinks.iceberg.table_schema import to_arrow_columns
from krishiv_spark.sinks.iceberg.task_table import StagedDataFiles, task_table_spec
from krishiv_spark.sinks.iceberg.upserts.epoch_changes import EpochChanges, filter_rows
from krishiv_spark.sinks.iceberg.upserts.key_index import WantedKeys
from krishiv_spark.sinks.iceberg.upserts.position_deletes import (
    DeletedRows,
    choose_to_merge,
    write_position_deletes,
)
from krishiv_spark.sinks.iceberg.upserts.replaced_rows import (
    RowLookup,
    cache_deleted,
    forget_files,
    is_parquet,
    plan_data_files,
)
from krishiv_spark.sinks.iceberg.upserts.upsert_staging import UpsertSpec

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Record

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
    from krishiv_spark.sinks.iceberg.upserts.changed_keys import LastDelete
    from krishiv_spark.sinks.iceberg.upserts.position_deletes import Positions

__all__ = [
    "CopyOnWrite",
    "MergeOnRead",
    "UpsertMode",
    "UpsertUpdate",
    "create_upsert_update",
    "find_upsert_mode",
]

_COPY_ON_WRITE: Final = "copy-on-write"
_MERGE_ON_READ: Final = "merge-on-read"

_DELETES_SINCE = 2
"""The format version that introduced delete files."""

UpsertMode: TypeAlias = Literal["copy-on-write", "merge-on-read"]
_Files: TypeAlias = "tuple[DataFile, ...]"


def find_upsert_mode(options: IcebergSinkOptions, metadata: TableMetadata) -> UpsertMode:
    """Return how upserts change a table: by the option, or else by the table's property.

    A table without the property has copy on write, which is Iceberg's default, and which tables of
    earlier versions of this package continue to have.

    Raises:
        OptionError: If the property has an unknown value, or the option asks for delete files in a
            table whose format version has none.
    """
    if options.upsert_mode is not None:
        if options.upsert_mode == _MERGE_ON_READ and metadata.format_version < _DELETES_SINCE:
            raise OptionError(
                f"{FORMAT}: 'upsertMode' = {_MERGE_ON_READ!r} requires a table of format version "
                f"{_DELETES_SINCE}, and table {options.table_name} has version "
                f"{metadata.format_version}: use {_COPY_ON_WRITE!r}, or upgrade the table"
            )
        return options.upsert_mode
    given = metadata.properties.get(MERGE_MODE, _COPY_ON_WRITE)
    mode = given.strip().lower()
    if mode == _COPY_ON_WRITE:
        return _COPY_ON_WRITE
    if mode != _MERGE_ON_READ:
        raise OptionError(
            f"{FORMAT}: table property {MERGE_MODE!r} is {given[:100]!r}: it must be "
            f"{_COPY_ON_WRITE!r} or {_MERGE_ON_READ!r}. Correct it, or give 'upsertMode'"
        )
    return _MERGE_ON_READ if metadata.format_version >= _DELETES_SINCE else _COPY_ON_WRITE


def create_upsert_update(
    options: IcebergSinkOptions,
    staged: Sequence[StagedDataFiles],
    upsert_spec: UpsertSpec,
    epoch: Epoch,
    metadata: TableMetadata,
) -> UpsertUpdate:
    """Create the update of an epoch of upserts in the mode of its table.

    Raises:
        OptionError: As `find_upsert_mode`.
    """
    is_merge = find_upsert_mode(options, metadata) == _MERGE_ON_READ
    kind = MergeOnRead if is_merge else CopyOnWrite
    return kind(options, staged, upsert_spec, epoch)


class UpsertUpdate(EpochUpdate):
    """An epoch of upserts: the common part of both modes.

    Args:
        options: Options of the sink.
        staged: The changes that tasks have staged.
        upsert_spec: How rows change others.
        epoch: Its query and number become part of the names of written files.
    """

    def __init__(
        self,
        options: IcebergSinkOptions,
        staged: Sequence[StagedDataFiles],
        upsert_spec: UpsertSpec,
        epoch: Epoch,
    ) -> None:
        super().__init__(staged)
        self._options = options
        self._upsert_spec = upsert_spec
        self._epoch = epoch
        self._changes: EpochChanges | None = None
        self._added: dict[tuple[int, int | None], _Files] = {}
        self._last_plan = SnapshotChanges(())
        self._last_deletes: Mapping[str, LastDelete] | None = None

    def plan(self, table: Table) -> SnapshotChanges:
        """Return the changes of the epoch, and write the files that no earlier attempt has written.

        Raises:
            CommitRejected: If the changes do not fit the table, a file is not Parquet, or the keys
                do not fit into memory.
        """
        check_fits(self.staged, table.metadata)
        if self._changes is None:
            paths = [path for item in self.staged for path in item.changes]
            columns = self._upsert_spec.without_added(to_arrow_columns(table.schema()))
            self._changes = self._open_changes(table.io, paths, columns)
        with _reject_arrow_errors(self._epoch):
            if self._changes.is_truncated:
                made = SnapshotChanges(self._add(table, self._changes), list_files(table))
            else:
                made = self._plan_files(table, self._choose_changes(table, self._changes))
            if self._changes.positions:
                made = replace(made, summary=self._summarize(table, self._changes))
        self._last_plan = made
        return made

    def _summarize(self, table: Table, changes: EpochChanges) -> dict[str, str]:
        """Return the entries for the summary of change data: positions, and deletes at the end."""
        from krishiv_spark.sinks.iceberg.upserts.changed_keys import find_last_deletes, write_moves
        from krishiv_spark.sinks.iceberg.upserts.unchanged_values import read_ends, write_positions

        if self._last_deletes is None:
            # After the table was truncated, the epoch itself has made all of its rows.
            is_needed = not changes.is_truncated
            keys = self._upsert_spec.keys
            self._last_deletes = find_last_deletes(changes, keys) if is_needed else {}
        known, ends = read_ends(table.metadata), changes.ends
        return {
            **write_positions(known, ends),
            **write_moves(table.metadata, self._last_deletes, known, ends),
        }

    def _open_changes(self, io: FileIO, paths: Sequence[str], columns: pa.Schema) -> EpochChanges:
        return EpochChanges(io, paths, self._upsert_spec, columns)

    def _choose_changes(self, table: Table, changes: EpochChanges) -> EpochChanges:
        """Return the changes that no newer row of the table prevents."""
        if not self._upsert_spec.compares_stored or self._upsert_spec.order is None:
            return changes
        from krishiv_spark.sinks.iceberg.upserts.stored_rows import drop_older_changes

        return drop_older_changes(table, changes, self._upsert_spec.order)

    def _find_head(self, table: Table) -> int | None:
        """Return the snapshot on which the changes depend; None if they do not."""
        return table.metadata.current_snapshot_id if self._upsert_spec.compares_stored else None

    @abstractmethod
    def _plan_files(self, table: Table, changes: EpochChanges) -> SnapshotChanges:
        """Return the changes of files; called for each attempt."""

    @abstractmethod
    def _list_written(self) -> Iterable[DataFile]:
        """Return the files that all attempts have written, except those of `_add`."""

    def delete_written(self, *, is_committed: bool) -> None:
        """Delete written files that are not in the table; best effort, the rest is for vacuum.

        A file that a snapshot names remains in either case.
        """
        added = (file for files in self._added.values() for file in files)
        unused = {file.file_path for file in (*added, *self._list_written())}
        if is_committed:
            committed = self._last_plan
            unused -= {file.file_path for file in (*committed.added, *committed.deletes)}
            forget_files(committed.removed)
        with contextlib.suppress(Exception):
            delete_unnamed(self._options, unused, self.staged)

    def delete_staged(self, io: FileIO) -> None:
        """Delete the staged changes: the table has data files of them."""
        for path in {path for item in self.staged for path in item.changes}:
            with contextlib.suppress(Exception):
                io.delete(path)

    def _add(self, table: Table, changes: EpochChanges) -> _Files:
        """Return data files of the epoch's last upsert of each key."""
        # Another attempt may find another schema, whose columns these files would not have.
        metadata = table.metadata
        # Kept values are those of the table's rows, which another attempt may find changed.
        is_needed = changes.has_incomplete or self._upsert_spec.compares_stored
        head = metadata.current_snapshot_id if is_needed else None
        cache_key = (metadata.current_schema_id, head)
        if cache_key not in self._added:
            rows = itertools.chain(changes.read_upserts(), self._complete(table, changes))
            self._added[cache_key] = self._write(table, rows)
        return self._added[cache_key]

    def _complete(self, table: Table, changes: EpochChanges) -> Iterator[pa.RecordBatch]:
        """Yield the last upserts that keep values of other rows."""
        if changes.has_incomplete:
            from krishiv_spark.sinks.iceberg.upserts.unchanged_values import complete_upserts

            is_null = self._options.missing_values == "null"
            keys = self._upsert_spec.keys
            yield from complete_upserts(table, changes, keys, missing_is_null=is_null)

    def _write(self, table: Table, rows: Iterator[pa.RecordBatch]) -> _Files:
        spec = task_table_spec(table, self._options.target_file_size)
        staged = write_files(spec, rows, self._create_task())
        return () if staged is None else staged.files

    def _create_task(self) -> Task:
        """Return an attempt of a task with a nonce, for names that no other file has."""
        return Task(self._epoch.query, self._epoch.number, 0, 0)


class CopyOnWrite(UpsertUpdate):
    """An epoch of upserts that replaces each file with a changed row by files of its other rows."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._rewritten: dict[tuple[str, ...], _Files | None] = {}

    def _plan_files(self, table: Table, changes: EpochChanges) -> SnapshotChanges:
        """Return new and rewritten files as added, and the originals of the latter as removed."""
        replaced = dict(self._rewrite(table, changes.keys))
        added = [*self._add(table, changes)]
        added += (file for files in replaced.values() for file in files)
        return SnapshotChanges(added, list(replaced))

    def _list_written(self) -> Iterable[DataFile]:
        rewritten = filter(None, self._rewritten.values())
        return (file for files in rewritten for file in files)

    def _rewrite(self, table: Table, keys: pa.Table) -> Iterator[tuple[DataFile, _Files]]:
        """Return the files that have rows of the keys, each with files of its other rows."""
        lookup = RowLookup(table, self._upsert_spec.keys)
        for task in lookup.plan_candidates(keys):
            # With another schema, or more deletes, the remaining rows are different.
            cache_key = (
                str(table.metadata.current_schema_id),
                str(self._find_head(table)),
                task.file.file_path,
                *sorted(file.file_path for file in task.delete_files),
            )
            if cache_key not in self._rewritten:
                self._rewritten[cache_key] = self._rewrite_file(table, task, lookup, keys)
            files = self._rewritten[cache_key]
            if files is not None:
                yield task.file, files

    def _rewrite_file(
        self, table: Table, task: FileScanTask, lookup: RowLookup, keys: pa.Table
    ) -> _Files | None:
        """Write the rows of a file that have none of the keys; None if no row has one."""
        found = lookup.find(task, keys)
        if found is None:
            return None
        # The file is read again, batch by batch: all of its columns may not fit into memory.
        return self._write(table, filter_rows(lookup.read(task), ~found))


class MergeOnRead(UpsertUpdate):
    """An epoch of upserts that deletes replaced rows by their positions in unchanged data files.

    A data file without a remaining row is removed instead. Positions belong to one data file, whose
    rows never change: after a lost race, only files that the table did not have before are read.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._found: dict[tuple[int, int | None, str], Positions] = {}
        self._written: list[tuple[DeletedRows, DataFile]] = []

    def _plan_files(self, table: Table, changes: EpochChanges) -> SnapshotChanges:
        """Return new files as added, and files that delete the rows of their keys as deletes."""
        lookup = RowLookup(table, self._upsert_spec.keys)
        found = self._find_rows(lookup, table, changes.keys)
        removed, deletes = self._delete_rows(lookup, table, found)
        return SnapshotChanges(self._add(table, changes), removed, deletes)

    def _delete_rows(
        self,
        lookup: RowLookup,
        table: Table,
        found: Iterable[tuple[FileScanTask, Positions, bool]],
    ) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
        """Return the files that the snapshot removes, and new files that delete rows.

        Args:
            lookup: The lookup of rows.
            table: The table of one attempt.
            found: The rows by data file, and whether these are all of its rows.
        """
        removed: list[DataFile] = []
        groups: dict[tuple[int, Record], _Group] = {}
        for task, positions, is_whole in found:
            group = groups.setdefault(DeletedRows.group_of(task.file), _Group(task.file))
            group.known.update(dict.fromkeys(filter(is_parquet, task.delete_files)))
            if is_whole:
                removed.append(task.file)
            else:
                group.rows.add(task.file.file_path, positions)
        merged = [*self._merge_deletes(lookup, table, groups.values(), removed)]
        deleted = [group.rows for group in groups.values() if len(group.rows)]
        deletes = [self._write_deletes(table, rows) for rows in deleted]
        return [*removed, *merged], deletes

    @staticmethod
    def _merge_deletes(
        lookup: RowLookup, table: Table, groups: Iterable[_Group], removed: Sequence[DataFile]
    ) -> Iterator[DataFile]:
        """Return the delete files that the snapshot removes, after their rows were added.

        These are small ones, which are merged, and those that name no data file of the table.
        """
        live: set[str] | None = None
        for group in groups:
            small = choose_to_merge(len(group.rows), [*group.known])
            for delete in group.known if removed else small:
                if live is None:
                    live = {task.file.file_path for task in plan_data_files(table)}
                    live -= {file.file_path for file in removed}
                named = lookup.read_deletes(delete)
                found = [path for path in named if path in live]
                if found and delete not in small:
                    continue
                for path in found:
                    group.rows.add(path, named[path])
                yield delete

    def _list_written(self) -> Iterable[DataFile]:
        return (file for _, file in self._written)

    def _find_rows(
        self, lookup: RowLookup, table: Table, keys: pa.Table
    ) -> Iterator[tuple[FileScanTask, Positions, bool]]:
        """Return the rows to be deleted, by data file, and whether these are all of its rows."""
        wanted = WantedKeys(keys)
        for task in lookup.plan_candidates(keys):
            state = (table.metadata.current_schema_id, self._find_head(table))
            cache_key = (*state, task.file.file_path)
            if cache_key not in self._found:
                self._found[cache_key] = lookup.find_positions(task.file, wanted)
            positions = self._found[cache_key]
            if not len(positions):
                continue
            before = lookup.list_deleted(task)
            rest = np.setdiff1d(positions, before, assume_unique=True)
            if len(rest):
                yield task, rest, len(before) + len(rest) == task.file.record_count

    def _write_deletes(self, table: Table, rows: DeletedRows) -> DataFile:
        """Return a file of deleted positions; one of an earlier attempt if it has the same ones."""
        for known, file in self._written:
            if known == rows:
                return file
        spec = task_table_spec(table, self._options.target_file_size)
        file = write_position_deletes(spec, rows, self._create_task())
        self._written.append((rows, file))
        cache_deleted(file, rows.files)
        return file


class _Group:
    """The rows that an epoch deletes in one partition.

    Attributes:
        rows: The rows.
        known: Delete files of the table that apply to the data files of these rows.
    """

    def __init__(self, file: DataFile) -> None:
        self.rows = DeletedRows(file)
        self.known: dict[DataFile, None] = {}


@contextlib.contextmanager
def _reject_arrow_errors(epoch: Epoch) -> Iterator[None]:
    """Convert errors of Arrow into the rejection of an epoch.

    Raises:
        CommitRejected: If there is not enough memory, or Arrow refuses the keys or the rows.
    """
    try:
        yield
    except (MemoryError, pa.ArrowException) as error:
        raise CommitRejected(
            f"{FORMAT}: epoch {epoch.number} of query {epoch.query} cannot be computed: "
            f"{type(error).__name__}: {error}; {_advise(error)}"
        ) from error


def _advise(error: Exception) -> str:
    # Arrow's memory error is a MemoryError too; its capacity error is about arrays above 2 GB.
    if not isinstance(error, (MemoryError, pa.ArrowCapacityError)):
        return (
            "nothing of the epoch is in the table. Memory is sufficient: compare the types of "
            "'keyColumns' and 'orderColumn' in the rows and in the table, and report this as a "
            "bug if they match"
        )
    return (
        "the driver keeps the keys of the epoch's changes ('keyColumns', 'orderColumn') and "
        "those of one data file in memory: give it more, or use shorter keys. A batch that "
        "Spark has planned keeps its size; later ones are as small as the limits of the source "
        "specify"
    )
