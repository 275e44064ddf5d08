"""Upserts by rewriting the files that have rows of the same keys: one snapshot for each epoch.

PyIceberg writes no delete files, so a row leaves a table with its file. Files are found by the
bounds of the keys in the manifests, then by their keys. What an attempt wrote is used by the next
one where the table has not changed.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported.

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
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

from krishiv_spark.arrow import conform
from krishiv_spark.iceberg.reading.files import table_file
from krishiv_spark.iceberg.reading.projection import as_stored
from krishiv_spark.iceberg.reading.rows import ReadShape, cut, read_part
from krishiv_spark.iceberg.writing.changes import check_fits, tidy
from krishiv_spark.iceberg.writing.changesets import Keyed, read_changes
from krishiv_spark.iceberg.writing.columns import table_columns
from krishiv_spark.iceberg.writing.files import write_files
from krishiv_spark.iceberg.writing.manifests import TieredAppend
from krishiv_spark.iceberg.writing.target import StagedFiles, target_of
from krishiv_spark.sinks.base import Epoch, Task

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

    from krishiv_spark.iceberg.writing.commits import EpochTransaction
    from krishiv_spark.iceberg.writing.options import IcebergSinkOptions

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
        staged: Sequence[StagedFiles],
        keyed: Keyed,
        epoch: Epoch,
    ) -> None:
        self._options = options
        self._staged = staged
        self._keyed = keyed
        self._epoch = epoch
        self._changes: tuple[pa.Table, pa.Table] | None = None
        self._added: dict[int, _Files] = {}
        self._rewritten: dict[tuple[str, ...], _Files | None] = {}
        self._used: set[str] = set()

    def __call__(self, transaction: EpochTransaction, summary: dict[str, str]) -> None:
        """Stage one snapshot with what the table shall have instead. See `Change`."""
        check_fits(self._staged, transaction.table_metadata)
        table = transaction._table  # noqa: SLF001
        if self._changes is None:
            self._changes = read_changes(table.io, self._staged, self._keyed)
        upserts, keys = self._changes
        replaced = dict(self._replaced(table, keys))
        files = [*self._new(table, upserts), *(file for new in replaced.values() for file in new)]
        self._used = {file.file_path for file in files}
        self._produce(transaction, summary, list(replaced), files)
        tidy(transaction, self._options)

    def _produce(
        self,
        transaction: EpochTransaction,
        summary: dict[str, str],
        gone: Sequence[DataFile],
        files: Sequence[DataFile],
    ) -> None:
        producer: Any
        if gone:
            producer = transaction.update_snapshot(snapshot_properties=summary).overwrite()
        else:
            merge = self._options.merge_manifests
            producer = TieredAppend(transaction, summary, merge=merge)
        for file in gone:
            producer.delete_data_file(file)
        for file in files:
            producer.append_data_file(file)
        producer.commit()

    def clean(self, io: Any, *, published: bool) -> None:
        """Remove what was written for attempts that are not in the table, and what was staged."""
        made = [*self._added.values(), *(files for files in self._rewritten.values() if files)]
        written = {file.file_path for files in made for file in files}
        staged = {path for item in self._staged for path in item.changes}
        for path in (written - self._used if published else written) | staged:
            with contextlib.suppress(Exception):  # best effort: vacuum finds it
                io.delete(path)

    # --- files

    def _new(self, table: Table, upserts: pa.Table) -> _Files:
        """Data files of the rows that are to be there."""
        schema = table.metadata.current_schema_id
        if schema not in self._added:
            self._added[schema] = self._written(table, upserts)
        return self._added[schema]

    def _replaced(self, table: Table, keys: pa.Table) -> Iterator[tuple[DataFile, _Files]]:
        """Files that have rows of the keys, each with the files of its other rows."""
        for task in table.scan(row_filter=self._bounds(keys)).plan_files():
            known = (
                str(table.metadata.current_schema_id),
                task.file.file_path,
                *sorted(file.file_path for file in task.delete_files),
            )
            if known not in self._rewritten:
                self._rewritten[known] = self._survivors(table, task, keys)
            files = self._rewritten[known]
            if files is not None:
                yield task.file, files

    def _survivors(self, table: Table, task: FileScanTask, keys: pa.Table) -> _Files | None:
        """Files of a file's rows that have none of the keys; None if all of its rows stay."""
        own = _read(table, task, self._keyed.keys)
        numbers = pa.array(range(own.num_rows), pa.int64())
        gone = own.append_column(_ROW, numbers).join(
            keys, list(self._keyed.keys), join_type="inner"
        )
        if not gone.num_rows:
            return None
        stays = pc.invert(pc.is_in(numbers, gone[_ROW].combine_chunks()))
        return self._written(table, _read(table, task, None).filter(stays))

    def _written(self, table: Table, rows: pa.Table) -> _Files:
        target = target_of(table, self._options.target_file_size)
        task = Task(self._epoch.query, self._epoch.number, 0, 0)
        batches = rows.to_batches(max_chunksize=_BATCH_ROWS)
        staged = write_files(target, iter(batches), task)
        return () if staged is None else staged.files

    def _bounds(self, keys: pa.Table) -> BooleanExpression:
        """A filter for files by the bounds of their keys; it may let through too many."""
        if not keys.num_rows:
            return AlwaysTrue()
        terms = [_bounds(name, keys[name]) for name in self._keyed.keys]
        return functools.reduce(And, terms)


_BATCH_ROWS = 2**16


def _bounds(name: str, values: pa.ChunkedArray) -> BooleanExpression:
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_date32, pa.types.is_boolean)
    if not any(is_a(values.type) for is_a in kinds) or _may_wrap(values):
        return AlwaysTrue()
    distinct = pc.unique(values)
    column: Any = Reference(name)
    one_of: Any = In  # type checkers disagree about the names of its parameters
    if len(distinct) <= _MOST_VALUES:
        made: BooleanExpression = one_of(column, set(distinct.to_pylist()))
        return made
    ends = pc.min_max(distinct).as_py()
    least, most = (literal(ends[end]) for end in ("min", "max"))
    return And(
        GreaterThanOrEqual(term=column, value=least), LessThanOrEqual(term=column, value=most)
    )


def _may_wrap(values: pa.ChunkedArray) -> bool:
    """Whether ``truncate`` may leave the type: partitions then have wrapped, but filters do not."""
    if not pa.types.is_integer(values.type):
        return False
    lowest = -(2 ** (values.type.bit_width - 2))
    return bool(pc.min(values).as_py() < lowest)


def _read(table: Table, task: FileScanTask, columns: Sequence[str] | None) -> pa.Table:
    """Rows of one file as the table has them now, without those that are deleted.

    By the source's reader: PyIceberg's turns null lists of structs into empty ones, and rows that
    nobody has changed must stay as they are.
    """
    schema = table.schema() if columns is None else table.schema().select(*columns)
    wanted = as_stored(schema)
    shape = ReadShape(table.io, wanted, len(wanted.fields), table.name_mapping(), None)
    file = table_file(task, table.metadata.specs())
    fitting = table_columns(schema)
    batches = (
        conform(batch, fitting)
        for part in cut([file], shape, file.size)
        for batch in read_part(part)
    )
    return pa.Table.from_batches(batches, fitting)
