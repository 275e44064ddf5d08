"""The epoch log: the only place that decides between drivers.

Some systems cannot make several pieces of data visible in one step. For these, an epoch is
committed when its *intent* is in this log. Entries are numbered and each number is created
exclusively, so that they have one order, and a driver that fails to append an entry reads the
reason in the next ones.

    * ``owner``: a new attempt at an epoch begins; the entry's number is its *generation*.
    * ``intent``: the epoch consists of exactly these staged things: the linearization point.
    * ``void``: the intent before came to nothing; its epoch may be staged again.
    * ``adopted``: an operator's statement of what the target holds; it overrides earlier entries.

An intent is appended only right after the owner entry of its own generation. A driver that was
believed dead therefore cannot publish after another took over; and its successor finishes an intent
that it logged before.

An owner entry contains the number of its epoch, and a digest of the offsets that Spark planned.
That is the identity of the intent after it.

Old entries are folded into a snapshot and removed, so that finding the end of the log costs the
same at epoch 10 and at epoch 1 000 000. A driver that was suspended meanwhile could create a
removed number again. Hence three rules: the snapshot is written before anything is removed; readers
ignore numbers at or below it; and a driver that has created an entry looks for a newer snapshot
*afterwards* and, if it finds one, counts as fenced.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice

from krishiv_spark.errors import (
    CommitRejected,
    CommitUnknown,
    Fenced,
    KrishivError,
    LogError,
    SinkError,
)
from krishiv_spark.messages.suggestions import restore_metadata
from krishiv_spark.offsets.entries import (
    Claim,
    Entry,
    Handover,
    State,
    entry_name,
    new_entry,
    snapshot_name,
    to_bytes,
)
from krishiv_spark.offsets.journal import (
    Journal,
    Listing,
    StoredEntries,
    check_exclusive,
    open_journal,
)
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.storage import ENVIRONMENT, Storage

__all__ = ["Claim", "Entry", "EpochLog", "State", "open_log", "remove_dead_logs"]


_FOLD_EVERY = 64
# One request after the other: all 64 at once would delay an epoch by a second.
_REMOVED_AT_ONCE = 8


class EpochLog:
    """The log of one query and one sink.

    Args:
        journal: The storage of the entries.
        fold_every: Number of entries after the newest snapshot at which another one is made.
        query: The query that owns the log; the log of another query is refused. None accepts any.
    """

    def __init__(
        self, journal: Journal, fold_every: int = _FOLD_EVERY, *, query: str | None = None
    ) -> None:
        self._journal = journal
        self._stored = StoredEntries(journal)
        self._query = query
        self._probed = False
        self._fold_every = fold_every
        self._known = State()
        self._finished = ""

    def __str__(self) -> str:
        return str(self._journal)

    def state(self) -> State:
        """Read the log, and return its state.

        Raises:
            LogError: If an entry is damaged or missing, or if the log is another query's.
        """
        state = self._stored.state(self._known)
        self._check_query(state)
        self._known = state
        return state

    def cached_state(self, generation: int) -> State:
        """Return the cached state; read the log only if the cache is older than a generation.

        Args:
            generation: Number of an owner entry.

        Raises:
            LogError: As `state`.
        """
        return self._known if self._known.owner >= generation else self.state()

    def export_state(self) -> str:
        """Return the state that this process has read, for `import_state` in another process."""
        state = self._known
        if self.is_finished(state):  # it may name thousands of files
            state = state.model_copy(update={"intent": None})
        # No canonical text: another process of this driver reads it, and it is not stored.
        return self._stored.export_state(state).model_dump_json(exclude_none=True, by_alias=True)

    def import_state(self, seen: str) -> int:
        """Continue from the state of another process of this driver, and return its generation.

        It need not be the present state: an entry after it has taken the number of the next one.
        """
        found = Handover.model_validate_json(seen)
        if found.state.nonce != self._known.nonce:
            self._known = found.state
            self._stored.import_state(found)
        return found.state.owner

    def iter_newest_first(self) -> Iterator[Entry]:
        """Yield the entries, the newest first, back to the newest snapshot.

        Raises:
            LogError: If one is damaged or of a newer version.
        """
        return (entry for _, entry in self._stored.iter_newest_first())

    def intents(self, state: State) -> Iterator[tuple[int, Entry]]:
        """Yield the valid intents, the newest first, each with its generation.

        They end at an adoption, or at entries that were folded into a snapshot.

        Args:
            state: The state of the log; its newest intent is not read again.

        Raises:
            LogError: As `iter_newest_first`.
        """
        yielded = 0
        if state.intent is not None:  # a state from another process of this driver may lack it
            yielded = state.intent_number
            yield state.intent_generation, state.intent
        voided: set[int | None] = set()
        for number, entry in self._stored.iter_newest_first():
            if entry.kind == "adopted":
                return  # an operator has decided what the target contains
            if entry.kind == "void":
                voided.add(entry.epoch)
            elif entry.kind == "intent" and entry.epoch in voided:
                voided.discard(entry.epoch)
            elif entry.kind == "intent" and number != yielded:
                yield number - 1, entry

    def begin(
        self, claim: Claim | None = None, check: Callable[[State], object] | None = None
    ) -> State:
        """Take the query over: no earlier generation can append an intent any more.

        The entry contains the newest intent that this process knows to be finished.

        Args:
            claim: The claim of the entry.
            check: Called with the state before the entry, before each attempt; it raises an error
                to refuse the entry.

        Returns:
            The state with the entry in it. Its `owner` is the new generation, higher than any
            before.

        Raises:
            LogError: If the storage claims to create exclusively, and does not.
        """
        before = self._expect_end(check)
        # A driver loses an attempt only to an entry of another driver, so that one of them always
        # succeeds.
        while True:
            if before is None:
                before = self.state()
                if check is not None:
                    check(before)
            # After the check: a driver that is refused has written nothing.
            self._probe()
            finished = before.intent_number if self.is_finished(before) else None
            # 0 stands for no intent, and None for no known one: neither is stored.
            owner = new_entry("owner", finished_intent=finished or None, claim=claim)
            if (state := self._append(before, owner)) is not None:
                return state
            before = None

    def _expect_end(self, check: Callable[[State], object] | None) -> State | None:
        """Return the state after the intent of the last known generation, without a listing.

        None if there is no such intent, or if the state is refused. The state may be older than the
        log: then the number of the next entry is taken.
        """
        known = self._known
        if known.number == 0 or known.number != known.owner:
            return None
        entry = self._stored.read_after(known)
        if entry is None or entry.kind != "intent":
            return None
        state = known.after(entry)
        try:
            if check is not None:
                check(state)
        except KrishivError:
            return None  # only the state of the whole log may refuse this driver
        return state

    def intend(
        self,
        generation: int,
        epoch: int,
        staged: object,
        offsets: PlannedOffsets | None = None,
    ) -> State:
        """Append the intent of an epoch: the linearization point of every sink with a log.

        Args:
            generation: The `owner` of what `begin` returned for this attempt.
            epoch: Number of the epoch.
            staged: The data of the epoch, as JSON.
            offsets: Spark's plan of it, if that was not known at its beginning.

        Returns:
            The state with the intent in it.

        Raises:
            Fenced: If another attempt has taken the query over.
            CommitRejected: If the log holds the epoch, or a later one, already.
            CommitUnknown: If the storage failed while the entry was being created.
        """
        before = self.cached_state(generation)  # any later entry has taken the next number
        # The owner entry must be the last one: an entry after it has ended its attempt.
        if not 0 < generation == before.owner == before.number:
            raise self._fenced_error(generation, before)
        if before.offsets is not None and before.offsets.epoch != epoch:
            raise SinkError(
                f"generation {generation} of the epoch log {self._journal} was started for "
                f"epoch {before.offsets.epoch}, and cannot publish epoch {epoch}"
            )
        if before.committed_epoch is not None and epoch <= before.committed_epoch:
            raise CommitRejected(
                f"epoch {epoch} is not published again: the epoch log {self._journal} has "
                f"{before.committed_epoch} already; call last_committed before publishing"
            )
        known = None if before.offsets is not None else offsets
        intent = new_entry("intent", epoch=epoch, staged=staged, offsets=known)
        # The linearization point: from here on the epoch is committed, even after a crash.
        state = self._decide(before, intent)
        if state is None:
            raise self._fenced_error(generation, self.state())
        return state

    def _decide(self, before: State, intent: Entry) -> State | None:
        try:
            return self._append(before, intent)
        except Exception as error:  # any error of a disk, a network or an object store
            raise CommitUnknown(
                f"epoch {intent.epoch}: the epoch log {self._journal} failed while its intent "
                f"was being written ({error})"
            ) from error

    def check_owner(self, generation: int) -> None:
        """Assert that no later generation has begun.

        Raises:
            Fenced: If one has.
        """
        state = self.state()
        if state.owner != generation:
            raise self._fenced_error(generation, state)

    def mark_finished(self, state: State) -> None:
        """Record in memory that all data of a state's newest intent is visible."""
        # The nonce identifies it, since a new log at the same place has the same numbers. It is
        # kept in memory only: the next owner entry stores it without a further write.
        self._finished = "" if state.intent is None else state.intent.nonce

    def is_finished(self, state: State) -> bool:
        """Return True if the newest intent is known to be finished, from memory or from the log."""
        if state.intent is None:
            return True
        said = state.finished_intent or 0
        return said >= state.intent_number or state.intent.nonce == self._finished

    def void(self, state: State, salvaged: object = None) -> State:
        """Declare that the newest intent of a state has failed, wholly or in part.

        Args:
            state: The present state of the log.
            salvaged: JSON of the data that is visible nevertheless; the next intent of the epoch
                names the rest.

        Raises:
            Fenced: If the log has a newer entry.
            ValueError: If the state has no intent.
        """
        if state.intent is None:
            raise ValueError(f"the epoch log {self._journal} has no intent to void")
        void = new_entry("void", epoch=state.intent.epoch, staged=salvaged)
        after = self._append(state, void)
        if after is None:
            raise self._fenced_error(state.owner, self.state())
        return after

    def adopt(self, state: State, claim: Claim) -> None:
        """Start again: the target has everything up to an epoch, and no intent is unfinished.

        Args:
            state: The state with the operator's own owner entry as its last entry.
            claim: The claim with Spark's plan of the newest epoch in the target; without a plan,
                the target has no epoch.

        Raises:
            Fenced: If the log has a newer entry.
        """
        epoch = None if claim.offsets is None else claim.offsets.epoch
        if self._append(state, new_entry("adopted", epoch=epoch, claim=claim)) is None:
            raise self._fenced_error(state.owner, self.state())

    def compact(self, state: State) -> None:
        """Keep the folder small: snapshot a state periodically, and remove covered entries.

        Removed entries are covered by the previous snapshot; each call removes a few.

        Call it when the newest intent of the state is finished; the planner does, right after its
        own owner entry.
        """
        listing = self._stored.listing
        if self._is_due(state, listing):
            listing = self._journal.list()  # there may be a newer snapshot
        before = listing.snapshot_before
        if self._is_due(state, listing):
            before = listing.newest_snapshot
            self._journal.replace(snapshot_name(state.number), to_bytes(state))
        self._remove_covered(listing, before)

    def destroy(self) -> None:
        """Remove the log of a completed job.

        Raises:
            LogError: As `state`.
        """
        # Stores remove one name after the other in the given order: entries, and the last one at
        # the end. If the process dies in between, the log has the same state; without a snapshot it
        # would have a gap.
        state = self.state()
        if state.number > 0:
            self._journal.replace(snapshot_name(state.number), to_bytes(state))
        self._journal.destroy()
        self._known = State()  # a worker runs thousands of jobs

    def _check_query(self, state: State) -> None:
        claimed = None if state.claim is None else state.claim.query
        if self._query is not None and claimed not in {None, self._query}:
            raise LogError(
                f"the epoch log {self._journal} belongs to query {claimed}, not to "
                f"{self._query}: give each query its own location with the option 'epochLog', "
                "and its own checkpoint. Or, if Spark has created a new id for the query "
                f"because a file of its checkpoint was lost, {restore_metadata(str(claimed))}"
            )

    def _probe(self) -> None:
        """Check, once for each log and process, that the storage creates exclusively."""
        if not self._probed:
            check_exclusive(self._journal)
            self._probed = True

    def _is_due(self, state: State, listing: Listing) -> bool:
        return state.number - listing.newest_snapshot >= self._fold_every

    def _remove_covered(self, listing: Listing, before: int) -> None:
        # Only what the previous snapshot covers: a concurrent listing that does not contain the
        # newest snapshot contains the previous one and every entry after it.
        covered = map(entry_name, listing.entries_up_to(before))
        older = (snapshot_name(other) for other in listing.snapshots if other < before)
        if names := list(islice(chain(covered, older), _REMOVED_AT_ONCE)):
            self._journal.remove(names)

    def _append(self, before: State, entry: Entry) -> State | None:
        """Create the entry after a state; None if its number is another driver's, or was folded."""
        data = to_bytes(entry)
        number = before.number + 1
        name = entry_name(number)
        # A store that lost its response may report that the name is taken by our own first attempt.
        created = self._journal.create(name, data) or self._journal.read(name) == data
        if not created:
            return None
        listing = self._stored.list_after(number)
        if listing is None:
            return None
        self._known = before.after(entry)
        self._stored.note_end(self._known, listing)
        return self._known

    def _fenced_error(self, generation: int, state: State) -> Fenced:
        return Fenced(
            f"generation {generation} of the query no longer owns the epoch log "
            f"{self._journal}: generation {state.owner} ({state.owner_writer}) does; two "
            "drivers run on one checkpoint; stop one of them"
        )


def remove_dead_logs(
    base: str, prefix: str, older_than_s: float, storage: Storage = ENVIRONMENT
) -> None:
    """Remove the logs of jobs whose drivers have died; they are never read again.

    Args:
        base: Path or URL of their folder.
        prefix: The beginning of their names.
        older_than_s: Age of their newest attempt in seconds, by its own clock.
        storage: Access to stores.

    Raises:
        LogError: As `open_journal`.
    """
    before = time.time() - older_than_s
    for name in open_journal(base, storage).folder.names():
        if name.startswith(prefix):
            log = EpochLog(open_journal(f"{base}/{name}", storage))
            # None in an empty log, and in those of version 0.1.0, whose age is not known.
            begun = log.state().at
            if begun is not None and begun / 1000 < before:
                log.destroy()


@functools.lru_cache(maxsize=64)
# An evicted state costs one more listing of the log, and nothing else.
def open_log(location: str, query: str | None = None, storage: Storage = ENVIRONMENT) -> EpochLog:
    """Return a query's log at a path or URL; within a process the same object, while it is in use.

    Raises:
        LogError: As `open_journal`.
    """
    return EpochLog(open_journal(location, storage), query=query)
