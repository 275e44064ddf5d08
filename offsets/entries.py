"""What stands in an epoch log: its entries, and the state that they add up to."""

from __future__ import annotations

import os
import platform
import time
import uuid
from typing import Any, Literal

from krishiv_spark.offsets.offset import Value, canonical_json
from krishiv_spark.offsets.planned import PlannedOffsets

__all__ = ["Claim", "Entry", "State", "entry_name", "new_entry", "snapshot_name", "to_bytes"]


class Claim(Value):
    """What a planner says of itself when it takes a query over, for one epoch.

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
        """The same of no Spark application."""
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
        settled: Of an owner, the number of an intent that it knows to be finished.
        claim: Of an owner, for which epoch it was made; an intent stands right after the entry of
            its owner, and is an intent of that epoch. Of an adoption, what the target holds.
        at: When it was made by its writer's clock, milliseconds since 1970, for people.
    """

    v: Literal[1] = 1
    kind: Literal["owner", "intent", "void", "adopted"]
    nonce: str
    writer: str
    epoch: int | None = None
    staged: Any = None
    settled: int | None = None
    claim: Claim | None = None
    at: int | None = None


class State(Value):
    """The log up to a number, as one value; the content of a snapshot.

    Attributes:
        number: Number of the last entry; 0 for an empty log.
        owner: Number of the newest owner entry: the generation that may append an intent.
        owner_writer: Who that is, for people.
        intent: The newest intent that was not voided.
        intent_number: Its number; its generation is the number before.
        held: The newest epoch with an intent that was not voided.
        held_offsets: What Spark had planned for it; None in logs of version 0.1.0.
        held_before: What `held` was before the newest intent.
        held_before_offsets: What `held_offsets` was.
        claim: What the newest owner said of itself; None in logs of version 0.1.0.
        at: When the newest owner entry was made.
        begun: How many owner entries there were.
        settled: Number of the newest intent that an entry says is finished.
        kept_epoch: The epoch of the newest void, until an intent of another epoch.
        kept: What of that epoch is visible all the same; it must not be staged again.
        nonce: Nonce of the last entry, by which a log is known again.
    """

    v: Literal[1] = 1
    number: int = 0
    owner: int = 0
    owner_writer: str = ""
    intent: Entry | None = None
    intent_number: int = 0
    held: int | None = None
    held_offsets: PlannedOffsets | None = None
    held_before: int | None = None
    held_before_offsets: PlannedOffsets | None = None
    claim: Claim | None = None
    at: int | None = None
    begun: int = 0
    settled: int | None = None
    kept_epoch: int | None = None
    kept: Any = None
    nonce: str = ""

    @property
    def intent_generation(self) -> int:
        """The generation that logged the newest intent."""
        return self.intent_number - 1

    @property
    def offsets(self) -> PlannedOffsets | None:
        """What Spark had planned for the epoch that the newest owner began."""
        return None if self.claim is None else self.claim.offsets

    def after(self, entry: Entry) -> State:
        """The state with one entry more."""
        number = self.number + 1
        change: dict[str, Any] = {"number": number, "nonce": entry.nonce}
        if entry.kind == "owner":
            change |= {"owner": number, "owner_writer": entry.writer, "begun": self.begun + 1}
            change |= {"settled": max(self.settled or 0, entry.settled or 0) or None}
            change |= {"claim": entry.claim, "at": entry.at}
        elif entry.kind == "intent":
            change |= {"intent": entry, "intent_number": number}
            change |= {"held": entry.epoch, "held_offsets": self.offsets}
            change |= {"held_before": self.held, "held_before_offsets": self.held_offsets}
            if (
                entry.epoch != self.kept_epoch
            ):  # else this intent names the rest, and may be lost too
                change |= {"kept_epoch": None, "kept": None}
        elif entry.kind == "void":
            change |= {"intent": None, "intent_number": 0}
            change |= {"held": self.held_before, "held_offsets": self.held_before_offsets}
            change |= {"kept_epoch": entry.epoch, "kept": entry.staged}
        else:
            change |= {"intent": None, "intent_number": 0, "claim": entry.claim}
            change |= {"held": entry.epoch, "held_offsets": entry.claim and entry.claim.offsets}
            change |= {"held_before": None, "held_before_offsets": None}
            change |= {"kept_epoch": None, "kept": None}
        return self.model_copy(update=change)


def new_entry(kind: Literal["owner", "intent", "void", "adopted"], **fields: Any) -> Entry:
    """An entry of this process, made now, with a nonce of its own."""
    writer = f"{platform.node()}:{os.getpid()}"
    at = time.time_ns() // 1_000_000
    return Entry(kind=kind, nonce=uuid.uuid4().hex, writer=writer, at=at, **fields)


def to_bytes(value: Value) -> bytes:
    """An entry or a state as it is stored."""
    return canonical_json(value.model_dump(mode="json", exclude_none=True)).encode()


def entry_name(number: int) -> str:
    """Under which name an entry is stored; names sort as numbers do."""
    return f"{number:020d}.json"


def snapshot_name(number: int) -> str:
    """Under which name the state up to a number is stored."""
    return f"{number:020d}.snapshot.json"
