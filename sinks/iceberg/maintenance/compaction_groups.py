"""The data files of a table that a compaction rewrites together. Driver, operator.

A group is one partition's files that become fewer, or files without their deleted rows. There are
two ways to choose. A command takes all that is worth it. A stream takes one group between two
epochs: it merges files of similar size, as a log-structured merge tree does, so that a row is
rewritten once for each power of `_FANOUT` by which the table has grown, and no pause is long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask
    from pyiceberg.typedef import Record

__all__ = [
    "FileLoad",
    "Group",
    "choose_groups",
    "choose_next_group",
    "describe_group",
    "format_megabytes",
    "get_size",
]

_FANOUT = 4
"""Files of one size that a stream merges. With eight, as for manifests, twice as many are read by
each scan; with two, each row is written twice as often."""

_SMALLEST = 2**16
"""Files below this size are of one size: their footers and requests cost more than their rows."""

_SMALL_SHARE, _LARGE_SHARE = 0.75, 1.8
"""A file below or above these shares of the target size is rewritten, as Iceberg-Java's
``rewrite_data_files`` does."""

_STREAM_DELETED_SHARE = 0.25
"""Share of deleted rows from which a stream rewrites a file: at most one kept row is copied three
times for each deleted row."""


@dataclass(frozen=True)
class FileLoad:
    """A data file of a table, and how many of its rows are deleted.

    Attributes:
        task: The file and the delete files that apply to it.
        deleted: Number of its deleted rows.
    """

    task: FileScanTask
    deleted: int

    @property
    def deleted_share(self) -> float:
        """The share of deleted rows, from 0 to 1."""
        return self.deleted / max(self.task.file.record_count, 1)

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return int(self.task.file.file_size_in_bytes)

    @property
    def live_size(self) -> int:
        """The size of the rows that are not deleted, in bytes, as a share of the file's."""
        return round(self.size * (1 - self.deleted_share))


Group: TypeAlias = "tuple[FileLoad, ...]"
"""Files of one partition that are rewritten together."""


def get_size(group: Group) -> int:
    """Return the size of the files of a group, in bytes."""
    return sum(load.size for load in group)


_Partition: TypeAlias = "tuple[int, Record]"


def choose_groups(
    loads: Iterable[FileLoad], target_size: int, deleted_share: float
) -> Iterator[Group]:
    """Yield all groups that are worth it: a second compaction finds none.

    Args:
        loads: The files of the table, or of some of its partitions.
        target_size: The size of a file in bytes, about.
        deleted_share: Share of deleted rows from which a file is rewritten.
    """
    for files in _split_by_partition(loads).values():
        wanted = [
            load
            for load in files
            if (load.deleted and load.deleted_share >= deleted_share)
            or not _SMALL_SHARE * target_size <= load.size <= _LARGE_SHARE * target_size
        ]
        for group in _pack(wanted, target_size):
            if _is_worth_it(group, target_size, deleted_share):
                yield group


def _pack(loads: Sequence[FileLoad], target_size: int) -> Iterator[Group]:
    """Yield the files in groups of about one new file, in the order in which they were listed."""
    group: list[FileLoad] = []
    size = 0
    for load in loads:
        if group and size + load.live_size > target_size:
            yield tuple(group)
            group, size = [], 0
        group.append(load)
        size += load.live_size
    if group:
        yield tuple(group)


def _is_worth_it(group: Group, target_size: int, deleted_share: float) -> bool:
    if any(load.deleted and load.deleted_share >= deleted_share for load in group):
        return True
    # Each partition may keep one file below the target size.
    return len(group) > 1 or any(load.size > _LARGE_SHARE * target_size for load in group)


def choose_next_group(loads: Iterable[FileLoad], target_size: int, max_size: int) -> Group | None:
    """Return the group whose rewrite removes most files; None if no partition needs one.

    Args:
        loads: The files of the table.
        target_size: The size of a file in bytes, about.
        max_size: The most bytes of files that are rewritten.
    """
    chosen = (
        _choose_of_partition(files, target_size, max_size)
        for files in _split_by_partition(loads).values()
    )
    return max((group for group in chosen if group), key=len, default=None)


def _choose_of_partition(files: Sequence[FileLoad], target_size: int, max_size: int) -> Group:
    """Return the files of full tiers, from the smallest, and files with many deleted rows."""
    tiers: dict[int, list[FileLoad]] = defaultdict(list)
    for load in files:
        if load.size < _SMALL_SHARE * target_size:
            tiers[_level_of(load.size)].append(load)
    chosen: list[FileLoad] = []
    for level in sorted(tiers):
        # What was chosen so far becomes a file of about this size.
        is_file_of_level = bool(chosen) and _level_of(sum(c.live_size for c in chosen)) >= level
        if len(tiers[level]) + is_file_of_level >= _FANOUT:
            chosen += tiers[level]
    known = {load.task.file.file_path for load in chosen}
    chosen += (
        load
        for load in files
        if load.deleted_share >= _STREAM_DELETED_SHARE and load.task.file.file_path not in known
    )
    return _limit(chosen, max_size)


def _limit(loads: Sequence[FileLoad], max_size: int) -> Group:
    """Return the first files, as many as are within the size: the others wait for their turn."""
    taken: list[FileLoad] = []
    size = 0
    for load in loads:
        if size + load.size <= max_size:
            taken.append(load)
            size += load.size
    # One small file would only be copied.
    is_useful = len(taken) > 1 or any(c.deleted_share >= _STREAM_DELETED_SHARE for c in taken)
    return tuple(taken) if is_useful else ()


def _level_of(size: int) -> int:
    level = 0
    while size >= _SMALLEST * _FANOUT ** (level + 1):
        level += 1
    return level


def describe_group(group: Group) -> str:
    """Return the size of a group as text."""
    deleted = sum(load.deleted for load in group)
    size = format_megabytes(sum(load.size for load in group))
    return (
        f"{len(group)} files of partition {group[0].task.file.partition}: {size}, {deleted} rows "
        "of them deleted"
    )


def format_megabytes(size: int) -> str:
    """Return a number of bytes as text."""
    return f"{size / 2**20:.1f} MB"


def _split_by_partition(loads: Iterable[FileLoad]) -> dict[_Partition, list[FileLoad]]:
    found: dict[_Partition, list[FileLoad]] = defaultdict(list)
    for load in loads:
        found[load.task.file.spec_id, load.task.file.partition].append(load)
    return found
