"""Upserts by rewriting the files that have rows of the same keys: one snapshot for each epoch.

PyIceberg writes no delete files, so a row leaves a table with its file. Files are found by the
bounds of the keys in the manifests, then by their keys. What an attempt wrote is used by the next
one where the table has not changed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    In,
    LessThanOrEqual,
    Reference,
)
from pyiceberg.expressions.literals import literal

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.schemas import conform
from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.planning import to_table_file
from krishiv_spark.iceberg.projection import to_stored_schema
from krishiv_spark.iceberg.scan_tasks import ScanProjection, plan_tasks, read_task
from krishiv_spark.sinks.base import Epoch, Task
from krishiv_spark.sinks.iceberg.changes import check_fits, stage_snapshot
from krishiv_spark.sinks.iceberg.changesets import UpsertSpec
from krishiv_spark.sinks.iceberg.columns import table_columns
from krishiv_spark.sinks.iceberg.epoch_changes import EpochChanges, chosen, stored_values
from krishiv_spark.sinks.iceberg.files import write_files
from krishiv_spark.sinks.iceberg.replaceable import check_parquet, files_to_replace
from krishiv_spark.sinks.iceberg.target import StagedDataFiles, target_of
from krishiv_spark.sinks.iceberg.unused import remove_unnamed

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
    from krishiv_spark.sinks.iceberg.transaction import EpochTransaction

__all__ = ["Upsert"]

_MOST_VALUES = 200
"""PyIceberg compares no more values than this with the bounds of a file."""

_ROW = "_krishiv_row"

_Files: TypeAlias = "tuple[DataFile, ...]"


class Upsert:
    """What an epoch of changes does to a table. See `Change`; used for all attempts of an epoch."""

    def __init__(
        self,
        options: IcebergSinkOptions,
        staged: Sequence[StagedDataFiles],
        upsert_spec: UpsertSpec,
        epoch: Epoch,
    ) -> None:
        self._options = options
        self._staged = staged
        self._upsert_spec = upsert_spec
        self._epoch = epoch
        self._changes: EpochChanges | None = None
        self._added: dict[int, _Files] = {}
        self._rewritten: dict[tuple[str, ...], _Files | None] = {}
        self._used: set[str] = set()

    def __call__(self, transaction: EpochTransaction, summary: dict[str, str]) -> None:
        """Stage one snapshot with what the table shall have instead. See `Change`."""
        check_fits(self._staged, transaction.table_metadata)
        table = transaction.table
        if self._changes is None:
            paths = [path for item in self._staged for path in item.changes]
            self._changes = EpochChanges(table.io, paths, self._upsert_spec)
        with _rejects_failures(self._epoch):
            replaced = dict(self._replaced(table, self._changes.keys))
            files = [*self._new(table, self._changes)]
        files += (file for new in replaced.values() for file in new)
        self._used = {file.file_path for file in files}
        stage_snapshot(transaction, summary, self._options, added=files, removed=replaced)

    def clean(self, io: Any, *, published: bool, certain: bool) -> None:
        """Delete the files of attempts that are not in the table, and the staged changes.

        A data file that a snapshot names stays, whatever is believed of the attempts.

        Args:
            io: Of the table.
            published: Whether an attempt has succeeded.
            certain: Whether it is known which: otherwise vacuum removes the files of the others.
        """
        if certain:
            self.clean_written(published=published)
        for path in {path for item in self._staged for path in item.changes}:
            with contextlib.suppress(Exception):
                io.delete(path)

    def clean_written(self, *, published: bool) -> None:
        """Delete the data files of attempts that are not in the table; what is staged stays.

        Args:
            published: Whether an attempt has succeeded: its files stay.
        """
        made = [*self._added.values(), *(files for files in self._rewritten.values() if files)]
        written = {file.file_path for files in made for file in files}
        unused = written - self._used if published else written
        with contextlib.suppress(Exception):  # best effort: vacuum finds them
            remove_unnamed(self._options, unused, self._staged)

    # --- files

    def _new(self, table: Table, changes: EpochChanges) -> _Files:
        """Data files of the rows that are to be there."""
        # Another attempt may find another schema, whose columns these files would not have.
        schema = table.metadata.current_schema_id
        if schema not in self._added:
            self._added[schema] = self._written(table, changes.upserts())
        return self._added[schema]

    def _replaced(self, table: Table, keys: pa.Table) -> Iterator[tuple[DataFile, _Files]]:
        """Files that have rows of the keys, each with the files of its other rows."""
        reader = _Reader(table, table.schema().select(*self._upsert_spec.keys))
        for task in files_to_replace(table, self._bounds(keys)):
            # With another schema, or more deletes, the rows that stay are others.
            known = (
                str(table.metadata.current_schema_id),
                task.file.file_path,
                *sorted(file.file_path for file in task.delete_files),
            )
            if known not in self._rewritten:
                check_parquet(task.file)
                self._rewritten[known] = self._others(table, task, reader, keys)
            files = self._rewritten[known]
            if files is not None:
                yield task.file, files

    def _others(
        self, table: Table, task: FileScanTask, reader: _Reader, keys: pa.Table
    ) -> _Files | None:
        """Files of the rows of a file that have none of the keys; None if that is all of them."""
        own = stored_values(pa.Table.from_batches(reader.rows(task), reader.columns))
        numbers, names = pa.array(np.arange(own.num_rows)), list(self._upsert_spec.keys)
        gone = own.append_column(_ROW, numbers).join(keys, names, join_type="inner")
        if not gone.num_rows:
            return None
        stays = np.ones(own.num_rows, bool)
        stays[gone[_ROW].to_numpy()] = False
        whole = _Reader(table, table.schema())  # it is read again, batch by batch
        return self._written(table, chosen(whole.rows(task), stays))

    def _written(self, table: Table, rows: Iterator[pa.RecordBatch]) -> _Files:
        target = target_of(table, self._options.target_file_size)
        task = Task(self._epoch.query, self._epoch.number, 0, 0)
        staged = write_files(target, rows, task)
        return () if staged is None else staged.files

    def _bounds(self, keys: pa.Table) -> BooleanExpression:
        """A filter for files by the bounds of their keys; it may let through too many."""
        if not keys.num_rows:
            return AlwaysTrue()
        terms = [_bounds(name, keys[name]) for name in self._upsert_spec.keys]
        return functools.reduce(And, terms)


@contextlib.contextmanager
def _rejects_failures(epoch: Epoch) -> Iterator[None]:
    """Turn errors of Arrow into the rejection of an epoch.

    Raises:
        CommitRejected: If there is not enough memory, or Arrow refuses the keys or the rows.
    """
    try:
        yield
    except (MemoryError, pa.ArrowException) as error:
        raise CommitRejected(
            f"{FORMAT}: epoch {epoch.number} of query {epoch.query} cannot be computed: "
            f"{type(error).__name__}: {error}; {_advice_on(error)}"
        ) from error


def _advice_on(error: Exception) -> str:
    # Arrow's own error of memory is Python's as well; one of capacity is for arrays above 2 GB.
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


def _bounds(name: str, values: pa.ChunkedArray) -> BooleanExpression:
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_date32, pa.types.is_boolean)
    if not any(is_a(values.type) for is_a in kinds) or _may_wrap(values):
        return AlwaysTrue()
    few = _few(values)
    column: Any = Reference(name)
    one_of: Any = In  # type checkers disagree about the names of its parameters
    if few is not None:
        made: BooleanExpression = one_of(column, few)
        return made
    ends = pc.min_max(values).as_py()
    least, most = (literal(ends[end]) for end in ("min", "max"))
    return And(
        GreaterThanOrEqual(term=column, value=least), LessThanOrEqual(term=column, value=most)
    )


def _few(values: pa.ChunkedArray) -> set[Any] | None:
    """The distinct values, or None if there are many; chunk by chunk, since all may be 2 GB."""
    found: set[Any] = set()
    for chunk in values.chunks:
        distinct = pc.unique(chunk)
        if len(distinct) > _MOST_VALUES:
            return None
        found.update(distinct.to_pylist())
    return found if len(found) <= _MOST_VALUES else None


def _may_wrap(values: pa.ChunkedArray) -> bool:
    """Whether ``truncate`` may leave the type: partitions then have wrapped, but filters do not."""
    if not pa.types.is_integer(values.type):
        return False
    lowest = -(2 ** (values.type.bit_width - 2))
    return bool(pc.min(values).as_py() < lowest)


class _Reader:
    """Reads files as the table has their rows now, without those that are deleted.

    By the source's reader: PyIceberg's turns null lists of structs into empty ones, and rows that
    nobody has changed must stay as they are.
    """

    def __init__(self, table: Table, schema: Schema) -> None:
        wanted = to_stored_schema(schema)
        self.columns = table_columns(schema)
        self._scan = ScanProjection(
            table.io, wanted, len(wanted.fields), table.name_mapping(), None
        )
        self._specs = table.metadata.specs()

    def rows(self, task: FileScanTask) -> Iterator[pa.RecordBatch]:
        """The rows of one file, always in the same order."""
        file = to_table_file(task, self._specs)
        for part in plan_tasks([file], self._scan, file.size):
            for batch in read_task(part):
                yield conform(batch, self.columns)
