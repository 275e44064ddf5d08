"""Sources with one planted bug each, and correct ones beside them: the kit must tell them apart.

The outside is a folder. Another program moves a file of JSON lines into it for each unit, named by
its number: `0.jsonl`, `1.jsonl`. The next file lies beside them, half written, under a hidden name.
A position is the number of the next file.
"""

import contextlib
import functools
import json
import os
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice, pairwise
from operator import add
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.offsets import Offset, Start, Watermark
from krishiv_spark.offsets.watermark import advance, epoch_ms
from krishiv_spark.sources.base import Limit, SourceOptions, StreamReader

SCHEMA = pa.schema(
    [("id", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("us", tz="UTC"))]
)
A_SECOND = 1_700_000_000

# ---------------------------------------------------------------- the folder


def write_unit(folder, number, rows):
    """The other program. The file system knows times to the second only, as many do."""
    aside = folder / ".next"
    lines = (json.dumps([*row[:2], row[2].isoformat()], ensure_ascii=False) for row in rows)
    aside.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    os.utime(aside, (A_SECOND, A_SECOND))
    os.rename(aside, file_of(folder, number))
    aside.write_text('[7, "half wri')


def file_of(folder, number) -> Path:
    return Path(folder) / f"{number}.jsonl"


def names_in(folder) -> list[str]:
    return [name for name in os.listdir(folder) if not name.startswith(".")]


def newest_in(folder) -> int:
    """The number behind the newest file, as positions are."""
    return max((int(Path(name).stem) + 1 for name in names_in(folder)), default=0)


def lines_in(file) -> Iterator[str]:
    with open(file, encoding="utf-8", newline="\n") as lines:
        yield from lines


def row_of(line) -> dict:
    number, text, at = json.loads(line)
    return {"id": number, "text": text, "at": datetime.fromisoformat(at)}


def rows_in(folder, numbers: Iterable[int]) -> Iterator[dict]:
    for number in numbers:
        yield from map(row_of, lines_in(file_of(folder, number)))


def batches_of(rows: Iterable[dict]) -> Iterator[pa.RecordBatch]:
    left = iter(rows)
    while chunk := list(islice(left, 500)):
        yield pa.RecordBatch.from_pylist(chunk, schema=SCHEMA)


# ---------------------------------------------------------------- correct, on our base


class FolderOptions(SourceOptions):
    path: str
    starting: Literal["earliest", "latest"] = "earliest"


class FolderOffset(Offset):
    kind = "planted"
    next: int = 0
    note: int | None = None
    names: tuple[str, ...] | None = None


class FolderReader(StreamReader[FolderOffset, tuple[int, int]]):
    options_type = FolderOptions
    offset_type = FolderOffset
    options: FolderOptions

    def __init__(self, options, schema, *, streaming):
        super().__init__(options, schema, streaming=streaming)
        self.folder = options.path
        self.frozen = None

    def infer_schema(self):
        return SCHEMA

    def initial(self):
        return Start(at="latest") if self.options.starting == "latest" else FolderOffset()

    def resolve(self, start):
        del start
        return FolderOffset(next=newest_in(self.folder))

    def latest(self, start, limit):
        end = self.limited(start.next, self.newest(), limit)
        if end == start.next:
            return start
        return FolderOffset(next=end, watermark=self.watermark(start, end))

    def limited(self, first, newest, limit) -> int:
        """The end of a batch; at least one file further if there is one."""
        taken = [0, 0, 0]
        for number in range(first, newest):
            taken = list(map(add, taken, self.size(number)))
            if number > first and exceeds(taken, limit):
                return number
        return max(first, newest)

    def size(self, number) -> tuple[int, int, int]:
        """Rows, files and bytes of a unit."""
        lengths = [len(line.encode()) for line in self.lines(number)]
        return len(lengths), 1, sum(lengths)

    def watermark(self, start, end) -> Watermark | None:
        if self.options.event_time is None:
            return None
        return advance(start.watermark, self.newest_ms(start.next, end), self.delay)

    @property
    def delay(self) -> int:
        return self.options.watermark_delay

    def newest_ms(self, first, end) -> int:
        return max(epoch_ms(pa.scalar(row["at"])) for row in self.rows(range(first, end)))

    def plan(self, start, end):
        middle = (start.next + end.next + 1) // 2
        return [(a, b) for a, b in [(start.next, middle), (middle, end.next)] if a < b]

    def read(self, partition):
        return batches_of(self.rows(range(*partition)))

    def rows(self, numbers) -> Iterator[dict]:
        for number in numbers:
            yield from map(row_of, self.lines(number))

    def lines(self, number) -> Iterator[str]:
        return lines_in(file_of(self.folder, number))

    def freeze(self):
        self.frozen = newest_in(self.folder)

    def newest(self) -> int:
        return newest_in(self.folder) if self.frozen is None else self.frozen


def exceeds(taken, limit) -> bool:
    rows, files, size = taken
    return not limit.admits(rows=rows, files=files, size=size)


class Folder(KrishivDataSource):
    format_name = "planted"
    reader_type = FolderReader


def on_our_base(reader):
    """The format of a reader, in its place; the reader is found as the format's `reader_type`."""
    reader.__qualname__ = f"{reader.__name__}.reader_type"
    parts = {"format_name": "planted", "reader_type": reader, "__module__": __name__}
    return type(reader.__name__, (KrishivDataSource,), parts)


@on_our_base
class Queue(FolderReader):
    """Correct: what is done may be thrown away, and one is told as often as Spark likes."""

    def committed(self, end):
        for number in range(end.next):
            file_of(self.folder, number).unlink(missing_ok=True)


# ---------------------------------------------------------------- correct, on PySpark's classes


class PlainReader(DataSourceStreamReader):
    """With `latestOffset` as every version of PySpark knows it."""

    def __init__(self, options):
        self.folder = options["path"]

    def initialOffset(self):
        return {"next": 0}

    def latestOffset(self):
        return {"next": newest_in(self.folder)}

    def partitions(self, start, end):
        return [InputPartition(number) for number in range(start["next"], end["next"])]

    def read(self, partition):
        return batches_of(rows_in(self.folder, [partition.value]))


class Plain(DataSource):
    stream_reader = PlainReader

    def streamReader(self, schema):
        del schema
        return self.stream_reader(self.options)


class SimpleReader(SimpleDataSourceStreamReader):
    def __init__(self, options):
        self.folder = options["path"]

    def initialOffset(self):
        return {"next": 0}

    def read(self, start):
        end = {"next": newest_in(self.folder)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start, end):
        return map(tuple_of, rows_in(self.folder, range(start["next"], end["next"])))


class Simple(DataSource):
    stream_reader = SimpleReader

    def simpleStreamReader(self, schema):
        del schema
        return self.stream_reader(self.options)


def on_pyspark(reader):
    """As `on_our_base`, for readers that are written on PySpark's own classes."""
    reader.__qualname__ = f"{reader.__name__}.stream_reader"
    base = Simple if issubclass(reader, SimpleReader) else Plain
    return type(reader.__name__, (base,), {"stream_reader": reader, "__module__": __name__})


def tuple_of(row) -> tuple:
    return tuple(row.values())


# ---------------------------------------------------------------- positions


@on_pyspark
class KeysInAnyOrder(PlainReader):
    """The order of the keys is that of a set."""

    def latestOffset(self):
        end = newest_in(self.folder)
        return dict.fromkeys({"next", "rows", "files", "bytes", "newest"}, end)


@on_our_base
class NamesInAnyOrder(FolderReader):
    """Keys are sorted for us; a tuple made of a set is not."""

    def latest(self, start, limit):
        del limit
        names = set(names_in(self.folder))
        return FolderOffset(next=len(names), names=tuple(names)) if names else start


@on_our_base
class TellsTheTime(FolderReader):
    """The offset says when it was made."""

    def latest(self, start, limit):
        del start, limit
        return FolderOffset(next=self.newest(), note=time.time_ns())


@on_our_base
class TellsTheProcess(FolderReader):
    """The offset says which process made it: stable until the next restart."""

    def latest(self, start, limit):
        del start, limit
        return FolderOffset(next=self.newest(), note=os.getpid())


@on_pyspark
class NumbersAsKeys(PlainReader):
    """JSON turns the keys into text; the offset that comes back is another one."""

    def initialOffset(self):
        return {0: 0}

    def latestOffset(self):
        return {0: newest_in(self.folder)}

    def partitions(self, start, end):
        return [InputPartition(number) for number in range(start[0], end[0])]


@on_pyspark
class BeginsAtTheNewest(PlainReader):
    def initialOffset(self):
        return {"next": newest_in(self.folder)}


@on_our_base
class NeverPins(FolderReader):
    """It could pin a start that moves, but gives a position at once."""

    def initial(self):
        moves = self.options.starting == "latest"
        return FolderOffset(next=newest_in(self.folder) if moves else 0)


@on_our_base
class IgnoresTheStart(FolderReader):
    def initial(self):
        return FolderOffset()


@on_our_base
class TakesAnErrorForNothing(FolderReader):
    """A folder that cannot be listed now is taken for an empty one when the start is pinned."""

    def resolve(self, start):
        with contextlib.suppress(OSError):
            return super().resolve(start)
        return FolderOffset()


# ---------------------------------------------------------------- what is remembered, and where


@on_pyspark
class CountsOnSelf(PlainReader):
    """As in the example of PySpark's own documentation: a step further than the last answer."""

    def __init__(self, options):
        super().__init__(options)
        self.current = 0

    def latestOffset(self):
        self.current = min(self.current + 1, newest_in(self.folder))
        return {"next": self.current}


@on_pyspark
class GoesByItsOwnRecord(PlainReader):
    """Writes down at `commit` what was read, and begins there; Spark's last batch is missing."""

    def __init__(self, options):
        super().__init__(options)
        self.record = Path(self.folder) / ".record"

    def initialOffset(self):
        return json.loads(self.record.read_text()) if self.record.exists() else {"next": 0}

    def commit(self, end):
        self.record.write_text(json.dumps(end))


@on_our_base
class PlansFromItsOwnRecord(FolderReader):
    """Hands out what it believes that it has not handed out yet, as recorded at `committed`."""

    def __init__(self, options, schema, *, streaming):
        super().__init__(options, schema, streaming=streaming)
        self.record = Path(self.folder) / ".record"
        self.done = int(self.record.read_text()) if self.record.exists() else 0

    def plan(self, start, end):
        del start
        first, self.done = self.done, end.next
        return [(first, end.next)]

    def committed(self, end):
        self.record.write_text(str(end.next))


@on_our_base
class PlansWhatItListed(FolderReader):
    """`plan` needs what `latest` has seen; a driver that repeats a batch has asked for nothing."""

    listed = range(0)

    def latest(self, start, limit):
        end = super().latest(start, limit)
        self.listed = range(start.next, end.next)
        return end

    def plan(self, start, end):
        del start, end
        return [(number, number + 1) for number in self.listed]


@on_our_base
class KeepsItForTheTasks(FolderReader):
    """Tasks read with another instance."""

    planned = range(0)

    def plan(self, start, end):
        self.planned = range(start.next, end.next)
        return [None]

    def read(self, partition):
        del partition
        return batches_of(self.rows(self.planned))


@on_pyspark
class HoldsAnOpenFolder(PlainReader):
    """The reader travels to the tasks, a handle does not."""

    def __init__(self, options):
        super().__init__(options)
        self.handle = os.scandir(self.folder)


@functools.cache
def listed_once(folder) -> int:
    return newest_in(folder)


@on_our_base
class ListsOnce(FolderReader):
    """A cache that nobody clears."""

    def newest(self):
        return listed_once(self.folder)


# ---------------------------------------------------------------- plans and reads


@on_our_base
class ReadsPastItsEnd(FolderReader):
    """An open-ended read: from the first one on."""

    def plan(self, start, end):
        return [(start.next, end.next)]

    def read(self, partition):
        return batches_of(self.rows(range(partition[0], newest_in(self.folder))))


@on_our_base
class PlansByNow(FolderReader):
    def plan(self, start, end):
        del end
        return [(number, number + 1) for number in range(start.next, newest_in(self.folder))]


@on_our_base
class EndsInclusive(FolderReader):
    """Off by one at the border, where there is something."""

    def plan(self, start, end):
        return [(start.next, end.next)]

    def rows(self, numbers):
        more = range(numbers.start, numbers.stop + 1)
        return super().rows(n for n in more if file_of(self.folder, n).exists())


@on_our_base
class BeginsBehindTheFirst(FolderReader):
    """The position of the last row that was read, taken for that of the next one."""

    def plan(self, start, end):
        return [(start.next + 1, end.next)]


@on_our_base
class PartsOverlap(FolderReader):
    """Two tasks share the file at their border."""

    def plan(self, start, end):
        middle = (start.next + end.next) // 2
        return [(start.next, middle + 1), (middle, end.next)]


@on_our_base
class ConsumesWhileReading(FolderReader):
    """What was read is marked by another name, and passed over from then on."""

    def rows(self, numbers):
        for number in numbers:
            file = file_of(self.folder, number)
            if file.exists():
                yield from super().rows([number])
                file.rename(file.with_name(f".{number}.done"))


@on_our_base
class TakesAnErrorForTheEnd(FolderReader):
    def lines(self, number):
        with contextlib.suppress(OSError):
            yield from super().lines(number)


@on_our_base
class TakesABreakForTheEnd(FolderReader):
    """A file that could be opened, but breaks off on the way."""

    def lines(self, number):
        lines = super().lines(number)
        yield next(lines)
        with contextlib.suppress(OSError):
            yield from lines


@on_our_base
class TakesAnErrorForAnEmptyFolder(FolderReader):
    def plan(self, start, end):
        names = set()
        with contextlib.suppress(OSError):
            names = set(names_in(self.folder))
        return [(n, n + 1) for n in range(start.next, end.next) if f"{n}.jsonl" in names]


@on_our_base
class TakesAnErrorForAMissingFile(FolderReader):
    """`os.path.exists` says no, too, when the file system does not answer."""

    def plan(self, start, end):
        numbers = range(start.next, end.next)
        return [(n, n + 1) for n in numbers if os.path.exists(file_of(self.folder, n))]


@on_our_base
class LeavesALock(FolderReader):
    """Who dies while reading leaves its lock behind."""

    def rows(self, numbers):
        lock = Path(self.folder) / f".lock-{numbers.start}"
        lock.open("x").close()
        yield from super().rows(numbers)
        lock.unlink()


@on_our_base
class ReadsHiddenFiles(FolderReader):
    """What is still being written counts as the next file."""

    def newest(self):
        return len(os.listdir(self.folder))

    def lines(self, number):
        file = file_of(self.folder, number)
        return lines_in(file if file.exists() else file.with_name(".next"))


@on_pyspark
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


@on_pyspark
class ListsTwice(PlainReader):
    """Two patterns, and a file that fits both."""

    def partitions(self, start, end):
        numbers = range(start["next"], end["next"])
        folder = Path(self.folder)
        files = [file for kind in ("*.jsonl", "*.json*") for file in folder.glob(kind)]
        return [InputPartition(int(file.stem)) for file in files if int(file.stem) in numbers]


@on_our_base
class ComparesAsText(FolderReader):
    """The ninth file is behind the tenth."""

    def newest(self):
        return int(max(map(str, range(super().newest() + 1))))


@on_our_base
class StripsTexts(FolderReader):
    def rows(self, numbers):
        return ({**row, "text": row["text"].strip()} for row in super().rows(numbers))


@on_our_base
class NumbersAsFloats(FolderReader):
    """As JSON libraries do that know one kind of number."""

    def rows(self, numbers):
        return ({**row, "id": int(float(row["id"]))} for row in super().rows(numbers))


@on_our_base
class SplitsAtAnyLineEnd(FolderReader):
    """`str.splitlines` knows more ends of a line than JSON lines have."""

    def lines(self, number):
        return iter(file_of(self.folder, number).read_text(encoding="utf-8").splitlines())


@on_our_base
class HoldsItAll(FolderReader):
    def rows(self, numbers):
        return iter(list(super().rows(numbers)))


@on_our_base
class HoldsItAllInManyTasks(FolderReader):
    """Each task holds all that it reads; there are eight of them."""

    def plan(self, start, end):
        marks = [start.next + (end.next - start.next) * i // 8 for i in range(9)]
        return [(a, b) for a, b in pairwise(marks) if a < b]

    def rows(self, numbers):
        return iter(list(super().rows(numbers)))


@on_our_base
class ReadsOnePage(FolderReader):
    """Asks for a thousand rows, and never for the next thousand."""

    def rows(self, numbers):
        return islice(super().rows(numbers), 1000)


@on_our_base
class BatchMissesTheLast(FolderReader):
    def newest(self):
        return super().newest() - (0 if self.streaming else 1)


@on_our_base
class CannotPlanNothing(FolderReader):
    """A batch read of nothing is planned too."""

    def plan(self, start, end):
        first, *others = super().plan(start, end)
        return [first, *others]


# ---------------------------------------------------------------- limits, ends, event time


@on_our_base
class IgnoresLimits(FolderReader):
    def limited(self, first, newest, limit):
        del limit
        return max(first, newest)


@on_our_base
class KnowsRowsOnly(FolderReader):
    """It has the options for files and bytes too, as every source has."""

    def limited(self, first, newest, limit):
        return super().limited(first, newest, Limit(rows=limit.rows))


@on_our_base
class LimitsByItsOptions(FolderReader):
    """A batch read has no limit, whatever the options say; nor has a stream with Trigger.Once."""

    def limited(self, first, newest, limit):
        del limit
        return super().limited(first, newest, self.options.limit())


@on_our_base
class LimitsInThePlan(FolderReader):
    """The end is the newest, but only so much of it is planned."""

    def latest(self, start, limit):
        del limit
        return FolderOffset(next=max(start.next, self.newest()))

    def plan(self, start, end):
        most = self.options.max_rows_per_trigger
        return [(n, n + 1) for n in range(start.next, end.next)][:most]


@on_our_base
class CountsFromTheBeginning(FolderReader):
    """Two rows, but of all that there ever were: nothing is taken from the second batch on."""

    def limited(self, first, newest, limit):
        return max(first, super().limited(0, newest, limit))


@on_our_base
class WaitsForWhatFits(FolderReader):
    """A unit larger than the limit is never taken."""

    def limited(self, first, newest, limit):
        fits = first >= newest or not exceeds(self.size(first), limit)
        return super().limited(first, newest, limit) if fits else first


@on_our_base
class NeverEnds(FolderReader):
    def freeze(self):
        """It has the ability, but goes on looking."""


@on_our_base
class EndsAtItsFirstLook(FolderReader):
    """What is there is asked for too late."""

    def freeze(self):
        self.is_ending = True

    def newest(self):
        if self.frozen is None and getattr(self, "is_ending", False):
            super().freeze()
        return super().newest()


@on_our_base
class EndsUnlessItIsEmpty(FolderReader):
    """Nothing is there, and that is taken for not having looked."""

    def newest(self):
        return self.frozen or newest_in(self.folder)


@on_our_base
class EndsBeforeItBegan(FolderReader):
    """What came between the freeze and the pinning of the start lies behind the end."""

    def limited(self, first, newest, limit):
        del first, limit
        return newest


@on_our_base
class MovesWhileItEnds(FolderReader):
    """No newer row is read, but the offset says how many there are: one empty batch per row."""

    def latest(self, start, limit):
        end = super().latest(start, limit)
        return FolderOffset(next=end.next, note=newest_in(self.folder))


@on_our_base
class WatermarkOfTheClock(FolderReader):
    def watermark(self, start, end):
        del end
        return advance(start.watermark, time.time_ns() // 1_000_000, self.delay)


@on_our_base
class WatermarkOfTheLastBatch(FolderReader):
    """It goes back when a batch is older than the one before."""

    def watermark(self, start, end):
        return Watermark(ms=self.newest_ms(start.next, end) - self.delay)


@on_our_base
class WatermarkOnSelf(FolderReader):
    """It is forgotten at a restart."""

    mark = None

    def watermark(self, start, end):
        self.mark = advance(self.mark, self.newest_ms(start.next, end), self.delay)
        return self.mark


@on_our_base
class WatermarkOfAllThatIsThere(FolderReader):
    """It counts rows that a later batch will bring, and makes them late."""

    def watermark(self, start, end):
        del end
        return advance(start.watermark, self.newest_ms(0, self.newest()), self.delay)


# ---------------------------------------------------------------- around the query


@on_our_base
class ThrowsAwayWhatItChose(FolderReader):
    """`committed` throws away all that was chosen so far, and does not look at its argument."""

    chosen = 0

    def latest(self, start, limit):
        end = super().latest(start, limit)
        self.chosen = end.next
        return end

    def committed(self, end):
        del end
        for number in range(self.chosen):
            file_of(self.folder, number).unlink(missing_ok=True)


@on_pyspark
class NeedsToBeAskedForItsStart(PlainReader):
    """Sets itself up in `initialOffset`, which Spark calls late, and not at all in a second run."""

    def initialOffset(self):
        self.where = self.folder
        return {"next": 0}

    def latestOffset(self):
        return {"next": newest_in(self.where)}


@on_our_base
class CannotTellItsBacklog(FolderReader):
    """Spark asks after each `latestOffset`, and fails the query if that fails."""

    def backlog(self):
        raise OSError("no answer")


read_here: set[tuple[str, int]] = set()


@on_our_base
class ReadsOnceInAProcess(FolderReader):
    """A worker that tries a task again, or in two queries, believes that it has read the rows."""

    def read(self, partition):
        numbers = [n for n in range(*partition) if (self.folder, n) not in read_here]
        read_here.update((self.folder, number) for number in numbers)
        return batches_of(self.rows(numbers))


@on_our_base
class ServesOneQuery(FolderReader):
    """What one query has done is gone for all others, and nobody says so."""

    def committed(self, end):
        for number in range(end.next):
            file_of(self.folder, number).unlink(missing_ok=True)

    def lines(self, number):
        return super().lines(number) if file_of(self.folder, number).exists() else iter(())


@on_our_base
class BatchTakesAnErrorForTheEnd(FolderReader):
    """As in streams above, but only in batch reads."""

    def lines(self, number):
        with contextlib.suppress(*([] if self.streaming else [OSError])):
            yield from super().lines(number)


@on_our_base
class InfersAnotherSchema(FolderReader):
    def infer_schema(self):
        return pa.schema([("id", pa.string())])


@on_pyspark
class PrefetchesOtherRows(SimpleReader):
    """Spark delivers what `read` returns; what lies between offsets is for replays only."""

    def read(self, start):
        _, end = super().read(start)
        return map(tuple_of, rows_in(self.folder, range(start["next"], end["next"] - 1))), end


@on_pyspark
class SimpleReadsPastItsEnd(SimpleReader):
    def readBetweenOffsets(self, start, end):
        end = {"next": newest_in(self.folder)}
        return super().readBetweenOffsets(start, end)
