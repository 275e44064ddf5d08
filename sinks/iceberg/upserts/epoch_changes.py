"""The changes of an epoch of upserts, as the driver reads them: the last one of each key. Driver.

Only the keys of an epoch and the values of `orderColumn` are in memory. The rows are read when they
are written, batch by batch, since they may have many gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.cast import is_uuid
from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.conform import conform
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.parquet.inputs import open_input
from krishiv_spark.parquet.row_groups import read_all
from krishiv_spark.sinks.iceberg.data_files import sort_indices

if TYPE_CHECKING:
    from pyiceberg.io import FileIO


from krishiv_spark.sinks.iceberg.upserts.upsert_staging import UpsertSpec
from krishiv_spark.sinks.kept_values import IncompleteRows, LogEnd, LogTime, refuse_truncate
from krishiv_spark.sinks.upserts import (
    CLOCK,
    DELETES,
    FURTHER,
    KEPT,
    ORDER,
    PARTITION,
    POSITION,
    drop_further,
)

__all__ = [
    "EpochChanges",
    "filter_rows",
    "find_end_deletes",
    "find_positions",
    "number_keys",
    "to_sortable",
]

_RANK, _ROW, _GROUP = "_krishiv_rank", "_krishiv_row", "_krishiv_group"


@dataclass(frozen=True)
class _LastChanges:
    """The last change of each key.

    Attributes:
        keys: The keys, each once.
        winners: The number of the last change of each key.
        stays: For each change, whether it is the last of its key, an upsert, and has all values.
        ranks: For each change, its place in the order of all changes.
        groups: For each change, the number of its key; -1 for keys that are complete. Empty if all
            keys are complete.
        wanted: Numbers of the keys whose last upsert keeps values.
        is_truncated: Whether a change deletes all rows before it. Earlier changes have no effect.
        positions: The highest position of the database's log by partition of the topic.
        times: The newest time in the database, likewise.
        deletes: See `EpochChanges.last_deletes`.
    """

    keys: pa.Table
    winners: np.ndarray[Any, Any]
    stays: np.ndarray[Any, Any]
    ranks: np.ndarray[Any, Any]
    groups: np.ndarray[Any, Any]
    wanted: np.ndarray[Any, Any]
    is_truncated: bool
    positions: Mapping[str, int]
    times: Mapping[str, LogTime]
    deletes: pa.Table | None


_NO_NUMBERS = np.empty(0, np.int64)


def _have_positions(changes: pa.Table) -> bool:
    """Return True if each upsert has a position of the database's log."""
    has_position = pc.or_(changes[POSITION].is_valid(), changes[DELETES])
    return bool(pc.all(has_position, min_count=0).as_py())


def _find_highest(changes: pa.Table, keys: Sequence[str]) -> pa.ChunkedArray | None:
    """Return for changes of keys in several partitions the highest position of key and partition.

    A key is in two partitions after a topic got more of them: then all its changes in one are
    later than those in the other. A partition in which a snapshot alone has read the row, which has
    no position, is the earlier one.

    Returns:
        A column with null for other keys; None if no key is in several partitions.
    """
    if pc.count_distinct(changes[PARTITION]).as_py() <= 1:
        return None
    own = list(keys)
    placed = changes.select([*own, PARTITION, POSITION])
    found = placed.group_by([*own, PARTITION]).aggregate([(POSITION, "max")])
    counts = found.group_by(own).aggregate([(PARTITION, "count")])
    split = counts.filter(pc.greater(counts[f"{PARTITION}_count"], 1)).select(own)
    if not split.num_rows:
        return None
    found = found.join(split, own, join_type="left semi")
    rows = changes.select([*own, PARTITION])
    rows = rows.append_column(_ROW, pa.array(np.arange(changes.num_rows)))
    joined = rows.join(found, [*own, PARTITION], join_type="inner")
    numbers, is_other = joined[_ROW].to_numpy(), np.ones(changes.num_rows, np.bool_)
    highest = np.zeros(changes.num_rows, np.int64)
    highest[numbers] = pc.fill_null(joined[f"{POSITION}_max"], -1).to_numpy()
    is_other[numbers] = False
    return pa.chunked_array([pa.array(highest, mask=is_other)])


def number_keys(rows: pa.Table, keys: pa.Table) -> np.ndarray[Any, Any]:
    """Return for each row the number of its key among distinct keys."""
    own = keys.column_names
    numbered = keys.append_column(_GROUP, pa.array(np.arange(keys.num_rows)))
    found = rows.select(own).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    joined = found.join(numbered, own, join_type="inner")
    groups = np.empty(rows.num_rows, np.int64)
    groups[joined[_ROW].to_numpy()] = joined[_GROUP].to_numpy()
    return groups


def _find_earlier_keys(
    changes: pa.Table, groups: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return flags by number of key: those wanted, and those that their rows had before.

    A changed key is a delete and an insert at one position of the database's log.
    """
    chosen = np.zeros(int(groups.max()) + 1, bool)
    chosen[wanted] = True
    moved = changes[KEPT].is_valid().to_numpy()
    positions = changes[POSITION].combine_chunks()
    deletes = changes[DELETES].to_numpy() & changes[POSITION].is_valid().to_numpy()
    while moved.any():
        arrived = positions.filter(pa.array(moved & chosen[groups])).drop_null()
        left = deletes & np.asarray(pc.is_in(positions, pc.unique(arrived)))
        if chosen[groups[left]].all():
            break
        chosen[groups[left]] = True
    return chosen


def find_end_deletes(changes: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the deletes with which partitions end.

    Tombstones, which have no position, do not count. The last event is that with the highest
    offset: of two transactions, the later one may have lower positions.

    Args:
        changes: Changes of records, with their further columns.
        keys: The key columns.
    """
    known = changes.select([*keys, DELETES, POSITION, PARTITION, ORDER])
    known = known.filter(pc.and_(known[POSITION].is_valid(), known[PARTITION].is_valid()))
    last = known.group_by(PARTITION).aggregate([(ORDER, "max")])
    last = last.rename_columns([PARTITION, ORDER])
    ends = known.join(last, [PARTITION, ORDER], join_type="inner")
    rows = ends.filter(pc.invert(ends[DELETES]))
    return ends.filter(ends[DELETES]).join(rows, PARTITION, join_type="left anti")


def _find_last_deletes(changes: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the deletes with which partitions end, if the epoch has no upsert of their keys."""
    own = list(keys)
    upserted = changes.filter(pc.invert(changes[DELETES])).select(own)
    return find_end_deletes(changes, own).join(upserted, own, join_type="left anti")


def find_positions(changes: pa.Table) -> Mapping[str, int]:
    """Return the highest position of a database's log among changes, by partition."""
    known = changes.select([PARTITION, POSITION]).drop_null()
    found = known.group_by(PARTITION).aggregate([(POSITION, "max")])
    pairs = zip(found[PARTITION].to_pylist(), found[f"{POSITION}_max"].to_pylist(), strict=True)
    return dict(pairs)


def _find_times(changes: pa.Table) -> Mapping[str, LogTime]:
    """Return the newest time in the database among changes with a position, by partition."""
    if CLOCK not in changes.column_names:  # staged by an earlier version
        return {}
    known = changes.select([PARTITION, CLOCK, POSITION]).drop_null()
    newest = known.group_by(PARTITION).aggregate([(CLOCK, "max")])
    last = known.join(newest, [PARTITION, CLOCK], [PARTITION, f"{CLOCK}_max"], "inner")
    found = last.group_by([PARTITION, CLOCK]).aggregate([(POSITION, "max")])
    columns = (found[name].to_pylist() for name in (PARTITION, CLOCK, f"{POSITION}_max"))
    return {name: LogTime(*time) for name, *time in zip(*columns, strict=True)}


class EpochChanges:
    """The changes that tasks have staged for an epoch. Driver.

    Args:
        io: Accesses their files.
        paths: The files, in the order of the tasks.
        upsert_spec: How rows change others.
        columns: The columns of the table. Files may have been staged before it got the newest.
    """

    def __init__(
        self, io: FileIO, paths: Sequence[str], upsert_spec: UpsertSpec, columns: pa.Schema
    ) -> None:
        self._io = io
        self._paths = paths
        self._upsert_spec = upsert_spec
        self._columns = pa.schema([field.with_nullable(nullable=True) for field in columns])

    @property
    def keys(self) -> pa.Table:
        """The keys of all changed or deleted rows, each once."""
        return self._last.keys

    @property
    def has_incomplete(self) -> bool:
        """True if the last upsert of a key keeps values, which `read_upserts` does not return."""
        return bool(len(self._last.wanted))

    @property
    def is_truncated(self) -> bool:
        """True if the epoch deletes all rows of the table first."""
        return self._last.is_truncated

    @property
    def positions(self) -> Mapping[str, int]:
        """The highest position of the database's log among the changes, by partition."""
        return self._last.positions

    @property
    def times(self) -> Mapping[str, LogTime]:
        """The newest time in the database among the changes, by partition."""
        return self._last.times

    @property
    def ends(self) -> Mapping[str, LogEnd]:
        """The highest position and the newest time, by partition."""
        times = self.times
        return {name: LogEnd(at, times.get(name)) for name, at in self.positions.items()}

    @property
    def last_deletes(self) -> pa.Table | None:
        """The deletes with which partitions end, with their further columns; None without records.

        Without those whose row the epoch has changed before, if that matters.
        """
        return self._last.deletes

    def read_upserts(self) -> Iterator[pa.RecordBatch]:
        """Read the last upsert of each key that is not deleted and has all values."""
        for rows in filter_rows(self.read_batches(), self._last.stays):
            yield drop_further(rows)

    def read_last(self, columns: list[str]) -> pa.Table:
        """Return some columns of the last change of each key, in the order of `keys`."""
        rows = pa.Table.from_batches(self.read_batches(columns))
        return rows.take(pa.array(self._last.winners))

    def without(self, dropped: np.ndarray[Any, Any]) -> EpochChanges:
        """Return the changes without those of some keys.

        Args:
            dropped: For each key, whether it is one of these.
        """
        if not dropped.any():
            return self
        last, rest = self._last, copy(self)
        stays = last.stays.copy()
        stays[last.winners[dropped]] = False
        keys = last.keys.filter(pa.array(~dropped))
        rest.__dict__["_last"] = replace(  # the value of a cached property
            last, keys=keys, winners=last.winners[~dropped], stays=stays
        )
        return rest

    def read_incomplete(self) -> IncompleteRows:
        """Read all changes of keys whose last upsert keeps values; they must fit into memory."""
        last = self._last
        chosen = last.groups >= 0
        rows = pa.Table.from_batches(filter_rows(self.read_batches(), chosen))
        groups, ranks = last.groups[chosen], last.ranks[chosen]
        order = np.lexsort((ranks, groups))
        is_wanted = np.isin(groups[order], last.wanted)
        return IncompleteRows(rows.take(pa.array(order)), groups[order], is_wanted)

    @cached_property
    def _last(self) -> _LastChanges:
        names = [*self._upsert_spec.keys, *filter(None, [self._upsert_spec.order]), DELETES]
        names += [KEPT, POSITION, PARTITION, CLOCK] if self.are_records() else []
        # The order column may be a key column.
        read = pa.Table.from_batches(self.read_batches(list(dict.fromkeys(names))))
        changes = to_sortable(read)
        by_rank = self._sort_changes(changes)
        ranks = np.empty_like(by_rank)
        ranks[by_rank] = np.arange(len(by_rank))
        own = list(self._upsert_spec.keys)
        is_live = self._find_live(changes, ranks)
        live = np.flatnonzero(is_live)
        keys = changes.select(own).append_column(_RANK, pa.array(ranks)).take(pa.array(live))
        last = keys.group_by(own).aggregate([(_RANK, "max")])
        stays = np.zeros(len(by_rank), bool)
        winners = by_rank[last[f"{_RANK}_max"].to_numpy()]
        stays[winners] = True
        stays &= ~changes[DELETES].to_numpy()
        groups = wanted = _NO_NUMBERS
        positions: Mapping[str, int] = {}
        times: Mapping[str, LogTime] = {}
        deletes = None
        if KEPT in changes.column_names:
            positions, times = find_positions(changes), _find_times(changes)
            deletes = _find_last_deletes(changes, own)
            keeps = stays & changes[KEPT].is_valid().to_numpy()
            stays &= ~keeps
            if keeps.any():
                numbers = self._number_incomplete(changes.take(live), last.select(own), keeps[live])
                groups = np.full(changes.num_rows, -1)
                groups[live], wanted = numbers
        is_truncated = not is_live.all()
        found = (last.select(own), winners, stays, ranks, groups, wanted)
        return _LastChanges(*found, is_truncated, positions, times, deletes)

    def _number_incomplete(
        self, changes: pa.Table, keys: pa.Table, keeps: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the number of each change's key, -1 for keys that are complete, and those wanted.

        Args:
            changes: The changes.
            keys: Their keys.
            keeps: Whether each change is the last one of its key and keeps values.
        """
        groups = number_keys(changes, keys)
        wanted = groups[keeps]
        chosen = _find_earlier_keys(changes, groups, wanted)
        # A tombstone has no position, and its delete is another change, or was one.
        is_redundant = changes[DELETES].to_numpy() & changes[POSITION].is_null().to_numpy()
        is_redundant &= self._upsert_spec.order == ORDER and _have_positions(changes)
        return np.where(chosen[groups] & ~is_redundant, groups, -1), wanted

    def _find_live(self, changes: pa.Table, ranks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return flags of the changes after the last one that deletes all rows, which has no key.

        Raises:
            CommitRejected: If there is one, and changes of several partitions, whose order beside
                it is not known.
        """
        every = np.ones(changes.num_rows, bool)
        if KEPT not in changes.column_names:
            return every
        truncates = changes[self._upsert_spec.keys[0]].is_null().to_numpy()
        if not truncates.any():
            return every
        partitions = pc.unique(changes[PARTITION].drop_null()).to_pylist()
        refuse_truncate(FORMAT, partitions)
        found: np.ndarray[Any, Any] = ranks > ranks[truncates].max()
        return found

    def are_records(self) -> bool:
        """Return True if the changes were records of change data."""
        if not self._paths:
            return False
        with self._io.new_input(self._paths[0]).open() as stream:
            return KEPT in open_input(stream).schema.names

    def _sort_changes(self, changes: pa.Table) -> np.ndarray[Any, Any]:
        """Return the indices of changes by order, then index: the winner of a key is last."""
        indices = np.arange(changes.num_rows)
        orders = self._list_orders(changes)
        if not orders:
            return indices
        rising: list[tuple[Any, str]] = []
        for order in orders:
            valid = pc.cast(pc.is_valid(order), pa.int8())  # null is lower than every value
            rising += [(valid, "ascending"), (order, "ascending")]
        return np.asarray(sort_indices([*rising, (pa.array(indices), "ascending")]))

    def _list_orders(self, changes: pa.Table) -> list[pa.ChunkedArray]:
        """Return the columns by which the later one of two changes of a key is known.

        A partition is in the order of the database, and its positions start again if the database
        moves to another server. So positions of the database's log count only for keys in several
        partitions, whose offsets are not comparable.
        """
        order = self._upsert_spec.order
        if order != ORDER:
            return [] if order is None else [changes[order]]
        if changes[PARTITION].null_count or changes[ORDER].null_count:
            return (
                [changes[POSITION], changes[ORDER]]
                if _have_positions(changes)
                else [changes[ORDER]]
            )
        highest = _find_highest(changes, self._upsert_spec.keys)
        return [changes[ORDER]] if highest is None else [highest, changes[ORDER]]

    def read_batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Read all changes in a fixed order: some of their columns, or all."""
        for path in self._paths:
            with self._io.new_input(path).open() as stream:
                file = open_input(stream)
                for batch in read_all(file, columns or file.schema.names):
                    yield self._fit(batch, columns)

    def _fit(self, batch: pa.RecordBatch, names: list[str] | None) -> pa.RecordBatch:
        """Return changes with the table's columns of some names, in this order; None for all."""
        wanted = [field for field in self._columns if names is None or field.name in names]
        is_fitting = all(
            field.name in batch.schema.names and batch.schema.field(field.name).type == field.type
            for field in wanted
        )
        if is_fitting:
            return batch
        fitting = conform(batch, pa.schema(wanted), fill=True)
        for name in FURTHER:
            if name in batch.schema.names:
                fitting = fitting.append_column(name, batch.column(name))
        return fitting if names is None else fitting.select(names)


def filter_rows(
    batches: Iterator[pa.RecordBatch], stays: np.ndarray[Any, Any]
) -> Iterator[pa.RecordBatch]:
    """Return the rows with a true flag; the flags are those of all batches, one after another."""
    first = 0
    for batch in batches:
        rows = batch.filter(pa.array(stays[first : first + batch.num_rows]))
        first += batch.num_rows
        if rows.num_rows:
            yield rows


def to_sortable(rows: pa.Table) -> pa.Table:
    """Return rows with UUIDs as their bytes: Arrow groups, joins and sorts no UUIDs."""
    columns = [
        pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
        if is_uuid(column.type)
        else column
        for column in rows.columns
    ]
    return pa.table(columns, names=rows.column_names)
