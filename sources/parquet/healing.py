"""Files that changed after their batch was chosen: which of them may be read as they are. Driver.

An offset says what a file was. A task reads it only if it is that, so that two tasks never read two
versions of one file. What has changed before is settled when the batch is planned again.
"""

from __future__ import annotations

import logging

from krishiv_spark.errors import DataLossError
from krishiv_spark.parquet.tails import FileStatus, is_end, look
from krishiv_spark.sources.parquet.places import FoundFile, Place
from krishiv_spark.storage import Files, Identity

__all__ = ["as_it_is"]

_log = logging.getLogger(__name__)


def as_it_is(file: FoundFile, place: Place, *, was_whole: bool, fail_on_loss: bool) -> FoundFile:
    """A file of a batch as it is now, if its rows are those that the batch shall have.

    That is so if only its time has changed, as ``cp -p`` and ``touch`` do (in a bucket, where an
    object of the same ETag was put again), or if it was listed while it was being written. What is
    gone is left as it is, for the task to say so.

    Args:
        file: What it was.
        place: Where it is.
        was_whole: Whether it was looked at when it was listed; version 1 did not.
        fail_on_loss: Whether a file with other rows is an error; otherwise they are read.

    Raises:
        DataLossError: If it has other rows, or is just being written.
    """
    path, files = place.absolute(file.path), place.files
    try:
        if files.identity(path) in {None, Identity(file.size, file.modified_ns)}:
            return file
        now = look(path, files)
    except (FileNotFoundError, PermissionError):
        return file
    if not now.whole:
        raise DataLossError(
            f"{path} had {file.size} bytes when it was listed, and is being written now: "
            "restart the query when the file is complete"
        )
    is_same_version = (now.modified_ns - file.modified_ns) % files.resolution_ns == 0
    healed = (now.size == file.size and is_same_version) or not (
        was_whole or _was_whole(path, file.size, now, files)
    )
    if not healed and fail_on_loss:
        raise DataLossError(
            f"{path} had {file.size} bytes when it was listed and has {now.size} "
            f"now{'' if is_same_version else ', of another version'}: its rows were replaced "
            "before they were read. Put the previous file back; with the option "
            "'failOnDataLoss' = 'false' its current rows are read, and the previous ones are "
            "lost"
        )
    _log.warning("%s is read in its current form: it has changed since it was listed", path)
    return FoundFile(file.path, now.size, now.modified_ns)


def _was_whole(path: str, size: int, now: FileStatus, files: Files) -> bool:
    """Whether a file that has grown was whole when it had a size."""
    return size >= now.size or is_end(path, size, files)
