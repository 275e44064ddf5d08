"""Random sequences: Hypothesis makes them step by step, and shrinks what fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from krishiv_spark.testing.steps import (
    Abort,
    Add,
    Begin,
    Commit,
    Crash,
    Expire,
    Fault,
    OtherQuery,
    Resume,
    Sleep,
    Stage,
    Step,
    Stop,
    Straggler,
    Switch,
    TakeOver,
    Trigger,
)

if TYPE_CHECKING:
    from krishiv_spark.testing.playing import Player

__all__ = ["play_at_random", "read_at_random"]

_STEPS = 20
_SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
_calls = st.integers(-1, 30)
_faults = st.builds(Fault, _calls, st.booleans(), st.booleans())
_sleeps = st.builds(Sleep, st.integers(0, 30))
_traps = st.one_of(st.none(), st.none(), _faults, _sleeps)
_ends = st.sampled_from(["well", "well", "well", "lost", "fails", "dies", "straggles"])


_source_steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(Add, st.integers(1, 4)),
    st.builds(
        Trigger,
        st.sampled_from(["well", "well", "unread", "unlogged"]),
        unplanned=st.integers(0, 2),
        unread=st.integers(0, 2),
        at=st.sampled_from(["latest", "plan", "read"]),
        trap=st.one_of(st.none(), st.none(), _faults),
    ),
    st.just(Crash()),
)
_INTERRUPTS: tuple[Step, ...] = (
    Stop(),
    Crash(),
    Straggler(),
    TakeOver(),
    Switch(),
    OtherQuery(),
    Expire(),
)


def read_at_random(play: Callable[..., None], examples: int) -> None:
    """Play so many random sequences on a source.

    Raises:
        Broken: With the shortest sequence that Hypothesis found.
    """

    @_settings(examples)
    @given(st.lists(_source_steps, max_size=_STEPS))
    def any_sequence(steps: list[Step]) -> None:
        play(*steps)

    any_sequence()


def play_at_random(play: Player, examples: int) -> None:
    """Play so many random sequences.

    Raises:
        Broken: With the shortest sequence that Hypothesis found.
    """

    class Spark(_Spark):
        player = play

    run_state_machine_as_test(Spark, settings=_settings(examples))


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=_STEPS,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=_SLOW,
    )


class _Spark(RuleBasedStateMachine):
    player: Player

    def __init__(self) -> None:
        super().__init__()
        self._open = ExitStack()
        self.is_whole = True
        self.driver = self._open.enter_context(self.player.driver())

    def do(self, step: Step) -> None:
        self.is_whole = False
        self.driver.do(step)
        self.is_whole = True

    def can(self, step: Step) -> bool:
        return self.driver.allows(step)

    @precondition(lambda self: self.can(Begin()))
    @rule(rows=st.integers(0, 5), tasks=st.integers(1, 3), trap=_traps)
    def begin(self, rows: int, tasks: int, trap: Fault | Sleep | None) -> None:
        self.do(Begin(rows, tasks, trap))

    @precondition(lambda self: self.driver.tasks_left and self.can(Stage()))
    @rule(data=st.data(), ends=_ends, trap=_traps)
    def stage(self, data: st.DataObject, ends: str, trap: Fault | Sleep | None) -> None:
        task = data.draw(st.sampled_from(self.driver.tasks_left))
        self.do(Stage(task, ends, trap))  # type: ignore[arg-type]  # a literal

    @precondition(lambda self: self.can(Stage(0, "lost")))
    @rule()
    def twin(self) -> None:
        self.do(Stage(0, "lost"))

    @precondition(lambda self: self.can(Commit()))
    @rule(trap=_traps)
    def commit(self, trap: Fault | Sleep | None) -> None:
        self.do(Commit(trap))

    @precondition(lambda self: self.can(Commit()))
    @rule()
    def commit_well(self) -> None:
        self.do(Commit())

    @precondition(lambda self: self.can(Abort()))
    @rule()
    def abort(self) -> None:
        self.do(Abort())

    @precondition(lambda self: self.can(Resume()))
    @rule()
    def resume(self) -> None:
        self.do(Resume())

    @rule(data=st.data())
    def interrupt(self, data: st.DataObject) -> None:
        self.do(data.draw(st.sampled_from([step for step in _INTERRUPTS if self.can(step)])))

    def teardown(self) -> None:
        with self._open:
            if self.is_whole:
                self.driver.settle()
