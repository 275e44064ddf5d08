"""Removing what failed attempts left in a table, by hand: ``krishiv-spark vacuum``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from krishiv_spark.parquet.progress import TableLog, table_logs

__all__ = ["Orphan", "orphans", "remove"]


@dataclass(frozen=True)
class Orphan:
    """A staged file that no epoch will ever name.

    Attributes:
        path: Where it is.
        size: Bytes.
        reason: Why it can go.
    """

    path: Path
    size: int
    reason: str


def orphans(table: Path, older_than_s: float) -> Iterator[Orphan]:
    """What can go from a table, without touching what a live query may still need.

    Files of a generation that another has superseded can never be published, whatever their age.
    Those of the current generation may belong to a batch that is running: they count only when
    they are older than the guard. Files of an intent that is not finished are never orphans.

    Args:
        table: The table's folder.
        older_than_s: Guard age in seconds, by the file's modification time.
    """
    for entry in table_logs(table):
        yield from _of_query(entry, time.time() - older_than_s)


def remove(orphan: Orphan) -> None:
    """Remove one orphan, and its folder when that is empty."""
    orphan.path.unlink(missing_ok=True)
    if not os.listdir(orphan.path.parent):
        orphan.path.parent.rmdir()


def _of_query(entry: TableLog, before: float) -> Iterator[Orphan]:
    state = entry.log.state()
    kept = {state.intent_generation} if entry.unfinished(state) else set()
    for folder in (entry.folder / "staged").glob("*"):
        if not folder.name.isdecimal() or int(folder.name) in kept:
            continue
        superseded = int(folder.name) < state.owner
        for path in folder.iterdir():
            orphan = _judge(path, before, superseded=superseded)
            if orphan is not None:
                yield orphan


def _judge(path: Path, before: float, *, superseded: bool) -> Orphan | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if superseded:
        return Orphan(path, status.st_size, "its generation was superseded")
    if status.st_mtime < before:
        return Orphan(path, status.st_size, "older than the guard age")
    return None
