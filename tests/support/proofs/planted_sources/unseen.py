"""Bugs that a kit overlooks which counts calls of streams, or is more patient than Spark."""

import _io
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from planted_sources.twins import (
    FolderReader,
    JobsReader,
    PlainReader,
    batches_of,
    file_of,
    find_next_position,
    make_format,
    make_pyspark_format,
    names_in,
)

# ---------------------------------------------------------------- batches alone


@make_pyspark_format
class JobsTakeAnErrorForAnEmptyFolder(JobsReader):
    def partitions(self):
        found = []
        with contextlib.suppress(OSError):
            found = [InputPartition(Path(name).stem) for name in names_in(self.folder)]
        return found


@make_pyspark_format
class JobsHoldItAll(JobsReader):
    """One task reads everything, and holds it."""

    def partitions(self):
        return [InputPartition([Path(name).stem for name in names_in(self.folder)])]

    def read(self, partition):
        return batches_of(self.rows(partition.value))

    def rows(self, numbers):
        return iter(list(super().rows(numbers)))


# ---------------------------------------------------------------- what is gone


@make_format
class PassesOverWhatExpired(FolderReader):
    """A file that is no more has no rows."""

    def lines(self, number):
        return super().lines(number) if file_of(self.folder, number).exists() else iter(())


# ---------------------------------------------------------------- what Spark refuses


@make_pyspark_format
class PlansAGenerator(PlainReader):
    """Spark wants to know first how many there are."""

    def partitions(self, start, end):
        yield from super().partitions(start, end)


@dataclass
class ALimit(ReadLimit):
    pages: int = 3


@make_pyspark_format
class HasALimitOfItsOwn(PlainReader):
    """A limit travels by the name of its class, and Spark knows its own ones."""

    def getDefaultReadLimit(self):
        return ALimit()

    def latestOffset(self, start, limit):
        del start, limit
        return {"next": find_next_position(self.folder)}


# ---------------------------------------------------------------- calls that nobody sees


@make_format
class ReadsUnseen(FolderReader):
    """Nothing is wrong with it but that nobody could tell."""

    def lines(self, number):
        with _io.open(file_of(self.folder, number), encoding="utf-8", newline="\n") as lines:
            yield from lines


@make_format
class LeavesALockUnseen(FolderReader):
    """As `LeavesALock`, where no call can be counted."""

    is_unseen = True

    def rows(self, numbers):
        lock = Path(self.folder) / f".lock-{numbers.start}"
        _io.open(lock, "x").close()
        time.sleep(0.1)
        yield from super().rows(numbers)
        lock.unlink()
