"""The versions that a history has of the keys of an epoch. Driver.

Files without a version that is valid now are read only for keys that have none elsewhere, so that
an epoch does not read a long past: partition such a table by the column that tells which versions
are current.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import EqualTo, Reference
from pyiceberg.expressions.literals import literal

from krishiv_spark.sinks.iceberg.key_index import WantedKeys, match_keys
from krishiv_spark.sinks.iceberg.position_deletes import Positions
from krishiv_spark.sinks.iceberg.replaced_rows import RowLookup
from krishiv_spark.sinks.iceberg.upsert_staging import filter_rows, to_sortable

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask

    from krishiv_spark.sinks.iceberg.history_spec import HistorySpec

__all__ = ["FoundVersions", "VersionLookup"]


@dataclass(frozen=True)
class _FileVersions:
    """The versions in one data file.

    Attributes:
        task: The file.
        positions: Their positions in the file.
        lives: Their places among the rows that are not deleted.
        rows: Some of their columns.
    """

    task: FileScanTask
    positions: Positions
    lives: Positions
    rows: pa.Table


class FoundVersions:
    """Versions of the table, in one numbering over their files.

    Args:
        lookup: The lookup of rows.
        rows: Their columns of keys, intervals and positions.
        parts: The files that have them, in the order of the numbers.
    """

    def __init__(self, lookup: RowLookup, rows: pa.Table, parts: Sequence[_FileVersions]) -> None:
        self.rows = rows
        self._lookup = lookup
        self._parts = parts

    def read_rows(self, chosen: Positions) -> Iterator[pa.RecordBatch]:
        """Return whole rows of some versions, in the order of their numbers, ascending."""
        for part, own in self._select(chosen):
            flags = _to_flags(part.lives[own])
            yield from filter_rows(_cut(self._lookup.read(part.task), len(flags)), flags)

    def list_deletes(self, chosen: Positions) -> Iterator[tuple[FileScanTask, Positions, bool]]:
        """Return the positions of some versions by file, and whether the file has no other rows."""
        for part, own in self._select(chosen):
            before = self._lookup.list_deleted(part.task)
            rows = part.positions[own]
            yield part.task, rows, len(before) + len(rows) == part.task.file.record_count

    def _select(self, chosen: Positions) -> Iterator[tuple[_FileVersions, Positions]]:
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

    def _read(self, tasks: Iterable[FileScanTask], keys: pa.Table) -> Iterator[_FileVersions]:
        wanted = WantedKeys(keys)
        names = self._spec.control_names
        for task in tasks:
            positions = self._lookup.find_positions(task.file, wanted)
            if not len(positions):
                continue
            deleted = self._lookup.list_deleted(task)
            positions = np.setdiff1d(positions, deleted, assume_unique=True)
            if len(positions):
                lives = positions - np.searchsorted(deleted, positions)
                flags = _to_flags(lives)
                batches = _cut(self._lookup.read_columns(task, names), len(flags))
                rows = pa.Table.from_batches(filter_rows(batches, flags))
                yield _FileVersions(task, positions, lives, rows)

    def _join(self, parts: Sequence[_FileVersions]) -> FoundVersions:
        tables = [part.rows for part in parts]
        empty = self._lookup.get_columns(self._spec.control_names).empty_table()
        return FoundVersions(self._lookup, pa.concat_tables([empty, *tables]), parts)


def _to_flags(places: Positions) -> np.ndarray[Any, Any]:
    """Return flags for rows up to the last of some places, which are true at these."""
    flags = np.zeros(int(places.max()) + 1, bool)
    flags[places] = True
    return flags


def _cut(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches up to a number of rows."""
    for batch in batches:
        if rows <= 0:
            return
        yield batch.slice(0, rows)
        rows -= batch.num_rows


def _invert(found: Positions, count: int) -> Positions:
    flags = np.ones(count, bool)
    flags[found] = False
    return np.flatnonzero(flags)


def _deduplicate(keys: pa.Table) -> pa.Table:
    return keys.group_by(keys.column_names).aggregate([])
