"""Which files were read already: an exact set. Driver.

The newest few hundred ids are in the offset. Older ones are in blocks, immutable files that grow as
in a log-structured merge tree: a block is merged with those that are not much larger, so an id is
written a handful of times in its life, and there are few blocks however many ids.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from krishiv_spark.errors import OffsetError
from krishiv_spark.sources.parquet.places import FoundFile
from krishiv_spark.sources.parquet.state import StreamState
from krishiv_spark.storage.paths import FileName

__all__ = ["HOUR_NS", "Block", "Seen", "file_id"]

HOUR_NS = 3_600_000_000_000
_FANOUT = 4

Array = np.ndarray[Any, Any]


def file_id(path: str) -> int:
    """The 64 bits that stand for a file in offsets; part of the released form.

    The first 8 bytes of BLAKE2b over the relative path in UTF-8. Two of a million files share one
    with a probability of 3 in 100 million.
    """
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest(), "big")


class Block(NamedTuple):
    """A file of ids, as an offset names it.

    Attributes:
        name: Of the file; see `StreamState`.
        size: How many ids are in it.
    """

    name: FileName
    size: int


class _Ids(NamedTuple):
    """Sorted ids, and for each of them the hour since 1970 in which its file was modified."""

    ids: Array
    hours: Array

    @classmethod
    def of_table(cls, table: pa.Table) -> _Ids:
        return cls(table["id"].to_numpy(), table["hour"].to_numpy())

    @classmethod
    def of_hours(cls, packed: Mapping[str, str]) -> _Ids:
        pairs = sorted((number, int(hour)) for hour in packed for number in _unpack(packed[hour]))
        ids = np.array([number for number, _ in pairs], np.uint64)
        return cls(ids, np.array([hour for _, hour in pairs], np.int32))

    @classmethod
    def merged(cls, parts: Sequence[_Ids]) -> _Ids:
        ids = np.concatenate([part.ids for part in parts])
        hours = np.concatenate([part.hours for part in parts])
        ids, first = np.unique(ids, return_index=True)
        return cls(ids, hours[first])

    def table(self) -> pa.Table:
        return pa.table({"id": self.ids, "hour": self.hours})

    def has(self, wanted: Array) -> Array:
        """For each wanted id whether it is one of these."""
        if not len(self.ids):
            return np.zeros(len(wanted), np.bool_)
        places = np.searchsorted(self.ids, wanted)
        found: Array = self.ids[np.minimum(places, len(self.ids) - 1)] == wanted
        return found

    def without(self, dropped: Array) -> _Ids:
        return _Ids(self.ids[~dropped], self.hours[~dropped])


class Seen:
    """Files that were read. A value: nothing changes it.

    Args:
        recent: For each hour since 1970 in which files were modified, the sorted ids of those that
            are in no block, 8 bytes each, big-endian, in base64: the form in offsets.
        blocks: The blocks, from the largest to the smallest.
        ids: What is in the blocks.
    """

    def __init__(
        self,
        recent: Mapping[str, str] | None = None,
        blocks: tuple[Block, ...] = (),
        ids: tuple[_Ids, ...] = (),
    ) -> None:
        self.recent = dict(recent or {})
        self.blocks = blocks
        self._ids = ids
        self._recent_ids = _Ids.of_hours(self.recent)

    @classmethod
    def load(
        cls, recent: Mapping[str, str], blocks: Sequence[Block], state: StreamState | None
    ) -> Seen:
        """Read the form in offsets, and the blocks that it names.

        Raises:
            OffsetError: If either is damaged, or a block is gone.
        """
        if blocks and state is None:
            raise OffsetError("damaged parquet offset: it has 'seen_in' and no 'stream'")
        ids = tuple(_Ids.of_table(state.read(block.name)) for block in blocks if state)
        return cls(recent, tuple(blocks), ids)

    @property
    def recent_count(self) -> int:
        """How many ids are in no block."""
        return len(self._recent_ids.ids)

    def lacks(self, paths: Sequence[str]) -> list[str]:
        """Those of some paths that were not read, in their order."""
        wanted = _ids_of(paths)
        read = self._recent_ids.has(wanted)
        for part in self._ids:
            read |= part.has(wanted)
        return [path for path, done in zip(paths, read, strict=True) if not done]

    def adding(self, files: Iterable[FoundFile]) -> Seen:
        """The set with more files, which are recent."""
        fresh: dict[str, set[int]] = {}
        for file in files:
            fresh.setdefault(str(file.modified_ns // HOUR_NS), set()).add(file_id(file.path))
        recent = dict(self.recent)
        for hour, ids in fresh.items():
            recent[hour] = _pack(ids.union(_unpack(recent.get(hour, ""))))
        return Seen(recent, self.blocks, self._ids) if fresh else self

    def stored(
        self, state: StreamState, floor_ns: int | None, present: Callable[[], Collection[str]]
    ) -> Seen:
        """The same set with no recent ids: they go into a block, with the blocks of their size.

        Of ids that are written again, those are dropped whose file is both gone and too old to be
        read if it came back.

        Args:
            state: Where blocks are.
            floor_ns: Files modified before this are too old, in nanoseconds since 1970 UTC.
            present: Paths of the files that are there; asked only if it matters.
        """
        parts, blocks, ids = [self._recent_ids], list(self.blocks), list(self._ids)
        size = self.recent_count
        # As in a log-structured merge tree, so that each id is written a few times only.
        while blocks and blocks[-1].size < _FANOUT * size:
            size += blocks.pop().size
            parts.append(ids.pop())
        merged = _without_gone(_Ids.merged(parts), floor_ns, present)
        if len(merged.ids):
            blocks.append(Block(state.write(merged.table()), len(merged.ids)))
            ids.append(merged)
        return Seen({}, tuple(blocks), tuple(ids))


def _without_gone(
    merged: _Ids, floor_ns: int | None, present: Callable[[], Collection[str]]
) -> _Ids:
    if floor_ns is None:
        return merged
    # Only hours that are too old as a whole, since no more is known of a file's time.
    old: Array = (merged.hours.astype(np.int64) + 1) * HOUR_NS <= floor_ns
    if not old.any():
        return merged
    there = np.isin(merged.ids, _ids_of(list(present())))
    return merged.without(old & ~there)


def _ids_of(paths: Sequence[str]) -> Array:
    return np.fromiter(map(file_id, paths), np.uint64, len(paths))


def _pack(ids: Iterable[int]) -> str:
    ordered = sorted(ids)
    return base64.b64encode(struct.pack(f">{len(ordered)}Q", *ordered)).decode()


def _unpack(text: str) -> tuple[int, ...]:
    try:
        data = base64.b64decode(text, validate=True)
        return struct.unpack(f">{len(data) // 8}Q", data)
    except (ValueError, struct.error) as error:
        raise OffsetError(f"damaged parquet offset: 'seen' holds {text[:80]!r}: {error}") from error
