"""Pauses between attempts: they grow, differ between processes, and end at a deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

__all__ = ["Backoff"]

_SHORTEST_S, _LONGEST_S = 0.001, 0.25


class Backoff:
    """Pauses while something does not succeed.

    Args:
        timeout_s: How long it may go on without progress.
        shortest_s: The longest that the first pause may be; each next one doubles that.
        longest_s: The longest that any pause may be.
    """

    def __init__(
        self, timeout_s: float, shortest_s: float = _SHORTEST_S, longest_s: float = _LONGEST_S
    ) -> None:
        self._timeout_s = timeout_s
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self.succeeded()

    def succeeded(self) -> None:
        """There was progress: begin anew."""
        self._until_s = time.monotonic() + self._timeout_s
        self._next_s = self._shortest_s

    @property
    def left_s(self) -> float:
        """How long it may still go on."""
        return max(0.0, self._until_s - time.monotonic())

    def pause(self) -> bool:
        """Wait a little; False at once if time is up."""
        if time.monotonic() >= self._until_s:
            return False
        time.sleep(_jittered(self._next_s))
        self._next_s = min(2 * self._next_s, self._longest_s)
        return True

    def attempts(self) -> Iterator[float]:
        """Begin an attempt, pause, and begin the next, as long as there is time for one.

        Yields:
            How long the attempt may take, in seconds; more than 0 unless ``timeout_s`` is 0. An
            attempt in no time would find out nothing, and hide why those before it failed.
        """
        left_s = self._timeout_s
        yield left_s
        while self.pause() and (left_s := self.left_s):
            yield left_s

    def pause_or_raise(self, error: Callable[[], Exception]) -> None:
        """Wait a little.

        Raises:
            Exception: The one given, if time is up.
        """
        if not self.pause():
            raise error()


def _jittered(pause_s: float) -> float:
    """A half to all of it: drivers that have met each other do not meet again and again."""
    return random.uniform(pause_s / 2, pause_s)  # noqa: S311  no secret
