"""Where this package keeps what can be made again, for one user of a machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["find_stranger", "user_cache"]

_ROOT = 0


def user_cache() -> Path:
    """``$XDG_CACHE_HOME/krishiv-spark``, or else ``~/.cache/krishiv-spark``; it may not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "krishiv-spark"


def find_stranger(folder: Path) -> str | None:
    """Return how another user of the machine could put a file into a folder; None if none can.

    The folder and those that it is in must belong to this user or root, and nobody else may write
    to them. A folder with the sticky bit, as ``/tmp``, may be among those that it is in.

    Raises:
        OSError: If the folder does not exist, or cannot be looked at.
    """
    leaf = folder.resolve(strict=True)
    waiting, checked = [Path(os.path.abspath(folder)), leaf], set[Path]()
    while waiting:
        path = waiting.pop()
        for part in {path, *path.parents} - checked:
            checked.add(part)
            found = part.lstat()
            if found.st_uid not in {_ROOT, os.geteuid()}:
                return f"{part} belongs to the user {found.st_uid}"
            if stat.S_ISLNK(found.st_mode):
                waiting.append(Path(os.path.abspath(part.parent / part.readlink())))
            elif _is_shared(found) and (part == leaf or not found.st_mode & stat.S_ISVTX):
                return f"other users may write to {part}"
    return None


def _is_shared(found: os.stat_result) -> bool:
    if found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid):
        return True
    return bool(found.st_mode & stat.S_IWOTH)


def _is_own_group(gid: int) -> bool:
    """Return whether a group has no member but this user, or root.

    Many systems give each user a group of the same name, and let it write by default.
    """
    import grp
    import pwd

    if gid == _ROOT:
        return True
    try:
        group, name = grp.getgrgid(gid), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return group.gr_name == name and not set(group.gr_mem) - {name}
