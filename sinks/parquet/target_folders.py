"""The folders of a table on a disk into which staged files will be renamed. Driver: committer.

A file system that would refuse the rename must do so before the intent: after it, the epoch is
committed, and no driver could make it visible.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from krishiv_spark.durable import remove_file
from krishiv_spark.errors import CommitRejected, LinkError
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.storage.no_links import open_folder

__all__ = ["make_target_folders"]

_PROBE = "_krishiv-probe"
"""Name of an empty file. Readers ignore it, and later probes replace it if a process dies."""

_tried: LruCache[tuple[str, int, int], str] = LruCache(16_384)
"""The folders into which this process has renamed a file, by path, device and inode: one that is
replaced, or over which something is mounted, is another one."""

_NOTHING = "nothing is visible of the epoch: restart the query afterwards"


def make_target_folders(table: Path, staged: str, source: int, folders: Iterable[str]) -> None:
    """Create the folders into which staged files will be renamed.

    Args:
        table: Folder of the table.
        staged: Folder in which the files are staged, relative to the table.
        source: Descriptor of that folder.
        folders: Folders for the files, relative to the table.

    Raises:
        CommitRejected: If no file can be renamed into one of them: it cannot be created, is a link,
            or is on another file system or mount.
    """
    for folder in sorted(folders):
        try:
            with open_folder(table, folder, make=True) as target:
                may_rename = _try_rename(f"{table}/{folder}", source, target)
        except LinkError as error:
            raise CommitRejected(
                f"{error}, as a plain folder; or write into a separate table; {_NOTHING}"
            ) from error
        except OSError as error:
            raise CommitRejected(
                f"folder {table}/{folder} cannot be created: {error}; {_NOTHING}"
            ) from error
        if not may_rename:
            raise CommitRejected(
                f"folder {table}/{folder} is on another file system or mount than "
                f"{table}/{staged}, so that files cannot appear in it in one step: is it, or one "
                "above it, a mount (also of a part of the same file system)? Make it a plain "
                f"folder, or write into a separate table; {_NOTHING}"
            )


def _try_rename(path: str, source: int, target: int) -> bool:
    """Return False if files cannot be renamed from one folder into another; tried once.

    Two mounts of one file system have the same device, and a rename between them fails.

    Raises:
        OSError: If a file cannot be created or renamed for another reason.
    """
    status = os.fstat(target)
    if status.st_dev != os.fstat(source).st_dev:
        return False
    key = path, status.st_dev, status.st_ino
    if _tried.get(key) is not None:
        return True
    os.close(os.open(_PROBE, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, dir_fd=source))
    try:
        os.rename(_PROBE, _PROBE, src_dir_fd=source, dst_dir_fd=target)
    except OSError as error:
        with suppress(OSError):
            remove_file(_PROBE, folder=source)
        if error.errno == errno.ENOENT:  # the target was removed meanwhile, and is made again
            return True
        if error.errno != errno.EXDEV:
            raise
        return False
    remove_file(_PROBE, folder=target)
    _tried.put(key, path)
    return True
