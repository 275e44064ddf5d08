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
from krishiv_spark.storage.files import Files, FolderEntry, StoredEntry

__all__ = ["has_magic", "matches"]

_MAGIC = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")


def has_magic(text: str) -> bool:
    """Whether a text is a pattern, and not a plain name."""
    return _MAGIC.search(text) is not None


def matches(files: Files, root: str, pattern: str) -> Iterator[tuple[str, FolderEntry]]:
    """Files and folders that match, by relative paths, in no order; some may come twice.

    Hidden names are left out with all that is below them. What goes away meanwhile is left out.

    Args:
        files: Of the store that they are in.
        root: The folder that paths are relative to.
        pattern: Names with "/" between them, as for `glob` without "**", and with Hadoop's
            ``{a,b}``.

    Raises:
        OSError: If a folder that the pattern leads through cannot be listed.
        StorageError: Likewise, if it is not on a disk.
    """
    for one in _without_braces(pattern):
        names = [name for name in one.split("/") if name]
        if names:
            yield from _below(files, root, "", names)


def _below(
    files: Files, root: str, prefix: str, names: Sequence[str]
) -> Iterator[tuple[str, FolderEntry]]:
    name, *rest = names
    find = _listed if has_magic(name) else _itself
    for entry in find(files, os.path.join(root, prefix), name, is_folder=bool(rest)):
        if rest:
            yield from _below(files, root, f"{prefix}{entry.name}/", rest)
        else:
            yield prefix + entry.name, entry


def _listed(files: Files, folder: str, pattern: str, *, is_folder: bool) -> list[FolderEntry]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return [
            entry
            for entry in files.entries(folder)
            if fnmatchcase(entry.name, pattern)
            and not is_hidden(entry.name)
            and (not is_folder or entry.is_dir())
        ]
    return []


def _itself(files: Files, folder: str, name: str, *, is_folder: bool) -> list[FolderEntry]:
    if is_hidden(name):
        return []
    if is_folder:  # it shows when it is listed whether it is there
        return [StoredEntry(name)]
    entry = files.entry(os.path.join(folder, name))
    return [] if entry is None else [entry]


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
