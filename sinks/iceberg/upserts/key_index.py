"""The keys of data files, sorted in memory: a cache that finds the positions of some keys. Driver.

Without it, each epoch of upserts would read the key columns of all files that may have its keys.
Data files never change, so an entry stays right as long as its path is in use. The index compares
64-bit hashes. Where a hash does not determine the key, the keys themselves are in the index too and
are compared before a position counts as found. Nothing depends on the cache but time: a process
without it reads the files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc, sort_distinct
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.iceberg.upserts.epoch_changes import to_sortable
from krishiv_spark.sinks.iceberg.upserts.position_deletes import Positions

__all__ = ["CachedKeys", "FileKeys", "WantedKeys", "match_keys"]

_Hashes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"

_CACHE_BYTES = 2**28
_ROW_BYTES = 16
"""Bytes of a hash and a position."""
_ENTRY_BYTES = 1_000
"""Bytes of the objects of an entry, beside those of its rows."""

_ROW = "_krishiv_row"
_NO_POSITIONS: Positions = np.empty(0, np.int64)


def match_keys(rows: pa.Table, keys: pa.Table) -> Positions:
    """Return the indices of the rows whose key columns are equal to one of the keys.

    Args:
        rows: Key columns, as of `to_sortable`; a row with a null is equal to no key.
        keys: The keys, each once, with the same columns.
    """
    numbered = rows.append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    found = numbered.join(keys, keys.column_names, join_type="inner")[_ROW].to_numpy()
    return np.sort(found)


class WantedKeys:
    """The keys of an epoch.

    Args:
        keys: The keys, each once, as of `to_sortable`.
    """

    def __init__(self, keys: pa.Table) -> None:
        self.keys = keys

    @cached_property
    def hashes(self) -> _Hashes:
        """The hashes of the keys, ascending, each once."""
        return sort_distinct(_hash_rows(self.keys))


@dataclass(frozen=True)
class FileKeys:
    """The keys of one data file.

    Attributes:
        hashes: The hash of each row's key, ascending.
        positions: The position in the file of each of these rows.
        keys: The key columns, in the order of the file; None if the hashes determine the keys.
    """

    hashes: _Hashes
    positions: np.ndarray[Any, Any]
    keys: pa.Table | None

    @classmethod
    def build(cls, pieces: Iterable[pa.Table]) -> FileKeys:
        """Build the index of the key columns of a file, given piece by piece in their order.

        It takes about 25 bytes of memory for each row meanwhile.
        """
        hashes: list[_Hashes] = [np.empty(0, np.uint64)]
        valid: list[np.ndarray[Any, Any]] = [np.empty(0, bool)]
        kept: list[pa.Table] = []
        for piece in map(to_sortable, pieces):
            hashes.append(_hash_rows(piece))
            valid.append(_find_valid(piece))
            if not _determines_key(piece.schema):
                kept.append(piece)
        own, has_key = np.concatenate(hashes), np.concatenate(valid)
        hashes.clear()
        valid.clear()
        short = np.int32 if len(own) < _MOST_SHORT else np.int64
        positions = None
        if not has_key.all():  # a row with a null has no key
            positions = np.flatnonzero(has_key).astype(short)
            own = own[positions]
        order = np.argsort(own, kind="stable")
        own = own[order]
        order = order.astype(short)
        keys = pa.concat_tables(kept) if kept else None
        return cls(own, order if positions is None else positions[order], keys)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        own = int(self.hashes.nbytes + self.positions.nbytes)
        return _ENTRY_BYTES + own + (0 if self.keys is None else self.keys.nbytes)

    def find(self, wanted: WantedKeys) -> Positions:
        """Return the positions of the rows with one of the keys, ascending."""
        found = np.sort(self.positions[self._find_hashes(wanted.hashes)].astype(np.int64))
        if self.keys is None or not len(found):
            return found
        return found[match_keys(self.keys.take(pa.array(found)), wanted.keys)]

    def _find_hashes(self, wanted: _Hashes) -> np.ndarray[Any, Any]:
        """Return the indices of hashes that are wanted; searches the longer one of the two."""
        if len(wanted) > len(self.hashes):
            spots = np.searchsorted(wanted, self.hashes)
            return np.flatnonzero(wanted[np.minimum(spots, len(wanted) - 1)] == self.hashes)
        low = np.searchsorted(self.hashes, wanted, "left")
        counts = np.searchsorted(self.hashes, wanted, "right") - low
        before = np.cumsum(counts) - counts
        return np.repeat(low - before, counts) + np.arange(counts.sum())


class CachedKeys:
    """The indices of the files that were used last, in bounded memory."""

    def __init__(self, most_bytes: int = _CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._files: LruCache[str, tuple[tuple[object, ...], FileKeys]] = LruCache(
            most_bytes, lambda found: found[1].nbytes
        )

    def get(self, path: str, state: tuple[object, ...]) -> FileKeys | None:
        """Return the index of a file; None if it is not cached, or was built in another state."""
        known, found = self._files.get(path) or (None, None)
        return found if known == state else None

    def admits(self, rows: int, size: int) -> bool:
        """Return True if a file of so many rows and bytes leaves room for the others."""
        return rows * _ROW_BYTES + size <= self._most_bytes // 2

    def put(self, path: str, state: tuple[object, ...], found: FileKeys) -> None:
        """Cache the index of a file.

        Args:
            path: The path of the file.
            state: The properties of the file and its table on which the index depends.
            found: The index.
        """
        self._files.put(path, (state, found))

    def drop(self, paths: Iterable[str]) -> None:
        """Remove the indices of files."""
        self._files.drop(paths)


# --- hashes


_MOST_SHORT = 2**31

_ODD = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""The constants of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", 2014), whose steps map 64 bits one to one."""


def _mix(numbers: _Hashes) -> _Hashes:
    mixed = (numbers + np.uint64(_ODD[0])).astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_ODD[1])
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_ODD[2])
    found: _Hashes = mixed ^ (mixed >> np.uint64(31))
    return found


def _is_number(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_temporal, pa.types.is_boolean)
    return any(is_a(kind) for is_a in kinds)


def _determines_key(columns: pa.Schema) -> bool:
    """Return True if rows with the same hash have the same key."""
    return len(columns) == 1 and _is_number(columns.field(0).type)


def _find_valid(rows: pa.Table) -> np.ndarray[Any, Any]:
    valid = np.ones(rows.num_rows, bool)
    for column in rows.columns:
        if column.null_count:
            valid &= column.is_valid().to_numpy()
    return valid


def _hash_rows(rows: pa.Table) -> _Hashes:
    """Return a hash of each row; of rows with nulls, any number."""
    hashes = np.zeros(rows.num_rows, np.uint64)
    for column in rows.columns:
        hashes = _mix(hashes + _to_numbers(column))
    return hashes


def _to_numbers(column: pa.ChunkedArray) -> _Hashes:
    kind = column.type
    if not _is_number(kind):
        return np.concatenate([np.empty(0, np.uint64), *map(_hash_bytes, column.chunks)])
    if pa.types.is_temporal(kind):
        bits = pa.int32() if kind.bit_width == pa.int32().bit_width else pa.int64()
        column = pa.chunked_array([chunk.view(bits) for chunk in column.chunks], bits)
    found: Positions = pc.fill_null(column.cast(pa.int64()), 0).to_numpy().astype(np.int64)
    return found.view(np.uint64)


def _hash_bytes(array: pa.Array) -> _Hashes:
    """Return the sum of the bytes of each value, each times a number for its place in the value."""
    if pa.types.is_decimal(array.type):
        array = array.view(pa.binary(array.type.byte_width))
    values = pc.fill_null(array.cast(pa.large_binary()), b"")
    if not len(values):
        return np.empty(0, np.uint64)
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    first, last = int(ends[0]), int(ends[-1])
    if first == last:
        return np.zeros(len(values), np.uint64)
    content = np.frombuffer(data, np.uint8)[first:last].astype(np.uint64)
    starts = ends[:-1] - first
    places = np.arange(len(content)) - np.repeat(starts, np.diff(ends))
    weighted = (content + np.uint64(1)) * (_mix(places.astype(np.uint64)) | np.uint64(1))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(weighted, dtype=np.uint64)])
    found: _Hashes = sums[ends[1:] - first] - sums[starts]
    return found
