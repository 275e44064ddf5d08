"""Bugs of limits, ends, event time, and around the query."""

import contextlib
import time

import pyarrow as pa

from krishiv_spark.offsets import Watermark
from krishiv_spark.offsets.watermark import advance
from krishiv_spark.sources.base import Limit
from planted_sources.twins import (
    FolderOffset,
    FolderReader,
    PlainReader,
    SimpleReader,
    batches_of,
    exceeds,
    file_of,
    find_next_position,
    make_format,
    make_pyspark_format,
    rows_in,
    tuple_of,
)

# ---------------------------------------------------------------- limits, ends, event time


@make_format
class IgnoresLimits(FolderReader):
    def limited(self, first, newest, limit):
        del limit
        return max(first, newest)


@make_format
class KnowsRowsOnly(FolderReader):
    """It has the options for files and bytes too, as every source has."""

    def limited(self, first, newest, limit):
        return super().limited(first, newest, Limit(rows=limit.rows))


@make_format
class LimitsByItsOptions(FolderReader):
    """A batch read has no limit, whatever the options say; nor has a stream with Trigger.Once."""

    def limited(self, first, newest, limit):
        del limit
        return super().limited(first, newest, self.options.limit())


@make_format
class LimitsInThePlan(FolderReader):
    """The end is the newest, but only so much of it is planned."""

    def latest(self, start, limit):
        del limit
        return FolderOffset(next=max(start.next, self.newest()))

    def plan(self, start, end):
        most = self.options.max_rows_per_trigger
        return [(n, n + 1) for n in range(start.next, end.next)][:most]


@make_format
class CountsFromTheBeginning(FolderReader):
    """Two rows, but of all that there ever were: nothing is taken from the second batch on."""

    def limited(self, first, newest, limit):
        return max(first, super().limited(0, newest, limit))


@make_format
class WaitsForWhatFits(FolderReader):
    """A unit larger than the limit is never taken."""

    def limited(self, first, newest, limit):
        fits = first >= newest or not exceeds(self.size(first), limit)
        return super().limited(first, newest, limit) if fits else first


@make_format
class NeverEnds(FolderReader):
    def freeze(self):
        """It has the ability, but goes on looking."""


@make_format
class EndsAtItsFirstLook(FolderReader):
    """A source that reads its end too late."""

    def freeze(self):
        self.is_ending = True

    def newest(self):
        if self.frozen is None and getattr(self, "is_ending", False):
            super().freeze()
        return super().newest()


@make_format
class EndsUnlessItIsEmpty(FolderReader):
    """Nothing is there, and that is taken for not having looked."""

    def newest(self):
        return self.frozen or find_next_position(self.folder)


@make_format
class MovesWhileItEnds(FolderReader):
    """No newer row is read, but the offset says how many there are: one empty batch per row."""

    def latest(self, start, limit):
        end = super().latest(start, limit)
        return FolderOffset(next=end.next, note=find_next_position(self.folder))


@make_format
class WatermarkOfTheClock(FolderReader):
    def watermark(self, start, end):
        del end
        return advance(start.watermark, time.time_ns() // 1_000_000, self.delay)


@make_format
class WatermarkOfTheLastBatch(FolderReader):
    """It goes back when a batch is older than the one before."""

    def watermark(self, start, end):
        return Watermark(ms=self.newest_ms(start.next, end) - self.delay)


@make_format
class WatermarkOnSelf(FolderReader):
    """It is forgotten at a restart."""

    mark = None

    def watermark(self, start, end):
        self.mark = advance(self.mark, self.newest_ms(start.next, end), self.delay)
        return self.mark


@make_format
class WatermarkOfAllThatIsThere(FolderReader):
    """It counts rows that a later batch will bring, and makes them late."""

    def watermark(self, start, end):
        del end
        return advance(start.watermark, self.newest_ms(0, self.newest()), self.delay)


# ---------------------------------------------------------------- around the query


@make_format
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


@make_pyspark_format
class NeedsToBeAskedForItsStart(PlainReader):
    """Sets itself up in `initialOffset`, which Spark calls late, and not at all in a second run."""

    def initialOffset(self):
        self.where = self.folder
        return {"next": 0}

    def latestOffset(self):
        return {"next": find_next_position(self.where)}


@make_format
class CannotTellItsBacklog(FolderReader):
    """Spark asks after each `latestOffset`, and fails the query if that fails."""

    def backlog(self):
        raise OSError("no answer")


read_here: set[tuple[str, int]] = set()


@make_format
class ReadsOnceInAProcess(FolderReader):
    """A worker that tries a task again, or in two queries, believes that it has read the rows."""

    def read(self, partition):
        numbers = [n for n in range(*partition) if (self.folder, n) not in read_here]
        read_here.update((self.folder, number) for number in numbers)
        return batches_of(self.rows(numbers))


@make_format
class ServesOneQuery(FolderReader):
    """A source that deletes the data of one query, and silently loses it for all others."""

    def committed(self, end):
        for number in range(end.next):
            file_of(self.folder, number).unlink(missing_ok=True)

    def lines(self, number):
        return super().lines(number) if file_of(self.folder, number).exists() else iter(())


@make_format
class BatchTakesAnErrorForTheEnd(FolderReader):
    """As in streams above, but only in batch reads."""

    def lines(self, number):
        with contextlib.suppress(*([] if self.streaming else [OSError])):
            yield from super().lines(number)


@make_format
class InfersAnotherSchema(FolderReader):
    def infer_schema(self):
        return pa.schema([("id", pa.string())])


@make_pyspark_format
class PrefetchesOtherRows(SimpleReader):
    """Spark delivers what `read` returns; what lies between offsets is for replays only."""

    def read(self, start):
        _, end = super().read(start)
        return map(tuple_of, rows_in(self.folder, range(start["next"], end["next"] - 1))), end


@make_pyspark_format
class SimpleReadsPastItsEnd(SimpleReader):
    def readBetweenOffsets(self, start, end):
        end = {"next": find_next_position(self.folder)}
        return super().readBetweenOffsets(start, end)
