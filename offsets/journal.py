"""Numbered entries that can be created once: the storage under an epoch log."""

from __future__ import annotations

import contextlib
import re
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from krishiv_spark.errors import LogError, NotExclusiveError, OptionError, StorageError
from krishiv_spark.offsets.entries import entry_name, snapshot_name
from krishiv_spark.storage import ENVIRONMENT, Folder, Storage

__all__ = [
    "FolderJournal",
    "Journal",
    "Listing",
    "check_exclusive",
    "open_journal",
]

_ENTRY = re.compile(r"([0-9]{20})\.json")
_SNAPSHOT = re.compile(r"([0-9]{20})\.snapshot\.json")
_SNAPSHOT_LENGTH = len(snapshot_name(0))


@dataclass(frozen=True)
class Listing:
    """What a journal holds at one look. Other names than those of entries and snapshots count not.

    A log is listed several times in an epoch, and all but a few of a hundred names are of no
    interest then. So numbers are made of those alone that somebody asks for.

    Attributes:
        versions: By name, what changes when the content does; empty if the storage does not tell.
    """

    versions: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self.versions)

    @property
    def entries(self) -> tuple[int, ...]:
        """Numbers of all entries, ascending."""
        return tuple(_numbers(_ENTRY, self._names))

    @cached_property
    def snapshots(self) -> tuple[int, ...]:
        """Up to which numbers there are snapshots, ascending."""
        long_enough = [name for name in self._names if len(name) == _SNAPSHOT_LENGTH]
        return tuple(_numbers(_SNAPSHOT, long_enough))

    @property
    def newest_snapshot(self) -> int:
        """Its number; 0 without one."""
        return self.snapshots[-1] if self.snapshots else 0

    @property
    def snapshot_before(self) -> int:
        """The number of the snapshot before the newest; 0 without one."""
        return self.snapshots[-2] if len(self.snapshots) > 1 else 0

    def has_entry(self, number: int) -> bool:
        """Whether an entry is there."""
        return entry_name(number) in self.versions

    def entries_after(self, number: int) -> list[int]:
        """Numbers of the entries above one, ascending."""
        names = self._names
        return list(_numbers(_ENTRY, names[bisect_right(names, entry_name(number)) :]))

    def entries_up_to(self, number: int) -> Iterator[int]:
        """Numbers of the entries at or below one, ascending."""
        names = self._names
        return _numbers(_ENTRY, names[: bisect_right(names, entry_name(number))])


def _numbers(form: re.Pattern[str], names: Iterable[str]) -> Iterator[int]:
    return (int(match[1]) for match in map(form.fullmatch, names) if match is not None)


_ELSEWHERE = (
    "put the epoch log into another location with the option 'epochLog': on a POSIX file "
    "system, HDFS, or an object store that supports put-if-absent ('If-None-Match: *')"
)


class Journal(Protocol):
    """Storage of numbered entries and snapshots. An entry is whole or absent."""

    def list(self) -> Listing:
        """What is there; not atomic against concurrent writers."""
        ...

    def read(self, name: str) -> bytes | None:
        """The content under a name, or None when it is not there."""
        ...

    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        """As `read`, of several, which may be read side by side."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Create durably, exclusively. False when the name is taken, by whomever.

        Raises:
            LogError: If the storage cannot create exclusively.
        """
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Create or overwrite durably."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove in the order given; what is gone already is no error."""
        ...

    def destroy(self) -> None:
        """Remove everything, for a log that nobody will ask again."""
        ...


class FolderJournal:
    """A journal in a folder of any store.

    Args:
        folder: Only the journal's.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return repr(self.folder)

    def list(self) -> Listing:
        """See `Journal`."""
        return Listing(self.folder.names())

    def read(self, name: str) -> bytes | None:
        """See `Journal`."""
        return self.folder.read(name)

    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        """See `Journal`."""
        return self.folder.read_each(names)

    def create(self, name: str, data: bytes) -> bool:
        """See `Journal`."""
        try:
            return self.folder.create(name, data)
        except NotExclusiveError as error:
            raise LogError(f"{error}; {_ELSEWHERE}") from error

    def replace(self, name: str, data: bytes) -> None:
        """See `Journal`."""
        self.folder.replace(name, data)

    def remove(self, names: Iterable[str]) -> None:
        """See `Journal`."""
        self.folder.remove(names)

    def destroy(self) -> None:
        """See `Journal`."""
        self.folder.destroy()


def check_exclusive(journal: Journal) -> None:
    """Create one name twice: the second time has to be refused, and to change nothing.

    Stores and proxies that do not know ``If-None-Match`` pass over it, answer "created" and
    overwrite: two drivers would both publish an epoch.

    Raises:
        LogError: If it does not hold.
    """
    name = f"probe-{uuid.uuid4().hex}"
    try:
        journal.create(name, b"first")  # a lost answer, asked for again, may say "taken"
        again = journal.create(name, b"second")
        found = journal.read(name)
    except Exception:
        with contextlib.suppress(StorageError):  # it is hardly allowed then, but why is said before
            journal.remove([name])
        raise
    journal.remove([name])
    if again or found != b"first":
        raise LogError(
            f"{journal} does not create exclusively, although it reports so: an existing name "
            "could be created once more. Two drivers could publish one epoch there: "
            f"{_ELSEWHERE}"
        )


def open_journal(location: str | Path, storage: Storage = ENVIRONMENT) -> FolderJournal:
    """The journal at a path or URL.

    Args:
        location: As `Storage.folder` takes it.
        storage: How stores are reached.

    Raises:
        LogError: If the URL is of a kind that is not known.
    """
    try:
        return FolderJournal(storage.folder(str(location)))
    except OptionError as error:
        raise LogError(
            f"an epoch log cannot be stored at {location!r}: {error}; {_ELSEWHERE}"
        ) from error
