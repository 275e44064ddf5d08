"""Mistakes of the author of a first source: values, pages, borders, and ends."""

import contextlib

from krishiv_spark.sources.base import Limit
from planted_sources.twins import (
    FolderOffset,
    FolderReader,
    PlainReader,
    find_next_position,
    make_format,
    make_pyspark_format,
    names_in,
)

# ---------------------------------------------------------------- values


class Changing(FolderReader):
    """Rows pass through `changed`."""

    def rows(self, numbers):
        return map(self.changed, super().rows(numbers))

    def changed(self, row):
        raise NotImplementedError


@make_format
class NullsAsEmptyTexts(Changing):
    def changed(self, row):
        return {**row, "text": row["text"] or ""}


@make_format
class LocalTimes(Changing):
    """A time without a zone is one of the machine, and Arrow takes it for one of UTC."""

    def changed(self, row):
        at = row["at"]
        return {**row, "at": at and at.astimezone().replace(tzinfo=None)}


@make_format
class CutsTimes(Changing):
    """Whole seconds."""

    def changed(self, row):
        at = row["at"]
        return {**row, "at": at and at.replace(microsecond=0)}


@make_format
class LeavesOutNulls(FolderReader):
    def rows(self, numbers):
        return (row for row in super().rows(numbers) if None not in row.values())


# ---------------------------------------------------------------- pages and borders

_PAGE = 1000


@make_format
class RepeatsTheLastOfAPage(FolderReader):
    """The next page begins with the row that the last one has ended with."""

    def rows(self, numbers):
        for place, row in enumerate(super().rows(numbers), 1):
            yield row
            if place % _PAGE == 0:
                yield row


@make_format
class SkipsTheFirstOfAPage(FolderReader):
    def rows(self, numbers):
        for place, row in enumerate(super().rows(numbers)):
            if place == 0 or place % _PAGE:
                yield row


@make_format
class GivesUpWithoutAWord(FolderReader):
    """Tries again some times; then it takes the error for the end."""

    def lines(self, number):
        for _ in range(3):
            with contextlib.suppress(OSError):
                return iter(list(super().lines(number)))
        return iter(())


@make_format
class TasksShareTheirBorders(FolderReader):
    """Both ends of a task's range are taken for inclusive, where there is a next task."""

    def plan(self, start, end):
        parts = super().plan(start, end)
        return [(first, min(last + 1, end.next)) for first, last in parts]


@make_format
class IsAlwaysOneTask(FolderReader):
    """Correct, but nobody has said so: that its tasks do not overlap means nothing."""

    def plan(self, start, end):
        return [(start.next, end.next)]


@make_format
class BatchStopsAtItsLimit(FolderReader):
    """A source whose batch read returns only as much as one batch of a stream."""

    def limited(self, first, newest, limit):
        return super().limited(first, newest, limit if self.streaming else Limit(rows=_PAGE))


# ---------------------------------------------------------------- positions


@make_format
class AsksALaggingReplica(FolderReader):
    """Every second look is answered by one that has not heard of the newest file."""

    looks = 0

    def latest(self, start, limit):
        del start, limit
        self.looks += 1
        return FolderOffset(next=max(find_next_position(self.folder) - self.looks % 2, 0))


@make_pyspark_format
class BeginsAtTheOldest(PlainReader):
    """The oldest that there is: another one before there was any."""

    def initialOffset(self):
        return {"next": 0 if names_in(self.folder) else -1}


@make_format
class FreezesBeforeItsStart(FolderReader):
    """The end was fixed before the start was pinned, and lies before it."""

    def limited(self, first, newest, limit):
        return min(newest, super().limited(first, newest, limit))


@make_format
class TakesOneMore(FolderReader):
    def limited(self, first, newest, limit):
        return min(super().limited(first, newest, limit) + 1, max(first, newest))
