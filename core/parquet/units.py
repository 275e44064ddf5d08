"""What a batch may take, in which order, and how much of it. Driver.

A unit is taken whole or not at all: one file, or all files of one epoch of this project's sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from krishiv_spark.parquet.listing import FoundFile
from krishiv_spark.parquet.names import DataFile
from krishiv_spark.sources.base import Limit

__all__ = ["Origin", "Unit", "in_order", "origin", "take", "units"]


class Origin(NamedTuple):
    """The query and epoch that wrote a file."""

    tag: str
    epoch: int


@dataclass(frozen=True)
class Unit:
    """Files that are read in one batch.

    Attributes:
        files: The files, in the order of their paths.
        origin: Query and epoch of a unit of our sink; None for a file of anybody else.
    """

    files: tuple[FoundFile, ...]
    origin: Origin | None = None

    @property
    def modified_ns(self) -> int:
        """When its newest file was modified."""
        return max(file.modified_ns for file in self.files)

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(file.size for file in self.files)


def origin(path: str) -> Origin | None:
    """Which query and epoch a file belongs to, None for a file of another program."""
    name = DataFile.parse(path.rpartition("/")[2])
    return None if name is None else Origin(name.tag, name.epoch)


def units(files: Iterable[FoundFile], visible: Mapping[str, int]) -> list[Unit]:
    """Group files that are to be read; those of epochs that are not wholly visible are left out.

    Args:
        files: Files that were not read before.
        visible: Newest wholly visible epoch of each query that has a log; files of a query
            without one are single files like any others.
    """
    single: list[Unit] = []
    epochs: dict[Origin, list[FoundFile]] = {}
    for file in files:
        source = origin(file.path)
        if source is None or source.tag not in visible:
            single.append(Unit((file,)))
        elif source.epoch <= visible[source.tag]:
            epochs.setdefault(source, []).append(file)
    return single + [Unit(tuple(sorted(group)), source) for source, group in epochs.items()]


def in_order(found: Iterable[Unit], *, newest_first: bool = False) -> list[Unit]:
    """Sort units by time, then path; the epochs of one query always in their own order.

    To that end an epoch counts as modified no earlier than those before it, or, newest first, no
    earlier than those behind it.
    """
    sign = -1 if newest_first else 1
    reached: dict[str, int] = {}
    keyed = []
    for unit in sorted(found, key=_epoch, reverse=newest_first):
        tag, epoch = unit.origin or ("", 0)
        time = unit.modified_ns
        if tag:
            time = reached[tag] = max(reached.get(tag, time), time)
        keyed.append(((sign * time, tag, epoch, unit.files[0].path), unit))
    return [unit for _, unit in sorted(keyed, key=itemgetter(0))]


def _epoch(unit: Unit) -> int:
    return unit.origin.epoch if unit.origin else 0


def take(ordered: Sequence[Unit], limit: Limit, rows_of: Callable[[FoundFile], int]) -> list[Unit]:
    """The first units that fit into a batch; always one, if there is one.

    Args:
        ordered: Units in the order of reading.
        limit: The most that they may hold together.
        rows_of: Number of rows in a file; asked only where rows are limited.
    """
    taken: list[Unit] = []
    files = size = rows = 0
    for unit in ordered:
        files, size = files + len(unit.files), size + unit.bytes
        if limit.rows is not None:
            rows += sum(map(rows_of, unit.files))
        if taken and not limit.admits(rows=rows, files=files, size=size):
            break
        taken.append(unit)
    return taken
