"""Cases that check the kit itself: its faults must reach the calls that matter."""

from __future__ import annotations

import pickle
import time
from functools import partial

import pytest

from krishiv_spark.sinks.base import Guarantee
from krishiv_spark.testing.drivers.source_driver import SourceDriver
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.steps import Add, Begin, Commit, Fault, Kill, Stage, TrapAt, Trigger
from krishiv_spark.testing.subjects import SinkUnderTest, SourceUnderTest
from krishiv_spark.testing.suites.base import (
    GOOD_EPOCH,
    STAGED,
    ConnectorSuite,
    SinkPlayer,
    SourcePlayer,
    of_batches,
)

__all__ = ["SinkSight", "SourceSight"]

_WRITE_MOMENTS = 12
_PATIENCE_SECONDS = 2.0

_ROWS = 1000
"""So many rows that the message of a task is smaller than they are, unless it contains them."""

_WRITE_ADVICE = (
    "Nothing can go wrong there in any case. Name the function that does it, with the error that "
    "it reports: outside={**OUTSIDE, 'client:Connection.commit': TimeoutError}, or one of your own "
    "that calls it. If there is none, declare unseen=True"
)

_UNSEEN_STAGE = (
    f"a task has staged {_ROWS} rows, its message does not hold them, and the kit has counted no "
    f"call. {_WRITE_ADVICE}"
)


class SinkSight(ConnectorSuite[SinkUnderTest]):
    """The calls of a sink that the kit counts: without them, a green suite means nothing."""

    @of_batches
    def test_the_kit_sees_the_commit(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """The call that makes an epoch visible is one at which the kit injects faults."""
        _skip_if_nothing_can_be_seen(declared)
        exactly = declared.promised is Guarantee.EXACTLY_ONCE
        if not exactly and _shown_by_tasks(play):
            pytest.skip("not exactly once: rows are visible before their commit")
        _Sight(play).check(exactly=exactly)

    @of_batches
    def test_the_kit_sees_the_tasks(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """The rows of a task leave its process by calls at which the kit injects faults."""
        _skip_if_nothing_can_be_seen(declared)
        with play.driver() as driver:
            driver.expect_well(Begin(_ROWS, 1), Stage())
            rows = len(pickle.dumps([driver.sink.row(number) for number in range(_ROWS)]))
            if not driver.calls and driver.message_size < rows // 2:
                driver.judged(lambda: _violate(_UNSEEN_STAGE))

    @of_batches
    def test_death_at_any_moment(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """If calls cannot be counted, processes die at moments spread over each step."""
        if not declared.unseen:
            pytest.skip("declared: calls can be seen; processes die at each of them")
        for begun, make in ((STAGED, Commit()), (STAGED[:1], Stage(0)), ((), Begin())):
            with play.driver() as driver:
                driver.run((*begun, make))
                usual_ms = driver.seconds * 1000
            for moment in range(_WRITE_MOMENTS):
                trap = Kill(usual_ms * (moment + 0.5) / _WRITE_MOMENTS)
                play(*GOOD_EPOCH, *begun, type(make)(trap=trap), *GOOD_EPOCH)


def _skip_if_nothing_can_be_seen(declared: SinkUnderTest) -> None:
    if declared.promised is Guarantee.NONE:
        pytest.skip("declared: no guarantee")
    if declared.unseen:
        pytest.skip("declared: unseen; processes are killed at moments instead")


class _Sight:
    """A search for the call of a commit at which the rows become visible."""

    def __init__(self, play: SinkPlayer) -> None:
        self._play = play
        self._calls = [call.text for call in play.calls(GOOD_EPOCH)]

    def check(self, *, exactly: bool) -> None:
        """Let the committer die at as few of its calls as possible.

        Args:
            exactly: True if one call must make them visible; otherwise it is enough
                that it is not before the first one.

        Raises:
            Broken: If there is no such call.
        """
        if not self._calls or self._becomes_visible(Fault(0, reported=False)):
            self._refuse("before the first call that the kit has counted")
        elif exactly:
            number = self._last_before()
            if not self._becomes_visible(Fault(number, happened=True, reported=False), wait=True):
                then = self._calls[number + 1 : number + 2] or ["its end"]
                self._refuse(f"after {self._calls[number]}, before {then[0]}")

    def _last_before(self) -> int:
        """Return the last call before which no row is visible."""
        # Each trial costs an epoch with a death, so the range is halved; visible rows stay visible.
        first, last = 0, len(self._calls)
        while last - first > 1:
            middle = (first + last) // 2
            if self._becomes_visible(Fault(middle, reported=False)):
                last = middle
            else:
                first = middle
        return first

    def _becomes_visible(self, fault: Fault, *, wait: bool = False) -> bool:
        """Return True if an epoch whose committer died there becomes visible, now or soon."""
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
            f"so. {_WRITE_ADVICE}.\ncalls of the commit:\n{counted}"
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


_READ_MOMENTS = 8
_ROWS = 1000
"""So many rows that the partition of a task is smaller than they are, unless it contains them."""

_OUTAGE = Fault(0, lasting=True)

_READ_ADVICE = (
    "Errors and deaths are tried at calls that the kit can count, and here it counts none that "
    "matter. Name the function that does it, with the error that it reports: "
    "outside={**OUTSIDE, 'client:Cursor.execute': TimeoutError}, or one of your own that calls it. "
    "If there is none, declare unseen=True"
)
_WHERE: dict[TrapAt, str] = {
    "all": "every call to the outside fails, in the driver and in the tasks",
    "read": "every call to the outside fails in the tasks, whose partitions do not hold the rows",
}


class SourceSight(ConnectorSuite[SourceUnderTest]):
    """The calls of a source that the kit counts: without them, a green suite means nothing."""

    @of_batches
    def test_the_kit_sees_the_reads(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """Without the outside no row is read, so the kit can inject faults there."""
        if declared.unseen:
            pytest.skip("declared: unseen; processes are killed at moments instead")
        for at in _WHERE:
            with play.driver() as driver:
                read = _stream_cut_off if declared.has_stream else _batch_cut_off
                driver.judged(partial(_check_reads_seen, driver, at, read(driver, at)))

    def test_death_at_any_moment(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """If calls cannot be counted, processes die at moments spread over each step."""
        if not declared.unseen:
            pytest.skip("declared: calls can be seen; processes die at each of them")
        with play.driver() as driver:
            driver.run([Add(), Trigger(), Add(), Trigger()])
            usual: dict[TrapAt, float] = {
                at: driver.seconds.get(name, 0.0) for at, name in play.roles.items()
            }
        for at, seconds in usual.items():
            for moment in range(_READ_MOMENTS):
                kill = Kill(seconds * 1000 * (moment + 0.5) / _READ_MOMENTS)
                play(Add(), Trigger(), Add(), Trigger(at=at, trap=kill), Add(), Trigger())


def _stream_cut_off(driver: SourceDriver, at: TrapAt) -> int:
    """Return the number of rows of a batch during an outage."""
    driver.run([Add(), Trigger(), Add(_ROWS)])
    before = len(driver.batches)
    driver.run([Trigger(at=at, trap=_OUTAGE)])
    return sum(sum(batch.values()) for batch in driver.batches[before:])


def _batch_cut_off(driver: SourceDriver, at: TrapAt) -> int:
    driver.run([Add(_ROWS)])
    return sum((driver.all_in_batch(_OUTAGE, at) or {}).values())


def _check_reads_seen(driver: SourceDriver, at: TrapAt, read: int) -> None:
    if read and not (at == "read" and driver.is_carried):
        raise Violation(Rule.SEEN, f"{read} rows are read, although {_WHERE[at]}. {_READ_ADVICE}")
