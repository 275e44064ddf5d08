"""Rows whose key has changed, and the delete of the old key in an earlier epoch. Driver.

The insert of the new key keeps values of the row with the old key (`unchanged_values`). If the
epoch ended between the two, the key of that row is no longer known. So the summary of an epoch
records, for each partition of the topic whose last event was a delete, the position of this delete,
its key, and the snapshot before the epoch.

A history still has the row: the version that the delete has ended. A mirror has it in the snapshot
before the epoch. If the epoch had changed the row before its delete, it records nothing: that
snapshot has older values. If the snapshot has expired, the insert is refused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.iceberg.property_keys import MOVE_KEY, find_newest_entry
from krishiv_spark.sinks.iceberg.upserts.epoch_changes import (
    EpochChanges,
    filter_rows,
    to_sortable,
)
from krishiv_spark.sinks.iceberg.upserts.replaced_rows import RowLookup
from krishiv_spark.sinks.kept_values import LogEnd, find_moved_inserts, list_pending_deletes
from krishiv_spark.sinks.upserts import PARTITION, POSITION

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

__all__ = [
    "MOST_PARTITIONS",
    "LastDelete",
    "MovedRows",
    "find_last_deletes",
    "find_moved_rows",
    "read_moves",
    "read_snapshot_row",
    "write_moves",
]

MOST_PARTITIONS = 200
"""Partitions of which a summary has entries; with more, it would grow with each epoch."""

Moves: TypeAlias = "Mapping[str, LastDelete]"
"""The last delete of each partition that ended with one."""


@dataclass(frozen=True)
class LastDelete:
    """A delete that was the last event of its partition in an epoch.

    Attributes:
        position: Its position in the database's log.
        key: Its key: one row.
        snapshot: The snapshot before the epoch; None for none, and before it is committed.
    """

    position: int
    key: pa.Table
    snapshot: int | None = None


@dataclass(frozen=True)
class MovedRows:
    """Inserts whose old key an earlier epoch has deleted.

    Attributes:
        inserts: Their indices among the changes of the epoch.
        rows: For each, the row of its old key: a table with one row.
    """

    inserts: NDArray[np.int64]
    rows: Sequence[pa.Table]


def find_last_deletes(epoch: EpochChanges, keys: Sequence[str]) -> Moves:
    """Return the deletes with which partitions end.

    Args:
        epoch: The changes of an epoch.
        keys: The key columns.
    """
    found: dict[str, LastDelete] = {}
    deletes = epoch.last_deletes
    if deletes is None:
        return found
    for row in range(deletes.num_rows):
        one = deletes.slice(row, 1)
        key = one.select(list(keys)).combine_chunks()
        found[one[PARTITION][0].as_py()] = LastDelete(one[POSITION][0].as_py(), key)
    return found


def write_moves(
    metadata: TableMetadata, moves: Moves, known: Mapping[str, LogEnd], ends: Mapping[str, LogEnd]
) -> dict[str, str]:
    """Return the entry for the summary of an epoch; an empty one ends that of an earlier epoch.

    Args:
        metadata: The table of one attempt.
        moves: The last deletes of the epoch.
        known: The end of earlier epochs, by partition.
        ends: The end of the epoch, by partition.
    """
    snapshot = metadata.current_snapshot_id
    earlier = read_moves(metadata)
    deletes = {name: one.position for name, one in earlier.items()}
    kept = {name: earlier[name] for name in list_pending_deletes(deletes, known, ends)}
    new = {name: LastDelete(one.position, one.key, snapshot) for name, one in moves.items()}
    every = {**new, **kept}
    if len(every) > MOST_PARTITIONS:
        every = {}
    if not (every or earlier):
        return {}
    texts = {
        name: [each.position, each.snapshot, _encode(each.key)] for name, each in every.items()
    }
    return {MOVE_KEY: json.dumps(texts, separators=(",", ":"), sort_keys=True)}


def read_moves(metadata: TableMetadata) -> Moves:
    """Return the last deletes of the newest epoch in the table's current history."""
    text = find_newest_entry(metadata, MOVE_KEY)
    if text is None:
        return {}
    try:
        return {
            name: LastDelete(int(position), _decode(key), None if before is None else int(before))
            for name, (position, before, key) in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError, pa.ArrowException):  # of another program
        return {}


def _encode(key: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, key.schema) as stream:
        stream.write_table(key)
    return base64.b64encode(sink.getvalue()).decode()


def _decode(text: str) -> pa.Table:
    return pa.ipc.open_stream(base64.b64decode(text)).read_all()


def find_moved_rows(
    moves: Iterable[tuple[str, LastDelete]],
    changes: pa.Table,
    read_row: Callable[[LastDelete], pa.Table | None],
) -> MovedRows:
    """Return the inserts whose old key an earlier epoch has deleted, and the rows before that.

    Args:
        moves: The deletes, each with its partition.
        changes: Further columns of the changes of the epoch.
        read_row: Returns the row that a delete has deleted; None if it cannot be read.
    """
    found: list[int] = []
    rows: list[pa.Table] = []
    for name, move in moves:
        inserts = find_moved_inserts(name, move.position, changes)
        row = read_row(move) if len(inserts) else None
        if row is not None:
            found.extend(inserts.tolist())
            rows.extend([row] * len(inserts))
    return MovedRows(np.array(found, np.int64), rows)


def read_snapshot_row(table: Table, keys: Sequence[str], move: LastDelete) -> pa.Table | None:
    """Return the row of a mirror as it was before its delete; None if it cannot be read.

    Args:
        table: The table of one attempt.
        keys: The key columns.
        move: The delete.
    """
    metadata = table.metadata
    snapshot = metadata.snapshot_by_id(move.snapshot) if move.snapshot is not None else None
    own = list(keys)
    is_readable = snapshot is not None and move.key.column_names == own
    if not is_readable or snapshot is None or snapshot.schema_id != metadata.current_schema_id:
        return None
    wanted = to_sortable(move.key)
    lookup = RowLookup(table, own, snapshot.snapshot_id)
    pieces: list[Any] = []
    for task in lookup.plan_candidates(wanted):
        flags = lookup.find(task, wanted)
        if flags is not None:
            pieces.extend(filter_rows(lookup.read(task), flags))
    found = pa.Table.from_batches(pieces) if pieces else None
    return found if found is not None and found.num_rows == 1 else None
