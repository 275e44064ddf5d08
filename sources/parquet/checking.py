"""Whether what waits can be read now: files are looked at right before they are taken. Driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from krishiv_spark.parquet.footers import UnsupportedFileError, is_readable
from krishiv_spark.parquet.tails import FileEnd, read_end
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
        self._ahead: dict[str, FileEnd | OSError] = {}
        self._fingerprints: dict[str, int | None] = {}

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

    def forget(self) -> None:
        """What was looked at ahead is to be looked at again."""
        self._ahead, self._fingerprints = {}, {}

    def fingerprint(self, path: str) -> int | None:
        """Return the fingerprint of a file that was checked since the last `forget`, if known."""
        return self._fingerprints.get(path)

    def look_ahead(self, unit: ReadUnit, following: Callable[[], Iterable[ReadUnit]]) -> None:
        """Look at files side by side, where each look is a request.

        Args:
            unit: The one that is checked next.
            following: It, and those after it.
        """
        is_known = unit.files[0].path in self._ahead
        if is_known or unit.key is not None or not (self._looks and self._place.files.is_remote):
            return
        paths = [file.path for one in following() if one.key is None for file in one.files]
        self._ahead = dict(zip(paths, self._place.files.each(self._try_look, paths), strict=True))

    def whole(self, units: Sequence[ReadUnit]) -> list[ReadUnit]:
        """Those that nobody is writing: only new ones are worth a look."""
        now_ns = time.time_ns()
        new = [
            unit
            for unit in units
            if unit.origin is None and unit.modified_ns >= now_ns - _MAY_GROW_NS
        ]
        paths = [unit.files[0].path for unit in new]
        looks = zip(paths, self._place.files.each(self._is_whole, paths), strict=True)
        growing = {path for path, is_whole in looks if not is_whole}
        return [unit for unit in units if unit.files[0].path not in growing]

    def _check_file(self, standing: Standing, path: str) -> FoundFile | None:
        try:
            seen = self._look(path)
        except FileNotFoundError:
            standing.known.discard(path)
            standing.passed.add(Reason.GONE, [path])
            return None
        except PermissionError:
            standing.passed.park(path, Reason.UNREADABLE)
            return None
        status = seen.status
        file = FoundFile(path, status.size, status.modified_ns)
        if not status.whole:
            standing.passed.park(path, Reason.UNFINISHED, file)
        elif seen.is_encrypted:
            raise UnsupportedFileError(_encrypted(self._place.absolute(path)))
        elif self._skip_bad and not is_readable(self._place.absolute(path), self._place.files):
            standing.passed.park(path, Reason.DAMAGED, file)
        else:
            self._fingerprints[path] = seen.fingerprint
            return file
        return None

    def _is_whole(self, path: str) -> bool:
        try:
            return self._look(path).status.whole
        except (FileNotFoundError, PermissionError):
            return False

    def _look(self, path: str) -> FileEnd:
        found = self._ahead.pop(path, None) or self._try_look(path)
        if isinstance(found, OSError):
            raise found
        return found

    def _try_look(self, path: str) -> FileEnd | OSError:
        try:
            return read_end(self._place.absolute(path), self._place.files)
        except OSError as error:
            return error


def _encrypted(path: str) -> str:
    return (
        f"{path} is encrypted, which is not supported. It is not skipped, because it may be a "
        "valid file. No row of it was read, and no batch names it: move it out of the folder, "
        "and replace it with a file that is not encrypted"
    )
