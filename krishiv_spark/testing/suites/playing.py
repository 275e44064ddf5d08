"""How a case plays its sequences: each on something new and empty, with a driver of its own."""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from krishiv_spark.testing.drivers.epochs import EpochDriver
from krishiv_spark.testing.drivers.reading import SourceDriver
from krishiv_spark.testing.processes.outside import Call
from krishiv_spark.testing.processes.pool import Pool
from krishiv_spark.testing.steps import (
    Abort,
    Add,
    Begin,
    Commit,
    Fault,
    Faults,
    Stage,
    Step,
    Switch,
    TakeOver,
    TrapAt,
    Trigger,
)
from krishiv_spark.testing.subjects import SampleRows, SinkUnderTest, SourceUnderTest, Writing
from krishiv_spark.testing.suites.traps import Traps

__all__ = [
    "BEGIN",
    "COMMIT",
    "FAILED_EPOCH",
    "GOOD_EPOCH",
    "OVERTAKEN",
    "STAGED",
    "Player",
    "SinkPlayer",
    "SourcePlayer",
]

T = TypeVar("T")
Subject = TypeVar("Subject", bound=SinkUnderTest | SourceUnderTest)

BEGIN, COMMIT = (Begin(),), (Commit(),)
"""The steps of the driver, for cases that let something go wrong in them alone."""

STAGED = (Begin(), Stage(0), Stage(1))
"""An epoch that waits for its commit."""

GOOD_EPOCH = (*STAGED, Commit())
"""An epoch in which nothing goes wrong."""

FAILED_EPOCH = (Begin(), Stage(0), Stage(1, "fails"), Abort())
"""An epoch one of whose tasks fails for good."""

OVERTAKEN = (TakeOver(), *GOOD_EPOCH, *GOOD_EPOCH, Switch())
"""Another driver takes over and writes two epochs; then the first one wakes."""

_SOON = 3
"""So many calls later is what was made because of an error: a look, or another try."""

_TRAPPED = (Begin, Stage, Commit, Abort)


class Player(Generic[Subject]):
    """Makes what a case plays with.

    Args:
        make: The author's factory; it gets an empty folder.
        folder: Where those folders are made.
        promise: What the case is after.

    Attributes:
        one_in: How many of its traps and random sequences a case tries: all of them with 1, one
            in three with 3. They are drawn.
        wants_streams: Whether the case is skipped for a connector that has batches only.
        target: The folder of the author's that was made last.
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
        """Try one in so many traps and random sequences, drawn with this seed."""
        self.one_in = one_in
        # Each case draws its own, or all would try traps at the same places.
        self._draw.seed(f"{seed} {self.promise}")

    def drawn(self, traps: Iterable[T]) -> list[T]:
        """Those of some traps that are tried: one at least, or a case would have tried nothing."""
        every = list(traps)
        return [each for each in every if self.is_drawn()] or (every and [self._draw.choice(every)])

    def is_drawn(self) -> bool:
        """Whether something that may be left out is tried."""
        return self._draw.randrange(self.one_in) == 0

    def close(self) -> None:
        """End the processes that were kept for the next sequence."""
        if self._pool is not None:
            self._pool.close()

    def new(self) -> tuple[Subject, Path]:
        """Something new and empty, and the folder that holds its own and what a driver keeps."""
        folder = self._folder / str(next(self._numbers))
        # Unique beyond this folder: authors name what is outside after it, such as a table.
        target = folder / f"target-{uuid.uuid4().hex[:12]}"
        target.mkdir(parents=True)
        made = self._make(target)
        if self.wants_streams and not made.has_stream:
            pytest.skip("declared: no streams")
        self.target = target
        return made, folder

    def pool(self, subject: Subject) -> Pool:
        """Processes, for one sequence after the other."""
        self._pool = self._pool or Pool(subject.outside)
        return self._pool


class SinkPlayer(Player[SinkUnderTest]):
    """Plays sequences for one case of a sink."""

    @contextmanager
    def driver(
        self, *, writing: Writing | None = None, zone: str | None = None, **rows: Any
    ) -> Iterator[EpochDriver]:
        """A driver on a new target. The folder is kept only if a rule is broken.

        Args:
            writing: As for `EpochDriver`; None is `SinkUnderTest.usual_writing`.
            zone: As for `EpochDriver`.
            rows: What is special about them, as for `SampleRows`.
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
        """Some steps that may go wrong; then new drivers must bring all to a good end.

        Args:
            steps: The steps.
            how: As for `driver`.

        Returns:
            Whether a call has failed that nobody minded.
        """
        with self.driver(**how) as driver:
            driver.run(steps)
            driver.settle()
            return driver.survived

    def well(self, *steps: Step, **how: Any) -> None:
        """Some steps of which each must go well; otherwise as a call of this."""
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
        """The steps over and over, each time with a trap at another call to the outside.

        Args:
            steps: They go well without a trap; those that can have one get it, one by one.
            traps: The traps for a call, by its number.
            then: What follows them after a trap at a call, where it is possible.
            before: Steps that come first and have no trap.
            writing: As for `driver`.
            whole: Whether a commit gets all of its traps, however few are tried elsewhere; and
                whoever survives an error gets an outage there, and a second error soon after.
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
                    for worse in self._worse(trap):
                        self(*begun, replace(step, trap=worse), *after, writing=writing)

    def _worse(self, survived: Fault) -> Iterator[Fault | Faults]:
        """What whoever has survived an error may not survive: an outage, or a second one soon."""
        yield replace(survived, lasting=True)
        for later in range(1, _SOON + 1):
            pairs = (Fault(survived.call + later, happened=happened) for happened in (False, True))
            yield from (Faults((survived, second)) for second in pairs if self.is_drawn())

    def calls(self, steps: tuple[Step, ...], writing: Writing | None = None) -> tuple[Call, ...]:
        """The calls to the outside that the last of these steps makes.

        Raises:
            Broken: If it does not go well: it would make few calls, and a case would try nothing.
        """
        *begun, last = steps
        with self.driver(writing=writing) as driver:
            driver.run(begun)
            driver.expect_well(last)
            return driver.calls


class SourcePlayer(Player[SourceUnderTest]):
    """Plays sequences for one case of a source.

    Attributes:
        roles: By what a trap can be at, the function of `read_roles` that meets it.
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
        """A driver of a new source, or of the one given.

        Args:
            options: Options beside those of the source; with ``eventTime``, times go back and
                forth.
            source: One that there is already.
            odd: Columns that have values which sources get wrong.
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
        """The source over something new and empty."""
        return self.new()[0]

    def __call__(
        self,
        *steps: Step,
        options: Mapping[str, str] | None = None,
        skipped: int = 0,
        odd: Collection[str] = (),
        zone: str | None = None,
    ) -> SourceDriver:
        """Some steps that may go wrong; then everything must have been read once.

        Returns:
            The driver, at its end.
        """
        with self.driver(options, odd=odd, zone=zone) as driver:
            driver.run(steps)
            driver.drain(skipped=skipped)
        return driver

    def at_every_call(
        self, traps: Traps, options: Mapping[str, str] | None = None, skipped: int = 0
    ) -> None:
        """A batch over and over, each time with a trap at another call to the outside.

        Whoever survives an error gets an outage there: it may only have tried again.
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
        """The calls to the outside of a first batch, by what a trap can be at.

        Where a source begins where its system is now, nothing is planned or read at first: those
        calls are the second batch's.
        """
        with self.driver(options) as driver:
            driver.run([Add(), Trigger()])
            found = dict(driver.calls)
            if not driver.ends:
                driver.run([Add(), Trigger()])
            found = {**driver.calls, **found}
            return {at: found.get(name, ()) for at, name in self.roles.items()}


# Within eight rows: what is added later may be older, and the next eight are newer than all of
# these.
_ORDER = (2, 3, 6, 7, 0, 1, 4, 5)


def _back_and_forth(source: SourceUnderTest, column: str) -> SourceUnderTest:
    """The same with times that are no longer in the order of the rows; nothing else moves."""
    row, place = source.row, source.schema.names.index(column)

    def moved(number: int) -> tuple[Any, ...]:
        time = row(number // 8 * 8 + _ORDER[number % 8])[place]
        return (*row(number)[:place], time, *row(number)[place + 1 :])

    return replace(source, row=moved)
