"""HDFS over HTTP: its files, folders with atomic renames, and files that are written aside."""

from __future__ import annotations

import errno
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from krishiv_spark.errors import StorageError
from krishiv_spark.runtime.parallel import side_by_side
from krishiv_spark.storage.aside import AsideFile
from krishiv_spark.storage.files import FolderEntry, Identity, OpenedFile, StoredEntry, Take
from krishiv_spark.storage.folder import MOST_BYTES
from krishiv_spark.storage.hadoop import web_addresses
from krishiv_spark.storage.no_links import check_size
from krishiv_spark.storage.ranged import TAIL_BYTES, RangedFile
from krishiv_spark.storage.settings import HdfsSettings
from krishiv_spark.storage.urls import StoreUrl
from krishiv_spark.storage.webhdfs import WebHdfs

__all__ = ["HdfsAside", "HdfsFiles", "HdfsFolder"]


class HdfsFolder:
    """A folder of HDFS. See `krishiv_spark.storage.Folder`.

    Args:
        url: The folder, which need not be there.
        settings: How it is reached.

    Raises:
        OptionError: If nothing says at which address it answers over HTTP.
    """

    def __init__(self, url: StoreUrl, settings: HdfsSettings) -> None:
        self.url = url
        self._settings = settings
        self._addresses = web_addresses(url, settings.endpoint)
        self._opened: WebHdfs | None = None

    def __repr__(self) -> str:
        return str(self.url)

    def names(self) -> Mapping[str, str]:
        """See `Folder`."""
        return dict.fromkeys(self._hdfs.names(self.url.path), "")

    def read(self, name: str, most: int = MOST_BYTES) -> bytes | None:
        """See `Folder`."""
        data = self._hdfs.read(self._path(name), 0, most + 1)
        if data is not None:
            check_size(f"{self}/{name}", len(data), most)
        return data

    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        """See `Folder`."""
        return [self.read(name) for name in names]  # its client is one thread's

    def below(self) -> Iterator[str]:
        """See `Folder`."""
        folders = [""]
        while folders:
            within = folders.pop()
            for name, is_folder in self._hdfs.entries(self._path(within)):
                if is_folder:
                    folders.append(f"{within}{name}/")
                else:
                    yield f"{within}{name}"

    def tail(self, name: str, size: int) -> bytes | None:
        """See `Folder`."""
        length = self._hdfs.length(self._path(name))
        if length is None:
            return None
        return self._hdfs.read(self._path(name), max(0, length - size))

    def create(self, name: str, data: bytes) -> bool:
        """See `Folder`. A rename does not replace what is there."""
        aside = self._write_aside(name, data)
        # A rename whose answer was lost is refused the second time, but then nothing is aside.
        if self._hdfs.rename(aside, self._path(name)) or not self._hdfs.exists(aside):
            return True
        taken = self._hdfs.exists(self._path(name))
        self._hdfs.delete(aside)
        if not taken:
            raise StorageError(f"HDFS does not rename {aside} to {name}, although the name is free")
        return False

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """See `Folder`."""
        del durable
        aside = self._write_aside(name, data)
        if self._hdfs.rename(aside, self._path(name), overwrite=True):
            return
        if self._hdfs.exists(aside):  # HttpFS knows no such rename
            self._hdfs.delete(self._path(name))
            if not self._hdfs.rename(aside, self._path(name)) and self._hdfs.exists(aside):
                raise StorageError(f"HDFS does not rename {aside} to {name}")

    def remove(self, names: Iterable[str]) -> None:
        """See `Folder`."""
        for name in names:
            self._hdfs.delete(self._path(name))

    def move(self, name: str, to: str) -> None:
        """See `Folder`."""
        path, target = self._path(name), self._path(to)
        if not self._hdfs.exists(path):
            return
        self._hdfs.make_folder(target.rpartition("/")[0])
        self._hdfs.delete(target)  # a rename does not replace what is there
        if not self._hdfs.rename(path, target) and self._hdfs.exists(path):
            raise StorageError(f"HDFS does not rename {path} to {target}")

    def destroy(self) -> None:
        """See `Folder`."""
        self._hdfs.delete(self.url.path, recursive=True)

    def _write_aside(self, name: str, data: bytes) -> str:
        aside = self._path(f".{name}.{uuid.uuid4().hex}")
        self._hdfs.write(aside, data)
        return aside

    def _path(self, name: str) -> str:
        return f"{self.url.path.rstrip('/')}/{name}"

    @property
    def _hdfs(self) -> WebHdfs:
        if self._opened is None:
            self._opened = WebHdfs(self._addresses, self._settings)
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}


_NS_PER_MS = 1_000_000


class HdfsFiles:
    """Files by their URLs. See `krishiv_spark.storage.Files`.

    Args:
        url: Of any place in it.
        settings: How it is reached.

    Raises:
        OptionError: If nothing says at which address it answers over HTTP.
    """

    resolution_ns = 1  # of the milliseconds that it tells, none means a version
    is_remote = True

    def __init__(self, url: StoreUrl, settings: HdfsSettings) -> None:
        self._root = f"{url.scheme}://{url.authority}"
        self._settings = settings
        self._addresses = web_addresses(url, settings.endpoint)
        self._opened = threading.local()

    def walk(self, folder: str, take: Take) -> bool:
        """See `Files`. A request for each folder."""
        folder = folder.rstrip("/")
        if not _is_folder(self._found(folder)):
            return False
        inside = [""]
        while inside:
            prefix = inside.pop()
            with suppress(FileNotFoundError):  # it went away while the listing was made
                names = take(prefix, self.entries(f"{folder}/{prefix}".rstrip("/")))
                inside += [f"{prefix}{name}" for name in names]
        return True

    def entries(self, folder: str) -> Iterator[FolderEntry]:
        """See `Files`."""
        for status in self._hdfs.listing(self._path(folder)):
            yield _entry(status["pathSuffix"], status)

    def entry(self, path: str) -> FolderEntry | None:
        """See `Files`."""
        status = self._hdfs.status(self._path(path))
        return None if status is None else _entry(path.rpartition("/")[2], status)

    def identity(self, path: str) -> Identity | None:
        """See `Files`."""
        status = self._hdfs.status(self._path(path))
        return None if status is None or _is_folder(status) else _identity(status)

    def tail(self, path: str, count: int, size: int | None = None) -> tuple[Identity, bytes]:
        """See `Files`."""
        identity = _identity(self._found(path))
        end = min(identity.size, identity.size if size is None else size)
        return identity, self._read(path, max(0, end - count), end)

    @contextmanager
    def opened(self, path: str, size: int | None = None) -> Iterator[OpenedFile]:
        """See `Files`. HDFS cannot be asked for a version: it is compared again at the end."""
        del size
        identity, tail = self.tail(path, TAIL_BYTES)
        source = RangedFile(identity.size, tail, lambda start, end: self._read(path, start, end))
        try:
            yield OpenedFile(source, identity, source.expect)
        finally:
            if self.identity(path) not in (identity, None):
                raise OSError(errno.ESTALE, "replaced while it was read", path)

    def touch(self, path: str) -> bool:
        """See `Files`."""
        return self._hdfs.touch(self._path(path), time.time_ns() // _NS_PER_MS)

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """See `Files`."""
        return iter(side_by_side(function, items))

    def _read(self, path: str, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        data = self._hdfs.read(self._path(path), start, end)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if len(data) != end - start:
            raise OSError(errno.ESTALE, "replaced while it was read", path)
        return data

    def _found(self, path: str) -> Mapping[str, Any]:
        status = self._hdfs.status(self._path(path))
        if status is None:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder", path)
        return status

    def _path(self, path: str) -> str:
        return path[len(self._root) :] or "/"

    @property
    def _hdfs(self) -> WebHdfs:
        """Of this thread."""
        found: WebHdfs | None = getattr(self._opened, "hdfs", None)
        if found is None:
            found = self._opened.hdfs = WebHdfs(self._addresses, self._settings)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_opened"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _opened=threading.local())


def _is_folder(status: Mapping[str, Any]) -> bool:
    return bool(status["type"] == "DIRECTORY")


def _identity(status: Mapping[str, Any]) -> Identity:
    return Identity(status["length"], status["modificationTime"] * _NS_PER_MS)


def _entry(name: str, status: Mapping[str, Any]) -> StoredEntry:
    return StoredEntry(name, None if _is_folder(status) else _identity(status))


_WAITING = 4
"""Pieces, of the sizes in which pyarrow writes them, that wait to be sent."""


class HdfsAside:
    """See `krishiv_spark.storage.aside.AsideStore`.

    Args:
        url: The place to which paths are relative.
        settings: How it is reached.
    """

    def __init__(self, url: StoreUrl, settings: HdfsSettings) -> None:
        self._url = url
        self._settings = settings
        self._addresses = web_addresses(url, settings.endpoint)

    def create(self, path: str) -> _SentFile:
        """See `AsideStore`."""
        return _SentFile(self._hdfs(), self._path(path))

    def move(self, path: str, to: str) -> bool:
        """See `AsideStore`."""
        hdfs = self._hdfs()
        if hdfs.rename(self._path(path), self._path(to)):
            return True
        if not hdfs.exists(self._path(path)):
            return False
        hdfs.make_folder(self._path(to).rpartition("/")[0])  # perhaps that was missing
        return hdfs.rename(self._path(path), self._path(to))

    def exists(self, path: str) -> bool:
        """See `AsideStore`."""
        return self._hdfs().exists(self._path(path))

    def delete(self, path: str) -> None:
        """See `AsideStore`."""
        self._hdfs().delete(self._path(path))

    def files(self, path: str) -> Iterator[AsideFile]:
        """See `AsideStore`."""
        for item in self._hdfs().statuses(self._path(path)):
            yield AsideFile(item["pathSuffix"], item["modificationTime"])

    def _path(self, path: str) -> str:
        return f"{self._url.path.rstrip('/')}/{path}"

    def _hdfs(self) -> WebHdfs:
        """Each thread needs one of its own."""
        return WebHdfs(self._addresses, self._settings)


class _SentFile:
    """One request, whose body is sent by a thread as it is written."""

    def __init__(self, hdfs: WebHdfs, path: str) -> None:
        self._hdfs = hdfs
        self._path = path
        self._pieces: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        self._error: Exception | None = None
        self._is_dropped = False
        self._thread = threading.Thread(target=self._send, name="krishiv-hdfs", daemon=True)

    def write(self, data: bytes) -> None:
        self._put(data)

    def close(self) -> None:
        self._put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def drop(self) -> None:
        self._is_dropped = True
        if self._thread.is_alive():
            self._put(None)
            self._thread.join()

    def _put(self, piece: bytes | None) -> None:
        if self._thread.ident is None:
            self._thread.start()
        while True:
            if self._error is not None and piece is not None:
                raise self._error
            try:
                return self._pieces.put(piece, timeout=0.1)
            except queue.Full:
                if not self._thread.is_alive():
                    return None

    def _send(self) -> None:
        try:
            self._hdfs.stream(self._path, self._taken())
        except Exception as error:  # noqa: BLE001  else the file would count as written
            self._error = error

    def _taken(self) -> Iterator[bytes]:
        while (piece := self._pieces.get()) is not None:
            if piece:  # an empty one would end a chunked body
                yield piece
        if self._is_dropped:
            raise StorageError(f"{self._path} is given up")
