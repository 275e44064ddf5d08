"""An epoch of a history: versions that are opened, and versions that are closed. Driver.

The epoch deletes each version that it closes by its position, and adds a copy that has an end, in
the same snapshot as the new versions. All of it is computed again if another commit has changed the
table. In memory are the keys, positions and times of the changes and of the versions of their keys,
and whole rows only where a row must be compared with another one or keeps values of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from krishiv_spark.changes.change_origins import TIME_TYPE
from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.sinks.iceberg.epoch_updates import SnapshotChanges
from krishiv_spark.sinks.iceberg.history.history_changes import HistoryChanges
from krishiv_spark.sinks.iceberg.history.history_spec import HistorySpec, add_ends
from krishiv_spark.sinks.iceberg.history.repeated_events import are_doubtful, find_new_changes
from krishiv_spark.sinks.iceberg.history.stored_versions import FoundVersions, VersionLookup
from krishiv_spark.sinks.iceberg.history.version_chains import (
    NEVER,
    Events,
    Flags,
    Intervals,
    Numbers,
    arrange_records,
    arrange_rows,
    compute_intervals,
    find_deletes_after,
    find_late,
)
from krishiv_spark.sinks.iceberg.history.version_values import VersionValues
from krishiv_spark.sinks.iceberg.table_schema import to_arrow_columns
from krishiv_spark.sinks.iceberg.upserts.changed_keys import MovedRows, find_moved_rows, read_moves
from krishiv_spark.sinks.iceberg.upserts.epoch_changes import EpochChanges, filter_rows
from krishiv_spark.sinks.iceberg.upserts.replaced_rows import RowLookup
from krishiv_spark.sinks.iceberg.upserts.upsert_updates import MergeOnRead
from krishiv_spark.sinks.upserts import PLACE, drop_further

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

__all__ = ["HistoryUpdate"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _EpochVersions:
    """The versions of an epoch against the table of one attempt.

    Attributes:
        events: The events.
        intervals: Their intervals.
        deletes: For each event the number of the delete that ends its version; -1 for none.
        found: The versions of the table among them.
        closed: The numbers of the versions of the table whose intervals change, ascending.
        opened: The numbers of the changes that open versions and have all values, ascending.
        completed: The numbers of the other changes that open versions, ascending.
        rows: The rows of the latter.
    """

    events: Events
    intervals: Intervals
    deletes: Numbers
    found: FoundVersions
    closed: Numbers
    opened: Numbers
    completed: Numbers
    rows: pa.Table


class _Arranged(NamedTuple):
    """The events of an epoch in their chains.

    Attributes:
        events: The events.
        values: The values of the versions.
        rows: The rows of versions that keep values of others.
        order: The events, key by key.
    """

    events: Events
    values: VersionValues
    rows: pa.Table
    order: Numbers


class HistoryUpdate(MergeOnRead):
    """An epoch of a history.

    Args:
        options: Options of the sink.
        staged: The changes that tasks have staged.
        upsert_spec: The columns of the history.
        epoch: Its query and number become part of the names of written files.
    """

    _upsert_spec: HistorySpec

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._planned: dict[tuple[int, int | None], SnapshotChanges] = {}

    def _open_changes(self, io: FileIO, paths: Sequence[str], columns: pa.Schema) -> HistoryChanges:
        return HistoryChanges(io, paths, self._upsert_spec, columns)

    def _plan_files(self, table: Table, changes: EpochChanges) -> SnapshotChanges:
        """Return files of new and closed versions as added, and deletes of the closed ones."""
        assert isinstance(changes, HistoryChanges)
        state = (table.metadata.current_schema_id, table.metadata.current_snapshot_id)
        if state not in self._planned:
            lookup = RowLookup(table, self._upsert_spec.keys)
            versions = VersionLookup(lookup, self._upsert_spec)
            plan = self._plan_versions(table, changes, versions)
            found = plan.found.list_deletes(plan.closed)
            removed, deletes = self._delete_rows(lookup, table, found)
            added = self._write(table, self._list_rows(changes, plan))
            self._added[state] = added
            self._planned[state] = SnapshotChanges(added, removed, deletes)
        return self._planned[state]

    # --- versions

    def _plan_versions(
        self, table: Table, changes: HistoryChanges, versions: VersionLookup
    ) -> _EpochVersions:
        keys = changes.keys
        found = versions.find(keys)
        events = changes.number_events(found.rows, keys, is_complete=False)
        made = (
            None
            if self._needs_more(events)
            else self._arrange(table, changes, events, versions, found)
        )
        if made is None or _has_doubtful_reads(events, made.order):
            found = versions.find_all(keys)
            events = changes.number_events(found.rows, keys, is_complete=True)
            made = self._arrange(table, changes, events, versions, found)
        events, order, incomplete = made.events, made.order, made.values.incomplete
        intervals = compute_intervals(events, order)
        stored = np.sort(order[order < events.stored])
        differs = intervals.ends[stored] != events.ends[stored]
        differs |= intervals.starts[stored] != events.times[stored]
        opened = np.sort(order[(order >= events.stored) & ~events.deletes[order]])
        complete = np.setdiff1d(opened, incomplete, assume_unique=True)
        deletes = find_deletes_after(events, order)
        closed = stored[differs]
        return _EpochVersions(
            events, intervals, deletes, found, closed, complete, incomplete, made.rows
        )

    def _arrange(
        self,
        table: Table,
        changes: HistoryChanges,
        events: Events,
        versions: VersionLookup,
        found: FoundVersions,
    ) -> _Arranged:
        """Return the chains, without rows that open no version."""
        columns = self._upsert_spec.without_added(to_arrow_columns(table.schema()))
        events, order = self._order_events(changes, events)
        values = VersionValues(columns, events, order, changes, found)

        def find_moved(inserts: Numbers) -> MovedRows:
            moves = [*read_moves(table.metadata).items(), *changes.list_moves(inserts)]
            return find_moved_rows(moves, changes.further, versions.read_ended)

        is_null = self._options.missing_values == "null"
        rows = values.complete(self._upsert_spec.keys, find_moved, missing_is_null=is_null)
        return _Arranged(events, values, rows, values.drop_equal(rows))

    def _needs_more(self, events: Events) -> bool:
        """Return True if all versions of a key are needed, and perhaps not all were found.

        These are the keys of late rows, and those of changes that do not follow the current
        version.
        """
        if self._upsert_spec.is_of_records:
            return are_doubtful(events)
        late = find_late(events, events.changes)
        return not events.complete[events.groups[late]].all()

    def _order_events(self, changes: HistoryChanges, events: Events) -> tuple[Events, Numbers]:
        """Return the events, and those of the chains in their order.

        Raises:
            CommitRejected: If changes are late or unclear, and must not be.
        """
        if self._upsert_spec.is_of_records:
            return self._order_records(changes, events)
        return events, self._order_rows(events)

    def _order_records(self, changes: HistoryChanges, events: Events) -> tuple[Events, Numbers]:
        rule = self._options.unclear_events
        found = find_new_changes(events, applies_unclear=rule == "apply")
        if len(found.unclear) and rule == "ignore":
            first = changes.describe(int(found.unclear[0]) - events.stored)
            text = "%s: %d unclear events were ignored, the first of the row with %s"
            _log.warning(text, FORMAT, len(found.unclear), first)
        elif len(found.unclear):
            first = changes.describe(int(found.unclear[0]) - events.stored)
            raise CommitRejected(
                f"{FORMAT}: {len(found.unclear)} events are neither new nor repeated ones: their "
                "positions are not higher and their times not newer than those of their rows, "
                "and no version has these positions; or another server has logged their "
                f"transactions. The first is of the row with {first}. Nothing was committed. If "
                "the database was moved to a server whose clock is behind, set 'unclearEvents' = "
                "'apply': they are the newest changes. If it was moved by GTID, or they are "
                "events from before this history, or from another partition of a topic that got "
                "more of them, set it to 'ignore'"
            )
        return found.events, arrange_records(found.events, found.order)

    def _order_rows(self, events: Events) -> Numbers:
        order = arrange_rows(events)
        late = find_late(events, order[order >= events.stored])
        if len(late) and self._upsert_spec.late == "fail":
            raise CommitRejected(
                f"{FORMAT}: {len(late)} rows are older, by {self._upsert_spec.order!r}, than a "
                "version of their key that the table has, and 'lateRows' is 'fail'. Nothing was "
                "committed. Set 'lateRows' = 'insert' to write them into the past, or 'ignore'"
            )
        return order if self._upsert_spec.late == "insert" else order[~np.isin(order, late)]

    # --- rows

    def _list_rows(self, changes: HistoryChanges, plan: _EpochVersions) -> Iterator[pa.RecordBatch]:
        """Yield all rows that the epoch adds."""
        flags = np.zeros(len(plan.events.groups) - plan.events.stored, np.bool_)
        flags[plan.opened - plan.events.stored] = True
        new = filter_rows(changes.read_batches(), flags)
        yield from self._set_columns(changes, map(self._to_row, new), plan.opened, plan)
        flags[:] = False
        flags[plan.completed - plan.events.stored] = True
        yield from self._set_columns(
            changes, self._complete_rows(changes, flags, plan), plan.completed, plan
        )
        closed = plan.found.read_rows(plan.closed)
        yield from self._set_columns(changes, closed, plan.closed, plan)

    def _to_row(self, change: pa.RecordBatch) -> pa.RecordBatch:
        """Return changes as rows of the table, without their intervals."""
        rows, position = drop_further(change), self._upsert_spec.columns.position
        return rows if position is None else rows.append_column(position, change.column(PLACE))

    def _complete_rows(
        self, changes: HistoryChanges, flags: Flags, plan: _EpochVersions
    ) -> Iterator[pa.RecordBatch]:
        position, rows = self._upsert_spec.columns.position, plan.rows
        if position is not None and rows.num_rows:
            places = filter_rows(changes.read_batches([PLACE]), flags)
            found = [batch.column(PLACE) for batch in places]
            rows = rows.append_column(position, pa.chunked_array(found))
        yield from rows.to_batches()

    def _set_columns(
        self,
        changes: HistoryChanges,
        batches: Iterator[pa.RecordBatch],
        numbers: Numbers,
        plan: _EpochVersions,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows with their intervals, and the positions of deletes that end them.

        Args:
            changes: The changes.
            batches: The rows.
            numbers: The numbers of their events.
            plan: Has the intervals.
        """
        columns, first = self._upsert_spec.columns, 0
        for batch in batches:
            own = numbers[first : first + batch.num_rows]
            first += batch.num_rows
            starts, ends = plan.intervals.starts[own], plan.intervals.ends[own]
            is_current = ends == NEVER
            given = {
                columns.valid_from: pa.array(starts).cast(TIME_TYPE),
                columns.valid_to: pa.array(ends, mask=is_current).cast(TIME_TYPE),
                columns.current: pa.array(is_current),
            }
            if columns.position is not None:
                deletes = np.maximum(plan.deletes[own] - plan.events.stored, -1)
                ends = changes.list_positions(deletes)
                given[columns.position] = add_ends(batch.column(columns.position), ends)
            rows = batch.select([name for name in batch.schema.names if name not in given])
            for name, values in given.items():
                rows = rows.append_column(name, values)
            yield rows


def _has_doubtful_reads(events: Events, order: Numbers) -> bool:
    """Return True if a row that a snapshot has read could be one that an older version came from.

    Such a row would be repeated. It differs from the current version, and perhaps not all versions
    of its key were found.
    """
    reads = order[(order >= events.stored) & events.reads[order]]
    groups = events.groups[reads]
    return bool((events.have_current()[groups] & ~events.complete[groups]).any())
