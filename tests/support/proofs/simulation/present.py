"""The history that is played in this thread, one at a time, for code that is handed nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.play import Play

__all__ = ["get_present_play", "leave", "make_present"]

_present: list[Play] = []


def make_present(play: Play) -> None:
    """From now on it is this one."""
    _present[:] = [play]


def leave() -> None:
    """There is none."""
    _present.clear()


def get_present_play() -> Play:
    """The one that is played."""
    return _present[0]
