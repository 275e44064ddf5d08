"""The base of all suites: traps, the players of a case, and the access to real Spark."""

from __future__ import annotations

import random
import shutil
import uuid
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import pytest

from krishiv_spark.testing.drivers.sink_driver import EpochDriver
from krishiv_spark.testing.drivers.source_driver import SourceDriver
from krishiv_spark.testing.processes.outside import Call
from krishiv_spark.testing.processes.pool import Pool
from krishiv_spark.testing.real_spark.driver import SparkDriver
from krishiv_spark.testing.steps import (
    Abort,
    Add,
    Begin,
    Commit,
    Fault,
    Faults,
    Sequence,
    Sleep,
    Stage,
    Step,
    Switch,
    TakeOver,
    Trap,
    TrapAt,
    Trigger,
)
from krishiv_spark.testing.subjects import SampleRows, SinkUnderTest, SourceUnderTest, Writing

__all__ = [
    "BEGIN",
    "COMMIT",
    "FAILED_EPOCH",
    "GOOD_EPOCH",
    "OVERTAKEN",
    "STAGED",
    "ConnectorSuite",
    "Player",
    "SinkPlayer",
    "SourcePlayer",
    "Suite",
    "Traps",
    "of_batches",
    "trap_deaths",
    "trap_deaths_before",
    "trap_errors",
    "trap_errors_and_deaths",
    "trap_late_deaths",
    "trap_sleeps",
]

Traps: TypeAlias = Callable[[int, Call], tuple[Trap, ...]]
"""A function from the index of a call, and the call, to the traps to try there, in order."""


def trap_errors(number: int, call: Call) -> tuple[Trap, ...]:
    """Report an error of a call that had no effect, then of one that had."""
    before, after = Fault(number, happened=False), Fault(number, happened=True)
    return (before,) if call.reads else (before, after)


def trap_deaths(number: int, call: Call) -> tuple[Trap, ...]:
    """Let the process die before the call, or after it; a call that only reads gets no death."""
    return (
        ()
        if call.reads
        else (
            *trap_deaths_before(number, call),
            *trap_late_deaths(number, call),
        )
    )


def trap_deaths_before(number: int, call: Call) -> tuple[Trap, ...]:
    """Let the process die before the call, even if the call only reads."""
    del call
    return (Fault(number, happened=False, reported=False),)


def trap_late_deaths(number: int, call: Call) -> tuple[Trap, ...]:
    """Let the process die after the call."""
    return () if call.reads else (Fault(number, happened=True, reported=False),)


def trap_errors_and_deaths(number: int, call: Call) -> tuple[Trap, ...]:
    """Report an error, or let the process die after the call."""
    return trap_errors(number, call) + trap_late_deaths(number, call)


def trap_sleeps(number: int, call: Call) -> tuple[Trap, ...]:
    """Let the process sleep before the call."""
    return () if call.reads else (Sleep(number),)


T = TypeVar("T")
Subject = TypeVar("Subject", bound=SinkUnderTest | SourceUnderTest)

BEGIN, COMMIT = (Begin(),), (Commit(),)
"""The steps of the driver, for cases that inject faults in them only."""

STAGED = (Begin(), Stage(0), Stage(1))
"""An epoch that waits for its commit."""

GOOD_EPOCH = (*STAGED, Commit())
"""An epoch without faults."""

FAILED_EPOCH = (Begin(), Stage(0), Stage(1, "fails"), Abort())
"""An epoch with a task that fails permanently."""

OVERTAKEN = (TakeOver(), *GOOD_EPOCH, *GOOD_EPOCH, Switch())
"""Another driver takes over and writes two epochs; then the first one wakes."""

_SOON = 3
"""An error causes further calls, such as a check or another try, within this many calls."""

_TRAPPED = (Begin, Stage, Commit, Abort)


class Player(Generic[Subject]):
    """The factory of the subjects and drivers of a case.

    Args:
        make: The author's factory; it gets an empty folder.
        folder: The parent of those folders.
        promise: The promise of the case.

    Attributes:
        one_in: The share of traps and random sequences that a case tries: all of them with 1, one
            in three with 3, drawn at random.
        wants_streams: True if the case is skipped for a connector that has batches only.
        target: The newest folder given to the author's factory.
    """

    one_in = 1
    wants_streams = True
    target: Path

    def __init__(self, make: Callable[[Path], Subject], folder: Path, promise: str) -> None:
        self.promise = promise
        self._draw = random.Random(0)  # noqa: S311  no secret
        self._make, self._folder = make, folder
        self._numbers = count(1)
        self._pool: Pool | None = None

    def thin(self, one_in: int, seed: object) -> None:
        """Try one in `one_in` traps and random sequences, drawn with this seed."""
        self.one_in = one_in
        # Each case draws its own, or all would try traps at the same calls.
        self._draw.seed(f"{seed} {self.promise}")

    def drawn(self, traps: Iterable[T]) -> list[T]:
        """Return the drawn traps: at least one, or a case would have tried nothing."""
        every = list(traps)
        return [each for each in every if self.is_drawn()] or (every and [self._draw.choice(every)])

    def is_drawn(self) -> bool:
        """Return True if an optional trap or sequence is to be tried."""
        return self._draw.randrange(self.one_in) == 0

    def close(self) -> None:
        """End the processes that were kept for the next sequence."""
        if self._pool is not None:
            self._pool.close()

    def new(self) -> tuple[Subject, Path]:
        """Return a new, empty subject, and the folder for its data and the driver's."""
        folder = self._folder / str(next(self._numbers))
        # Unique beyond this folder: authors name external objects after it, such as a table.
        target = folder / f"target-{uuid.uuid4().hex[:12]}"
        target.mkdir(parents=True)
        made = self._make(target)
        if self.wants_streams and not made.has_stream:
            pytest.skip("declared: no streams")
        self.target = target
        return made, folder

    def pool(self, subject: Subject) -> Pool:
        """Return the processes for consecutive sequences."""
        self._pool = self._pool or Pool(subject.outside)
        return self._pool


class SinkPlayer(Player[SinkUnderTest]):
    """The player of one case of a sink."""

    @contextmanager
    def driver(
        self, *, writing: Writing | None = None, zone: str | None = None, **rows: Any
    ) -> Iterator[EpochDriver]:
        """Create a driver on a new target. The folder is kept only if a rule is broken.

        Args:
            writing: As for `EpochDriver`; None is `SinkUnderTest.usual_writing`.
            zone: As for `EpochDriver`.
            rows: The special properties of the rows, as for `SampleRows`.
        """
        made, folder = self.new()
        sink, pool = SampleRows(**rows).of(made), self.pool(made)
        way = writing or made.usual_writing
        with EpochDriver(
            sink, folder, writing=way, promise=self.promise, pool=pool, zone=zone
        ) as driver:
            driver.how |= {n: given for n, given in {**rows, "zone": zone}.items() if given}
            yield driver
        shutil.rmtree(folder, ignore_errors=True)

    def __call__(self, *steps: Step, **how: Any) -> bool:
        """Run steps that may fail; then new drivers must finish all epochs.

        Args:
            steps: The steps.
            how: As for `driver`.

        Returns:
            True if a call has failed and its step still succeeded.
        """
        with self.driver(**how) as driver:
            driver.run(steps)
            driver.settle()
            return driver.survived

    def well(self, *steps: Step, **how: Any) -> None:
        """Run steps of which each must succeed; otherwise as a call of this object."""
        with self.driver(**how) as driver:
            driver.expect_well(*steps)
            driver.settle()

    def at_every_call(  # noqa: PLR0913  what a case says about its traps, each by its name
        self,
        steps: tuple[Step, ...],
        traps: Traps,
        then: Callable[[int], tuple[Step, ...]] = lambda _: (),
        *,
        before: tuple[Step, ...] = (),
        writing: Writing | None = None,
        whole: bool = False,
    ) -> None:
        """Run the steps repeatedly, each time with a trap at another call to the outside.

        Args:
            steps: They succeed without a trap. Those that can have a trap get it in turn.
            traps: The traps for a call, by its index.
            then: The steps that follow after a trap at a call, where they are possible.
            before: The first steps, without traps.
            writing: As for `driver`.
            whole: True if a commit gets all of its traps, however few are tried elsewhere; and
                a step that survives an error gets an outage there, and a second error soon after.
        """
        for place, step in enumerate(steps):
            if not isinstance(step, _TRAPPED):
                continue
            begun = (*before, *steps[:place])
            made = self.calls((*begun, step), writing)
            at_calls = [(n, trap) for n, call in enumerate(made) for trap in traps(n, call)]
            every = whole and isinstance(step, Commit)
            for number, trap in at_calls if every else self.drawn(at_calls):
                after = (*steps[place + 1 :], *then(number))
                survived = self(*begun, replace(step, trap=trap), *after, writing=writing)
                if survived and whole and isinstance(trap, Fault):
                    for worse in self._worsen(trap):
                        self(*begun, replace(step, trap=worse), *after, writing=writing)

    def _worsen(self, survived: Fault) -> Iterator[Fault | Faults]:
        """Yield worse faults for a step that survived one: an outage, or a second error soon."""
        yield replace(survived, lasting=True)
        for later in range(1, _SOON + 1):
            pairs = (Fault(survived.call + later, happened=happened) for happened in (False, True))
            yield from (Faults((survived, second)) for second in pairs if self.is_drawn())

    def calls(self, steps: tuple[Step, ...], writing: Writing | None = None) -> tuple[Call, ...]:
        """Return the calls to the outside of the last of these steps.

        Raises:
            Broken: If the step fails: it would make few calls, and a case would try nothing.
        """
        *begun, last = steps
        with self.driver(writing=writing) as driver:
            driver.run(begun)
            driver.expect_well(last)
            return driver.calls

    def find_call_that_shows_rows(self, begun: tuple[Step, ...], calls: list[int]) -> int:
        """Return the first call of a commit after which a death leaves its rows visible.

        Args:
            begun: The steps before the commit; no row is visible after them.
            calls: The indexes of calls of the commit, ascending. The last one is returned if its
                rows become visible without any of them.
        """

        def shows(number: int) -> bool:
            with self.driver() as driver:
                driver.run((*begun, Commit(Fault(number, happened=True, reported=False))))
                return driver.shows_rows()

        first = bisect_left(calls, 1, key=shows)
        return calls[min(first, len(calls) - 1)]


class SourcePlayer(Player[SourceUnderTest]):
    """The player of one case of a source.

    Attributes:
        roles: For each role of a trap, the function of `read_roles` that it affects.
    """

    roles: ClassVar[Mapping[TrapAt, str]] = {
        "latest": "choose",
        "plan": "partitions",
        "read": "rows",
    }

    def driver(
        self,
        options: Mapping[str, str] | None = None,
        source: SourceUnderTest | None = None,
        *,
        odd: Collection[str] = (),
        zone: str | None = None,
    ) -> SourceDriver:
        """Create a driver of a new source, or of the one given.

        Args:
            options: Options beside those of the source; with ``eventTime``, times go back and
                forth.
            source: An existing source.
            odd: The columns with values that sources get wrong.
            zone: As for `SourceDriver`.
        """
        chosen = source or self.source()
        if options and "eventTime" in options:
            chosen = _back_and_forth(chosen, options["eventTime"])
        driver = SourceDriver(
            chosen.with_odd(odd) if odd else chosen,
            options=options,
            promise=self.promise,
            pool=self.pool(chosen),
            zone=zone,
        )
        driver.how |= {name: v for name, v in {"odd": odd, "zone": zone}.items() if v}
        return driver

    def source(self) -> SourceUnderTest:
        """Return a source over new, empty data."""
        return self.new()[0]

    def __call__(
        self,
        *steps: Step,
        options: Mapping[str, str] | None = None,
        skipped: int = 0,
        odd: Collection[str] = (),
        zone: str | None = None,
    ) -> SourceDriver:
        """Run steps that may fail; then every row must have been read once.

        Returns:
            The driver, after its end.
        """
        with self.driver(options, odd=odd, zone=zone) as driver:
            driver.run(steps)
            driver.drain(skipped=skipped)
        return driver

    def at_every_call(
        self, traps: Traps, options: Mapping[str, str] | None = None, skipped: int = 0
    ) -> None:
        """Run a batch repeatedly, each time with a trap at another call to the outside.

        A batch that survives an error gets an outage there: it may only have tried again.
        """
        for at, made in self.calls(options).items():
            every = (trap for number, call in enumerate(made) for trap in traps(number, call))
            for trap in self.drawn(every):
                trapped = Trigger(at=at, trap=trap)  # type: ignore[arg-type]  # literal, and no sleeps
                steps = (Add(), trapped, Trigger(), Add(), trapped)
                driver = self(*steps, options=options, skipped=skipped)
                if driver.survived and isinstance(trap, Fault):
                    lasting = replace(trapped, trap=replace(trap, lasting=True))
                    self(Add(), lasting, options=options, skipped=skipped)

    def calls(self, options: Mapping[str, str] | None = None) -> dict[TrapAt, tuple[Call, ...]]:
        """Return the calls to the outside of a first batch, by the role of a trap.

        A source that starts at the end of its system plans and reads nothing at first: those
        calls are the second batch's.
        """
        with self.driver(options) as driver:
            driver.run([Add(), Trigger()])
            found = dict(driver.calls)
            if not driver.ends:
                driver.run([Add(), Trigger()])
            found = {**driver.calls, **found}
            return {at: found.get(name, ()) for at, name in self.roles.items()}


# Within eight rows: later rows may be older, and the next eight are newer than all of these.
_ORDER = (2, 3, 6, 7, 0, 1, 4, 5)


def _back_and_forth(source: SourceUnderTest, column: str) -> SourceUnderTest:
    """Return the source with times out of the order of the rows; nothing else changes."""
    row, place = source.row, source.schema.names.index(column)

    def moved(number: int) -> tuple[Any, ...]:
        time = row(number // 8 * 8 + _ORDER[number % 8])[place]
        return (*row(number)[:place], time, *row(number)[place + 1 :])

    return replace(source, row=moved)


CaseT = TypeVar("CaseT", bound=Callable[..., None])


def of_batches(case: CaseT) -> CaseT:
    """Mark a case that also applies to a connector without streams."""
    case.__dict__["of_batches"] = True
    return case


class Suite:
    """The fixtures of every suite."""

    @pytest.fixture
    def promise(self, request: pytest.FixtureRequest) -> str:
        """Return the promise of the case: its docstring."""
        return " ".join((request.function.__doc__ or request.node.name).split())

    @pytest.fixture
    def one_in(self, request: pytest.FixtureRequest) -> int:
        """Return N of the option ``--one-in``: one in N traps and random sequences is tried."""
        given: int | None = request.config.getoption("--one-in", default=None)
        return given or 1

    @pytest.fixture
    def draw(self, request: pytest.FixtureRequest) -> int:
        """Return the seed of the draw."""
        given: int | None = request.config.getoption("--draw", default=None)
        return given or 0

    @pytest.fixture
    def spark_driver(
        self, request: pytest.FixtureRequest, promise: str, tmp_path: Path
    ) -> SparkDriver:
        """Return real Spark; skip the case unless it was requested."""
        if not request.config.getoption("--spark", default=False):
            pytest.skip("real Spark: give -p krishiv_spark.testing.plugin --spark")
        (tmp_path / "spark").mkdir()
        return SparkDriver(tmp_path / "spark", promise)


class ConnectorSuite(Suite, Generic[Subject]):
    """A suite that plays sequences on connectors.

    Attributes:
        random_sequences: The number of random sequences to try.
        sequences: Sequences that failed before; they are tried every time.
    """

    random_sequences: ClassVar[int] = 50
    sequences: ClassVar[Iterable[Sequence]] = ()

    def player(self, folder: Path, promise: str) -> Player[Subject]:
        """Return the player of one case."""
        raise NotImplementedError

    @pytest.fixture
    def play(
        self, request: pytest.FixtureRequest, promise: str, one_in: int, draw: int, tmp_path: Path
    ) -> Iterator[Player[Subject]]:
        """Create and close the player of a case."""
        player = self.player(tmp_path, promise)
        player.thin(one_in, draw)
        player.wants_streams = not hasattr(request.function, "of_batches")
        yield player
        player.close()

    @pytest.fixture
    def declared(self, play: Player[Subject]) -> Subject:
        """Return an unused connector, which shows its abilities."""
        return play.new()[0]

    @of_batches
    def test_sequences_that_failed_once(self, play: Any) -> None:
        """Sequences that failed before succeed."""
        for sequence in self.sequences:
            play(*sequence, **sequence.how)
