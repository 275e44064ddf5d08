"""Disks: folders and files of a POSIX file system.

Files are written under another name, synced, and linked to their names.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath
from typing import Any

import pyarrow as pa
from typing_extensions import override

from krishiv_spark.durable import is_folder, remove_file, write_aside
from krishiv_spark.errors import NotExclusiveError, OptionError
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.storage.base import BaseStore, StoreUrl
from krishiv_spark.storage.files import (
    MOST_BYTES,
    Files,
    Folder,
    FolderEntry,
    Identity,
    OpenedFile,
    WalkFilter,
)
from krishiv_spark.storage.no_links import (
    make_folders,
    open_folder,
    open_own,
    read_file,
    remove_tree,
    split_at_own,
    status_in,
)
from krishiv_spark.storage.paths import local_path, url_scheme

__all__ = ["DISK", "DiskFiles", "DiskFolder", "DiskStore", "aging_time_s", "read_disk_time_s"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DiskStore(BaseStore):
    """A location on a disk of this machine, or on one that is mounted."""

    kind = "disk"
    schemes = ("file", "dbfs")

    @override
    @classmethod
    def parse_url(cls, text: str, scheme: str) -> StoreUrl:
        return StoreUrl(cls.kind, scheme, "", _absolute_path(text))

    @override
    def folder(self) -> DiskFolder:
        return DiskFolder(Path(self.url.path))

    @override
    def files(self) -> DiskFiles:
        return DISK


def _absolute_path(text: str) -> str:
    """Return the absolute path of a plain one, of ``file:`` or of Databricks's ``dbfs:``."""
    if url_scheme(text) != "dbfs":
        return str(local_path(text, "the location"))
    path = normpath("/" + text.partition(":")[2].strip("/"))
    if path.startswith("/Volumes/"):
        return path
    return f"/dbfs{path}"  # machines of Databricks mount it there


# --- folders

# link(2): EPERM if a file system has no hard links, EMLINK if it allows only one name; the others
# are errors of network file systems and FUSE.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)

_MODE = 0o644
"""Mode of a new file, masked by the mode of its folder: in a private folder it is private."""


class DiskFolder(Folder):
    """A folder on a POSIX file system.

    Files are plain files. Below krishiv-spark's folders in folders of others, no link is followed
    (`krishiv_spark.storage.no_links`).

    Args:
        path: Absolute.

    Raises:
        LinkError: By each call, if there is a link where none is followed.
        OSError: By each call, if the disk fails.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._text = str(path)

    def __repr__(self) -> str:
        return self._text

    @override
    def names(self) -> Mapping[str, str]:
        try:
            with open_own(self._text) as folder:
                return dict.fromkeys(os.listdir(folder), "")
        except FileNotFoundError:
            return {}

    @override
    def read(self, name: str, most: int = MOST_BYTES) -> bytes | None:
        return self._read(name, most)

    @override
    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        return [self.read(name) for name in names]

    @override
    def iter_files(self) -> Iterator[str]:
        # Links are followed, as when paths are opened, since a part may be on another disk.
        for parent, _, names in os.walk(self.path, onerror=_raise_unless_missing, followlinks=True):
            yield from (Path(parent, name).relative_to(self.path).as_posix() for name in names)

    @override
    def tail(self, name: str, size: int) -> bytes | None:
        return self._read(name, size, size)

    def _read(self, name: str, most: int, last: int | None = None) -> bytes | None:
        return read_file(f"{self._text}/{name}", most, last)

    @override
    def create(self, name: str, data: bytes) -> bool:
        with self._staged_file(name, data) as (folder, staged):
            try:
                # O_EXCL would show the name before its content, and rename(2) would overwrite: a
                # link appears with its content, and only if the name is free.
                os.link(staged, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
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
                # If the process is killed before this, the file remains under a name that no log
                # entry has.
                remove_file(staged, folder=folder)
            os.fsync(folder)
        return True

    @override
    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        with self._staged_file(name, data, durable=durable) as (folder, staged):
            os.replace(staged, name, src_dir_fd=folder, dst_dir_fd=folder)
            if durable:
                os.fsync(folder)

    @override
    def remove(self, names: Iterable[str]) -> None:
        listed = list(names)
        if not listed:
            return
        with suppress(FileNotFoundError), open_own(self._text) as folder:
            for name in listed:
                # This is not synced: after a power cut the files may exist again, which is allowed.
                remove_file(name, folder=folder)

    @override
    def move(self, name: str, to: str) -> None:
        (above, _, base), (above_to, _, base_to) = name.rpartition("/"), to.rpartition("/")
        with suppress(FileNotFoundError), ExitStack() as opened:
            source = opened.enter_context(open_folder(self._text, above))
            if status_in(source, base) is None:
                return
            target = opened.enter_context(open_folder(self._text, above_to, make=True))
            os.rename(base, base_to, src_dir_fd=source, dst_dir_fd=target)
            # This order matters: after a power cut the file may have both names, but always has
            # one.
            os.fsync(target)
            os.fsync(source)

    @override
    def destroy(self) -> None:
        """Rename the folder first, since a part of its files might have another meaning."""
        removed = f".{self.path.name}.{uuid.uuid4().hex}"
        root, within = split_at_own(self.path.parent)
        with suppress(FileNotFoundError), open_folder(root, within) as above:
            os.rename(self.path.name, removed, src_dir_fd=above, dst_dir_fd=above)
            remove_tree(root, f"{within}/{removed}".lstrip("/"))

    @contextmanager
    def _staged_file(
        self, name: str, data: bytes, *, durable: bool = True
    ) -> Iterator[tuple[int, str]]:
        """Write a file under another name; yield the descriptor of the folder, and that name."""
        staged = f".{name}.{uuid.uuid4().hex}"
        with ExitStack() as opened:
            try:
                folder = opened.enter_context(self._write_in(staged, data, durable))
            except FileNotFoundError:
                make_folders(self.path)
                folder = opened.enter_context(self._write_in(staged, data, durable))
            yield folder, staged

    @contextmanager
    def _write_in(self, name: str, data: bytes, durable: bool) -> Iterator[int]:
        with open_own(self._text) as folder:
            mode = _MODE & stat.S_IMODE(os.fstat(folder).st_mode)
            write_aside(name, data, folder=folder, mode=mode, durable=durable)
            yield folder


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


# --- files


class DiskFiles(Files):
    """Files by absolute paths."""

    resolution_ns = 1
    is_remote = False

    @override
    def walk(self, folder: str, take: WalkFilter) -> bool:
        try:
            inside = [*self._enter(folder, "", take)]
        except NotADirectoryError:
            return False
        while inside:
            prefix = inside.pop()
            _check_no_loop(folder, prefix)
            with suppress(FileNotFoundError):  # it was deleted during the walk
                inside += self._enter(folder, prefix, take)
        return True

    @staticmethod
    def _enter(folder: str, prefix: str, take: WalkFilter) -> list[str]:
        with os.scandir(os.path.join(folder, prefix)) as entries:
            return [f"{prefix}{name}" for name in take(prefix, entries)]

    @override
    def entries(self, folder: str) -> Iterator[FolderEntry]:
        with os.scandir(folder) as entries:
            yield from entries

    @override
    def entry(self, path: str) -> FolderEntry | None:
        """Return a file or folder, or a link whose target does not exist."""
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _DiskEntry(path)

    @override
    def identity(self, path: str) -> Identity | None:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return _identity(status) if stat.S_ISREG(status.st_mode) else None

    @override
    def tail(self, path: str, count: int, size: int | None = None) -> tuple[Identity, bytes]:
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

    @override
    @contextmanager
    def open(self, path: str, size: int | None = None) -> Iterator[OpenedFile]:
        del size
        if not stat.S_ISREG(os.stat(path).st_mode):  # a FIFO would wait
            raise FileNotFoundError(errno.ENOENT, "no plain file", path)
        with pa.OSFile(path) as source:
            yield OpenedFile(source, _identity(os.stat(path)), None)

    @override
    def touch(self, path: str) -> bool:
        try:
            with open_own(os.path.dirname(path)) as folder:
                os.utime(os.path.basename(path), dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    @override
    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
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
    """Reject a link to a folder that contains it: the walk would not end."""
    path = os.path.join(root, prefix).rstrip("/")
    if not os.path.islink(path):
        return
    inside = prefix.rstrip("/")
    above = [root, *(os.path.join(root, inside[:i]) for i, c in enumerate(inside) if c == "/")]
    target = os.stat(path)
    if any(os.path.samestat(target, os.stat(folder)) for folder in above):
        raise OptionError(
            f"{path} is a link to a folder that contains it, so its files would have infinitely "
            "many names: remove it, or exclude it by a glob in 'path'"
        )


# --- the clock of a file system

# Files are dated by the clock of their file system or store. If a machine's clock is ahead of it,
# all files seem older than they are, including those that a running query has just staged.

_TOLERANCE_S = 60.0
"""Stores date files to the second, and clocks differ slightly."""

_FIRST_S = 1_700_000_000.0
"""November 2023. Some emulators date all uploads at one earlier time, so that is not a clock."""


def aging_time_s(read_time_s: Callable[[], float], location: object) -> float:
    """Return the time at which ages are measured, in epoch seconds: the earlier of two clocks.

    Args:
        read_time_s: Writes a file to the location, deletes it, and returns the time that it was
            dated. If that fails, the local clock decides.
        location: For the log.
    """
    now_s = time.time()
    try:
        dated_s = read_time_s()
    except Exception as error:  # noqa: BLE001  of any store: a user may be allowed to delete, but not to write
        _log.info("the clock of %s is not known", location, exc_info=scrub(error))
        return now_s
    if now_s - dated_s <= _TOLERANCE_S or dated_s < _FIRST_S:
        return now_s
    _log.warning(
        "the clock of this machine is %d s ahead of that of %s: ages of files are measured by the "
        "latter. Correct the clock (NTP)",
        now_s - dated_s,
        location,
    )
    return dated_s


def read_disk_time_s(folder: Path) -> float:
    """Return the time that the file system of a folder gives a new file.

    Raises:
        OSError: If no file can be created there.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime
