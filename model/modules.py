"""The modules: their smallest bounds, what has to hold in each, and ways to go further."""

from __future__ import annotations

from collections.abc import Mapping

from model.tlc import Found, check

__all__ = ["INVARIANTS", "SMALLEST", "checked"]

SMALLEST: dict[str, dict[str, str]] = {
    "EpochLog": {
        "Drivers": "{d1, d2}",
        "Tasks": "{t1}",
        "Wild": "3",
        "Owners": "3",
        "Epochs": "1",
        "Empty": "{}",
        "Attempts": "1",
        "Turns": "2",
        "Slots": "1",
        "AtOnce": "FALSE",
        "Age": "0",
        "Failures": "FALSE",
        "Pieces": "1",
        "Commits": "TRUE",
        "Lookup": "TRUE",
        "TV": "2",
        "Verify": "TRUE",
        "First": "0",
        "Top": "100",
        "Timeouts": '"any"',
    },
    "Files": {
        "Drivers": "{d1, d2}",
        "Jobs": "{}",
        "Tasks": "{t1}",
        "Wild": "3",
        "Owners": "3",
        "Epochs": "2",
        "Attempts": "1",
        "Age": "1",
        "Replace": "FALSE",
        "Vanish": "FALSE",
    },
    "Checkpoint": {
        "Drivers": "{d1, d2}",
        "Queries": "{1}",
        "Rows": "3",
        "Filtered": "{2}",
        "Owners": "4",
        "Copies": "{}",
        "Restores": "0",
        "Cuts": "0",
        "Losses": "0",
        "Adopts": "0",
    },
    "Journal": {
        "Processes": "{p1, p2}",
        "MaxLog": "3",
        "FoldEvery": "2",
        "Folders": "{p1, p2}",
        "Lost": "TRUE",
    },
    "CompareAndSet": {
        "Drivers": "{d1, d2}",
        "Jobs": "{}",
        "Epochs": "1",
        "Lives": "2",
        "Tries": "2",
        "Others": "1",
        "Expires": "TRUE",
    },
    "RowDeletes": {
        "Keys": "{k1, k2}",
        "Epochs": "1",
        "Appends": "2",
        "Deletes": "1",
        "Compactions": "1",
        "Copies": "FALSE",
    },
}

_ROWS = ("NoDuplicate", "NoLoss")
INVARIANTS = {
    "EpochLog": (*_ROWS, "OnlyNamed", "NothingHangs"),
    "Files": (
        *_ROWS,
        "OnlyNamed",
        "JobsAreWhole",
        "OldIsGone",
        "DoneIsDone",
        "Recovers",
        "JobsAreFinished",
    ),
    "Checkpoint": (*_ROWS, "GetsOn"),
    "Journal": (
        "OneOrder",
        "NothingDeadIsRead",
        "NothingOldIsRead",
        "NothingIsSkipped",
        "RefusedIsNotTrue",
        "IntentsBehindOwners",
    ),
    "CompareAndSet": (*_ROWS, "FilesAreThere", "RejectedIsNotTrue"),
    "RowDeletes": ("OnlyEarlier", "OnlyOnce", "Exact"),
}
"""Invariants of every bound."""

_PROPERTIES = {"OnlyOwnersGoOn"}
"""Those of the names that say something of a step, not of a state."""


def checked(module: str, changes: Mapping[str, str], more: tuple[str, ...]) -> Found:
    """Check a module.

    Args:
        module: Its name.
        changes: Constants that are other than in its smallest bound.
        more: What has to hold besides what holds in every bound.

    Raises:
        KrishivError: As `check`.
    """
    constants = {**SMALLEST[module], "Off": "{}", **changes}
    names = (*INVARIANTS[module], *more)
    properties = [name for name in names if name in _PROPERTIES]
    return check(module, constants, [n for n in names if n not in _PROPERTIES], properties)
