"""Warnings that each process gives once."""

from __future__ import annotations

import logging
from collections.abc import Hashable

__all__ = ["warn_once"]

_given: set[tuple[str, Hashable]] = set()


def warn_once(log: logging.Logger, about: Hashable, text: str, *args: object) -> None:
    """Log a warning, unless this process has given the logger one about the same thing.

    Args:
        log: Of the module that warns.
        about: What is warned of.
        text: With places for the rest, as `logging` takes it.
        args: What stands there.
    """
    if (log.name, about) not in _given:
        _given.add((log.name, about))
        log.warning(text, *args)
