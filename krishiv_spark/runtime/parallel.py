"""Asking for several things at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["side_by_side"]

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

_MOST = 16


def side_by_side(function: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
    """What a function makes of each item, in their order; of one by one, where there is but one.

    Raises:
        Exception: The first that the function raises, when it has been called for all of them.
    """
    if len(items) <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(_MOST, len(items)), "krishiv-side") as threads:
        return [asked.result() for asked in [threads.submit(function, item) for item in items]]
