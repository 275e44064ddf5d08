"""A file that is read by requests for ranges of its bytes: few of them, and in bounded memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from krishiv_spark.runtime.retry import map_in_parallel

__all__ = ["TAIL_BYTES", "RangedFile"]

TAIL_BYTES = 64 * 2**10
"""What is asked for first, as PyArrow does: most footers are in it."""

_HELD_BYTES = 64 * 2**20
"""How much is fetched ahead of what is read."""

_PIECE_BYTES = 8 * 2**20
_LEAST_BYTES = 2**20
_GAP_BYTES = 128 * 2**10
"""What a request costs is about what so many bytes do: a smaller gap is read with the rest."""


@dataclass
class _Stretch:
    """A range that is read from its beginning to its end, and what of it is here."""

    start: int
    end: int
    at: int = 0
    held: bytes = b""

    def has(self, start: int, end: int) -> bool:
        return self.at <= start and end <= self.at + len(self.held)

    def cut(self, start: int, end: int) -> bytes:
        return self.held[start - self.at : end - self.at]


class RangedFile(io.RawIOBase):
    """A file for reading. Executor or driver; one reader.

    Args:
        size: Bytes.
        tail: Its last bytes, which are here already.
        fetch: Asks for a range of bytes: the first, and the one after the last.
    """

    def __init__(self, size: int, tail: bytes, fetch: Callable[[int, int], bytes]) -> None:
        super().__init__()
        self._size = size
        self._fetch = fetch
        self._at = 0
        self._tail = _Stretch(size - len(tail), size, size - len(tail), tail)
        self._stretches: list[_Stretch] = []
        self._ahead = _HELD_BYTES

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """See `OpenedFile`. What was expected before is forgotten."""
        total = sum(end - start for start, end in ranges)
        share = max(_LEAST_BYTES, _HELD_BYTES // max(1, len(ranges)))
        self._ahead = _HELD_BYTES if total <= _HELD_BYTES else share
        self._stretches = [_Stretch(start, end, start) for start, end in sorted(ranges)]
        if total <= _HELD_BYTES:
            self._stretches = [_Stretch(start, end, start) for start, end in _joined(ranges)]
        self._fill()

    def _fill(self) -> None:
        """Fetch the first part of each range, side by side."""
        pieces = [
            (stretch, at, min(at + _PIECE_BYTES, stretch.start + self._ahead, stretch.end))
            for stretch in self._stretches
            for at in range(
                stretch.start, min(stretch.start + self._ahead, stretch.end), _PIECE_BYTES
            )
        ]
        found = map_in_parallel(lambda piece: self._fetch(piece[1], piece[2]), pieces)
        parts: dict[int, list[bytes]] = {}
        for (stretch, _, _), data in zip(pieces, found, strict=True):
            parts.setdefault(stretch.start, []).append(data)
        for stretch in self._stretches:
            stretch.held = b"".join(parts.get(stretch.start, ()))

    def _bytes(self, start: int, end: int) -> bytes:
        stretch = next((w for w in self._stretches if w.start <= start and end <= w.end), None)
        for known in (self._tail, stretch):
            if known is not None and known.has(start, end):
                return known.cut(start, end)
        if stretch is None:
            return self._fetch(start, end)
        kept = stretch.cut(start, end) if stretch.at <= start else b""
        until = min(max(end, start + self._ahead), stretch.end)
        stretch.at, stretch.held = start, kept + self._fetch(start + len(kept), until)
        return stretch.cut(start, end)

    # --- what PyArrow calls

    def readable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def tell(self) -> int:
        """See `io.IOBase`."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See `io.IOBase`."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> Any:
        """See `io.RawIOBase`."""
        end = self._size if size is None or size < 0 else min(self._at + size, self._size)
        start, self._at = self._at, max(end, self._at)
        return self._bytes(start, end) if start < end else b""


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges, ascending, without the small gaps between them."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start - found[-1][1] <= _GAP_BYTES:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
