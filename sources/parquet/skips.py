"""Notes of tasks about what they skipped, for the query's progress.

A task can tell nobody what it left out but by a file that it writes beside the state. The notes
stay until somebody removes them. A note is no more than that: what is read does not depend on it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from krishiv_spark.errors import StorageError
from krishiv_spark.storage import Folder, Storage, StoreUrl

__all__ = ["FOLDER", "Skip", "all_skips", "note_skip", "noted_skips"]

_log = logging.getLogger(__name__)

FOLDER = "skipped"
"""The folder of the notes within that of a stream's state."""

_ENDING = ".json"


class Skip(NamedTuple):
    """A range of a file that was skipped, from some row on.

    Attributes:
        path: Whole path or URL of the file.
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


def note_skip(folder: Folder | None, skip: Skip) -> None:
    """Write a note. Executor; what goes wrong with it is only logged."""
    if folder is None:
        return
    # One note for a range, however often its task is tried.
    name = hashlib.blake2b(f"{skip.start} {skip.path}".encode(), digest_size=8).hexdigest()
    try:
        folder.replace(f"{name}{_ENDING}", json.dumps(skip._asdict(), indent=1).encode())
    except (OSError, StorageError) as error:
        _log.warning("this could not be recorded: %s", error)


def noted_skips(folder: Folder, known: dict[str, Skip]) -> list[Skip]:
    """The notes that are there, in no order. Driver.

    Args:
        folder: Where they are.
        known: Those that were read before, by name; others are added.
    """
    names = {name for name in folder.names() if name.endswith(_ENDING)}
    for name in names.difference(known):
        with suppress(ValueError, TypeError, StorageError):  # no note
            known[name] = Skip(**json.loads(folder.read(name) or b""))  # or removed meanwhile
    return [skip for name, skip in known.items() if name in names]


def all_skips(place: StoreUrl, storage: Storage) -> Iterator[tuple[str, Skip]]:
    """What the streams skipped whose state is in a folder, with the name of each stream's own.

    Raises:
        FileNotFoundError: If there is no such folder; a bucket has any.
        StorageError: If it cannot be listed.
    """
    for entry in sorted(storage.files(place).entries(str(place)), key=lambda found: found.name):
        if entry.is_dir():
            for skip in noted_skips(storage.folder(place / entry.name / FOLDER), {}):
                yield entry.name, skip
