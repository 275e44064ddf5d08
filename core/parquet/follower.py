"""Which files of a place were not read yet. Driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from krishiv_spark.parquet import progress
from krishiv_spark.parquet.listing import FoundFile, Place, find_files
from krishiv_spark.parquet.position import ParquetOffset
from krishiv_spark.parquet.seen import Seen
from krishiv_spark.parquet.units import Unit, origin, units

__all__ = ["Follower"]


@dataclass(frozen=True)
class _Listing:
    """What was there at one moment.

    Attributes:
        files: Every file that was not known.
        visible: Newest wholly visible epoch of each query that has a log, by its tag.
    """

    files: Sequence[FoundFile]
    visible: Mapping[str, int]


class Follower:
    """Lists a place again and again, and remembers what it can to be quick.

    What it remembers follows from the positions that it is asked about: losing it changes nothing.

    Args:
        place: Where to look.
        recursive: See `find_files`.
    """

    def __init__(self, place: Place, *, recursive: bool) -> None:
        self._place = place
        self._recursive = recursive
        self._frozen: _Listing | None = None
        self._seen = Seen.load({})
        self._epochs: Mapping[str, int] = {}
        # Paths that were found among what was read, for good: no need to look them up again.
        self._known: set[str] = set()

    def everything(self) -> list[FoundFile]:
        """Every file that is there."""
        return list(self._list(frozenset()).files)

    def freeze(self) -> None:
        """From now on nothing newer than now is seen."""
        self._frozen = self._list(frozenset())

    def unread(self, position: ParquetOffset) -> list[Unit]:
        """What is there and was not read at a position, in no order."""
        self._move_to(position)
        listing = self._frozen or self._list(self._known)
        files = [file for file in listing.files if not self._is_done(file, position, listing)]
        return units(files, listing.visible)

    def visible_epochs(self) -> dict[str, int]:
        """The newest wholly visible epoch of each query that writes here, by its tag."""
        return progress.visible_epochs(Path(self._place.root))

    def adding(
        self, position: ParquetOffset, files: Iterable[FoundFile], floor_ns: int | None
    ) -> Seen:
        """The set of read files behind a position, when more files have been read there."""
        self._move_to(position)
        seen = self._seen.adding(files, floor_ns)
        if not self._seen.packed.keys() <= seen.packed.keys():
            # Files whose hour was dropped are judged by their time again, as after a restart.
            self._known = set()
        self._seen = seen
        return seen

    def _move_to(self, position: ParquetOffset) -> None:
        back = any(position.epochs.get(tag, -1) < epoch for tag, epoch in self._epochs.items())
        if back or position.seen != self._seen.packed:
            self._seen, self._known = Seen.load(position.seen), set()
        self._epochs = position.epochs

    def _list(self, known: AbstractSet[str]) -> _Listing:
        # In this order: an epoch that is visible now has all its files in a listing made later.
        visible = self.visible_epochs()
        files = find_files(self._place, recursive=self._recursive, known=known)
        if any(_unlogged(file, visible) for file in files):
            # A query may have begun in between; what it published is left for the next trigger.
            visible = {**dict.fromkeys(self.visible_epochs(), -1), **visible}
        return _Listing(files, visible)

    def _is_done(self, file: FoundFile, position: ParquetOffset, listing: _Listing) -> bool:
        source = origin(file.path)
        if source is not None and source.epoch <= position.epochs.get(source.tag, -1):
            self._known.add(file.path)
            return True
        if file.path in self._known or file.path in self._seen:
            self._known.add(file.path)
            return True
        if source is not None and source.tag in listing.visible:
            return False  # its time is that of staging, perhaps long before it became visible
        # An empty file is one that somebody has begun to write.
        return file.size == 0 or (position.floor is not None and file.modified_ns < position.floor)


def _unlogged(file: FoundFile, visible: Mapping[str, int]) -> bool:
    source = origin(file.path)
    return source is not None and source.tag not in visible
