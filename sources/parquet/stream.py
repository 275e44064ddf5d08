"""Which files of a place were not read yet. Driver."""

from __future__ import annotations

import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from krishiv_spark.errors import DataLossError
from krishiv_spark.sources.base import Limit
from krishiv_spark.sources.parquet.books import Books
from krishiv_spark.sources.parquet.checking import UnitChecks
from krishiv_spark.sources.parquet.epochs import Epochs
from krishiv_spark.sources.parquet.judging import Listed, Lost
from krishiv_spark.sources.parquet.listing import Scan, find_files, found, scan
from krishiv_spark.sources.parquet.passed import Reason
from krishiv_spark.sources.parquet.places import FoundFile, Place
from krishiv_spark.sources.parquet.position import ParquetOffset
from krishiv_spark.sources.parquet.standing import Standing
from krishiv_spark.sources.parquet.units import ReadUnit, origin
from krishiv_spark.sources.parquet.waiting import Waiting

__all__ = ["FolderStream", "FollowRules"]

# Parked files at a trigger: there may be any number of them, and each costs a look.
_LOOKS_AGAIN = 1_000
_LOOKS_AGAIN_REMOTE = 20  # each is a request
_LOOKS_AHEAD = 1_000
_FEW = 16
# While enough waits for a batch, the place is listed for a tenth of the time at most. (Spark's
# source lists no more then either: maxCachedFiles.)
_SHARE = 10
_NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class FollowRules:
    """How a place is followed.

    Attributes:
        recursive: See `scan`.
        newest_first: Whether the newest files are read first.
        max_age_ns: Files that much older than the newest one that was read are passed over; None
            if none is.
        looks: Whether a file is looked at before it is taken. A batch read takes what is there.
        skip_bad: Whether damaged files are passed over.
        fail_on_loss: Whether it is an error when files of a published epoch are missing.
    """

    recursive: bool = False
    newest_first: bool = False
    max_age_ns: int | None = None
    looks: bool = True
    skip_bad: bool = False
    fail_on_loss: bool = True


class FolderStream:
    """Lists a place again and again; a `Queue` of what was not read at the position last asked for.

    Args:
        place: Where to look.
        rules: Which files count, in which order, and how much of them at once.
        books: What positions stand for.
    """

    def __init__(self, place: Place, rules: FollowRules, books: Books) -> None:
        self._place = place
        self._rules = rules
        self._books = books
        self._epochs = Epochs(place, recursive=rules.recursive, waits=rules.looks)
        self._checks = UnitChecks(place, looks=rules.looks, skip_bad=rules.skip_bad)
        self._standing: Standing | None = None
        self._frozen: Scan | None = None
        self._lists_next_s = 0.0
        self._left: int | None = None
        self._looked: tuple[ReadUnit, ReadUnit] | None = None

    def everything(self) -> list[FoundFile]:
        """Every file that is there."""
        return find_files(self._place, recursive=self._rules.recursive)

    def forget(self) -> None:
        """Begin anew at the next look: what was taken has not been read."""
        self._standing = None

    def freeze(self) -> None:
        """From now on nothing newer than now is seen."""
        # Or the names would be those of the run before.
        self._frozen, self._standing = None, None
        self._frozen = self._names(frozenset())

    def look(self, position: ParquetOffset, limit: Limit) -> None:
        """Find out what was not read at a position.

        Args:
            position: Where the query stands.
            limit: The most that will be taken; if that much waits, the place need not be listed.

        Raises:
            DataLossError: If files of a published epoch are missing and the rules say so.
            OptionError: See `scan`.
        """
        standing = self._standing
        self._looked, self._left = None, limit.files
        self._checks.forget()
        if standing is None or not standing.is_at(position):
            standing = self._new_standing(position)
            self._list(standing, position.floor, fail_on_loss=self._rules.fail_on_loss)
        elif self._frozen is None and self._must_list(standing, limit):
            self._list(standing, fail_on_loss=self._rules.fail_on_loss)
        self._standing = standing
        self._books.keep(position)

    def _new_standing(self, position: ParquetOffset) -> Standing:
        self._epochs.forget()
        return Standing(
            position,
            self._books,
            self._epochs,
            Waiting(
                newest_first=self._rules.newest_first,
                resolution_ns=self._place.files.resolution_ns,
            ),
            self._rules.max_age_ns,
        )

    def _must_list(self, standing: Standing, limit: Limit) -> bool:
        waiting = standing.waiting
        enough = (limit.files is not None and waiting.files >= limit.files) or (
            limit.bytes is not None and waiting.bytes >= limit.bytes
        )
        # Newest first, what has just come goes before all that waits.
        return not enough or self._rules.newest_first or time.monotonic() >= self._lists_next_s

    # --- listing

    def _list(
        self, standing: Standing, floor_ns: int | None = None, *, fail_on_loss: bool = False
    ) -> None:
        """Add what is new.

        Args:
            standing: It takes up what was found.
            floor_ns: Of version 1: older files count as read.
            fail_on_loss: Whether it is an error when files of a published epoch are missing.
        """
        begun_s = time.monotonic()
        names = self._names(standing.known)
        if self._frozen is None:
            standing.forget_gone(names.known, lambda: self._names(frozenset()).paths)
        unread = standing.unread(names.paths)
        if len(unread) < len(names.paths):
            standing.known.update(set(names.paths).difference(unread))
        if floor_ns is not None:
            unread = self._without_older(standing, names, unread, floor_ns)
        self._sort(standing, names, unread, fail_on_loss=fail_on_loss)
        self._look_again(standing)
        standing.passed.count(Reason.OTHER_NAME, names.first_others, names.others)
        standing.passed.log(self._place.root)
        ended_s = time.monotonic()
        self._lists_next_s = ended_s + _SHARE * (ended_s - begun_s)

    def _without_older(
        self, standing: Standing, names: Scan, unread: Sequence[str], floor_ns: int
    ) -> list[str]:
        """Count as read what version 1 did; it took epochs whole only where it knew the log."""
        for file in found(self._place, unread, names.told):
            if file.size and file.modified_ns < floor_ns and self._epochs.was_single(file.path):
                standing.count(file)
        return [path for path in unread if path not in standing.known]

    def _sort(
        self, standing: Standing, names: Scan, unread: Sequence[str], *, fail_on_loss: bool
    ) -> None:
        """Sort what was not read into what waits and what is put aside."""
        ours = (path for path in unread if origin(path) is not None)
        files = found(self._place, ours, names.told)
        judged = self._epochs.judge(
            Listed(files, names.tops, standing.epochs_read, standing.unread)
        )
        self._epochs.check_present(judged.lost)
        _report_lost(standing, judged.lost, fail=fail_on_loss)
        for unit in judged.units:
            if unit.key is None and all(map(standing.is_too_old, unit.files)):
                # Nobody remembers its epoch, and ids of old files that are gone are dropped.
                for file in unit.files:
                    _park_old(standing, file)
            else:
                standing.wait(unit)
        unfinished = [file.path for file in judged.unfinished]
        standing.passed.count(Reason.UNFINISHED_EPOCH, unfinished, len(unfinished))
        others = (path for path in unread if origin(path) is None)
        for file in chain(judged.singles, found(self._place, others, names.told)):
            if standing.is_too_old(file):
                _park_old(standing, file)
            elif file.size or self._rules.looks:  # an empty file is one that is being written
                standing.wait(ReadUnit((file,)))

    def _names(self, known: AbstractSet[str]) -> Scan:
        """Names that are not known, and tables as they were right before they were listed."""
        frozen = self._frozen
        if frozen is not None:
            return replace(frozen, paths=[path for path in frozen.paths if path not in known])
        while True:
            self._epochs.look()
            names = scan(self._place, recursive=self._rules.recursive, known=known)
            # A table that only this listing has shown was not looked at before it: once more.
            if not self._epochs.note(names.paths):
                return names

    def _look_again(self, standing: Standing) -> None:
        """Look at some of the files that were put aside: they may have become readable."""
        most = _LOOKS_AGAIN_REMOTE if self._place.files.is_remote else _LOOKS_AGAIN
        for path, reason in standing.passed.turn(most):
            file = next(found(self._place, [path]), None)
            if file is None:
                standing.passed.release(path)
                standing.known.discard(path)
            elif reason is not Reason.TOO_OLD or not standing.is_too_old(file):
                unit = self._checks.check(standing, ReadUnit((file,)))
                if unit is not None:
                    standing.passed.release(path)
                    standing.waiting.add(unit)

    # --- a queue

    def head(self) -> ReadUnit | None:
        """The next unit that can be read; see `Queue`. Files that cannot are put aside."""
        standing = self._needed()
        while (unit := standing.waiting.head()) is not None:
            if self._looked is None or self._looked[0] != unit:
                self._checks.look_ahead(unit, self._following)
                checked = self._checks.check(standing, unit)
                if checked is None:
                    standing.waiting.pop()
                    continue
                self._looked = unit, checked
            return self._looked[1]
        return None

    def _following(self) -> list[ReadUnit]:
        """What may still be taken of this batch, and a few more to see that it is full."""
        most = min(_LOOKS_AHEAD, _LOOKS_AHEAD if self._left is None else max(self._left, _FEW))
        self._left = None if self._left is None else self._left - most
        return self._needed().waiting.first(most)

    def pop(self) -> ReadUnit:
        """Take the next unit, as it was when `head` looked at it."""
        unit = self.head()
        if unit is None or self._looked is None:
            raise IndexError("nothing waits")
        self._needed().waiting.pop()
        self._looked = None
        return unit

    # --- positions

    def reached(self, start: ParquetOffset, taken: Sequence[ReadUnit]) -> ParquetOffset:
        """The position after a batch of what was taken, without its watermark."""
        return self._needed().read(start, taken)

    def count_all(self) -> ParquetOffset:
        """The position at which all that is there counts as read, but for what is being written.

        What is remembered on the way is of no use later: that is looked for anew.
        """
        start = ParquetOffset()
        standing = self._new_standing(start)
        # What is gone before the query begins is no loss of its.
        self._list(standing, fail_on_loss=False)
        standing.epochs_read.update((k, n) for k, n in self._epochs.visible().items() if n >= 0)
        units = []
        while standing.waiting.head() is not None:
            units.append(standing.waiting.pop())
        return standing.read(start, self._checks.whole(units), in_batch=False)

    def fingerprint(self, file: FoundFile) -> int | None:
        """Return the fingerprint of a file of the batch that was chosen last, if known."""
        return self._checks.fingerprint(file.path)

    def backlog(self, end: ParquetOffset) -> dict[str, Any]:
        """What is left after a batch: counts, times, and what is passed over and why."""
        standing = self._needed()
        waiting = standing.waiting
        found: dict[str, Any] = {"files_waiting": waiting.files, "bytes_waiting": waiting.bytes}
        if standing.newest_listed_ns is not None:
            found["newest_modified_ms"] = standing.newest_listed_ns // _NS_PER_MS
        if end.watermark is not None and end.watermark.ms is not None:
            found["watermark_ms"] = end.watermark.ms
        skips = self._books.skips(end)
        standing.passed.count(Reason.SKIPPED, sorted(skip.path for skip in skips), len(skips))
        passed = standing.passed.report()
        return {**found, "passed_over": passed} if passed else found

    def _needed(self) -> Standing:
        if self._standing is None:
            raise ValueError("request a position first")
        return self._standing


def _park_old(standing: Standing, file: FoundFile) -> None:
    standing.known.add(file.path)
    standing.passed.park(file.path, Reason.TOO_OLD)


def _report_lost(standing: Standing, lost: Sequence[Lost], *, fail: bool) -> None:
    if lost and fail:
        shown = "; ".join(map(str, lost[:3])) + ("; ..." if lost[3:] else "")
        raise DataLossError(
            f"krishiv-parquet: {shown} were published and deleted before they were read. Put "
            "them back; with the option 'failOnDataLoss' = 'false' the remaining files are "
            "read, and the deleted ones are lost, and counted in the query's progress"
        )
    for loss in lost:
        standing.passed.add(Reason.LOST, [str(loss)], loss.count)
