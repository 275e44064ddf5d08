"""Numbered entries that can be created once: the storage under an epoch log."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from krishiv_spark.errors import LogError, NotExclusiveError, OptionError, StorageError
from krishiv_spark.storage import ENVIRONMENT, Folder, Storage

__all__ = [
    "FolderJournal",
    "Journal",
    "Listing",
    "check_exclusive",
    "open_journal",
]

# Over all names at once, each between two slashes, which no name can hold: a log is listed several
# times in an epoch, and one match for each name was an eighth of a Parquet commit.
_ENTRY = re.compile(r"/([0-9]{20})\.json(?=/)")
_SNAPSHOT = re.compile(r"/([0-9]{20})\.snapshot\.json(?=/)")


@dataclass(frozen=True)
class Listing:
    """What a journal holds at one look, ascending.

    Attributes:
        entries: Numbers of entries.
        snapshots: Up to which numbers there are snapshots.
        versions: By name, what changes when the content does, if the storage tells it.
    """

    entries: tuple[int, ...] = ()
    snapshots: tuple[int, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def newest_snapshot(self) -> int:
        """Its number; 0 without one."""
        return self.snapshots[-1] if self.snapshots else 0

    @property
    def snapshot_before(self) -> int:
        """The number of the snapshot before the newest; 0 without one."""
        return self.snapshots[-2] if len(self.snapshots) > 1 else 0

    @classmethod
    def of(
        cls, names: Iterable[str], versions: Mapping[str, str] = MappingProxyType({})
    ) -> Listing:
        """Sort names into entries and snapshots; other names are passed over."""
        text = f"/{'/'.join(names)}/"
        entries, snapshots = _ENTRY.findall(text), _SNAPSHOT.findall(text)
        numbers = tuple(sorted(map(int, entries)))
        return cls(numbers, tuple(sorted(map(int, snapshots))), versions)


_ELSEWHERE = (
    "put the epoch log elsewhere with the option 'epochLog': on a POSIX file system, HDFS, or an "
    "object store that knows put-if-absent ('If-None-Match: *')"
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
        names = self.folder.names()
        return Listing.of(names, names)

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
            f"{journal} does not create exclusively, though it says so: a name that was there "
            f"could be created once more. Two drivers could publish one epoch there: {_ELSEWHERE}"
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
            f"an epoch log cannot live at {location!r}: {error}; {_ELSEWHERE}"
        ) from error
