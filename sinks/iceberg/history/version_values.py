"""The values of versions that depend on other versions. Driver.

An event of PostgreSQL may leave out large values that its change has not touched: they are those of
the version before, which may be of the same epoch or of the table. A changed key is a delete and an
insert at one position, so that the values are those of the version that the delete closes, perhaps
in an earlier epoch (`changed_keys`).

A row that equals the version before it opens no version if a snapshot has read it, or if both are
of one transaction and one time: then it is a repeated one with the position of another server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import sort_distinct
from krishiv_spark.arrow.conform import conform
from krishiv_spark.arrow.equal_rows import find_equal_rows
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.sinks.iceberg.history.version_chains import (
    Events,
    Numbers,
    find_events_before,
)
from krishiv_spark.sinks.iceberg.upserts.epoch_changes import filter_rows
from krishiv_spark.sinks.iceberg.upserts.unchanged_values import describe_key
from krishiv_spark.sinks.kept_values import (
    NO_CHANGE,
    find_sources,
    follow_earlier_moves,
    list_kept,
    to_rejection,
)
from krishiv_spark.sinks.upserts import drop_further

if TYPE_CHECKING:
    from krishiv_spark.sinks.iceberg.history.history_changes import HistoryChanges
    from krishiv_spark.sinks.iceberg.history.stored_versions import FoundVersions
    from krishiv_spark.sinks.iceberg.upserts.changed_keys import MovedRows

__all__ = ["VersionValues"]


class VersionValues:
    """The values of the versions of an epoch.

    Args:
        columns: The columns of the rows.
        events: The events.
        order: Those of the chains, key by key.
        changes: The changes.
        found: The versions of the table among the events.
    """

    def __init__(
        self,
        columns: pa.Schema,
        events: Events,
        order: Numbers,
        changes: HistoryChanges,
        found: FoundVersions,
    ) -> None:
        self._columns = pa.schema([field.with_nullable(nullable=True) for field in columns])
        self._events, self._order = events, order
        self._changes, self._found = changes, found

    @cached_property
    def incomplete(self) -> Numbers:
        """The numbers of the events whose versions keep values, ascending."""
        kept, first = self._changes.kept, self._events.stored
        if kept is None or kept.null_count == len(kept):
            return np.empty(0, np.int64)
        flags = np.zeros(len(self._events.groups), np.bool_)
        flags[self._order] = True
        flags[:first] = False
        flags[first:] &= kept.is_valid().to_numpy(zero_copy_only=False)
        return np.flatnonzero(flags & ~self._events.deletes)

    @cached_property
    def _before(self) -> Numbers:
        return find_events_before(self._events, self._order)

    def complete(
        self,
        keys: Sequence[str],
        find_moved: Callable[[Numbers], MovedRows],
        *,
        missing_is_null: bool,
    ) -> pa.Table:
        """Return the rows of `incomplete`, with all values.

        Args:
            keys: The key columns.
            find_moved: Returns those of some changes whose old key an earlier epoch has deleted.
            missing_is_null: Write null for a value that neither the epoch nor the table has.

        Raises:
            CommitRejected: If there is such a value, and it must not become null.
        """
        wanted = self.incomplete
        if not len(wanted):
            return self._columns.empty_table()
        kept = list_kept(self._changes.kept, self._events.stored)
        before, moved = self._follow_earlier_moves(self._follow_moves(), find_moved)
        sources = {name: find_sources(keeps, before)[wanted] for name, keeps in kept.items()}
        needed = sort_distinct(np.concatenate([wanted, *sources.values()]))
        needed = needed[needed >= 0]
        count = len(self._events.groups)
        earlier = [moved[number].to_batches() for number in needed[needed >= count] - count]
        rows = pa.concat_tables([self._read(needed[needed < count]), *map(self._fit, earlier)])
        made = rows.take(pa.array(np.searchsorted(needed, wanted)))
        for name, source in sources.items():
            spots = np.searchsorted(needed, np.maximum(source, 0))
            values = rows[name].take(pa.array(spots, mask=source == NO_CHANGE))
            made = made.set_column(made.column_names.index(name), made.field(name), values)
            refused = np.flatnonzero(source == NO_CHANGE)
            if len(refused) and not missing_is_null:
                raise to_rejection(FORMAT, describe_key(made, int(refused[0]), keys), name)
        return made

    def drop_equal(self, completed: pa.Table) -> Numbers:
        """Return the order without rows that open no version, since they equal the one before.

        Args:
            completed: The rows of `incomplete`.
        """
        events, order = self._events, self._order[self._order >= self._events.stored]
        order = order[(self._before[order] >= 0) & ~events.deletes[order]]
        before = self._before[order]
        is_same = (events.transactions[order] == events.transactions[before]) & (
            events.times[order] <= events.times[before]
        )
        may_equal = events.reads[order] | (is_same & (events.transactions[order] >= 0))
        order = order[may_equal]
        if not len(order):
            return self._order
        pairs = order, self._before[order]
        needed = sort_distinct(np.concatenate(pairs))
        every = pa.concat_tables([self._read(needed), completed])
        one, other = (every.take(pa.array(self._locate(needed, side))) for side in pairs)
        return self._order[~np.isin(self._order, order[find_equal_rows(one, other)])]

    def _locate(self, needed: Numbers, wanted: Numbers) -> Numbers:
        """Return the rows of events among those that were read, followed by the completed ones."""
        spots = np.searchsorted(needed, wanted)
        if not len(self.incomplete):
            return spots
        own = np.minimum(np.searchsorted(self.incomplete, wanted), len(self.incomplete) - 1)
        return np.where(self.incomplete[own] == wanted, len(needed) + own, spots)

    def _follow_moves(self) -> Numbers:
        """Return the version before each event; that of the old key if a new key has none."""
        events, before = self._events, self._before
        deletes = self._order[events.deletes[self._order]]
        deletes = deletes[np.argsort(events.ranks[deletes], kind="stable")]
        moved = self.incomplete[before[self.incomplete] == NO_CHANGE]
        if not len(deletes) or not len(moved):
            unchanged: Numbers = before.copy()
            return unchanged
        ranks = events.ranks[deletes]
        spots = np.minimum(np.searchsorted(ranks, events.ranks[moved]), len(ranks) - 1)
        is_moved = ranks[spots] == events.ranks[moved]
        followed: Numbers = before.copy()
        followed[moved[is_moved]] = before[deletes[spots[is_moved]]]
        return followed

    def _follow_earlier_moves(
        self, before: Numbers, find_moved: Callable[[Numbers], MovedRows]
    ) -> tuple[Numbers, Sequence[pa.Table]]:
        """Return the same with the old keys of earlier epochs, and their rows.

        These rows have the numbers after those of the events.
        """
        first, wanted = self._events.stored, self.incomplete
        moved = find_moved(wanted[before[wanted] == NO_CHANGE] - first)
        followed = follow_earlier_moves(before, first + moved.inserts)
        # A repeated event may have a version of the same key.
        followed[: len(before)] = np.where(before == NO_CHANGE, followed[: len(before)], before)
        return followed, moved.rows

    def _read(self, numbers: Numbers) -> pa.Table:
        """Return whole rows of events, in the order of their numbers, ascending."""
        first = self._events.stored
        flags = np.zeros(len(self._events.groups) - first, np.bool_)
        flags[numbers[numbers >= first] - first] = True
        stored = self._found.read_rows(numbers[numbers < first])
        batches = [*stored]
        if flags.any():
            batches += map(drop_further, filter_rows(self._changes.read_batches(), flags))
        return self._fit(batches)

    def _fit(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        """Return rows with the columns of versions, without their intervals."""
        names = self._columns.names
        chosen = (one.select([n for n in one.schema.names if n in names]) for one in batches)
        fitting = [conform(batch, self._columns, fill=True) for batch in chosen]
        return pa.Table.from_batches(fitting, self._columns)
