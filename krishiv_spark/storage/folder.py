"""What every store can do with the names right below a place in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

__all__ = ["MOST_BYTES", "Folder"]

MOST_BYTES = 256 * 2**20
"""Most bytes that one read takes into memory: the intent of an epoch of a million files."""


class Folder(Protocol):
    """A folder of a disk, a prefix of a bucket. It need not be there. Any process; pickles."""

    def names(self) -> Mapping[str, str]:
        """Files and folders right below, in no order; nothing if it is not there.

        Returns:
            By name, what changes when the content of the file does; empty if the store tells
            nothing of the kind.

        Raises:
            StorageError: If that cannot be found out.
        """
        ...

    def read(self, name: str, most: int = MOST_BYTES) -> bytes | None:
        """The content of a file right below; None when it is not there.

        Args:
            name: Of the file.
            most: Bytes that it may have at most.

        Raises:
            LinkError: If it is no plain file, on a disk.
            StorageError: If that cannot be found out, or it is larger.
        """
        ...

    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        """As `read`, of several; side by side where each is a request."""
        ...

    def below(self) -> Iterator[str]:
        """Files at any depth, relative, in no order; nothing if it is not there.

        Raises:
            StorageError: If that cannot be found out.
        """
        ...

    def tail(self, name: str, size: int) -> bytes | None:
        """The last bytes of a file; all of it if it has no more, None when it is not there.

        Args:
            name: Right below, or with slashes further down.
            size: How many bytes, more than 0.

        Raises:
            StorageError: If it cannot be read.
        """
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Create a file durably, exclusively, and whole. False when the name is taken.

        Raises:
            StorageError: If it cannot be written, or not exclusively.
        """
        ...

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Create or overwrite; who reads sees all of the old or all of the new.

        Args:
            name: Of the file.
            data: Its content.
            durable: Whether it outlives a power cut. If not, a disk may have the old content after
                one, none, or a damaged file. Stores keep it in any case.

        Raises:
            StorageError: If it cannot be written.
        """
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove files in the order given; what is gone already is no error.

        Raises:
            StorageError: If one cannot be removed.
        """
        ...

    def move(self, name: str, to: str) -> None:
        """Give a file another path below this folder, durably; one that is not there is no error.

        A process that dies meanwhile leaves it under one of the paths, or under both.

        Args:
            name: Its path, with slashes where it is further down.
            to: Its new one; a file that is there is replaced.

        Raises:
            LinkError: If a folder on the way is a link, on a disk.
            StorageError: If it cannot be moved.
        """
        ...

    def destroy(self) -> None:
        """Remove everything below, and the folder.

        Raises:
            StorageError: If something cannot be removed.
        """
        ...
