"""Finding the files of a path: a folder, a file or a glob. Driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from krishiv_spark.durable import is_folder
from krishiv_spark.errors import OptionError
from krishiv_spark.parquet.globs import has_magic, matches
from krishiv_spark.parquet.layout import PATH_OPTION
from krishiv_spark.parquet.names import is_hidden
from krishiv_spark.paths import local_path

__all__ = ["ITSELF", "FoundFile", "Place", "find_files"]

ITSELF = "."
"""The relative path of the file that `Place.root` names itself."""

_SUFFIX = ".parquet"


class FoundFile(NamedTuple):
    """A file as it was listed.

    Attributes:
        path: Where, relative to `Place.root`, with "/" between folders.
        size: Bytes.
        modified_ns: Time of its last modification, nanoseconds since 1970 UTC.
    """

    path: str
    size: int
    modified_ns: int


@dataclass(frozen=True)
class Place:
    """Where files are looked for. Made from the option's text alone, without I/O.

    Attributes:
        root: Absolute path that the paths of files are relative to: the folder, the file itself,
            or the folder above the first wildcard.
        pattern: The wildcards, relative to `root`; None for a plain folder or file.
    """

    root: str
    pattern: str | None = None

    @classmethod
    def of(cls, text: str) -> Place:
        """Read the option `path`.

        Raises:
            OptionError: If it is a URL of another file system.
        """
        parts = local_path(text, PATH_OPTION).parts
        plain = next((i for i, part in enumerate(parts) if has_magic(part)), len(parts))
        pattern = "/".join(parts[plain:])
        return cls(str(Path(*parts[:plain])), pattern or None)

    def absolute(self, path: str) -> str:
        """The full path of a file of this place."""
        return self.root if path == ITSELF else os.path.join(self.root, path)


def find_files(
    place: Place, *, recursive: bool = False, known: AbstractSet[str] = frozenset()
) -> list[FoundFile]:
    """Every file of a place, in no order.

    Hidden names are left out with all that is below them: those that start with "." or "_",
    unless, as in Spark, "_" starts a partition folder (``_day=2013-01-01``). Of a folder, only
    names in ``.parquet`` count; a file that is named, or matched by a pattern that ends in another
    extension, counts whatever its name.

    Args:
        place: Where to look.
        recursive: Whether to go into every sub-folder, or only into partition folders.
        known: Relative paths to leave out, which saves looking up their size and time.

    Raises:
        OptionError: If the place does not exist or may not be read, or a name is not UTF-8.
    """
    walk = _Walk(place.root, recursive, known)
    try:
        if place.pattern is not None:
            walk.add_matches(place.pattern)
        elif is_folder(place.root):
            walk.add_folder("")
        else:
            walk.add(ITSELF, os.stat)
    except PermissionError as error:
        raise OptionError(f"krishiv-parquet: may not read {error.filename}: {error}") from error
    except FileNotFoundError as error:
        raise OptionError(f"krishiv-parquet: 'path' {place.root} does not exist") from error
    return list(walk.found.values())


class _Walk:
    """One listing while it is made."""

    def __init__(self, root: str, recursive: bool, known: AbstractSet[str]) -> None:
        self._root = root
        self._recursive = recursive
        self._known = known
        self.found: dict[str, FoundFile] = {}

    def add_matches(self, pattern: str) -> None:
        os.stat(self._root)  # so that a missing folder is an error, and not an empty match
        accepts = _extension_of(pattern)
        for match in matches(self._root, pattern):
            if is_folder(os.path.join(self._root, match)):
                self.add_folder(match + "/")
            elif match.endswith(accepts):
                self._add_present(match)

    def add_folder(self, prefix: str) -> None:
        """Add what is in a folder; `prefix` is its relative path with "/" behind it, or empty."""
        folders = [prefix]
        while folders:
            prefix = folders.pop()
            try:
                entries = os.scandir(os.path.join(self._root, prefix))
            except FileNotFoundError:
                if prefix:
                    continue  # a sub-folder that went away while the listing was made
                raise
            with entries:
                folders += self._add_entries(entries, prefix)

    def _add_entries(self, entries: Iterator[os.DirEntry[str]], prefix: str) -> list[str]:
        """Add files and return folders to go into. The one loop that runs for every name."""
        folders = []
        for entry in entries:
            name = entry.name
            if name.endswith(_SUFFIX) and prefix + name in self._known:
                continue
            if is_hidden(name):
                continue
            if entry.is_dir():
                if self._recursive or "=" in name:
                    folders.append(f"{prefix}{name}/")
            elif name.endswith(_SUFFIX):
                with suppress(FileNotFoundError):
                    self._note(prefix + name, entry.stat())
        return folders

    def _add_present(self, path: str) -> None:
        if path not in self._known:
            with suppress(FileNotFoundError):
                self.add(path, lambda _: os.stat(os.path.join(self._root, path)))

    def add(self, path: str, stat: Callable[[str], os.stat_result]) -> None:
        self._note(path, stat(self._root))

    def _note(self, path: str, status: os.stat_result) -> None:
        if not path.isascii():
            _check_text(path)
        self.found[path] = FoundFile(path, status.st_size, status.st_mtime_ns)


def _check_text(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise OptionError(
            f"krishiv-parquet: the file name {os.fsencode(path)!r} is not UTF-8, so no offset can "
            "name it: rename the file"
        ) from None


def _extension_of(pattern: str) -> str:
    extension = os.path.splitext(pattern)[1]
    return extension if extension and not has_magic(extension) else _SUFFIX
