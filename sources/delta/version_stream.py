"""The end of the next batch, and the files between two offsets. Driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from krishiv_spark.delta.column_types import read_columns
from krishiv_spark.delta.opening import explain_errors, open_table
from krishiv_spark.delta.options import FORMAT
from krishiv_spark.delta.table_features import check_readable
from krishiv_spark.errors import DataLossError, OffsetError, OptionError, SchemaError
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.runtime.epoch_times import format_time, to_datetime
from krishiv_spark.sources.base import Limit
from krishiv_spark.sources.delta.change_feed import ChangeFeed, find_commit_time_ms
from krishiv_spark.sources.delta.offset import DeltaOffset, DeltaPosition
from krishiv_spark.sources.delta.options import DeltaSourceOptions
from krishiv_spark.sources.delta.table_files import (
    DeltaFile,
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
        columns: The reader's columns of the table, which each version must have.
    """

    def __init__(self, options: DeltaSourceOptions, columns: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._frozen: int | None = None
        self._newest = -1
        self._table_id: str | None = None
        self._table_columns = columns
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
        position = start.spot or self._resolve_start(newest)
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
        table = self.open_for_batch()
        version = table.version()
        began = DeltaPosition(version=version, file=0, scan=True)
        return DeltaOffset(
            table=str(table.metadata().id), spot=DeltaPosition(version=version), began=began
        )

    def _find_feed_end(self) -> DeltaOffset:
        """Return the end of a batch that reads the changes of several versions."""
        table, options = self._open(None), self._options
        newest, identity = table.version(), str(table.metadata().id)
        began = self._resolve_start(newest)
        end = newest if options.ending_version is None else min(options.ending_version, newest)
        if options.ending_timestamp is not None:
            end = self._find_version(options.ending_timestamp)
        end = max(end, began.version)  # no version may be in the range
        return DeltaOffset(table=identity, spot=DeltaPosition(version=end), began=began)

    def open_for_batch(self) -> DeltaTable:
        """Return the table at the version that the options name.

        Raises:
            OptionError: If no version is that old, or if this package cannot read the table.
        """
        options, version = self._options, self._options.version_as_of
        if options.timestamp_as_of is not None:
            version = self._find_version(options.timestamp_as_of)
            if version < 0:
                raise OptionError(
                    f"{FORMAT}: {options.path} has no version at or before "
                    f"{format_time(options.timestamp_as_of)}, the value of 'timestampAsOf': the "
                    f"first one is of {format_time(find_commit_time_ms(options, 0))}"
                )
        table = open_table(options, version)
        check_readable(table, options.path)
        return table

    def _open(self, known: str | None) -> DeltaTable:
        """Return the newest version of the table.

        Raises:
            OptionError: If this package cannot read it.
            DataLossError: If the table was replaced since the offset was planned.
        """
        table = open_table(self._options)
        check_readable(table, self._options.path)
        now = str(table.metadata().id)
        if known not in {None, now}:
            raise DataLossError(
                f"{FORMAT}: {self._options.path} is another table (id {now}) than the one that was "
                f"read (id {known}): put it back, or start the query with {NEW_CHECKPOINT}"
            )
        self._table_id, self._table_columns = now, read_columns(table)
        return table

    def _resolve_start(self, newest: int) -> DeltaPosition:
        given = self._options.starting_version
        if self._options.starting_timestamp is not None:
            given = self._find_first_version(self._options.starting_timestamp)
        if given is None:
            return DeltaPosition(version=newest, file=0, scan=True)
        if given == "latest":
            return DeltaPosition(version=newest)
        if given > newest + 1:
            raise OptionError(
                f"{FORMAT}: 'startingVersion' is {given}, and {self._options.path} is at version "
                f"{newest}"
            )
        return DeltaPosition(version=given - 1)

    def _find_first_version(self, time_ms: int) -> int:
        """Return the first version whose commit is not before a time."""
        version = self._find_version(time_ms)
        is_before = version >= 0 and find_commit_time_ms(self._options, version) < time_ms
        return version + 1 if is_before else max(version, 0)

    def _find_version(self, time_ms: int) -> int:
        """Return the newest version whose commit is not after a time; -1 before the first one."""
        options, table = self._options, open_table(self._options)
        newest = table.version()
        with explain_errors(options, "find the version at a time of"):
            table.load_as_version(to_datetime(time_ms))
        version = table.version()  # by the library's times, which may be those of the writers
        while version < newest and find_commit_time_ms(options, version + 1) <= time_ms:
            version += 1
        while version >= 0 and find_commit_time_ms(options, version) > time_ms:
            version -= 1
        return version

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
        except OffsetError:
            if reached == position:
                raise  # all versions before it have been read
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
        self._check_columns(version, read_columns(table))
        files = list_snapshot(self._options, table)
        return files if self._feed is None else self._feed.list_initial(version, files)

    def _list_added(self, version: int) -> list[DeltaFile]:
        changes = read_changes(self._options, version)
        if changes.columns is not None:
            self._check_columns(version, changes.columns)
        if self._feed is not None:
            return self._feed.list_changes(version, changes, self._table_columns)
        if not self._is_read(version, changes.kind):
            return []
        deleted = self._read_deleted(version) if changes.has_deleted else {}
        return list(changes.list_files(self._options, self._table_columns, deleted))

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

    def _check_columns(self, version: int, columns: pa.Schema) -> None:
        """Refuse a version that lacks a column of the reader: its rows would have nulls there.

        Raises:
            SchemaError: If it lacks one.
        """
        names = {name.casefold() for name in columns.names}
        lost = [name for name in self._columns.names if name.casefold() not in names]
        if lost:
            raise SchemaError(
                f"{FORMAT}: version {version} of {self._options.path} has no column "
                f"{', '.join(map(repr, lost))} any more: restart the query without it"
            )


def _count_rows(part: _Slice) -> int:
    return sum(file.rows or 0 for file in part.files)
