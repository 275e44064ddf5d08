"""Bugs of positions, and of what is remembered where."""

import contextlib
import functools
import json
import os
import time
from pathlib import Path

from pyspark.sql.datasource import InputPartition

from planted_sources.twins import (
    FolderOffset,
    FolderReader,
    PlainReader,
    batches_of,
    find_next_position,
    make_format,
    make_pyspark_format,
    names_in,
)

# ---------------------------------------------------------------- positions


@make_pyspark_format
class KeysInAnyOrder(PlainReader):
    """The order of the keys is that of a set."""

    def latestOffset(self):
        end = find_next_position(self.folder)
        return dict.fromkeys({"next", "rows", "files", "bytes", "newest"}, end)


@make_format
class NamesInAnyOrder(FolderReader):
    """Keys are sorted for us; a tuple made of a set is not."""

    def latest(self, start, limit):
        del limit
        names = set(names_in(self.folder))
        return FolderOffset(next=len(names), names=tuple(names)) if names else start


@make_format
class TellsTheTime(FolderReader):
    """The offset says when it was made."""

    def latest(self, start, limit):
        del start, limit
        return FolderOffset(next=self.newest(), note=time.time_ns())


@make_format
class TellsTheProcess(FolderReader):
    """The offset says which process made it: stable until the next restart."""

    def latest(self, start, limit):
        del start, limit
        return FolderOffset(next=self.newest(), note=os.getpid())


@make_pyspark_format
class NumbersAsKeys(PlainReader):
    """JSON turns the keys into text; the offset that comes back is another one."""

    def initialOffset(self):
        return {0: 0}

    def latestOffset(self):
        return {0: find_next_position(self.folder)}

    def partitions(self, start, end):
        return [InputPartition(number) for number in range(start[0], end[0])]


@make_pyspark_format
class BeginsAtTheNewest(PlainReader):
    def initialOffset(self):
        return {"next": find_next_position(self.folder)}


@make_format
class NeverPins(FolderReader):
    """It could pin a start that moves, but gives a position at once."""

    def initial(self):
        moves = self.options.starting == "latest"
        return FolderOffset(next=find_next_position(self.folder) if moves else 0)


@make_format
class IgnoresTheStart(FolderReader):
    def initial(self):
        return FolderOffset()


@make_format
class TakesAnErrorForNothing(FolderReader):
    """A folder that cannot be listed now is taken for an empty one when the start is pinned."""

    def resolve(self, start):
        with contextlib.suppress(OSError):
            return super().resolve(start)
        return FolderOffset()


# ---------------------------------------------------------------- what is remembered, and where


@make_pyspark_format
class CountsOnSelf(PlainReader):
    """As in the example of PySpark's own documentation: a step further than the last answer."""

    def __init__(self, options):
        super().__init__(options)
        self.current = 0

    def latestOffset(self):
        self.current = min(self.current + 1, find_next_position(self.folder))
        return {"next": self.current}


@make_pyspark_format
class GoesByItsOwnRecord(PlainReader):
    """Writes down what it has planned, and begins there; that batch may have failed."""

    def __init__(self, options):
        super().__init__(options)
        self.record = Path(self.folder) / ".record"

    def initialOffset(self):
        return json.loads(self.record.read_text()) if self.record.exists() else {"next": 0}

    def partitions(self, start, end):
        self.record.write_text(json.dumps(end))
        return super().partitions(start, end)


@make_format
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


@make_format
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


@make_format
class KeepsItForTheTasks(FolderReader):
    """Tasks read with another instance."""

    planned = range(0)

    def plan(self, start, end):
        self.planned = range(start.next, end.next)
        return [None]

    def read(self, partition):
        del partition
        return batches_of(self.rows(self.planned))


@make_pyspark_format
class HoldsAnOpenFolder(PlainReader):
    """The reader travels to the tasks, a handle does not."""

    def __init__(self, options):
        super().__init__(options)
        self.handle = os.scandir(self.folder)


@functools.cache
def listed_once(folder) -> int:
    return find_next_position(folder)


@make_format
class ListsOnce(FolderReader):
    """A cache that nobody clears."""

    def newest(self):
        return listed_once(self.folder)
