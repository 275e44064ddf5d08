"""How a case plays its sequences: each on a new target, with a driver of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from krishiv_spark.testing.epochs import EpochDriver
from krishiv_spark.testing.outside import Call
from krishiv_spark.testing.processes import Pool
from krishiv_spark.testing.steps import Begin, Commit, Stage, Step, Trap
from krishiv_spark.testing.subjects import SinkUnderTest, Writing

__all__ = ["GOOD_EPOCH", "Player"]

GOOD_EPOCH = (Begin(), Stage(0), Stage(1), Commit())
"""An epoch in which nothing goes wrong."""


class Player:
    """Plays sequences for one case.

    Args:
        make: The author's factory; it gets an empty folder.
        folder: Where those folders are made.
        promise: What the case is after.
    """

    def __init__(self, make: Callable[[Path], SinkUnderTest], folder: Path, promise: str) -> None:
        self._make, self._folder, self._promise = make, folder, promise
        self._numbers = count(1)
        self._pool: Pool | None = None

    def close(self) -> None:
        """End the processes that were kept for the next sequence."""
        if self._pool is not None:
            self._pool.close()

    @contextmanager
    def driver(self, *, writing: Writing = "append") -> Iterator[EpochDriver]:
        """A driver on a new target. The folder is kept only if a rule is broken."""
        folder = self._folder / str(next(self._numbers))
        (folder / "target").mkdir(parents=True)
        sink = self._make(folder / "target")
        self._pool = self._pool or Pool(sink.outside)
        with EpochDriver(
            sink,
            folder,
            writing=writing,
            promise=self._promise,
            pool=self._pool,
        ) as driver:
            yield driver
        shutil.rmtree(folder, ignore_errors=True)

    def __call__(self, *steps: Step, writing: Writing = "append") -> None:
        """Some steps that may go wrong; then new drivers must bring all to a good end."""
        with self.driver(writing=writing) as driver:
            driver.run(steps)
            driver.settle()

    def well(self, *steps: Step, writing: Writing = "append") -> None:
        """Some steps of which each must go well."""
        with self.driver(writing=writing) as driver:
            driver.expect_well(*steps)
            driver.settle()

    def at_every_call(
        self,
        steps: tuple[Step, ...],
        traps: Callable[[int, Call], tuple[Trap, ...]],
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
            if hasattr(step, "trap"):
                begun = (*before, *steps[:place])
                for number, call in enumerate(self._calls((*begun, step), writing)):
                    for trap in traps(number, call):
                        trapped = type(step)(**{**vars(step), "trap": trap})
                        after = (*steps[place + 1 :], *then(number))
                        self(*begun, trapped, *after, writing=writing)

    def _calls(self, steps: tuple[Step, ...], writing: Writing) -> tuple[Call, ...]:
        with self.driver(writing=writing) as driver:
            driver.run(steps)
            return driver.calls
