"""Which offsets each task of a batch reads. Pure; driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from krishiv_spark.kafka.places import Place

__all__ = ["Piece", "Share", "cut", "shares"]


@dataclass(frozen=True)
class Piece:
    """Offsets of one partition that one task reads.

    Attributes:
        place: The partition.
        topic_id: Id of its topic when the batch was chosen; empty if the cluster has no ids.
        start: First offset.
        end: Last offset, exclusive.
        epoch: Leader epoch in which `end` was found; -1 if it is not known.
    """

    place: Place
    topic_id: str
    start: int
    end: int
    epoch: int = -1

    @property
    def size(self) -> int:
        """Number of offsets; there may be fewer rows."""
        return self.end - self.start


Share: TypeAlias = tuple[Piece, ...]
"""What one task reads."""


def cut(piece: Piece, parts: int) -> list[Piece]:
    """Split a piece into parts whose sizes differ by one at most."""
    bounds = [piece.start + piece.size * i // parts for i in range(parts + 1)]
    return [replace(piece, start=start, end=end) for start, end in pairwise(bounds) if start < end]


def shares(
    pieces: Iterable[Piece],
    *,
    fewest: int | None = None,
    most_offsets: int | None = None,
    together: int = 0,
) -> list[Share]:
    """Spread pieces over tasks, as ``KafkaOffsetRangeCalculator`` does.

    Args:
        pieces: One for each partition.
        fewest: Fewest tasks; larger pieces are split for it. None for one per partition.
        most_offsets: Most offsets of a task.
        together: Pieces that have no more offsets than this together share a task; without effect
            where `fewest` is given.
    """
    found = [piece for piece in pieces if piece.size > 0]
    parts = [part for piece in found for part in cut(piece, _parts(piece, most_offsets))]
    if fewest is not None:
        parts = parts if len(parts) >= fewest else _spread(found, fewest)
        return [(part,) for part in parts]
    return _packed(parts, min(together, most_offsets or together))


def _parts(piece: Piece, most_offsets: int | None) -> int:
    return 1 if most_offsets is None else -(-piece.size // most_offsets)


def _spread(pieces: Sequence[Piece], fewest: int) -> list[Piece]:
    total = sum(piece.size for piece in pieces)
    small = {piece for piece in pieces if _weight(piece, total, fewest) == 1}
    rest = total - sum(piece.size for piece in small)
    wanted = max(fewest - len(small), 1)
    return [
        part
        for piece in pieces
        for part in cut(piece, 1 if piece in small else _weight(piece, rest, wanted))
    ]


def _weight(piece: Piece, total: int, parts: int) -> int:
    return max((2 * piece.size * parts + total) // (2 * total), 1)  # rounded half up


def _packed(parts: Iterable[Piece], together: int) -> list[Share]:
    found: list[list[Piece]] = []
    room = 0
    for part in parts:
        if found and part.size <= room:
            found[-1].append(part)
            room -= part.size
        else:
            found.append([part])
            room = together - part.size
    return [tuple(share) for share in found]
