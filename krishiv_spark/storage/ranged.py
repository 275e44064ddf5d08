"""A file that is read by requests for ranges of bytes: few requests, and in bounded memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from krishiv_spark.runtime.retry import map_in_parallel

__all__ = ["TAIL_BYTES", "RangedFile"]

TAIL_BYTES = 64 * 2**10
"""Size of the first request, as in PyArrow: it contains most footers."""

_HELD_BYTES = 64 * 2**20
"""Maximum number of bytes to fetch ahead of the reader."""

_PIECE_BYTES = 8 * 2**20
_LEAST_BYTES = 2**20
_GAP_BYTES = 128 * 2**10
"""A request costs about as much as reading these bytes, so a smaller gap is read with its
neighbours."""


@dataclass
class _Range:
    """A range that is read from its first byte to its last, with its fetched bytes."""

    start: int
    end: int
    at: int = 0
    held: bytes = b""

    def has(self, start: int, end: int) -> bool:
        return self.at <= start and end <= self.at + len(self.held)

    def slice_of(self, start: int, end: int) -> bytes:
        return self.held[start - self.at : end - self.at]


class RangedFile(io.RawIOBase):
    """A file for reading. Executor or driver; one reader.

    Args:
        size: Size in bytes.
        tail: Its last bytes, which are fetched already.
        fetch: A function that requests bytes, from the first to the one before the second argument.
    """

    def __init__(self, size: int, tail: bytes, fetch: Callable[[int, int], bytes]) -> None:
        super().__init__()
        self._size = size
        self._fetch = fetch
        self._at = 0
        self._tail = _Range(size - len(tail), size, size - len(tail), tail)
        self._ranges: list[_Range] = []
        self._ahead = _HELD_BYTES

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch the first bytes of ranges, as for `OpenedFile`; earlier ranges are dropped."""
        total = sum(end - start for start, end in ranges)
        share = max(_LEAST_BYTES, _HELD_BYTES // max(1, len(ranges)))
        self._ahead = _HELD_BYTES if total <= _HELD_BYTES else share
        self._ranges = [_Range(start, end, start) for start, end in sorted(ranges)]
        if total <= _HELD_BYTES:
            self._ranges = [_Range(start, end, start) for start, end in _join_close(ranges)]
        self._fill()

    def _fill(self) -> None:
        """Fetch the first part of each range, in parallel."""
        pieces = [
            (one, at, min(at + _PIECE_BYTES, one.start + self._ahead, one.end))
            for one in self._ranges
            for at in range(one.start, min(one.start + self._ahead, one.end), _PIECE_BYTES)
        ]
        found = map_in_parallel(lambda piece: self._fetch(piece[1], piece[2]), pieces)
        parts: dict[int, list[bytes]] = {}
        for (one, _, _), data in zip(pieces, found, strict=True):
            parts.setdefault(one.start, []).append(data)
        for one in self._ranges:
            one.held = b"".join(parts.get(one.start, ()))

    def _read_range(self, start: int, end: int) -> bytes:
        one = next((w for w in self._ranges if w.start <= start and end <= w.end), None)
        for known in (self._tail, one):
            if known is not None and known.has(start, end):
                return known.slice_of(start, end)
        if one is None:
            return self._fetch(start, end)
        kept = one.slice_of(start, end) if one.at <= start else b""
        until = min(max(end, start + self._ahead), one.end)
        one.at, one.held = start, kept + self._fetch(start + len(kept), until)
        return one.slice_of(start, end)

    # --- calls of PyArrow

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._at

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    @override
    def read(self, size: int | None = -1) -> Any:
        end = self._size if size is None or size < 0 else min(self._at + size, self._size)
        start, self._at = self._at, max(end, self._at)
        return self._read_range(start, end) if start < end else b""


def _join_close(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in ascending order, joined across small gaps."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start - found[-1][1] <= _GAP_BYTES:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
