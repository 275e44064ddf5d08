"""A wall clock that is wrong, for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Clock", "at_clock"]


@dataclass
class Clock:
    """The wall clock of the machines of a driver.

    Attributes:
        ahead_s: By how many seconds it is ahead of the right time; negative if it is behind.
    """

    ahead_s: int = 0


def at_clock(ahead_s: int, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function as a process would whose wall clock is wrong.

    Args:
        ahead_s: As `Clock.ahead_s`.
        function: What is called.
        args: Its arguments.
    """
    with _shifted(ahead_s):
        return function(*args)


@contextmanager
def _shifted(ahead_s: int) -> Iterator[None]:
    real = {name: getattr(time, name) for name in ("time", "time_ns", "gmtime", "localtime")}

    def as_struct(name: str) -> Callable[..., time.struct_time]:
        def convert(seconds: float | None = None) -> time.struct_time:
            found: time.struct_time = real[name](time.time() if seconds is None else seconds)
            return found

        return convert

    shifted = {
        "time": lambda: real["time"]() + ahead_s,
        "time_ns": lambda: real["time_ns"]() + ahead_s * 10**9,
        "gmtime": as_struct("gmtime"),
        "localtime": as_struct("localtime"),
    }
    for name, function in shifted.items():
        setattr(time, name, function)
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(time, name, function)
