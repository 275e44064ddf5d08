"""Writing to a disk so that it is still there after the power fails."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "exists",
    "explain_refusal",
    "is_folder",
    "make_folder",
    "remove_file",
    "start_writing_back",
    "sync_file",
    "sync_folder",
    "sync_folders",
    "write_aside",
]


def exists(path: str | Path) -> bool:
    """Return True if a file or folder exists.

    Raises:
        OSError: If that cannot be found out. ``os.path.exists`` takes any error for absence, and
            so does ``Path.exists`` from Python 3.14 on.
    """
    return _mode(path) is not None


def is_folder(path: str | Path) -> bool:
    """Return True if a folder exists; raises like `exists`."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def write_aside(
    path: str | Path,
    data: bytes,
    *,
    folder: int | None = None,
    mode: int = 0o644,
    durable: bool = True,
) -> None:
    """Create a new file with its content on the disk; the folder is not synced.

    A file that could not be written whole is removed again.

    Args:
        path: Of the file.
        data: Its content.
        folder: Descriptor of the folder that a relative path starts from.
        mode: Permission bits of the file, of which the umask takes some.
        durable: Whether the content is on the disk when this returns.

    Raises:
        FileExistsError: If the path is taken.
        OSError: If it cannot be written, for instance because the disk is full.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        remove_file(path, folder=folder)
        raise


def remove_file(path: str | Path, *, folder: int | None = None) -> None:
    """Remove a file, if it is there; of a link, the link. The folder is not synced.

    Args:
        path: Of the file.
        folder: Descriptor of the folder that a relative path starts from.

    Raises:
        OSError: If it is there and cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path, dir_fd=folder)


def make_folder(folder: Path) -> None:
    """Create a folder, and those above it, so that it is still there after the power fails."""
    if is_folder(folder):
        return
    try:
        # If another process has just made it, that may not have synced it yet: both do.
        folder.mkdir(exist_ok=True)
    except FileNotFoundError:
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def start_writing_back(descriptor: int) -> None:
    """Let the kernel begin to write what a file holds so far, so that its sync waits for less.

    A hint: Linux starts the write-back of dirty pages when told that they are not needed.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def sync_file(path: Path) -> None:
    """Bring the content of a file to the disk."""
    _sync(path, os.O_RDONLY)


def sync_folder(folder: str | Path) -> None:
    """Bring the names in a folder to the disk (``fsync(2)``: a file's own sync does not)."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def sync_folders(folders: Iterable[str | Path]) -> None:
    """`sync_folder` for each distinct folder."""
    for folder in sorted(set(map(str, folders))):
        sync_folder(folder)


def _mode(path: str | Path) -> int | None:
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _sync(path: str | Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def explain_refusal(folder: str | Path) -> str:
    """Return the reason why a folder cannot be written, for messages."""
    is_read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    return "its file system is read-only" if is_read_only else "permission denied"
