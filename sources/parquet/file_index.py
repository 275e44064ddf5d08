"""The state of each file of a source, relative to one position. Driver.

    UNREAD --> WAITING --> READ
      |           |
      |           v
      +------> SKIPPED (with a reason; checked again, some at each trigger)

A file returns to UNREAD when it is deleted, or when it waited and only the next listing can decide
about it. It never returns from READ to WAITING: its rows would be there twice. `FileIndex` alone
has the states, and changes them in one method, `FileIndex.transition`.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum, IntEnum
from itertools import islice
from typing import Any

from krishiv_spark.sources.parquet.listing import FoundFile
from krishiv_spark.sources.parquet.offset import ParquetOffset
from krishiv_spark.sources.parquet.offset_store import BatchEnd, OffsetStore
from krishiv_spark.sources.parquet.unread_files import ReadUnit, UnreadFiles

__all__ = ["FileIndex", "FileState", "SkipReason", "SkippedFiles"]

_log = logging.getLogger(__name__)

_FEW = 1_000
_FIRST = 3  # skipped files that are named for each reason


class FileState(IntEnum):
    """The state of a file.

    UNREAD: The position does not contain the file, or no listing has shown it. The index does not
        store this state: there may be any number of such paths.
    WAITING: The file is in the queue, or in the batch that is being chosen.
    READ: The position contains the file: its rows are delivered, or count as read.
    SKIPPED: The file cannot be read now.
    """

    UNREAD = 0
    WAITING = 1
    READ = 2
    SKIPPED = 3


_NEXT_STATES: Mapping[FileState, tuple[FileState, ...]] = {
    FileState.UNREAD: (FileState.WAITING, FileState.READ, FileState.SKIPPED),
    FileState.WAITING: (FileState.READ, FileState.SKIPPED, FileState.UNREAD),
    FileState.SKIPPED: (FileState.WAITING, FileState.SKIPPED, FileState.UNREAD),
    FileState.READ: (FileState.UNREAD,),
}


class SkipReason(str, Enum):
    """A reason why files are not read; the value is the key in the progress."""

    TOO_OLD = "older_than_max_file_age"
    UNFINISHED = "unfinished"
    UNREADABLE = "may_not_be_read"
    DAMAGED = "damaged"
    OTHER_NAME = "other_names"
    UNFINISHED_EPOCH = "of_unfinished_epochs"
    LOST = "lost"
    GONE = "gone_before_they_were_read"
    SKIPPED = "skipped_while_read"


_DEFERRED = frozenset(
    [SkipReason.TOO_OLD, SkipReason.UNFINISHED, SkipReason.UNREADABLE, SkipReason.DAMAGED]
)
"""Reasons of files in the state SKIPPED. Files of the others are counted only."""


class FileIndex:
    """The state of each file, the queue of waiting files, and the position from which they follow.

    It can be created again from the position and a listing at any time.

    Args:
        position: Position of the query.
        store: Content of positions.
        is_epoch_read: Returns True if a path belongs to an epoch that was read, by
            `ParquetOffset.epochs`.
        queue: An empty queue; it defines the order of reading.
        max_age_ns: See `FollowRules`.

    Attributes:
        queue: The units that wait.
        skipped: The files that are not read, with the reasons.
        newest_listed_ns: The newest time of a file that has waited since the index was created.
        epochs_read: See `ParquetOffset.epochs`.
    """

    def __init__(
        self,
        position: ParquetOffset,
        store: OffsetStore,
        is_epoch_read: Callable[[str, Mapping[str, int]], bool],
        queue: UnreadFiles,
        max_age_ns: int | None,
    ) -> None:
        self.queue = queue
        self.skipped = SkippedFiles()
        self.newest_listed_ns: int | None = None
        self.epochs_read = dict(store.epochs(position))
        self._states: dict[str, FileState] = {}
        self._store = store
        self._is_epoch_read = is_epoch_read
        self._max_age_ns = max_age_ns
        self._position = _without_time_and_root(position)
        self._read_ids = store.read_ids(position)
        self._newest = _newest_read(position, max_age_ns)
        self._counted: list[FoundFile] = []

    # --- the states

    def state(self, path: str) -> FileState:
        """Return the state of a file."""
        return self._states.get(path, FileState.UNREAD)

    @property
    def known(self) -> AbstractSet[str]:
        """Paths of the files in another state than UNREAD."""
        return self._states.keys()

    def transition(
        self,
        path: str,
        to: FileState,
        reason: SkipReason | None = None,
        version: object = None,
    ) -> None:
        """Change the state of a file.

        Args:
            path: Path of the file.
            to: The new state.
            reason: Why a file is SKIPPED, one of the reasons of deferred files; None otherwise.
            version: The version of a skipped file; an unfinished file that is skipped twice with
                the same version is not being written.

        Raises:
            ValueError: If a file cannot get from its state to the new one.
        """
        state = self._states.get(path, FileState.UNREAD)
        is_reason_right = reason in _DEFERRED if to is FileState.SKIPPED else reason is None
        if to not in _NEXT_STATES[state] or not is_reason_right:
            raise ValueError(f"{path} cannot get from {state.name} to {to.name} ({reason})")
        if to is FileState.UNREAD:
            del self._states[path]
        else:
            self._states[path] = to
        if reason is not None:
            self.skipped.defer(path, reason, version)
        elif state is FileState.SKIPPED:
            self.skipped.release(path)

    # --- listed files

    def add_listed(self, paths: Sequence[str]) -> list[str]:
        """Mark the files of a listing that the position contains as read; return the others."""
        unread = self.filter_unread(paths)
        if len(unread) < len(paths):
            for path in set(paths).difference(unread):
                self.transition(path, FileState.READ)
        return unread

    def filter_unread(self, paths: Sequence[str]) -> list[str]:
        """Return the paths in the state UNREAD that the position does not contain."""
        strange = [path for path in paths if path not in self._states]
        read = self.epochs_read
        return self._read_ids.filter_unread(
            [path for path in strange if not self._is_epoch_read(path, read)]
        )

    def wait(self, unit: ReadUnit) -> None:
        """Add a unit to the queue; the epochs of each query in their order."""
        for file in unit.files:
            self.transition(file.path, FileState.WAITING)
        self.queue.add(unit)
        modified_ns = self._time_of(unit)
        self.newest_listed_ns = max(modified_ns, self.newest_listed_ns or modified_ns)

    def skip(self, unit: ReadUnit, reason: SkipReason) -> None:
        """Skip a unit that is not in the queue, or no longer."""
        paths = [file.path for file in unit.files]
        if reason in _DEFERRED:
            for file in unit.files:
                self.transition(file.path, FileState.SKIPPED, reason, file)
            return
        for path in paths:  # the next listing finds the file again, if it exists
            self.transition(path, FileState.UNREAD)
        if reason is SkipReason.UNFINISHED_EPOCH:
            self.skipped.set_count(reason, paths, len(paths))
        else:
            self.skipped.add_count(reason, paths)

    def count_as_read(self, file: FoundFile) -> None:
        """Count a file as read, from the next batch on."""
        self.transition(file.path, FileState.READ)
        self._counted.append(file)

    def forget_deleted(self, listed: int, present: Callable[[], Iterable[str]]) -> None:
        """Forget the names of read files that were deleted, if there are many of them.

        Args:
            listed: Number of known paths in a listing.
            present: Lists every path.
        """
        # To find the deleted ones, every name must be listed: not worth it for a few of them.
        if len(self._states) - listed < max(_FEW, len(self._states) // 4):
            return
        deleted = sorted(self._states.keys() - set(present()))
        # Files that wait or are skipped are known here only; the position contains the read ones.
        read = set(deleted).difference(self._read_ids.filter_unread(deleted))
        read.update(path for path in deleted if self._is_epoch_read(path, self.epochs_read))
        for path in read:
            if self._states[path] is FileState.READ:
                self.transition(path, FileState.UNREAD)

    # --- ages

    @property
    def floor_ns(self) -> int | None:
        """Files modified before this are too old; None if none is."""
        if self._newest is None or self._max_age_ns is None:
            return None
        return self._newest - self._max_age_ns

    def is_too_old(self, file: FoundFile) -> bool:
        """Return True if an unread file is to be skipped for its time."""
        return self.floor_ns is not None and file.modified_ns < self.floor_ns

    def may_be_forgotten(self, unit: ReadUnit) -> bool:
        """Return True if a unit may have been read, and is too old for the position to tell.

        The ids of files are dropped when they are old and the files are deleted.
        """
        if not unit.has_ids or not all(map(self.is_too_old, unit.files)):
            return False
        # An epoch after all others of its query was not read, however old its files are.
        newest = None if unit.key is None else self.epochs_read.get(unit.key, -1)
        return newest is None or unit.origin is None or unit.origin.epoch <= newest

    # --- positions

    def is_at(self, position: ParquetOffset) -> bool:
        """Return True if the index follows from a position."""
        return self._position == _without_time_and_root(position)

    def count_epochs_as_read(self, visible: Mapping[str, int]) -> None:
        """Count the epochs up to the newest visible one of each query as read."""
        self.epochs_read.update((key, epoch) for key, epoch in visible.items() if epoch >= 0)

    def mark_read(
        self, start: ParquetOffset, units: Sequence[ReadUnit], *, in_batch: bool = True
    ) -> ParquetOffset:
        """Mark units as read, and return the position after them without its watermark.

        Args:
            start: The position of this index.
            units: Units that were taken from the queue.
            in_batch: True if the batch contains their rows; False if they only count as read.
        """
        files = [file for unit in units for file in unit.files]
        by_id = [file for unit in units if unit.has_ids for file in unit.files]
        for file in files:
            self.transition(file.path, FileState.READ)
        for unit in units:
            if unit.key is not None and unit.origin is not None:
                before = self.epochs_read.get(unit.key, -1)
                self.epochs_read[unit.key] = max(before, unit.origin.epoch)
        self._newest = _later_newest(self._newest, map(self._time_of, files))
        end = BatchEnd(
            files if in_batch else (),
            self._read_ids.union([*by_id, *self._counted]),
            self.epochs_read,
            self._newest,
            self.floor_ns,
        )
        offset, self._read_ids = self._store.make_offset(start, end, lambda: self.known)
        self._position, self._counted = offset, []
        return offset

    def _time_of(self, item: FoundFile | ReadUnit) -> int:
        """Return the modification time in the resolution of the store.

        The finer part may be a digest (see `Identity`), and so be later than now.
        """
        return item.modified_ns - item.modified_ns % self.queue.resolution_ns


def _without_time_and_root(position: ParquetOffset) -> ParquetOffset:
    return position.model_copy(update={"watermark": None, "root": None})


def _newest_read(position: ParquetOffset, max_age_ns: int | None) -> int | None:
    """Return the newest time that was read; version 1 has the oldest time that is not too old."""
    if position.newest is not None or position.floor is None:
        return position.newest
    return min(time.time_ns(), position.floor + (max_age_ns or 0))


def _later_newest(newest: int | None, times_ns: Iterable[int]) -> int | None:
    """Return the newest time after some files, by their times.

    A file that is dated in the future does not make files too old that arrive later. So this reads
    the clock, which can only let more be read.
    """
    times = list(times_ns)
    last = min(max(times), time.time_ns()) if times else None
    return max((t for t in (newest, last) if t is not None), default=None)


class SkippedFiles:
    """The files that are not read, by reason, for the query's progress and for the log.

    Deferred files are checked again, some at each trigger: an unfinished file may have become
    complete, and an old one have been touched. Files of other reasons are counted only.
    """

    def __init__(self) -> None:
        self._deferred: dict[SkipReason, dict[str, object]] = {}
        self._reasons: OrderedDict[str, SkipReason] = OrderedDict()  # in the order of rechecks
        self._abandoned: set[str] = set()
        self._counts: dict[SkipReason, tuple[int, list[str]]] = {}
        self._logged: dict[SkipReason, int] = {}

    def defer(self, path: str, reason: SkipReason, version: object = None) -> None:
        """Add a file that is to be checked again, or the result of that check.

        Args:
            path: Relative path.
            reason: Reason by which the query's progress counts it.
            version: Version of the file; see `FileIndex.transition`.
        """
        before = self._reasons.get(path)
        if before is not None:
            is_same = self._deferred[before].pop(path) == version
            if reason is not SkipReason.UNFINISHED:
                self._abandoned.discard(path)
            elif is_same and before is reason:
                self._abandoned.add(path)
        self._reasons[path] = reason
        self._deferred.setdefault(reason, {})[path] = version

    def release(self, path: str) -> None:
        """Remove a deferred file."""
        del self._deferred[self._reasons.pop(path)][path]
        self._abandoned.discard(path)

    def next_to_recheck(self, most: int) -> list[tuple[str, SkipReason]]:
        """Return the deferred files that were not checked for the longest time, at most so many."""
        due = list(islice(self._reasons.items(), most))
        for path, _ in due:
            self._reasons.move_to_end(path)
        return due

    def set_count(self, reason: SkipReason, first: Iterable[str], count: int) -> None:
        """Set the number of files of a reason for which none is deferred."""
        self._counts[reason] = count, list(islice(first, _FIRST))

    def add_count(self, reason: SkipReason, paths: Sequence[str], count: int | None = None) -> None:
        """Add to the number of files of such a reason."""
        before, first = self._counts.get(reason, (0, []))
        self.set_count(reason, [*first, *paths], before + (len(paths) if count is None else count))

    def report(self) -> dict[str, Any]:
        """Return for each reason that has files their number, and the first few of them."""
        found = {}
        for reason in SkipReason:
            count, first = self._count(reason)
            if count:
                found[reason.value] = {"files": count, "first": first}
        return found

    def log(self, root: str) -> None:
        """Log one line if a number has grown since the last line.

        Of unfinished files, only those count that no program is writing.
        """
        counts = {reason: self._count(reason)[0] for reason in SkipReason}
        counts[SkipReason.UNFINISHED] = len(self._abandoned)
        # An epoch that is being published needs no warning.
        counts[SkipReason.UNFINISHED_EPOCH] = 0
        if any(count > self._logged.get(reason, 0) for reason, count in counts.items()):
            shown = ", ".join(self._describe(reason) for reason, count in counts.items() if count)
            _log.warning("krishiv-parquet: files skipped in %s: %s", root, shown)
        self._logged = counts

    def _describe(self, reason: SkipReason) -> str:
        count, first = self._count(reason)
        more = ", ..." if count > len(first) else ""
        return f"{count} {reason.value.replace('_', ' ')} ({', '.join(first)}{more})"

    def _count(self, reason: SkipReason) -> tuple[int, list[str]]:
        deferred = self._deferred.get(reason, {})
        if deferred:
            return len(deferred), list(islice(deferred, _FIRST))
        return self._counts.get(reason, (0, []))
