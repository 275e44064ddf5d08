"""Suggestions in messages: the known name that is nearest to a wrong one, and the next step.

Advice that may cost rows has one wording.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from itertools import islice
from typing import Final

__all__ = ["NEW_CHECKPOINT", "did_you_mean", "line_of_id", "restore_metadata", "suggest"]

NEW_CHECKPOINT: Final = (
    "a new checkpoint, with options that specify where its sources start: rows that they leave "
    "out are lost, and rows that they read again are there twice"
)
"""Follows "use" or "start the query with"."""


def line_of_id(query: str) -> str:
    """Return the only line of a checkpoint's ``metadata``, without a line break."""
    return json.dumps({"id": query}, separators=(",", ":"))


def restore_metadata(query: str) -> str:
    """Return advice for a checkpoint that has lost the file in which Spark stores the id."""
    return (
        f"restore the checkpoint's file 'metadata', whose one line is {line_of_id(query)} (on a "
        "disk, remove '.metadata.crc' beside it, which is the checksum of another line)"
    )


_MOST_COMPARED = 1_000
"""Maximum number of comparisons. Each takes about ten microseconds, and a file may have thousands
of wrong names.

There are 600 time zones.
"""

_LONGEST_NAME = 200


def suggest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known name that is most similar to another, if one is similar enough (1 is equal).

    Only the first 1 000 known names are compared, and no name of more than 200 characters.
    """
    compared = [each for each in islice(known, _MOST_COMPARED) if len(each) <= _LONGEST_NAME]
    if len(name) > _LONGEST_NAME:
        return None
    return next(iter(difflib.get_close_matches(name, compared, n=1, cutoff=likeness)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a question that contains the nearest name, or another text if no name is near."""
    near = suggest(name, known)
    return f"did you mean {near!r}?" if near else otherwise
