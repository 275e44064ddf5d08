"""Bugs of plans and reads."""

import contextlib
import os
from itertools import islice, pairwise
from pathlib import Path

from pyspark.sql.datasource import InputPartition

from planted_sources.twins import (
    FolderReader,
    PlainReader,
    batches_of,
    file_of,
    find_next_position,
    lines_in,
    make_format,
    make_pyspark_format,
    names_in,
)


@make_format
class ReadsPastItsEnd(FolderReader):
    """An open-ended read: from the first one on."""

    def plan(self, start, end):
        return [(start.next, end.next)]

    def read(self, partition):
        return batches_of(self.rows(range(partition[0], find_next_position(self.folder))))


@make_format
class PlansByNow(FolderReader):
    def plan(self, start, end):
        del end
        return [
            (number, number + 1) for number in range(start.next, find_next_position(self.folder))
        ]


@make_format
class EndsInclusive(FolderReader):
    """Off by one at the border, where there is something."""

    def plan(self, start, end):
        return [(start.next, end.next)]

    def rows(self, numbers):
        more = range(numbers.start, numbers.stop + 1)
        return super().rows(n for n in more if file_of(self.folder, n).exists())


@make_format
class BeginsBehindTheFirst(FolderReader):
    """The position of the last row that was read, taken for that of the next one."""

    def plan(self, start, end):
        return [(start.next + 1, end.next)]


@make_format
class PartsOverlap(FolderReader):
    """Two tasks share the file at their border."""

    def plan(self, start, end):
        middle = (start.next + end.next) // 2
        return [(start.next, middle + 1), (middle, end.next)]


@make_format
class ConsumesWhileReading(FolderReader):
    """A source that renames files as it reads them, and skips them afterwards."""

    def rows(self, numbers):
        for number in numbers:
            file = file_of(self.folder, number)
            if file.exists():
                yield from super().rows([number])
                file.rename(file.with_name(f".{number}.done"))


@make_format
class TakesAnErrorForTheEnd(FolderReader):
    def lines(self, number):
        with contextlib.suppress(OSError):
            yield from super().lines(number)


@make_format
class TakesABreakForTheEnd(FolderReader):
    """A file that could be opened, but breaks off on the way."""

    def lines(self, number):
        lines = super().lines(number)
        yield next(lines)
        with contextlib.suppress(OSError):
            yield from lines


@make_format
class TakesAnErrorForAnEmptyFolder(FolderReader):
    def plan(self, start, end):
        names = set()
        with contextlib.suppress(OSError):
            names = set(names_in(self.folder))
        return [(n, n + 1) for n in range(start.next, end.next) if f"{n}.jsonl" in names]


@make_format
class TakesAnErrorForAMissingFile(FolderReader):
    """`os.path.exists` says no, too, when the file system does not answer."""

    def plan(self, start, end):
        numbers = range(start.next, end.next)
        return [(n, n + 1) for n in numbers if os.path.exists(file_of(self.folder, n))]


@make_format
class LeavesALock(FolderReader):
    """A source that leaves a lock behind if it dies while reading."""

    def rows(self, numbers):
        lock = Path(self.folder) / f".lock-{numbers.start}"
        lock.open("x").close()
        yield from super().rows(numbers)
        lock.unlink()


@make_format
class ReadsHiddenFiles(FolderReader):
    """A source that counts a file that is still being written as the next one."""

    def newest(self):
        return len(os.listdir(self.folder))

    def lines(self, number):
        file = file_of(self.folder, number)
        return lines_in(file if file.exists() else file.with_name(".next"))


@make_pyspark_format
class GoesByTime(PlainReader):
    """New is what has a later time than the newest that was read."""

    def latestOffset(self):
        times = [os.stat(Path(self.folder) / name).st_mtime_ns for name in names_in(self.folder)]
        return {"next": max(times, default=0)}

    def partitions(self, start, end):
        files = sorted(Path(self.folder) / name for name in names_in(self.folder))
        return [
            InputPartition(int(file.stem))
            for file in files
            if start["next"] < os.stat(file).st_mtime_ns <= end["next"]
        ]


@make_pyspark_format
class ListsTwice(PlainReader):
    """Two patterns, and a file that fits both."""

    def partitions(self, start, end):
        numbers = range(start["next"], end["next"])
        folder = Path(self.folder)
        files = [file for kind in ("*.jsonl", "*.json*") for file in folder.glob(kind)]
        return [InputPartition(int(file.stem)) for file in files if int(file.stem) in numbers]


@make_format
class ComparesAsText(FolderReader):
    """The ninth file is after the tenth."""

    def newest(self):
        return int(max(map(str, range(super().newest() + 1))))


@make_format
class StripsTexts(FolderReader):
    def rows(self, numbers):
        return ({**row, "text": row["text"].strip()} for row in super().rows(numbers))


@make_format
class NumbersAsFloats(FolderReader):
    """As JSON libraries do that know one kind of number."""

    def rows(self, numbers):
        return ({**row, "id": int(float(row["id"]))} for row in super().rows(numbers))


@make_format
class SplitsAtAnyLineEnd(FolderReader):
    """`str.splitlines` knows more ends of a line than JSON lines have."""

    def lines(self, number):
        return iter(file_of(self.folder, number).read_text(encoding="utf-8").splitlines())


@make_format
class HoldsItAll(FolderReader):
    def rows(self, numbers):
        return iter(list(super().rows(numbers)))


@make_format
class HoldsItAllInManyTasks(FolderReader):
    """Each task holds all that it reads; there are eight of them."""

    def plan(self, start, end):
        marks = [start.next + (end.next - start.next) * i // 8 for i in range(9)]
        return [(a, b) for a, b in pairwise(marks) if a < b]

    def rows(self, numbers):
        return iter(list(super().rows(numbers)))


@make_format
class ReadsOnePage(FolderReader):
    """Asks for a thousand rows, and never for the next thousand."""

    def rows(self, numbers):
        return islice(super().rows(numbers), 1000)


@make_format
class BatchMissesTheLast(FolderReader):
    def newest(self):
        return super().newest() - (0 if self.streaming else 1)


@make_format
class CannotPlanNothing(FolderReader):
    """A batch read of nothing is planned too."""

    def plan(self, start, end):
        first, *others = super().plan(start, end)
        return [first, *others]
