"""Whether what waits can be read now: files are looked at right before they are taken. Driver."""

from __future__ import annotations

import time

from krishiv_spark.parquet.footers import is_readable
from krishiv_spark.parquet.tails import look
from krishiv_spark.sources.parquet.passed import Reason
from krishiv_spark.sources.parquet.places import FoundFile, Place
from krishiv_spark.sources.parquet.standing import Standing
from krishiv_spark.sources.parquet.units import ReadUnit

__all__ = ["UnitChecks"]

_MAY_GROW_NS = 3_600_000_000_000


class UnitChecks:
    """Looks at files, and puts aside what cannot be read.

    Args:
        place: Where the files are.
        looks: Whether they are looked at at all; a batch read takes what is there.
        skip_bad: Whether damaged files are put aside.
    """

    def __init__(self, place: Place, *, looks: bool, skip_bad: bool) -> None:
        self._place = place
        self._looks = looks
        self._skip_bad = skip_bad

    def check(self, standing: Standing, unit: ReadUnit) -> ReadUnit | None:
        """A unit as it is now; None if it cannot be read, and was put aside.

        Where the log says that an epoch is visible, its files were renamed when they were whole.
        """
        if unit.key is not None or not self._looks:
            return unit
        if unit.origin is None:
            file = self._check_file(standing, unit.files[0].path)
            return None if file is None else ReadUnit((file,))
        if all(self._is_whole(file.path) for file in unit.files):
            return unit
        paths = [file.path for file in unit.files]
        standing.known.difference_update(paths)  # it is found again by the next listing
        standing.passed.count(Reason.UNFINISHED_EPOCH, paths, len(paths))
        return None

    def is_growing(self, unit: ReadUnit) -> bool:
        """Whether a file may be one that is being written: only new ones are worth a look."""
        is_new = unit.modified_ns >= time.time_ns() - _MAY_GROW_NS
        return is_new and unit.origin is None and not self._is_whole(unit.files[0].path)

    def _check_file(self, standing: Standing, path: str) -> FoundFile | None:
        try:
            seen = look(self._place.absolute(path))
        except FileNotFoundError:
            standing.known.discard(path)
            standing.passed.add(Reason.GONE, [path])
            return None
        except PermissionError:
            standing.passed.park(path, Reason.UNREADABLE)
            return None
        file = FoundFile(path, seen.size, seen.modified_ns)
        if not seen.whole:
            standing.passed.park(path, Reason.UNFINISHED, file)
        elif self._skip_bad and not is_readable(self._place.absolute(path)):
            standing.passed.park(path, Reason.DAMAGED, file)
        else:
            return file
        return None

    def _is_whole(self, path: str) -> bool:
        try:
            return look(self._place.absolute(path)).whole
        except (FileNotFoundError, PermissionError):
            return False
