"""Which epochs of a table are wholly visible."""

from __future__ import annotations

from pathlib import Path

__all__ = ["visible_epochs"]


def visible_epochs(table: Path) -> dict[str, int]:
    """The newest wholly visible epoch of each query that writes a table, by its tag.

    Epochs above it may be half visible or unknown and must be left for later. A query without an
    entry (its log was removed, or the files were copied here) has nothing to wait for.
    """
    raise NotImplementedError(table)
