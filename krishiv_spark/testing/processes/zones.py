"""Another time zone, for a while."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

__all__ = ["in_zone"]


def in_zone(zone: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function as a process would whose clock is in another zone.

    Args:
        zone: For ``TZ``.
        function: What is called.
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
