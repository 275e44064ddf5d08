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
from typing import NamedTuple, Protocol, TypeVar

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

    A log is listed several times in an epoch, and only a few of a hundred names matter then. So
    names are parsed into numbers only on demand.

    Attributes:
        versions: By name, a version that changes with the content; empty if the storage has none.
    """

    versions: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self.versions)

    @property
    def entries(self) -> tuple[int, ...]:
        """Return the numbers of all entries, ascending."""
        return tuple(_numbers(_ENTRY, self._names))

    @cached_property
    def snapshots(self) -> tuple[int, ...]:
        """Return the last numbers of all snapshots, ascending."""
        long_enough = [name for name in self._names if len(name) == _SNAPSHOT_LENGTH]
        return tuple(_numbers(_SNAPSHOT, long_enough))

    @property
    def newest_snapshot(self) -> int:
        """Return the number of the newest snapshot; 0 without one."""
        return self.snapshots[-1] if self.snapshots else 0

    @property
    def snapshot_before(self) -> int:
        """Return the number of the snapshot before the newest; 0 without one."""
        return self.snapshots[-2] if len(self.snapshots) > 1 else 0

    def has_entry(self, number: int) -> bool:
        """Return True if an entry exists."""
        return entry_name(number) in self.versions

    def entries_after(self, number: int) -> list[int]:
        """Return the numbers of the entries above one, ascending."""
        names = self._names
        return list(_numbers(_ENTRY, names[bisect_right(names, entry_name(number)) :]))

    def entries_up_to(self, number: int) -> Iterator[int]:
        """Return the numbers of the entries at or below one, ascending."""
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
        """Read several names, possibly at the same time."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Create an entry durably and exclusively; return False if it exists already.

        Raises:
            LogError: If the storage cannot create exclusively.
        """
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Create or overwrite an entry durably."""
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Remove names in any order; a missing name is no error."""
        ...

    def destroy(self) -> None:
        """Remove a log that is never read again."""
        ...


class FolderJournal:
    """A journal in a folder of any store.

    Args:
        folder: A folder with nothing but the journal.
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

    def remove(self, names: Sequence[str]) -> None:
        """See `Journal`."""
        self.folder.discard(names)

    def destroy(self) -> None:
        """See `Journal`."""
        self.folder.destroy()


def check_exclusive(journal: Journal) -> None:
    """Create one name twice, and check that the second attempt is refused without a change.

    Stores and proxies that do not support ``If-None-Match`` ignore it, respond "created" and
    overwrite: two drivers would both publish an epoch.

    Raises:
        LogError: If the second attempt succeeds.
    """
    name = f"probe-{uuid.uuid4().hex}"
    try:
        # After a lost response, the repeated request may report "taken".
        journal.create(name, b"first")
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
        location: A path or URL, as for `Storage.folder`.
        storage: Access to stores.

    Raises:
        LogError: If the kind of the URL is not known.
    """
    try:
        return FolderJournal(storage.folder(str(location)))
    except OptionError as error:
        raise LogError(
            f"an epoch log cannot be stored at {location!r}: {error}; {_ELSEWHERE}"
        ) from error


ValueT = TypeVar("ValueT", bound=Value)

# A read fails if another driver appends or folds meanwhile, and a log folds once in 64 entries:
# five failures in a row show damage.
_LOOKS = 5


class _End(NamedTuple):
    """The last entry that a process has read or created.

    Attributes:
        number: Its number; 0 before the first one.
        nonce: Its nonce.
        version: Its version in a listing; empty if the storage has no versions.
    """

    number: int = 0
    nonce: str = ""
    version: str = ""


class StoredEntries:
    """Reader of a log, to which other drivers may append meanwhile.

    Args:
        journal: The storage of the entries.

    Attributes:
        listing: The last listing.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.listing = Listing()
        self._end = _End()

    def state(self, known: State) -> State:
        """Return the current content of the log.

        Args:
            known: An earlier state. Only later entries are read if its last entry still exists: a
                log can be deleted and started again.

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
        """Store the version that a listing shows for the last entry of a state."""
        self.listing = listing
        version = listing.versions.get(entry_name(state.number), "")
        self._end = _End(state.number, state.nonce, version)

    def export_state(self, state: State) -> Handover:
        """Return a state that this process has read, in the form for another process."""
        is_end = (state.number, state.nonce) == self._end[:2]
        return Handover(state=state, version=self._end.version if is_end else "")

    def import_state(self, seen: Handover) -> None:
        """Load the state of another process, with the version of its last entry."""
        self._end = _End(seen.state.number, seen.state.nonce, seen.version)

    def read_after(self, state: State) -> Entry | None:
        """Return the entry after a state; None if there is none. A request, without a listing.

        Raises:
            LogError: If it is damaged or of a newer version.
        """
        return self._entry(state.number + 1)

    def list_after(self, number: int) -> Listing | None:
        """Return a listing after the creation of an entry that continues the log.

        It is None if the number was free only because an earlier entry of it had been folded: a
        snapshot is written before the entries that it covers are removed, so there is one at or
        above the number.

        Raises:
            LogError: If entries before it were removed or replaced.
        """
        # A listing beside a fold of another driver may have neither a removed entry nor the
        # snapshot that covers it, but the next listing has the snapshot.
        for _ in range(_LOOKS):
            listing = self._journal.list()
            if listing.newest_snapshot >= number:
                return None
            if self._is_continued(number, listing):
                return listing
        raise LogError(
            f"entries before {entry_name(number)} of the epoch log {self._journal} were removed or "
            "replaced while the query ran: restart it, so that the log is compared with the "
            "checkpoint and the target"
        )

    def _is_continued(self, number: int, listing: Listing) -> bool:
        newest, before, end = listing.newest_snapshot, number - 1, self._end
        is_next = before == newest or listing.has_entry(before)
        return is_next and (end.number <= newest or self._has(end.number, end.nonce, listing))

    def iter_newest_first(self) -> Iterator[tuple[int, Entry]]:
        """Yield the entries that are not folded, with their numbers, the newest first.

        Raises:
            LogError: If one is damaged or of a newer version.
        """
        later = None
        for number in reversed(self._journal.list().entries):
            # Entries below a gap were created by a driver that was suspended during folds: they are
            # void.
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
            return None  # another driver folds or appends meanwhile: list again
        names = [entry_name(number) for number in later]
        for name, data in zip(names, self._journal.read_each(names), strict=True):
            if data is None:
                return None
            state = state.after(self._parse(name, data, Entry))
        return state

    def _base(self, listing: Listing, known: State) -> State | None:
        """Return the newest known state, from the cache or a snapshot."""
        # Entries at or below the snapshot are ignored, even if they exist: a driver that was
        # suspended during the fold may have created them.
        snapshot = listing.newest_snapshot
        if known.number > snapshot and self._has(known.number, known.nonce, listing):
            return known
        return self._read_value(snapshot_name(snapshot), State) if snapshot else State()

    def _has(self, number: int, nonce: str, listing: Listing) -> bool:
        """Return True if a listing contains an entry, and it has a nonce."""
        # With the number alone, a new log at the same place would look like the old one.
        version = listing.versions.get(entry_name(number))
        if version is None:
            return False
        if version and self._end == (number, nonce, version):
            return True
        entry = self._entry(number)
        return entry is not None and entry.nonce == nonce

    def _entry(self, number: int) -> Entry | None:
        return self._read_value(entry_name(number), Entry)

    def _read_value(self, name: str, form: type[ValueT]) -> ValueT | None:
        data = self._journal.read(name)
        return None if data is None else self._parse(name, data, form)

    def _parse(self, name: str, data: bytes, form: type[ValueT]) -> ValueT:
        try:
            found: ValueT = _parse_cached(form, data)
        except ValidationError as error:
            raise LogError(
                f"entry {name} of the epoch log {self._journal} is damaged or of a newer version "
                f"({error.error_count()} problems, first: {error.errors()[0]['msg']}); restore it "
                "from a backup, or upgrade krishiv-spark"
            ) from error
        return found


@functools.lru_cache(maxsize=8)
def _parse_cached(form: type[ValueT], data: bytes) -> ValueT:
    """Return a frozen value, cached, since the newest entries are read repeatedly."""
    return form.model_validate_json(data)
