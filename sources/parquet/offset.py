"""The offset of a source, and the exact set of read files that it contains. Driver.

The newest few hundred ids are in the offset. Older ones are in blocks, immutable files that grow as
in a log-structured merge tree: a block is merged with those that are not much larger, so an id is
written a handful of times in its life, and there are few blocks however many ids.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from pydantic import Field

from krishiv_spark.errors import OffsetError
from krishiv_spark.offsets import Offset
from krishiv_spark.sources.parquet.listing import FoundFile
from krishiv_spark.storage.paths import FileName

__all__ = [
    "HOUR_NS",
    "PART_OF_EPOCHS",
    "IdBlock",
    "IdBlockStore",
    "ParquetOffset",
    "ReadFileIds",
    "file_id",
]

HOUR_NS = 3_600_000_000_000

PART_OF_EPOCHS = "*"
"""End of the keys of queries of whose epochs a part is read; part of the released form. No other
key ends so: the others end in a hexadecimal digit."""
_FANOUT = 4

Array = np.ndarray[Any, Any]


class IdBlock(NamedTuple):
    """A file of ids, as an offset names it.

    Attributes:
        name: Name of the file; see `StreamState`.
        size: Number of ids in it.
    """

    name: FileName
    size: int


class ParquetOffset(Offset):
    """The files that were read. At most 64 KiB of text: larger parts are in files of `OffsetStore`.

    Attributes:
        files: The files of the batch that ended here: all that is needed to read it again.
        files_in: Name of the state file that contains `files`, if there are too many.
        seen: Ids of files that were read; see `ReadFileIds`.
        seen_in: State files with further ids.
        newest: The newest time of a file that was read, nanoseconds since 1970 UTC, except times
            that were in the future when the file was read; None before the first batch and in
            version 1.
        epochs: For each query of the Parquet sink that the source follows, by `SinkTable.key`, the
            newest epoch that was read; its files are not in `seen`. If the path leaves out files of
            the table, the key ends in `PART_OF_EPOCHS`, and the files are in `seen`.
        epochs_in: Name of the state file that contains `epochs`, if there are too many.
        stream: Folder of the state files, a random id; None as long as there are none.
        floor: Of version 1: files modified before this count as read, nanoseconds since 1970 UTC.
            Their ids are added to `seen` with the next batch.
        root: `SourcePath.root` of the files; None before the first batch, and in offsets of
            releases that did not record it.
    """

    kind = "parquet"
    version = 2

    files: tuple[FoundFile, ...] = ()
    files_in: FileName | None = None
    seen: dict[str, str] = Field(default_factory=dict)
    seen_in: tuple[IdBlock, ...] = ()
    newest: int | None = None
    epochs: dict[str, int] = Field(default_factory=dict)
    epochs_in: FileName | None = None
    stream: FileName | None = None
    floor: int | None = None
    root: str | None = None

    @classmethod
    def upgrade(cls, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Version 1 has a subset of the fields; its `seen` may be of any size."""
        del version
        return fields

    @property
    def state_names(self) -> set[str]:
        """Names of the state files that this offset needs."""
        names = {self.files_in, self.epochs_in, *(block.name for block in self.seen_in)}
        return {name for name in names if name is not None}


def file_id(path: str) -> int:
    """Return the 64 bits that represent a file in offsets; part of the released form.

    The first 8 bytes of BLAKE2b over the relative path in UTF-8. Two of a million files share one
    with a probability of 3 in 100 million.
    """
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest(), "big")


class IdBlockStore(Protocol):
    """The files of one stream; see `StreamState`."""

    def read(self, name: str) -> pa.Table:
        """Read a table."""
        ...

    def write(self, table: pa.Table) -> str:
        """Write a table durably, and return its name."""
        ...


class _Ids(NamedTuple):
    """Sorted ids, and for each of them the hour since 1970 in which its file was modified."""

    ids: Array
    hours: Array

    @classmethod
    def from_table(cls, table: pa.Table) -> _Ids:
        return cls(table["id"].to_numpy(), table["hour"].to_numpy())

    @classmethod
    def from_hours(cls, packed: Mapping[str, str]) -> _Ids:
        pairs = sorted((number, int(hour)) for hour in packed for number in _unpack(packed[hour]))
        ids = np.array([number for number, _ in pairs], np.uint64)
        return cls(ids, np.array([hour for _, hour in pairs], np.int32))

    @classmethod
    def merge(cls, parts: Sequence[_Ids]) -> _Ids:
        ids = np.concatenate([part.ids for part in parts])
        hours = np.concatenate([part.hours for part in parts])
        ids, first = np.unique(ids, return_index=True)
        return cls(ids, hours[first])

    def to_table(self) -> pa.Table:
        return pa.table({"id": self.ids, "hour": self.hours})

    def contains(self, wanted: Array) -> Array:
        """Return for each wanted id whether it is one of these."""
        if not len(self.ids):
            return np.zeros(len(wanted), np.bool_)
        indexes = np.searchsorted(self.ids, wanted)
        found: Array = self.ids[np.minimum(indexes, len(self.ids) - 1)] == wanted
        return found

    def without(self, dropped: Array) -> _Ids:
        return _Ids(self.ids[~dropped], self.hours[~dropped])


class ReadFileIds:
    """The ids of the files that were read. Immutable.

    Args:
        recent: For each hour since 1970 in which files were modified, the sorted ids of those files
            that are in no block, 8 bytes each, big-endian, in base64: the form in offsets.
        blocks: The blocks, from the largest to the smallest.
        ids: The content of the blocks.
    """

    def __init__(
        self,
        recent: Mapping[str, str] | None = None,
        blocks: tuple[IdBlock, ...] = (),
        ids: tuple[_Ids, ...] = (),
    ) -> None:
        self.recent = dict(recent or {})
        self.blocks = blocks
        self._ids = ids
        self._recent_ids = _Ids.from_hours(self.recent)

    @classmethod
    def load(
        cls, recent: Mapping[str, str], blocks: Sequence[IdBlock], state: IdBlockStore | None
    ) -> ReadFileIds:
        """Return the set from its form in offsets; read the blocks that this names.

        Raises:
            OffsetError: If either is damaged, or a block is missing.
        """
        if blocks and state is None:
            raise OffsetError("damaged parquet offset: it has 'seen_in', but no 'stream'")
        ids = tuple(_Ids.from_table(state.read(block.name)) for block in blocks if state)
        return cls(recent, tuple(blocks), ids)

    @property
    def recent_count(self) -> int:
        """Number of ids that are in no block."""
        return len(self._recent_ids.ids)

    def filter_unread(self, paths: Sequence[str]) -> list[str]:
        """Return the paths that were not read, in their order."""
        wanted = _file_ids(paths)
        read = self._recent_ids.contains(wanted)
        for part in self._ids:
            read |= part.contains(wanted)
        return [path for path, done in zip(paths, read, strict=True) if not done]

    def union(self, files: Iterable[FoundFile]) -> ReadFileIds:
        """Return the set with more files, which are recent."""
        fresh: dict[str, set[int]] = {}
        for file in files:
            fresh.setdefault(str(file.modified_ns // HOUR_NS), set()).add(file_id(file.path))
        recent = dict(self.recent)
        for hour, ids in fresh.items():
            recent[hour] = _pack(ids.union(_unpack(recent.get(hour, ""))))
        return ReadFileIds(recent, self.blocks, self._ids) if fresh else self

    def move_to_block(
        self, state: IdBlockStore, floor_ns: int | None, present: Callable[[], Collection[str]]
    ) -> ReadFileIds:
        """Return the same set without recent ids, which are written into a block.

        Ids that are written again are dropped if their file is both deleted and too old to be read
        if it came back.

        Args:
            state: The store of the blocks.
            floor_ns: Files modified before this are too old, in nanoseconds since 1970 UTC.
            present: Returns the paths of the existing files; called only if it matters.
        """
        parts, blocks, ids = [self._recent_ids], list(self.blocks), list(self._ids)
        size = self.recent_count
        # As in a log-structured merge tree, so that each id is written a few times only.
        while blocks and blocks[-1].size < _FANOUT * size:
            size += blocks.pop().size
            parts.append(ids.pop())
        merged = _drop_deleted(_Ids.merge(parts), floor_ns, present)
        if len(merged.ids):
            blocks.append(IdBlock(state.write(merged.to_table()), len(merged.ids)))
            ids.append(merged)
        return ReadFileIds({}, tuple(blocks), tuple(ids))


def _drop_deleted(
    merged: _Ids, floor_ns: int | None, present: Callable[[], Collection[str]]
) -> _Ids:
    if floor_ns is None:
        return merged
    # Only hours that are too old as a whole, since a file's time is known to the hour only.
    old: Array = (merged.hours.astype(np.int64) + 1) * HOUR_NS <= floor_ns
    if not old.any():
        return merged
    there = np.isin(merged.ids, _file_ids(list(present())))
    return merged.without(old & ~there)


def _file_ids(paths: Sequence[str]) -> Array:
    return np.fromiter(map(file_id, paths), np.uint64, len(paths))


def _pack(ids: Iterable[int]) -> str:
    ordered = sorted(ids)
    return base64.b64encode(struct.pack(f">{len(ordered)}Q", *ordered)).decode()


def _unpack(text: str) -> tuple[int, ...]:
    try:
        data = base64.b64decode(text, validate=True)
        return struct.unpack(f">{len(data) // 8}Q", data)
    except (ValueError, struct.error) as error:
        raise OffsetError(
            f"damaged parquet offset: 'seen' contains {text[:80]!r}: {error}"
        ) from error
