"""Which traps a call to the outside gets, in cases that try every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from krishiv_spark.testing.processes.outside import Call
from krishiv_spark.testing.steps import Fault, Sleep, Trap

__all__ = [
    "Traps",
    "deaths",
    "deaths_before",
    "errors",
    "errors_and_deaths",
    "late_deaths",
    "sleeps",
]

Traps: TypeAlias = Callable[[int, Call], tuple[Trap, ...]]
"""From a call and its number to what shall go wrong there, one after the other."""


def errors(number: int, call: Call) -> tuple[Trap, ...]:
    """An error is reported: it did not happen, or it did."""
    before, after = Fault(number, happened=False), Fault(number, happened=True)
    return (before,) if call.reads else (before, after)


def deaths(number: int, call: Call) -> tuple[Trap, ...]:
    """The process dies before the call, or after it; at a call that looks it changes nothing."""
    return () if call.reads else (*deaths_before(number, call), *late_deaths(number, call))


def deaths_before(number: int, call: Call) -> tuple[Trap, ...]:
    """The process dies before the call, even if that only looks."""
    del call
    return (Fault(number, happened=False, reported=False),)


def late_deaths(number: int, call: Call) -> tuple[Trap, ...]:
    """The process dies after the call."""
    return () if call.reads else (Fault(number, happened=True, reported=False),)


def errors_and_deaths(number: int, call: Call) -> tuple[Trap, ...]:
    """An error is reported, or the process dies after the call."""
    return errors(number, call) + late_deaths(number, call)


def sleeps(number: int, call: Call) -> tuple[Trap, ...]:
    """The process sleeps before the call."""
    return () if call.reads else (Sleep(number),)
