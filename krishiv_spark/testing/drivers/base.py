"""The base of the drivers of sinks and sources: a story, processes, and a clean end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from typing_extensions import Self

from krishiv_spark.testing.processes.outside import Outside
from krishiv_spark.testing.processes.pool import Pool
from krishiv_spark.testing.processes.serving import Answer
from krishiv_spark.testing.rules import Broken, Violation
from krishiv_spark.testing.steps import Sequence, Step

__all__ = ["Driver", "unheard", "words"]


class Driver:
    """A driver that does steps and records the outcome of each.

    Args:
        outside: The functions that count as calls to the outside.
        promise: The promise that the caller checks, for the message of a failure.
        pool: Processes to use; None makes new ones.

    Attributes:
        done: The steps so far.
        story: Their outcomes, a line each.
        how: Arguments that a player needs beside the steps to repeat them.
    """

    def __init__(self, outside: Outside, promise: str, pool: Pool | None) -> None:
        self.done: list[Step] = []
        self.story: list[str] = []
        self.how: dict[str, Any] = {}
        self._promise = promise
        self._own_pool = Pool(outside) if pool is None else None
        self._pool = pool or self._own_pool or Pool(outside)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all running processes."""
        if self._own_pool is not None:
            self._own_pool.close()

    def allows(self, step: Step) -> bool:
        """Return True if a step is possible now."""
        del step
        return True

    def do(self, step: Step) -> None:
        """Do one step, then check the rules.

        Raises:
            Broken: If a rule is broken.
            ValueError: If the step is impossible now.
        """
        if not self.allows(step):
            raise ValueError(f"{step} is impossible here, after {Sequence(*self.done)}")
        self.done.append(step)
        self.judged(lambda: self._told(step))
        self.judged(self._look)

    def run(self, sequence: Iterable[Step]) -> None:
        """Do some steps; raise as `do` does.

        Steps that are impossible because an earlier one failed are skipped.
        """
        for step in sequence:
            if self.allows(step):
                self.do(step)

    def judged(self, work: Callable[[], None]) -> None:
        """Run a check; turn a violation into a readable failure.

        Raises:
            Broken: If the check raises a `Violation`.
        """
        try:
            work()
        except Violation as found:
            again = Sequence(*self.done, **self.how)
            raise Broken(found, self._promise, self.story, again) from None

    def tell(self, text: str, step: Step | None = None) -> None:
        """Add a line to the story."""
        cause = "" if step is None else f"{step}: "
        self.story.append(f"{len(self.story) + 1:2} {cause}{text}")

    def _told(self, step: Step) -> None:
        try:
            text = self._do(step)
        except Violation:
            self.tell("breaks the rule", step)
            raise
        self.tell(text, step)

    def _do(self, step: Step) -> str:
        """Do a step; return its outcome."""
        raise NotImplementedError

    def _look(self) -> None:
        """Compare the visible rows with the expected ones."""


def words(answer: Answer) -> str:
    """Return an answer as a line of the story."""
    if answer.outcome == "asleep":
        return f"sleeps before {answer.value}"
    known = {"returned": "succeeds", "died": f"its process dies{answer.value or ''}"}
    return f"{known.get(answer.outcome, f'fails with {answer.error}')}{unheard(answer)}"


def unheard(answer: Answer) -> str:
    """Return the failed call for the story, unless the error that resulted names it."""
    if not answer.sprung or answer.sprung in answer.error:
        return ""
    word = "although" if answer.survived else "after"
    return f", {word} {answer.sprung} has reported an error"
