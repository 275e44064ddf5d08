"""Rules for values that a database did not send: which change, or which stored row, has them.

A database does not send a large value that a change has not touched: the event has a placeholder.
The value is that of the newest earlier change of the key in the same epoch, and otherwise that of
the table. A changed key is a delete of the old one and an insert of the new one, at one position of
the database's log. The values that the insert keeps are those of the old key's row before the
delete. If an epoch ends between the two, the delete is the last event of its partition: the sink
records it, so that a later epoch knows the row.

The rules know positions and keys of changes only, so that each sink reads and writes values in its
own way. Driver.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import CommitRejected
from krishiv_spark.sinks.upserts import CLOCK, DELETES, KEPT, PARTITION, POSITION

__all__ = [
    "NO_CHANGE",
    "Flags",
    "IncompleteRows",
    "LogEnd",
    "LogTime",
    "Numbers",
    "are_applied",
    "find_moved_inserts",
    "find_rows_before",
    "find_sources",
    "follow_earlier_moves",
    "follow_moves",
    "in_table",
    "list_kept",
    "list_pending_deletes",
    "locate_values",
    "refuse_truncate",
    "to_rejection",
    "warn_repeated",
]

NO_CHANGE = -1
"""No source: the key was deleted. Numbers below it encode a key (`in_table`)."""

_log = logging.getLogger(__name__)

_SHOWN_PARTITIONS = 5

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


class LogTime(NamedTuple):
    """The time of a change in a database, which orders the changes of a partition.

    Attributes:
        micros: Microseconds since 1970 UTC.
        position: The highest position of the log at that time.
    """

    micros: int
    position: int


class LogEnd(NamedTuple):
    """The end of the changes of a partition.

    Attributes:
        position: The highest position in the log of the database.
        time: The newest time; None if it is not known.
    """

    position: int
    time: LogTime | None


@dataclass(frozen=True)
class IncompleteRows:
    """The changes of some keys in their order, and of the keys that their rows had before.

    Attributes:
        rows: The changes, with further columns; those of one key are next to each other.
        groups: For each change, the number of its key, ascending.
        is_wanted: For each change, whether the last change of its key is an upsert that keeps
            values. Otherwise the key is one that a row had before.
    """

    rows: pa.Table
    groups: np.ndarray[Any, Any]
    is_wanted: np.ndarray[Any, Any]

    @property
    def kept(self) -> pa.Array:
        """For each change the names of the columns that keep their values, or null."""
        return pa.concat_arrays(self.rows[KEPT].chunks)

    @property
    def winners(self) -> Numbers:
        """The last changes of the keys that keep values."""
        is_last = np.diff(self.groups, append=-1) != 0
        return np.flatnonzero(is_last & self.is_wanted)


def list_kept(kept: pa.Array, first: int = 0) -> Mapping[str, Flags]:
    """Return for each column whether each change keeps its value, if one of them does.

    Args:
        kept: For each change, the names of the columns that keep their values, or null.
        first: Flags of other rows, all false, before those of the changes.
    """
    names, rows = kept.flatten(), pc.list_parent_indices(kept).to_numpy()
    result: dict[str, Flags] = {}
    for name in pc.unique(names).to_pylist():
        flags = np.zeros(first + len(kept), np.bool_)
        flags[first + rows[np.asarray(pc.equal(names, name))]] = True
        result[name] = flags
    return result


def in_table(group: Numbers) -> Numbers:
    """Return the number that stands for the row of a key in the table; its own inverse."""
    return -2 - group


def find_rows_before(found: IncompleteRows, ends: Mapping[str, LogEnd]) -> Numbers:
    """Return for each change the change that wrote the row's previous state.

    The table has the effects of all repeated events. If the delete of a key and its insert are both
    repeated, the table's row of the key, which is later than both, has the value of the insert.

    Args:
        found: The changes.
        ends: The end of earlier epochs, by partition.
    """
    rows, stored = np.arange(len(found.groups)), in_table(found.groups)
    is_first = np.diff(found.groups, prepend=-1) != 0
    follows_delete = np.r_[False, found.rows[DELETES].to_numpy()[:-1]]
    before = np.where(is_first, stored, np.where(follows_delete, NO_CHANGE, rows - 1))
    inserts = np.flatnonzero(before == NO_CHANGE)
    deletes = found.rows.take(pa.array(inserts - 1))
    # A tombstone, which has no position, may be between the two.
    is_again = _compare(deletes, ends, operator.le) | deletes[POSITION].is_null().to_numpy()
    is_again &= _compare(found.rows.take(pa.array(inserts)), ends, operator.le)
    before[inserts[is_again]] = stored[inserts[is_again]]
    return before


def follow_moves(found: IncompleteRows, before: Numbers) -> Numbers:
    """Return `before`, but point the insert of a changed key to the old key before its delete.

    Args:
        found: The changes.
        before: For each change, the change that wrote the row's previous state.
    """
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


def list_pending_deletes(
    deletes: Mapping[str, int], known: Mapping[str, LogEnd], ends: Mapping[str, LogEnd]
) -> frozenset[str]:
    """Return the partitions whose recorded delete stays recorded after an epoch.

    A higher position of the epoch means that the insert of the delete has come, or never will; and
    so does a newer time, since positions start again on another server. Otherwise the events are
    repeated ones: the insert follows, and the epoch's own last delete does not count.

    Args:
        deletes: The position of the recorded delete, by partition.
        known: The end of earlier epochs, by partition.
        ends: The end of the epoch, by partition.
    """
    return frozenset(
        name
        for name, at in deletes.items()
        if name not in ends
        or (ends[name].position <= at and not _is_newer(ends[name], known.get(name)))
    )


def _is_newer(end: LogEnd, known: LogEnd | None) -> bool:
    if end.time is None or known is None or known.time is None:
        return False
    return end.time.micros > known.time.micros


def find_moved_inserts(partition: str, position: int, changes: pa.Table) -> Numbers:
    """Return the inserts that keep values of a row that an earlier epoch has deleted.

    Args:
        partition: The partition of the delete. Positions of another one are no evidence, since its
            events may be those of another database.
        position: The position of the delete.
        changes: Further columns of the changes of the epoch.
    """
    is_insert = pc.and_(changes[KEPT].is_valid(), pc.invert(changes[DELETES]))
    is_same = pc.and_(
        pc.equal(changes[PARTITION], partition), pc.equal(changes[POSITION], position)
    )
    flags = pc.fill_null(pc.and_(is_insert, is_same), fill_value=False)
    return np.flatnonzero(flags)


def follow_earlier_moves(before: Numbers, inserts: Numbers) -> Numbers:
    """Return `before`, but point some inserts to the rows that earlier epochs have deleted.

    Args:
        before: For each change, the change that wrote the row's previous state.
        inserts: The inserts. Their rows have the numbers after those of the changes, in this order.
    """
    moved = len(before) + np.arange(len(inserts))
    followed = before.copy()
    followed[inserts] = moved
    return np.concatenate([followed, moved])


def find_sources(keeps: Flags, before: Numbers) -> Numbers:
    """Return for each change the change that has the value of one column.

    Args:
        keeps: For each change, whether it keeps the value.
        before: For each change, the change that wrote the row's previous state. Numbers after those
            of the changes are rows that have all values.
    """
    keeps = np.r_[keeps, np.zeros(len(before) - len(keeps), np.bool_)]
    found = np.where(keeps, before, np.arange(len(keeps)))
    # Each round follows twice as many steps; events that name each other in a circle end, too.
    for _ in range(len(keeps).bit_length() + 1):
        found = np.where(found >= 0, found[np.maximum(found, 0)], found)
    return np.where((found >= 0) & keeps[np.maximum(found, 0)], NO_CHANGE, found)


def locate_values(source: Numbers, places: Numbers, count: int) -> Numbers:
    """Return the row of each value, where the table's rows follow the changes; -1 for none.

    Args:
        source: For each change, the change or the key that has the value.
        places: By number of a key, its place among the table's rows; -1 for none.
        count: Number of the changes.
    """
    is_stored = source < NO_CHANGE
    group = np.where(is_stored, in_table(source), 0)
    stored = places[group]
    return np.where(is_stored, np.where(stored < 0, -1, stored + count), source)


def are_applied(rows: pa.Table, ends: Mapping[str, LogEnd]) -> Flags:
    """Return whether earlier epochs have had later changes of a partition than some changes.

    A partition is in the order of positions, so such a change is a repeated one. The same position
    is not enough: the delete of an old key has that of the insert of the new one, and the epoch may
    have ended between them. Nor is a lower one, since positions start again on another server: a
    change that has a time is repeated only if it is not newer than the newest one, either.

    Args:
        rows: The changes.
        ends: The end of earlier epochs, by partition.
    """
    return _compare(rows, ends, operator.lt)


def _compare(
    rows: pa.Table, ends: Mapping[str, LogEnd], compare: Callable[[Any, Any], bool]
) -> Flags:
    """Return the result of a comparison of each change with the end of its partition."""

    def is_true(end: LogEnd | None, position: int | None, clock: int | None) -> bool:
        if end is None or position is None or not compare(position, end.position):
            return False
        return clock is None or end.time is None or compare(LogTime(clock, position), end.time)

    has_clocks = CLOCK in rows.column_names  # which an earlier version did not stage
    clocks = rows[CLOCK].to_pylist() if has_clocks else [None] * rows.num_rows
    places = zip(rows[PARTITION].to_pylist(), rows[POSITION].to_pylist(), clocks, strict=True)
    return np.array([is_true(ends.get(one), at, clock) for one, at, clock in places], np.bool_)


def to_rejection(format_name: str, key: str, name: str) -> CommitRejected:
    """Return the rejection of an epoch, one of whose rows has no value in a column.

    Args:
        format_name: The name of the sink.
        key: The key of the row, as text.
        name: The column.
    """
    return CommitRejected(
        f"{format_name}: the event of the row with {key} leaves out the unchanged value of column "
        f"{name!r}, and neither the table nor the epoch has this row. Nothing was committed. The "
        "topic does not begin with a snapshot, or is compacted; or the key of the row was changed, "
        "and the delete of the old key came in another epoch. Let the database send all values (in "
        "PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL); to continue with this event, set "
        "'missingValues' = 'null' and correct the row afterwards"
    )


def warn_repeated(format_name: str, count: int, key: str) -> None:
    """Log that repeated events without a value of a deleted row change nothing.

    Args:
        format_name: The name of the sink.
        count: Number of the events.
        key: The key of the first one's row, as text.
    """
    _log.warning(
        "%s: %d events that leave out values change nothing, the first of the row with %s: "
        "they are repeated ones, and the row was deleted since",
        format_name,
        count,
        key,
    )


def refuse_truncate(format_name: str, partitions: list[str]) -> None:
    """Refuse an epoch that truncates the table and has events of several partitions.

    Raises:
        CommitRejected: If there are several.
    """
    if len(partitions) > 1:
        raise CommitRejected(
            f"{format_name}: the table was truncated, and the epoch has events of the partitions "
            f"{', '.join(sorted(partitions)[:_SHOWN_PARTITIONS])}, which have no common order. "
            "Nothing was committed. Truncated tables need a topic with one partition: build the "
            "mirror again from such a topic, or set 'truncateEvents' = 'ignore' and delete the "
            "rows yourself"
        )
