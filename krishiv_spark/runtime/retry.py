"""Attempts until a deadline, with pauses in between, and calls in parallel."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["Backoff", "map_in_parallel"]

_SHORTEST_S, _LONGEST_S = 0.001, 0.25


class Backoff:
    """Pauses between attempts, which grow, differ between processes, and end at a deadline.

    Args:
        timeout_s: Time without progress until the deadline, in seconds.
        shortest_s: Maximum of the first pause, in seconds; each next pause doubles it.
        longest_s: Maximum of all pauses, in seconds.
    """

    def __init__(
        self, timeout_s: float, shortest_s: float = _SHORTEST_S, longest_s: float = _LONGEST_S
    ) -> None:
        self._timeout_s = timeout_s
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self.reset()

    def reset(self) -> None:
        """Reset the deadline and the pauses, since there was progress."""
        self._until_s = time.monotonic() + self._timeout_s
        self._next_s = self._shortest_s

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._until_s - time.monotonic())

    def pause(self) -> bool:
        """Pause and return True; return False at once after the deadline."""
        if time.monotonic() >= self._until_s:
            return False
        time.sleep(_add_jitter(self._next_s))
        self._next_s = min(2 * self._next_s, self._longest_s)
        return True

    def attempts(self) -> Iterator[float]:
        """Yield once for each attempt until the deadline, and pause in between.

        Yields:
            Maximum duration of the attempt, in seconds; more than 0 unless ``timeout_s`` is 0. An
            attempt without time would fail, and its error would hide the earlier one.
        """
        left_s = self._timeout_s
        yield left_s
        while self.pause() and (left_s := self.left_s):
            yield left_s

    def pause_or_raise(self, error: Callable[[], Exception]) -> None:
        """Pause before the next attempt.

        Raises:
            Exception: The given error, after the deadline.
        """
        if not self.pause():
            raise error()


def _add_jitter(pause_s: float) -> float:
    """Return 50 to 100 % of a pause, so that two drivers that collide do not do so repeatedly."""
    return random.uniform(pause_s / 2, pause_s)  # noqa: S311  no secret


# --- in parallel

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

_MOST = 16


def map_in_parallel(function: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
    """Return the results of a function for each item, in their order; one item needs no thread.

    Raises:
        Exception: The first error of the function, after it was called for all items.
    """
    if len(items) <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(_MOST, len(items)), "krishiv-side") as threads:
        return [call.result() for call in [threads.submit(function, item) for item in items]]
