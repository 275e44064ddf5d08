"""Rules of the protocols, and the failures that each of them prevents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from model.bounds import (
    CALM,
    COPIES,
    FORGOTTEN,
    FOUR_ATTEMPTS,
    JOB,
    JOB_ALONE,
    LONGER,
    PUNCTUAL,
    TWO_FOLDS,
)
from model.modules import INVARIANTS, checked
from model.tlc import Found

__all__ = ["RULES", "Rule"]


@dataclass(frozen=True)
class Rule:
    """A rule, and what goes wrong without it.

    Attributes:
        module: Of the model.
        name: Of the rule; unique in its module.
        says: The rule in a sentence.
        caught_by: What does not hold without it.
        constants: The bound in which that shows, as in `Bound`.
        without: Constants that switch it off, if it is no name in `Off`.
        small: Whether it is switched off in each run of the tests.
    """

    module: str
    name: str
    says: str
    caught_by: str
    constants: Mapping[str, str] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    small: bool = False

    def check(self, *, on: bool) -> Found:
        """Check the model within its bound, with or without the rule; raises as `tlc.check`."""
        off = {} if on else self.without or {"Off": f'{{"{self.name}"}}'}
        more = () if self.caught_by in INVARIANTS[self.module] else (self.caught_by,)
        return checked(self.module, {**self.constants, **off}, more)


_ALONE = {"Drivers": "{d1}", "Wild": "1"}
_TV1 = {"TV": "1", "Verify": "FALSE", "Pieces": "2", "Wild": "2", "Owners": "2"}

_EPOCH_LOG = (
    Rule(
        "EpochLog",
        "fence",
        "an intent directly follows the owner entry of its generation",
        "IntentsAreWhole",
        {**PUNCTUAL, "Turns": "4", "Age": "1"},
        small=True,
    ),
    Rule(
        "EpochLog",
        "recover",
        "a planner finishes the newest intent before it sweeps",
        "Recovers",
        CALM,
    ),
    Rule("EpochLog", "void", "an intent that failed is voided", "Recovers", CALM),
    Rule(
        "EpochLog",
        "owner",
        "a driver that skips an epoch checks that it owns the log",
        "OnlyOwnersGoOn",
        {"Turns": "4"},
    ),
    Rule(
        "EpochLog",
        "settled",
        "an owner entry records which intent is finished",
        "OwnerDecides",
        {**FORGOTTEN, **LONGER, "Epochs": "2"},
    ),
    Rule(
        "EpochLog",
        "prepare",
        "a committer checks before the intent that all transactions are open",
        "IntentsAreWhole",
        PUNCTUAL,
        small=True,
    ),
    Rule(
        "EpochLog",
        "untouched",
        "nothing is aborted after a commit that failed after its intent",
        "IntentsAreWhole",
        PUNCTUAL,
    ),
    Rule(
        "EpochLog",
        "ask",
        "a sweep lists open transactions first, then checks the owner of the log",
        "IntentsAreWhole",
        PUNCTUAL,
        small=True,
    ),
    Rule(
        "EpochLog",
        "precise",
        "a sweep ends the transactions that it listed, not later ones of the same id",
        "IntentsAreWhole",
        PUNCTUAL,
    ),
    Rule(
        "EpochLog",
        "exact",
        "an outcome counts for the producer epoch of the transaction or the next one",
        "OwnerDecides",
        {"Drivers": "{d1}", "Turns": "1", "Age": "1"},
    ),
    Rule(
        "EpochLog",
        "kept",
        "a void names the part that is visible",
        "NoDuplicate",
        {"Drivers": "{d1}", "Tasks": "{t1, t2}"},
    ),
    Rule(
        "EpochLog",
        "sweep",
        "a planner sweeps leftovers of earlier generations",
        "SweptBefore",
        _ALONE,
        small=True,
    ),
    Rule(
        "EpochLog",
        "close",
        "a committer sweeps leftovers of lost attempts",
        "SweptAfter",
        {**_ALONE, "Attempts": "2", "Slots": "2", "AtOnce": "TRUE"},
    ),
    Rule(
        "EpochLog",
        "fencing",
        "under TV1 a sweep raises the producer epoch",
        "NothingHangs",
        {**_TV1, "Drivers": "{d1}", "Failures": "TRUE"},
        small=True,
    ),
    Rule(
        "EpochLog",
        "free",
        "an attempt uses an id without an open transaction",
        "Undisturbed",
        FOUR_ATTEMPTS,
    ),
    Rule(
        "EpochLog",
        "four slots",
        "there are as many ids as attempts that may be alive",
        "Undisturbed",
        FOUR_ATTEMPTS,
        {"Slots": "3"},
        small=True,
    ),
    Rule(
        "EpochLog",
        "two turns",
        "a generation uses other ids than the previous one",
        "IntentsAreWhole",
        {**PUNCTUAL, "Age": "1"},
        {"Turns": "1"},
    ),
)

_FILES = (
    Rule("Files", "fence", "as in EpochLog", "NoLoss"),
    Rule("Files", "recover", "as in EpochLog", "NoLoss", {"Wild": "2", "Owners": "5"}),
    Rule("Files", "generation", "a planner sweeps older generations only", "NoLoss", small=True),
    Rule(
        "Files", "last", "the folder is removed after all files are renamed", "NoLoss", small=True
    ),
    Rule(
        "Files",
        "newfirst",
        "new files appear before replaced files are removed",
        "NoLoss",
        {"Replace": "TRUE"},
    ),
    Rule(
        "Files",
        "prepare",
        "a committer checks before the intent that all files exist",
        "NoLoss",
        {"Vanish": "TRUE"},
    ),
    Rule(
        "Files",
        "nofolder",
        "only a planner creates the folder of a generation",
        "DoneIsDone",
        {"Attempts": "2"},
    ),
    Rule(
        "Files",
        "jobs",
        "the next writer finishes a job that died",
        "JobsAreFinished",
        JOB,
        small=True,
    ),
)

_CUT = {"Cuts": "1"}
_LOST = {"Losses": "1", "Adopts": "1"}
_CHECKPOINT = (
    Rule(
        "Checkpoint",
        "digest",
        "a committed epoch is skipped only if its offsets are the same",
        "NoLoss",
        _CUT,
        small=True,
    ),
    Rule(
        "Checkpoint", "follows", "an epoch starts where the previous one ended", "NoDuplicate", _CUT
    ),
    Rule(
        "Checkpoint",
        "held",
        "the previous epoch is the newest committed one as well as the newest started one",
        "NoLoss",
        {**_CUT, "Rows": "4"},
        small=True,
    ),
    Rule(
        "Checkpoint",
        "holes",
        "no number is skipped",
        "NoDuplicate",
        {"Copies": '{"log"}', "Restores": "1", "Rows": "4", "Owners": "5"},
    ),
    Rule(
        "Checkpoint",
        "seen",
        "no epoch precedes one that has started",
        "GetsOn",
        {"Rows": "4", "Filtered": "{2, 3}"},
    ),
    Rule(
        "Checkpoint",
        "query",
        "a log belongs to one query",
        "NoLoss",
        {"Queries": "{1, 2}", "Rows": "2"},
    ),
    Rule(
        "Checkpoint",
        "empty",
        "only a query without epochs starts with an empty log",
        "NoDuplicate",
        {"Losses": "1"},
    ),
    Rule("Checkpoint", "oneentry", "an adoption is one entry", "NoDuplicate", _LOST),
    Rule("Checkpoint", "unresolved", "an empty log is not resolved", "NoDuplicate", _LOST),
)

_JOURNAL = (
    Rule("Journal", "exclusive", "a number is created once", "OneOrder", small=True),
    Rule("Journal", "fence", "as in EpochLog", "IntentsBehindOwners"),
    Rule(
        "Journal",
        "content",
        "a name that exists may be from the process's own first try",
        "RefusedIsNotTrue",
    ),
    Rule(
        "Journal", "gap", "entries follow one another without a gap", "NothingIsSkipped", small=True
    ),
    Rule(
        "Journal",
        "lookafter",
        "a process that created an entry checks for a newer snapshot",
        "OneOrder",
        TWO_FOLDS,
    ),
    Rule(
        "Journal",
        "lag",
        "a fold removes only entries that the previous snapshot covers",
        "NothingOldIsRead",
        small=True,
    ),
    Rule(
        "Journal",
        "older",
        "the previous snapshot stays",
        "NothingOldIsRead",
        TWO_FOLDS,
    ),
    Rule(
        "Journal",
        "snapshotfirst",
        "a snapshot is written before anything is removed",
        "NothingOldIsRead",
        TWO_FOLDS,
    ),
)

_COMPARE_AND_SET = (
    Rule(
        "CompareAndSet",
        "requirement",
        "a catalog accepts a change only on the state that it was built on",
        "NoDuplicate",
        small=True,
    ),
    Rule("CompareAndSet", "mark", "every attempt checks the mark", "NoDuplicate"),
    Rule("CompareAndSet", "property", "the mark outlives its snapshot", "NoDuplicate"),
    Rule(
        "CompareAndSet",
        "untouched",
        "nothing is removed while the outcome is unknown",
        "FilesAreThere",
        small=True,
    ),
    Rule(
        "CompareAndSet",
        "look",
        "a writer without a response checks for its own snapshot",
        "NoDuplicate",
        JOB_ALONE,
    ),
    Rule(
        "CompareAndSet",
        "history",
        "a job fails if its snapshot may have expired already",
        "NoDuplicate",
        JOB_ALONE,
        small=True,
    ),
)

_ROW_DELETES = (
    Rule(
        "RowDeletes",
        "requirement",
        "an epoch is accepted only on the table in which its rows were found",
        "Exact",
        small=True,
    ),
    Rule(
        "RowDeletes",
        "newfiles",
        "after a lost race, the files that are new to the table are read",
        "Exact",
    ),
    Rule(
        "RowDeletes",
        "positions",
        "a delete names positions in a file of an earlier commit, not a key",
        "OnlyEarlier",
    ),
    Rule(
        "RowDeletes",
        "copied",
        "a copy of a file is made again if more of its rows were deleted",
        "Exact",
        COPIES,
    ),
    Rule(
        "RowDeletes",
        "samefiles",
        "a compaction is dropped if one of its files has left the table",
        "Exact",
    ),
    Rule(
        "RowDeletes",
        "samedeletes",
        "a compaction is dropped if more rows of its files were deleted",
        "Exact",
        small=True,
    ),
)

RULES = (*_EPOCH_LOG, *_FILES, *_CHECKPOINT, *_JOURNAL, *_COMPARE_AND_SET, *_ROW_DELETES)
