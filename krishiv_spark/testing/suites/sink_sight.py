"""Cases of a sink about what the kit itself can see, and what it does where it cannot."""

from __future__ import annotations

import pickle
import time

import pytest

from krishiv_spark.sinks.base import Guarantee
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.steps import Begin, Commit, Fault, Kill, Stage
from krishiv_spark.testing.subjects import SinkUnderTest
from krishiv_spark.testing.suites.base import ConnectorSuite, of_batches
from krishiv_spark.testing.suites.playing import GOOD_EPOCH, STAGED, SinkPlayer

__all__ = ["SinkSight"]

_MOMENTS = 12
_PATIENCE_SECONDS = 2.0

_ROWS = 1000
"""So many that the message of a task is smaller than they are, unless it holds them."""

_ADVICE = (
    "Nothing can go wrong there in any case. Name the function that does it, with the error that "
    "it reports: outside={**OUTSIDE, 'client:Connection.commit': TimeoutError}, or one of your own "
    "that calls it. If there is none, declare unseen=True"
)

_UNSEEN_STAGE = (
    f"a task has staged {_ROWS} rows, its message does not hold them, and the kit has counted no "
    f"call. {_ADVICE}"
)


class SinkSight(ConnectorSuite[SinkUnderTest]):
    """Where the kit is blind, a green suite would say nothing."""

    @of_batches
    def test_the_kit_sees_the_commit(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """The call that makes an epoch visible is one at which the kit lets things go wrong."""
        _skip_if_nothing_can_be_seen(declared)
        exactly = declared.promised is Guarantee.EXACTLY_ONCE
        if not exactly and _shown_by_tasks(play):
            pytest.skip("not exactly once: rows are visible before their commit")
        _Sight(play).check(exactly=exactly)

    @of_batches
    def test_the_kit_sees_the_tasks(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """The rows of a task leave its process by calls at which the kit lets things go wrong."""
        _skip_if_nothing_can_be_seen(declared)
        with play.driver() as driver:
            driver.expect_well(Begin(_ROWS, 1), Stage())
            rows = len(pickle.dumps([driver.sink.row(number) for number in range(_ROWS)]))
            if not driver.calls and driver.message_size < rows // 2:
                driver.judged(lambda: _violate(_UNSEEN_STAGE))

    @of_batches
    def test_death_at_any_moment(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """Where calls cannot be counted, processes die at moments spread over what they do."""
        if not declared.unseen:
            pytest.skip("declared: calls can be seen; processes die at each of them")
        for begun, make in ((STAGED, Commit()), (STAGED[:1], Stage(0)), ((), Begin())):
            with play.driver() as driver:
                driver.run((*begun, make))
                usual_ms = driver.seconds * 1000
            for moment in range(_MOMENTS):
                trap = Kill(usual_ms * (moment + 0.5) / _MOMENTS)
                play(*GOOD_EPOCH, *begun, type(make)(trap=trap), *GOOD_EPOCH)


def _skip_if_nothing_can_be_seen(declared: SinkUnderTest) -> None:
    if declared.promised is Guarantee.NONE:
        pytest.skip("declared: no guarantee")
    if declared.unseen:
        pytest.skip("declared: unseen; processes are killed at moments instead")


class _Sight:
    """Looks for the call of a commit at which the rows become visible."""

    def __init__(self, play: SinkPlayer) -> None:
        self._play = play
        self._calls = [call.text for call in play.calls(GOOD_EPOCH)]

    def check(self, *, exactly: bool) -> None:
        """Let the committer die at its calls, as few times as possible.

        Args:
            exactly: Whether it must be one call that makes them visible; otherwise it is enough
                that it is not before the first one.

        Raises:
            Broken: If there is no such call.
        """
        if not self._calls or self._shows(Fault(0, reported=False)):
            self._refuse("before the first call that the kit has counted")
        elif exactly:
            number = self._last_before()
            if not self._shows(Fault(number, happened=True, reported=False), wait=True):
                then = self._calls[number + 1 : number + 2] or ["its end"]
                self._refuse(f"after {self._calls[number]}, before {then[0]}")

    def _last_before(self) -> int:
        """The last call before which nothing is visible."""
        # Each look costs an epoch with a death, so they are halved; what is visible stays so.
        first, last = 0, len(self._calls)
        while last - first > 1:
            middle = (first + last) // 2
            if self._shows(Fault(middle, reported=False)):
                last = middle
            else:
                first = middle
        return first

    def _shows(self, fault: Fault, *, wait: bool = False) -> bool:
        """Whether an epoch is visible whose committer died there; maybe a little later."""
        with self._play.driver() as driver:
            driver.run((*STAGED, Commit(fault)))
            until = time.monotonic() + (_PATIENCE_SECONDS if wait else 0)
            while not (shown := driver.shows_rows()) and time.monotonic() < until:
                time.sleep(0.05)
            return shown

    def _refuse(self, where: str) -> None:
        counted = "\n".join(f"{n:3} {text}" for n, text in enumerate(self._calls)) or "  none"
        seen = (
            f"the rows of an epoch become visible {where}: the kit does not see what makes them "
            f"so. {_ADVICE}.\ncalls of the commit:\n{counted}"
        )
        with self._play.driver() as driver:
            driver.run(GOOD_EPOCH)
            driver.judged(lambda: _violate(seen))


def _shown_by_tasks(play: SinkPlayer) -> bool:
    with play.driver() as driver:
        driver.run(STAGED)
        return driver.shows_rows()


def _violate(seen: str) -> None:
    raise Violation(Rule.SEEN, seen)
