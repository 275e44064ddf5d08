"""What the names of files say: whether they are read, and which query and epoch wrote them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace

__all__ = [
    "REPLAYED_SUFFIX",
    "STAGED_SUFFIX",
    "DataFile",
    "counted_name",
    "is_data",
    "is_hidden",
    "query_tag",
    "staged_name",
]

STAGED_SUFFIX = ".staged"

REPLAYED_SUFFIX = ".replayed"
"""After the name of a file that a replay has taken out of its table: no glob for Parquet finds it.
"""

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
    """Twelve hexadecimal digits that stand for a query id in file names."""
    return hashlib.sha256(query.encode()).hexdigest()[:12]


def is_hidden(name: str) -> bool:
    """Whether readers leave a file or folder out, by its name, which is not empty.

    Spark's rule (``HadoopFSUtils.shouldFilterOutPathName``): a partition column may begin with _.
    """
    return name[0] == "." or (name[0] == "_" and "=" not in name)


def is_data(name: str) -> bool:
    """Whether a file counts as Parquet by its name, of which hidden ones are left out before.

    Spark takes every name. Here a program may write ``a.parquet.tmp`` and rename it when it is
    whole: under the first name it would be read a first time.
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
        nonce: Random, one for each attempt of a task.
        number: Which of the epoch's files it is, from 1; 0 while it is staged, and in files of
            earlier versions.
        total: How many files the epoch has; 0 likewise.
    """

    epoch: int
    partition: int
    index: int
    tag: str
    nonce: str
    number: int = 0
    total: int = 0

    def __str__(self) -> str:
        counted = f"-{self.number}of{self.total}" if self.total else ""
        return (
            f"part-{self.epoch:010d}-{self.partition:05d}-{self.index:03d}"
            f"-{self.tag}-{self.nonce}{counted}.parquet"
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
        number, total = (int(match[key] or 0) for key in ("number", "total"))
        return cls(epoch, partition, index, match["tag"], match["nonce"], number, total)


def staged_name(name: str) -> str:
    """What a file is called while it is staged, by its final name, of whatever version."""
    match = _NAME.fullmatch(name)
    return f"{name if match is None else match['attempt'] + '.parquet'}{STAGED_SUFFIX}"


def counted_name(name: str, number: int, total: int) -> str:
    """The final name of a file that is published, by its name without a number.

    Args:
        name: As `DataFile` makes it; another one stays as it is.
        number: Which of the epoch's files it is, from 1.
        total: How many files the epoch has.
    """
    match = _NAME.fullmatch(name)
    return name if match is None else f"{match['attempt']}-{number}of{total}.parquet"
