"""Immutable files in which a source keeps what is too large for an offset. Driver.

An offset names such files by their content, so it means the same wherever and whenever it is read:
a file is there and is right, or it is an error. They are on the disk before the offset that names
them is handed to Spark. A crash in between leaves a file that no offset names; what nobody has
needed for a week is swept.

Whoever runs touches the files that it needs. So two queries that go on from copies of one
checkpoint do not take each other's files away, and one that is rolled back finds those of a week.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from krishiv_spark.durable import exists, make_folder, sync_folder, write_aside
from krishiv_spark.errors import OffsetError, OptionError

__all__ = ["StatePlace", "StreamState"]

_GUARD_S = 7 * 86_400
_SWEEP_EVERY_S = 3_600
_ARROW = b"ARROW1"


@dataclass(frozen=True)
class StatePlace:
    """Where streams keep their state.

    Attributes:
        own: Folder in which each stream has one of its own; new files go there.
        others: Folders in which earlier files may be: the usual one, if another was asked for.
    """

    own: Path
    others: tuple[Path, ...] = ()

    @property
    def is_asked_for(self) -> bool:
        """Whether the user has named it."""
        return bool(self.others)

    def is_writable(self) -> bool:
        """Whether files can be made there: asked of the nearest folder that exists."""
        folder = self.own
        while not exists(folder):
            folder = folder.parent
        return os.access(folder, os.W_OK | os.X_OK)


class StreamState:
    """The files of one stream.

    Args:
        place: Where they are.
        stream: The stream's id.
    """

    def __init__(self, place: StatePlace, stream: str) -> None:
        self.folder = place.own / stream
        self._folders = [folder / stream for folder in (place.own, *place.others)]
        self._swept_s = 0.0

    def write(self, table: pa.Table) -> str:
        """Write a table, durably.

        Returns:
            The name by which `read` finds it again.

        Raises:
            OptionError: If the folder cannot be written.
        """
        data = _to_bytes(table)
        name = _name_of(data)
        try:
            self._write(self.folder / name, data)
        except (PermissionError, NotADirectoryError) as error:
            raise OptionError(
                f"krishiv-parquet: {self.folder} cannot be written ({error.strerror}): give a "
                "folder that can with the option 'stateLocation'"
            ) from error
        return name

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        with suppress(FileNotFoundError):
            os.utime(path)  # it is there, and needed again
            return
        make_folder(path.parent)
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        write_aside(aside, data)
        os.rename(aside, path)  # over a file of the same content, if somebody was faster
        sync_folder(path.parent)

    def read(self, name: str) -> pa.Table:
        """Read a table that was written by this stream, in whatever process.

        Raises:
            OffsetError: If its file is gone or damaged.
        """
        for folder in self._folders:
            with suppress(FileNotFoundError):
                data = (folder / name).read_bytes()
                if _name_of(data) != name:
                    raise OffsetError(f"krishiv-parquet: {folder / name} is damaged; {_ADVICE}")
                return _from_bytes(data)
        places = ", ".join(map(str, self._folders))
        raise OffsetError(f"krishiv-parquet: there is no {name} in {places}; {_ADVICE}")

    def keep(self, names: Collection[str]) -> None:
        """Touch the files that are needed and remove what nobody has needed for a week.

        Does something at most once an hour.
        """
        now = time.time()
        if now - self._swept_s < _SWEEP_EVERY_S:
            return
        self._swept_s = now
        for folder in self._folders:
            for name in names:
                # The usual place may be one that can only be read, where nobody sweeps either.
                with suppress(FileNotFoundError, PermissionError):
                    os.utime(folder / name)
        for path, modified_s in _files(self.folder):
            if path.name not in names and modified_s < now - _GUARD_S:
                path.unlink(missing_ok=True)


_ADVICE = (
    "only this file says which files the query has read: put it back from a backup, look whether "
    "the option 'stateLocation' was another one, or start the query with a new checkpoint"
)


def _files(folder: Path) -> Iterator[tuple[Path, float]]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for name in names:
        with suppress(FileNotFoundError):
            status = os.stat(folder / name)
            if not os.path.isdir(folder / name):
                yield folder / name, status.st_mtime


def _to_bytes(table: pa.Table) -> bytes:
    """Arrow's file format; compressed where there are names, since ids cannot be."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = bytes(sink.getvalue())
    has_names = pa.string() in table.schema.types
    return zlib.compress(data, 1) if has_names else data  # not every pyarrow has a codec


def _from_bytes(data: bytes) -> pa.Table:
    plain = data if data.startswith(_ARROW) else zlib.decompress(data)
    return pa.ipc.open_file(pa.py_buffer(plain)).read_all()


def _name_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
