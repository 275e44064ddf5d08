"""Upserts that keep values: completed from earlier changes of the epoch, or from the table. Driver.

A database does not send a large value that a change has not touched: the event has a placeholder.
The value is that of the newest earlier change of the key in the same epoch, and otherwise that of
the table. It is looked up for each attempt to commit, since another writer may change the row.

An update of a row that neither has changes nothing. It is an event that Debezium repeats after a
restart, and the delete of the row, which was applied before, follows it. An insert without a value
is the second half of a changed key, whose value only the database still has.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.schemas import conform
from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.sinks.iceberg.replaced_rows import RowLookup
from krishiv_spark.sinks.iceberg.table_schema import to_arrow_columns
from krishiv_spark.sinks.iceberg.upsert_staging import (
    DELETES,
    INSERTS,
    KEPT,
    EpochChanges,
    IncompleteRows,
    filter_rows,
    to_sortable,
)

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["complete_upserts"]

_log = logging.getLogger(__name__)
_ROW, _STORED = "_krishiv_row", "_krishiv_stored"
_MOST_TEXT = 60

_NONE, _IN_TABLE = -1, -2
"""Instead of the change that has a value: the key was deleted before, or no change has one."""

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


def complete_upserts(
    table: Table, changes: EpochChanges, keys: Sequence[str], *, missing_is_null: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the last upserts of keys that keep values, with these values.

    Args:
        table: The table of one attempt.
        changes: The changes of the epoch.
        keys: The key columns.
        missing_is_null: Write null for a value of a new row that neither the epoch nor the table
            has.

    Raises:
        CommitRejected: If there is such a value, and it must not become null.
    """
    found = changes.read_incomplete()
    columns = pa.schema(
        [field.with_nullable(nullable=True) for field in to_arrow_columns(table.schema())]
    )
    rows = pa.Table.from_batches([_conform(one, columns) for one in found.rows.to_batches()])
    winners = np.flatnonzero(np.diff(found.groups, append=-1))
    last = rows.take(pa.array(winners))
    sources = {name: _find_sources(found, keeps) for name, keeps in _list_kept(found).items()}
    of_last = {name: source[winners] for name, source in sources.items()}
    needed = np.any([source == _IN_TABLE for source in of_last.values()], axis=0)
    stored, places = _read_stored(table, last, keys, needed)
    is_missing = np.zeros(len(winners), np.bool_)
    for name, source in of_last.items():
        spots = np.where(source == _IN_TABLE, np.where(places < 0, -1, places + len(rows)), source)
        both = pa.chunked_array([*rows[name].chunks, *stored[name].chunks], rows[name].type)
        values = both.take(pa.array(np.maximum(spots, 0), mask=spots < 0))
        last = last.set_column(last.column_names.index(name), last.field(name), values)
        is_missing |= spots < 0
        is_new = (spots < 0) & _follow_insert(found, winners)
        if is_new.any() and not missing_is_null:
            raise _to_rejection(last, int(np.flatnonzero(is_new)[0]), name, keys)
    yield from _drop_unknown_updates(last, is_missing & ~_follow_insert(found, winners), keys)


def _drop_unknown_updates(
    rows: pa.Table, is_unknown: Flags, keys: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    if is_unknown.any():
        key = _describe_key(rows, int(np.flatnonzero(is_unknown)[0]), keys)
        _log.warning(
            "%s: %d updates without some values are of rows that the table does not have, the "
            "first of the row with %s, and change nothing. After a restart of Debezium such events "
            "are repeated ones; otherwise the mirror has begun without a snapshot",
            FORMAT,
            int(is_unknown.sum()),
            key,
        )
        rows = rows.filter(pa.array(~is_unknown))
    yield from rows.to_batches()


def _conform(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    further = [name for name in batch.schema.names if name.startswith("_krishiv_")]
    return conform(batch.drop_columns(further), columns, fill=True)


def _list_kept(found: IncompleteRows) -> Mapping[str, Flags]:
    """Return for each column whether each change keeps its value, if one of them does."""
    lists = pa.concat_arrays(found.rows[KEPT].chunks)
    names, rows = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
    result: dict[str, Flags] = {}
    for name in pc.unique(names).to_pylist():
        flags = np.zeros(len(lists), np.bool_)
        flags[rows[np.asarray(pc.equal(names, name))]] = True
        result[name] = flags
    return result


def _find_sources(found: IncompleteRows, keeps: Flags) -> Numbers:
    """Return for each change the change of its key that has the value of one column.

    Without one, the value is `_IN_TABLE`; after a delete in the epoch there is `_NONE`.
    """
    newest = np.maximum.accumulate(np.where(keeps, -1, np.arange(len(keeps))))
    at = np.maximum(newest, 0)
    is_own = (newest >= 0) & (found.groups[at] == found.groups)
    is_deleted = found.rows[DELETES].to_numpy()[at]
    return np.where(is_own, np.where(is_deleted, _NONE, newest), _IN_TABLE)


def _follow_insert(found: IncompleteRows, winners: Numbers) -> Flags:
    """Return whether an insert is among the changes of each key after its last delete."""
    rows = np.arange(len(found.groups))
    starts = np.r_[True, found.groups[1:] != found.groups[:-1]] | found.rows[DELETES].to_numpy()
    begins = np.maximum.accumulate(np.where(starts, rows, 0))
    counts = np.cumsum(found.rows[INSERTS].to_numpy().astype(np.int64))
    before = np.r_[0, counts][begins]
    result: Flags = (counts - before)[winners] > 0
    return result


def _read_stored(
    table: Table, rows: pa.Table, keys: Sequence[str], needed: Flags
) -> tuple[pa.Table, Numbers]:
    """Return the table's rows of the keys that need one, and for each row its place among them."""
    places = np.full(rows.num_rows, -1, np.int64)
    empty = rows.slice(0, 0)
    if not needed.any():
        return empty, places
    own = list(keys)
    wanted = to_sortable(rows.select(own)).append_column(_ROW, pa.array(np.arange(len(places))))
    wanted = wanted.filter(pa.array(needed))
    lookup = RowLookup(table, keys)
    pieces: list[pa.RecordBatch] = []
    for task in lookup.plan_candidates(wanted.select(own)):
        flags = lookup.find(task, wanted.select(own))
        if flags is not None:
            pieces.extend(filter_rows(lookup.read(task), flags))
    if not pieces:
        return empty, places
    stored = pa.Table.from_batches([_conform(piece, rows.schema) for piece in pieces])
    numbered = to_sortable(stored.select(own))
    numbered = numbered.append_column(_STORED, pa.array(np.arange(stored.num_rows)))
    matches = wanted.join(numbered, own, join_type="inner")
    places[matches[_ROW].to_numpy()] = matches[_STORED].to_numpy()
    return stored, places


def _describe_key(rows: pa.Table, row: int, keys: Sequence[str]) -> str:
    return ", ".join(f"{one} = {str(rows[one][row])[:_MOST_TEXT]!r}" for one in keys)


def _to_rejection(rows: pa.Table, row: int, name: str, keys: Sequence[str]) -> CommitRejected:
    return CommitRejected(
        f"{FORMAT}: the event of the new row with {_describe_key(rows, row, keys)} leaves out the "
        f"value of column {name!r}: the key of a row was changed, and the value was not. Nothing "
        "was committed. Run ALTER TABLE ... REPLICA IDENTITY FULL in the database, so that later "
        "events have all values; to continue with this one, set 'missingValues' = 'null' and "
        "correct the row afterwards"
    )
