"""The waits of tests for events that must happen: without limit if the machine is slow enough."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 600
"""Seconds. What does not happen fails then; what happens late does not fail."""

_PAUSE_S = 0.02


def await_that(
    fact: Callable[[], T], told: object = "it did not happen in time", seconds: float = PATIENCE
) -> T:
    """Look until there is something, and hand it over."""
    until = time.monotonic() + seconds
    while not (found := fact()):
        assert time.monotonic() < until, told
        time.sleep(_PAUSE_S)
    return found


def await_none(look: Callable[[], object], told: str) -> None:
    """Look until nothing is left; what is left is shown."""
    until = time.monotonic() + PATIENCE
    while left := look():
        assert time.monotonic() < until, f"{told}: {left}"
        time.sleep(_PAUSE_S)
