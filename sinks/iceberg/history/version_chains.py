"""The versions of rows in their order, and the intervals in which they are valid. Driver.

An epoch of a history consists of events: the versions that the table has, and the changes. The
events of one key form a chain. Each version is valid from its own time up to that of the next
event, so all intervals follow from the order of the chain. Everything is computed for all keys at
once, in arrays whose indices are the numbers of the events.

Two rules order a chain. Rows have a column of their order, so that a row may arrive late
(`arrange_rows`). Records of change data arrive in the order in which the database has committed
them (`arrange_records`), except those that Debezium repeats (`repeated_events`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

__all__ = [
    "NEVER",
    "Events",
    "Flags",
    "Intervals",
    "Numbers",
    "accumulate",
    "accumulate_before",
    "arrange_records",
    "arrange_rows",
    "compute_intervals",
    "find_deletes_after",
    "find_events_before",
    "find_firsts",
    "find_late",
]

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

NEVER = np.iinfo(np.int64).max
"""The end of a version that is valid now."""

_NO_TIME = -NEVER
"""Instead of a time; others may be before 1970."""


@dataclass(frozen=True)
class Events:
    """The versions that the table has of some keys, and after these the changes of an epoch.

    Attributes:
        groups: The number of each event's key, from 0.
        ranks: Its place in the order of positions, or of the order column; equal ones are equal.
            -1 for a tombstone beside the event of its deletion.
        times: Start of a version, or time of a change, microseconds.
        ends: End of a version of the table; `NEVER` for a current one, and for changes.
        arrivals: Place of a change in the order of arrival.
        deletes: Whether it is a change that deletes.
        reads: Whether a snapshot has read the row.
        stored: Number of versions of the table.
        complete: By number of a key, whether the events contain all versions that the table has.
        end_ranks: By number of a version of the table, the place of the delete that ended it; -1
            for none.
        replayed: Whether it is a change of a transaction that another server has logged before.
        files: Number of the log file of its position; -1 for one without a GTID.
        transactions: A number for its GTID, likewise.
    """

    groups: Numbers
    ranks: Numbers
    times: Numbers
    ends: Numbers
    arrivals: Numbers
    deletes: Flags
    reads: Flags
    stored: int
    complete: Flags
    end_ranks: Numbers
    replayed: Flags
    files: Numbers
    transactions: Numbers

    @property
    def changes(self) -> Numbers:
        """The numbers of the changes."""
        return np.arange(self.stored, len(self.groups))

    @property
    def current(self) -> Numbers:
        """The numbers of the versions of the table that are valid now."""
        return np.flatnonzero(self.ends[: self.stored] == NEVER)

    def find_most(self, values: Numbers, chosen: Flags | None = None, *, none: int = -1) -> Numbers:
        """Return for each key the greatest value of its versions in the table.

        Args:
            values: A value of each event.
            chosen: Flags of the events that count; None for all.
            none: The result for a key without such a version.
        """
        most = np.full(len(self.complete), none, np.int64)
        own = slice(self.stored)
        flags = np.ones(self.stored, np.bool_) if chosen is None else chosen[own]
        np.maximum.at(most, self.groups[own][flags], values[own][flags])
        return most

    def find_newest_times(self) -> Numbers:
        """Return for each key the newest time at which a version in the table starts or ends."""
        ends = np.where(self.ends == NEVER, _NO_TIME, self.ends)
        both = (self.find_most(values, none=_NO_TIME) for values in (self.times, ends))
        return np.maximum(*both)

    def have_current(self) -> Flags:
        """Return for each key whether a version in the table is valid now."""
        found = np.zeros(len(self.complete), np.bool_)
        found[self.groups[self.current]] = True
        return found


@dataclass(frozen=True)
class Intervals:
    """The intervals of the events of chains; those of other events are not defined.

    Attributes:
        starts: Start of each event, microseconds, inclusive.
        ends: End of each version, exclusive; `NEVER` for one that is valid now.
    """

    starts: Numbers
    ends: Numbers


# --- the order of a chain


def arrange_records(events: Events, new: Numbers) -> Numbers:
    """Return the events of the chains of records of change data, key by key.

    A row that a snapshot has read is known if another one had its position, or if its time is not
    newer than all before: a change of a transaction that was open during the snapshot follows it,
    although it has a lower position and may have an older time.

    Args:
        events: The events.
        new: The changes that are new, without rows that a snapshot has read.
    """
    reads = events.changes[events.reads[events.changes]]
    if len(reads):
        new = _add_reads(events, new, reads[~_have_known_position(events, reads)])
    return _drop_idle_deletes(events, _chain(events, new))


def _have_known_position(events: Events, reads: Numbers) -> Flags:
    """Return for each row that a snapshot has read whether one before it had its position."""
    pairs = events.groups * (int(events.ranks.max(initial=0)) + 1) + events.ranks
    stored = np.flatnonzero(events.reads[: events.stored])
    order = reads[np.lexsort((reads, events.arrivals[reads]))]
    is_first = np.zeros(len(events.groups), np.bool_)
    is_first[order[np.unique(pairs[order], return_index=True)[1]]] = True
    return ~is_first[reads] | np.isin(pairs[reads], pairs[stored])


def _add_reads(events: Events, new: Numbers, reads: Numbers) -> Numbers:
    """Return new changes in their order, with the rows that are newer than all before."""
    both = np.r_[new, reads]
    both = both[np.lexsort((both, events.arrivals[both], events.groups[both]))]
    groups, times = events.groups[both], events.times[both]
    before = accumulate_before(find_firsts(groups), times, _NO_TIME)
    newest = np.maximum(events.find_newest_times()[groups], before)
    found: Numbers = both[~events.reads[both] | (times > newest)]
    return found


def _drop_idle_deletes(events: Events, order: Numbers) -> Numbers:
    """Return the events of chains without deletes that end no version.

    Such a delete is a tombstone after the event of the deletion, whose time is that of its record
    in Kafka, and which must not move the next version.
    """
    deletes, is_first = events.deletes[order], find_firsts(events.groups[order])
    follows_version = np.r_[False, ~deletes[:-1]][: len(order)] & ~is_first
    found: Numbers = order[~deletes | follows_version]
    return found


def arrange_rows(events: Events) -> Numbers:
    """Return the events of the chains of rows, key by key, in the order of their order column.

    A row with the order of a version that the table has is repeated. Of several rows of an epoch
    with one order, the last one counts.
    """
    changes = events.changes
    order = changes[np.lexsort((changes, events.ranks[changes], events.groups[changes]))]
    pairs = events.groups * (int(events.ranks.max(initial=0)) + 1) + events.ranks
    is_last = np.r_[pairs[order][1:] != pairs[order][:-1], True][: len(order)]
    is_known = np.isin(pairs[order], pairs[: events.stored]) & ~events.deletes[order]
    chosen = order[is_last & ~is_known]
    late = np.zeros(len(events.complete), np.bool_)
    late[events.groups[find_late(events, chosen)]] = True
    own = np.arange(events.stored)
    head = own[(events.ends[own] == NEVER) | late[events.groups[own]]]
    both = np.r_[head, chosen]
    found: Numbers = both[np.lexsort((both, events.ranks[both], events.groups[both]))]
    return found


def find_late(events: Events, chosen: Numbers) -> Numbers:
    """Return the changes whose place is before the newest event that the table knows of their key.

    That is its newest version, or the end of that.
    """
    groups = events.groups[chosen]
    newest = events.find_most(events.ranks)[groups]
    ended = np.where(events.have_current()[groups], _NO_TIME, events.find_newest_times()[groups])
    is_late = (events.ranks[chosen] < newest) | (events.times[chosen] < ended)
    return chosen[is_late]


def _chain(events: Events, chosen: Numbers) -> Numbers:
    """Return the current versions, each with the chosen changes of its key after it."""
    both = np.r_[events.current, chosen]
    order: Numbers = both[np.argsort(events.groups[both], kind="stable")]
    return order


def find_events_before(events: Events, order: Numbers) -> Numbers:
    """Return for each event the version that it follows in its chain; -1 for none."""
    before = np.full(len(events.groups), -1, np.int64)
    previous = np.r_[-1, order[:-1]][: len(order)]
    starts = find_firsts(events.groups[order])
    known = ~starts & ~events.deletes[np.maximum(previous, 0)]
    before[order] = np.where(known, previous, -1)
    return before


def find_deletes_after(events: Events, order: Numbers) -> Numbers:
    """Return for each event the delete that follows it in its chain; -1 for none."""
    after = np.full(len(events.groups), -1, np.int64)
    following = np.r_[order[1:], -1][: len(order)]
    is_last = np.r_[find_firsts(events.groups[order])[1:], True][: len(order)]
    after[order] = np.where(~is_last & events.deletes[following], following, -1)
    return after


# --- intervals


def compute_intervals(events: Events, order: Numbers) -> Intervals:
    """Return the interval of each event of the chains.

    No version starts before the one that it follows, even if the clock of the database went back.
    A late one does not start after the version that the table has next. A version that a delete has
    ended still ends then, unless a change ends it earlier.

    Args:
        events: The events.
        order: Those of the chains, key by key.
    """
    groups, stored = events.groups[order], order < events.stored
    is_first = find_firsts(groups)
    times = _lower_reads(events, order, is_first)
    limits = -accumulate_before(
        find_firsts(groups[::-1]), np.where(stored, -times, -NEVER)[::-1], -NEVER
    )[::-1]
    times = np.minimum(times, limits)
    # A chain without versions of the table starts after the last one, which a delete has ended.
    floor = events.find_newest_times()
    floor[groups[stored]] = _NO_TIME
    times = np.where(is_first, np.maximum(times, floor[groups]), times)
    starts = accumulate(is_first, times)
    following = np.r_[starts[1:], NEVER][: len(order)]
    following[np.r_[is_first[1:], True][: len(order)]] = NEVER
    ended = _fill_ends(events, order, is_first)
    limit = np.where((starts < ended) | stored, ended, NEVER)
    found = Intervals(
        np.zeros(len(events.groups), np.int64), np.zeros(len(events.groups), np.int64)
    )
    found.starts[order], found.ends[order] = starts, np.minimum(following, limit)
    return found


def _lower_reads(events: Events, order: Numbers, is_first: Flags) -> Numbers:
    """Return the times, with those of a snapshot not after those of the changes after it.

    A snapshot gives its rows the time at which it started to read the table, and changes that were
    committed before that may follow.
    """
    times: Numbers = events.times[order].copy()
    groups = events.groups[order]
    count = np.bincount(events.groups[: events.stored], minlength=len(events.complete))
    allowed = np.where(order < events.stored, 1, 0)
    is_oldest = is_first & events.complete[groups] & (count[groups] == allowed)
    follows = np.r_[~is_first[1:] & ~events.reads[order][1:], False][: len(order)]
    lowered = np.flatnonzero(is_oldest & events.reads[order] & follows)
    times[lowered] = np.minimum(times[lowered], times[lowered + 1])
    return times


def _fill_ends(events: Events, order: Numbers, is_first: Flags) -> Numbers:
    """Return for each event the end of the last version of the table at or before it."""
    spots = np.where(order < events.stored, np.arange(len(order)), -1)
    last = accumulate(is_first, spots)
    ends: Numbers = np.where(last < 0, NEVER, events.ends[order][np.maximum(last, 0)])
    return ends


# --- groups of neighbours


def find_firsts(groups: Numbers) -> Flags:
    """Return whether each element is the first one of its group; groups are neighbours."""
    found: Flags = np.r_[True, groups[1:] != groups[:-1]][: len(groups)]
    return found


def accumulate(is_first: Flags, values: Numbers) -> Numbers:
    """Return the greatest value so far in each group."""
    if not len(values):
        return values
    distinct, ranks = np.unique(values, return_inverse=True)
    base = (np.cumsum(is_first) - 1) * len(distinct)
    found: Numbers = distinct[np.maximum.accumulate(base + ranks.reshape(-1)) - base]
    return found


def accumulate_before(is_first: Flags, values: Numbers, none: int = -1) -> Numbers:
    """Return the greatest value before each element of its group; `none` for the first one."""
    found = np.r_[none, accumulate(is_first, values)[:-1]][: len(values)]
    before: Numbers = np.where(is_first, none, found)
    return before
