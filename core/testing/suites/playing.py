"""How a case plays its sequences: each on something new and empty, with a driver of its own."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar

from krishiv_spark.testing.drivers.epochs import EpochDriver
from krishiv_spark.testing.drivers.reading import SourceDriver
from krishiv_spark.testing.processes.outside import Call
from krishiv_spark.testing.processes.pool import Pool
from krishiv_spark.testing.steps import (
    Abort,
    Add,
    Begin,
    Commit,
    Stage,
    Step,
    Switch,
    TakeOver,
    Trap,
    Trigger,
)
from krishiv_spark.testing.subjects import SinkUnderTest, SourceUnderTest, Writing
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

_TRAPPED = (Begin, Stage, Commit, Abort)


class Player(Generic[Subject]):
    """Makes what a case plays with.

    Args:
        make: The author's factory; it gets an empty folder.
        folder: Where those folders are made.
        promise: What the case is after.

    Attributes:
        one_in: How many of its traps and random sequences a case tries: all of them with 1, one
            in three with 3. They are drawn, each time the same.
    """

    one_in = 1

    def __init__(self, make: Callable[[Path], Subject], folder: Path, promise: str) -> None:
        self.promise = promise
        self._draw = random.Random(0)  # noqa: S311  no secret
        self._make, self._folder = make, folder
        self._numbers = count(1)
        self._pool: Pool | None = None

    def drawn(self, traps: Iterable[Trap]) -> Iterator[Trap]:
        """Those of some traps that are tried."""
        return (trap for trap in traps if self._draw.randrange(self.one_in) == 0)

    def close(self) -> None:
        """End the processes that were kept for the next sequence."""
        if self._pool is not None:
            self._pool.close()

    def new(self) -> tuple[Subject, Path]:
        """Something new and empty, and a folder beside it for the driver."""
        folder = self._folder / str(next(self._numbers))
        (folder / "target").mkdir(parents=True)
        return self._make(folder / "target"), folder

    def pool(self, subject: Subject) -> Pool:
        """Processes, for one sequence after the other."""
        self._pool = self._pool or Pool(subject.outside)
        return self._pool


class SinkPlayer(Player[SinkUnderTest]):
    """Plays sequences for one case of a sink."""

    @contextmanager
    def driver(
        self, *, writing: Writing = "append", equal_rows: bool = False
    ) -> Iterator[EpochDriver]:
        """A driver on a new target. The folder is kept only if a rule is broken.

        Args:
            writing: As for `EpochDriver`.
            equal_rows: Whether some rows equal others, within an epoch and across epochs.
        """
        made, folder = self.new()
        sink = _with_equal_rows(made) if equal_rows else made
        with EpochDriver(
            sink, folder, writing=writing, promise=self.promise, pool=self.pool(sink)
        ) as driver:
            driver.how |= {"equal_rows": True} if equal_rows else {}
            yield driver
        shutil.rmtree(folder, ignore_errors=True)

    def __call__(self, *steps: Step, **how: Any) -> None:
        """Some steps that may go wrong; then new drivers must bring all to a good end.

        Args:
            steps: The steps.
            how: As for `driver`.
        """
        with self.driver(**how) as driver:
            driver.run(steps)
            driver.settle()

    def well(self, *steps: Step, **how: Any) -> None:
        """Some steps of which each must go well; otherwise as a call of this."""
        with self.driver(**how) as driver:
            driver.expect_well(*steps)
            driver.settle()

    def at_every_call(
        self,
        steps: tuple[Step, ...],
        traps: Traps,
        then: Callable[[int], tuple[Step, ...]] = lambda _: (),
        *,
        before: tuple[Step, ...] = (),
        writing: Writing = "append",
    ) -> None:
        """The steps over and over, each time with a trap at another call to the outside.

        Args:
            steps: They go well without a trap; those that can have one get it, one by one.
            traps: The traps for a call, by its number.
            then: What follows them after a trap at a call, where it is possible.
            before: Steps that come first and have no trap.
            writing: As for `EpochDriver`.
        """
        for place, step in enumerate(steps):
            if isinstance(step, _TRAPPED):
                begun = (*before, *steps[:place])
                for number, call in enumerate(self.calls((*begun, step), writing)):
                    for trap in self.drawn(traps(number, call)):
                        trapped = replace(step, trap=trap)
                        after = (*steps[place + 1 :], *then(number))
                        self(*begun, trapped, *after, writing=writing)

    def calls(self, steps: tuple[Step, ...], writing: Writing) -> tuple[Call, ...]:
        """The calls to the outside that the last of these steps makes."""
        with self.driver(writing=writing) as driver:
            driver.run(steps)
            return driver.calls


class SourcePlayer(Player[SourceUnderTest]):
    """Plays sequences for one case of a source."""

    def driver(
        self, options: Mapping[str, str] | None = None, source: SourceUnderTest | None = None
    ) -> SourceDriver:
        """A driver of a new source, or of the one given; event times go back now and then."""
        chosen = source or self.source()
        if options and "eventTime" in options:
            in_order = chosen.row
            chosen = replace(chosen, row=lambda number: in_order(_back_and_forth(number)))
        return SourceDriver(chosen, options=options, promise=self.promise, pool=self.pool(chosen))

    def source(self) -> SourceUnderTest:
        """The source over something new and empty."""
        return self.new()[0]

    def __call__(
        self, *steps: Step, options: Mapping[str, str] | None = None, skipped: int = 0
    ) -> None:
        """Some steps that may go wrong; then everything must have been read once."""
        with self.driver(options) as driver:
            driver.run(steps)
            driver.drain(skipped=skipped)

    def at_every_call(
        self, traps: Traps, options: Mapping[str, str] | None = None, skipped: int = 0
    ) -> None:
        """A batch over and over, each time with a trap at another call to the outside."""
        for at, made in self.calls(options).items():
            every = (trap for number, call in enumerate(made) for trap in traps(number, call))
            for trap in self.drawn(every):
                trapped = Trigger(at=at, trap=trap)  # type: ignore[arg-type]  # literal, and no sleeps
                self(Add(), trapped, Trigger(), Add(), trapped, options=options, skipped=skipped)

    def calls(self, options: Mapping[str, str] | None = None) -> dict[str, tuple[Call, ...]]:
        """The calls to the outside of a first batch, by what a trap can be at."""
        with self.driver(options) as driver:
            driver.run([Add(), Trigger()])
            names = {"latest": "choose", "plan": "partitions", "read": "rows"}
            return {at: driver.calls.get(name, ()) for at, name in names.items()}


def _with_equal_rows(sink: SinkUnderTest) -> SinkUnderTest:
    row = sink.row  # alone: it travels to other processes, and the oracle cannot
    return replace(sink, row=lambda number: row(number // 2 % 2))


def _back_and_forth(number: int) -> int:
    return number // 8 * 8 + (2, 3, 6, 7, 0, 1, 4, 5)[number % 8]
