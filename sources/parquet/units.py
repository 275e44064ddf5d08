"""What a batch may take: units, each whole or not at all. Driver.

A unit is one file, or all files of one epoch of this project's sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from krishiv_spark.parquet.names import DataFile
from krishiv_spark.sources.parquet.places import FoundFile

__all__ = ["Group", "Origin", "ReadUnit", "groups", "origin"]


class Origin(NamedTuple):
    """The query and epoch that wrote a file."""

    tag: str
    epoch: int


@dataclass(frozen=True)
class ReadUnit:
    """Files that are read in one batch.

    Attributes:
        files: The files, in the order of their paths.
        origin: Query and epoch of files of our sink; None for a file of anybody else.
        key: Under what `ParquetOffset.epochs` remembers that the epoch was read; None if each
            file's id is remembered.
    """

    files: tuple[FoundFile, ...]
    origin: Origin | None = None
    key: str | None = None

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


@dataclass(frozen=True)
class Group:
    """The files of one epoch of our sink that were found.

    Attributes:
        root: Where the table's folder is, by the files' paths.
        origin: Query and epoch.
        files: Those that were listed, in the listing's order.
        total: How many files the epoch has; 0 if they do not say it.
    """

    root: str
    origin: Origin
    files: tuple[FoundFile, ...]
    total: int

    @property
    def missing(self) -> int:
        """How many files are not there, as far as the others tell."""
        return max(0, self.total - len(self.files))

    def unit(self, key: str | None) -> ReadUnit:
        """All of it, to be read in one batch."""
        return ReadUnit(tuple(sorted(self.files)), self.origin, key)


def groups(files: Iterable[FoundFile], root_of: Callable[[str], str]) -> list[Group]:
    """Put the files of our sink together by table and epoch, epochs ascending.

    Args:
        files: Files; those of other programs are left out.
        root_of: Where a file's table would be, by its path.
    """
    found: dict[tuple[str, Origin], list[FoundFile]] = {}
    totals: dict[tuple[str, Origin], int] = {}
    for file in files:
        name = DataFile.parse(file.path.rpartition("/")[2])
        if name is not None:
            key = root_of(file.path), Origin(name.tag, name.epoch)
            found.setdefault(key, []).append(file)
            totals[key] = max(name.total, totals.get(key, 0))
    return [Group(*key, tuple(found[key]), totals[key]) for key in sorted(found)]
