"""Notes of tasks about what they skipped, for the query's progress.

A task can tell nobody what it left out but by a file on the disk that all workers share. The notes
stay until somebody removes them. A note is no more than that: what is read does not depend on it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["FOLDER", "Skip", "note_skip", "noted_skips"]

_log = logging.getLogger(__name__)

FOLDER = "skipped"
"""The folder of the notes within that of a stream's state."""


class Skip(NamedTuple):
    """A range of a file that was skipped, from some row on.

    Attributes:
        path: Absolute path of the file.
        start: First byte of the range.
        end: Byte after its last one.
        rows: How many rows of the range had been delivered.
        reason: What was wrong.
    """

    path: str
    start: int
    end: int
    rows: int
    reason: str


def note_skip(folder: str | None, skip: Skip) -> None:
    """Write a note. Executor; what goes wrong with it is only logged."""
    if folder is None:
        return
    # One note for a range, however often its task is tried.
    name = hashlib.blake2b(f"{skip.start} {skip.path}".encode(), digest_size=8).hexdigest()
    aside = Path(folder, f".{name}.{uuid.uuid4().hex}")
    try:
        aside.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(skip._asdict(), indent=1))
        os.replace(aside, Path(folder, f"{name}.json"))
    except OSError as error:
        _log.warning("no note could be written about it: %s", error)


def noted_skips(folder: Path) -> list[Skip]:
    """The notes that are there, in no order. Driver."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        with suppress(FileNotFoundError, ValueError, TypeError):  # removed meanwhile, or no note
            found.append(Skip(**json.loads(Path(folder, name).read_text())))
    return found
