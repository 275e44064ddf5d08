"""Paths and files of a warehouse that is relocated, and their way to the new folder. Operator."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import FORMAT

__all__ = ["PathMap", "WarehouseFiles", "local_path", "read_transferred"]

_PART = ".relocating"


_LOCAL = re.compile(r"(file:(?://(?:localhost)?)?)?(/.*)", re.DOTALL)


class PathMap:
    """A translation of locations below an old folder to a new folder.

    Args:
        old: The folder that metadata names; it may be missing.
        new: The folder that replaces it.
    """

    def __init__(self, old: str | Path, new: str | Path) -> None:
        self.old, self.new = Path(os.path.abspath(old)), Path(os.path.abspath(new))
        # Metadata may name the warehouse by a link, and the operator by its real path.
        self._roots = list(dict.fromkeys((str(self.old), os.path.realpath(old))))
        self._folders: dict[str, str] = {}

    def translate(self, location: str) -> str:
        """Return the new location; a location outside of the old folder is unchanged."""
        found = _LOCAL.fullmatch(location)
        if found is None:
            return location
        relative = self.relative(location)
        return (
            location if relative is None else f"{found[1] or ''}{self.new}/{relative}".rstrip("/")
        )

    def relative(self, location: str) -> str | None:
        """Return the path below the old folder; None if the location is not below it."""
        found = _LOCAL.fullmatch(location)
        if found is None:
            return None
        folder, name = os.path.split(os.path.normpath(found[2]))
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        for path in (f"{folder}/{name}", f"{self._folders[folder]}/{name}"):
            for root in self._roots:
                if f"{path}/".startswith(f"{root}/"):
                    return path[len(root) + 1 :]
        return None

    def is_below(self, location: str) -> bool:
        """Return True if a location is below the old folder."""
        return self.relative(location) is not None


def local_path(location: str) -> str | None:
    """Return the path of a location on a disk; None if it is in a store."""
    found = _LOCAL.fullmatch(location)
    return None if found is None else os.path.normpath(found[2])


class WarehouseFiles:
    """Files below the old folder, which get the same path below the new one. Operator.

    Files of Iceberg never change, so a file at the new path with the same size is the same file.

    Args:
        paths: The two folders.
        in_place: True if the files were copied or moved already, with their catalog.
        link: True if both folders may share a file by a hard link, as the old one is deleted later.
    """

    def __init__(self, paths: PathMap, *, in_place: bool, link: bool) -> None:
        self.paths = paths
        self._in_place, self._link = in_place, link
        self._new = PathMap(paths.new, paths.new)
        self.sizes: dict[str, int] = {}
        """Sizes of the new files that exist, by path."""
        self._apart: set[str] = set()

    def relative(self, location: str) -> str | None:
        """Return the path below the old folder or the new one; None if it is in neither."""
        found = self.paths.relative(location)
        return self._new.relative(location) if found is None else found

    def source(self, location: str) -> str:
        """Return the path of the file that a location names.

        Raises:
            OptionError: If it is in a store.
        """
        relative = self.relative(location)
        if relative is None:
            path = local_path(location)
            if path is None:
                raise OptionError(f"{FORMAT}: {location!r} is not on a disk. Nothing was switched")
            return path
        new = f"{self.paths.new}/{relative}"
        if not self.paths.is_below(location) or (self._in_place and os.path.exists(new)):
            return new
        return f"{self.paths.old}/{relative}"

    def read(self, location: str) -> bytes:
        """Return the bytes of a file.

        Raises:
            OptionError: If the file is missing.
        """
        path = self.source(location)
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            raise OptionError(
                f"{FORMAT}: {path}, which the table needs, does not exist: have it restored. "
                "Nothing was switched"
            ) from None

    def exists(self, location: str) -> bool:
        """Return True if the file of a location exists."""
        return os.path.isfile(self.source(location))

    def write(self, location: str, data: bytes) -> int:
        """Write new content for a location; return its size."""
        target = self._get_target(location)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        part = f"{target}{_PART}"
        Path(part).write_bytes(data)
        with contextlib.suppress(OSError):
            shutil.copystat(self.source(location), part)  # vacuum compares the age
        os.replace(part, target)
        self.sizes[target] = len(data)
        return len(data)

    def transfer(self, location: str) -> None:
        """Link or copy a file to the new folder unchanged; a file outside of the old one stays.

        Raises:
            OptionError: If the file is missing.
        """
        source = self.source(location)
        target = source if self.relative(location) is None else self._get_target(location)
        if target in self.sizes:
            return
        try:
            size = os.stat(source).st_size
        except FileNotFoundError:
            raise OptionError(
                f"{FORMAT}: {source}, which the table needs, does not exist: have it restored. "
                "Nothing was switched"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.stat(target).st_size == size:
                self.sizes[target] = size
                return
        self._copy(source, target)
        self.sizes[target] = size

    def record_transferred(self, file: Path) -> None:
        """Record the files in the new folder, each as JSON in a line."""
        prefix = f"{self.paths.new}/"
        with open(file, "w", encoding="utf-8") as lines:
            for path in self.sizes:
                if path.startswith(prefix):
                    lines.write(f"{json.dumps(path.removeprefix(prefix))}\n")

    def _copy(self, source: str, target: str) -> None:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        part = f"{target}{_PART}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        try:
            if not self._link:
                raise OSError("a copy has separate files")
            os.link(source, part, follow_symlinks=False)
        except OSError:
            shutil.copyfile(source, part)
            shutil.copystat(source, part)
        os.replace(part, target)

    def _get_target(self, location: str) -> str:
        relative = self.relative(location)
        if relative is None:
            raise OptionError(
                f"{FORMAT}: {location!r} is outside of the warehouse {self.paths.old}, and names "
                "files in it, so it would have to be changed where it is. Nothing was switched: "
                "have the table's owner rewrite its manifests first"
            )
        self._check_apart(os.path.dirname(relative))
        return f"{self.paths.new}/{relative}"

    def _check_apart(self, folder: str) -> None:
        """Refuse a folder that the old warehouse and the new one share, for example by a link.

        A link in a warehouse to another disk becomes a link in a copy of the warehouse too.
        """
        if folder in self._apart:
            return
        old, new = f"{self.paths.old}/{folder}", f"{self.paths.new}/{folder}"
        with contextlib.suppress(FileNotFoundError):
            if os.path.samefile(old, new):
                raise OptionError(
                    f"{FORMAT}: {new} and {old} are one folder, by a link or a mount, so a "
                    "change of one would be a change of the other. Nothing was switched: "
                    f"replace {new} by a separate folder, with a copy of the files, or remove "
                    "it"
                )
        self._apart.add(folder)


def read_transferred(file: Path) -> Iterator[str]:
    """Yield the files that `WarehouseFiles.record_transferred` recorded; none without it."""
    with contextlib.suppress(FileNotFoundError), open(file, encoding="utf-8") as lines:
        yield from map(json.loads, lines)
