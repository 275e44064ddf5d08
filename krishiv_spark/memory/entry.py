"""What a log of the memory store holds, and how much it may hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from krishiv_spark.errors import CommitRejected

__all__ = ["UNBOUNDED", "Bound", "Header", "StoreEntry"]


@dataclass(frozen=True)
class Header:
    """What is known about an entry without reading its body.

    Attributes:
        first: Lowest number that is visible once this entry is the newest.
        rows: Rows of this entry.
        size: Bytes of its body.
        total_rows: Rows of all entries from `first` to this one.
        total_size: Bytes of their bodies.
        query: Whose rows they are, where a log has entries of several queries.
        stream: Whether the rows are not in the body, but in the log of the streaming query.
        digest: Of an epoch, what tells it from another one of its number.
        keys: Key columns of the newest upsert, sorted; empty without one.
    """

    first: int
    rows: int = 0
    size: int = 0
    total_rows: int = 0
    total_size: int = 0
    query: str = ""
    stream: bool = False
    digest: str | None = None
    keys: Sequence[str] = ()

    def line(self) -> bytes:
        """The header as the first line of its file."""
        found = {name: value for name, value in vars(self).items() if name != "keys" or value}
        return json.dumps(found, separators=(",", ":")).encode() + b"\n"

    def without(self, number: int, old: Header) -> Header:
        """The header after the oldest visible entry has been dropped."""
        return replace(
            self,
            first=number + 1,
            total_rows=self.total_rows - old.rows,
            total_size=self.total_size - old.size,
        )


@dataclass(frozen=True)
class Bound:
    """How much a log may hold; None is no bound.

    Attributes:
        rows: Most rows.
        size: Most bytes of bodies.
        drop_oldest: Whether a full log drops its oldest entries, instead of refusing the new one.
            The newest entry stays even if it exceeds the bound alone.
    """

    rows: int | None = None
    size: int | None = None
    drop_oldest: bool = False

    def admits(self, rows: int, size: int) -> bool:
        """Whether so much is within the bound."""
        return (self.rows is None or rows <= self.rows) and (self.size is None or size <= self.size)

    def refuse(self, rows: int, size: int) -> None:
        """Raise when so much is beyond the bound and nothing may be dropped for it.

        Raises:
            CommitRejected: With what to do.
        """
        if not self.drop_oldest and not self.admits(rows, size):
            raise self.full(rows, size)

    def full(self, rows: int, size: int) -> CommitRejected:
        """The error for a log that has no room."""
        return CommitRejected(
            f"the memory result would have {rows} rows in {size} bytes, but maxRows is "
            f"{self.rows} and maxBytes {self.size}: raise them, set onFull to 'dropOldest', "
            "write less, or remove it with memory_clear()"
        )


UNBOUNDED = Bound()


@dataclass(frozen=True)
class StoreEntry:
    """What is to be appended.

    Attributes:
        bodies: The body, in pieces.
        rows: Rows in it.
        replaces: Whether it takes the place of all earlier entries.
        bound: How much the log may hold with it.
        query: See `Header`.
        stream: See `Header`.
        digest: See `Header`.
        keys: Key columns by which the rows were upserted; empty if they were added.
    """

    bodies: Sequence[bytes] = ()
    rows: int = 0
    replaces: bool = False
    bound: Bound = field(default=UNBOUNDED)
    query: str = ""
    stream: bool = False
    digest: str | None = None
    keys: Sequence[str] = ()

    def after(self, number: int, newest: Header | None) -> Header:
        """The header when the entry follows the newest one, whatever the bound says."""
        before = newest if newest is not None and not self.replaces else Header(first=number)
        size = sum(map(len, self.bodies))
        return Header(
            before.first,
            self.rows,
            size,
            before.total_rows + self.rows,
            before.total_size + size,
            self.query,
            self.stream,
            self.digest,
            self.keys or before.keys,
        )
