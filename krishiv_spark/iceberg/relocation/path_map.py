"""Paths below one folder, as they are below another one. Operator."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["PathMap", "local_path"]

_LOCAL = re.compile(r"(file:(?://(?:localhost)?)?)?(/.*)", re.DOTALL)


class PathMap:
    """Translates locations below an old folder to a new folder.

    Args:
        old: The folder that metadata names; it need not exist any more.
        new: The folder that takes its place.
    """

    def __init__(self, old: str | Path, new: str | Path) -> None:
        self.old, self.new = Path(os.path.abspath(old)), Path(os.path.abspath(new))
        # A warehouse may be named by a link in its metadata, and by its real path here.
        self._roots = list(dict.fromkeys((str(self.old), os.path.realpath(old))))
        self._folders: dict[str, str] = {}

    def translate(self, location: str) -> str:
        """Return the new location; the same one if it is not below the old folder."""
        found = _LOCAL.fullmatch(location)
        if found is None:
            return location
        relative = self.relative(location)
        return (
            location if relative is None else f"{found[1] or ''}{self.new}/{relative}".rstrip("/")
        )

    def relative(self, location: str) -> str | None:
        """Return the path below the old folder; None if the location is not below it."""
        found = _LOCAL.fullmatch(location)
        if found is None:
            return None
        folder, name = os.path.split(os.path.normpath(found[2]))
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        for path in (f"{folder}/{name}", f"{self._folders[folder]}/{name}"):
            for root in self._roots:
                if f"{path}/".startswith(f"{root}/"):
                    return path[len(root) + 1 :]
        return None

    def is_below(self, location: str) -> bool:
        """Return True if a location is below the old folder."""
        return self.relative(location) is not None


def local_path(location: str) -> str | None:
    """Return the path of a location on a disk; None if it is in a store."""
    found = _LOCAL.fullmatch(location)
    return None if found is None else os.path.normpath(found[2])
