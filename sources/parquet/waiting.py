"""What waits to be read, in the order of reading, from trigger to trigger. Driver."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from krishiv_spark.sources.base import Limit
from krishiv_spark.sources.parquet.books import Books
from krishiv_spark.sources.parquet.places import FoundFile
from krishiv_spark.sources.parquet.units import ReadUnit

__all__ = ["Queue", "Waiting", "take"]

# Time, tag, epoch and path: the order; no two are equal. Of a file by itself, of which there may be
# millions, only a number is added: its size, times the resolution, and what its time has beyond.
_Entry: TypeAlias = tuple[int, str, int, str, int | ReadUnit]


class Waiting:
    """Units sorted by time, then path; the epochs of one query always in their own order.

    To that end an epoch counts as modified no earlier than those before it, or, newest first, than
    the newest one that waits. What is added and taken costs the same however much waits.

    Args:
        newest_first: Whether the newest comes first.
        resolution_ns: What is finer than that is no time; see `Identity`.
    """

    def __init__(self, *, newest_first: bool = False, resolution_ns: int = 1) -> None:
        self._newest_first = newest_first
        self.resolution_ns = resolution_ns
        self._sign = -1 if newest_first else 1
        self._heap: list[_Entry] = []
        # Of each query, the epochs after the one that is in the heap.
        self._later: dict[str, deque[ReadUnit]] = {}
        self._reached: dict[str, int] = {}
        self.files = 0
        self.bytes = 0

    def add(self, unit: ReadUnit) -> None:
        """Add a unit; of a query whose epochs have a key, in ascending order."""
        self.files += len(unit.files)
        self.bytes += unit.bytes
        if unit.key is None:
            self._push(unit, unit.modified_ns)
        elif unit.key in self._later:
            self._later[unit.key].append(unit)
        else:
            self._later[unit.key] = deque()
            self._push_epoch(unit, unit.key)

    def head(self) -> ReadUnit | None:
        """The unit that is next."""
        return self._unit(self._heap[0]) if self._heap else None

    def first(self, most: int) -> list[ReadUnit]:
        """Some of the units that are next, in their order."""
        return [self._unit(entry) for entry in heapq.nsmallest(most, self._heap)]

    def pop(self) -> ReadUnit:
        """Take the unit that is next."""
        unit = self._unit(heapq.heappop(self._heap))
        self.files -= len(unit.files)
        self.bytes -= unit.bytes
        if unit.key is not None:
            later = self._later[unit.key]
            if later:
                self._push_epoch(later.popleft(), unit.key)
            else:
                del self._later[unit.key]
        return unit

    def _push_epoch(self, unit: ReadUnit, key: str) -> None:
        later = self._later[key]
        time = unit.modified_ns
        if self._newest_first:
            time = max(time, later[-1].modified_ns) if later else time
        else:
            time = self._reached[key] = max(self._reached.get(key, time), time)
        self._push(unit, time)

    def _push(self, unit: ReadUnit, modified_ns: int) -> None:
        tag, epoch = unit.origin or ("", 0)
        beyond_ns = modified_ns % self.resolution_ns
        item: int | ReadUnit = unit
        if unit.origin is None:
            item = unit.files[0].size * self.resolution_ns + beyond_ns
        place = (self._sign * (modified_ns - beyond_ns), tag, epoch, unit.files[0].path)
        heapq.heappush(self._heap, (*place, item))

    def _unit(self, entry: _Entry) -> ReadUnit:
        time, _, _, path, item = entry
        if isinstance(item, ReadUnit):
            return item
        size, beyond_ns = divmod(item, self.resolution_ns)
        return ReadUnit((FoundFile(path, size, self._sign * time + beyond_ns),))


class Queue(Protocol):
    """Where units come from, one after the other."""

    def head(self) -> ReadUnit | None:
        """The unit that is next, None if there is none."""
        ...

    def pop(self) -> ReadUnit:
        """Take the unit that is next."""
        ...


def take(
    queue: Queue,
    limit: Limit,
    rows_of: Callable[[FoundFile], int],
    room: int | None = None,
) -> list[ReadUnit]:
    """Take the first units that fit into a batch; always one, if there is one.

    Args:
        queue: Units in the order of reading.
        limit: The most that they may hold together.
        rows_of: Number of rows in a file; asked only where rows are limited.
        room: What `Books.cost` of their files may add up to; None if it does not matter.
    """
    taken: list[ReadUnit] = []
    files = size = rows = cost = 0
    while (unit := queue.head()) is not None:
        files, size = files + len(unit.files), size + unit.bytes
        if limit.rows is not None:
            rows += sum(map(rows_of, unit.files))
        if room is not None:
            cost += Books.cost(unit.files)
        full = not limit.admits(rows=rows, files=files, size=size) or cost > (room or cost)
        if taken and full:
            break
        taken.append(queue.pop())
    return taken
