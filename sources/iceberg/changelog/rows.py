"""The rows by which some files differ from others. Executor.

Who rewrites a file copies most of its rows. What was only copied is in both, and is left out, as
often as it is in both; every other row goes or comes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.partition_files import chunks
from krishiv_spark.arrow.schemas import conform
from krishiv_spark.iceberg.files import TableFile
from krishiv_spark.iceberg.rows import read_files
from krishiv_spark.iceberg.scan import ScanProjection
from krishiv_spark.sources.iceberg.changelog.columns import DELETE, INSERT, UPDATE, as_changes
from krishiv_spark.sources.iceberg.changelog.equality import numbered, shares_of, unmatched

__all__ = ["ChangePart", "compare", "read_changes"]

# What a task holds of the rows that went, and the least that it compares with them at once.
_SHARE_ROWS, _SHARE_BYTES = 2**19, 32 * 2**20
_MOST_SHARES = 10_000
"""Each reads all files. Metadata may give a file any size and any number of rows."""
_CHUNK_ROWS, _CHUNK_BYTES = 2**14, 2 * 2**20


@dataclass(frozen=True)
class ChangePart:
    """What one task compares.

    Attributes:
        removed: Files that went.
        added: Files that came.
        scan: A pickled `ScanProjection`.
        columns: The columns that are read, in Spark's types.
        keys: Columns that identify a row; with them, an update is told from an insert.
        share: Number of the task's share of the rows.
        shares: How many shares there are; each task reads all files.
        goes: Whether the task yields the rows that go.
        comes: Whether it yields those that come, after them.
    """

    removed: tuple[TableFile, ...]
    added: tuple[TableFile, ...]
    scan: bytes
    columns: pa.Schema
    keys: tuple[str, ...]
    share: int = 0
    shares: int = 1
    goes: bool = True
    comes: bool = True


def compare(
    removed: Iterable[TableFile],
    added: Iterable[TableFile],
    scan: ScanProjection,
    columns: pa.Schema,
    keys: tuple[str, ...],
) -> list[ChangePart]:
    """Tasks that hold a bounded number of the rows that went, see `ChangePart`. Driver.

    In the order of the tasks a row goes before another one of the same key comes. Without keys, two
    such rows may be in different shares.
    """
    whole = ChangePart(tuple(removed), tuple(added), pickle.dumps(scan), columns, keys)
    shares = _shares(whole.removed)
    parts = [replace(whole, share=share, shares=shares) for share in range(shares)]
    if keys or shares == 1:
        return parts
    goes = [replace(part, comes=False) for part in parts]
    return goes + [replace(part, goes=False) for part in parts]


def _shares(files: Sequence[TableFile]) -> int:
    rows, size = sum(file.rows for file in files), sum(file.size for file in files)
    return min(_MOST_SHARES, max(1, -(-rows // _SHARE_ROWS), -(-size // _SHARE_BYTES)))


def read_changes(part: ChangePart) -> Iterator[pa.RecordBatch]:
    """Yield the rows that differ, with `_op` and `_weight`; those that go come first.

    Holds the task's share of the rows that went, about as many others, and a byte for each row
    that came.

    Raises:
        DataLossError: If a file is no longer there, or is damaged.
        SchemaError: If a file's columns do not fit.
    """
    gone, is_new = _compared(part)
    if part.goes:
        for batch in gone.to_batches():
            yield as_changes(batch, DELETE, -1)
    if part.comes:
        yield from _new_ones(part, gone, is_new)


def _compared(part: ChangePart) -> tuple[pa.Table, np.ndarray]:
    """The rows that went for good, and whether each row that came is new, as far as it matters.

    After the last row that was looked at, all are new.
    """
    left = pa.Table.from_batches(_rows(part, part.removed), part.columns)
    found = [np.empty(0, bool)]
    most = max(left.num_rows, _CHUNK_ROWS), max(left.nbytes, _CHUNK_BYTES)
    for some in chunks(_rows(part, part.added), *most):
        if not left.num_rows:
            break
        numbers = numbered(pa.concat_tables([left, some]))
        old, new = np.split(numbers, [left.num_rows])
        left = left.filter(pa.array(unmatched(old, new)))
        found.append(unmatched(new, old))
    return left, np.concatenate(found)


def _new_ones(part: ChangePart, gone: pa.Table, is_new: np.ndarray) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in _rows(part, part.added):
        known = is_new[first : first + batch.num_rows]
        first += batch.num_rows
        if len(known):
            rest = np.ones(batch.num_rows - len(known), bool)
            batch = batch.filter(pa.array(np.concatenate([known, rest])))  # noqa: PLW2901  less some
        if batch.num_rows:
            yield as_changes(batch, _reasons(batch, gone, part.keys), 1)


def _reasons(rows: pa.RecordBatch, gone: pa.Table, keys: Sequence[str]) -> str | pa.Array:
    """Whether each row takes the place of one that went."""
    if not keys or not gone.num_rows:
        return INSERT
    both = [table.select(list(keys)) for table in (gone, pa.Table.from_batches([rows]))]
    old, new = np.split(numbered(pa.concat_tables(both)), [gone.num_rows])
    return pc.if_else(pa.array(np.isin(new, old)), UPDATE, INSERT)


def _rows(part: ChangePart, files: Sequence[TableFile]) -> Iterator[pa.RecordBatch]:
    """Rows of the task's share, always in the same order."""
    for batch in read_files(files, part.scan):
        rows = conform(batch, part.columns)
        if part.shares > 1:
            # By the key: both rows of an update are of one share.
            told = rows.select(list(part.keys)) if part.keys else rows
            rows = rows.filter(pa.array(shares_of(told, part.shares) == part.share))
        yield rows
