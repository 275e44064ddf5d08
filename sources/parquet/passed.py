"""What is passed over, and why: for the query's progress, and for the log. Driver."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from itertools import islice
from typing import Any

__all__ = ["Passed", "Reason"]

_log = logging.getLogger(__name__)
_FIRST = 3


class Reason(str, Enum):
    """Why files are not read; the value is the key in the progress."""

    TOO_OLD = "older_than_max_file_age"
    UNFINISHED = "unfinished"
    UNREADABLE = "may_not_be_read"
    DAMAGED = "damaged"
    OTHER_NAME = "other_names"
    UNFINISHED_EPOCH = "of_unfinished_epochs"
    LOST = "lost"
    GONE = "gone_before_they_were_read"
    SKIPPED = "skipped_while_read"


class Passed:
    """Files that are not read, by reason.

    Those that are parked are looked at again, some at each trigger: what is unfinished may be
    finished, and what is old be touched. Others are counted only.
    """

    def __init__(self) -> None:
        self._parked: dict[Reason, dict[str, Any]] = {}
        self._reasons: dict[str, Reason] = {}
        self._turn: deque[str] = deque()
        self._stuck: set[str] = set()
        self._counted: dict[Reason, tuple[int, list[str]]] = {}
        self._logged: dict[Reason, int] = {}

    def __contains__(self, path: object) -> bool:
        return path in self._reasons

    def park(self, path: str, reason: Reason, stamp: object = None) -> None:
        """Put a file aside, until it is released.

        Args:
            path: Relative to the place.
            reason: Under which the query's progress counts it.
            stamp: What it was; if that is the same when it is parked again, nobody writes it.
        """
        if path not in self._reasons:
            self._turn.append(path)
        elif self._parked[self._reasons[path]].pop(path) == stamp:
            self._stuck.add(path)
        self._reasons[path] = reason
        self._parked.setdefault(reason, {})[path] = stamp

    def release(self, path: str) -> None:
        """A file is no longer put aside."""
        del self._parked[self._reasons.pop(path)][path]
        self._stuck.discard(path)

    def turn(self, most: int) -> list[tuple[str, Reason]]:
        """Those of the parked files whose turn it is to be looked at again, at most so many."""
        paths = [self._turn.popleft() for _ in range(min(most, len(self._turn)))]
        kept = [path for path in paths if path in self._reasons]
        self._turn.extend(kept)
        return [(path, self._reasons[path]) for path in kept]

    def count(self, reason: Reason, first: Iterable[str], count: int) -> None:
        """Say how many files there are of a reason for which none is parked."""
        self._counted[reason] = count, list(islice(first, _FIRST))

    def add(self, reason: Reason, paths: Sequence[str], count: int | None = None) -> None:
        """Count more files of such a reason."""
        before, first = self._counted.get(reason, (0, []))
        self.count(reason, [*first, *paths], before + (len(paths) if count is None else count))

    def report(self) -> dict[str, Any]:
        """How many files there are of each reason that has any, and the first few of them."""
        found = {}
        for reason in Reason:
            count, first = self._of(reason)
            if count:
                found[reason.value] = {"files": count, "first": first}
        return found

    def log(self, place: str) -> None:
        """Write one line if there is more to say than before.

        Of unfinished files only those are worth it that nobody goes on writing.
        """
        counts = {reason: self._of(reason)[0] for reason in Reason}
        counts[Reason.UNFINISHED] = len(self._stuck)
        # An epoch that is just being published is nothing to warn of.
        counts[Reason.UNFINISHED_EPOCH] = 0
        if any(count > self._logged.get(reason, 0) for reason, count in counts.items()):
            said = ", ".join(self._said(reason) for reason, count in counts.items() if count)
            _log.warning("krishiv-parquet: files skipped in %s: %s", place, said)
        self._logged = counts

    def _said(self, reason: Reason) -> str:
        count, first = self._of(reason)
        return f"{count} {reason.value.replace('_', ' ')} ({', '.join(first)}{_more(count, first)})"

    def _of(self, reason: Reason) -> tuple[int, list[str]]:
        parked = self._parked.get(reason, {})
        if parked:
            return len(parked), list(islice(parked, _FIRST))
        return self._counted.get(reason, (0, []))


def _more(count: int, first: Collection[str]) -> str:
    return ", ..." if count > len(first) else ""
