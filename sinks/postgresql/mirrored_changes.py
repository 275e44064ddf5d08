"""The last changes of an epoch of change data: their order, truncates, unchanged values. Driver.

The rules are those of every keyed sink (`kept_values`). Only positions and numbers of changes come
to the driver; PostgreSQL itself reads the values, from the staging tables, from the table, whose
rows are locked first, and from rows that an earlier epoch has deleted (`deleted_rows`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import sort_distinct
from krishiv_spark.postgresql.catalog import Table
from krishiv_spark.postgresql.connection import DatabaseTransaction
from krishiv_spark.postgresql.names import TableName, quote
from krishiv_spark.postgresql.options import FORMAT
from krishiv_spark.sinks.kept_values import (
    NO_CHANGE,
    Flags,
    IncompleteRows,
    LogEnd,
    LogTime,
    Numbers,
    are_applied,
    find_moved_inserts,
    find_rows_before,
    find_sources,
    follow_earlier_moves,
    follow_moves,
    in_table,
    list_kept,
    list_pending_deletes,
    locate_values,
    refuse_truncate,
    to_rejection,
    warn_repeated,
)
from krishiv_spark.sinks.postgresql.change_positions import ChangePositions, RecordedChanges
from krishiv_spark.sinks.postgresql.change_queries import TASK, ChangeQueries, LastChanges
from krishiv_spark.sinks.postgresql.deleted_rows import EARLIER_TASK, RecordedRow, RecordedRows
from krishiv_spark.sinks.postgresql.staging_tables import ROW
from krishiv_spark.sinks.upserts import (
    CLOCK,
    DELETES,
    KEPT,
    ORDER,
    PARTITION,
    POSITION,
    describe_values,
)
from krishiv_spark.spark.checkpoint import BATCH_PREFIX

__all__ = ["find_mirrored_changes"]

_TASK, _ROW, _DELETES, _KEPT = (quote(name) for name in (TASK, ROW, DELETES, KEPT))
_POSITION, _PARTITION, _ORDER = (quote(name) for name in (POSITION, PARTITION, ORDER))
_CLOCK = quote(CLOCK)
# Names that no column of the table has (`check_names`).
_PLACE_OF_KEY, _NUMBER, _CUT = "_krishiv_place_of_key", "_krishiv_number", "_krishiv_cut"

_NONE = np.empty(0, np.int64)

_FACTS = f"""
SELECT {_PARTITION}, max({_POSITION}), bool_or({_KEPT} IS NOT NULL), bool_or({_DELETES}),
       bool_and({_POSITION} IS NOT NULL OR {_DELETES}), bool_or({{key}} IS NULL),
       bool_and({_ORDER} IS NOT NULL),
       max({_ORDER}) FILTER (WHERE {_DELETES} AND {_POSITION} IS NOT NULL),
       max({_ORDER}) FILTER (WHERE NOT {_DELETES} AND {_POSITION} IS NOT NULL),
       max(ARRAY[{_CLOCK}, {_POSITION}]) FILTER (WHERE {_CLOCK} + {_POSITION} IS NOT NULL)
FROM ({{changes}}) every_change GROUP BY {_PARTITION}
"""  # noqa: S608  names of this package

_INCOMPLETE = f"""
WITH last_deletes AS (SELECT * FROM unnest(%s::text[], %s::bigint[]) AS given(name, place)),
numbered AS MATERIALIZED (
    SELECT {_TASK}, {_ROW}, {_DELETES}, {_KEPT}, {_POSITION}, {_PARTITION}, {_CLOCK},
           {_DELETES} AND {_POSITION} IS NOT NULL
               AND ({_PARTITION}, {_ORDER}) IN (SELECT * FROM last_deletes) AS ends_partition,
           dense_rank() OVER (ORDER BY {{keys}}) AS key_number,
           row_number() OVER (PARTITION BY {{keys}} ORDER BY {{orders}}) AS place,
           row_number() OVER (PARTITION BY {{keys}} ORDER BY {{falling}}) = 1 AS is_last
    FROM ({{changes}}) every_change
), wanted AS (SELECT key_number FROM numbered WHERE is_last AND {_KEPT} IS NOT NULL),
earlier AS (
    SELECT d.key_number FROM numbered d JOIN numbered k ON k.{_POSITION} = d.{_POSITION}
    WHERE d.{_DELETES} AND k.{_KEPT} IS NOT NULL
)
SELECT {_TASK}, {_ROW}, {_DELETES}, {_KEPT}, {_POSITION}, {_PARTITION}, {_CLOCK}, key_number,
       key_number IN (SELECT key_number FROM wanted), ends_partition
FROM numbered
WHERE (key_number IN (SELECT key_number FROM wanted UNION ALL
                      SELECT key_number FROM numbered WHERE ends_partition)
       OR key_number IN (SELECT key_number FROM earlier)) AND NOT ({{is_redundant}})
ORDER BY key_number, place
"""  # noqa: S608  names of this package

_OF_LAST_DELETES = f"""
SELECT each.* FROM ({{changes}}) each WHERE ({{keys}}) IN (
    SELECT {{keys}} FROM ({{changes}}) d
    WHERE {_DELETES} AND ({_PARTITION}, {_ORDER}) IN (SELECT * FROM last_deletes)
)
"""  # noqa: S608  names of this package


class _Ordered(NamedTuple):
    """The changes of an epoch in their order.

    Attributes:
        query: A query of them.
        orders: The expressions of their order, the first one of which counts most.
    """

    query: str
    orders: Sequence[str]


@dataclass(frozen=True)
class _Facts:
    """Facts of an epoch's changes.

    Attributes:
        ends: The highest position and the newest time, by partition of the topic.
        partitions: The partitions.
        keeps_values: Whether a change keeps values.
        has_deletes: Whether a change deletes.
        has_positions: Whether each upsert has a position.
        is_truncated: Whether a change deletes all rows.
        has_offsets: Whether each change has a partition and an offset.
        last_deletes: The offset of the delete with which a partition ends, by partition.
    """

    ends: Mapping[str, LogEnd]
    partitions: list[str]
    keeps_values: bool
    has_deletes: bool
    has_positions: bool
    is_truncated: bool
    has_offsets: bool
    last_deletes: Mapping[str, int]


def find_mirrored_changes(
    transaction: DatabaseTransaction, queries: ChangeQueries, table: Table, query: str
) -> LastChanges:
    """Return the last changes of an epoch of change data, and empty a table that is truncated.

    Args:
        transaction: The transaction of the epoch.
        queries: The queries of its changes.
        table: The table.
        query: Id of the query.

    Raises:
        CommitRejected: If an unchanged value is not known, or the place of a truncate is not.
    """
    changes = queries.select_all()
    facts = _read_facts(transaction, queries, changes)
    ordered = _order_changes(facts, changes, queries.keys)
    if facts.is_truncated:
        refuse_truncate(FORMAT, facts.partitions)
        ordered = _select_after_truncate(ordered, queries.keys[0])
        transaction.run(f"DELETE FROM {table.name.sql}")  # noqa: S608  quoted
    last = queries.select_last(*ordered)
    recorded = _Recorded(transaction, queries, table, query)
    found = _Incomplete(transaction, queries, ordered, facts, recorded)
    completed = found.complete(table)
    if completed is not None:
        names = ", ".join([*queries.names, _DELETES])
        last = (
            f"SELECT {names} FROM ({last}) last_change WHERE {_KEPT} IS NULL "  # noqa: S608
            f"UNION ALL SELECT {names} FROM {completed.sql}"
        )
    deleted = found.find_deleted_rows(table)
    recorded.write(facts.ends, deleted, found.values)
    return LastChanges(last, facts.has_deletes, completed)


def _order_changes(facts: _Facts, changes: str, keys: Sequence[str]) -> _Ordered:
    """Return changes in their order, as in `EpochChanges`.

    A partition is in the order of the database, and its positions start again if the database moves
    to another server. So positions of the database's log count only for keys in several partitions,
    whose offsets are not comparable: a topic got more partitions. Then all changes of a key in one
    partition are later than those in the other.
    """
    orders = [_ORDER, _TASK, _ROW]
    if not facts.has_offsets:
        return _Ordered(changes, [_POSITION, *orders] if facts.has_positions else orders)
    if len(facts.partitions) <= 1:
        return _Ordered(changes, orders)
    key = f"OVER (PARTITION BY {', '.join(keys)})"
    is_split = f"min({_PARTITION}) {key} <> max({_PARTITION}) {key}"
    highest = f"max({_POSITION}) OVER (PARTITION BY {', '.join([*keys, _PARTITION])})"
    placed = f"SELECT *, CASE WHEN {is_split} THEN {highest} END AS {_PLACE_OF_KEY}"
    return _Ordered(f"{placed} FROM ({changes}) placed", [_PLACE_OF_KEY, *orders])


def _read_facts(transaction: DatabaseTransaction, queries: ChangeQueries, changes: str) -> _Facts:
    found = transaction.run(_FACTS.format(changes=changes, key=queries.keys[0])).fetchall()
    partitions, highest, kept, deletes, positions, truncates, offsets, ends, upserts, times = zip(
        *found, strict=True
    )
    known = {
        name: LogEnd(position, None if time is None else LogTime(*time))
        for name, position, time in zip(partitions, highest, times, strict=True)
        if name is not None and position is not None
    }
    named = [name for name in partitions if name is not None]
    has_offsets = all(offsets) and len(named) == len(partitions)
    every = (any(kept), any(deletes), all(positions), any(truncates), has_offsets)
    # An event that changes a key is a delete and an upsert with one offset.
    last_deletes = {
        name: end
        for name, end, upsert in zip(partitions, ends, upserts, strict=True)
        if name in known and end is not None and (upsert is None or upsert < end)
    }
    return _Facts(known, named, *every, last_deletes)


def _select_after_truncate(changes: _Ordered, key: str) -> _Ordered:
    """Return the changes after the last one without a key, which deletes all rows."""
    rising = ", ".join(f"{each} NULLS FIRST" for each in changes.orders)
    number = f"row_number() OVER (ORDER BY {rising}) AS {_NUMBER}"
    cut = f"max({_NUMBER}) FILTER (WHERE {key} IS NULL) OVER () AS {_CUT}"
    ranked = f"SELECT *, {number} FROM ({changes.query}) c"  # noqa: S608
    ends = f"SELECT *, {cut} FROM ({ranked}) r"  # noqa: S608
    return _Ordered(f"SELECT * FROM ({ends}) e WHERE {_NUMBER} > {_CUT}", changes.orders)  # noqa: S608


class _Recorded:
    """The records of a query's earlier epochs in ``krishiv_changes``; a batch job has none."""

    def __init__(
        self, transaction: DatabaseTransaction, queries: ChangeQueries, table: Table, query: str
    ) -> None:
        self._transaction, self._query, self._keys = transaction, query, queries.keys
        self._positions = ChangePositions(table.name)
        self.is_kept = not query.startswith(BATCH_PREFIX)
        columns = queries.staged[0].columns
        self.rows = RecordedRows(transaction, self._positions.name, table.name, query, columns)

    @cached_property
    def changes(self) -> RecordedChanges:
        """The ends of earlier epochs, and their last deletes."""
        if not self.is_kept:
            return RecordedChanges({}, {})
        return self._positions.read(self._transaction, self._query)

    def write(
        self, ends: Mapping[str, LogEnd], deleted: Sequence[RecordedRow], values: str
    ) -> None:
        """Record the ends of this epoch, and the rows with whose delete partitions end.

        Args:
            ends: The ends, by partition.
            deleted: The rows.
            values: A query of the changes, and of rows that were deleted earlier.
        """
        if not self.is_kept:
            return
        known = self.changes
        self._positions.write(self._transaction, self._query, ends)
        pending = list_pending_deletes(known.deletes, known.ends, ends)
        new = [row for row in deleted if row.partition not in pending]
        self.rows.record(new, values, self._keys)
        self.rows.forget(known.deletes.keys() - pending - {row.partition for row in new})


class _Incomplete:
    """The changes of keys whose last upsert keeps values, and of the keys that rows had before.

    A delete with which a partition ends keeps all values: those of its row are recorded.

    Args:
        transaction: The transaction of the epoch.
        queries: The queries of its changes.
        ordered: All that count, in their order.
        facts: Facts of them.
        recorded: The records of earlier epochs.
    """

    def __init__(
        self,
        transaction: DatabaseTransaction,
        queries: ChangeQueries,
        ordered: _Ordered,
        facts: _Facts,
        recorded: _Recorded,
    ) -> None:
        self._transaction, self._queries = transaction, queries
        self._changes, self._orders = ordered
        self._facts, self._recorded = facts, recorded
        self._columns = [column.target for column in queries.staged[0].columns]

    @cached_property
    def _rows(self) -> list[tuple[Any, ...]]:
        ends = self._facts.last_deletes if self._recorded.is_kept else {}
        if not ends and not self._facts.keeps_values:
            return []
        keys, changes, orders = ", ".join(self._queries.keys), self._changes, self._orders
        if not self._facts.keeps_values:
            changes = _OF_LAST_DELETES.format(changes=changes, keys=keys)
        has_positions = self._facts.has_positions
        statement = _INCOMPLETE.format(
            changes=changes,
            keys=keys,
            orders=", ".join(f"{each} NULLS FIRST" for each in orders),
            falling=", ".join(f"{each} DESC NULLS LAST" for each in orders),
            is_redundant=f"{_DELETES} AND {_POSITION} IS NULL" if has_positions else "false",
        )
        return self._transaction.run(statement, [[*ends], [*ends.values()]]).fetchall()

    @cached_property
    def _found(self) -> IncompleteRows:
        names = (DELETES, KEPT, POSITION, PARTITION, CLOCK)
        kinds = (pa.bool_(), pa.list_(pa.string()), pa.int64(), pa.string(), pa.int64())
        columns = [[row[n] for row in self._rows] for n in range(2, 7)]
        columns[1] = [[] if row[9] else row[3] for row in self._rows]
        rows = pa.table(
            [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)],
            names=names,
        )
        numbers = np.array([row[7] for row in self._rows], np.int64)
        groups = np.cumsum(np.diff(numbers, prepend=numbers[:1]) != 0)
        wanted = np.array([row[8] for row in self._rows], np.bool_)
        return IncompleteRows(rows, groups, wanted)

    @cached_property
    def _kept(self) -> Mapping[str, Flags]:
        """For each column of the table, whether each change keeps its value; see `list_kept`."""
        kept = list_kept(self._found.kept)
        return {self._find_target(name): flags for name, flags in kept.items()}

    @cached_property
    def _earlier(self) -> tuple[list[str], Numbers]:
        """The partitions of rows that earlier epochs have deleted, and the inserts of their keys.

        A partition is named once for each insert.
        """
        found = {
            name: find_moved_inserts(name, position, self._found.rows)
            for name, position in self._recorded.changes.deletes.items()
        }
        found = {name: inserts for name, inserts in found.items() if len(inserts)}
        kept = {
            name: [column for column, keeps in self._kept.items() if keeps[inserts].any()]
            for name, inserts in found.items()
        }
        complete = self._recorded.rows.find_complete(kept) if kept else []
        names = [name for name in complete for _ in found[name]]
        return names, np.concatenate([_NONE, *(found[name] for name in complete)])

    @cached_property
    def _ids(self) -> list[tuple[int, int]]:
        """The task and the place of each change, and of each row that was deleted earlier."""
        earlier = range(1, 1 + len(self._earlier[0]))
        return [*(row[:2] for row in self._rows), *((EARLIER_TASK, place) for place in earlier)]

    @property
    def values(self) -> str:
        """A query of the values of `_ids`."""
        names = ", ".join([_TASK, _ROW, *self._queries.names])
        query = f"SELECT {names} FROM ({self._changes}) every_change"  # noqa: S608  quoted
        partitions = self._earlier[0] if self._rows else []
        if not partitions:
            return query
        return f"{query} UNION ALL {self._recorded.rows.select(partitions)}"

    def complete(self, table: Table) -> TableName | None:
        """Return a new table with the last upserts of the keys, with all their values.

        It is None if no last upsert keeps values.

        Args:
            table: The table of the sink.

        Raises:
            CommitRejected: If a value is known to neither the epoch nor the table.
        """
        if not self._rows or not len(self._found.winners):
            return None
        found, winners = self._found, self._found.winners
        spots = self._locate(table, self._kept, winners)
        is_missing = np.zeros(len(winners), np.bool_)
        for each in spots.values():
            is_missing |= each < 0
        ends = self._recorded.changes.ends
        is_repeated = is_missing & are_applied(found.rows.take(pa.array(winners)), ends)
        if not self._queries.effect.missing_is_null:
            self._refuse_missing(spots, winners, is_repeated)
        if is_repeated.any():
            first = self._describe_key(int(winners[is_repeated][0]))
            warn_repeated(FORMAT, int(is_repeated.sum()), first)
        stays = ~is_repeated
        chosen = {name: each[stays] for name, each in spots.items()}
        return self._create(table, winners[stays], chosen)

    def find_deleted_rows(self, table: Table) -> list[RecordedRow]:
        """Return the rows that last deletes of partitions delete, if all their values are known.

        Args:
            table: The table of the sink, which the epoch has not changed yet.
        """
        lasts = np.flatnonzero([row[9] for row in self._rows])
        if not len(lasts):
            return []
        none = np.zeros(len(self._rows), np.bool_)
        kept = {name: self._kept.get(name, none).copy() for name in self._columns}
        for flags in kept.values():
            flags[lasts] = True
        spots = self._locate(table, kept, lasts)
        return [
            RecordedRow(
                self._rows[last][5],
                self._rows[last][4],
                {name: self._find_place(int(each[n])) for name, each in spots.items()},
            )
            for n, last in enumerate(lasts.tolist())
            if all(each[n] >= 0 for each in spots.values())
        ]

    def _find_place(self, spot: int) -> tuple[int, int, bool]:
        """Return the id of a value's change; for a row of the table, one of a change of its key."""
        count = len(self._ids)
        is_stored = spot >= count
        first = int(np.searchsorted(self._found.groups, spot - count)) if is_stored else spot
        task, place = self._ids[first]
        return task, place, is_stored

    def _locate(
        self, table: Table, kept: Mapping[str, Flags], wanted: Numbers
    ) -> Mapping[str, Numbers]:
        """Return the number in `_ids` of the value of each column that some changes keep.

        For a row of the table, it is the number of the key after those of `_ids`; it is -1 if the
        value is not known.
        """
        before = find_rows_before(self._found, self._recorded.changes.ends)
        moved = follow_moves(self._found, before)
        states = [before, moved, follow_earlier_moves(moved, self._earlier[1])]
        sources = {
            name: [find_sources(keeps, state)[wanted] for state in states]
            for name, keeps in kept.items()
        }
        places = self._lock_stored(table, sources)
        return {name: self._choose(each, places) for name, each in sources.items()}

    def _choose(self, alternatives: Sequence[Numbers], places: Numbers) -> Numbers:
        count = len(self._ids)
        found = np.full(len(alternatives[0]), -1)
        for source in alternatives:
            found = np.where(found < 0, locate_values(source, places, count), found)
        return found

    def _lock_stored(self, table: Table, sources: Mapping[str, Sequence[Numbers]]) -> Numbers:
        """Lock the table's rows that have a value, and return their numbers by key; -1 for none.

        The number of such a row is that of its key.
        """
        groups = self._found.groups
        places = np.full(int(groups.max(initial=0)) + 1, -1, np.int64)
        every = [source for pair in sources.values() for source in pair]
        needed = sort_distinct(in_table(np.concatenate([_NONE, *every])))
        needed = needed[(needed >= 0)]
        if self._facts.is_truncated or not len(needed):
            return places
        ids = [self._rows[int(np.searchsorted(groups, group))][:2] for group in needed]
        same = " AND ".join(f"t.{key} = c.{key}" for key in self._queries.keys)
        given = f"unnest({_to_array([task for task, _ in ids])}, {_to_array([r for _, r in ids])})"
        stored = self._transaction.run(
            f"WITH c AS MATERIALIZED ({self._changes}) SELECT c.{_TASK}, c.{_ROW} FROM c "  # noqa: S608
            f"JOIN {given} AS g(task, place) ON c.{_TASK} = g.task AND c.{_ROW} = g.place "
            f"JOIN {table.name.sql} t ON {same} FOR UPDATE OF t"
        )
        known = dict(zip(ids, needed.tolist(), strict=True))
        for row in stored.fetchall():
            places[known[row]] = known[row]
        return places

    def _refuse_missing(
        self, spots: Mapping[str, Numbers], winners: Numbers, is_repeated: Flags
    ) -> None:
        for name, each in spots.items():
            refused = np.flatnonzero((each < 0) & ~is_repeated)
            if len(refused):
                raise to_rejection(FORMAT, self._describe_key(int(winners[refused[0]])), name)

    def _describe_key(self, row: int) -> str:
        """Return the key of a change, for messages."""
        task, place = self._rows[row][:2]
        values = self._transaction.first(
            f"SELECT {', '.join(self._queries.keys)} FROM ({self._changes}) c "  # noqa: S608
            f"WHERE {_TASK} = {task} AND {_ROW} = {place}"
        )
        return describe_values(self._queries.effect.keys, values)

    def _create(self, table: Table, winners: Numbers, spots: Mapping[str, Numbers]) -> TableName:
        """Create the table of complete rows; it is as visible as this transaction."""
        queries, count = self._queries, len(self._ids)
        name = TableName(queries.staged[0].name.schema, f"krishiv_c_{uuid.uuid4().hex[:16]}")
        arrays, joins = self._list_ids(winners), []
        values = dict(zip(queries.names, (f"w.{each}" for each in queries.names), strict=True))
        fields = ["w0", "w1"]
        for n, (column, places) in enumerate(spots.items()):
            target = quote(column)
            arrays += self._list_ids(np.where(places < count, places, NO_CHANGE))
            rows = np.where(places >= count, places - count, NO_CHANGE)
            firsts = np.searchsorted(self._found.groups, np.maximum(rows, 0))
            arrays += self._list_ids(np.where(rows < 0, NO_CHANGE, firsts))
            fields += [f"s{n}a", f"s{n}b", f"g{n}a", f"g{n}b"]
            joins.append(f"LEFT JOIN c s{n} ON s{n}.{_TASK} = m.s{n}a AND s{n}.{_ROW} = m.s{n}b")
            joins.append(f"LEFT JOIN c g{n} ON g{n}.{_TASK} = m.g{n}a AND g{n}.{_ROW} = m.g{n}b")
            same = " AND ".join(f"t{n}.{key} = g{n}.{key}" for key in queries.keys)
            joins.append(f"LEFT JOIN {table.name.sql} t{n} ON {same}")
            values[target] = (
                f"CASE WHEN m.s{n}a IS NOT NULL THEN s{n}.{target} "
                f"WHEN m.g{n}a IS NOT NULL THEN t{n}.{target} END"
            )
        chosen = ", ".join(f"{value} AS {target}" for target, value in values.items())
        given = ", ".join(arrays)
        self._transaction.run(
            f"CREATE UNLOGGED TABLE {name.sql} AS WITH c AS MATERIALIZED ({self.values}) "  # noqa: S608
            f"SELECT {chosen}, false AS {_DELETES} FROM unnest({given}) AS m({', '.join(fields)}) "
            f"JOIN c w ON w.{_TASK} = m.w0 AND w.{_ROW} = m.w1 {' '.join(joins)}"
        )
        return name

    def _list_ids(self, rows: Numbers) -> list[str]:
        """Return arrays of SQL with the tasks and the places of some changes; null for none."""
        ids = [self._ids[row] if row >= 0 else (None, None) for row in rows.tolist()]
        return [_to_array([each[0] for each in ids]), _to_array([each[1] for each in ids])]

    def _find_target(self, column: str) -> str:
        """Return the name in the table of a column of the records."""
        columns = self._queries.staged[0].columns
        exact = (each for each in columns if column in (each.source, each.target))
        other = (each for each in columns if each.target.casefold() == column.casefold())
        return (next(exact, None) or next(other)).target


def _to_array(numbers: Sequence[int | None]) -> str:
    """Return an array of SQL: psycopg cannot bind values in CREATE TABLE AS."""
    texts = ", ".join("NULL" if number is None else str(int(number)) for number in numbers)
    return f"ARRAY[{texts}]::bigint[]"
