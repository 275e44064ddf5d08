"""What was probably meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean", "suggest"]


def suggest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known name that is most like another, if one is like it (1 is equal)."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=likeness)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A question that names the nearest name, or what to say where none is near."""
    near = suggest(name, known)
    return f"did you mean {near!r}?" if near else otherwise
