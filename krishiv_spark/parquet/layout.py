"""The layout of a table's folder, and the names of its files.

    <table>/part-0000000012-00003-000-<tag>-<nonce>-2of7.parquet   visible, of epoch 12, task 3
    <table>/day=2013-01-01/part-....parquet                        the same, partitioned
    <table>/_krishiv/<query id>/log/                               the epoch log: the point of truth
    <table>/_krishiv/<query id>/staged/<generation>/*.staged       not found by globs for Parquet
    <table>/_krishiv/<query id>/staged/<generation>.done/keep      empty: its epoch is visible
    <table>/_krishiv/<query id>/replayed/<replay>/*.replayed       taken out, for the user to keep

and in any folder that is read:

    <folder>/_krishiv_sources/<stream id>/                         the state of a source

This folder has another name than ``_krishiv``, by which a source recognizes a table: a copy of some
files of a table has no ``_krishiv``.

The tag is a digest of the query's id, so that the name of a file contains its query and epoch. The
number of files of an epoch is known when it is published; staged names do not have it yet, and
files of earlier versions never do.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from krishiv_spark.durable import exists
from krishiv_spark.errors import OptionError
from krishiv_spark.parquet.file_end import read_file_status
from krishiv_spark.storage.no_links import META, SOURCES

__all__ = [
    "DONE_SUFFIX",
    "KEEP",
    "META",
    "PATH_OPTION",
    "REPLAYED_SUFFIX",
    "SINK_LOG",
    "SOURCES",
    "STAGED_SUFFIX",
    "DataFile",
    "check_shared",
    "done_generations",
    "is_data",
    "is_hidden",
    "linked_folders",
    "log_folder",
    "log_within",
    "name_with_count",
    "query_tag",
    "replayed_within",
    "staged_folder",
    "staged_name",
    "staged_within",
    "visible_files",
    "walk",
]

PATH_OPTION = "krishiv-parquet: 'path'"
"""The name in messages of the option for the folder."""

DONE_SUFFIX = ".done"

KEEP = "keep"
"""Name of the empty file in the folder of a completed generation."""

SINK_LOG = "_spark_metadata"
"""Folder in which Spark's own file sink records the valid files of a table."""


def log_within(query: str) -> str:
    """Return the folder of a query's epoch log, relative to the table."""
    return f"{META}/{query}/log"


def log_folder(table: Path, query: str) -> Path:
    """Return the folder of a query's epoch log."""
    return table / log_within(query)


def check_shared(folder: str | Path) -> None:
    """Check that this machine has a folder that the driver's machine has. Executor.

    Raises:
        OptionError: If it does not.
    """
    if not exists(folder):
        raise OptionError(
            f"{PATH_OPTION}: {folder} is on the driver's machine, and not on {platform.node()}: it "
            "must be in a folder that all machines share, or in a store"
        )


def staged_within(query: str, generation: int) -> str:
    """Return the folder in which the tasks of a generation stage files, relative to the table."""
    return f"{META}/{query}/staged/{generation}"


def staged_folder(table: Path, query: str, generation: int) -> Path:
    """Return the folder in which the tasks of a generation stage files."""
    return table / staged_within(query, generation)


def replayed_within(query: str, replay: str) -> str:
    """Return the folder for files that a replay takes out of a table, relative to the table."""
    return f"{META}/{query}/replayed/{replay}"


def done_generations(names: Iterable[str]) -> list[int]:
    """Return the generations whose epochs are visible, by names under ``staged/``, in order."""
    found = (name.removesuffix(DONE_SUFFIX) for name in names if name.endswith(DONE_SUFFIX))
    return sorted(int(number) for number in found if number.isdecimal())


def visible_files(table: Path) -> Iterator[Path]:
    """Yield every Parquet file that an ordinary reader of the folder sees, in no order.

    A name without an ending counts only if the file ends as Parquet files do: an overwrite must
    not replace a README.

    Raises:
        OSError: If a folder cannot be listed, or such a file cannot be read; deleted ones are
            ignored.
    """
    for folder, subfolders, names in walk(table):
        subfolders[:] = [name for name in subfolders if not is_hidden(name)]
        for name in names:
            if is_data(name) and not is_hidden(name):
                path = Path(folder, name)
                if "." in name or _ends_as_parquet(path):
                    yield path


def linked_folders(table: Path) -> Iterator[Path]:
    """Yield every link to a folder that an ordinary reader of the table enters, in no order.

    Raises:
        OSError: If a folder cannot be listed; a deleted one is empty.
    """
    for folder, subfolders, _ in walk(table):
        subfolders[:] = [name for name in subfolders if not is_hidden(name)]
        yield from (path for name in subfolders if (path := Path(folder, name)).is_symlink())


def _ends_as_parquet(path: Path) -> bool:
    try:
        return read_file_status(path).whole
    except FileNotFoundError:
        return False


def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a folder as `os.walk`, which ignores folders that it cannot list.

    Raises:
        OSError: If a folder cannot be listed; a deleted one is empty.
    """
    return os.walk(folder, onerror=_raise_unless_deleted)


def _raise_unless_deleted(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


# --- names of files

STAGED_SUFFIX = ".staged"

REPLAYED_SUFFIX = ".replayed"
"""Suffix of a file that a replay has taken out of its table: no glob for Parquet finds it."""

_NAME = re.compile(
    r"(?P<attempt>part-(?P<epoch>\d{10,})-(?P<partition>\d{5,})-(?P<index>\d{3,})"
    r"-(?P<tag>[0-9a-f]{12})-(?P<nonce>[0-9a-f]{12}))"
    r"(?:-(?P<number>\d+)of(?P<total>\d+))?\.parquet"
)

# Endings by which programs name Parquet files, with or without the codec after it (parquet-hadoop's
# CompressionCodecName and Hive's names); and no ending at all: Hive's 000000_0, Trino's files.
_DATA = re.compile(
    r"[^.]+|.+\.(?:parquet|parq|pq)"
    r"(?:\.(?:snappy|gz|gzip|zstd|zst|lz4|lz4_raw|lzo|br|brotli|bz2|uncompressed))?",
    re.IGNORECASE | re.DOTALL,
)


def query_tag(query: str) -> str:
    """Return the twelve hexadecimal digits that represent a query id in file names."""
    return hashlib.sha256(query.encode()).hexdigest()[:12]


def is_hidden(name: str) -> bool:
    """Return True if readers ignore a file or folder by its name, which is not empty.

    This is Spark's rule (``HadoopFSUtils.shouldFilterOutPathName``): the name of a partition column
    may start with "_".
    """
    return name[0] == "." or (name[0] == "_" and "=" not in name)


def is_data(name: str) -> bool:
    """Return True if a file counts as Parquet by its name, which is not hidden.

    Spark takes every name. But a program may write ``a.parquet.tmp`` and rename it when it is
    complete: under both names, its rows would be read twice.
    """
    return name.endswith(".parquet") or _DATA.fullmatch(name) is not None


@dataclass(frozen=True)
class DataFile:
    """The name of a file that the sink made.

    Attributes:
        epoch: Epoch that it belongs to.
        partition: Task that wrote it.
        index: Number of the file within the task.
        tag: `query_tag` of its query.
        nonce: Random digits, one text for each attempt of a task.
        number: Number of the file within the epoch, from 1; 0 while it is staged, and in files of
            earlier versions.
        total: Number of files of the epoch; 0 in the same cases.
    """

    epoch: int
    partition: int
    index: int
    tag: str
    nonce: str
    number: int = 0
    total: int = 0

    def __str__(self) -> str:
        count = f"-{self.number}of{self.total}" if self.total else ""
        return (
            f"part-{self.epoch:010d}-{self.partition:05d}-{self.index:03d}"
            f"-{self.tag}-{self.nonce}{count}.parquet"
        )

    def with_index(self, index: int) -> DataFile:
        """Return the name of another file of the same attempt."""
        return replace(self, index=index)

    @classmethod
    def parse(cls, name: str) -> DataFile | None:
        """Parse a file name; return None for a file of another program."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        epoch, partition, index = (int(match[key]) for key in ("epoch", "partition", "index"))
        number, total = (int(match[key] or 0) for key in ("number", "total"))
        return cls(epoch, partition, index, match["tag"], match["nonce"], number, total)


def staged_name(name: str) -> str:
    """Return the name of a file while it is staged, from its final name in any version."""
    match = _NAME.fullmatch(name)
    return f"{name if match is None else match['attempt'] + '.parquet'}{STAGED_SUFFIX}"


def name_with_count(name: str, number: int, total: int) -> str:
    """Return the final name of a published file, from its name without a number.

    Args:
        name: A name of `DataFile`; any other is returned unchanged.
        number: Number of the file within the epoch, from 1.
        total: Number of files of the epoch.
    """
    match = _NAME.fullmatch(name)
    return name if match is None else f"{match['attempt']}-{number}of{total}.parquet"
