"""Pauses between attempts: they grow, they differ, and they end."""

from itertools import pairwise

import pytest

from krishiv_spark.runtime import retry
from krishiv_spark.runtime.retry import Backoff


class Clock:
    """Stands still but for pauses."""

    def __init__(self):
        self.now_s = 100.0
        self.pauses = []

    def monotonic(self):
        return self.now_s

    def sleep(self, pause_s):
        self.pauses.append(pause_s)
        self.now_s += pause_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(retry, "time", clock)
    return clock


def test_pauses_end_when_time_is_up(clock):
    backoff = Backoff(10)
    while backoff.pause():
        assert clock.now_s <= 110.25
    assert (backoff.left_s, clock.now_s >= 110) == (0, True)


def test_an_attempt_has_time(clock):
    given = list(Backoff(10).attempts())
    assert given[0] == 10
    assert min(given) > 0
    assert clock.now_s >= 110


def test_the_first_attempt_has_all_the_time_however_late_it_begins(clock):
    backoff = Backoff(10)
    clock.now_s += 20
    assert list(backoff.attempts()) == [10]


def test_pauses_double_up_to_the_longest(clock, monkeypatch):
    monkeypatch.setattr(retry, "_add_jitter", lambda pause_s: pause_s)
    backoff = Backoff(60, 0.5, 4)
    for _ in range(6):
        backoff.pause()
    assert clock.pauses == [0.5, 1, 2, 4, 4, 4]


def test_two_that_collide_do_not_pause_alike(clock):
    one, other = Backoff(60), Backoff(60)
    pairs = [(one.pause(), other.pause()) for _ in range(4)]
    assert all(map(all, pairs))
    assert all(a != b for a, b in list(pairwise(clock.pauses))[::2])


def test_progress_begins_anew(clock):
    backoff = Backoff(1, 0.5)
    while backoff.pause():
        pass
    backoff.reset()
    assert backoff.left_s == 1
    assert backoff.pause()
    assert clock.pauses[-1] <= 0.5


def test_in_no_time_there_is_no_pause_but_the_error(clock):
    with pytest.raises(LookupError, match="why"):
        Backoff(0).pause_or_raise(lambda: LookupError("why"))
    assert not clock.pauses
