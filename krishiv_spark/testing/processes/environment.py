"""The clock, the time zone and the memory of a process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

__all__ = ["Clock", "at_clock", "give_back_memory", "in_zone", "memory_now", "memory_peak"]


@dataclass
class Clock:
    """The wall clock of the machines of a driver.

    Attributes:
        ahead_s: Seconds by which it is ahead of the right time; negative if it is behind.
    """

    ahead_s: int = 0


def at_clock(ahead_s: int, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function under a wall clock that is wrong.

    Args:
        ahead_s: As `Clock.ahead_s`.
        function: The function.
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


def in_zone(zone: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in another time zone.

    Args:
        zone: The value of ``TZ``.
        function: The function.
        args: Its arguments.
    """
    before = os.environ.get("TZ")
    _set(zone)
    try:
        return function(*args)
    finally:
        _set(before)


def _set(zone: str | None) -> None:
    if zone is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = zone
    time.tzset()


_KIB = 1024
_STATUS = Path("/proc/self/status")


def give_back_memory() -> None:
    """Return free memory to the system; otherwise the process would fill it before it grows."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError, OSError):  # glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def memory_now() -> int:
    """Return the bytes in use by this process, or its peak where the system reports only that."""
    return _status("VmRSS")


def memory_peak() -> int:
    """Return the bytes of this process at its peak."""
    return _status("VmHWM")


def _status(name: str) -> int:
    if _STATUS.exists():  # on Linux, ru_maxrss is no less than that of the process that called exec
        found = re.search(rf"{name}:\s*(\d+) kB", _STATUS.read_text())
        return int(found[1]) * _KIB if found else 0
    # getrusage counts bytes on macOS, and KiB on Linux.
    unit = 1 if sys.platform == "darwin" else _KIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
