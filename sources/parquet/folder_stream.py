"""The files at a path that a query has not read yet, from listing to batch. Driver."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain
from typing import Any

from krishiv_spark.errors import DataLossError
from krishiv_spark.sources.base import Limit
from krishiv_spark.sources.parquet.completeness import CompletenessCheck
from krishiv_spark.sources.parquet.file_index import FileIndex, FileState, SkipReason
from krishiv_spark.sources.parquet.listing import (
    FoundFile,
    Scan,
    SourcePath,
    describe_files,
    find_files,
    scan,
)
from krishiv_spark.sources.parquet.offset import ParquetOffset
from krishiv_spark.sources.parquet.offset_store import OffsetStore
from krishiv_spark.sources.parquet.options import FollowRules
from krishiv_spark.sources.parquet.sink_epochs import MissingFiles, SinkEpochs, UnreadListing
from krishiv_spark.sources.parquet.unread_files import ReadUnit, UnreadFiles, origin_of

__all__ = ["FolderStream"]

# Skipped files at a trigger: there may be any number of them, and each costs a read.
_RECHECKS = 1_000
_RECHECKS_REMOTE = 20  # each is a request
_PREFETCH = 1_000
_FEW = 16
# While enough waits for a batch, at most a tenth of the time goes to listings. (Spark's source
# does not list then either: maxCachedFiles.)
_SHARE = 10
_NS_PER_MS = 1_000_000


class FolderStream:
    """A `FileQueue` of the unread files of the position in the last `refresh`.

    It lists the path and checks the files; a `FileIndex` stores the results.

    Args:
        location: The path of the source.
        rules: Which files count, and in which order.
        store: Content of positions.
    """

    def __init__(self, location: SourcePath, rules: FollowRules, store: OffsetStore) -> None:
        self._location = location
        self._rules = rules
        self._store = store
        self._epochs = SinkEpochs(location, recursive=rules.recursive, waits=rules.checks)
        self._check = CompletenessCheck(location, enabled=rules.checks, skip_bad=rules.skip_bad)
        self._index: FileIndex | None = None
        self._frozen: Scan | None = None
        self._lists_next_s = 0.0
        self._room: int | None = None
        # The unit at the head of the queue, before and after its check.
        self._checked: tuple[ReadUnit, ReadUnit] | None = None

    def list_all(self) -> list[FoundFile]:
        """Return every file that exists."""
        return find_files(self._location, recursive=self._rules.recursive)

    def reset(self) -> None:
        """Drop the index, since units were taken that no batch contains."""
        self._index = None

    def freeze(self) -> None:
        """Ignore files that appear from now on."""
        # A listing of the run before must not be used.
        self._frozen, self._index = None, None
        self._frozen = self._scan(frozenset())

    def refresh(self, position: ParquetOffset, limit: Limit) -> None:
        """Find the unread files of a position.

        Args:
            position: Position of the query.
            limit: The most that will be taken; if that much waits, the path need not be listed.

        Raises:
            DataLossError: If files of a published epoch are missing and the rules make it an error.
            OptionError: See `scan`.
        """
        index = self._index
        self._checked, self._room = None, limit.files
        self._check.reset()
        if index is None or not index.is_at(position):
            index = self._new_index(position)
            self._list(index, position.floor, fail_on_loss=self._rules.fail_on_loss)
        elif self._frozen is None and self._must_list(index.queue, limit):
            self._list(index, fail_on_loss=self._rules.fail_on_loss)
        self._index = index
        self._store.keep(position)

    def _new_index(self, position: ParquetOffset) -> FileIndex:
        self._epochs.reset()
        queue = UnreadFiles(
            newest_first=self._rules.newest_first,
            resolution_ns=self._location.files.resolution_ns,
        )
        return FileIndex(position, self._store, self._epochs.is_read, queue, self._rules.max_age_ns)

    def _must_list(self, queue: UnreadFiles, limit: Limit) -> bool:
        enough = (limit.files is not None and queue.files >= limit.files) or (
            limit.bytes is not None and queue.bytes >= limit.bytes
        )
        # Newest first, a file that has just arrived precedes all that wait.
        return not enough or self._rules.newest_first or time.monotonic() >= self._lists_next_s

    # --- listing

    def _list(
        self, index: FileIndex, floor_ns: int | None = None, *, fail_on_loss: bool = False
    ) -> None:
        """Add the files of a listing to an index.

        Args:
            index: The index.
            floor_ns: Of version 1: older files count as read.
            fail_on_loss: True if missing files of a published epoch are an error.
        """
        started_s = time.monotonic()
        names = self._scan(index.known)
        if self._frozen is None:
            index.forget_deleted(names.known, lambda: self._scan(frozenset()).paths)
        unread = index.add_listed(names.paths)
        if floor_ns is not None:
            unread = self._count_older(index, names, unread, floor_ns)
        self._add_unread(index, names, unread, fail_on_loss=fail_on_loss)
        self._recheck(index)
        index.skipped.set_count(SkipReason.OTHER_NAME, names.first_others, names.others)
        index.skipped.log(self._location.root)
        ended_s = time.monotonic()
        self._lists_next_s = ended_s + _SHARE * (ended_s - started_s)

    def _count_older(
        self, index: FileIndex, names: Scan, unread: Sequence[str], floor_ns: int
    ) -> list[str]:
        """Count the files that version 1 read; return the others.

        It read epochs whole only where it knew the log.
        """
        for file in describe_files(self._location, unread, names.identities):
            if file.size and file.modified_ns < floor_ns and self._epochs.was_single(file.path):
                index.count_as_read(file)
        return [path for path in unread if path not in index.known]

    def _add_unread(
        self, index: FileIndex, names: Scan, unread: Sequence[str], *, fail_on_loss: bool
    ) -> None:
        """Add the unread files of a listing: those of the Parquet sink by epochs, others singly."""
        of_sink = (path for path in unread if origin_of(path) is not None)
        files = describe_files(self._location, of_sink, names.identities)
        epochs = self._epochs.filter(
            UnreadListing(files, names.tops, index.epochs_read, index.filter_unread)
        )
        self._epochs.check_present(epochs.missing)
        _report_missing(index, epochs.missing, fail=fail_on_loss)
        for unit in epochs.units:
            if index.may_be_forgotten(unit):
                index.skip(unit, SkipReason.TOO_OLD)
            else:
                index.wait(unit)
        unfinished = [file.path for file in epochs.unfinished]
        index.skipped.set_count(SkipReason.UNFINISHED_EPOCH, unfinished, len(unfinished))
        others = (path for path in unread if origin_of(path) is None)
        found = describe_files(self._location, others, names.identities)
        self._add_singles(index, chain(epochs.singles, found))

    def _add_singles(self, index: FileIndex, files: Iterable[FoundFile]) -> None:
        """Add each file as a unit."""
        for file in files:
            if index.is_too_old(file):
                index.skip(ReadUnit((file,)), SkipReason.TOO_OLD)
            elif file.size or self._rules.checks:  # an empty file is one that is being written
                index.wait(ReadUnit((file,)))

    def _scan(self, known: AbstractSet[str]) -> Scan:
        """List the names that are not known, and read the logs of their tables right before."""
        frozen = self._frozen
        if frozen is not None:
            return replace(frozen, paths=[path for path in frozen.paths if path not in known])
        while True:
            self._epochs.refresh()
            names = scan(self._location, recursive=self._rules.recursive, known=known)
            # The log of a table that this listing shows first was not read before it: again.
            if not self._epochs.add_tables(names.paths):
                return names

    def _recheck(self, index: FileIndex) -> None:
        """Check some of the skipped files again: they may have become readable."""
        most = _RECHECKS_REMOTE if self._location.files.is_remote else _RECHECKS
        for path, reason in index.skipped.next_to_recheck(most):
            file = next(describe_files(self._location, [path]), None)
            if file is None:
                index.transition(path, FileState.UNREAD)
            elif reason is not SkipReason.TOO_OLD or not index.is_too_old(file):
                unit, still = self._check.verify(ReadUnit((file,)))
                if still is None:
                    index.wait(unit)
                else:
                    index.skip(unit, still)

    # --- a queue

    def peek(self) -> ReadUnit | None:
        """Return the next unit that can be read; see `FileQueue`. Skip those that cannot."""
        index = self._current()
        while (unit := index.queue.peek()) is not None:
            if self._checked is None or self._checked[0] != unit:
                self._check.prefetch_status(unit, self._next_units)
                checked, reason = self._check.verify(unit)
                if reason is not None:
                    index.queue.pop()
                    index.skip(checked, reason)
                    continue
                self._checked = unit, checked
            return self._checked[1]
        return None

    def _next_units(self) -> list[ReadUnit]:
        """Return the units that may still fit into this batch, and a few more to see it is full."""
        most = min(_PREFETCH, _PREFETCH if self._room is None else max(self._room, _FEW))
        self._room = None if self._room is None else self._room - most
        return self._current().queue.first(most)

    def pop(self) -> ReadUnit:
        """Remove the next unit, and return it as it was when `peek` checked it."""
        unit = self.peek()
        if unit is None or self._checked is None:
            raise IndexError("nothing waits")
        self._current().queue.pop()
        self._checked = None
        return unit

    # --- positions

    def offset_after(self, start: ParquetOffset, taken: Sequence[ReadUnit]) -> ParquetOffset:
        """Return the position after a batch of the taken units, without its watermark."""
        return self._current().mark_read(start, taken)

    def mark_all_read(self) -> ParquetOffset:
        """Return the position at which every file counts as read that is not being written.

        The index that this creates is dropped: a query creates it again from its first position.
        """
        start = ParquetOffset()
        index = self._new_index(start)
        # A file that is deleted before the query starts is no loss for it.
        self._list(index, fail_on_loss=False)
        index.count_epochs_as_read(self._epochs.visible())
        units = []
        while index.queue.peek() is not None:
            units.append(index.queue.pop())
        return index.mark_read(start, self._check.filter_complete(units), in_batch=False)

    def fingerprint(self, file: FoundFile) -> int | None:
        """Return the fingerprint of a file of the batch that was chosen last, if known."""
        return self._check.fingerprint(file.path)

    def backlog(self, end: ParquetOffset) -> dict[str, Any]:
        """Return the counts and times of the files after a batch, and of the skipped ones."""
        index = self._current()
        queue = index.queue
        report: dict[str, Any] = {"files_waiting": queue.files, "bytes_waiting": queue.bytes}
        if index.newest_listed_ns is not None:
            report["newest_modified_ms"] = index.newest_listed_ns // _NS_PER_MS
        if end.watermark is not None and end.watermark.ms is not None:
            report["watermark_ms"] = end.watermark.ms
        ranges = self._store.skipped_ranges(end)
        paths = sorted(skipped.path for skipped in ranges)
        index.skipped.set_count(SkipReason.SKIPPED, paths, len(paths))
        skipped = index.skipped.report()
        return {**report, "passed_over": skipped} if skipped else report

    def _current(self) -> FileIndex:
        if self._index is None:
            raise ValueError("request a position first")
        return self._index


def _report_missing(index: FileIndex, missing: Sequence[MissingFiles], *, fail: bool) -> None:
    if missing and fail:
        shown = "; ".join(map(str, missing[:3])) + ("; ..." if missing[3:] else "")
        raise DataLossError(
            f"krishiv-parquet: {shown} were published and deleted before they were read. Put "
            "them back; with the option 'failOnDataLoss' = 'false' the remaining files are "
            "read, and the deleted ones are lost, and counted in the query's progress"
        )
    for each in missing:
        index.skipped.add_count(SkipReason.LOST, [str(each)], each.count)
