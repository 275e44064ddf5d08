"""Ways on that errors name and that may cost rows: it is said beside them, in one wording."""

from __future__ import annotations

import json
from typing import Final

__all__ = ["NEW_CHECKPOINT", "line_of_id", "restore_metadata"]

NEW_CHECKPOINT: Final = (
    "a new checkpoint, beside options that say where its sources begin: rows that they leave out "
    "are lost, and rows that they read again are there twice"
)
"""After "use" or "start the query with"."""


def line_of_id(query: str) -> str:
    """Return the one line of a checkpoint's ``metadata``, without a line break."""
    return json.dumps({"id": query}, separators=(",", ":"))


def restore_metadata(query: str) -> str:
    """Return the way on for a checkpoint that has lost the file in which Spark keeps the id."""
    return (
        f"restore the checkpoint's file 'metadata', whose one line is {line_of_id(query)} (on a "
        "disk, remove '.metadata.crc' beside it, which is the checksum of another line)"
    )
