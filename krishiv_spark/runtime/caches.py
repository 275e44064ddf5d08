"""Caches: in the memory of a process, and in a folder of one user of a machine."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

__all__ = ["LruCache", "find_stranger", "user_cache"]

Key = TypeVar("Key")
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """A mapping that drops its least recently used keys. Any thread.

    Args:
        most: Maximum number of keys, or maximum sum of weights; the newest key is always kept.
        weight: Returns the weight of a value, at least 1; None if each weighs 1.
    """

    def __init__(self, most: int, weight: Callable[[Value], int] | None = None) -> None:
        self._most = most
        self._weight = weight or (lambda _: 1)
        self._weights = 0
        self._values: dict[Key, Value] = {}  # in the order of their last use
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        """Return the value of a key; None if it is not cached."""
        with self._lock:
            if key in self._values:
                self._values[key] = self._values.pop(key)
            return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Cache a value, replacing another one with the same key."""
        with self._lock:
            self._drop(key)
            self._values[key] = value
            self._weights += self._weight(value)
            while self._weights > self._most and len(self._values) > 1:
                self._drop(next(iter(self._values)))

    def drop(self, keys: Iterable[Key]) -> None:
        """Remove the values of keys, if they are cached."""
        with self._lock:
            for key in keys:
                self._drop(key)

    def _drop(self, key: Key) -> None:
        if key in self._values:
            self._weights -= self._weight(self._values.pop(key))


# --- in a folder

_ROOT = 0


def user_cache() -> Path:
    """Return ``$XDG_CACHE_HOME/krishiv-spark`` or ``~/.cache/krishiv-spark``; it may not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "krishiv-spark"


def find_stranger(folder: Path) -> str | None:
    """Return the way in which another user could put a file into a folder; None if there is none.

    The folder and those above it must belong to this user or root, and no other user may write to
    them. A folder above it may have the sticky bit, as ``/tmp`` has.

    Raises:
        OSError: If the folder does not exist, or its status cannot be read.
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
    """Return True if a group has no members except this user or root.

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
