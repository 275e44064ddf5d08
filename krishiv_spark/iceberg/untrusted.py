"""Values of a table's metadata, checked before they are used: other programs wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["iterate_ancestors", "parse_count"]

_MOST_DIGITS = 19
"""Of 64 bits, as ids of snapshots have them; Python refuses to convert a few thousand."""


def parse_count(value: object) -> int | None:
    """Return a number that is not negative, as metadata contains it as text; None for others."""
    text = str(value) if type(value) is int else value  # summaries are not always text
    # ``isdigit`` alone accepts characters that ``int`` refuses.
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
        return int(text)
    return None


def iterate_ancestors(snapshots: Mapping[int, Snapshot], start: int | None) -> Iterator[Snapshot]:
    """Yield a snapshot and its ancestors, the newest first, as far as the table has them.

    Ends where an ancestor comes again: damaged metadata may name a child as a parent.

    Args:
        snapshots: By id.
        start: Id of the first one.
    """
    seen: set[int] = set()
    while start is not None and start not in seen and (found := snapshots.get(start)) is not None:
        yield found
        seen.add(start)
        start = found.parent_snapshot_id
