"""What stands in an epoch log: its entries, and the state that they add up to."""

from __future__ import annotations

import os
import platform
import uuid
from typing import Any, Literal

from krishiv_spark.offsets.offset import Value, canonical_json

__all__ = ["Entry", "State", "entry_name", "new_entry", "snapshot_name", "to_bytes"]


class Entry(Value):
    """One entry of the log.

    Attributes:
        kind: What it says.
        nonce: Random, so that an entry can be told from one that somebody else put there.
        writer: Host and process that appended it, for people.
        epoch: The epoch of an intent or a void.
        staged: Of an intent, what the epoch consists of; of a void, what of that is visible all
            the same. JSON that only the sink understands.
        settled: Of an owner, the number of an intent that it knows to be finished.
    """

    v: Literal[1] = 1
    kind: Literal["owner", "intent", "void"]
    nonce: str
    writer: str
    epoch: int | None = None
    staged: Any = None
    settled: int | None = None


class State(Value):
    """The log up to a number, as one value; the content of a snapshot.

    Attributes:
        number: Number of the last entry; 0 for an empty log.
        owner: Number of the newest owner entry: the generation that may append an intent.
        owner_writer: Who that is, for people.
        intent: The newest intent that was not voided.
        intent_number: Its number; its generation is the number before.
        held: The newest epoch with an intent that was not voided.
        held_before: What `held` was before the newest intent.
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
    held_before: int | None = None
    begun: int = 0
    settled: int | None = None
    kept_epoch: int | None = None
    kept: Any = None
    nonce: str = ""

    @property
    def intent_generation(self) -> int:
        """The generation that logged the newest intent."""
        return self.intent_number - 1

    def after(self, entry: Entry) -> State:
        """The state with one entry more."""
        number = self.number + 1
        change: dict[str, Any] = {"number": number, "nonce": entry.nonce}
        if entry.kind == "owner":
            change |= {"owner": number, "owner_writer": entry.writer, "begun": self.begun + 1}
            change |= {"settled": max(self.settled or 0, entry.settled or 0) or None}
        elif entry.kind == "intent":
            change |= {"intent": entry, "intent_number": number}
            change |= {"held": entry.epoch, "held_before": self.held}
            if (
                entry.epoch != self.kept_epoch
            ):  # else this intent names the rest, and may be lost too
                change |= {"kept_epoch": None, "kept": None}
        else:
            change |= {"intent": None, "intent_number": 0, "held": self.held_before}
            change |= {"kept_epoch": entry.epoch, "kept": entry.staged}
        return self.model_copy(update=change)


def new_entry(kind: Literal["owner", "intent", "void"], **fields: Any) -> Entry:
    """An entry of this process, with a nonce of its own."""
    writer = f"{platform.node()}:{os.getpid()}"
    return Entry(kind=kind, nonce=uuid.uuid4().hex, writer=writer, **fields)


def to_bytes(value: Value) -> bytes:
    """An entry or a state as it is stored."""
    return canonical_json(value.model_dump(mode="json", exclude_none=True)).encode()


def entry_name(number: int) -> str:
    """Under which name an entry is stored; names sort as numbers do."""
    return f"{number:020d}.json"


def snapshot_name(number: int) -> str:
    """Under which name the state up to a number is stored."""
    return f"{number:020d}.snapshot.json"
