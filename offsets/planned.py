"""Spark's plan of an epoch: its identity, beside its number."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256

from krishiv_spark.offsets.offset import Value

__all__ = ["ROWS", "PlannedOffsets", "part_of_query", "whole_query"]


_LONGEST_SHOWN = 4096
"""Number of characters. Every owner entry of an epoch log contains them."""
_UNSEEN = "query:"
_ROWS = "rows:"
_WRITER = "writer:"


class PlannedOffsets(Value):
    """The offsets between which an epoch lies, as Spark recorded them before it ran.

    A number alone is no identity: after a checkpoint was restored from an older copy, Spark assigns
    the same numbers to other rows.

    Attributes:
        epoch: Spark's batch id.
        begins: Digest of the offsets of all sources at which the previous epoch ended.
        ends: Digest of the offsets at which this one ends.
        shown: The text of the latter, for messages; None if they are long.
    """

    epoch: int
    begins: str
    ends: str
    shown: str | None = None

    @classmethod
    def of(cls, epoch: int, begins: Mapping[str, str], ends: Mapping[str, str]) -> PlannedOffsets:
        """Create the plan from the texts of the sources' offsets, by source.

        Args:
            epoch: Spark's batch id.
            begins: The offsets at which the previous epoch ended; empty for epoch 0.
            ends: The offsets at which this one ends.
        """
        shown = ", ".join(f"{source}: {offset}" for source, offset in ends.items())
        return cls(
            epoch=epoch,
            begins=_digest(begins),
            ends=_digest(ends),
            shown=shown if len(shown) <= _LONGEST_SHOWN else None,
        )

    @classmethod
    def of_unknown(cls, epoch: int, query: str) -> PlannedOffsets:
        """Create the plan of an epoch with unreadable offsets: only Spark's query is known.

        All epochs of the query have the same offsets, so that each may follow each other one, and
        no epoch of another query may.

        Args:
            epoch: Spark's batch id.
            query: Spark's own id of the query.
        """
        same = f"{_UNSEEN}{_digest({'query': query})}"
        return cls(epoch=epoch, begins=same, ends=same, shown=f"Spark's query {query}")

    @classmethod
    def of_rows(
        cls, epoch: int, rows: int, checksum: int, *, writer: str | None = None
    ) -> PlannedOffsets:
        """Create the plan of an epoch that is identified by its rows, since it has no offsets.

        Args:
            epoch: The number that the user specified.
            rows: The number of rows.
            checksum: The checksum of all rows.
            writer: As for `of_writer`.
        """
        same = f"{_ROWS}{rows}:{checksum:016x}"
        begins = same if writer is None else _writer_text(writer)
        return cls(epoch=epoch, begins=begins, ends=same, shown=f"{rows} rows")

    @classmethod
    def of_writer(cls, epoch: int, writer: str) -> PlannedOffsets:
        """Create the plan of an epoch whose rows are not compared.

        Args:
            epoch: The number that the user specified.
            writer: Spark's id of the query that wrote it, if its batches have another name.
        """
        return cls(epoch=epoch, begins=_writer_text(writer), ends="")

    @staticmethod
    def rows_of(digest: str) -> int | None:
        """Return the number of rows that a digest contains; None if it contains none."""
        found = re.search(rf"(?:^|-){_ROWS}(\d+):", digest)
        return None if found is None else int(found[1])

    @staticmethod
    def writer_of(digest: str) -> str | None:
        """Return the writer in a digest, from `of_writer`; None without one."""
        begins, _, _ = digest.partition("-")
        if not begins.startswith(_WRITER):
            return None
        return begins.removeprefix(_WRITER).replace(".", "-")

    @staticmethod
    def content_of(digest: str) -> str:
        """Return the part of a digest that does not name a writer; empty if there is none."""
        _, _, ends = digest.partition("-")
        is_of_rows = digest.startswith((_WRITER, _ROWS))
        return ends if is_of_rows else digest

    @staticmethod
    def ends_of(digest: str) -> str | None:
        """Return the digest of an epoch's end; None if the epoch has no offsets."""
        _, _, ends = digest.partition("-")
        return ends if ends and ":" not in ends else None

    @property
    def is_unseen(self) -> bool:
        """True if only Spark's query is known."""
        return self.begins.startswith(_UNSEEN)

    @property
    def digest(self) -> str:
        """Digest that distinguishes this epoch from another one with the same number."""
        return f"{self.begins}-{self.ends}"

    def may_follow(self, digest: str | None) -> bool:
        """Return True if this epoch starts where the previous one ended, or if that is unknown.

        Args:
            digest: The digest of the previous epoch, if it is known.
        """
        _, _, ended = (digest or "").partition("-")
        return ended in {"", self.begins}


def _writer_text(writer: str) -> str:
    # A '-' separates the two parts of a digest, and no id contains a dot.
    return f"{_WRITER}{writer.replace('-', '.')}"


def _digest(offsets: Mapping[str, str]) -> str:
    # Records and logs contain it permanently, so neither the text nor its length can change. 96
    # bits are enough, since no party gains by a forged one; sources are in Spark's order, which is
    # a part of their identity.
    return sha256(json.dumps(offsets).encode()).hexdigest()[:24]


ROWS = "rows"
"""Route of the rows of a sink with dead letters. Targets know the query by it: it never changes."""


def part_of_query(query: str, route: str) -> str:
    """Return the id of a query's part that one route receives."""
    return f"{query}-{route}"


def whole_query(part: str, route: str | None) -> str:
    """Return the query that a part belongs to; the query itself without a route."""
    return part if route is None else part.removesuffix(f"-{route}")
