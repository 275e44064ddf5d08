"""Access to folders and files below a folder that others may write, without following links.

A user who may write a folder can put a link into it at any time, even between a check and the use
of a path. So each part of a path is opened from the descriptor of the folder above it, with
``O_NOFOLLOW``, and files are read, renamed and removed relative to such a descriptor. The folder at
the top may be reached through links, since its path is an option of the user who runs this process.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path

from krishiv_spark.durable import make_folder
from krishiv_spark.errors import LinkError, StorageError

__all__ = [
    "META",
    "SOURCES",
    "check_size",
    "is_link",
    "list_folder",
    "make_folder_in",
    "make_folders",
    "open_folder",
    "open_own",
    "read_file",
    "remove_tree",
    "split_at_own",
    "status_in",
]

META = "_krishiv"
"""The folder inside a table's folder that contains epoch logs and staged files."""

SOURCES = "_krishiv_sources"
"""The folder inside an input folder that contains the state of sources."""

_OWN = frozenset({META, SOURCES})
_PRIVATE = "krishiv"
"""The folder of epoch logs in a checkpoint, and in Spark's scratch folder."""

# Systems without these flags have no descriptors of folders either, but import this module.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
# These are hidden from the conformance kit, which replaces functions of `os` by failing ones:
# opening a folder changes nothing, and the kit lets the next call in that folder fail. A path has
# many parts, and each would add a case to every sequence.
_open_descriptor, _stat, _readlink = partial(os.open), partial(os.stat), partial(os.readlink)
# Opening a FIFO without O_NONBLOCK would wait for a writer.
_FILE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)


def split_at_own(path: str | Path) -> tuple[str, str]:
    """Split a path before the first folder of krishiv-spark inside a folder of others.

    Returns:
        The folder that others may write, and the rest, below which no link is followed. The rest is
        empty for a path without such a folder.
    """
    return _split_text(str(path))


@lru_cache(maxsize=256)
def _split_text(path: str) -> tuple[str, str]:
    parts = path.split("/")
    first = next((n for n, part in enumerate(parts) if part in _OWN), len(parts))
    return "/".join(parts[:first]) or "/", "/".join(parts[first:])


@contextmanager
def open_folder(root: str | Path, within: str = "", *, make: bool = False) -> Iterator[int]:
    """Open a folder below another one without following a link, and yield its descriptor.

    Args:
        root: The folder at the top, which may be reached through links.
        within: Relative path of the folder; empty for the folder at the top.
        make: Create missing folders below the top, durably. See `make_folders` for their modes.

    Raises:
        FileNotFoundError: If it does not exist.
        LinkError: If a part of `within` is a link.
        OSError: If it cannot be opened or created.
    """
    descriptor = _open_within(str(root), "/".join(filter(None, within.split("/"))), make)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_within(root: str, within: str, make: bool) -> int:
    """Open a folder by its whole path, or from the folder above it, which is opened likewise."""
    if not within:
        return _open_descriptor(root, _FOLDER)
    descriptor = _open_at_once(root, within, _FOLDER)
    if descriptor is not None:
        return descriptor
    parent, _, name = within.rpartition("/")
    if name == "..":  # names are checked when they are read; this is the last check
        raise _link_error(f"{root}/{within}")
    above = _open_within(root, parent, make)
    try:
        is_own = within.partition("/")[0] in _OWN
        return _open_step(above, name, f"{root}/{within}", make, is_own)
    finally:
        os.close(above)


def _open_at_once(root: str, within: str, flags: int) -> int | None:
    """Open by the whole path; return None if that fails, or if a link may be in the path.

    Linux reports the real path of an open file: if it is the requested one, no part below the top
    is a link. This takes two system calls instead of two for each part.
    """
    try:
        descriptor = _open_descriptor(f"{root}/{within}", flags | _NO_LINK)
    except OSError:
        return None
    try:
        if _readlink(f"/proc/self/fd/{descriptor}") == f"{_find_real(root)}/{within}":
            return descriptor
    except OSError:  # another system than Linux
        pass
    os.close(descriptor)
    return None


@lru_cache(maxsize=64)  # if it has changed, the paths differ, and the parts are opened one by one
def _find_real(root: str) -> str:
    descriptor = _open_descriptor(root, _FOLDER)
    try:
        return _readlink(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def open_own(path: str | Path) -> AbstractContextManager[int]:
    """Open a folder by its whole path without following a link below a folder of others.

    Returns:
        A context manager that yields the descriptor.

    Raises:
        FileNotFoundError, LinkError, OSError: As `open_folder`.
    """
    return open_folder(*split_at_own(path))


def _open_step(above: int, name: str, path: str, make: bool, is_own: bool) -> int:
    try:
        return _open_plain(above, name, path)
    except FileNotFoundError:
        if not make:
            raise
    _make(above, name, _own_bits(above) if is_own else _ALL)
    return _open_plain(above, name, path)


def _open_plain(above: int, name: str, path: str) -> int:
    try:
        return _open_descriptor(name, _FOLDER | _NO_LINK, dir_fd=above)
    except OSError as error:
        if is_link(above, name):  # Linux reports "not a directory", other systems "too many links"
            raise _link_error(path) from error
        error.filename = path
        raise


_ALL = 0o777


def _make(above: int, name: str, mode: int) -> bool:
    """Create a folder durably; return False if the name existed."""
    is_new = False
    # Another process that has just created it may not have synced it yet, so both do.
    with suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=above)
        is_new = True
    os.fsync(above)
    return is_new


def _own_bits(above: int) -> int:
    """Return the mode of a new folder of krishiv-spark's in a folder that several users may write.

    It has the permissions of the folder above it, but is never writable for users outside of the
    group: a user who may write an epoch log may do everything that the query may do.
    """
    return 0o700 | (stat.S_IMODE(os.fstat(above).st_mode) & 0o775)


def make_folder_in(above: int, path: str) -> None:
    """Create a folder of krishiv-spark's in an open folder, durably; mode as in `make_folders`."""
    name = os.path.basename(path)
    if not _make(above, name, _own_bits(above)):
        os.close(_open_plain(above, name, path))


def make_folders(path: str | Path) -> None:
    """Make a folder of krishiv-spark's, and missing ones above it, durably.

    Below a folder that others may write, a new folder has the permission bits of the one above it,
    without the right to write for users outside of the group. So it does where the user has made
    the folder above it, as for the option ``epochLog``. In a checkpoint, in Spark's scratch folder,
    and where folders above it are missing too, it is private (0700). Existing folders keep their
    modes.

    Raises:
        LinkError, OSError: As `open_folder`.
    """
    root, within = split_at_own(path)
    if within:
        make_folder(Path(root))
        with open_folder(root, within, make=True):
            return
    missing = []
    folder = Path(root)
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        is_shared = len(missing) == 1 and new.name != _PRIVATE
        with open_folder(new.parent) as above:
            _make(above, new.name, _own_bits(above) if is_shared else 0o700)


def is_link(above: int, name: str) -> bool:
    """Return True if a name in an open folder is a symbolic link."""
    found = status_in(above, name)
    return found is not None and stat.S_ISLNK(found.st_mode)


def status_in(above: int, name: str) -> os.stat_result | None:
    """Return the status of a name in an open folder, of a link its own; None if it is not there."""
    try:
        return _stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return None


def list_folder(root: str | Path, within: str = "") -> list[str]:
    """Return the names in a folder; none if it, or a folder above it, is missing or a link."""
    missing = (FileNotFoundError, NotADirectoryError, LinkError)
    with suppress(*missing), open_folder(root, within) as descriptor:
        return os.listdir(descriptor)
    return []


def read_file(path: str, most: int, last: int | None = None) -> bytes | None:
    """Return the content of a plain file; None if the file or its folder does not exist.

    A link to a plain file is followed where no folder of others is above it.

    Args:
        path: Whole path of the file.
        most: Bytes that it may have at most, of those that are read.
        last: Read so many bytes at its end; None reads all of it.

    Raises:
        LinkError: If it is a link, a FIFO, a device or anything but a plain file.
        StorageError: If it is too large.
    """
    try:
        descriptor = _open_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _link_error(path)
        start = 0 if last is None else max(0, found.st_size - last)
        check_size(path, found.st_size - start, most)
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            file.seek(start)
            # Not `most`: Python would ask for so much memory at once.
            return file.read(found.st_size - start)
    finally:
        os.close(descriptor)


def _open_file(path: str) -> int:
    folder, name = os.path.split(path)
    root, within = split_at_own(folder)  # of the folder, whose split is cached
    if not within:
        return _open_descriptor(path, _FILE)
    descriptor = _open_at_once(root, f"{within}/{name}", _FILE)
    if descriptor is not None:
        return descriptor
    with open_folder(root, within) as above:
        try:
            return _open_descriptor(name, _FILE | _NO_LINK, dir_fd=above)
        except OSError as error:
            if is_link(above, name):
                raise _link_error(path) from error
            error.filename = path
            raise


def check_size(path: object, size: int, most: int) -> None:
    """Refuse to read more than so many bytes.

    Raises:
        StorageError: If a file has more.
    """
    if size > most:
        raise StorageError(
            f"{path} has {size} bytes, and more than {most} are not read into memory: it is "
            "damaged, or was not written by krishiv-spark; restore the file, or remove it"
        )


def remove_tree(root: str | Path, within: str) -> None:
    """Remove a folder and everything in it, as far as that is allowed; of a link, the link itself.

    Args:
        root: As for `open_folder`.
        within: Relative path of the folder, not empty. A link above it is not followed.
    """
    parent, _, name = within.rpartition("/")
    # Only an attacker nests folders so deep that descriptors or the stack do not suffice.
    with suppress(OSError, LinkError, RecursionError), open_folder(root, parent) as above:
        _remove_tree_in(above, name)


def _remove_tree_in(above: int, name: str) -> None:
    found = status_in(above, name)
    if found is None:
        return
    with suppress(OSError):
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=above)
            return
        descriptor = _open_descriptor(name, _FOLDER | _NO_LINK, dir_fd=above)
        try:
            for inner in os.listdir(descriptor):
                _remove_tree_in(descriptor, inner)
        finally:
            os.close(descriptor)
        os.rmdir(name, dir_fd=above)


def _link_error(path: str) -> LinkError:
    return LinkError(
        f"{path} is a link, or no plain file or folder, and krishiv-spark follows no link there: "
        "another user may have put it there to have files elsewhere read, changed or removed. "
        "Nothing was. Check who may write the folder, and remove the link or restore the file"
    )
