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
import logging
import os
import time
import uuid
import zlib
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from krishiv_spark.durable import exists
from krishiv_spark.errors import OffsetError, OptionError, StorageError
from krishiv_spark.messages.advice import NEW_CHECKPOINT
from krishiv_spark.storage import ENVIRONMENT, Folder, Storage, StoreUrl

__all__ = ["StatePlace", "StreamState"]

_log = logging.getLogger(__name__)

_NS_PER_S = 1_000_000_000
_GUARD_S = 7 * 86_400
_SWEEP_EVERY_S = 3_600
_ARROW = b"ARROW1"


@dataclass(frozen=True)
class StatePlace:
    """Where streams keep their state.

    Attributes:
        own: Folder in which each stream has one of its own; new files go there.
        others: Folders in which earlier files may be: the usual one, if another was asked for.
        storage: How their stores are reached.
    """

    own: StoreUrl
    others: tuple[StoreUrl, ...] = ()
    storage: Storage = ENVIRONMENT

    @property
    def is_asked_for(self) -> bool:
        """Whether the user has named it."""
        return bool(self.others)

    def is_writable(self) -> bool:
        """Whether files can be made there.

        Asked of the nearest folder that exists; a store, which has no other answer, is asked to
        write.
        """
        if self.own.kind != "disk":
            return self._can_write()
        folder = Path(self.own.path)
        while not exists(folder):
            folder = folder.parent
        return os.access(folder, os.W_OK | os.X_OK)

    def _can_write(self) -> bool:
        folder, name = self.storage.folder(self.own), f".probe-{uuid.uuid4().hex}"
        try:
            folder.replace(name, b"")
            folder.remove([name])
        except StorageError as error:
            _log.warning("krishiv-parquet: %s", error)
            return False
        return True


class StreamState:
    """The files of one stream.

    Args:
        place: Where they are.
        stream: The stream's id.
    """

    def __init__(self, place: StatePlace, stream: str) -> None:
        self._own = _StateFolder(place.own / stream, place.storage)
        self._folders = [
            self._own,
            *(_StateFolder(other / stream, place.storage) for other in place.others),
        ]
        self._swept_s: float | None = None

    def inside(self, name: str) -> Folder:
        """A folder in that of the stream."""
        return self._own.inside(name)

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
            self._own.write(name, data)
        except (PermissionError, NotADirectoryError, StorageError) as error:
            raise OptionError(
                f"krishiv-parquet: {self._own} cannot be written "
                f"({getattr(error, 'strerror', error)}): give a folder that can with the option "
                "'stateLocation'"
            ) from error
        return name

    def read(self, name: str) -> pa.Table:
        """Read a table that was written by this stream, in whatever process.

        Raises:
            OffsetError: If its file is gone or damaged.
        """
        for folder in self._folders:
            data = folder.read(name)
            if data is not None:
                if _name_of(data) != name:
                    raise OffsetError(f"krishiv-parquet: {folder}/{name} is damaged; {_ADVICE}")
                return _from_bytes(data)
        places = ", ".join(map(str, self._folders))
        raise OffsetError(f"krishiv-parquet: there is no {name} in {places}; {_ADVICE}")

    def keep(self, names: Collection[str]) -> None:
        """Touch the files that are needed and remove what nobody has needed for a week.

        Does something at most once an hour.
        """
        now_s = time.monotonic()  # a wall clock that goes back would stop it
        if self._swept_s is not None and now_s - self._swept_s < _SWEEP_EVERY_S:
            return
        self._swept_s = now_s
        for folder in self._folders:
            for name in names:
                with suppress(PermissionError):
                    folder.touch(name)
        self._own.remove_older(time.time() - _GUARD_S, names)


class _StateFolder:
    """A folder of files that do not change, and are touched when they are needed."""

    def __init__(self, url: StoreUrl, storage: Storage) -> None:
        self._url = url
        self._storage = storage
        self._folder = storage.folder(url)
        self._files = storage.files(url)

    def __str__(self) -> str:
        return str(self._url)

    def inside(self, name: str) -> Folder:
        return self._storage.folder(self._url / name)

    def read(self, name: str) -> bytes | None:
        return self._folder.read(name)

    def write(self, name: str, data: bytes) -> None:
        """Write a file, unless one of its name, and so of its content, is there."""
        if not self.touch(name):
            self._folder.replace(name, data)

    def touch(self, name: str) -> bool:
        return self._files.touch(f"{self._url}/{name}")

    def remove_older(self, than_s: float, names: Collection[str]) -> None:
        """Remove files last touched before a time, in seconds since 1970, but for those named."""
        with suppress(FileNotFoundError):
            entries = [entry for entry in self._files.entries(str(self._url)) if not entry.is_dir()]
            for name in {entry.name for entry in entries}.difference(names):
                identity = self._files.identity(f"{self._url}/{name}")
                if identity is not None and identity.modified_ns < than_s * _NS_PER_S:
                    self._folder.remove([name])


_ADVICE = (
    "only this file says which files the query has read: put it back from a backup, look whether "
    f"the option 'stateLocation' was another one, or start the query with {NEW_CHECKPOINT}"
)


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
