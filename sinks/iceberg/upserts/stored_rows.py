"""The rows that a table has of the keys of an epoch, with some of their columns. Driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.sinks.iceberg.upserts.epoch_changes import (
    EpochChanges,
    filter_rows,
    number_keys,
    to_sortable,
)
from krishiv_spark.sinks.iceberg.upserts.key_index import WantedKeys
from krishiv_spark.sinks.iceberg.upserts.position_deletes import Positions
from krishiv_spark.sinks.iceberg.upserts.replaced_rows import RowLookup

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table

__all__ = ["FileRows", "drop_older_changes", "read_stored", "take_rows"]


@dataclass(frozen=True)
class FileRows:
    """Rows of one data file.

    Attributes:
        task: The file.
        positions: Their positions in the file, ascending.
        lives: Their places among the rows that are not deleted.
        rows: Some of their columns.
    """

    task: FileScanTask
    positions: Positions
    lives: Positions
    rows: pa.Table


def read_stored(
    lookup: RowLookup, tasks: Iterable[FileScanTask], keys: pa.Table, names: Sequence[str]
) -> Iterator[FileRows]:
    """Yield the rows that have one of the keys and are not deleted, file by file.

    Args:
        lookup: The lookup of rows.
        tasks: The files.
        keys: The keys, each once.
        names: The columns.

    Raises:
        CommitRejected: If a file is not a Parquet file.
    """
    wanted = WantedKeys(keys)
    for task in tasks:
        positions = lookup.find_positions(task.file, wanted)
        if not len(positions):
            continue
        deleted = lookup.list_deleted(task)
        positions = np.setdiff1d(positions, deleted, assume_unique=True)
        if len(positions):
            lives = positions - np.searchsorted(deleted, positions)
            rows = pa.Table.from_batches(take_rows(lookup.read_columns(task, names), lives))
            yield FileRows(task, positions, lives, rows)


def take_rows(batches: Iterator[pa.RecordBatch], places: Positions) -> Iterator[pa.RecordBatch]:
    """Yield the rows at some places, ascending; batches after the last one are not read."""
    flags = np.zeros(int(places.max()) + 1, bool)
    flags[places] = True
    return filter_rows(_cut(batches, len(flags)), flags)


def _cut(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, rows)
        rows -= batch.num_rows
        if rows <= 0:
            return


def drop_older_changes(table: Table, changes: EpochChanges, order: str) -> EpochChanges:
    """Return the changes without those of keys whose row in the table has a higher order.

    Args:
        table: The table of one attempt.
        changes: The changes of the epoch.
        order: The column of the order.
    """
    keys = changes.keys
    lookup = RowLookup(table, keys.column_names)
    names = list(dict.fromkeys([*keys.column_names, order]))
    found = read_stored(lookup, lookup.plan_candidates(keys), keys, names)
    pieces = [to_sortable(part.rows) for part in found]
    if not pieces:
        return changes
    stored = pa.concat_tables(pieces)
    last = to_sortable(changes.read_last([order]))
    chunks = [*stored[order].chunks, *last[order].chunks]
    ranks = np.asarray(pc.rank(pa.concat_arrays(chunks), "ascending", tiebreaker="dense"))
    # A row without an order is older than every other one.
    valid = np.concatenate([np.asarray(chunk.is_valid()) for chunk in chunks])
    ranks = np.where(valid, ranks.astype(np.int64), 0)
    newest = np.zeros(keys.num_rows, np.int64)
    np.maximum.at(newest, number_keys(stored, keys), ranks[: stored.num_rows])
    return changes.without(newest > ranks[stored.num_rows :])
