"""The end of the next batch, and the files between two offsets. Driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from krishiv_spark.arrow.conform import conform, places
from krishiv_spark.delta.column_types import read_columns
from krishiv_spark.delta.opening import open_table
from krishiv_spark.delta.options import FORMAT
from krishiv_spark.delta.table_features import check_readable
from krishiv_spark.errors import (
    DataLossError,
    KrishivError,
    OffsetError,
    OptionError,
    SchemaError,
    StorageError,
)
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sources.base import Limit
from krishiv_spark.sources.delta.change_feed import ChangeFeed
from krishiv_spark.sources.delta.chosen_versions import (
    find_first_version,
    find_last_version,
    open_for_batch,
)
from krishiv_spark.sources.delta.offset import DeltaOffset, DeltaPosition
from krishiv_spark.sources.delta.options import DeltaSourceOptions
from krishiv_spark.sources.delta.table_files import (
    DeltaFile,
    VersionChanges,
    list_snapshot,
    read_changes,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["VersionStream"]


@dataclass(frozen=True)
class _Slice:
    """Consecutive files of one version.

    Attributes:
        version: The version.
        scan: True if they are files of the whole table at it.
        first: Number of the first file.
        files: The files from there on.
    """

    version: int
    scan: bool
    first: int
    files: Sequence[DeltaFile]


class VersionStream:
    """A planner that follows the versions of a table.

    Args:
        options: Name the table, the start of a new query, and the versions that are an error.
        columns: The reader's columns of the table. No version may drop one.
    """

    def __init__(self, options: DeltaSourceOptions, columns: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._frozen: int | None = None
        self._newest = -1
        self._table_id: str | None = None
        self._known: LruCache[int, pa.Schema] = LruCache(16)
        self._slices: LruCache[tuple[int, bool], list[DeltaFile]] = LruCache(16)
        self._feed = ChangeFeed(options) if options.read_change_feed else None

    # --- ends

    def freeze(self) -> None:
        """Read no version that is committed after this call (`SupportsAvailableNow`)."""
        self._frozen = open_table(self._options).version()

    def backlog(self) -> Mapping[str, int]:
        """Return the newest version, as it was at the last planning."""
        return {"version": self._newest}

    def latest(self, start: DeltaOffset, limit: Limit) -> DeltaOffset:
        """Return the end of the next batch of a stream (`StreamReader.latest`)."""
        table = self._open(start.table)
        newest = table.version()
        self._newest = newest
        if self._frozen is not None:
            newest = min(newest, self._frozen)
        position = start.spot or self._begin(newest)
        end = self._take(position, newest, limit)
        if end == start.spot:
            return start
        is_first = start.spot is None and position != end
        began = position if is_first else None
        return DeltaOffset(table=str(table.metadata().id), spot=end, began=began)

    def find_batch_end(self, start: DeltaOffset) -> DeltaOffset:
        """Return the end of a batch read, which contains its start too."""
        del start
        if self._feed is not None:
            return self._find_feed_end()
        table = open_for_batch(self._options)
        version = table.version()
        self._check_given(version, read_columns(table))
        began = DeltaPosition(version=version, file=0, scan=True)
        return DeltaOffset(
            table=str(table.metadata().id), spot=DeltaPosition(version=version), began=began
        )

    def _find_feed_end(self) -> DeltaOffset:
        """Return the end of a batch that reads the changes of several versions."""
        table = self._open(None)
        newest, identity = table.version(), str(table.metadata().id)
        began = self._begin(newest)
        last = find_last_version(self._options, newest)
        end = max(last, began.version)  # no version may be in the range
        return DeltaOffset(table=identity, spot=DeltaPosition(version=end), began=began)

    def _open(self, known: str | None) -> DeltaTable:
        """Return the newest version of the table.

        Raises:
            DataLossError: If the table was replaced since the offset was planned.
        """
        table = open_table(self._options)
        now = str(table.metadata().id)
        if known not in {None, now}:
            raise DataLossError(
                f"{FORMAT}: {self._options.path} is another table (id {now}) than the one that was "
                f"read (id {known}): put it back, or start the query with {NEW_CHECKPOINT}"
            )
        self._table_id = now
        # If this package cannot read it, versions before it may still be read.
        with suppress(OptionError, SchemaError):
            self._learn_columns(table)
        return table

    def _begin(self, newest: int) -> DeltaPosition:
        """Return the position at which a new query starts.

        Raises:
            OptionError, SchemaError: If this package cannot read the table, or it lacks a column.
        """
        columns = self._columns_at(newest)
        given = self._options.starting_version
        if self._options.starting_timestamp is not None:
            given = find_first_version(self._options, self._options.starting_timestamp)
        if given is None:
            self._check_given(newest, columns)
            return DeltaPosition(version=newest, file=0, scan=True)
        if given == "latest":
            return DeltaPosition(version=newest)
        if given > newest + 1:
            raise OptionError(
                f"{FORMAT}: 'startingVersion' is {given}, and {self._options.path} is at version "
                f"{newest}"
            )
        return DeltaPosition(version=given - 1)

    def _take(self, position: DeltaPosition, newest: int, limit: Limit) -> DeltaPosition:
        """Return the end of a batch within a limit."""
        files = rows = size = 0
        reached = position
        try:
            for part in self._slices_from(position, newest):
                if self._feed is not None and not part.scan:
                    # The two rows of an update must be in one batch.
                    rows, size = rows + _count_rows(part), size + sum(f.size for f in part.files)
                    total = files + len(part.files)
                    if files and not limit.admits(rows=rows, files=total, size=size):
                        return reached
                    files, reached = total, DeltaPosition(version=part.version)
                    continue
                for number, file in enumerate(part.files, part.first):
                    rows, size = rows + (file.rows or 0), size + file.size
                    # The first file is taken even if it is too large: the stream has to advance.
                    if files and not limit.admits(rows=rows, files=files + 1, size=size):
                        is_inside = number > 0 or part.scan
                        here = DeltaPosition(version=part.version, file=number, scan=part.scan)
                        return here if is_inside else reached
                    files += 1
                reached = DeltaPosition(version=part.version)
        except KrishivError:  # of any kind: the versions before it come first
            if reached == position:
                raise
        return reached

    # --- files

    def list_files(self, start: DeltaOffset, end: DeltaOffset) -> list[DeltaFile]:
        """Return the files between two offsets.

        Raises:
            DataLossError: If the log does not have them any more, or the table was replaced.
            OffsetError: If a version is an error by the options.
        """
        first, last = end.began or start.spot, end.spot
        if first is None or last is None:
            return []  # the first batch of a query that starts at the next version
        if end.table != self._table_id:
            self._open(end.table)
        found: list[DeltaFile] = []
        for part in self._slices_from(first, last.version):
            most = len(part.files)
            if part.version == last.version and last.file is not None:
                most = last.file - part.first if part.scan == last.scan else most
            found += part.files[:most]
        return found

    def _slices_from(self, position: DeltaPosition, newest: int) -> Iterator[_Slice]:
        """Yield the files from a position on, version by version."""
        if position.file is not None:
            files = self._list(position.version, scan=position.scan)
            yield _Slice(position.version, position.scan, position.file, files[position.file :])
        for version in range(position.version + 1, newest + 1):
            yield _Slice(version, scan=False, first=0, files=self._list(version, scan=False))

    def _list(self, version: int, *, scan: bool) -> list[DeltaFile]:
        found = self._slices.get((version, scan))
        if found is None:
            found = self._list_snapshot(version) if scan else self._list_added(version)
            self._slices.put((version, scan), found)
        return found

    def _list_snapshot(self, version: int) -> list[DeltaFile]:
        table = open_table(self._options, version)
        self._learn_columns(table)
        files = list_snapshot(self._options, table)
        return files if self._feed is None else self._feed.list_initial(version, files)

    def _list_added(self, version: int) -> list[DeltaFile]:
        changes = read_changes(self._options, version)
        columns = self._find_columns(version, changes)
        if self._feed is not None:
            if changes.adds or changes.cdc:
                self._check_types(version, columns)
            before = self._columns_at(version - 1) if changes.removes else columns
            return self._feed.list_changes(version, changes, columns, before)
        if not self._is_read(version, changes.kind):
            return []
        self._check_types(version, columns)
        deleted = self._read_deleted(version) if changes.has_deleted else {}
        return list(changes.list_files(self._options, columns, deleted))

    def _read_deleted(self, version: int) -> dict[str, bytes]:
        table = open_table(self._options, version)
        files = list_snapshot(self._options, table)
        return {file.path: file.deleted for file in files if file.deleted is not None}

    def _is_read(self, version: int, kind: str) -> bool:
        """Return True if the files of a version are read; False if it is skipped.

        Raises:
            OffsetError: If it deletes or changes rows, and no option says how to go on.
        """
        options = self._options
        if kind in {"append", "none"}:
            return kind == "append"
        skips = options.skip_change_commits
        if kind == "delete" and (skips or options.ignore_deletes or options.ignore_changes):
            return False
        if kind == "change" and (skips or options.ignore_changes):
            return not skips
        only = "'ignoreDeletes' = 'true' or " if kind == "delete" else ""
        does = "deletes" if kind == "delete" else "changes"
        raise OffsetError(
            f"{FORMAT}: version {version} of {options.path} {does} rows, which cannot be read as a "
            f"stream of new ones: set {only}'skipChangeCommits' = 'true' to skip it, or "
            "'ignoreChanges' = 'true' to read the files that it adds, with copied rows among them"
        )

    # --- columns

    def _find_columns(self, version: int, changes: VersionChanges) -> pa.Schema:
        """Return the columns of the table at a version; opens it only if they may be new.

        Raises:
            OptionError, SchemaError: If it drops a column, or this package cannot read it.
        """
        before = self._known.get(version - 1)
        if before is not None and not changes.alters:
            self._known.put(version, before)
        columns = self._columns_at(version)
        if changes.alters:
            self._check_altered(version, columns)
        return columns

    def _columns_at(self, version: int) -> pa.Schema:
        """Return the columns of the table at a version.

        Files have those of their version: the newest one may lack a partition column.

        Raises:
            OptionError, SchemaError: If this package cannot read the table at it.
        """
        found = self._known.get(version)
        if found is not None:
            return found
        try:
            table = open_table(self._options, version)
        except StorageError:
            # Cleanups keep commits that no checkpoint precedes. The newest columns are the best
            # guess, and a value whose type they do not have is an error.
            table = open_table(self._options)
        columns = self._learn_columns(table)
        self._known.put(version, columns)
        return columns

    def _learn_columns(self, table: DeltaTable) -> pa.Schema:
        check_readable(table, self._options.path)
        columns = read_columns(table)
        self._known.put(table.version(), columns)
        return columns

    def _check_altered(self, version: int, columns: pa.Schema) -> None:
        """Refuse a version that drops a column of the reader: its rows would have nulls there.

        Raises:
            SchemaError: If it drops one.
        """
        lost = self._list_missing(columns)
        if lost and version > 0:
            before = self._list_missing(self._columns_at(version - 1))
            self._refuse_lost(version, [name for name in lost if name not in before])

    def _check_types(self, version: int, columns: pa.Schema) -> None:
        """Refuse a version whose rows do not fit before a batch has it: it ends the one before.

        Raises:
            SchemaError: If a column has a type whose values the reader's does not include.
        """
        try:
            conform(pa.RecordBatch.from_pylist([], columns), self._columns, fill=True)
        except SchemaError as error:
            path = self._options.path
            raise SchemaError(f"{FORMAT}: version {version} of {path}: {error}") from error

    def _check_given(self, version: int, columns: pa.Schema) -> None:
        """Refuse columns of the reader that the only version, or the first one, does not have."""
        self._refuse_lost(version, self._list_missing(columns))

    def _list_missing(self, columns: pa.Schema) -> list[str]:
        names = self._columns.names
        found = zip(names, places(names, columns.names), strict=True)
        return [name for name, place in found if place is None]

    def _refuse_lost(self, version: int, names: Sequence[str]) -> None:
        if names:
            raise SchemaError(
                f"{FORMAT}: version {version} of {self._options.path} has no column "
                f"{', '.join(map(repr, names))} any more: restart the query without it"
            )


def _count_rows(part: _Slice) -> int:
    return sum(file.rows or 0 for file in part.files)
