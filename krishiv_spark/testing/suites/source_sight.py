"""Cases of a source about what the kit itself can see, and what it does where it cannot."""

from __future__ import annotations

from functools import partial

import pytest

from krishiv_spark.testing.drivers.reading import SourceDriver
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.steps import Add, Fault, Kill, TrapAt, Trigger
from krishiv_spark.testing.subjects import SourceUnderTest
from krishiv_spark.testing.suites.base import ConnectorSuite, of_batches
from krishiv_spark.testing.suites.playing import SourcePlayer

__all__ = ["SourceSight"]

_MOMENTS = 8
_ROWS = 1000
"""So many that the partition of a task is smaller than they are, unless it holds them."""

_OUTAGE = Fault(0, lasting=True)

_ADVICE = (
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
    """Where the kit is blind, a green suite would say nothing."""

    @of_batches
    def test_the_kit_sees_the_reads(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """Without the outside nothing is read: so the kit can let things go wrong there."""
        if declared.unseen:
            pytest.skip("declared: unseen; processes are killed at moments instead")
        for at in _WHERE:
            with play.driver() as driver:
                read = _stream_cut_off if declared.has_stream else _batch_cut_off
                driver.judged(partial(_judge, driver, at, read(driver, at)))

    def test_death_at_any_moment(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """Where calls cannot be counted, processes die at moments spread over what they do."""
        if not declared.unseen:
            pytest.skip("declared: calls can be seen; processes die at each of them")
        with play.driver() as driver:
            driver.run([Add(), Trigger(), Add(), Trigger()])
            usual: dict[TrapAt, float] = {
                at: driver.seconds.get(name, 0.0) for at, name in play.roles.items()
            }
        for at, seconds in usual.items():
            for moment in range(_MOMENTS):
                kill = Kill(seconds * 1000 * (moment + 0.5) / _MOMENTS)
                play(Add(), Trigger(), Add(), Trigger(at=at, trap=kill), Add(), Trigger())


def _stream_cut_off(driver: SourceDriver, at: TrapAt) -> int:
    """How many rows a batch has while there is an outage."""
    driver.run([Add(), Trigger(), Add(_ROWS)])
    before = len(driver.batches)
    driver.run([Trigger(at=at, trap=_OUTAGE)])
    return sum(sum(batch.values()) for batch in driver.batches[before:])


def _batch_cut_off(driver: SourceDriver, at: TrapAt) -> int:
    driver.run([Add(_ROWS)])
    return sum((driver.all_in_batch(_OUTAGE, at) or {}).values())


def _judge(driver: SourceDriver, at: TrapAt, read: int) -> None:
    if read and not (at == "read" and driver.is_carried):
        raise Violation(Rule.SEEN, f"{read} rows are read, although {_WHERE[at]}. {_ADVICE}")
