"""A record of a process's calls of the disk, in order."""

import os
from pathlib import Path

import pytest


def record_disk(monkeypatch: pytest.MonkeyPatch, *calls: str) -> list[tuple[str, str]]:
    """A list that grows with each such call of `os`: its name, and that of the file it is about.

    Args:
        monkeypatch: Takes it back when the test ends.
        calls: Their names. Of a file that gets another name, that one counts.
    """
    steps: list[tuple[str, str]] = []
    for call in calls:
        monkeypatch.setattr(os, call, _recorded(steps, call, getattr(os, call)))
    return steps


def _recorded(steps, call, function):
    def calling(*args, **named):
        what = args[-1]
        path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what
        steps.append((call, Path(path).name))
        return function(*args, **named)

    return calling
