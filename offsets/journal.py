"""The storage of an epoch log: numbered entries that can be created once, and their readers."""

from __future__ import annotations

import contextlib
import functools
import re
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import ValidationError

from krishiv_spark.errors import LogError, NotExclusiveError, OptionError, StorageError
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets.entries import Entry, Handover, State, entry_name, snapshot_name
from krishiv_spark.offsets.offset import Value
from krishiv_spark.storage import ENVIRONMENT, Folder, Storage

__all__ = [
    "FolderJournal",
    "Journal",
    "Listing",
    "StoredEntries",
    "check_exclusive",
    "open_journal",
]


_ENTRY = re.compile(r"([0-9]{20})\.json")
_SNAPSHOT = re.compile(r"([0-9]{20})\.snapshot\.json")
_SNAPSHOT_LENGTH = len(snapshot_name(0))


@dataclass(frozen=True)
class Listing:
    """The result of listing a journal. Names other than those of entries and snapshots are ignored.

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
        """Return True if an entry exists."""
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
        """List the names; not atomic against concurrent writers."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content under a name, or None if there is none."""
        ...

    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        """As `read`, of several, which may be read side by side."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Create durably, exclusively. Return False if the name is taken, by any driver.

        Raises:
            LogError: If the storage cannot create exclusively.
        """
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Create or overwrite durably."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove in the order given; a name that is removed already is no error."""
        ...

    def destroy(self) -> None:
        """Remove everything, of a log that is never read again."""
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
    """Return the journal at a path or URL.

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


ValueT = TypeVar("ValueT", bound=Value)

# A look fails when somebody appends or folds meanwhile, and a log folds once in 64 entries: five
# failures in a row are damage.
_LOOKS = 5


class StoredEntries:
    """Reads a log, however many drivers append and fold meanwhile.

    Args:
        journal: Where the entries are.

    Attributes:
        listing: What it has shown last.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.listing = Listing()
        self._seen = ("", "")

    def state(self, known: State) -> State:
        """Return the current content of the log.

        Args:
            known: What it said before. It is read on from there, if the entry at its end is still
                the same one: a log can be deleted and begun anew.

        Raises:
            LogError: If an entry is damaged or missing.
        """
        for _ in range(_LOOKS):
            listing = self._journal.list()
            state = self._look(listing, known)
            if state is not None:
                self.note_end(state, listing)
                return state
        raise LogError(
            f"the epoch log {self._journal} has a gap: an entry before its end is missing; restore "
            f"it from a backup, or move the folder away and start with {NEW_CHECKPOINT}"
        )

    def note_end(self, state: State, listing: Listing) -> None:
        """Remember in which version a listing shows the entry at the end of a state."""
        self.listing = listing
        self._seen = (state.nonce, listing.versions.get(entry_name(state.number), ""))

    def export_state(self, state: State) -> Handover:
        """Return a state that this process has read, in the form for another process."""
        version = self._seen[1] if self._seen[0] == state.nonce else ""
        return Handover(state=state, version=version)

    def import_state(self, seen: Handover) -> None:
        """Know the entry at the end of a state again, as who has seen it does."""
        self._seen = (seen.state.nonce, seen.version)

    def iter_newest_first(self) -> Iterator[tuple[int, Entry]]:
        """Yield the entries with their numbers, the newest first, as far as they are not folded.

        Raises:
            LogError: If one is damaged or of a newer version.
        """
        later = None
        for number in reversed(self._journal.list().entries):
            # Below a gap lies what a driver has created that slept through folds: it is void.
            entry = self._entry(number) if later in {None, number + 1} else None
            if entry is None:
                return  # folded meanwhile
            yield number, entry
            later = number

    def _look(self, listing: Listing, known: State) -> State | None:
        state = self._base(listing, known)
        if state is None:
            return None
        later = listing.entries_after(state.number)
        if later != list(range(state.number + 1, state.number + 1 + len(later))):
            return None  # somebody folds or appends while we look: look again
        names = [entry_name(number) for number in later]
        for name, data in zip(names, self._journal.read_each(names), strict=True):
            if data is None:
                return None
            state = state.after(self._parsed(name, data, Entry))
        return state

    def _base(self, listing: Listing, known: State) -> State | None:
        """Return the newest state from which to read on: a cached one, or a snapshot."""
        # Entries at or below the snapshot are passed over, even if they are there: a driver that
        # slept through the fold may have created them.
        snapshot = listing.newest_snapshot
        is_listed = known.number > snapshot and listing.has_entry(known.number)
        if is_listed and (self._is_seen(known, listing) or self._ends_in(known)):
            return known
        return self._parse(snapshot_name(snapshot), State) if snapshot else State()

    def _is_seen(self, state: State, listing: Listing) -> bool:
        """Return True if the entry at the end of a state has the version that was read last."""
        version = listing.versions.get(entry_name(state.number), "")
        return bool(version) and (state.nonce, version) == self._seen

    def _ends_in(self, state: State) -> bool:
        """Return True if the entry at the end of a state exists."""
        # The number alone would take a log that was begun anew for the old one.
        entry = self._entry(state.number)
        return entry is not None and entry.nonce == state.nonce

    def _entry(self, number: int) -> Entry | None:
        return self._parse(entry_name(number), Entry)

    def _parse(self, name: str, form: type[ValueT]) -> ValueT | None:
        data = self._journal.read(name)
        return None if data is None else self._parsed(name, data, form)

    def _parsed(self, name: str, data: bytes, form: type[ValueT]) -> ValueT:
        try:
            found: ValueT = _parsed(form, data)
        except ValidationError as error:
            raise LogError(
                f"entry {name} of the epoch log {self._journal} is damaged or of a newer version "
                f"({error.error_count()} problems, first: {error.errors()[0]['msg']}); restore it "
                "from a backup, or upgrade krishiv-spark"
            ) from error
        return found


@functools.lru_cache(maxsize=8)
def _parsed(form: type[ValueT], data: bytes) -> ValueT:
    """Return a frozen value, cached, since the newest entries are read repeatedly."""
    return form.model_validate_json(data)
