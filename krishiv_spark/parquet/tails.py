"""Whether a file is whole: what its last eight bytes tell."""

from __future__ import annotations

import os
from typing import NamedTuple

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


def look(path: str | os.PathLike[str]) -> FileStatus:
    """Look at a file as it is now: one small read.

    Raises:
        OSError: If it cannot be opened or read.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        status = os.fstat(file)
        return FileStatus(status.st_size, status.st_mtime_ns, _is_end(file, status.st_size))
    finally:
        os.close(file)


def is_end(path: str | os.PathLike[str], size: int) -> bool:
    """Whether the first so many bytes of a file end as a Parquet file does; raises like `look`."""
    file = os.open(path, os.O_RDONLY)
    try:
        return _is_end(file, size)
    finally:
        os.close(file)


def _is_end(file: int, size: int) -> bool:
    tail = os.pread(file, _TAIL, max(0, size - _TAIL))
    footer = int.from_bytes(tail[:4], "little")
    return tail[4:] in MAGIC and 0 < footer <= size - _TAIL - _HEAD
