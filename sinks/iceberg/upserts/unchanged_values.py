"""Upserts that keep values: completed from earlier changes of the epoch, or from the table. Driver.

A database does not send a large value that a change has not touched: the event has a placeholder.
The value is that of the newest earlier change of the key in the same epoch, and otherwise that of
the table. It is looked up for each attempt to commit, since another writer may change the row.

A changed key is a delete of the old one and an insert of the new one, at one position of the
database's log. The values that the insert keeps are those of the old key's row before the delete,
which may have been in an earlier epoch (`changed_keys`).

If neither has the row, the event is one of two. Debezium repeats events after a restart, and if an
epoch has had later positions of the log, the row was deleted since: the event changes nothing, and
its delete follows. Otherwise the value is lost, and the epoch is refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.schemas import conform
from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.property_keys import POSITION_KEY, find_newest_entry
from krishiv_spark.sinks.iceberg.table_schema import to_arrow_columns
from krishiv_spark.sinks.iceberg.upserts.changed_keys import (
    MovedRows,
    find_moved_rows,
    read_moves,
    read_snapshot_row,
)
from krishiv_spark.sinks.iceberg.upserts.epoch_changes import (
    EpochChanges,
    IncompleteRows,
    filter_rows,
    to_sortable,
)
from krishiv_spark.sinks.iceberg.upserts.replaced_rows import RowLookup
from krishiv_spark.sinks.upserts import DELETES, KEPT, PARTITION, POSITION

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["complete_upserts", "read_positions", "to_rejection", "write_positions"]

_log = logging.getLogger(__name__)
_ROW, _STORED = "_krishiv_row", "_krishiv_stored"
_MOST_TEXT = 60
_MOST_PARTITIONS = 200

_NONE = -1
"""Instead of the change that has a value: no change has it, since the key was deleted before. Lower
numbers are keys whose row in the table has it, see `_in_table`."""

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
        CommitRejected: If there is such a value, and it must not become null; or if a column that
            the table requires would be null.
    """
    found = changes.read_incomplete()
    given = to_arrow_columns(table.schema())
    columns = pa.schema([field.with_nullable(nullable=True) for field in given])
    rows = pa.Table.from_batches([_conform(one, columns) for one in found.rows.to_batches()])
    is_last = np.diff(found.groups, append=-1) != 0
    winners = np.flatnonzero(is_last & found.is_wanted)
    last, kept = rows.take(pa.array(winners)), _list_kept(found)
    before = _find_rows_before(found)
    read_row = partial(read_snapshot_row, table, keys)
    earlier = find_moved_rows(read_moves(table.metadata).items(), found.rows, read_row)
    states = [before, _follow_moves(found, before), _follow_earlier_moves(found, before, earlier)]
    sources = {
        name: [_find_sources(keeps, state)[winners] for state in states]
        for name, keeps in kept.items()
    }
    # In a truncated table, all rows are deleted before these changes.
    before_epoch = None if changes.is_truncated else table
    stored, places = _read_stored(before_epoch, rows, found.groups, keys, sources)
    stored, places = _add_moved(stored, places, earlier.rows)
    is_missing = np.zeros(len(winners), np.bool_)
    is_repeated = _are_applied(table, found, winners)
    for name, alternatives in sources.items():
        spots = np.full(len(winners), -1)
        for source in alternatives:
            spots = np.where(spots < 0, _locate_values(source, places, len(rows)), spots)
        both = pa.chunked_array([*rows[name].chunks, *stored[name].chunks], rows[name].type)
        values = both.take(pa.array(np.maximum(spots, 0), mask=spots < 0))
        last = last.set_column(last.column_names.index(name), last.field(name), values)
        is_missing |= spots < 0
        refused = np.flatnonzero((spots < 0) & ~is_repeated)
        if len(refused) and not missing_is_null:
            raise to_rejection(last, int(refused[0]), name, keys)
    complete = _drop_repeated(last, is_missing & is_repeated, keys)
    _check_required(complete, given, keys)
    yield from complete.to_batches()


def _check_required(rows: pa.Table, columns: pa.Schema, keys: Sequence[str]) -> None:
    """Refuse rows without a value in a required column.

    Raises:
        CommitRejected: If there is one.
    """
    for field in columns:
        if field.nullable or not rows[field.name].null_count:
            continue
        row = int(np.flatnonzero(rows[field.name].is_null())[0])
        raise CommitRejected(
            f"{FORMAT}: the row with {_describe_key(rows, row, keys)} would be null in column "
            f"{field.name!r}, which the table requires. Nothing was committed. Make the column "
            f"optional (ALTER TABLE ... ALTER COLUMN {field.name} DROP NOT NULL), or let the "
            "database send all values"
        )


def _drop_repeated(rows: pa.Table, are_repeated: Flags, keys: Sequence[str]) -> pa.Table:
    if are_repeated.any():
        key = _describe_key(rows, int(np.flatnonzero(are_repeated)[0]), keys)
        _log.warning(
            "%s: %d events that leave out values change nothing, the first of the row with %s: "
            "they are repeated ones, and the row was deleted since",
            FORMAT,
            int(are_repeated.sum()),
            key,
        )
        rows = rows.filter(pa.array(~are_repeated))
    return rows


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


def _in_table(group: Numbers) -> Numbers:
    """Return the number that stands for the row of a key in the table; its own inverse."""
    return -2 - group


def _find_rows_before(found: IncompleteRows) -> Numbers:
    """Return for each change the change that has made its row before."""
    rows = np.arange(len(found.groups))
    is_first = np.diff(found.groups, prepend=-1) != 0
    follows_delete = np.r_[False, found.rows[DELETES].to_numpy()[:-1]]
    return np.where(is_first, _in_table(found.groups), np.where(follows_delete, _NONE, rows - 1))


def _follow_moves(found: IncompleteRows, before: Numbers) -> Numbers:
    """Return the same, where the row of an insert is that of its old key before the delete."""
    positions = found.rows[POSITION].combine_chunks()
    valid = positions.is_valid().to_numpy(zero_copy_only=False)
    numbers = np.asarray(pc.fill_null(positions, 0))
    left = np.flatnonzero(found.rows[DELETES].to_numpy() & valid)
    arrived = found.rows[KEPT].is_valid().to_numpy() & valid
    if not len(left) or not arrived.any():
        return before
    # The first of repeated deletes: after it, the old key has no row.
    first = left[np.unique(numbers[left], return_index=True)[1]]
    spots = np.minimum(np.searchsorted(numbers[first], numbers), len(first) - 1)
    is_moved = arrived & (numbers[first[spots]] == numbers)
    return np.where(is_moved, before[first[spots]], before)


def _follow_earlier_moves(found: IncompleteRows, before: Numbers, earlier: MovedRows) -> Numbers:
    """Return the same, where the row of an insert is that of an old key of an earlier epoch.

    These rows have the numbers of keys after those of the epoch's keys.
    """
    first = int(found.groups.max()) + 1
    moved = np.array(before, np.int64)
    moved[earlier.inserts] = _in_table(first + np.arange(len(earlier.inserts)))
    return moved


def _add_moved(
    stored: pa.Table, places: Numbers, moved: Sequence[pa.Table]
) -> tuple[pa.Table, Numbers]:
    """Return the table's rows and their places with those of old keys of earlier epochs."""
    more = stored.num_rows + np.arange(len(moved))
    rows = [_conform(batch, stored.schema) for row in moved for batch in row.to_batches()]
    every = pa.Table.from_batches([*stored.to_batches(), *rows], stored.schema)
    return every, np.concatenate([places, more])


def _find_sources(keeps: Flags, before: Numbers) -> Numbers:
    """Return for each change the change that has the value of one column.

    Args:
        keeps: For each change, whether it keeps the value.
        before: For each change, the change that has made its row before.
    """
    found = np.where(keeps, before, np.arange(len(keeps)))
    # Each round follows twice as many steps; events that name each other in a circle end, too.
    for _ in range(len(keeps).bit_length() + 1):
        found = np.where(found >= 0, found[np.maximum(found, 0)], found)
    return np.where((found >= 0) & keeps[np.maximum(found, 0)], _NONE, found)


def _locate_values(source: Numbers, places: Numbers, count: int) -> Numbers:
    """Return the row of each value, where the table's rows follow the changes; -1 for none."""
    in_table = source < _NONE
    group = np.where(in_table, _in_table(source), 0)
    stored = places[group]
    return np.where(in_table, np.where(stored < 0, -1, stored + count), source)


def read_positions(metadata: TableMetadata) -> dict[str, int]:
    """Return the highest position of the database's log that the table has, by partition.

    A topic's partitions are not read at one speed, so a position of one says nothing of another.
    The newest epoch has those of all earlier ones; epochs that were rolled back do not count.
    """
    text = find_newest_entry(metadata, POSITION_KEY)
    if text is None:
        return {}
    try:
        return {name: int(position) for name, position in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):  # of another program
        return {}


def write_positions(metadata: TableMetadata, positions: Mapping[str, int]) -> dict[str, str]:
    """Return the entry for the summary of an epoch with these positions; none if it is too long."""
    known = read_positions(metadata)
    every = {
        name: max(known.get(name, 0), positions.get(name, 0)) for name in {**known, **positions}
    }
    if not every or len(every) > _MOST_PARTITIONS:
        return {}
    return {POSITION_KEY: json.dumps(every, separators=(",", ":"), sort_keys=True)}


def _are_applied(table: Table, found: IncompleteRows, winners: Numbers) -> Flags:
    """Return whether earlier epochs have had positions beyond that of the last change of each key.

    A partition is in the order of positions, so such a change is a repeated one. The same position
    is not enough: the delete of an old key has that of the insert of the new one, and the epoch may
    have ended between them.
    """
    newest = read_positions(table.metadata)
    last = found.rows.take(pa.array(winners))
    pairs = zip(last[PARTITION].to_pylist(), last[POSITION].to_pylist(), strict=True)
    return np.array([at is not None and at < newest.get(one, -1) for one, at in pairs], np.bool_)


def _read_stored(
    table: Table | None,
    rows: pa.Table,
    groups: Numbers,
    keys: Sequence[str],
    sources: Mapping[str, Sequence[Numbers]],
) -> tuple[pa.Table, Numbers]:
    """Return the table's rows that have a value, and by number of a key its place among them."""
    places = np.full(int(groups.max()) + 1, -1, np.int64)
    every = np.concatenate([one for pair in sources.values() for one in pair])
    needed = np.isin(groups, _in_table(every[every < _NONE])) & (np.diff(groups, prepend=-1) != 0)
    if table is None or not needed.any():
        return rows.slice(0, 0), places
    own, first = list(keys), rows.filter(pa.array(needed))
    wanted = to_sortable(first.select(own)).append_column(_ROW, pa.array(groups[needed]))
    lookup = RowLookup(table, keys)
    pieces: list[pa.RecordBatch] = []
    for task in lookup.plan_candidates(wanted.select(own)):
        flags = lookup.find(task, wanted.select(own))
        if flags is not None:
            pieces.extend(filter_rows(lookup.read(task), flags))
    if not pieces:
        return rows.slice(0, 0), places
    stored = pa.Table.from_batches([_conform(piece, rows.schema) for piece in pieces])
    numbered = to_sortable(stored.select(own))
    numbered = numbered.append_column(_STORED, pa.array(np.arange(stored.num_rows)))
    matches = wanted.join(numbered, own, join_type="inner")
    places[matches[_ROW].to_numpy()] = matches[_STORED].to_numpy()
    return stored, places


def _describe_key(rows: pa.Table, row: int, keys: Sequence[str]) -> str:
    return ", ".join(f"{one} = {str(rows[one][row])[:_MOST_TEXT]!r}" for one in keys)


def to_rejection(rows: pa.Table, row: int, name: str, keys: Sequence[str]) -> CommitRejected:
    """Return the rejection of an epoch, one of whose rows has no value in a column."""
    return CommitRejected(
        f"{FORMAT}: the event of the row with {_describe_key(rows, row, keys)} leaves out the "
        f"unchanged value of column {name!r}, and neither the table nor the epoch has this row. "
        "Nothing was committed. The topic does not begin with a snapshot, or is compacted; or the "
        "key of the row was changed, and the delete of the old key came in another epoch. Let the "
        "database send all values (in PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL); to "
        "continue with this event, set 'missingValues' = 'null' and correct the row afterwards"
    )
