"""The end of a Parquet file: its last eight bytes show whether the file is complete."""

from __future__ import annotations

import os
import zlib
from typing import Any, NamedTuple

from krishiv_spark.storage.disk import DISK
from krishiv_spark.storage.files import Files

__all__ = [
    "MAGIC",
    "FileEnd",
    "FileStatus",
    "fingerprint",
    "is_complete_at",
    "read_end",
    "read_file_status",
]

# The footer's length and a magic: PAR1, or PARE if the footer is encrypted (parquet-format,
# "File format" and "Encrypted footer mode"). At least the first magic precedes them.
_TAIL = 8
_HEAD = 4
_ENCRYPTED = b"PARE"
MAGIC = (b"PAR1", _ENCRYPTED)

_FINGERPRINT_BYTES = 16 * 2**10
"""Maximum number of bytes that a fingerprint covers: the last ones of a footer."""

_SECOND_NS = 1_000_000_000


class FileStatus(NamedTuple):
    """A file at one moment.

    Attributes:
        size: Bytes.
        modified_ns: Time of its last modification, nanoseconds since 1970 UTC.
        whole: True if it starts and ends as a Parquet file does. A file that is being copied has no
            valid end, since the footer is written last; a file that is filled from its end has no
            valid start.
    """

    size: int
    modified_ns: int
    whole: bool


class FileEnd(NamedTuple):
    """The end of a file at one moment.

    Attributes:
        status: Status of the file.
        fingerprint: See `fingerprint`; None in a store that distinguishes versions of a file.
        is_encrypted: True if the footer is encrypted.
    """

    status: FileStatus
    fingerprint: int | None
    is_encrypted: bool


def read_file_status(path: str | os.PathLike[str], files: Files = DISK) -> FileStatus:
    """Read the status of a file, by one small read or two.

    Args:
        path: Whole path or URL.
        files: Files of the store.

    Raises:
        OSError: If it cannot be opened or read.
        StorageError: Likewise, if it is not on a disk.
    """
    found, tail = files.tail(os.fspath(path), _TAIL)
    return FileStatus(*found, _is_end(tail, found.size) and _has_start(path, files))


def read_end(path: str | os.PathLike[str], files: Files = DISK) -> FileEnd:
    """Read the end of a file. It raises the errors of `read_file_status`, and reads as often."""
    has_versions = files.resolution_ns >= _SECOND_NS
    found, tail = files.tail(os.fspath(path), _TAIL if has_versions else _FINGERPRINT_BYTES)
    is_whole = _is_end(tail[-_TAIL:], found.size) and _has_start(path, files)
    return FileEnd(
        FileStatus(*found, is_whole),
        None if has_versions else _checksum(tail),
        tail.endswith(_ENCRYPTED),
    )


def fingerprint(source: Any) -> int:
    """Return a checksum of the footer of an open file, or of its last part if it is long."""
    size = source.seek(0, os.SEEK_END)
    source.seek(max(0, size - _FINGERPRINT_BYTES))
    return _checksum(bytes(source.read(_FINGERPRINT_BYTES)))


def _checksum(tail: bytes) -> int:
    return zlib.crc32(tail[-(_TAIL + int.from_bytes(tail[-_TAIL:][:4], "little")) :])


def _has_start(path: str | os.PathLike[str], files: Files) -> bool:
    """Return True if the first bytes are right. Stores do not show a file that has only its end."""
    return files.is_remote or files.tail(os.fspath(path), _HEAD, _HEAD)[1] in MAGIC


def is_complete_at(path: str | os.PathLike[str], size: int, files: Files = DISK) -> bool:
    """Return True if the first `size` bytes of a file end as a Parquet file does.

    Raises the errors of `read_file_status`.
    """
    return _is_end(files.tail(os.fspath(path), _TAIL, size)[1], size)


def _is_end(tail: bytes, size: int) -> bool:
    footer = int.from_bytes(tail[:4], "little")
    return tail[4:] in MAGIC and 0 < footer <= size - _TAIL - _HEAD
