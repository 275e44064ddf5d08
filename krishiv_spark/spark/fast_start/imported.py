"""Whether what a zygote has imported is still what is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

__all__ = ["Imported"]

_OWN = "krishiv_spark"


class Imported:
    """Packages as they lay on the disk when they had been imported.

    A fork imports the rest of them later. After an upgrade that would be of another version than
    what it has, which no process of Spark's own would do: each imports all of it at once.
    """

    def __init__(self) -> None:
        self._seen = {path: _version(path) for path in set(_paths())}

    def is_installed(self) -> bool:
        """Whether all of it is as it was; some hundred calls of ``stat``, a millisecond."""
        return all(_version(path) == seen for path, seen in self._seen.items())


def _paths() -> Iterator[str]:
    """The folder of each package, and the files of our own, which may be those of a checkout.

    Installers remove a file and make a new one, which shows in its folder.
    """
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and name.partition(".")[0] == _OWN:
            yield file
        elif file is not None and "." not in name and hasattr(module, "__path__"):
            yield os.path.dirname(file)


def _version(path: str) -> tuple[int, int] | None:
    """Which one it is; None for what is in an archive, or has gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
