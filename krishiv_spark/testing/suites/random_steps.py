"""Random sequences: Hypothesis makes moves, a driver turns them into steps, and both shrink.

A move is relative to the state of the driver: "what Spark does next, with an error at one of its
calls" rather than "a commit". So most sequences make progress, and most faults hit a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, get_args

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from krishiv_spark.testing import steps
from krishiv_spark.testing.drivers.sink_driver import EpochDriver
from krishiv_spark.testing.steps import (
    Add,
    Begin,
    Commit,
    Crash,
    Ends,
    Fault,
    Faults,
    Sleep,
    Stage,
    Step,
    Trigger,
)
from krishiv_spark.testing.subjects import SinkUnderTest, SourceUnderTest, Writing
from krishiv_spark.testing.suites.base import GOOD_EPOCH, Player, SinkPlayer, SourcePlayer

__all__ = ["play_at_random", "read_at_random"]

_FEWEST, _MOST = 1, 12
_PATIENCE = 8
_SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)

Calls: TypeAlias = Mapping[Any, int]
"""The number of calls to the outside of a step, by the type of the step."""


def _share_examples(examples: int, play: Player[Any]) -> int:
    return max(examples // play.one_in, 1)


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        # A sequence forks and kills processes: its duration shows nothing about a connector.
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=_SLOW,
    )


def _choose_weighted(**weights: tuple[int, st.SearchStrategy[_Move]]) -> st.SearchStrategy[_Move]:
    """Return one of some strategies, drawn by their weights."""
    listed = [kind for weight, kind in weights.values() for _ in range(weight)]
    return st.sampled_from(listed).flatmap(lambda chosen: chosen)


@dataclass(frozen=True)
class _At:
    """A trap whose call is counted modulo the number of calls of its step."""

    trap: Fault | Faults | Sleep

    def within(self, calls: int) -> Fault | Faults | Sleep:
        if isinstance(self.trap, Faults):
            return Faults(tuple(_wrap_call(fault, calls) for fault in self.trap.each))
        if isinstance(self.trap, Fault):
            return _wrap_call(self.trap, calls)
        return replace(self.trap, call=self.trap.call % max(calls, 1))


def _wrap_call(fault: Fault, calls: int) -> Fault:
    # A fault at -1 loses the answer of the whole step.
    return replace(fault, call=fault.call % (calls + 1) - 1)


@dataclass(frozen=True)
class _Next:
    """Spark's next step."""

    rows: int = 4
    tasks: int = 2
    ends: Ends = "well"

    def steps(self, driver: EpochDriver, calls: Calls) -> Iterable[Step]:
        del calls
        step = driver.next_step(rows=self.rows, tasks=self.tasks)
        yield replace(step, ends=self.ends) if isinstance(step, Stage) else step


@dataclass(frozen=True)
class _Until:
    """Spark's next steps up to one of a type, which gets a trap."""

    last: type[Begin | Stage | Commit] = Commit
    at: _At | None = None

    def steps(self, driver: EpochDriver, calls: Calls) -> Iterable[Step]:
        for _ in range(_PATIENCE):  # a task may fail repeatedly while another process holds a lock
            step = driver.next_step()
            if isinstance(step, self.last):
                trap = None if self.at is None else self.at.within(calls[self.last])
                yield replace(step, trap=trap)
                return
            yield step


@dataclass(frozen=True)
class _Meanwhile:
    """Another driver, or another query, writes some epochs."""

    way: tuple[Step, Step]
    epochs: int

    def steps(self, driver: EpochDriver, calls: Calls) -> Iterable[Step]:
        there, back = self.way
        yield there
        for _ in range(self.epochs):
            yield from _Until().steps(driver, calls)
        yield back


@dataclass(frozen=True)
class _Just:
    """A step."""

    step: Step

    def steps(self, driver: EpochDriver, calls: Calls) -> Iterable[Step]:
        del driver, calls
        yield self.step


_Move: TypeAlias = _Next | _Until | _Meanwhile | _Just
_calls = st.integers(0, 60)
_lasting = st.sampled_from([False, False, True])
_faults = st.builds(Fault, _calls, st.booleans(), st.booleans(), _lasting)
_pairs = st.builds(Faults, st.tuples(_faults, _faults))
_traps = st.builds(_At, st.one_of(_faults, _pairs, st.builds(Sleep, _calls)))
_EPOCH_ENDS = (Commit, Commit, Stage, Begin)
_INTERRUPTS = (steps.Stop(), steps.Crash(), steps.TakeOver(), steps.Switch(), steps.OtherQuery())
_RARE = (steps.Straggler(), steps.Expire(), steps.Abort(), steps.Reorder())
_THERE_AND_BACK = (steps.TakeOver(), steps.Switch()), (steps.OtherQuery(), steps.OtherQuery())
_meanwhile = st.builds(_Meanwhile, st.sampled_from(_THERE_AND_BACK), st.integers(1, 2))
_moves = _choose_weighted(
    epoch=(3, st.just(_Until())),
    next=(2, st.builds(_Next, rows=st.integers(0, 5), tasks=st.integers(1, 3))),
    attempt=(1, st.builds(_Next, ends=st.sampled_from(get_args(Ends)))),
    trapped=(5, st.builds(_Until, st.sampled_from(_EPOCH_ENDS), _traps)),
    meanwhile=(2, _meanwhile),
    interrupt=(2, st.sampled_from([_Just(step) for step in _INTERRUPTS])),
    rare=(1, st.sampled_from([_Just(step) for step in _RARE])),
)


def play_at_random(play: SinkPlayer, sink: SinkUnderTest, examples: int) -> None:
    """Play this many random sequences on a sink.

    Raises:
        Broken: With the shortest sequence that Hypothesis found.
    """
    ways = _ways_of_writing(sink)
    calls = {way: _count_sink_calls(play, way) for way in dict.fromkeys(ways)}

    @_settings(_share_examples(examples, play))
    @given(st.sampled_from(ways), st.lists(_moves, min_size=_FEWEST, max_size=_MOST))
    def any_sequence(way: Writing, moves: list[_Move]) -> None:
        with play.driver(writing=way) as driver:
            for move in moves:
                driver.run(move.steps(driver, calls[way]))
            driver.settle()

    any_sequence()


def _ways_of_writing(sink: SinkUnderTest) -> list[Writing]:
    ways: list[Writing] = ["append", "append", "append"] if sink.has_stream else []
    if sink.has_stream and sink.complete:
        ways.append("complete")
    if sink.has_batch:
        ways.append("batch append")
        ways.extend(["batch overwrite"] if sink.overwrite else [])
    return ways


def _count_sink_calls(play: SinkPlayer, writing: Writing) -> Calls:
    with play.driver(writing=writing) as driver:
        driver.run(GOOD_EPOCH)
        return {type(step): _count(driver, step) for step in GOOD_EPOCH}


def _count(driver: EpochDriver, step: Step) -> int:
    driver.run([step])
    return len(driver.calls)


_source_steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(Add, st.integers(1, 4)),
    st.builds(
        Trigger,
        st.sampled_from(["well", "well", "unread", "unlogged"]),
        unplanned=st.integers(0, 2),
        unread=st.integers(0, 2),
    ),
    st.builds(Trigger, at=st.sampled_from(["latest", "plan", "read"]), trap=_faults),
    st.just(Crash()),
)

_ReadingWay: TypeAlias = tuple[Mapping[str, str], tuple[Step, ...], int]
"""Options, the first steps, and the number of rows that exist too early to be read."""


def read_at_random(play: SourcePlayer, source: SourceUnderTest, examples: int) -> None:
    """Play this many random sequences on a source.

    Raises:
        Broken: With the shortest sequence that Hypothesis found.
    """
    calls = {at: len(made) for at, made in play.calls().items()}

    @_settings(_share_examples(examples, play))
    @given(
        st.sampled_from(_ways_of_reading(source)),
        st.lists(_source_steps, min_size=_FEWEST, max_size=_MOST),
    )
    def any_sequence(way: _ReadingWay, moves: list[Step]) -> None:
        options, first, skipped = way
        moved = (_wrap_trap(step, calls) for step in moves)
        play(*first, *moved, options=options, skipped=skipped)

    any_sequence()


def _ways_of_reading(source: SourceUnderTest) -> list[_ReadingWay]:
    limit = source.limit or {}
    ways: list[_ReadingWay] = [({}, (), 0), (limit, (), 0)]
    if source.event_time is not None:
        ways.append(({**limit, "eventTime": source.event_time}, (), 0))
    if source.latest is not None:
        ways.append(({**limit, **source.latest}, (Add(3), Trigger()), 3))
    return ways


def _wrap_trap(step: Step, calls: Calls) -> Step:
    if isinstance(step, Trigger) and step.trap is not None:
        return replace(step, trap=_At(step.trap).within(calls[step.at]))  # type: ignore[arg-type]  # no sleep
    return step
