"""The path of a source, and the files that a listing of it finds: of a folder, a file or a glob.

Driver.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

from pydantic import AfterValidator

from krishiv_spark.durable import exists
from krishiv_spark.errors import OptionError
from krishiv_spark.parquet.layout import PATH_OPTION, SINK_LOG, is_data, is_hidden
from krishiv_spark.storage import ENVIRONMENT, Files, Identity, Storage, StoreUrl
from krishiv_spark.storage.files import FolderEntry, StoredEntry
from krishiv_spark.storage.paths import check_name_within, local_path, url_scheme

__all__ = [
    "ROOT_ITSELF",
    "FoundFile",
    "Scan",
    "SourcePath",
    "describe_files",
    "find_files",
    "has_wildcard",
    "match_glob",
    "parse_store_url",
    "scan",
]

ROOT_ITSELF = "."
"""The relative path of a file that is the source's `SourcePath.root`."""

_FIRST_OTHERS = 3


# --- the path


def check_relative_path(path: str) -> str:
    """Return the relative path of a file, if it lies below the root or is the root.

    Raises:
        ValueError: As `check_name_within`.
    """
    return path if path == ROOT_ITSELF else check_name_within(path)


RelativePath: TypeAlias = Annotated[str, AfterValidator(check_relative_path)]


class FoundFile(NamedTuple):
    """A file as it was listed.

    Attributes:
        path: Path relative to `SourcePath.root`, with "/" between folders.
        size: Bytes.
        modified_ns: Time of its last modification, nanoseconds since 1970 UTC.
    """

    path: RelativePath
    size: int
    modified_ns: int


def parse_store_url(text: str, option: str) -> StoreUrl:
    """Parse the value of an option that is a path or a URL.

    Args:
        text: The value.
        option: See `local_path`.

    Raises:
        OptionError: If it is a URL of an unknown store, or names another machine.
    """
    if url_scheme(text) in {None, "file"}:
        return StoreUrl("disk", "file", "", str(local_path(text, option)))
    try:
        return StoreUrl.parse(text)
    except OptionError as error:
        raise OptionError(f"{option} {error}") from error


@dataclass(frozen=True)
class SourcePath:
    """The location of a source's files. Made from the option's text, without I/O.

    Attributes:
        root: Absolute path or URL that the paths of files are relative to: the folder, the file,
            or the folder above the first wildcard.
        pattern: The wildcards, relative to `root`; None for a plain folder or file.
        storage: Access to its store.
    """

    root: str
    pattern: str | None = None
    storage: Storage = ENVIRONMENT

    @classmethod
    def parse(cls, text: str, storage: Storage = ENVIRONMENT) -> SourcePath:
        """Parse the option `path`.

        Args:
            text: The value of the option.
            storage: Access to its store.

        Raises:
            OptionError: As `parse_store_url`.
        """
        url = parse_store_url(text, PATH_OPTION)
        parts = Path(url.path).parts
        plain = next((i for i, part in enumerate(parts) if has_wildcard(part)), len(parts))
        root = replace(url, path=str(Path(*parts[:plain])) if plain else "")
        path = cls(str(root), "/".join(parts[plain:]) or None, storage)
        _ = path.files  # so that wrong options of the store are reported now
        return path

    @cached_property
    def files(self) -> Files:
        """Files of the store."""
        return self.storage.files(self.root)

    def present_folder(self) -> str | None:
        """Return the root if it is on a disk and exists: a machine without it does not share it."""
        return None if self.files.is_remote or not exists(self.root) else self.root

    def has_sink_log(self) -> bool:
        """Return True if the log of Spark's own file sink is here, which lists the valid files.

        The folder also has the files of failed tasks. Spark's source reads that log as well,
        except with wildcards (``FileStreamSource.sourceHasMetadata``).
        """
        if self.pattern is not None:
            return False
        with suppress(NotADirectoryError):  # the path is a file
            return bool(self.storage.folder(StoreUrl.parse(self.root) / SINK_LOG).names())
        return False

    def absolute(self, path: str) -> str:
        """Return the full path of a file."""
        return self.root if path == ROOT_ITSELF else os.path.join(self.root, path)


# --- the listing


@dataclass
class Scan:
    """The names at a path at one moment.

    Attributes:
        paths: Relative paths of the files that count as Parquet and were not known.
        known: Number of known paths that were listed.
        others: Number of files whose names do not count as Parquet. Hidden ones are not included.
        first_others: A few of these.
        identities: Identities of some `paths`, from stores that list them with the names.
        tops: Folders whose partitions were all listed, relative, ending in "/", or empty for
            the root.
    """

    paths: list[str] = field(default_factory=list)
    known: int = 0
    others: int = 0
    first_others: list[str] = field(default_factory=list)
    identities: dict[str, Identity] = field(default_factory=dict)
    tops: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """True if no relevant file was listed."""
        return not self.paths and not self.known

    def add_other(self, path: str) -> None:
        """Count a file that does not count as Parquet."""
        self.others += 1
        if len(self.first_others) < _FIRST_OTHERS:
            self.first_others.append(path)


def scan(location: SourcePath, *, recursive: bool = False, known: Container[str] = ()) -> Scan:
    """List the names at a path, in no order, without reading the status of the files.

    Hidden names are left out with everything below them: those that start with "." or "_", unless,
    as in Spark, "_" starts a partition folder (``_day=2013-01-01``). See `is_data` for the names
    that count. A file counts whatever its name if the path is that file, or if a pattern that ends
    in another extension matches it.

    Args:
        location: The path of the source.
        recursive: True to enter every sub-folder; False to enter partition folders only.
        known: Relative paths to leave out.

    Raises:
        OptionError: If the path does not exist or may not be read, a name is not UTF-8, or a link
            leads to a folder that contains it.
    """
    walk = _Walk(location, recursive, known)
    with _option_errors(location):
        if location.pattern is not None:
            walk.add_matches(location.pattern)
        else:
            walk.add_root()
    walk.scan.paths = list(dict.fromkeys(walk.scan.paths))
    return walk.scan


def find_files(location: SourcePath, *, recursive: bool = False) -> list[FoundFile]:
    """Return every file at a path, in no order. Raises the errors of `scan`."""
    names = scan(location, recursive=recursive)
    return list(describe_files(location, names.paths, names.identities))


def describe_files(
    location: SourcePath, paths: Iterable[str], identities: Mapping[str, Identity] | None = None
) -> Iterator[FoundFile]:
    """Yield files with their sizes and times; omit paths that are deleted or not files.

    Args:
        location: The path that contains the files.
        paths: Paths relative to it.
        identities: Identities from a listing. The status of other files is read.

    Raises:
        OptionError: If the status of a file may not be read.
    """
    identities = identities or {}
    for path in paths:
        identity = identities.get(path)
        if identity is None:
            with _option_errors(location):
                identity = location.files.identity(location.absolute(path))
        if identity is not None:
            yield FoundFile(path, *identity)


@contextmanager
def _option_errors(location: SourcePath) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise OptionError(
            f"krishiv-parquet: no permission to read {error.filename}: {error}"
        ) from error
    except FileNotFoundError as error:
        raise OptionError(f"krishiv-parquet: 'path' {location.root} does not exist") from error


class _Walk:
    """A scan in progress."""

    def __init__(self, location: SourcePath, recursive: bool, known: Container[str]) -> None:
        self._root = location.root
        self._files = location.files
        self._recursive = recursive
        self._known = known
        self.scan = Scan()

    def add_root(self) -> None:
        """Add a plain folder or file."""
        is_folder = self._walk("")
        if is_folder and not (self._files.is_remote and self.scan.is_empty):
            return
        # In a bucket, every folder exists; and below a file, the source's state may be.
        entry = self._files.entry(self._root)
        if entry is not None and not entry.is_dir():
            self.scan.tops.clear()
            self.add(ROOT_ITSELF, entry)
        elif not is_folder:
            self.scan.tops.append("")

    def add_matches(self, pattern: str) -> None:
        """Add the files that a pattern matches. On a disk, a missing folder is an error."""
        extension = _literal_extension(pattern)
        if not self._files.is_remote:
            os.stat(self._root)
        for match, entry in match_glob(self._files, self._root, pattern):
            if match in self._known:
                self.scan.known += 1
            elif entry.is_dir():
                with suppress(FileNotFoundError):  # deleted while the listing was made
                    self._walk(match + "/")
            elif match.endswith(extension) if extension else is_data(entry.name):
                self.add(match, entry)
            else:
                self.scan.add_other(match)

    def _walk(self, top: str) -> bool:
        """Add the content of a folder; `top` is its relative path ending in "/", or empty."""

        def take(prefix: str, entries: Iterable[FolderEntry]) -> list[str]:
            return self._take(top + prefix, entries)

        is_folder = self._files.walk(os.path.join(self._root, top), take)
        if is_folder:
            self.scan.tops.append(top)
        return is_folder

    def _take(self, prefix: str, entries: Iterable[FolderEntry]) -> list[str]:
        """Add files and return the folders to enter. The one loop that runs for every name."""
        folders = []
        known, listed = self._known, 0
        for entry in entries:
            name = entry.name
            # This test is first, since nearly every name of a folder that is followed is known.
            if prefix + name in known:
                listed += 1
            elif is_hidden(name):
                continue
            elif entry.is_dir():
                if self._recursive or "=" in name:
                    folders.append(f"{name}/")
            elif is_data(name):
                self.add(prefix + name, entry)
            else:
                self.scan.add_other(prefix + name)
        self.scan.known += listed
        return folders

    def add(self, path: str, entry: FolderEntry) -> None:
        if path in self._known:
            self.scan.known += 1
            return
        if not path.isascii():
            _check_utf8(path)
        self.scan.paths.append(path)
        if isinstance(entry, StoredEntry) and entry.identity is not None:
            self.scan.identities[path] = entry.identity


def _check_utf8(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise OptionError(
            f"krishiv-parquet: the file name {os.fsencode(path)!r} is not UTF-8, so no offset can "
            "name it: rename the file"
        ) from None


def _literal_extension(pattern: str) -> str:
    """Return the extension that a pattern requires; empty if names are to count by `is_data`."""
    extension = os.path.splitext(pattern)[1]
    return "" if has_wildcard(extension) else extension


# --- globs: `glob` ignores folders that it cannot list, so that a batch would miss their rows

_WILDCARD = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")


def has_wildcard(text: str) -> bool:
    """Return True if a text is a pattern, not a plain name."""
    return _WILDCARD.search(text) is not None


def match_glob(files: Files, root: str, pattern: str) -> Iterator[tuple[str, FolderEntry]]:
    """Yield the files and folders that match, by relative paths, in no order, some twice.

    Hidden names are left out with everything below them, and so is what is deleted meanwhile.

    Args:
        files: Files of the store.
        root: The folder that paths are relative to.
        pattern: Names with "/" between them, as for `glob` without "**", and with Hadoop's
            ``{a,b}``.

    Raises:
        OSError: If a folder that the pattern leads through cannot be listed.
        StorageError: Likewise, if it is not on a disk.
    """
    for one in _expand_braces(pattern):
        names = [name for name in one.split("/") if name]
        if names:
            yield from _match_below(files, root, "", names)


def _match_below(
    files: Files, root: str, prefix: str, names: Sequence[str]
) -> Iterator[tuple[str, FolderEntry]]:
    name, *rest = names
    find = _list_matches if has_wildcard(name) else _find_name
    for entry in find(files, os.path.join(root, prefix), name, is_folder=bool(rest)):
        if rest:
            yield from _match_below(files, root, f"{prefix}{entry.name}/", rest)
        else:
            yield prefix + entry.name, entry


def _list_matches(files: Files, folder: str, pattern: str, *, is_folder: bool) -> list[FolderEntry]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return [
            entry
            for entry in files.entries(folder)
            if fnmatchcase(entry.name, pattern)
            and not is_hidden(entry.name)
            and (not is_folder or entry.is_dir())
        ]
    return []


def _find_name(files: Files, folder: str, name: str, *, is_folder: bool) -> list[FolderEntry]:
    if is_hidden(name):
        return []
    if is_folder:  # its own listing shows whether it exists
        return [StoredEntry(name)]
    entry = files.entry(os.path.join(folder, name))
    return [] if entry is None else [entry]


def _expand_braces(pattern: str) -> list[str]:
    """Return several patterns for Hadoop's ``{a,b}``, which Python's patterns do not know."""
    braces = _BRACES.search(pattern)
    if braces is None:
        return [pattern]
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    return [
        whole
        for choice in braces[1].split(",")
        for whole in _expand_braces(before + choice + after)
    ]
