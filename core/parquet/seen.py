"""Which files were read already: an exact set, small enough to be part of an offset."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from krishiv_spark.errors import OffsetError
from krishiv_spark.parquet.listing import FoundFile

__all__ = ["HOUR_NS", "Seen", "file_id"]

HOUR_NS = 3_600_000_000_000


def file_id(path: str) -> int:
    """The 64 bits that stand for a file in offsets; part of the released form.

    The first 8 bytes of BLAKE2b over the relative path in UTF-8. Two of a million files share one
    with a probability of 3 in 100 million.
    """
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True)
class Seen:
    """Files that were read, by the hour of their modification, so that old hours can be dropped.

    Attributes:
        packed: For each hour since 1970 the sorted ids of its files, 8 bytes each, big-endian, in
            base64: the form in offsets.
        ids: The same ids, of all hours.
    """

    packed: Mapping[str, str]
    ids: frozenset[int]

    @classmethod
    def load(cls, packed: Mapping[str, str]) -> Seen:
        """Read the form in offsets.

        Raises:
            OffsetError: If it is damaged.
        """
        ids = frozenset(number for text in packed.values() for number in _unpack(text))
        return cls(dict(packed), ids)

    def __contains__(self, path: str) -> bool:
        return bool(self.ids) and file_id(path) in self.ids

    def adding(self, files: Iterable[FoundFile], floor_ns: int | None) -> Seen:
        """The set with more files, and without the hours that lie wholly below the floor."""
        fresh: dict[str, set[int]] = {}
        for file in files:
            fresh.setdefault(str(file.modified_ns // HOUR_NS), set()).add(file_id(file.path))
        packed = dict(self.packed)
        for hour, ids in fresh.items():
            packed[hour] = _pack(ids.union(_unpack(packed.get(hour, ""))))
        kept = {hour: text for hour, text in packed.items() if not _below(hour, floor_ns)}
        if len(kept) < len(packed):
            return Seen.load(kept)
        return Seen(kept, self.ids.union(*fresh.values()))


def _below(hour: str, floor_ns: int | None) -> bool:
    return floor_ns is not None and (int(hour) + 1) * HOUR_NS <= floor_ns


def _pack(ids: Iterable[int]) -> str:
    ordered = sorted(ids)
    return base64.b64encode(struct.pack(f">{len(ordered)}Q", *ordered)).decode()


def _unpack(text: str) -> tuple[int, ...]:
    try:
        data = base64.b64decode(text, validate=True)
        return struct.unpack(f">{len(data) // 8}Q", data)
    except (ValueError, struct.error) as error:
        raise OffsetError(f"damaged parquet offset: 'seen' holds {text[:80]!r}: {error}") from error
