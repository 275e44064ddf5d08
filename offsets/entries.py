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


# Logs exist for a long time, and drivers of earlier releases read them too. So a stored key never
# changes: a field that was renamed keeps its old key.
_KEYED = ConfigDict(validate_by_name=True)


def _key(name: str) -> Any:
    """Return a field with the default None that is stored under another name."""
    return Field(default=None, validation_alias=name, serialization_alias=name)


class Claim(Value):
    """The claim of a planner that takes a query over, for one epoch.

    Attributes:
        query: The owner of the log: the id of a streaming query or batch job.
        offsets: Spark's plan of the epoch; None for a batch job.
        target: The external system that the query writes to, by the system's own identity.
        application: The planner's Spark application, if it is known.
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
        kind: The kind of the entry.
        nonce: A random text, which distinguishes the entry from one of another driver.
        writer: Host and process that appended it, for messages.
        epoch: The epoch of an intent or a void; of an adoption, the newest that the target holds.
        staged: Of an intent, the data of the epoch; of a void, the part of it that is visible
            nevertheless. It is JSON that only the sink understands.
        finished_intent: Of an owner, the number of an intent that it knows to be finished.
        claim: Of an owner, the epoch that begins; an intent comes right after the entry of its
            owner, and belongs to the same epoch. Of an adoption, the content of the target.
        offsets: Of an intent, Spark's plan of its epoch, if its owner did not know it.
        at: The time of its creation by the writer's clock, in milliseconds since 1970, for
            messages.
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
        owner_writer: Host and process of the owner, for messages.
        intent: The newest intent that was not voided.
        intent_number: Its number; its generation is the number before.
        committed_epoch: The newest epoch with an intent that was not voided.
        committed_offsets: Spark's plan of it; None in logs of version 0.1.0.
        previous_epoch: The value of `committed_epoch` before the newest intent.
        previous_offsets: The value of `committed_offsets` then.
        claim: The claim of the newest owner; None in logs of version 0.1.0.
        at: The time of the newest owner entry.
        generations: The number of owner entries so far.
        finished_intent: Number of the newest intent that an entry says is finished.
        salvaged_epoch: The epoch of the newest void, until an intent of another epoch.
        salvaged: The part of that epoch that is visible nevertheless; it must not be staged again.
        nonce: Nonce of the last entry, which identifies the log.
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
        """Generation that logged the newest intent."""
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
            # An owner that knows no finished intent, or an older one, does not revoke a later one.
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
                    nothing_salvaged  # else it names the rest of that epoch, which may be lost too
                )
        elif entry.kind == "void":
            change |= {"intent": None, "intent_number": 0}
            # One step back is enough: between an intent and its void there are only owner entries,
            # and a second void would need its own intent.
            change |= self._commit_changes(self.previous_epoch, self.previous_offsets)
            change |= {"salvaged_epoch": entry.epoch, "salvaged": entry.staged}
        else:
            change |= {"intent": None, "intent_number": 0, "claim": entry.claim}
            change |= self._commit_changes(
                entry.epoch, None if entry.claim is None else entry.claim.offsets
            )
            # No intent is unfinished after it, so a void could not go back to one.
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
        state: The state, without the newest intent if that is finished.
        version: The version of its last entry in a listing; empty if the storage has no versions.
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
    """Return the name of an entry; names sort as numbers do."""
    return f"{number:020d}.json"


def snapshot_name(number: int) -> str:
    """Return the name of the snapshot up to a number."""
    return f"{number:020d}.snapshot.json"
