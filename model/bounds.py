"""The bounds within which each module is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from model.modules import checked
from model.tlc import Found

__all__ = ["BOUNDS", "CALM", "COPIES", "FORGOTTEN", "FOUR_ATTEMPTS", "JOB", "JOB_ALONE", "LONGER"]
__all__ += ["PUNCTUAL", "TWO_FOLDS", "Bound"]


@dataclass(frozen=True)
class Bound:
    """A module, and how far it is checked.

    Attributes:
        name: Of the bound.
        module: Of the model.
        constants: What is other than in the module's smallest bound.
        more: What has to hold here besides what holds in every bound.
        small: Whether it is checked in each run of the tests.
    """

    name: str
    module: str
    constants: Mapping[str, str] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    small: bool = False

    def check(self) -> Found:
        """Check the module within the bound; raises as `model.tlc.check`."""
        return checked(self.module, self.constants, self.more)


LONGER = {"Wild": "4", "Owners": "4"}

CALM = {"Wild": "3", "Owners": "6", "Turns": "6"}
"""Three generations in which anything may go wrong, then three in which nothing does."""

PUNCTUAL = {"AtOnce": "TRUE", "Timeouts": '"batch"'}
"""Brokers abort nothing that a committer has seen open; no attempt sleeps before it has its id."""

FORGOTTEN = {"Commits": "FALSE", "Lookup": "FALSE", "Timeouts": '"none"', "AtOnce": "TRUE"}
"""Only the coordinator can tell what became of a transaction, and no broker aborts any."""

FOUR_ATTEMPTS = {
    "Drivers": "{d1}",
    "Wild": "1",
    "Owners": "1",
    "Attempts": "4",
    "Slots": "4",
    "AtOnce": "TRUE",
    "Timeouts": '"none"',
}
TWO_FOLDS = {"MaxLog": "4", "Lost": "FALSE"}

JOB = {"Drivers": "{d1}", "Jobs": "{j1}", "Tasks": "{t1, t2}", "Wild": "1"}
JOB_ALONE = {"Drivers": "{}", "Jobs": "{j1}"}
COPIES = {"Copies": "TRUE"}
"""Epochs write new files for those with rows of their keys."""

_TWO_ATTEMPTS = {"Attempts": "2", "Slots": "2", "Wild": "2", "Owners": "2", "Age": "1"}
_FAIL = {"Failures": "TRUE"}
_TV1 = {"TV": "1", "Turns": "1", "Wild": "2", "Owners": "2", "Age": "1"}
_ROLL_OVER = {"First": "97", "Epochs": "2", "Age": "1"}
_OLDER_COPY = {"Copies": '{"offsets", "commits"}', "Restores": "1"}

_DECIDED = ("OwnerDecides",)
_SWEPT = ("Recovers", "SweptBefore", "SweptAfter")

BOUNDS = (
    Bound("two drivers", "EpochLog", {"Turns": "4"}, (*_DECIDED, "OnlyOwnersGoOn"), small=True),
    Bound("two turns", "EpochLog", {}, (*_DECIDED, "OnlyOwnersGoOn")),
    Bound("calm in the end", "EpochLog", CALM, (*_DECIDED, *_SWEPT), small=True),
    Bound("four attempts", "EpochLog", FOUR_ATTEMPTS, ("Undisturbed",), small=True),
    Bound("stragglers", "EpochLog", {**PUNCTUAL, **LONGER, "Age": "1"}, ("IntentsAreWhole",)),
    Bound("slots used again", "EpochLog", {**LONGER, "Age": "2", "Epochs": "2"}),
    Bound("epochs without rows", "EpochLog", {"Epochs": "2", "Empty": "{1}", **_FAIL}, _DECIDED),
    Bound("two tasks", "EpochLog", {"Tasks": "{t1, t2}", "Drivers": "{d1}"}, _DECIDED),
    Bound("two attempts", "EpochLog", {**_TWO_ATTEMPTS, "AtOnce": "TRUE", **_FAIL}),
    Bound("roll-over", "EpochLog", _ROLL_OVER),
    Bound("roll-over, TV1", "EpochLog", {**_ROLL_OVER, "TV": "1", "Turns": "1"}),
    Bound("TV1", "EpochLog", {**_TV1, **_FAIL, "Pieces": "2"}),
    Bound("TV1, not verified", "EpochLog", {**_TV1, **_FAIL, "Pieces": "2", "Verify": "FALSE"}),
    Bound("forgotten", "EpochLog", {**FORGOTTEN, **LONGER, "Epochs": "2"}, _DECIDED),
    Bound("two drivers", "Files", small=True),
    Bound("replace", "Files", {"Replace": "TRUE"}),
    Bound("calm in the end", "Files", {"Owners": "6", "Tasks": "{t1, t2}"}),
    Bound("files that vanish", "Files", {"Vanish": "TRUE", "Attempts": "2"}),
    Bound("a job beside the stream", "Files", JOB, small=True),
    Bound("two drivers", "Checkpoint", {"Owners": "5", "Rows": "4"}),
    Bound("one cut", "Checkpoint", {"Cuts": "1"}, small=True),
    Bound("two cuts", "Checkpoint", {"Cuts": "2", "Rows": "4"}),
    Bound("an older copy", "Checkpoint", {**_OLDER_COPY, "Rows": "4"}),
    Bound("copies and cuts", "Checkpoint", {**_OLDER_COPY, "Cuts": "1", "Owners": "3"}),
    Bound("an older log", "Checkpoint", {"Copies": '{"log"}', "Restores": "1"}),
    Bound("a log that is lost", "Checkpoint", {"Losses": "1", "Adopts": "1", "Cuts": "1"}),
    Bound("two queries", "Checkpoint", {"Queries": "{1, 2}", "Rows": "2", "Owners": "5"}),
    Bound("one fold", "Journal", {"Lost": "FALSE"}, small=True),
    Bound("one fold, lost answers", "Journal"),
    Bound("two folds", "Journal", TWO_FOLDS),
    Bound("one life", "CompareAndSet", {"Lives": "1"}, small=True),
    Bound("a job beside the stream", "CompareAndSet", {"Drivers": "{d1}", "Jobs": "{j1}"}),
    Bound("a job, three tries", "CompareAndSet", {**JOB_ALONE, "Tries": "3", "Others": "2"}),
    Bound("positions", "RowDeletes", small=True),
    Bound("copies", "RowDeletes", COPIES),
    Bound("positions, two epochs", "RowDeletes", {"Epochs": "2"}),
    Bound("copies, two epochs", "RowDeletes", {**COPIES, "Epochs": "2"}),
    Bound("two compactions", "RowDeletes", {"Compactions": "2"}),
)
