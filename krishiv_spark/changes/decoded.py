"""The changes of a table, as decoded from records of change data. Executor."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.changes.change_origins import Origins, filter_origins

__all__ = [
    "Changes",
    "Rows",
    "drop_records",
    "filter_changes",
    "list_kept_names",
    "sort_changes",
    "to_deletes",
]

_KEPT = pa.list_(pa.string())
"""The type of the names of the columns whose values remain."""

Rows = NDArray[np.int64]
"""Numbers of records in a batch."""


@dataclass(frozen=True)
class Changes:
    """Changes of a table, in the order of their records.

    Attributes:
        rows: The columns of the table. A row that deletes has only its key, and null in the key
            columns if it deletes all rows.
        deletes: True for each row that deletes.
        kept: For each row, the names of columns whose values do not change; null for none.
        positions: For each row, the position of its record in PostgreSQL's log (`lsn`), or null.
            The delete of an old key and the insert of the new one have the same position.
        records: For each row, the number of its record in the batch.
        origins: For each row, the origin of its record; None if they were not read.
    """

    rows: pa.RecordBatch
    deletes: pa.BooleanArray
    kept: pa.Array
    positions: pa.Int64Array
    records: Rows
    origins: Origins | None = None


def to_deletes(batch: pa.RecordBatch, rows: Rows, positions: pa.Array | None = None) -> Changes:
    """Return rows with a key only, as deletes.

    Args:
        batch: The columns of the table.
        rows: The records of these rows.
        positions: See `Changes`; None if they have none.
    """
    count = len(batch)
    flags = np.ones(count, np.bool_)
    at = pa.nulls(count, pa.int64()) if positions is None else positions
    return Changes(batch, pa.array(flags), pa.nulls(count, _KEPT), at, rows)


def filter_changes(changes: Changes, flags: NDArray[np.bool_]) -> Changes:
    """Return some of the changes."""
    mask = pa.array(flags)
    return Changes(
        changes.rows.filter(mask),
        changes.deletes.filter(mask),
        changes.kept.filter(mask),
        changes.positions.filter(mask),
        changes.records[flags],
        changes.origins and filter_origins(changes.origins, flags),
    )


def drop_records(changes: Changes, records: Collection[int]) -> Changes:
    """Return the changes without those of some records."""
    return filter_changes(changes, ~np.isin(changes.records, np.array([*records], np.int64)))


def list_kept_names(kept: Mapping[str, NDArray[np.bool_]], count: int) -> pa.Array:
    """Return for each row the names of its kept columns; null for a row without any."""
    if not kept:
        return pa.nulls(count, _KEPT)
    flags = np.stack(list(kept.values()), axis=1)
    names = np.array(list(kept), object)
    sizes = flags.sum(axis=1)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    chosen = pa.array(names[np.nonzero(flags)[1]], pa.string())
    mask = pa.array(sizes == 0)
    return pa.ListArray.from_arrays(offsets, chosen, mask=mask)


def sort_changes(pieces: Sequence[Changes], columns: pa.Schema) -> Changes:
    """Return the changes in the order of their records; an old key before the new one."""
    if not pieces:
        empty = pa.RecordBatch.from_pylist([], columns)
        return to_deletes(empty, np.empty(0, np.int64))
    records = np.concatenate([each.records for each in pieces])
    deletes = np.concatenate([np.asarray(each.deletes) for each in pieces])
    order = pa.array(np.lexsort((~deletes, records)))
    rows = pa.Table.from_batches([each.rows for each in pieces], columns).combine_chunks()
    return Changes(
        rows.take(order).to_batches()[0] if len(rows) else pieces[0].rows,
        pa.array(deletes).take(order),
        pa.concat_arrays([each.kept for each in pieces]).take(order),
        pa.concat_arrays([each.positions for each in pieces]).take(order),
        records[order.to_numpy()],
    )
