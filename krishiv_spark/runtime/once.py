"""Warnings that each process logs once."""

from __future__ import annotations

import logging
from collections.abc import Hashable

__all__ = ["warn_once"]

_given: set[tuple[str, Hashable]] = set()


def warn_once(log: logging.Logger, about: Hashable, text: str, *args: object) -> None:
    """Log a warning, unless this process has logged one about the same subject.

    Args:
        log: The logger of the module.
        about: The subject of the warning.
        text: The text with placeholders, as for `logging`.
        args: The values of the placeholders.
    """
    if (log.name, about) not in _given:
        _given.add((log.name, about))
        log.warning(text, *args)
