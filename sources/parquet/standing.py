"""What follows from a position, and from what was listed since. Driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from krishiv_spark.sources.parquet.books import Books, Reached
from krishiv_spark.sources.parquet.epochs import Epochs
from krishiv_spark.sources.parquet.passed import Passed
from krishiv_spark.sources.parquet.places import FoundFile
from krishiv_spark.sources.parquet.position import ParquetOffset
from krishiv_spark.sources.parquet.units import ReadUnit
from krishiv_spark.sources.parquet.waiting import Waiting

__all__ = ["Standing"]

_FEW = 1_000


class Standing:
    """Which files are read, which wait, and which are put aside. To lose it changes nothing.

    Args:
        position: Where the query stands.
        books: What positions stand for.
        epochs: The epochs of our sink.
        waiting: Nothing yet; it knows the order of reading.
        max_age_ns: See `FollowRules`.

    Attributes:
        known: Paths of files that are there and were read, wait, or are put aside.
        waiting: What may be read.
        passed: What is not.
        newest_listed_ns: The newest time of what has waited since the query began to look.
        epochs_read: See `ParquetOffset.epochs`.
    """

    def __init__(
        self,
        position: ParquetOffset,
        books: Books,
        epochs: Epochs,
        waiting: Waiting,
        max_age_ns: int | None,
    ) -> None:
        self.known: set[str] = set()
        self.waiting = waiting
        self.passed = Passed()
        self.newest_listed_ns: int | None = None
        self.epochs_read = dict(books.epochs(position))
        self._books = books
        self._epochs = epochs
        self._max_age_ns = max_age_ns
        self._at = _bare(position)
        self._seen = books.seen(position)
        self._newest = _newest(position, max_age_ns)
        self._counted: list[FoundFile] = []

    def is_at(self, position: ParquetOffset) -> bool:
        """Whether this is about a position."""
        return self._at == _bare(position)

    @property
    def floor_ns(self) -> int | None:
        """Files modified before this are too old; None if none is."""
        if self._newest is None or self._max_age_ns is None:
            return None
        return self._newest - self._max_age_ns

    def is_too_old(self, file: FoundFile) -> bool:
        """Whether a file that was not read is to be passed over for its time."""
        return self.floor_ns is not None and file.modified_ns < self.floor_ns

    # --- what is listed

    def unread(self, paths: Sequence[str]) -> list[str]:
        """Those of some paths of which nothing is known."""
        strange = [path for path in paths if path not in self.known]
        read = self.epochs_read
        return self._seen.lacks([p for p in strange if not self._epochs.is_read(p, read)])

    def wait(self, unit: ReadUnit) -> None:
        """Let a unit wait for its turn; the epochs of each query in their order."""
        self.known.update(file.path for file in unit.files)
        self.waiting.add(unit)
        modified_ns = self._time_of(unit)
        self.newest_listed_ns = max(modified_ns, self.newest_listed_ns or modified_ns)

    def count(self, file: FoundFile) -> None:
        """Count a file as read, from the next batch on."""
        self.known.add(file.path)
        self._counted.append(file)

    def forget_gone(self, met: int, present: Callable[[], Iterable[str]]) -> None:
        """Forget the names of read files that were removed, when there are many of them.

        Args:
            met: How many known paths a listing has met.
            present: Lists every path.
        """
        # To find out which are gone takes a listing of every name: not for a few of them.
        if len(self.known) - met < max(_FEW, len(self.known) // 4):
            return
        gone = sorted(self.known.difference(present()))
        # What waits, or was put aside, is known here only; what was read, the position knows too.
        read = set(gone).difference(self._seen.lacks(gone))
        read.update(path for path in gone if self._epochs.is_read(path, self.epochs_read))
        self.known -= read

    # --- what is read

    def read(
        self, start: ParquetOffset, units: Sequence[ReadUnit], *, in_batch: bool = True
    ) -> ParquetOffset:
        """The position after some units were read, without its watermark.

        Args:
            start: The position that this is about.
            units: What is read.
            in_batch: Whether their rows are, or they only count as read.
        """
        files = [file for unit in units for file in unit.files]
        single = [file for unit in units if unit.key is None for file in unit.files]
        for unit in units:
            if unit.key is not None and unit.origin is not None:
                before = self.epochs_read.get(unit.key, -1)
                self.epochs_read[unit.key] = max(before, unit.origin.epoch)
        self._newest = _advanced(self._newest, map(self._time_of, files))
        reached = Reached(
            files if in_batch else (),
            self._seen.adding([*single, *self._counted]),
            self.epochs_read,
            self._newest,
            self.floor_ns,
        )
        end, self._seen = self._books.offset(start, reached, lambda: self.known)
        self._at, self._counted = end, []
        return end

    def _time_of(self, found: FoundFile | ReadUnit) -> int:
        """When it was modified, without what is no time: that may be later than now."""
        return found.modified_ns - found.modified_ns % self.waiting.resolution_ns


def _bare(position: ParquetOffset) -> ParquetOffset:
    return position.model_copy(update={"watermark": None, "root": None})


def _newest(position: ParquetOffset, max_age_ns: int | None) -> int | None:
    """The newest time that was read; version 1 has it as the oldest one that is not too old."""
    if position.newest is not None or position.floor is None:
        return position.newest
    return min(time.time_ns(), position.floor + (max_age_ns or 0))


def _advanced(newest: int | None, times_ns: Iterable[int]) -> int | None:
    """The newest time after some files, by their times.

    A file that is dated in the future does not make those too old that are to come. So the clock
    is asked, and it can only let more be read.
    """
    times = list(times_ns)
    reached = min(max(times), time.time_ns()) if times else None
    return max((t for t in (newest, reached) if t is not None), default=None)
