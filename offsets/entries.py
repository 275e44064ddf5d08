"""The entries of an epoch log, and the state that they add up to."""

from __future__ import annotations

import os
import platform
import time
import uuid
from typing import Any, Literal

from pydantic import ConfigDict, Field

from krishiv_spark.offsets.offset import Value, canonical_json
from krishiv_spark.offsets.planned import PlannedOffsets

__all__ = [
    "Claim",
    "Entry",
    "Handover",
    "State",
    "entry_name",
    "new_entry",
    "snapshot_name",
    "to_bytes",
]


# Keys stand for ever in logs that are there, which drivers of earlier releases read beside ours: a
# field that has a better name since keeps its key.
_KEYED = ConfigDict(validate_by_name=True)


def _key(name: str) -> Any:
    """Return a field that is None without a value, and is stored under another name."""
    return Field(default=None, validation_alias=name, serialization_alias=name)


class Claim(Value):
    """The claim of a planner that takes a query over, for one epoch.

    Attributes:
        query: Whose log this is: the id of a streaming query or batch job.
        offsets: What Spark planned for the epoch; None for a batch job.
        target: Which external system the query writes to, by an identity of that system's own.
        application: Which Spark application the planner belongs to, if that is known.
    """

    query: str
    offsets: PlannedOffsets | None = None
    target: str | None = None
    application: str | None = None

    def of_nobody(self) -> Claim:
        """Return the same claim without a Spark application."""
        return self.model_copy(update={"application": None})


class Entry(Value):
    """One entry of the log.

    Attributes:
        kind: What it says.
        nonce: Random, so that an entry can be told from one that somebody else put there.
        writer: Host and process that appended it, for people.
        epoch: The epoch of an intent or a void; of an adoption, the newest that the target holds.
        staged: Of an intent, what the epoch consists of; of a void, what of that is visible all
            the same. JSON that only the sink understands.
        finished_intent: Of an owner, the number of an intent that it knows to be finished.
        claim: Of an owner, for which epoch it was made; an intent stands right after the entry of
            its owner, and is an intent of that epoch. Of an adoption, what the target holds.
        offsets: Of an intent, what Spark planned for its epoch, where its owner could not know.
        at: When it was made by its writer's clock, milliseconds since 1970, for people.
    """

    model_config = _KEYED

    v: Literal[1] = 1
    kind: Literal["owner", "intent", "void", "adopted"]
    nonce: str
    writer: str
    epoch: int | None = None
    staged: Any = None
    finished_intent: int | None = _key("settled")
    claim: Claim | None = None
    offsets: PlannedOffsets | None = None
    at: int | None = None


class State(Value):
    """The log up to a number, as one value; the content of a snapshot.

    Attributes:
        number: Number of the last entry; 0 for an empty log.
        owner: Number of the newest owner entry: the generation that may append an intent.
        owner_writer: Who that is, for people.
        intent: The newest intent that was not voided.
        intent_number: Its number; its generation is the number before.
        committed_epoch: The newest epoch with an intent that was not voided.
        committed_offsets: What Spark had planned for it; None in logs of version 0.1.0.
        previous_epoch: What `committed_epoch` was before the newest intent.
        previous_offsets: What `committed_offsets` was.
        claim: What the newest owner said of itself; None in logs of version 0.1.0.
        at: When the newest owner entry was made.
        generations: How many owner entries there were.
        finished_intent: Number of the newest intent that an entry says is finished.
        salvaged_epoch: The epoch of the newest void, until an intent of another epoch.
        salvaged: What of that epoch is visible all the same; it must not be staged again.
        nonce: Nonce of the last entry, by which a log is known again.
    """

    model_config = _KEYED

    v: Literal[1] = 1
    number: int = 0
    owner: int = 0
    owner_writer: str = ""
    intent: Entry | None = None
    intent_number: int = 0
    committed_epoch: int | None = _key("held")
    committed_offsets: PlannedOffsets | None = _key("held_offsets")
    previous_epoch: int | None = _key("held_before")
    previous_offsets: PlannedOffsets | None = _key("held_before_offsets")
    claim: Claim | None = None
    at: int | None = None
    generations: int = Field(default=0, validation_alias="begun", serialization_alias="begun")
    finished_intent: int | None = _key("settled")
    salvaged_epoch: int | None = _key("kept_epoch")
    salvaged: Any = _key("kept")
    nonce: str = ""

    @property
    def intent_generation(self) -> int:
        """The generation that logged the newest intent."""
        return self.intent_number - 1

    @property
    def offsets(self) -> PlannedOffsets | None:
        """Return Spark's plan of the epoch that the newest owner began."""
        return None if self.claim is None else self.claim.offsets

    def after(self, entry: Entry) -> State:
        """Return the state after one more entry."""
        number = self.number + 1
        change: dict[str, Any] = {"number": number, "nonce": entry.nonce}
        nothing_salvaged = {"salvaged_epoch": None, "salvaged": None}
        if entry.kind == "owner":
            # An owner that knows of none, or of an older one, takes nothing back.
            finished = max(self.finished_intent or 0, entry.finished_intent or 0)
            change |= {"owner": number, "owner_writer": entry.writer, "at": entry.at}
            change |= {"generations": self.generations + 1, "claim": entry.claim}
            change |= {"finished_intent": finished or None}
        elif entry.kind == "intent":
            change |= {"intent": entry, "intent_number": number}
            change |= self._commit_changes(entry.epoch, entry.offsets or self.offsets)
            change |= self._previous(self.committed_epoch, self.committed_offsets)
            if entry.epoch != self.salvaged_epoch:
                change |= (
                    nothing_salvaged  # else it names the rest of that epoch, and may be lost too
                )
        elif entry.kind == "void":
            change |= {"intent": None, "intent_number": 0}
            # One step back is enough: between an intent and its void are owner entries only, and a
            # second void would need an intent of its own.
            change |= self._commit_changes(self.previous_epoch, self.previous_offsets)
            change |= {"salvaged_epoch": entry.epoch, "salvaged": entry.staged}
        else:
            change |= {"intent": None, "intent_number": 0, "claim": entry.claim}
            change |= self._commit_changes(
                entry.epoch, None if entry.claim is None else entry.claim.offsets
            )
            # No intent is open after it, so there is nothing that a void could go back to.
            change |= self._previous(None, None) | nothing_salvaged
        return self.model_copy(update=change)

    @staticmethod
    def _commit_changes(epoch: int | None, offsets: PlannedOffsets | None) -> dict[str, Any]:
        return {"committed_epoch": epoch, "committed_offsets": offsets}

    @staticmethod
    def _previous(epoch: int | None, offsets: PlannedOffsets | None) -> dict[str, Any]:
        return {"previous_epoch": epoch, "previous_offsets": offsets}


class Handover(Value):
    """The state of a log that one process of a driver has read, for another process.

    Attributes:
        state: What the log said. Without the newest intent, if that is finished.
        version: In which version the entry at its end was listed; empty if the storage does not
            tell.
    """

    state: State
    version: str


def new_entry(kind: Literal["owner", "intent", "void", "adopted"], **fields: Any) -> Entry:
    """Return an entry of this process, with the current time and a new nonce."""
    writer = f"{platform.node()}:{os.getpid()}"
    at = time.time_ns() // 1_000_000
    return Entry(kind=kind, nonce=uuid.uuid4().hex, writer=writer, at=at, **fields)


def to_bytes(value: Value) -> bytes:
    """Return an entry or a state in its stored form."""
    return canonical_json(value.model_dump(mode="json", exclude_none=True, by_alias=True)).encode()


def entry_name(number: int) -> str:
    """Under which name an entry is stored; names sort as numbers do."""
    return f"{number:020d}.json"


def snapshot_name(number: int) -> str:
    """Under which name the state up to a number is stored."""
    return f"{number:020d}.snapshot.json"
