"""Whether a file is whole: what its last eight bytes tell."""

from __future__ import annotations

import os
from typing import NamedTuple

from krishiv_spark.storage.disk_files import DISK
from krishiv_spark.storage.files import Files

__all__ = ["MAGIC", "FileStatus", "is_end", "look"]

# The footer's length and a magic: PAR1, or PARE where the footer is encrypted (parquet-format,
# "File format" and "Encrypted footer mode"). In front of them at least the first magic.
_TAIL = 8
_HEAD = 4
MAGIC = (b"PAR1", b"PARE")


class FileStatus(NamedTuple):
    """A file at one moment.

    Attributes:
        size: Bytes.
        modified_ns: Time of its last modification, nanoseconds since 1970 UTC.
        whole: Whether it ends as a Parquet file does. One that is still being copied does not,
            since the footer is written last.
    """

    size: int
    modified_ns: int
    whole: bool


def look(path: str | os.PathLike[str], files: Files = DISK) -> FileStatus:
    """Look at a file as it is now: one small read.

    Args:
        path: Whole path or URL.
        files: Of the store that it is in.

    Raises:
        OSError: If it cannot be opened or read.
        StorageError: Likewise, if it is not on a disk.
    """
    found, tail = files.tail(os.fspath(path), _TAIL)
    return FileStatus(*found, _ends(tail, found.size))


def is_end(path: str | os.PathLike[str], size: int, files: Files = DISK) -> bool:
    """Whether the first so many bytes of a file end as a Parquet file does; raises like `look`."""
    return _ends(files.tail(os.fspath(path), _TAIL, size)[1], size)


def _ends(tail: bytes, size: int) -> bool:
    footer = int.from_bytes(tail[:4], "little")
    return tail[4:] in MAGIC and 0 < footer <= size - _TAIL - _HEAD
