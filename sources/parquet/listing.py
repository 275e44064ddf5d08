"""Finding the files of a path: a folder, a file or a glob. Driver."""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from krishiv_spark.durable import is_folder
from krishiv_spark.errors import OptionError
from krishiv_spark.parquet.names import is_data, is_hidden
from krishiv_spark.sources.parquet.globs import has_magic, matches
from krishiv_spark.sources.parquet.places import ITSELF, FoundFile, Place

__all__ = ["Scan", "find_files", "found", "scan"]

_FIRST_OTHERS = 3


@dataclass
class Scan:
    """The names that a place has at one moment.

    Attributes:
        paths: Relative paths of the files that count as Parquet and were not known.
        known: How many known paths were met.
        others: How many files do not count by their name; hidden ones are no files at all.
        first_others: A few of these.
        tops: Folders whose partitions were all listed, relative, ending in "/", or empty for
            the place itself.
    """

    paths: list[str] = field(default_factory=list)
    known: int = 0
    others: int = 0
    first_others: list[str] = field(default_factory=list)
    tops: list[str] = field(default_factory=list)

    def add_other(self, path: str) -> None:
        """Count a file that does not count as Parquet."""
        self.others += 1
        if len(self.first_others) < _FIRST_OTHERS:
            self.first_others.append(path)


def scan(place: Place, *, recursive: bool = False, known: Container[str] = ()) -> Scan:
    """List the names of a place, in no order; the files themselves are not looked at.

    Hidden names are left out with all that is below them: those that start with "." or "_",
    unless, as in Spark, "_" starts a partition folder (``_day=2013-01-01``). See `is_data` for the
    names that count; a file that is named, or matched by a pattern that ends in another extension,
    counts whatever its name.

    Args:
        place: Where to look.
        recursive: Whether to go into every sub-folder, or only into partition folders.
        known: Relative paths to leave out.

    Raises:
        OptionError: If the place does not exist or may not be read, a name is not UTF-8, or a link
            leads to a folder that it lies in.
    """
    walk = _Walk(place.root, recursive, known)
    with _explained(place):
        if place.pattern is not None:
            walk.add_matches(place.pattern)
        elif is_folder(place.root):
            walk.add_top("")
        else:
            # For its error: what is not there is no empty place.
            os.stat(place.root)
            walk.add(ITSELF)
    # A glob with braces is several patterns, of which more than one may match a file.
    walk.scan.paths = list(dict.fromkeys(walk.scan.paths))
    return walk.scan


def found(place: Place, paths: Iterable[str]) -> Iterator[FoundFile]:
    """Yield sizes and times of files, without those that have gone meanwhile and what is no file.

    Raises:
        OptionError: If one may not be looked at.
    """
    for path in paths:
        status = None
        with _explained(place), suppress(FileNotFoundError):
            status = os.stat(place.absolute(path))
        if status is not None and stat.S_ISREG(status.st_mode):
            yield FoundFile(path, status.st_size, status.st_mtime_ns)


def find_files(place: Place, *, recursive: bool = False) -> list[FoundFile]:
    """Every file of a place, in no order. See `scan`, whose errors it raises."""
    return list(found(place, scan(place, recursive=recursive).paths))


@contextmanager
def _explained(place: Place) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise OptionError(f"krishiv-parquet: may not read {error.filename}: {error}") from error
    except FileNotFoundError as error:
        raise OptionError(f"krishiv-parquet: 'path' {place.root} does not exist") from error


class _Walk:
    """One scan while it is made."""

    def __init__(self, root: str, recursive: bool, known: Container[str]) -> None:
        self._root = root
        self._recursive = recursive
        self._known = known
        self.scan = Scan()

    def add_matches(self, pattern: str) -> None:
        os.stat(self._root)  # so that a missing folder is an error, and not an empty match
        accepts = _accepted_by(pattern)
        for match in matches(self._root, pattern):
            if match in self._known:
                self.scan.known += 1
            elif is_folder(os.path.join(self._root, match)):
                self.add_top(match + "/")
            elif match.endswith(accepts) if accepts else is_data(os.path.basename(match)):
                self.add(match)
            else:
                self.scan.add_other(match)

    def add_top(self, prefix: str) -> None:
        """Add what is in a folder; `prefix` is its relative path ending in "/", or empty."""
        self.scan.tops.append(prefix)
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
        known, met = self._known, 0
        for entry in entries:
            name = entry.name
            # First of all: nearly every name of a folder that is followed is known.
            if prefix + name in known:
                met += 1
            elif is_hidden(name):
                continue
            elif entry.is_dir():
                if self._recursive or "=" in name:
                    _check_no_loop(entry, self._root, prefix)
                    folders.append(f"{prefix}{name}/")
            elif is_data(name):
                self.add(prefix + name)
            else:
                self.scan.add_other(prefix + name)
        self.scan.known += met
        return folders

    def add(self, path: str) -> None:
        if path in self._known:
            self.scan.known += 1
            return
        if not path.isascii():
            _check_text(path)
        self.scan.paths.append(path)


def _check_no_loop(entry: os.DirEntry[str], root: str, prefix: str) -> None:
    """Refuse a link that leads back to where it is: its files would have no end of names."""
    if not entry.is_symlink():
        return
    above = [root, *(os.path.join(root, prefix[:i]) for i, c in enumerate(prefix) if c == "/")]
    target = os.stat(entry.path)
    if any(os.path.samestat(target, os.stat(folder)) for folder in above):
        raise OptionError(
            f"krishiv-parquet: {entry.path} is a link to a folder that it lies in, so its files "
            "would have no end of names: remove it, or leave it out by a glob in 'path'"
        )


def _check_text(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise OptionError(
            f"krishiv-parquet: the file name {os.fsencode(path)!r} is not UTF-8, so no offset can "
            "name it: rename the file"
        ) from None


def _accepted_by(pattern: str) -> str:
    """The extension that a pattern asks for; empty if what counts as Parquet shall count."""
    extension = os.path.splitext(pattern)[1]
    return "" if has_magic(extension) else extension
