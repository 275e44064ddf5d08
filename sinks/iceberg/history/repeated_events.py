"""The new changes among the events of an epoch, and the repeated ones. Driver.

Debezium repeats events after a restart. A repeated event has the position and the time of the first
one, which the table has: a version has the position of the change that opened it, and of the delete
that ended it. Positions of one row rise, until the database moves to another server, where they
start again: with a lower position and a newer time, a *generation* of positions begins. All of this
follows from the versions of the key, so that neither the files in which they are nor the ends of
epochs matter:

* A change with a known position is a repeated one if its time is not newer than the known time. A
  version may start later than its change, since no version starts before the one that it follows.
* A change with a higher position than all of its generation is new at any time: the clock of
  a server may go back. Where generations precede, it must not be older than these.
* A change whose time is newer than all others is new, and starts a generation.
* A delete between another delete and the version after that has no effect: it was a tombstone.
* A change whose GTID is known from a log file with another number, or is lower than one before in a
  file with this number, comes from another server: the database was moved by GTID, and Debezium
  has repeated its last events with the positions of the new server. It may also be the rest of a
  transaction whose events were cut off, so it is unclear.
* Every other change is unclear: it may be one of a server whose clock is behind, or may repeat an
  event that the table never had. The option `unclearEvents` decides.

A version of a new generation starts later than all versions before it, also if an unclear change is
applied. So the generations of the table are found again from positions and times.

The rows that a snapshot has read take no part. Their position is that of the snapshot, and that of
a transaction that was open meanwhile is lower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from krishiv_spark.sinks.iceberg.history.version_chains import (
    Events,
    Flags,
    Numbers,
    accumulate,
    accumulate_before,
    find_firsts,
)

__all__ = ["NewChanges", "are_doubtful", "find_new_changes"]

_NO_TIME = -np.iinfo(np.int64).max


class NewChanges(NamedTuple):
    """The new changes of an epoch.

    Attributes:
        events: The events; unclear changes that are applied have the time of their version.
        order: The new changes, key by key, in the order in which the database made them.
        unclear: The changes that are unclear, and were not applied.
    """

    events: Events
    order: Numbers
    unclear: Numbers


def are_doubtful(events: Events) -> bool:
    """Return True if all versions of a key are needed to decide about a change of it.

    The current version is sufficient for a change that follows it in time and position.
    """
    current = events.current
    starts = np.full(len(events.complete), _NO_TIME, np.int64)
    heights = np.full(len(events.complete), -1, np.int64)
    starts[events.groups[current]] = events.times[current]
    # A row that a snapshot has read hides the position of the change before it.
    read = np.where(events.reads[current], np.iinfo(np.int64).max, events.ranks[current])
    heights[events.groups[current]] = read
    own = events.changes
    own = own[~events.reads[own] & (events.ranks[own] >= 0)]
    own = own[~events.complete[events.groups[own]]]
    start, height = starts[events.groups[own]], heights[events.groups[own]]
    is_repeated = (events.ranks[own] == height) & (events.times[own] <= start)
    files = np.full(len(events.complete), -1, np.int64)
    files[events.groups[current]] = events.files[current]
    is_higher = (events.ranks[own] > height) & (events.files[own] == files[events.groups[own]])
    follows = (events.times[own] > start) | ((events.times[own] == start) & is_higher)
    return not (is_repeated | follows).all()


def find_new_changes(events: Events, *, applies_unclear: bool) -> NewChanges:
    """Return the new changes, without rows that a snapshot has read.

    Args:
        events: The events.
        applies_unclear: Take an unclear change for a new one.
    """
    replayed = np.zeros(len(events.groups), np.bool_) if applies_unclear else events.replayed
    known = _Sequence.of(events, replayed).without_repeated()
    times = events.times.copy()
    while True:
        generations = known.divide()
        rejected = known.is_change & ~generations.are_new
        unclear = rejected & ~known.are_idle(rejected, generations.starts)
        if not (applies_unclear and unclear.any()):
            break
        # One of each key at a time: those after it may be of its generation.
        first = np.flatnonzero(unclear)
        first = first[np.unique(known.groups[first], return_index=True)[1]]
        known.times[first] = generations.newest[first] + 1
        times[known.numbers[first]] = known.times[first]
    new = known.numbers[known.is_change & generations.are_new]
    found = np.r_[known.numbers[unclear], np.flatnonzero(replayed)]
    return NewChanges(replace(events, times=times), new, found)


class _Generations(NamedTuple):
    """The generations of a sequence.

    Attributes:
        starts: Whether each element starts one.
        newest: The newest time before each element, of its key.
        are_new: Whether each element has a place in them.
    """

    starts: Flags
    newest: Numbers
    are_new: Flags


@dataclass(frozen=True)
class _Sequence:
    """The known changes of each key: those of the table, and after these the ones of the epoch.

    Attributes:
        groups: The number of each one's key, ascending.
        ranks: Its place in the order of positions.
        times: Its time; for a version its start.
        deletes: Whether it is a delete.
        numbers: The number of its event; -1 for the delete that ended a version.
        is_change: Whether it is of the epoch.
    """

    groups: Numbers
    ranks: Numbers
    times: Numbers
    deletes: Flags
    numbers: Numbers
    is_change: Flags

    @classmethod
    def of(cls, events: Events, without: Flags) -> _Sequence:
        """Return the changes of events, which no snapshot has read, without some of them."""
        own = np.arange(events.stored)
        opened, ended = own[~events.reads[own]], own[events.end_ranks[own] >= 0]
        changes = events.changes
        changes = changes[~(events.reads | without)[changes] & (events.ranks[changes] >= 0)]
        changes = changes[np.lexsort((changes, events.arrivals[changes]))]
        groups = np.r_[events.groups[opened], events.groups[ended]]
        ranks = np.r_[events.ranks[opened], events.end_ranks[ended]]
        times = np.r_[events.times[opened], events.ends[ended]]
        numbers = np.r_[opened, np.full(len(ended), -1)]
        deletes = np.r_[np.zeros(len(opened), np.bool_), np.ones(len(ended), np.bool_)]
        order = np.lexsort((ranks, times))
        found = cls(
            np.r_[groups[order], events.groups[changes]],
            np.r_[ranks[order], events.ranks[changes]],
            np.r_[times[order], events.times[changes]],
            np.r_[deletes[order], events.deletes[changes]],
            np.r_[numbers[order], changes],
            np.r_[np.zeros(len(order), np.bool_), np.ones(len(changes), np.bool_)],
        )
        return found._take(np.argsort(found.groups, kind="stable"))

    def _take(self, chosen: Numbers | Flags) -> _Sequence:
        return _Sequence(
            self.groups[chosen],
            self.ranks[chosen],
            self.times[chosen],
            self.deletes[chosen],
            self.numbers[chosen],
            self.is_change[chosen],
        )

    def without_repeated(self) -> _Sequence:
        """Return the sequence without changes whose position is known with this time or a newer."""
        order = np.lexsort((np.arange(len(self.groups)), self.ranks, self.groups))
        pairs = self.groups[order] * (int(self.ranks.max(initial=0)) + 1) + self.ranks[order]
        newest = accumulate_before(find_firsts(pairs), self.times[order], _NO_TIME)
        is_repeated = np.zeros(len(order), np.bool_)
        is_repeated[order] = self.is_change[order] & (self.times[order] <= newest)
        return self._take(~is_repeated)

    def divide(self) -> _Generations:
        """Return the generations of positions."""
        first = find_firsts(self.groups)
        newest = accumulate_before(first, self.times, _NO_TIME)
        starts = first.copy()
        while True:
            spots = np.cumsum(starts) - 1
            is_older = self.is_change & (self.times < newest[starts][spots])
            heights = np.where(is_older, -1, self.ranks)
            is_low = self.ranks <= accumulate_before(starts, heights)
            next_ones = np.flatnonzero(is_low & ~starts & (self.times > newest))
            if not len(next_ones):
                return _Generations(starts, newest, starts | ~(is_low | is_older))
            starts[next_ones[np.unique(self.groups[next_ones], return_index=True)[1]]] = True

    def are_idle(self, rejected: Flags, starts: Flags) -> Flags:
        """Return which of rejected changes are deletes from a time without the row.

        Args:
            rejected: The changes.
            starts: The starts of generations. With several, positions do not tell such a time.
        """
        counts = np.bincount(self.groups[starts], minlength=int(self.groups.max(initial=-1)) + 1)
        order = np.lexsort((self.ranks, self.groups))
        spots = np.where(rejected[order], -1, np.arange(len(order)))
        before = accumulate(find_firsts(self.groups[order]), spots)
        follows = np.zeros(len(order), np.bool_)
        follows[order] = (before >= 0) & self.deletes[order][before]
        found: Flags = self.deletes & follows & (counts[self.groups] == 1)
        return found
