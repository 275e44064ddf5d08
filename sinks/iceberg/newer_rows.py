"""Rows of a table that are newer than the changes of an epoch (`orderScope` = `table`). Driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.sinks.iceberg.replaced_rows import RowLookup
from krishiv_spark.sinks.iceberg.stored_rows import read_stored
from krishiv_spark.sinks.iceberg.upsert_staging import EpochChanges, number_keys, to_sortable

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["drop_older_changes"]


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
