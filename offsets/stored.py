"""What a journal stores of an epoch log: entries, snapshots, and the state that they add up to."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TypeVar

from pydantic import ValidationError

from krishiv_spark.errors import LogError
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets.entries import Entry, Handover, State, entry_name, snapshot_name
from krishiv_spark.offsets.journal import Journal, Listing
from krishiv_spark.offsets.offset import Value

__all__ = ["StoredEntries"]

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
        """What the log says now.

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
        """A state that this process has read, as another one may take it over."""
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
        """The newest state from which to read on: one that was seen before, or a snapshot."""
        # Entries at or below the snapshot are passed over, even if they are there: a driver that
        # slept through the fold may have created them.
        snapshot = listing.newest_snapshot
        is_listed = known.number > snapshot and listing.has_entry(known.number)
        if is_listed and (self._is_seen(known, listing) or self._ends_in(known)):
            return known
        return self._parse(snapshot_name(snapshot), State) if snapshot else State()

    def _is_seen(self, state: State, listing: Listing) -> bool:
        """Whether the entry at the end of a state is in the version that was seen last."""
        version = listing.versions.get(entry_name(state.number), "")
        return bool(version) and (state.nonce, version) == self._seen

    def _ends_in(self, state: State) -> bool:
        """Whether the entry at the end of a state is there."""
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
    """A frozen value; the newest entries are read at every look, and are the same each time."""
    return form.model_validate_json(data)
