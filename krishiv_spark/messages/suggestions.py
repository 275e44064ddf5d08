"""What was probably meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

__all__ = ["did_you_mean", "suggest"]


_MOST_COMPARED = 1_000
"""Each comparison takes some ten microseconds, and a file may have thousands of wrong names.

There are 600 time zones.
"""

_LONGEST_NAME = 200


def suggest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known name that is most like another, if one is like it (1 is equal).

    Only the first 1 000 known names are compared, and no name of more than 200 characters.
    """
    compared = [each for each in islice(known, _MOST_COMPARED) if len(each) <= _LONGEST_NAME]
    if len(name) > _LONGEST_NAME:
        return None
    return next(iter(difflib.get_close_matches(name, compared, n=1, cutoff=likeness)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A question that names the nearest name, or what to say where none is near."""
    near = suggest(name, known)
    return f"did you mean {near!r}?" if near else otherwise
