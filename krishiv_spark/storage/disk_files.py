"""Files of a POSIX file system, as Python and PyArrow read them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from krishiv_spark.durable import is_folder
from krishiv_spark.errors import OptionError
from krishiv_spark.storage.files import FolderEntry, Identity, OpenedFile, Take
from krishiv_spark.storage.no_links import open_own

__all__ = ["DISK", "DiskFiles"]


class DiskFiles:
    """Files by absolute paths. See `krishiv_spark.storage.Files`."""

    resolution_ns = 1
    is_remote = False

    def walk(self, folder: str, take: Take) -> bool:
        """See `Files`."""
        try:
            inside = [*self._taken(folder, "", take)]
        except NotADirectoryError:
            return False
        while inside:
            prefix = inside.pop()
            _check_no_loop(folder, prefix)
            with suppress(FileNotFoundError):  # it went away while the listing was made
                inside += self._taken(folder, prefix, take)
        return True

    @staticmethod
    def _taken(folder: str, prefix: str, take: Take) -> list[str]:
        with os.scandir(os.path.join(folder, prefix)) as entries:
            return [f"{prefix}{name}" for name in take(prefix, entries)]

    def entries(self, folder: str) -> Iterator[FolderEntry]:
        """See `Files`."""
        with os.scandir(folder) as entries:
            yield from entries

    def entry(self, path: str) -> FolderEntry | None:
        """See `Files`. A link that leads nowhere is one."""
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _DiskEntry(path)

    def identity(self, path: str) -> Identity | None:
        """See `Files`."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return _identity(status) if stat.S_ISREG(status.st_mode) else None

    def tail(self, path: str, count: int, size: int | None = None) -> tuple[Identity, bytes]:
        """See `Files`."""
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a FIFO would wait
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise FileNotFoundError(errno.ENOENT, "no plain file", path)
            found = _identity(status)
            end = found.size if size is None else size
            return found, os.pread(file, count, max(0, end - count))
        finally:
            os.close(file)

    @contextmanager
    def opened(self, path: str, size: int | None = None) -> Iterator[OpenedFile]:
        """See `Files`."""
        del size
        if not stat.S_ISREG(os.stat(path).st_mode):  # a FIFO would wait
            raise FileNotFoundError(errno.ENOENT, "no plain file", path)
        with pa.OSFile(path) as source:
            yield OpenedFile(source, _identity(os.stat(path)), None)

    def touch(self, path: str) -> bool:
        """See `Files`."""
        try:
            with open_own(os.path.dirname(path)) as folder:
                os.utime(os.path.basename(path), dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """See `Files`."""
        return map(function, items)


DISK = DiskFiles()


@dataclass(frozen=True)
class _DiskEntry:
    path: str

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def is_dir(self) -> bool:
        return is_folder(self.path)


def _identity(status: os.stat_result) -> Identity:
    return Identity(status.st_size, status.st_mtime_ns)


def _check_no_loop(root: str, prefix: str) -> None:
    """Refuse a link that leads back to where it is: its files would have no end of names."""
    path = os.path.join(root, prefix).rstrip("/")
    if not os.path.islink(path):
        return
    inside = prefix.rstrip("/")
    above = [root, *(os.path.join(root, inside[:i]) for i, c in enumerate(inside) if c == "/")]
    target = os.stat(path)
    if any(os.path.samestat(target, os.stat(folder)) for folder in above):
        raise OptionError(
            f"{path} is a link to a folder that it lies in, so its files would have no end of "
            "names: remove it, or leave it out by a glob in 'path'"
        )
