"""The last changes of an epoch of change data: their order, truncates, unchanged values. Driver.

The rules are those of every keyed sink (`kept_values`). Only positions and numbers of changes come
to the driver; PostgreSQL itself reads the values, from the staging tables and from the table, whose
rows are locked first.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

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
    find_rows_before,
    find_sources,
    follow_moves,
    in_table,
    list_kept,
    locate_values,
    refuse_truncate,
    to_rejection,
    warn_repeated,
)
from krishiv_spark.sinks.postgresql.change_positions import ChangePositions
from krishiv_spark.sinks.postgresql.change_queries import TASK, ChangeQueries, LastChanges
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

_FACTS = f"""
SELECT {_PARTITION}, max({_POSITION}), bool_or({_KEPT} IS NOT NULL), bool_or({_DELETES}),
       bool_and({_POSITION} IS NOT NULL OR {_DELETES}), bool_or({{key}} IS NULL),
       bool_and({_ORDER} IS NOT NULL),
       max(ARRAY[{_CLOCK}, {_POSITION}]) FILTER (WHERE {_CLOCK} + {_POSITION} IS NOT NULL)
FROM ({{changes}}) every_change GROUP BY {_PARTITION}
"""  # noqa: S608  names of this package

_INCOMPLETE = f"""
WITH numbered AS MATERIALIZED (
    SELECT {_TASK}, {_ROW}, {_DELETES}, {_KEPT}, {_POSITION}, {_PARTITION}, {_CLOCK},
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
       key_number IN (SELECT key_number FROM wanted)
FROM numbered
WHERE (key_number IN (SELECT key_number FROM wanted)
       OR key_number IN (SELECT key_number FROM earlier)) AND NOT ({{is_redundant}})
ORDER BY key_number, place
"""  # noqa: S608  names of this package


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
    """

    ends: Mapping[str, LogEnd]
    partitions: list[str]
    keeps_values: bool
    has_deletes: bool
    has_positions: bool
    is_truncated: bool
    has_offsets: bool


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
    changes, orders = _order_changes(facts, changes, queries.keys)
    if facts.is_truncated:
        refuse_truncate(FORMAT, facts.partitions)
        changes = _select_after_truncate(changes, queries.keys[0], orders)
        transaction.run(f"DELETE FROM {table.name.sql}")  # noqa: S608  quoted
    last = queries.select_last(changes, orders)
    positions = _Positions(transaction, table, query)
    completed = None
    if facts.keeps_values:
        found = _Incomplete(transaction, queries, changes, orders, facts)
        completed = found.complete(table, positions.read())
    if completed is not None:
        names = ", ".join([*queries.names, _DELETES])
        last = (
            f"SELECT {names} FROM ({last}) last_change WHERE {_KEPT} IS NULL "  # noqa: S608
            f"UNION ALL SELECT {names} FROM {completed.sql}"
        )
    positions.write(facts.ends)
    return LastChanges(last, facts.has_deletes, completed)


def _order_changes(facts: _Facts, changes: str, keys: Sequence[str]) -> tuple[str, list[str]]:
    """Return the query of changes, and the expressions of their order, as in `EpochChanges`.

    A partition is in the order of the database, and its positions start again if the database moves
    to another server. So positions of the database's log count only for keys in several partitions,
    whose offsets are not comparable: a topic got more partitions.
    """
    orders = [_ORDER, _TASK, _ROW]
    if not facts.has_positions or (facts.has_offsets and len(facts.partitions) <= 1):
        return changes, orders
    if not facts.has_offsets:
        return changes, [_POSITION, *orders]
    key = f"OVER (PARTITION BY {', '.join(keys)})"
    is_split = f"min({_PARTITION}) {key} <> max({_PARTITION}) {key}"
    placed = f"SELECT *, CASE WHEN {is_split} THEN {_POSITION} END AS place_of_key"
    return f"{placed} FROM ({changes}) placed", ["place_of_key", *orders]


def _read_facts(transaction: DatabaseTransaction, queries: ChangeQueries, changes: str) -> _Facts:
    found = transaction.run(_FACTS.format(changes=changes, key=queries.keys[0])).fetchall()
    partitions, highest, kept, deletes, positions, truncates, offsets, times = zip(
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
    return _Facts(known, named, *every)


def _select_after_truncate(changes: str, key: str, orders: Sequence[str]) -> str:
    """Return the query of the changes after the last one without a key, which deletes all rows."""
    rising = ", ".join(f"{each} NULLS FIRST" for each in orders)
    ranked = f"SELECT *, row_number() OVER (ORDER BY {rising}) AS place FROM ({changes}) c"  # noqa: S608
    ends = f"SELECT *, max(place) FILTER (WHERE {key} IS NULL) OVER () AS cut FROM ({ranked}) r"  # noqa: S608
    return f"SELECT * FROM ({ends}) e WHERE place > cut"  # noqa: S608


class _Positions:
    """The positions of a query's earlier epochs; a batch job has none."""

    def __init__(self, transaction: DatabaseTransaction, table: Table, query: str) -> None:
        self._transaction, self._query = transaction, query
        self._positions = ChangePositions(table.name)
        self._is_kept = not query.startswith(BATCH_PREFIX)

    def read(self) -> Mapping[str, LogEnd]:
        """Return them, by partition."""
        if not self._is_kept:
            return {}
        return self._positions.read(self._transaction, self._query)

    def write(self, ends: Mapping[str, LogEnd]) -> None:
        """Record those of this epoch."""
        if self._is_kept:
            self._positions.write(self._transaction, self._query, ends)


class _Incomplete:
    """The changes of keys whose last upsert keeps values, and of the keys that rows had before.

    Args:
        transaction: The transaction of the epoch.
        queries: The queries of its changes.
        changes: The query of all that count.
        orders: The expressions of their order.
        facts: Facts of them.
    """

    def __init__(
        self,
        transaction: DatabaseTransaction,
        queries: ChangeQueries,
        changes: str,
        orders: Sequence[str],
        facts: _Facts,
    ) -> None:
        self._transaction, self._queries = transaction, queries
        self._changes, self._facts = changes, facts
        is_redundant = f"{_DELETES} AND {_POSITION} IS NULL" if facts.has_positions else "false"
        self._read = _INCOMPLETE.format(
            changes=changes,
            keys=", ".join(queries.keys),
            orders=", ".join(f"{each} NULLS FIRST" for each in orders),
            falling=", ".join(f"{each} DESC NULLS LAST" for each in orders),
            is_redundant=is_redundant,
        )

    @cached_property
    def _rows(self) -> list[tuple[Any, ...]]:
        return self._transaction.run(self._read).fetchall()

    @cached_property
    def _found(self) -> IncompleteRows:
        names = (DELETES, KEPT, POSITION, PARTITION, CLOCK)
        kinds = (pa.bool_(), pa.list_(pa.string()), pa.int64(), pa.string(), pa.int64())
        columns = [[row[n] for row in self._rows] for n in range(2, 7)]
        rows = pa.table(
            [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)],
            names=names,
        )
        numbers = np.array([row[7] for row in self._rows], np.int64)
        groups = np.cumsum(np.diff(numbers, prepend=numbers[:1]) != 0)
        wanted = np.array([row[8] for row in self._rows], np.bool_)
        return IncompleteRows(rows, groups, wanted)

    def complete(self, table: Table, ends: Mapping[str, LogEnd]) -> TableName | None:
        """Return a new table with the last upserts of the keys, with all their values.

        It is None if no last upsert keeps values.

        Args:
            table: The table of the sink.
            ends: The highest position and the newest time of earlier epochs, by partition.

        Raises:
            CommitRejected: If a value is known to neither the epoch nor the table.
        """
        if not self._rows:
            return None
        found = self._found
        winners, kept = found.winners, list_kept(found.kept)
        before = find_rows_before(found)
        states = [before, follow_moves(found, before)]
        sources = {
            name: [find_sources(keeps, state)[winners] for state in states]
            for name, keeps in kept.items()
        }
        places = self._lock_stored(table, sources)
        spots = {name: self._locate(each, places) for name, each in sources.items()}
        is_missing = np.zeros(len(winners), np.bool_)
        for each in spots.values():
            is_missing |= each < 0
        is_repeated = is_missing & are_applied(found.rows.take(pa.array(winners)), ends)
        if not self._queries.effect.missing_is_null:
            self._refuse_missing(spots, winners, is_repeated)
        if is_repeated.any():
            first = self._describe_key(int(winners[is_repeated][0]))
            warn_repeated(FORMAT, int(is_repeated.sum()), first)
        stays = ~is_repeated
        chosen = {name: each[stays] for name, each in spots.items()}
        return self._create(table, winners[stays], chosen)

    def _locate(self, alternatives: Sequence[Numbers], places: Numbers) -> Numbers:
        count = len(self._rows)
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
        needed = np.unique(in_table(np.concatenate([np.empty(0, np.int64), *every])))
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
        queries, count = self._queries, len(self._rows)
        name = TableName(queries.staged[0].name.schema, f"krishiv_c_{uuid.uuid4().hex[:16]}")
        arrays, joins = self._list_ids(winners), []
        values = dict(zip(queries.names, (f"w.{each}" for each in queries.names), strict=True))
        fields = ["w0", "w1"]
        same = " AND ".join(f"t{{n}}.{key} = g{{n}}.{key}" for key in queries.keys)
        for n, (column, places) in enumerate(spots.items()):
            target = self._find_target(column)
            arrays += self._list_ids(np.where(places < count, places, NO_CHANGE))
            rows = np.where(places >= count, places - count, NO_CHANGE)
            firsts = np.searchsorted(self._found.groups, np.maximum(rows, 0))
            arrays += self._list_ids(np.where(rows < 0, NO_CHANGE, firsts))
            fields += [f"s{n}a", f"s{n}b", f"g{n}a", f"g{n}b"]
            joins.append(f"LEFT JOIN c s{n} ON s{n}.{_TASK} = m.s{n}a AND s{n}.{_ROW} = m.s{n}b")
            joins.append(f"LEFT JOIN c g{n} ON g{n}.{_TASK} = m.g{n}a AND g{n}.{_ROW} = m.g{n}b")
            joins.append(f"LEFT JOIN {table.name.sql} t{n} ON {same.format(n=n)}")
            values[target] = (
                f"CASE WHEN m.s{n}a IS NOT NULL THEN s{n}.{target} "
                f"WHEN m.g{n}a IS NOT NULL THEN t{n}.{target} END"
            )
        chosen = ", ".join(f"{value} AS {target}" for target, value in values.items())
        given = ", ".join(arrays)
        self._transaction.run(
            f"CREATE UNLOGGED TABLE {name.sql} AS WITH c AS MATERIALIZED ({self._changes}) "  # noqa: S608
            f"SELECT {chosen}, false AS {_DELETES} FROM unnest({given}) AS m({', '.join(fields)}) "
            f"JOIN c w ON w.{_TASK} = m.w0 AND w.{_ROW} = m.w1 {' '.join(joins)}"
        )
        return name

    def _list_ids(self, rows: Numbers) -> list[str]:
        """Return arrays of SQL with the tasks and the places of some changes; null for none."""
        ids = [self._rows[row][:2] if row >= 0 else (None, None) for row in rows.tolist()]
        return [_to_array([each[0] for each in ids]), _to_array([each[1] for each in ids])]

    def _find_target(self, column: str) -> str:
        """Return the name in the table of a column of the records."""
        columns = self._queries.staged[0].columns
        exact = (each for each in columns if column in (each.source, each.target))
        other = (each for each in columns if each.target.casefold() == column.casefold())
        return quote((next(exact, None) or next(other)).target)


def _to_array(numbers: Sequence[int | None]) -> str:
    """Return an array of SQL: psycopg cannot bind values in CREATE TABLE AS."""
    texts = ", ".join("NULL" if number is None else str(int(number)) for number in numbers)
    return f"ARRAY[{texts}]::bigint[]"
