"""The contracts of a store's folders and files: small files by name, and files at any depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

__all__ = [
    "MOST_BYTES",
    "Files",
    "Folder",
    "FolderEntry",
    "Identity",
    "OpenedFile",
    "StoredEntry",
    "WalkFilter",
]

MOST_BYTES = 256 * 2**20
"""Maximum size of one read: the intent of an epoch of a million files has about this size."""


class Folder(Protocol):
    """A folder of a disk or a prefix of a bucket, which need not exist. Any process; pickles."""

    def names(self) -> Mapping[str, str]:
        """Return the files and folders directly in it, unordered; empty if it does not exist.

        Returns:
            By name, a text that changes with the content of the file; empty if the store provides
            none.

        Raises:
            StorageError: If the folder cannot be listed.
        """
        ...

    def read(self, name: str, most: int = MOST_BYTES) -> bytes | None:
        """Return the content of a file directly in it; None if it does not exist.

        Args:
            name: Name of the file.
            most: Maximum size in bytes.

        Raises:
            LinkError: If it is not a plain file, on a disk.
            StorageError: If it cannot be read, or is larger.
        """
        ...

    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        """Read several files as `read` does; in parallel if each read is a request."""
        ...

    def iter_files(self) -> Iterator[str]:
        """Yield the relative paths of files at any depth, unordered; none if it does not exist.

        Raises:
            StorageError: If a folder cannot be listed.
        """
        ...

    def tail(self, name: str, size: int) -> bytes | None:
        """Return the last bytes of a file, all if it has no more; None if it does not exist.

        Args:
            name: Name of a file directly in it, or a relative path with slashes.
            size: Number of bytes, more than 0.

        Raises:
            StorageError: If it cannot be read.
        """
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Create a file durably, exclusively and in one step; return False if the name exists.

        Raises:
            StorageError: If it cannot be written, or not exclusively.
        """
        ...

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Create or overwrite a file; readers see all of the old content or all of the new.

        Args:
            name: Name of the file.
            data: Its content.
            durable: True if the file must survive a power cut. Otherwise a disk may have the old
                content afterwards, no file, or a damaged one. Other stores always keep it.

        Raises:
            StorageError: If it cannot be written.
        """
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Delete files in the given order; a missing file is no error.

        Raises:
            StorageError: If one cannot be deleted.
        """
        ...

    def discard(self, names: Sequence[str]) -> None:
        """Delete files in any order, by one request if the store can; a missing one is no error.

        Raises:
            StorageError: If one cannot be deleted.
        """
        self.remove(names)

    def move(self, name: str, to: str) -> None:
        """Give a file another path in this folder, durably; a missing file is no error.

        A process that dies during the call leaves the file under one of the paths, or under both.

        Args:
            name: Its path, with slashes if it is in a folder below.
            to: Its new path; an existing file is replaced.

        Raises:
            LinkError: If a folder of a path is a link, on a disk.
            StorageError: If it cannot be moved.
        """
        ...

    def destroy(self) -> None:
        """Delete all files at any depth, and the folder.

        Raises:
            StorageError: If a file cannot be deleted.
        """
        ...


class Identity(NamedTuple):
    """Size and time of a file, which show that it has not changed.

    Attributes:
        size: Bytes.
        modified_ns: Time of its last modification, nanoseconds since 1970 UTC. Digits below
            `Files.resolution_ns` are not a time: they distinguish versions with the same time.
    """

    size: int
    modified_ns: int

    def __str__(self) -> str:
        return f"of {self.size} bytes, modified at {self.modified_ns} ns"


class FolderEntry(Protocol):
    """A name in a folder; `os.scandir` yields such entries."""

    @property
    def name(self) -> str:
        """The name, without its folder."""
        ...

    def is_dir(self) -> bool:
        """Return True if it is a folder."""
        ...


@dataclass(frozen=True)
class StoredEntry:
    """An entry of a store whose listings contain the identities of files.

    Attributes:
        name: The name, without its folder.
        identity: Identity of a file; None for a folder.
    """

    name: str
    identity: Identity | None = None

    def is_dir(self) -> bool:
        """Return True if it is a folder."""
        return self.identity is None


WalkFilter: TypeAlias = Callable[[str, Iterable[FolderEntry]], Sequence[str]]
"""A function that takes entries of a folder, and returns those folders among them to enter.

The folder is relative to the one where the walk starts, and ends in "/" unless it is that one; the
returned names have the same form. The entries of a folder may be passed in several calls.
"""


class OpenedFile(NamedTuple):
    """A file that is open for reading.

    Attributes:
        source: Object that PyArrow reads from.
        identity: Identity of the file when it was opened; if it changes, a read raises.
        expect: A function that takes ranges (first byte, byte after the last). Each will be read
            from its first byte to its last, interleaved with the others, and is fetched by few
            requests. None if reads are not requests.
    """

    source: Any
    identity: Identity
    expect: Callable[[Sequence[tuple[int, int]]], None] | None


class Files(Protocol):
    """The files of one store, by their whole paths or URLs. Any process, any thread; pickles."""

    resolution_ns: int
    """Resolution of the store's times, in nanoseconds."""

    is_remote: bool
    """True if each call is a request, so that several are sent in parallel."""

    def walk(self, folder: str, take: WalkFilter) -> bool:
        """Pass all entries of a folder, and of the folders that `take` enters, to `take`.

        Returns:
            False if it is a file; in a bucket, where a folder consists of its files, also if there
            are none.

        Raises:
            FileNotFoundError: If the folder does not exist.
            OptionError: If a link leads from a folder to one above it.
            StorageError: If a folder cannot be listed; on a disk, OSError.
        """
        ...

    def entries(self, folder: str) -> Iterable[FolderEntry]:
        """Return the entries directly in a folder.

        Raises:
            FileNotFoundError: If the folder does not exist; in a bucket, each folder exists.
            StorageError: As `walk`.
        """
        ...

    def entry(self, path: str) -> FolderEntry | None:
        """Return a file or folder; None if it does not exist.

        Raises:
            StorageError: If the store cannot be reached; on a disk, OSError.
        """
        ...

    def identity(self, path: str) -> Identity | None:
        """Return the current identity of a file; None if it does not exist.

        Raises:
            PermissionError: If its status may not be read.
            StorageError: If the store cannot be reached; on a disk, OSError.
        """
        ...

    def tail(self, path: str, count: int, size: int | None = None) -> tuple[Identity, bytes]:
        """Return the identity of a file, and the last bytes of it or of its first `size` bytes.

        Raises:
            FileNotFoundError: If it does not exist.
            PermissionError: If it may not be read.
            StorageError: If it cannot be read; on a disk, OSError.
        """
        ...

    def open(self, path: str, size: int | None = None) -> AbstractContextManager[OpenedFile]:
        """Open a file for reading; this and its reads raise the errors of `tail`.

        Args:
            path: Whole path or URL of the file.
            size: Its size in bytes, if a listing has returned it, which saves a request.
        """
        ...

    def touch(self, path: str) -> bool:
        """Set the time of a file to today or now; return False if it does not exist.

        Raises:
            PermissionError: If that is not allowed.
            StorageError: If it fails; on a disk, OSError.
        """
        ...

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """Apply a function that calls this store to each item; yield the results in that order."""
        ...
