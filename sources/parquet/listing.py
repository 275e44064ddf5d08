"""Finding the files of a path: a folder, a file or a glob. Driver."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from krishiv_spark.errors import OptionError
from krishiv_spark.parquet.names import is_data, is_hidden
from krishiv_spark.sources.parquet.globs import has_magic, matches
from krishiv_spark.sources.parquet.places import ITSELF, FoundFile, Place
from krishiv_spark.storage.files import FolderEntry, Identity, StoredEntry

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
        told: What the store told of files with their names.
        tops: Folders whose partitions were all listed, relative, ending in "/", or empty for
            the place itself.
    """

    paths: list[str] = field(default_factory=list)
    known: int = 0
    others: int = 0
    first_others: list[str] = field(default_factory=list)
    told: dict[str, Identity] = field(default_factory=dict)
    tops: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether no file was met that counts."""
        return not self.paths and not self.known

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
    walk = _Walk(place, recursive, known)
    with _explained(place):
        if place.pattern is not None:
            walk.add_matches(place.pattern)
        else:
            walk.add_root()
    walk.scan.paths = list(dict.fromkeys(walk.scan.paths))
    return walk.scan


def find_files(place: Place, *, recursive: bool = False) -> list[FoundFile]:
    """Every file of a place, in no order. See `scan`, whose errors it raises."""
    names = scan(place, recursive=recursive)
    return list(found(place, names.paths, names.told))


def found(
    place: Place, paths: Iterable[str], told: Mapping[str, Identity] | None = None
) -> Iterator[FoundFile]:
    """Yield sizes and times of files, without those that have gone meanwhile and what is no file.

    Args:
        place: Where they are.
        paths: Relative to it.
        told: What a listing has told of some of them; the others are looked at.

    Raises:
        OptionError: If one may not be looked at.
    """
    told = told or {}
    for path in paths:
        identity = told.get(path)
        if identity is None:
            with _explained(place):
                identity = place.files.identity(place.absolute(path))
        if identity is not None:
            yield FoundFile(path, *identity)


@contextmanager
def _explained(place: Place) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise OptionError(
            f"krishiv-parquet: no permission to read {error.filename}: {error}"
        ) from error
    except FileNotFoundError as error:
        raise OptionError(f"krishiv-parquet: 'path' {place.root} does not exist") from error


class _Walk:
    """One scan while it is made."""

    def __init__(self, place: Place, recursive: bool, known: Container[str]) -> None:
        self._root = place.root
        self._files = place.files
        self._recursive = recursive
        self._known = known
        self.scan = Scan()

    def add_root(self) -> None:
        """Add a plain folder or file."""
        is_folder = self._walk("")
        if is_folder and not (self._files.is_remote and self.scan.is_empty):
            return
        # In a bucket, any folder is there; and below a file, our own state may be.
        entry = self._files.entry(self._root)
        if entry is not None and not entry.is_dir():
            self.scan.tops.clear()
            self.add(ITSELF, entry)
        elif not is_folder:
            self.scan.tops.append("")

    def add_matches(self, pattern: str) -> None:
        """Add what a pattern matches. On a disk, a missing folder is an error."""
        accepts = _accepted_by(pattern)
        if not self._files.is_remote:
            os.stat(self._root)
        for match, entry in matches(self._files, self._root, pattern):
            if match in self._known:
                self.scan.known += 1
            elif entry.is_dir():
                with suppress(FileNotFoundError):  # it went away while the listing was made
                    self._walk(match + "/")
            elif match.endswith(accepts) if accepts else is_data(entry.name):
                self.add(match, entry)
            else:
                self.scan.add_other(match)

    def _walk(self, top: str) -> bool:
        """Add what is in a folder; `top` is its relative path ending in "/", or empty."""

        def take(prefix: str, entries: Iterable[FolderEntry]) -> list[str]:
            return self._take(top + prefix, entries)

        is_folder = self._files.walk(os.path.join(self._root, top), take)
        if is_folder:
            self.scan.tops.append(top)
        return is_folder

    def _take(self, prefix: str, entries: Iterable[FolderEntry]) -> list[str]:
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
                    folders.append(f"{name}/")
            elif is_data(name):
                self.add(prefix + name, entry)
            else:
                self.scan.add_other(prefix + name)
        self.scan.known += met
        return folders

    def add(self, path: str, entry: FolderEntry) -> None:
        if path in self._known:
            self.scan.known += 1
            return
        if not path.isascii():
            _check_text(path)
        self.scan.paths.append(path)
        if isinstance(entry, StoredEntry) and entry.identity is not None:
            self.scan.told[path] = entry.identity


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
