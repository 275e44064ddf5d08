"""Upserts that keep values: completed from earlier changes of the epoch, or from the table. Driver.

`kept_values` has the rules. The value of the table is looked up for each attempt to commit, since
another writer may change the row. The row that a changed key had before may have been in an earlier
epoch (`changed_keys`).

If neither has the row, the event is one of two. Debezium repeats events after a restart, and if an
epoch has had later positions of the log, the row was deleted since: the event changes nothing, and
its delete follows. Otherwise the value is lost, and the epoch is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.conform import conform
from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.property_keys import CHANGE_TIME_KEY, POSITION_KEY, find_newest_entry
from krishiv_spark.sinks.iceberg.table_schema import to_arrow_columns
from krishiv_spark.sinks.iceberg.upserts.changed_keys import (
    MOST_PARTITIONS,
    find_moved_rows,
    read_moves,
    read_snapshot_row,
)
from krishiv_spark.sinks.iceberg.upserts.epoch_changes import (
    EpochChanges,
    filter_rows,
    to_sortable,
)
from krishiv_spark.sinks.iceberg.upserts.replaced_rows import RowLookup
from krishiv_spark.sinks.kept_values import (
    NO_CHANGE,
    Flags,
    LogEnd,
    LogTime,
    Numbers,
    are_applied,
    find_rows_before,
    find_sources,
    follow_earlier_moves,
    follow_moves,
    in_table,
    list_kept,
    locate_values,
    to_rejection,
    warn_repeated,
)
from krishiv_spark.sinks.upserts import describe_values

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["complete_upserts", "describe_key", "read_ends", "write_positions"]

_Value = TypeVar("_Value")
_ROW, _STORED = "_krishiv_row", "_krishiv_stored"


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
    winners = found.winners
    last, kept = rows.take(pa.array(winners)), list_kept(found.kept)
    ends = read_ends(table.metadata)
    before = find_rows_before(found, ends)
    read_row = partial(read_snapshot_row, table, keys)
    earlier = find_moved_rows(read_moves(table.metadata).items(), found.rows, read_row)
    moves = follow_moves(found, before)
    states = [before, moves, follow_earlier_moves(moves, earlier.inserts)]
    sources = {
        name: [find_sources(keeps, state)[winners] for state in states]
        for name, keeps in kept.items()
    }
    # In a truncated table, all rows are deleted before these changes.
    before_epoch = None if changes.is_truncated else table
    stored, places = _read_stored(before_epoch, rows, found.groups, keys, sources)
    moved = [_conform(batch, columns) for row in earlier.rows for batch in row.to_batches()]
    known = pa.concat_tables([rows, pa.Table.from_batches(moved, columns)])
    is_missing = np.zeros(len(winners), np.bool_)
    is_repeated = are_applied(found.rows.take(pa.array(winners)), ends)
    for name, alternatives in sources.items():
        spots = np.full(len(winners), -1)
        for source in alternatives:
            spots = np.where(spots < 0, locate_values(source, places, len(known)), spots)
        both = pa.chunked_array([*known[name].chunks, *stored[name].chunks], rows[name].type)
        values = both.take(pa.array(np.maximum(spots, 0), mask=spots < 0))
        last = last.set_column(last.column_names.index(name), last.field(name), values)
        is_missing |= spots < 0
        refused = np.flatnonzero((spots < 0) & ~is_repeated)
        if len(refused) and not missing_is_null:
            raise to_rejection(FORMAT, describe_key(last, int(refused[0]), keys), name)
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
            f"{FORMAT}: the row with {describe_key(rows, row, keys)} would be null in column "
            f"{field.name!r}, which the table requires. Nothing was committed. Make the column "
            f"optional (ALTER TABLE ... ALTER COLUMN {field.name} DROP NOT NULL), or let the "
            "database send all values"
        )


def _drop_repeated(rows: pa.Table, are_repeated: Flags, keys: Sequence[str]) -> pa.Table:
    if are_repeated.any():
        key = describe_key(rows, int(np.flatnonzero(are_repeated)[0]), keys)
        warn_repeated(FORMAT, int(are_repeated.sum()), key)
        rows = rows.filter(pa.array(~are_repeated))
    return rows


def _conform(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    further = [name for name in batch.schema.names if name.startswith("_krishiv_")]
    return conform(batch.drop_columns(further), columns, fill=True)


def read_ends(metadata: TableMetadata) -> dict[str, LogEnd]:
    """Return the end of the changes that the table has, by partition.

    A topic's partitions are not read at one speed, so a position of one says nothing of another.
    The newest epoch has those of all earlier ones; epochs that were rolled back do not count.
    """
    positions = _read_entry(metadata, POSITION_KEY, int)
    times = _read_entry(metadata, CHANGE_TIME_KEY, _to_time)
    return {name: LogEnd(position, times.get(name)) for name, position in positions.items()}


def _to_time(pair: Sequence[Any]) -> LogTime:
    return LogTime(int(pair[0]), int(pair[1]))


def _read_entry(
    metadata: TableMetadata, key: str, convert: Callable[[Any], _Value]
) -> dict[str, _Value]:
    text = find_newest_entry(metadata, key)
    if text is None:
        return {}
    try:
        return {name: convert(value) for name, value in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, IndexError):  # of another program
        return {}


def write_positions(known: Mapping[str, LogEnd], ends: Mapping[str, LogEnd]) -> dict[str, str]:
    """Return the entries for the summary of an epoch: positions, times; none if they are too long.

    Args:
        known: The end of earlier epochs, by partition.
        ends: The end of the epoch, by partition.
    """
    every = {name: end.position for name, end in known.items()}
    for name, end in ends.items():
        every[name] = max(every.get(name, 0), end.position)
    if not every or len(every) > MOST_PARTITIONS:
        return {}
    newest = {name: end.time for name, end in known.items() if end.time is not None}
    for name, end in ends.items():
        if end.time is not None:
            newest[name] = max(newest.get(name, end.time), end.time)
    entries = {POSITION_KEY: every} | ({CHANGE_TIME_KEY: newest} if newest else {})
    return {
        key: json.dumps(value, separators=(",", ":"), sort_keys=True)
        for key, value in entries.items()
    }


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
    needed = np.isin(groups, in_table(every[every < NO_CHANGE])) & (
        np.diff(groups, prepend=-1) != 0
    )
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


def describe_key(rows: pa.Table, row: int, keys: Sequence[str]) -> str:
    """Return the key of a row, for messages."""
    return describe_values(keys, (rows[one][row] for one in keys))
