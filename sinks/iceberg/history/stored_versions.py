"""The versions that a history has of the keys of an epoch. Driver.

Files without a version that is valid now are read only for keys that have none elsewhere, so that
an epoch does not read a long past: partition such a table by the column that tells which versions
are current.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import EqualTo, Reference
from pyiceberg.expressions.literals import literal

from krishiv_spark.arrow.compute import pc
from krishiv_spark.changes.change_origins import format_lsn
from krishiv_spark.sinks.iceberg.history.history_spec import split_positions
from krishiv_spark.sinks.iceberg.upserts.epoch_changes import to_sortable
from krishiv_spark.sinks.iceberg.upserts.key_index import match_keys
from krishiv_spark.sinks.iceberg.upserts.position_deletes import Positions
from krishiv_spark.sinks.iceberg.upserts.replaced_rows import RowLookup
from krishiv_spark.sinks.iceberg.upserts.stored_rows import FileRows, read_stored, take_rows

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask

    from krishiv_spark.sinks.iceberg.history.history_spec import HistorySpec
    from krishiv_spark.sinks.iceberg.upserts.changed_keys import LastDelete

__all__ = ["FoundVersions", "VersionLookup"]


class FoundVersions:
    """Versions of the table, in one numbering over their files.

    Args:
        lookup: The lookup of rows.
        rows: Their columns of keys, intervals and positions.
        parts: The files that have them, in the order of the numbers.
    """

    def __init__(self, lookup: RowLookup, rows: pa.Table, parts: Sequence[FileRows]) -> None:
        self.rows = rows
        self._lookup = lookup
        self._parts = parts

    def read_rows(self, chosen: Positions) -> Iterator[pa.RecordBatch]:
        """Return whole rows of some versions, in the order of their numbers, ascending."""
        for part, own in self._select(chosen):
            yield from take_rows(self._lookup.read(part.task), part.lives[own])

    def list_deletes(self, chosen: Positions) -> Iterator[tuple[FileScanTask, Positions, bool]]:
        """Return the positions of some versions by file, and whether the file has no other rows."""
        for part, own in self._select(chosen):
            before = self._lookup.list_deleted(part.task)
            rows = part.positions[own]
            yield part.task, rows, len(before) + len(rows) == part.task.file.record_count

    def _select(self, chosen: Positions) -> Iterator[tuple[FileRows, Positions]]:
        """Yield the files of some versions, and the places of these in the part."""
        first = 0
        for part in self._parts:
            last = first + part.rows.num_rows
            own = chosen[(chosen >= first) & (chosen < last)]
            if len(own):
                yield part, own - first
            first = last


class VersionLookup:
    """A lookup of the versions of some keys.

    Args:
        lookup: The lookup of rows in the table of one attempt.
        spec: The columns of the history.
    """

    def __init__(self, lookup: RowLookup, spec: HistorySpec) -> None:
        self._lookup = lookup
        self._spec = spec

    def find(self, keys: pa.Table) -> FoundVersions:
        """Find the current version of each key, and all versions of keys without a current one."""
        equals: Any = EqualTo  # type checkers disagree about the names of its parameters
        current = equals(Reference(self._spec.columns.current), literal(True))  # noqa: FBT003  PyIceberg's function
        parts = [*self._read(self._lookup.plan_candidates(keys, current), keys)]
        found = self._join(parts)
        is_current = found.rows[self._spec.columns.valid_to].is_null()
        own = to_sortable(found.rows.filter(is_current).select(keys.column_names))
        rest = keys.take(pa.array(_invert(match_keys(keys, _deduplicate(own)), keys.num_rows)))
        if rest.num_rows:
            known = {part.task.file.file_path for part in parts}
            tasks = self._lookup.plan_candidates(rest)
            others = (task for task in tasks if task.file.file_path not in known)
            parts += self._read(others, rest)
        return self._join(parts)

    def find_all(self, keys: pa.Table) -> FoundVersions:
        """Find all versions of the keys."""
        return self._join([*self._read(self._lookup.plan_candidates(keys), keys)])

    def read_ended(self, move: LastDelete) -> pa.Table | None:
        """Return the version that a delete has ended; None if the table does not have it."""
        if move.key.column_names != [*self._spec.keys] or not self._spec.columns.position:
            return None
        found = self.find_all(to_sortable(move.key))
        places = found.rows[self._spec.columns.position]
        _, ends = split_positions(pa.concat_arrays([pa.array([], pa.string()), *places.chunks]))
        same = np.flatnonzero(
            np.asarray(pc.fill_null(pc.equal(ends, format_lsn(move.position)), fill_value=False))
        )
        # Two servers may have used one position: the later version is the one of this delete.
        starts = found.rows[self._spec.columns.valid_from].take(pa.array(same))
        if not len(same):
            return None
        newest = same[int(np.argmax(starts.to_numpy()))]
        return pa.Table.from_batches(found.read_rows(np.array([newest], np.int64)))

    def _read(self, tasks: Iterable[FileScanTask], keys: pa.Table) -> Iterator[FileRows]:
        return read_stored(self._lookup, tasks, keys, self._spec.control_names)

    def _join(self, parts: Sequence[FileRows]) -> FoundVersions:
        tables = [part.rows for part in parts]
        empty = self._lookup.get_columns(self._spec.control_names).empty_table()
        return FoundVersions(self._lookup, pa.concat_tables([empty, *tables]), parts)


def _invert(found: Positions, count: int) -> Positions:
    flags = np.ones(count, bool)
    flags[found] = False
    return np.flatnonzero(flags)


def _deduplicate(keys: pa.Table) -> pa.Table:
    return keys.group_by(keys.column_names).aggregate([])
