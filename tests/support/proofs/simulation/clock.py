"""Virtual time, and what production modules take for `time`, `uuid` and `os`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any

__all__ = ["BEGIN_MS", "Clock", "FakeOs", "FakeTime", "FakeUuid"]

BEGIN_MS = 1_700_000_000_000
_SPREAD = 0x9E3779B97F4A7C15F39CC0605CEDC835
"""Odd, so that different numbers stay different when they are multiplied by it."""


class Clock:
    """Milliseconds since 1970, which pass only when somebody says so.

    Attributes:
        now_ms: The time.
        alarm_ms: When `ring` is called next.
        ring: Called when that time has come; it sets the next alarm.
    """

    def __init__(self) -> None:
        self.now_ms = BEGIN_MS
        self.alarm_ms = 2**62
        self.ring: Callable[[], None] = lambda: None

    def pass_ms(self, milliseconds: int) -> None:
        """Time passes."""
        self.now_ms += milliseconds
        if self.now_ms >= self.alarm_ms:
            self.ring()

    def pass_until(self, time_ms: int) -> None:
        """Time passes until a time, unless that is over."""
        self.pass_ms(max(0, time_ms - self.now_ms))


class FakeTime:
    """In place of the module `time`."""

    def __init__(self, clock: Callable[[], Clock], sleep: Callable[[float], None]) -> None:
        self._clock = clock
        self.sleep = sleep

    def monotonic(self) -> float:
        return self._clock().now_ms / 1000

    time = monotonic

    def time_ns(self) -> int:
        return self._clock().now_ms * 1_000_000


class FakeUuid:
    """In place of the module `uuid`."""

    def __init__(self, number: Callable[[], int]) -> None:
        self._number = number

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self._number() * _SPREAD % 2**128)


class FakeOs:
    """In place of the module `os`: everybody has a process of his own."""

    def __init__(self, pid: Callable[[], int]) -> None:
        self.getpid = pid

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)
