"""Checks of files right before they are read: whether they are complete, and unchanged. Driver.

The checks return a verdict and change no other object.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from krishiv_spark.errors import DataLossError
from krishiv_spark.parquet.file_end import (
    FileEnd,
    FileStatus,
    is_complete_at,
    read_end,
    read_file_status,
)
from krishiv_spark.parquet.footers import UnsupportedFileError, is_readable
from krishiv_spark.sources.parquet.file_index import SkipReason
from krishiv_spark.sources.parquet.listing import FoundFile, SourcePath
from krishiv_spark.sources.parquet.unread_files import ReadUnit
from krishiv_spark.storage import Files, Identity

__all__ = ["CompletenessCheck", "Verdict", "reconcile_changed_file"]

_log = logging.getLogger(__name__)

_MAY_GROW_NS = 3_600_000_000_000


class Verdict(NamedTuple):
    """The result of a check of a unit.

    Attributes:
        unit: The unit with the current size and time of its files.
        reason: The reason why it cannot be read now; None if it can.
    """

    unit: ReadUnit
    reason: SkipReason | None = None


class CompletenessCheck:
    """A check that the files of a unit are complete and can be read.

    Args:
        location: The path of the files.
        enabled: True if files are checked; a batch read takes every file.
        skip_bad: True if damaged files are skipped.
    """

    def __init__(self, location: SourcePath, *, enabled: bool, skip_bad: bool) -> None:
        self._location = location
        self._enabled = enabled
        self._skip_bad = skip_bad
        self._prefetched: dict[str, FileEnd | OSError] = {}
        self._fingerprints: dict[str, int | None] = {}

    def verify(self, unit: ReadUnit) -> Verdict:
        """Check a unit.

        The files of an epoch that is visible by its log were renamed when they were complete.
        """
        if unit.key is not None or not self._enabled:
            return Verdict(unit)
        if unit.origin is None:
            return self._verify_file(unit)
        is_complete = all(self._is_complete(file.path) for file in unit.files)
        return Verdict(unit, None if is_complete else SkipReason.UNFINISHED_EPOCH)

    def reset(self) -> None:
        """Forget the status of all files, so that it is read again."""
        self._prefetched, self._fingerprints = {}, {}

    def fingerprint(self, path: str) -> int | None:
        """Return the fingerprint of a file that was checked since the last `reset`, if known."""
        return self._fingerprints.get(path)

    def prefetch_status(self, unit: ReadUnit, next_units: Callable[[], Iterable[ReadUnit]]) -> None:
        """Read the status of files in parallel, where each read is a request.

        Args:
            unit: The unit that is checked next.
            next_units: Returns it, and the units after it.
        """
        is_cached = unit.files[0].path in self._prefetched
        is_remote = self._location.files.is_remote
        if is_cached or unit.key is not None or not (self._enabled and is_remote):
            return
        paths = [file.path for one in next_units() if one.key is None for file in one.files]
        ends = self._location.files.map(self._try_read_end, paths)
        self._prefetched = dict(zip(paths, ends, strict=True))

    def filter_complete(self, units: Sequence[ReadUnit]) -> list[ReadUnit]:
        """Return the units that no program is writing. Only new ones are checked."""
        now_ns = time.time_ns()
        new = [
            unit
            for unit in units
            if unit.origin is None and unit.modified_ns >= now_ns - _MAY_GROW_NS
        ]
        paths = [unit.files[0].path for unit in new]
        results = zip(paths, self._location.files.map(self._is_complete, paths), strict=True)
        growing = {path for path, is_complete in results if not is_complete}
        return [unit for unit in units if unit.files[0].path not in growing]

    def _verify_file(self, unit: ReadUnit) -> Verdict:
        path = unit.files[0].path
        try:
            end = self._read_end(path)
        except FileNotFoundError:
            return Verdict(unit, SkipReason.GONE)
        except PermissionError:
            return Verdict(unit, SkipReason.UNREADABLE)
        status = end.status
        current = ReadUnit((FoundFile(path, status.size, status.modified_ns),))
        if not status.whole:
            return Verdict(current, SkipReason.UNFINISHED)
        absolute = self._location.absolute(path)
        if end.is_encrypted:
            raise UnsupportedFileError(_describe_encrypted(absolute))
        if self._skip_bad and not is_readable(absolute, self._location.files):
            return Verdict(current, SkipReason.DAMAGED)
        self._fingerprints[path] = end.fingerprint
        return Verdict(current)

    def _is_complete(self, path: str) -> bool:
        try:
            return self._read_end(path).status.whole
        except (FileNotFoundError, PermissionError):
            return False

    def _read_end(self, path: str) -> FileEnd:
        end = self._prefetched.pop(path, None) or self._try_read_end(path)
        if isinstance(end, OSError):
            raise end
        return end

    def _try_read_end(self, path: str) -> FileEnd | OSError:
        try:
            return read_end(self._location.absolute(path), self._location.files)
        except OSError as error:
            return error


def _describe_encrypted(path: str) -> str:
    return (
        f"{path} is encrypted, which is not supported. It is not skipped, because it may be a "
        "valid file. No row of it was read, and no batch names it: move it out of the folder, "
        "and replace it with a file that is not encrypted"
    )


# --- files that changed after their batch was chosen


def reconcile_changed_file(
    file: FoundFile, location: SourcePath, *, was_checked: bool, fail_on_loss: bool
) -> FoundFile:
    """Return a file of a batch as it is now, if its rows are those that the batch must have.

    An offset records the version of a file, and a task reads only that version, so that two tasks
    never read two versions of one file. A file that changed earlier is reconciled here, when the
    batch is planned again. Its rows are the same if only its time has changed, as by ``cp -p`` and
    ``touch`` (in a bucket, if an object of the same ETag was put again), or if it was listed while
    it was being written. A deleted file is returned unchanged, for the task to report.

    Args:
        file: The file in the offset.
        location: The path that contains it.
        was_checked: True if it was checked when it was listed; version 1 did not check.
        fail_on_loss: True if a file with other rows is an error; otherwise its rows are read.

    Raises:
        DataLossError: If it has other rows, or is being written.
    """
    path, files = location.absolute(file.path), location.files
    try:
        if files.identity(path) in {None, Identity(file.size, file.modified_ns)}:
            return file
        now = read_file_status(path, files)
    except (FileNotFoundError, PermissionError):
        return file
    if not now.whole:
        raise DataLossError(
            f"{path} had {file.size} bytes when it was listed, and is being written now: "
            "restart the query when the file is complete"
        )
    is_same_version = (now.modified_ns - file.modified_ns) % files.resolution_ns == 0
    has_same_rows = (now.size == file.size and is_same_version) or not (
        was_checked or _was_complete(path, file.size, now, files)
    )
    if not has_same_rows and fail_on_loss:
        raise DataLossError(
            f"{path} had {file.size} bytes when it was listed and has {now.size} "
            f"now{'' if is_same_version else ', of another version'}: its rows were replaced "
            "before they were read. Put the previous file back; with the option "
            "'failOnDataLoss' = 'false' its current rows are read, and the previous ones are "
            "lost"
        )
    _log.warning("%s is read in its current form: it has changed since it was listed", path)
    return FoundFile(file.path, now.size, now.modified_ns)


def _was_complete(path: str, size: int, now: FileStatus, files: Files) -> bool:
    """Return True if a file that has grown was complete when it had a size."""
    return size >= now.size or is_complete_at(path, size, files)
