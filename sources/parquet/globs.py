"""What a glob matches, and an error where that cannot be found out. Driver.

`glob` itself passes over folders that it cannot list: a batch would silently miss their rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase

from krishiv_spark.parquet.names import is_hidden

__all__ = ["has_magic", "matches"]

_MAGIC = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")


def has_magic(text: str) -> bool:
    """Whether a text is a pattern, and not a plain name."""
    return _MAGIC.search(text) is not None


def matches(root: str, pattern: str) -> Iterator[str]:
    """Relative paths of files and folders that match, in no order; some may come twice.

    Hidden names are left out with all that is below them. What goes away meanwhile is left out.

    Args:
        root: The folder that paths are relative to.
        pattern: Names with "/" between them, as for `glob` without "**", and with Hadoop's
            ``{a,b}``.

    Raises:
        OSError: If a folder that the pattern leads through cannot be listed.
    """
    for one in _without_braces(pattern):
        names = [name for name in one.split("/") if name]
        if names:
            yield from _below(root, "", names)


def _below(root: str, prefix: str, names: Sequence[str]) -> Iterator[str]:
    name, *rest = names
    find = _listed if has_magic(name) else _itself
    for found in find(os.path.join(root, prefix), name, is_folder=bool(rest)):
        if rest:
            yield from _below(root, f"{prefix}{found}/", rest)
        else:
            yield prefix + found


def _listed(folder: str, pattern: str, *, is_folder: bool) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        return [
            entry.name
            for entry in entries
            if fnmatchcase(entry.name, pattern)
            and not is_hidden(entry.name)
            and (not is_folder or entry.is_dir())
        ]
    return []


def _itself(folder: str, name: str, *, is_folder: bool) -> list[str]:
    del is_folder  # it shows when its own folder is listed
    with suppress(FileNotFoundError, NotADirectoryError):
        if not is_hidden(name):
            os.lstat(os.path.join(folder, name))
            return [name]
    return []


def _without_braces(pattern: str) -> list[str]:
    """Hadoop's ``{a,b}``, which Python's patterns do not know, as several patterns."""
    braces = _BRACES.search(pattern)
    if braces is None:
        return [pattern]
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    return [
        whole
        for choice in braces[1].split(",")
        for whole in _without_braces(before + choice + after)
    ]
