"""How a table's folder is laid out, for the sink that writes it and the source that follows it.

    <table>/part-0000000012-00003-000-<tag>-<nonce>.parquet     visible, of epoch 12, task 3
    <table>/day=2013-01-01/part-....parquet                     the same, partitioned
    <table>/_krishiv/<query id>/log/                            the epoch log: the point of truth
    <table>/_krishiv/<query id>/staged/<generation>/*.staged    not visible to any glob for Parquet
    <table>/_krishiv/<query id>/staged/<generation>.done/       published; just being removed

The tag is the start of the query's id, so that a file says which query and epoch it belongs to.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

__all__ = [
    "DONE_SUFFIX",
    "META",
    "PATH_OPTION",
    "STAGED_SUFFIX",
    "DataFile",
    "is_before",
    "is_hidden",
    "log_folder",
    "query_tag",
    "staged_folder",
    "visible_files",
    "walk",
]

PATH_OPTION = "krishiv-parquet: 'path'"
"""How messages name the option that says where the folder is."""

META = "_krishiv"
STAGED_SUFFIX = ".staged"
DONE_SUFFIX = ".done"

_NAME = re.compile(
    r"part-(?P<epoch>\d{10,})-(?P<partition>\d{5,})-(?P<index>\d{3,})"
    r"-(?P<tag>[0-9a-f]{12})-(?P<nonce>[0-9a-f]{12})\.parquet"
)


def query_tag(query: str) -> str:
    """Twelve hexadecimal digits that stand for a query id in file names."""
    return hashlib.sha256(query.encode()).hexdigest()[:12]


@lru_cache(maxsize=256)  # asked for in every step of an epoch
def log_folder(table: Path, query: str) -> Path:
    """Where the epoch log of a query lives."""
    return table / META / query / "log"


@lru_cache(maxsize=256)
def staged_folder(table: Path, query: str, generation: int) -> Path:
    """Where the tasks of one generation stage their files."""
    return table / META / query / "staged" / str(generation)


def is_before(name: str, generation: int) -> bool:
    """Whether a name under ``staged/`` is of an earlier generation, or of one that is done."""
    number = name.removesuffix(DONE_SUFFIX)
    return number.isdecimal() and (name != number or int(number) < generation)


def visible_files(table: Path) -> Iterator[Path]:
    """Every Parquet file that an ordinary reader of the folder sees, in no order.

    Raises:
        OSError: If a folder cannot be listed; one that is gone has no files.
    """
    for folder, subfolders, names in walk(table):
        subfolders[:] = [name for name in subfolders if not is_hidden(name)]
        for name in names:
            if name.endswith(".parquet") and not is_hidden(name):
                yield Path(folder, name)


def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk`, which passes over a folder that it cannot list.

    Raises:
        OSError: If a folder cannot be listed; one that is gone is empty.
    """
    return os.walk(folder, onerror=_refuse_unless_gone)


def _refuse_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def is_hidden(name: str) -> bool:
    """Whether readers leave a file or folder out, by its name, which is not empty.

    Spark's rule (``HadoopFSUtils.shouldFilterOutPathName``): a partition column may begin with _.
    """
    return name[0] == "." or (name[0] == "_" and "=" not in name)


@dataclass(frozen=True)
class DataFile:
    """The name of a file that the sink made.

    Attributes:
        epoch: Epoch that it belongs to.
        partition: Task that wrote it.
        index: Number of the file within the task.
        tag: `query_tag` of its query.
        nonce: Random, one for each attempt of a task.
    """

    epoch: int
    partition: int
    index: int
    tag: str
    nonce: str

    def __str__(self) -> str:
        return (
            f"part-{self.epoch:010d}-{self.partition:05d}-{self.index:03d}"
            f"-{self.tag}-{self.nonce}.parquet"
        )

    def numbered(self, index: int) -> DataFile:
        """The name of another file of the same attempt."""
        return replace(self, index=index)

    @classmethod
    def parse(cls, name: str) -> DataFile | None:
        """Read a file name; None for a file that some other program wrote."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        epoch, partition, index = (int(match[key]) for key in ("epoch", "partition", "index"))
        return cls(epoch, partition, index, match["tag"], match["nonce"])
