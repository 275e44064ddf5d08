"""Upserts that rewrite the files with rows of the same keys ("copy on write"). Driver.

PyIceberg writes no delete files, so a row leaves a table only together with its data file. Files
that one attempt has written are used by the next one where the table has not changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.sinks.base import Epoch, Task
from krishiv_spark.sinks.iceberg.data_files import write_files
from krishiv_spark.sinks.iceberg.epoch_updates import EpochUpdate, SnapshotChanges, check_fits
from krishiv_spark.sinks.iceberg.orphans import delete_unnamed
from krishiv_spark.sinks.iceberg.replaced_rows import RowLookup
from krishiv_spark.sinks.iceberg.task_table import StagedDataFiles, task_table_spec
from krishiv_spark.sinks.iceberg.upsert_staging import EpochChanges, UpsertSpec, filter_rows

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = ["CopyOnWrite"]

_Files: TypeAlias = "tuple[DataFile, ...]"


class CopyOnWrite(EpochUpdate):
    """An epoch of upserts that replaces each file with a changed row by files of its other rows.

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
        self._added: dict[int, _Files] = {}
        self._rewritten: dict[tuple[str, ...], _Files | None] = {}
        self._used: set[str] = set()

    def plan(self, table: Table) -> SnapshotChanges:
        """Return new and rewritten files as added, and the originals of the latter as removed.

        Writes the files that no earlier attempt has written.

        Raises:
            CommitRejected: If the changes do not fit the table, a file is not Parquet, or the keys
                do not fit into memory.
        """
        check_fits(self.staged, table.metadata)
        if self._changes is None:
            paths = [path for item in self.staged for path in item.changes]
            self._changes = EpochChanges(table.io, paths, self._upsert_spec)
        with _reject_arrow_errors(self._epoch):
            replaced = dict(self._rewrite(table, self._changes.keys))
            added = [*self._add(table, self._changes)]
        added += (file for files in replaced.values() for file in files)
        self._used = {file.file_path for file in added}
        return SnapshotChanges(added, list(replaced))

    def delete_written(self, *, is_committed: bool) -> None:
        """Delete written data files that are not in the table; best effort, the rest is for vacuum.

        A file that a snapshot names remains, whatever `is_committed` is.
        """
        rewritten = (files for files in self._rewritten.values() if files)
        written = {
            file.file_path for files in (*self._added.values(), *rewritten) for file in files
        }
        unused = written - self._used if is_committed else written
        with contextlib.suppress(Exception):
            delete_unnamed(self._options, unused, self.staged)

    def delete_staged(self, io: FileIO) -> None:
        """Delete the staged changes: the table has data files of them."""
        for path in {path for item in self.staged for path in item.changes}:
            with contextlib.suppress(Exception):
                io.delete(path)

    # --- files

    def _add(self, table: Table, changes: EpochChanges) -> _Files:
        """Return data files of the epoch's last upsert of each key."""
        # Another attempt may find another schema, whose columns these files would not have.
        schema = table.metadata.current_schema_id
        if schema not in self._added:
            self._added[schema] = self._write(table, changes.read_upserts())
        return self._added[schema]

    def _rewrite(self, table: Table, keys: pa.Table) -> Iterator[tuple[DataFile, _Files]]:
        """Return the files that have rows of the keys, each with files of its other rows."""
        lookup = RowLookup(table, self._upsert_spec.keys)
        for task in lookup.plan_candidates(keys):
            # With another schema, or more deletes, the remaining rows are different.
            cache_key = (
                str(table.metadata.current_schema_id),
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

    def _write(self, table: Table, rows: Iterator[pa.RecordBatch]) -> _Files:
        spec = task_table_spec(table, self._options.target_file_size)
        task = Task(self._epoch.query, self._epoch.number, 0, 0)
        staged = write_files(spec, rows, task)
        return () if staged is None else staged.files


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
