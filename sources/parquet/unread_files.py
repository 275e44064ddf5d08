"""The queue of a source: units of files that wait to be read, in the order of reading. Driver."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from krishiv_spark.parquet.layout import DataFile
from krishiv_spark.sources.base import Limit
from krishiv_spark.sources.parquet.listing import FoundFile
from krishiv_spark.sources.parquet.offset import PART_OF_EPOCHS

__all__ = ["FileQueue", "Origin", "ReadUnit", "UnreadFiles", "origin_of", "take_batch"]


class Origin(NamedTuple):
    """The query and epoch that wrote a file."""

    tag: str
    epoch: int


def origin_of(path: str) -> Origin | None:
    """Return the query and epoch that wrote a file, None for a file of another program."""
    name = DataFile.parse(path.rpartition("/")[2])
    return None if name is None else Origin(name.tag, name.epoch)


@dataclass(frozen=True)
class ReadUnit:
    """Files that are read in one batch: one file, or all files of one epoch of the Parquet sink.

    Attributes:
        files: The files, in the order of their paths.
        origin: Query and epoch of files of the Parquet sink; None for a file of another program.
        key: Key by which `ParquetOffset.epochs` records that the epoch was read; None if only the
            ids of the files are recorded.
    """

    files: tuple[FoundFile, ...]
    origin: Origin | None = None
    key: str | None = None

    @property
    def has_ids(self) -> bool:
        """True if the ids of the files are recorded: also if the epoch may have other files."""
        return self.key is None or self.key.endswith(PART_OF_EPOCHS)

    @property
    def modified_ns(self) -> int:
        """Modification time of its newest file."""
        return max(file.modified_ns for file in self.files)

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(file.size for file in self.files)


# Time, tag, epoch and path give the order; no two are equal. For a single file, of which there may
# be millions, only a number is added: its size, times the resolution, plus the part of its time
# that is finer than the resolution.
_Entry: TypeAlias = tuple[int, str, int, str, int | ReadUnit]


class UnreadFiles:
    """Units sorted by time, then path; the epochs of one query always in their own order.

    To that end an epoch counts as modified no earlier than those before it, or, newest first, than
    the newest one that waits. The cost to add and take a unit does not depend on the number of
    units.

    Args:
        newest_first: True if the newest comes first.
        resolution_ns: Resolution of modification times; see `Identity`.
    """

    def __init__(self, *, newest_first: bool = False, resolution_ns: int = 1) -> None:
        self._newest_first = newest_first
        self.resolution_ns = resolution_ns
        self._sign = -1 if newest_first else 1
        self._heap: list[_Entry] = []
        # For each query, the epochs after the one that is in the heap.
        self._later: dict[str, deque[ReadUnit]] = {}
        self._epoch_times: dict[str, int] = {}
        self.files = 0
        self.bytes = 0

    def add(self, unit: ReadUnit) -> None:
        """Add a unit. The units of a query whose epochs have a key must come in ascending order."""
        self.files += len(unit.files)
        self.bytes += unit.bytes
        if unit.key is None:
            self._push(unit, unit.modified_ns)
        elif unit.key in self._later:
            self._later[unit.key].append(unit)
        else:
            self._later[unit.key] = deque()
            self._push_epoch(unit, unit.key)

    def peek(self) -> ReadUnit | None:
        """Return the next unit."""
        return self._unit(self._heap[0]) if self._heap else None

    def first(self, most: int) -> list[ReadUnit]:
        """Return some of the next units, in their order."""
        return [self._unit(entry) for entry in heapq.nsmallest(most, self._heap)]

    def pop(self) -> ReadUnit:
        """Remove the next unit and return it."""
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
            time = self._epoch_times[key] = max(self._epoch_times.get(key, time), time)
        self._push(unit, time)

    def _push(self, unit: ReadUnit, modified_ns: int) -> None:
        tag, epoch = unit.origin or ("", 0)
        finer_ns = modified_ns % self.resolution_ns
        item: int | ReadUnit = unit
        if unit.origin is None:
            item = unit.files[0].size * self.resolution_ns + finer_ns
        order = (self._sign * (modified_ns - finer_ns), tag, epoch, unit.files[0].path)
        heapq.heappush(self._heap, (*order, item))

    def _unit(self, entry: _Entry) -> ReadUnit:
        time, _, _, path, item = entry
        if isinstance(item, ReadUnit):
            return item
        size, finer_ns = divmod(item, self.resolution_ns)
        return ReadUnit((FoundFile(path, size, self._sign * time + finer_ns),))


class FileQueue(Protocol):
    """A queue of units."""

    def peek(self) -> ReadUnit | None:
        """Return the next unit, None if there is none."""
        ...

    def pop(self) -> ReadUnit:
        """Remove the next unit and return it."""
        ...


def take_batch(
    queue: FileQueue,
    limit: Limit,
    rows_of: Callable[[FoundFile], int],
    cost_of: Callable[[Sequence[FoundFile]], int],
    room: int | None = None,
) -> list[ReadUnit]:
    """Take the first units that fit into a batch; always one, if there is one.

    Args:
        queue: Units in the order of reading.
        limit: The most that they may contain together.
        rows_of: Returns the number of rows in a file; called only where rows are limited.
        cost_of: Returns the number of characters that some files take in an offset.
        room: The most that these costs may add up to; None for no bound.
    """
    taken: list[ReadUnit] = []
    files = size = rows = cost = 0
    while (unit := queue.peek()) is not None:
        files, size = files + len(unit.files), size + unit.bytes
        if limit.rows is not None:
            rows += sum(map(rows_of, unit.files))
        if room is not None:
            cost += cost_of(unit.files)
        full = not limit.admits(rows=rows, files=files, size=size) or cost > (room or cost)
        if taken and full:
            break
        taken.append(queue.pop())
    return taken
