"""Histories in memory: neither the ends of epochs nor the layout of the table change a version."""

import random
from typing import NamedTuple

import numpy as np
import pytest

from krishiv_spark.sinks.iceberg.history.repeated_events import are_doubtful, find_new_changes
from krishiv_spark.sinks.iceberg.history.version_chains import (
    NEVER,
    Events,
    arrange_records,
    compute_intervals,
    find_deletes_after,
)


class Change(NamedTuple):
    """A change of a row: its key, its position, the time of its commit, and whether it deletes."""

    key: int
    position: int
    time: int
    deletes: bool


class Version(NamedTuple):
    """A version in a table; `ended_by` is the position of the delete that ended it, -1 for none."""

    key: int
    position: int
    start: int
    end: int
    ended_by: int = -1


class Table:
    """The versions of a history, without their values.

    Args:
        has_parts: Whether current and past versions are in separate files.
    """

    def __init__(self, *, has_parts, applies=False):
        self.versions: list[Version] = []
        self.has_parts, self.applies = has_parts, applies

    def apply(self, changes):
        """Apply an epoch.

        Returns:
            The count of unclear changes.
        """
        keys = sorted({each.key for each in changes})
        every = [each for each in self.versions if each.key in keys]
        current = {each.key for each in every if each.end == NEVER}
        found = [v for v in every if v.end == NEVER or v.key not in current or not self.has_parts]
        events = _to_events(keys, found, changes, is_complete=False)
        if are_doubtful(events):
            found = every
            events = _to_events(keys, found, changes, is_complete=True)
        new = find_new_changes(events, applies_unclear=self.applies)
        order = arrange_records(new.events, new.order)
        spans, ends = compute_intervals(new.events, order), find_deletes_after(new.events, order)
        for number in order[~events.deletes[order]].tolist():
            given = found[number] if number < events.stored else changes[number - events.stored]
            delete = int(ends[number])
            ended_by = changes[delete - events.stored].position if delete >= 0 else -1
            start, end = int(spans.starts[number]), int(spans.ends[number])
            if number < events.stored:
                self.versions.remove(given)
            self.versions.append(Version(given.key, given.position, start, end, ended_by))
        return len(new.unclear)


def _to_events(keys, found, changes, *, is_complete):
    both, count = [*found, *changes], len(found)
    events = Events(
        np.array([keys.index(each.key) for each in both], np.int64),
        np.array([each.position for each in both], np.int64),
        np.array([v.start for v in found] + [c.time for c in changes], np.int64),
        np.array([v.end for v in found] + [NEVER] * len(changes), np.int64),
        np.array([0] * count + [*range(len(changes))], np.int64),
        np.array([False] * count + [c.deletes for c in changes], np.bool_),
        np.zeros(len(both), np.bool_),
        count,
        np.full(len(keys), is_complete),
        np.array([v.ended_by for v in found], np.int64),
        np.zeros(len(both), np.bool_),
        np.full(len(both), -1),
        np.full(len(both), -1),
    )
    events.complete[:] |= ~events.have_current()
    return events


def live(dice, *, servers, behind=0):
    """Return the changes of some rows in the order of the topic, each once.

    Args:
        dice: Draws them.
        servers: Number of servers: positions start again with each one.
        behind: How far the clock of a server is behind that of the one before. Then no two servers
            have a position in common: one with an older time would be a repeated one.
    """
    rows, changes, clock = set(), [], 100
    for server in range(servers):
        position = dice.randrange(1, 40)
        clock = first = clock + dice.choice([1, 1, 50]) - behind
        for _ in range(dice.randrange(1, 12)):
            for _ in range(dice.choice([1, 1, 2, 4])):  # the changes of a transaction
                key = dice.randrange(3)
                deletes = key in rows and dice.random() < 0.3
                (rows.discard if deletes else rows.add)(key)
                own = position * servers + server if behind else position
                changes.append(Change(key, own, clock, deletes))
                position += dice.randrange(1, 4)
            # Coarse clocks stand still, and one may go back.
            clock = max(first, clock + dice.choice([0, 0, 1, 7, -3]))
        clock = max([clock, *(each.time for each in changes)])
    return changes


def expect(changes):
    """Return the versions that a loop over the changes makes."""
    found, current, newest = [], {}, {}
    for key, position, time, deletes in changes:
        start = newest[key] = max(time, newest.get(key, time))
        if key in current:
            ended_by = position if deletes else -1
            found.append(current.pop(key)._replace(end=start, ended_by=ended_by))
        if not deletes:
            current[key] = Version(key, position, start, NEVER)
    return sorted([*found, *current.values()])


def send(dice, changes):
    """Return the changes with those that Debezium repeats, up to the beginning."""
    sent = []
    for change in changes:
        sent.append(change)
        if dice.random() < 0.15:
            first = dice.randrange(len(sent))
            sent.extend(dict.fromkeys(sent[first:]))
    return [*sent, *(changes if dice.random() < 0.3 else [])]


def cut(dice, sent):
    while sent:
        size = dice.choice([1, 1, 2, 5, len(sent)])
        yield sent[:size]
        sent = sent[size:]


@pytest.mark.long
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_the_ends_of_epochs_and_the_layout_change_no_version(servers):
    for seed in range(100):
        dice = random.Random(seed)
        changes = live(dice, servers=servers)
        sent = send(dice, changes)
        for has_parts in (False, True):
            table = Table(has_parts=has_parts)
            unclear = [table.apply(epoch) for epoch in cut(dice, sent)]
            assert sorted(table.versions) == expect(changes), f"seed {seed}"
            assert not any(unclear)


@pytest.mark.long
def test_changes_of_a_server_whose_clock_is_behind_are_unclear_in_any_epoch():
    found = 0
    for seed in range(40):
        dice = random.Random(seed)
        sent = live(dice, servers=2, behind=dice.choice([1, 5, 20]))
        singly = Table(has_parts=True)
        first = next((n for n, one in enumerate(sent) if singly.apply([one])), len(sent))
        for has_parts in (False, True):
            table, done = Table(has_parts=has_parts), 0
            for epoch in cut(dice, sent):
                is_in = done <= first < done + len(epoch)
                assert bool(table.apply(epoch)) == is_in, f"seed {seed}"
                if is_in:
                    break
                done += len(epoch)
        found += first < len(sent)
    assert found


@pytest.mark.long
def test_unclear_changes_that_are_applied_are_the_newest_ones():
    for seed in range(100):
        dice = random.Random(seed)
        changes = live(dice, servers=2, behind=dice.choice([0, 1, 5, 20]))
        results = set()
        for has_parts in (False, True, False):
            table = Table(has_parts=has_parts, applies=True)
            assert not any(table.apply(epoch) for epoch in cut(dice, send(dice, changes)))
            results.add(tuple(sorted(table.versions)))
            current = {(v.key, v.position) for v in table.versions if v.end == NEVER}
            wanted = {(v.key, v.position) for v in expect(changes) if v.end == NEVER}
            assert current == wanted, f"seed {seed}"
        assert len(results) == 1, f"seed {seed}"
