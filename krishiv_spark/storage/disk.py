"""Folders of a POSIX file system: files are written aside, synced, and linked to their names."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from krishiv_spark.durable import make_folder, remove_file, sync_folder, write_aside
from krishiv_spark.errors import NotExclusiveError

__all__ = ["DiskFolder"]

# link(2): EPERM where a file system has no hard links, EMLINK where it allows none besides the name
# itself; the others are what network file systems and FUSE answer.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class DiskFolder:
    """A folder on a POSIX file system. See `krishiv_spark.storage.Folder`.

    Args:
        path: Absolute.

    Raises:
        OSError: By each call, if the disk fails.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._text = str(path)

    def __repr__(self) -> str:
        return self._text

    def names(self) -> Mapping[str, str]:
        """See `Folder`."""
        try:
            return dict.fromkeys(os.listdir(self._text), "")
        except FileNotFoundError:
            return {}

    def read(self, name: str) -> bytes | None:
        """See `Folder`."""
        try:
            with open(f"{self._text}/{name}", "rb", buffering=0) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        """See `Folder`."""
        return [self.read(name) for name in names]

    def below(self) -> Iterator[str]:
        """See `Folder`."""
        # Through links too, as whoever opens a path goes: a disk of its own may hold a part.
        for parent, _, names in os.walk(self.path, onerror=_refuse_unless_gone, followlinks=True):
            yield from (Path(parent, name).relative_to(self.path).as_posix() for name in names)

    def tail(self, name: str, size: int) -> bytes | None:
        """See `Folder`."""
        try:
            with open(f"{self._text}/{name}", "rb") as file:
                file.seek(-min(size, os.fstat(file.fileno()).st_size), os.SEEK_END)
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, name: str, data: bytes) -> bool:
        """See `Folder`."""
        aside = self._aside(name, data)
        try:
            # O_EXCL would show the name before its content, and rename(2) would overwrite: a link
            # appears whole, and only where no name is.
            os.link(aside, f"{self._text}/{name}")
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise NotExclusiveError(
                    f"the file system of {self.path} cannot create a hard link "
                    f"({error.strerror}), by which a file is created exclusively"
                ) from error
            raise
        finally:
            # A process that is killed before this leaves a name that is no entry's.
            remove_file(aside)
        sync_folder(self._text)
        return True

    def replace(self, name: str, data: bytes) -> None:
        """See `Folder`."""
        os.replace(self._aside(name, data), f"{self._text}/{name}")
        sync_folder(self._text)

    def remove(self, names: Iterable[str]) -> None:
        """See `Folder`."""
        for name in names:
            # Not synced: what comes back with the power is no more than it was before.
            remove_file(f"{self._text}/{name}")

    def destroy(self) -> None:
        """See `Folder`. In one step: half of what was there might mean something else."""
        gone = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _aside(self, name: str, data: bytes) -> str:
        aside = f"{self._text}/.{name}.{uuid.uuid4().hex}"
        try:
            write_aside(aside, data)
        except FileNotFoundError:
            make_folder(self.path)
            write_aside(aside, data)
        return aside


def _refuse_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
