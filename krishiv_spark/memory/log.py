"""Numbered files on one machine: each is created exclusively, and found without a full listing.

An entry is a line of JSON, its `Header`, and a body. The header of the newest entry determines
which entries are visible and contains their total size, so an append costs the same for any number
of entries. Dropping old entries is one step with the append that drops them: their files are
removed later, and no reader opens them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence

from krishiv_spark.durable import remove_file
from krishiv_spark.errors import CommitRejected, KrishivError
from krishiv_spark.memory.entry import Header, StoreEntry

__all__ = ["Log", "sweep"]

_DIGITS = 2  # digits of a folder's or file's name: at most 100 names in a folder
# With two digits at each level, numbers end at 10**12.
_LEVELS = 6
_SNAPSHOT_ATTEMPTS = 1000
_ORPHAN_AGE_SECONDS = 3600.0


class Log:
    """A folder of numbered entries.

    Args:
        folder: The folder of the entries; the first one creates it.
        aside: Folder on the same file system for staged files.
    """

    def __init__(self, folder: str, aside: str) -> None:
        self.folder = folder
        self.aside = aside

    def newest(self) -> int | None:
        """Return the number of the newest entry; None if there is none."""
        digits = _newest(self.folder, 1)
        return None if digits is None else int(digits)

    def next_number(self) -> int:
        """Return the number after the newest."""
        newest = self.newest()
        return 0 if newest is None else newest + 1

    def state(self) -> Header | None:
        """Return the header of the newest entry; None if there is none."""
        found = self.newest_header()
        return None if found is None else found[1]

    def newest_header(self) -> tuple[int, Header] | None:
        """Return number and header of the newest entry; None if there is none."""
        while (newest := self.newest()) is not None:
            with contextlib.suppress(FileNotFoundError):  # replaced since, so it is read again
                return newest, self.header(newest)
        return None

    def first(self) -> int:
        """Return the lowest visible number."""
        state = self.state()
        return 0 if state is None else state.first

    def header(self, number: int) -> Header:
        """Return the header of an entry.

        Raises:
            FileNotFoundError: If there is no such entry, or it was removed.
        """
        with open(self._path(number), "rb") as file:
            return Header(**json.loads(file.readline()))

    def read(self, number: int) -> tuple[Header, bytes]:
        """Return header and body of an entry; raises as `header`."""
        with open(self._path(number), "rb") as file:
            return Header(**json.loads(file.readline())), file.read()

    def numbers(self, first: int, end: int) -> Iterator[int]:
        """Yield the numbers of entries from `first` (inclusive) to `end` (exclusive), ascending."""
        for digits in _walk(self.folder, 1, "", first):
            if int(digits) >= end:
                return
            yield int(digits)

    def snapshot(self) -> list[tuple[Header, bytes]]:
        """Return all visible entries as of one moment.

        Raises:
            KrishivError: If entries are dropped faster than they can be read.
        """
        for _ in range(_SNAPSHOT_ATTEMPTS):
            newest = self.newest()
            if newest is None:
                return []
            # If an entry is dropped meanwhile, all of them are read again.
            with contextlib.suppress(FileNotFoundError):
                first = self.header(newest).first
                found = [self.read(number) for number in self.numbers(first, newest + 1)]
                # No entry was dropped during the reading, so all were visible at the same time.
                if self.first() == first:
                    return found
        raise KrishivError(f"{self.folder} is replaced faster than it can be read: try again")

    def append(self, entry: StoreEntry, mark: str | None = None) -> bool:
        """Append an entry with the next number, even if other processes append too; see `put`."""
        while True:
            newest = self.newest_header()
            number, before = (0, None) if newest is None else (newest[0] + 1, newest[1])
            # Another process was faster, or has just cleared the log.
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                return self.put(number, entry, before, mark)

    def put(
        self, number: int, entry: StoreEntry, before: Header | None, mark: str | None = None
    ) -> bool:
        """Add an entry with a number that is greater than all others.

        Args:
            number: The number after the newest, or a greater one.
            entry: The entry.
            before: The newest header, which the caller has just read. A process that appends
                meanwhile takes the number, or a greater one, which then determines the visible
                entries.
            mark: Name in the folder `aside` that remains as a second link to the entry.

        Returns:
            True if older entries are invisible now, so that `remove_below` has work.

        Raises:
            FileExistsError: If the number exists.
            CommitRejected: If the log is full; nothing has changed.
        """
        header = self._fit_header(number, entry, entry.after(number, before))
        aside = f"{self.aside}/{mark or uuid.uuid4().hex}"
        try:
            self._write(aside, header, entry.bodies)
            self._appear(aside, self._path(number))
        finally:
            if mark is None:
                remove_file(aside)
        return before is not None and header.first > before.first

    def remove_below(self, number: int) -> None:
        """Remove the files of entries below a number; they are invisible already."""
        _remove_below(self.folder, 1, "", number)

    def move_out(self, number: int, path: str) -> None:
        """Move the newest entry out of the log, so that the previous one is the newest.

        Args:
            number: Number of the newest entry.
            path: New path of its file, on the same file system.
        """
        os.rename(self._path(number), path)

    def _path(self, number: int) -> str:
        digits = f"{number:0{_DIGITS * _LEVELS}d}"
        return "/".join([self.folder, *(digits[i : i + _DIGITS] for i in _SPLITS)])

    def _fit_header(self, number: int, entry: StoreEntry, header: Header) -> Header:
        bound = entry.bound
        bound.refuse(header.total_rows, header.total_size)
        if bound.admits(header.total_rows, header.total_size):
            return header
        for old in self.numbers(header.first, number):
            dropped = self.header(old)
            if dropped.stream:  # a batch job must not take a running query's rows away
                raise bound.full(header.total_rows, header.total_size)
            header = header.without(old, dropped)
            if bound.admits(header.total_rows, header.total_size):
                break
        return header

    def _write(self, aside: str, header: Header, bodies: Sequence[bytes]) -> None:
        try:
            with open(_create(aside), "wb") as file:
                file.writelines([header.line(), *bodies])
        except OSError as error:
            remove_file(aside)
            raise CommitRejected(f"no room for {header.size} bytes in {aside}: {error}") from error

    def _appear(self, aside: str, path: str) -> None:
        """Create the complete entry under its number, or fail. This is the linearization point."""
        try:
            os.link(aside, path)
        except FileNotFoundError:
            # Every hundredth entry creates a folder, which is often enough to search for files of
            # crashes.
            os.makedirs(os.path.dirname(path), exist_ok=True)
            sweep(self.aside)
            os.link(aside, path)


def sweep(aside: str) -> None:
    """Remove files that a crash left before they became visible, an hour later."""
    limit = time.time() - _ORPHAN_AGE_SECONDS
    with contextlib.suppress(OSError), os.scandir(aside) as files:
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(file.path)  # not file.stat(): it counts no links on Windows
                # With a second link it is an entry, and this name the mark of a batch job.
                if found.st_nlink == 1 and found.st_mtime < limit:
                    remove_file(file.path)


_SPLITS = range(0, _DIGITS * _LEVELS, _DIGITS)


def _create(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o600)


def _names(folder: str, *, newest_first: bool = False) -> list[str]:
    try:
        return sorted(os.listdir(folder), reverse=newest_first)
    except FileNotFoundError:
        return []


def _newest(folder: str, level: int) -> str | None:
    for name in _names(folder, newest_first=True):
        below = "" if level == _LEVELS else _newest(f"{folder}/{name}", level + 1)
        if below is not None:  # a folder may be empty: made, but nothing linked into it yet
            return name + below
    return None


def _walk(folder: str, level: int, prefix: str, first: int) -> Iterator[str]:
    for name in _names(folder):
        digits = prefix + name
        if _last(digits) < first:
            continue
        if level == _LEVELS:
            yield digits
        else:
            yield from _walk(f"{folder}/{name}", level + 1, digits, first)


def _last(digits: str) -> int:
    """Return the highest number that starts with some digits."""
    return int(digits.ljust(_DIGITS * _LEVELS, "9"))


def _remove_below(folder: str, level: int, prefix: str, number: int) -> None:
    for name in _names(folder):
        digits, path = prefix + name, f"{folder}/{name}"
        if _last(digits) < number:
            remove_file(path) if level == _LEVELS else shutil.rmtree(path, ignore_errors=True)
        else:
            if level < _LEVELS:
                _remove_below(path, level + 1, digits, number)
            return  # what follows has higher numbers
