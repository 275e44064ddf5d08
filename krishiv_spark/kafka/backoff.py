"""Pauses between attempts, which grow, up to a time limit without progress."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Backoff"]

_SHORTEST_S, _LONGEST_S = 0.001, 0.25


class Backoff:
    """Pauses while something does not succeed.

    Args:
        timeout_s: How long it may go on.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.succeeded()

    def succeeded(self) -> None:
        """There was progress: begin anew."""
        self._until_s = time.monotonic() + self._timeout_s
        self._next_s = _SHORTEST_S

    @property
    def left_s(self) -> float:
        """How long it may still go on."""
        return max(0.0, self._until_s - time.monotonic())

    def pause(self) -> bool:
        """Wait a little; False at once if time is up."""
        if time.monotonic() >= self._until_s:
            return False
        time.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, _LONGEST_S)
        return True

    def pause_or_raise(self, error: Callable[[], Exception]) -> None:
        """Wait a little.

        Raises:
            Exception: The one given, if time is up.
        """
        if not self.pause():
            raise error()
