"""Ways on that errors name and that may cost rows: it is said beside them, in one wording."""

from __future__ import annotations

from typing import Final

__all__ = ["NEW_CHECKPOINT"]

NEW_CHECKPOINT: Final = (
    "a new checkpoint, beside options that say where its sources begin: rows that they leave out "
    "are lost, and rows that they read again are there twice"
)
"""After "use" or "start the query with"."""
