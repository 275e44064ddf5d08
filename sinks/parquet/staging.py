"""Where an attempt of a task stages its files: in a folder of a disk, or in a store. Executor."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Protocol, TypeVar

from krishiv_spark.durable import remove_file, start_writing_back
from krishiv_spark.errors import StorageError
from krishiv_spark.parquet.layout import check_shared
from krishiv_spark.parquet.names import STAGED_SUFFIX
from krishiv_spark.sinks.parquet.values import StagedFile, StagedUpload
from krishiv_spark.storage import Uploads
from krishiv_spark.storage.no_links import open_own

__all__ = ["DiskStaging", "Staging", "StagingFile", "UploadStaging"]

StagedT = TypeVar("StagedT")
StagedT_co = TypeVar("StagedT_co", covariant=True)


class StagingFile(Protocol[StagedT_co]):
    """A file that is being staged.

    Attributes:
        sink: What pyarrow writes into.
    """

    sink: Any

    def start_writing_back(self) -> None:
        """Hint that what was written so far may reach the disk."""
        ...

    def close(self, rows: int) -> StagedT_co:
        """Make it durable, and say what it is."""
        ...

    def drop(self) -> None:
        """Give it up and remove it."""
        ...


class Staging(Protocol[StagedT]):
    """Where an attempt stages its files.

    Attributes:
        most_open: So many files are open at most.
    """

    most_open: int

    def open(self, name: str, folder: str) -> StagingFile[StagedT]:
        """Begin a file, which nobody sees.

        Args:
            name: As it will be visible, or nearly so: nobody else ever uses it.
            folder: Of its partition, relative to the table; empty without partitions.
        """
        ...

    def remove(self, staged: StagedT) -> None:
        """Remove a file that is staged."""
        ...


class DiskStaging:
    """In a folder on a disk. See `Staging`.

    Args:
        folder: The planner has made it. Once it is gone, the generation is over, and a straggler
            must not bring it back.
    """

    most_open = 64

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, name: str, folder: str) -> _DiskFile:
        """See `Staging`.

        Raises:
            OptionError: If what the planner has made is not on this machine.
            FileNotFoundError: If the generation is over.
        """
        try:
            return _DiskFile(self._folder, name, folder)
        except FileNotFoundError:
            check_shared(self._folder.parents[2])  # `_krishiv`, which stays
            raise

    def remove(self, staged: StagedFile) -> None:
        """See `Staging`."""
        _remove(self._folder, staged.name)


def _remove(staging: Path, name: str) -> None:
    with contextlib.suppress(FileNotFoundError), open_own(staging) as folder:
        remove_file(f"{name}{STAGED_SUFFIX}", folder=folder)


# Exclusive: a name that is taken is another attempt's, whatever it holds.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class _DiskFile:
    def __init__(self, staging: Path, name: str, folder: str) -> None:
        self._staging = staging
        self._name = name
        self._folder = folder
        with open_own(staging) as above:
            descriptor = os.open(f"{name}{STAGED_SUFFIX}", _NEW, 0o666, dir_fd=above)
        self.sink = open(descriptor, "wb")  # noqa: SIM115  closed in `close`

    def start_writing_back(self) -> None:
        start_writing_back(self.sink.fileno())

    def close(self, rows: int) -> StagedFile:
        size = self.sink.tell()
        with self.sink:
            self.sink.flush()
            # By the task, side by side with the others; the committer has only the names to sync.
            os.fsync(self.sink.fileno())
        return StagedFile(name=self._name, folder=self._folder, rows=rows, size=size)

    def drop(self) -> None:
        self.sink.close()
        _remove(self._staging, self._name)


class UploadStaging:
    """In a store. See `Staging`.

    Args:
        uploads: To places in the table's folder.
    """

    most_open = 16  # each holds parts of 8 MiB and more

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads

    def open(self, name: str, folder: str) -> _UploadFile:
        """See `Staging`."""
        return _UploadFile(self._uploads, name, folder)

    def remove(self, staged: StagedUpload) -> None:
        """See `Staging`. Why the attempt fails says more than that this fails; a sweep follows."""
        with contextlib.suppress(StorageError):
            self._uploads.discard(staged.upload)


class _UploadFile:
    def __init__(self, uploads: Uploads, name: str, folder: str) -> None:
        self._name = name
        self._folder = folder
        self.sink = uploads.open(f"{folder}/{name}" if folder else name)

    def start_writing_back(self) -> None:
        """Parts are sent when they are full."""

    def close(self, rows: int) -> StagedUpload:
        upload = self.sink.close()
        return StagedUpload(
            name=self._name, folder=self._folder, rows=rows, size=upload.size, upload=upload
        )

    def drop(self) -> None:
        with contextlib.suppress(StorageError):  # as in `UploadStaging.remove`
            self.sink.abort()
