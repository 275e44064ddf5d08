"""What every store can do with the files below a place in it, at any depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

__all__ = ["Files", "FolderEntry", "Identity", "OpenedFile", "StoredEntry", "Take"]


class Identity(NamedTuple):
    """What shows that a file has not changed.

    Attributes:
        size: Bytes.
        modified_ns: Time of its last modification, nanoseconds since 1970 UTC. What is finer than
            `Files.resolution_ns` is no time: it tells versions apart that share one.
    """

    size: int
    modified_ns: int

    def __str__(self) -> str:
        return f"of {self.size} bytes, modified at {self.modified_ns} ns"


class FolderEntry(Protocol):
    """A name in a folder; what `os.scandir` yields is one."""

    @property
    def name(self) -> str:
        """Without its folder."""
        ...

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        ...


@dataclass(frozen=True)
class StoredEntry:
    """An entry of a store that tells with the names of files what they are.

    Attributes:
        name: Without its folder.
        identity: Of a file; None for a folder.
    """

    name: str
    identity: Identity | None = None

    def is_dir(self) -> bool:
        """See `FolderEntry`."""
        return self.identity is None


Take: TypeAlias = Callable[[str, Iterable[FolderEntry]], Sequence[str]]
"""Takes entries of a folder, and says which of the folders among them are gone into.

The folder is relative to the one that is walked through, and ends in "/" unless it is that one; so
do the names in the answer. A folder's entries may come in several calls.
"""


class OpenedFile(NamedTuple):
    """A file that is open for reading.

    Attributes:
        source: What PyArrow reads from.
        identity: What it was when it was opened; if it becomes another, a read raises.
        expect: Takes ranges, as (first byte, byte after the last), of which each will be read from
            its beginning to its end, side by side with the others: where a read is a request,
            they are fetched in few of them. None where it is not.
    """

    source: Any
    identity: Identity
    expect: Callable[[Sequence[tuple[int, int]]], None] | None


class Files(Protocol):
    """The files of one store, by their whole paths or URLs. Any process, any thread; pickles.

    Attributes:
        resolution_ns: How fine its times are.
        is_remote: Whether each question is a request, so that several are asked side by side.
    """

    @property
    def resolution_ns(self) -> int:
        """See `Files`."""
        ...

    @property
    def is_remote(self) -> bool:
        """See `Files`."""
        ...

    def walk(self, folder: str, take: Take) -> bool:
        """Hand over everything in a folder, and in those below it that `take` goes into.

        Returns:
            False if it is a file, or, in a bucket, where a folder is no more than what is in it,
            if there is nothing.

        Raises:
            FileNotFoundError: If there is no such folder.
            OptionError: If a link leads from a folder to one above it.
            StorageError: If something cannot be listed; on a disk, OSError.
        """
        ...

    def entries(self, folder: str) -> Iterable[FolderEntry]:
        """What is right in a folder.

        Raises:
            FileNotFoundError: If there is no such folder; a bucket has any.
            StorageError: As `walk`.
        """
        ...

    def entry(self, path: str) -> FolderEntry | None:
        """A file or folder; None if there is none.

        Raises:
            StorageError: If that cannot be found out; on a disk, OSError.
        """
        ...

    def identity(self, path: str) -> Identity | None:
        """What a file is now; None if there is none.

        Raises:
            PermissionError: If it may not be looked at.
            StorageError: If that cannot be found out; on a disk, OSError.
        """
        ...

    def tail(self, path: str, count: int, size: int | None = None) -> tuple[Identity, bytes]:
        """What a file is now, and the last so many bytes of it, or of its first `size` bytes.

        Raises:
            FileNotFoundError: If there is none.
            PermissionError: If it may not be read.
            StorageError: If it cannot be read; on a disk, OSError.
        """
        ...

    def opened(self, path: str, size: int | None = None) -> AbstractContextManager[OpenedFile]:
        """Open a file for reading; raises like `tail`, and so do reads.

        Args:
            path: Of the file.
            size: How many bytes it has, as far as is known; saves a request.
        """
        ...

    def touch(self, path: str) -> bool:
        """Give a file a time of today, or of now; False if there is none.

        Raises:
            PermissionError: If that is not allowed.
            StorageError: If it fails; on a disk, OSError.
        """
        ...

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """What a function makes of each item, in their order, where it asks this store."""
        ...
