"""The rows by which some files differ from others. Executor.

A program that rewrites a file copies most of its rows. A row that was only copied is in both files
and is left out, as many times as both have it; every other row is deleted or inserted.

Rows are the same if all their values are, bit for bit, as in a row that was copied from one file to
another. Arrow groups by flat columns only, and takes 0.0 for -0.0.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.conform import conform
from krishiv_spark.arrow.partition_files import chunks
from krishiv_spark.errors import SchemaError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.planning import TableFile
from krishiv_spark.iceberg.scan_tasks import ScanProjection, read_files

__all__ = [
    "CHANGE_COLUMNS",
    "DELETE",
    "INSERT",
    "UPDATE",
    "ChangeTask",
    "Numbers",
    "add_change_columns",
    "assign_shares",
    "find_unmatched",
    "number_rows",
    "plan_comparison",
    "read_changes",
    "to_changes",
]

OP, WEIGHT = "_op", "_weight"
CHANGE_COLUMNS = (OP, WEIGHT)

# The sink's `opColumn` accepts each of them.
INSERT, UPDATE, DELETE = "insert", "update", "delete"

_FIELDS = (pa.field(OP, pa.string(), nullable=False), pa.field(WEIGHT, pa.int32(), nullable=False))

# Limits of the removed rows that a task has in memory, and the least that it compares at once.
_SHARE_ROWS, _SHARE_BYTES = 2**19, 32 * 2**20
_MOST_SHARES = 10_000
"""Each share reads all files, and metadata may give a file any size and any number of rows."""
_CHUNK_ROWS, _CHUNK_BYTES = 2**14, 2 * 2**20


@dataclass(frozen=True)
class ChangeTask:
    """A task that compares files.

    Attributes:
        removed: Removed files.
        added: Added files.
        scan: A pickled `ScanProjection`.
        columns: The columns that are read, in Spark's types.
        keys: Columns that identify a row; with them, updates are distinguished from inserts.
        share: Number of the task's share of the rows, from 0.
        shares: Number of shares; each task reads all files.
        yields_deleted: True if the task yields deleted rows.
        yields_inserted: True if it yields inserted rows, after the deleted ones.
    """

    removed: tuple[TableFile, ...]
    added: tuple[TableFile, ...]
    scan: bytes
    columns: pa.Schema
    keys: tuple[str, ...]
    share: int = 0
    shares: int = 1
    yields_deleted: bool = True
    yields_inserted: bool = True


def plan_comparison(
    removed: Iterable[TableFile],
    added: Iterable[TableFile],
    scan: ScanProjection,
    columns: pa.Schema,
    keys: tuple[str, ...],
) -> list[ChangeTask]:
    """Plan tasks with a bounded number of removed rows in memory. Driver.

    In the order of the tasks, a row is deleted before another one of the same key is inserted.
    Without keys two such rows may be in different shares, so all deletions come first.
    """
    whole = ChangeTask(tuple(removed), tuple(added), pickle.dumps(scan), columns, keys)
    shares = _count_shares(whole.removed)
    parts = [replace(whole, share=share, shares=shares) for share in range(shares)]
    if keys or shares == 1:
        return parts
    deletions = [replace(part, yields_inserted=False) for part in parts]
    return deletions + [replace(part, yields_deleted=False) for part in parts]


def _count_shares(files: Sequence[TableFile]) -> int:
    rows, size = sum(file.read_rows for file in files), sum(file.read_size for file in files)
    return min(_MOST_SHARES, max(1, -(-rows // _SHARE_ROWS), -(-size // _SHARE_BYTES)))


def read_changes(task: ChangeTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows that differ, with `_op` and `_weight`; deleted ones first.

    Has the task's share of the removed rows in memory, about as many others, and a byte for each
    added row.

    Raises:
        DataLossError: If a file is missing or damaged.
        SchemaError: If a file's columns do not fit.
    """
    deleted, is_new = _compare_rows(task)
    if task.yields_deleted:
        for batch in deleted.to_batches():
            yield to_changes(batch, DELETE, -1)
    if task.yields_inserted:
        yield from _read_inserted(task, deleted, is_new)


def _compare_rows(part: ChangeTask) -> tuple[pa.Table, np.ndarray]:
    """Return the deleted rows, and for each of the first added rows whether it is new.

    The array ends once all removed rows are matched: all added rows after it are new.
    """
    left = pa.Table.from_batches(_read_share(part, part.removed), part.columns)
    found = [np.empty(0, bool)]
    most = max(left.num_rows, _CHUNK_ROWS), max(left.nbytes, _CHUNK_BYTES)
    for some in chunks(_read_share(part, part.added), *most):
        if not left.num_rows:
            break
        numbers = number_rows(pa.concat_tables([left, some]))
        old, new = np.split(numbers, [left.num_rows])
        left = left.filter(pa.array(find_unmatched(old, new)))
        found.append(find_unmatched(new, old))
    return left, np.concatenate(found)


def _read_inserted(
    part: ChangeTask, deleted: pa.Table, is_new: np.ndarray
) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in _read_share(part, part.added):
        known = is_new[first : first + batch.num_rows]
        first += batch.num_rows
        if len(known):
            rest = np.ones(batch.num_rows - len(known), bool)
            batch = batch.filter(pa.array(np.concatenate([known, rest])))  # noqa: PLW2901  the new ones of it
        if batch.num_rows:
            yield to_changes(batch, _choose_ops(batch, deleted, part.keys), 1)


def _choose_ops(rows: pa.RecordBatch, deleted: pa.Table, keys: Sequence[str]) -> str | pa.Array:
    """Return "update" for each row with the key of a deleted row, and "insert" for the others."""
    if not keys or not deleted.num_rows:
        return INSERT
    both = [table.select(list(keys)) for table in (deleted, pa.Table.from_batches([rows]))]
    old, new = np.split(number_rows(pa.concat_tables(both)), [deleted.num_rows])
    return pc.if_else(pa.array(np.isin(new, old)), UPDATE, INSERT)


def _read_share(part: ChangeTask, files: Sequence[TableFile]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the task's share, always in the same order."""
    for batch in read_files(files, part.scan):
        rows = conform(batch, part.columns)
        if part.shares > 1:
            # By the key, so that both rows of an update are in one share.
            by = rows.select(list(part.keys)) if part.keys else rows
            rows = rows.filter(pa.array(assign_shares(by, part.shares) == part.share))
        yield rows


def add_change_columns(columns: pa.Schema) -> pa.Schema:
    """Return the columns of changes to rows that have these columns. Driver.

    Raises:
        SchemaError: If the table itself has a column of one of the two names.
    """
    for name in CHANGE_COLUMNS:
        if name in columns.names:
            raise SchemaError(
                f"{FORMAT}: the table has a column {name!r}, which 'readChanges' adds to its "
                "rows: exclude it with the option 'columns', or rename it"
            )
    return pa.schema([*columns, *_FIELDS])


def to_changes(rows: pa.RecordBatch, op: str | pa.Array, weight: int) -> pa.RecordBatch:
    """Return rows with the columns of a change.

    Args:
        rows: The rows.
        op: Value of `_op`: one for all rows, or one for each.
        weight: Value of `_weight`: 1 for inserted rows, -1 for deleted ones.
    """
    ops = pa.repeat(pa.scalar(op), rows.num_rows) if isinstance(op, str) else op
    weights = pa.repeat(pa.scalar(weight, pa.int32()), rows.num_rows)
    arrays: Sequence[pa.Array] = [*rows.columns, ops, weights]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*rows.schema, *_FIELDS]))


# --- equality of rows


Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""Of shape (rows,)."""


def number_rows(rows: pa.Table) -> Numbers:
    """Return a number for each row: two rows have the same number if and only if they are the same.

    Numbers of different calls cannot be compared.
    """
    return _number_tuples([_number_values(column) for column in rows.columns], rows.num_rows)


def find_unmatched(own: Numbers, others: Numbers) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return True for each row that is left when each other row cancels one equal row.

    Args:
        own: Numbers of the rows, from one call of `number_rows`.
        others: Numbers of the other rows, from the same call.

    Returns:
        Of the shape of `own`; among equal rows, the last ones are left.
    """
    most = int(max(own.max(initial=-1), others.max(initial=-1))) + 1
    order = np.argsort(own, kind="stable")
    rising = own[order]
    before = np.arange(len(own)) - np.searchsorted(rising, rising)
    left = np.empty(len(own), bool)
    left[order] = before >= np.bincount(others, minlength=most)[rising]
    return left


def _number_values(column: pa.ChunkedArray) -> Numbers:
    kind = column.type
    if pa.types.is_struct(kind):
        return _number_tuples(
            [_flag_valid(column), *map(_number_values, column.flatten())], len(column)
        )
    if pa.types.is_map(kind):
        return _number_values(column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
    if pa.types.is_list(kind):
        return _number_tuples([_flag_valid(column), _number_lists(column)], len(column))
    if any(is_a(kind) for is_a in _PLAIN):
        column = _to_bits(column)
        if not column.null_count:
            values: Numbers = column.to_numpy().astype(np.int64)
            return values
    return _rank_values(column)


_PLAIN = (pa.types.is_integer, pa.types.is_floating, pa.types.is_temporal)
_BITS = {32: pa.int32(), 64: pa.int64()}


def _to_bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    bits = _BITS[column.type.bit_width]
    return pa.chunked_array([chunk.view(bits) for chunk in column.chunks], bits)


def _flag_valid(column: pa.ChunkedArray) -> Numbers:
    valid: Numbers = column.is_valid().to_numpy().astype(np.int64)
    return valid


def _number_lists(column: pa.ChunkedArray) -> Numbers:
    """Return numbers for lists, by the numbers of their elements in order."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    # Each element takes the eight bytes of its number.
    ends = np.concatenate([[0], np.cumsum(lengths)]) * 8
    inside = np.ascontiguousarray(_number_values(pc.list_flatten(column)))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(inside)]
    return _rank_values(
        pa.chunked_array([pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)])
    )


def _number_tuples(parts: Sequence[Numbers], rows: int) -> Numbers:
    """Return numbers for rows, by the numbers of their parts; at most the number of rows."""
    if not parts:
        return np.zeros(rows, np.int64)
    together = pa.py_buffer(np.ascontiguousarray(np.stack(parts, axis=1)))
    kind = pa.binary(8 * len(parts))
    return _rank_values(pa.chunked_array([pa.Array.from_buffers(kind, rows, [None, together])]))


def _rank_values(column: pa.ChunkedArray) -> Numbers:
    """Return the index of each value among the distinct ones, from 1; 0 for nulls."""
    found = [pc.fill_null(chunk.indices, -1) for chunk in column.dictionary_encode().chunks]
    return np.concatenate([np.empty(0, np.int64), *found]).astype(np.int64) + 1


def assign_shares(rows: pa.RecordBatch, shares: int) -> Numbers:
    """Return a share for each row, from 0: the same for equal rows, in every process."""
    hashes = np.zeros(rows.num_rows, np.uint64)
    for column in rows.columns:
        hashes = (hashes ^ (hashes >> np.uint64(29)) ^ _hash_values(column)) * _MIXER
    found: Numbers = ((hashes >> np.uint64(32)) % np.uint64(shares)).astype(np.int64)
    return found


_MIXER = np.uint64(0x9E3779B97F4A7C15)
"""An odd number that spreads near values (Knuth, "The Art of Computer Programming", 6.4)."""


def _hash_values(column: pa.Array) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return a number that depends on each value; 0 for types with few values, and others."""
    kind = column.type
    if pa.types.is_integer(kind):
        numbers = column.cast(pa.int64())
    elif pa.types.is_temporal(kind):
        numbers = column.view(_BITS[kind.bit_width])
    elif pa.types.is_string(kind) or pa.types.is_decimal(kind):
        numbers = _checksum_texts(column.cast(pa.string()))
    else:
        numbers = pa.nulls(len(column), pa.int64())
    found: Numbers = pc.fill_null(numbers, 0).to_numpy().astype(np.int64)
    return found.view(np.uint64)


def _checksum_texts(texts: pa.StringArray) -> pa.Array:
    distinct = texts.dictionary_encode()
    # Python's own hash of a text differs from process to process.
    sums = [zlib.crc32(text.encode()) for text in distinct.dictionary.to_pylist()]
    return pc.take(pa.array(sums, pa.int64()), distinct.indices)
