"""Cases of a sink about what it leaves behind: staged things, and the memory of a task."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from krishiv_spark.sinks.base import Guarantee
from krishiv_spark.testing.drivers.epochs import EpochDriver
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.steps import Abort, Begin, Commit, Crash, Fault, Stage, Step, Stop
from krishiv_spark.testing.subjects import SinkUnderTest
from krishiv_spark.testing.suites.base import ConnectorSuite, of_batches
from krishiv_spark.testing.suites.playing import GOOD_EPOCH, STAGED, SinkPlayer

__all__ = ["SinkLeftovers"]

_TOLD_IN_JOBS = (*GOOD_EPOCH, Begin(), Stage(0), Abort())

_TOLD = (
    *_TOLD_IN_JOBS,
    *(*STAGED, Commit(Fault(happened=True)), *GOOD_EPOCH),  # a replay of what is held
)
"""What becomes of it, Spark tells the sink about all that is staged here; jobs come once."""

_UNTOLD = (
    *(Begin(), Stage(0, "lost"), Stage(0), Stage(1, "dies"), Stage(1), Commit()),
    *(Begin(), Stage(0, "fails"), Stage(0), Crash(), Begin(), Stage(0), Stop()),
    *GOOD_EPOCH,
)
"""Of some attempts in here nobody hears, or nobody hears the end."""

_NO_FILES = (
    "the folder of the target is empty, so the kit does not see what is staged: give SinkUnderTest "
    "a function leftovers that lists it, or lambda: [] if rows wait in messages to the driver"
)

# The first rounds also make what stays for good, such as a log: the last two are compared.
_ROUNDS = 3
_SHOWN = 8


class SinkLeftovers(ConnectorSuite[SinkUnderTest]):
    """A sink that runs for years fills neither the disk nor the memory."""

    @of_batches
    def test_nothing_stays_staged(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """What is staged goes when its epoch is published, aborted, or held already."""
        _skip_without_promise(declared)
        _look_for_litter(play, _TOLD if declared.has_stream else _TOLD_IN_JOBS)

    def test_lost_attempts_are_swept(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """What an attempt has staged that died, or that nobody heard of, goes with later epochs."""
        _skip_without_promise(declared)
        if not declared.sweeps:
            pytest.skip("declared: something else sweeps what lost attempts have staged")
        _look_for_litter(play, _UNTOLD)

    @of_batches
    def test_memory_of_a_task_is_bounded(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """A task writes more rows than fit into its memory: `stage` does not hold them all."""
        _skip_without_promise(declared)
        kinds = {declared.schema.field(name).type for name in declared.odd_columns}
        if not kinds & {pa.string(), pa.binary()}:
            pytest.skip("declared: no column of any_value that could be made long")
        with play.driver(long_rows=True) as driver:
            driver.expect_well(Begin())
            size, grown = driver.growth_of_a_task()
            if grown > size // 2:
                seen = f"while {size >> 20} MB of rows were staged, it grew by {grown >> 20} MB"
                driver.judged(lambda: _refuse(Rule.BOUNDED_MEMORY, seen))


def _skip_without_promise(declared: SinkUnderTest) -> None:
    if declared.promised is not Guarantee.EXACTLY_ONCE:
        pytest.skip("not exactly once: it need not stage anything")


def _look_for_litter(play: SinkPlayer, steps: tuple[Step, ...]) -> None:
    """Do some steps over and over: what is left must not grow, or not be there at all."""
    with play.driver() as driver:
        counts = []
        for _ in range(_ROUNDS):
            driver.run(steps)
            driver.settle()
            counts.append(_left(driver, play.target))
        driver.judged(lambda: _judge(driver, counts))


def _left(driver: EpochDriver, target: Path) -> list[str]:
    listed = driver.sink.leftovers
    found: Iterable[object] = target.rglob("*") if listed is None else listed()
    return sorted(map(str, found))


def _judge(driver: EpochDriver, rounds: list[list[str]]) -> None:
    before, after = (set(found) for found in rounds[-2:])
    if driver.sink.leftovers is None and not after:
        _refuse(Rule.SEEN, _NO_FILES)
    if driver.sink.leftovers is not None:
        if after:
            _refuse(Rule.NOTHING_LEFT, f"staged, when nothing is being written: {_some(after)}")
    elif len(after) > len(before):
        seen = (
            f"after {_ROUNDS - 1} rounds there were {len(before)} files in the folder of the "
            f"target, after one more {len(after)}: {_some(after - before)}. If readers see these, "
            "give SinkUnderTest a function leftovers that lists what is staged"
        )
        _refuse(Rule.NOTHING_LEFT, seen)


def _some(names: set[str]) -> str:
    shown = sorted(names)[:_SHOWN]
    return ", ".join(shown + ["..."] * (len(names) > _SHOWN))


def _refuse(rule: Rule, seen: str) -> None:
    raise Violation(rule, seen)
