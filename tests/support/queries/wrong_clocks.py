"""A wall clock that is wrong, for the Python code of this process."""

import time
from collections.abc import Callable

import pytest

DAY_S = 24 * 60 * 60


def shifted_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets by how many seconds the clock is wrong from then on."""
    real_ns, off = time.time_ns, [0]
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + off[0] * 10**9)
    monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9)
    return lambda seconds: off.__setitem__(0, seconds)
